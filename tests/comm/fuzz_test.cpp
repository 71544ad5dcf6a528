// Random programs against a serial oracle: the same random calls on every rank, checked against what they mean.
#include <heddle/core/random.hpp>

#include <cstdlib>

#include "support.hpp"

using namespace comm_test;

namespace {

// A stream of numbers that all ranks draw alike.
class draws {
 public:
  draws(std::uint64_t seed, std::uint64_t stream) : random_(seed, stream) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_.integer(next_++) % static_cast<std::uint64_t>(n));
  }

 private:
  hd::counter_random random_;
  std::uint64_t next_ = 0;
};

// The state of all ranks, kept by every rank for itself: rank r's buffer is state[r]. A call changes the real buffer
// through the communicator and the state by its definition.
using state = std::vector<std::vector<matrix2>>;

matrix2 fold_of(const state& s, const std::vector<int>& members, std::size_t i) {
  matrix2 value = s[static_cast<std::size_t>(members[0])][i];
  for (std::size_t m = 1; m < members.size(); ++m)
    value = product2{}(value, s[static_cast<std::size_t>(members[m])][i]);
  return value;
}

// Plays another group's program, without calling anyone.
struct ignores {
  int rank() const { return 0; }
  void all_reduce(auto&&...) {}
  void broadcast(auto&&...) {}
  void reduce(auto&&...) {}
  void reduce_scatter(auto&&...) {}
  void all_gather(auto&&...) {}
  void all_to_all(auto&&...) {}
  void gather(auto&&...) {}
  void scatter(auto&&...) {}
  void all_gather_v(auto&&...) {}
  void barrier() {}
  struct nothing {
    void wait() {}
  };
  void send(auto&&...) {}
  nothing isend(auto&&...) { return {}; }
  nothing irecv(auto&&...) { return {}; }
};

// One random call on the communicator whose members are these world ranks, and its meaning.
void step(auto& c, const std::vector<int>& members, draws& draw, std::vector<matrix2>& mine, state& all) {
  const auto p = static_cast<std::int64_t>(members.size());
  const auto before = all;
  const auto of = [&](std::int64_t m) -> std::vector<matrix2>& {
    return all[static_cast<std::size_t>(members[static_cast<std::size_t>(m)])];
  };
  const auto was = [&](std::int64_t m) -> const std::vector<matrix2>& {
    return before[static_cast<std::size_t>(members[static_cast<std::size_t>(m)])];
  };
  const auto size = static_cast<std::int64_t>(mine.size());
  const std::int64_t kind = draw.below(10), root = draw.below(p), n = draw.below(size / p + 1);
  const auto block = static_cast<std::size_t>(n);
  const auto r = static_cast<std::size_t>(c.rank());
  const std::span<matrix2> x(mine);
  const auto head = x.first(block);
  std::vector<matrix2> out(block * static_cast<std::size_t>(p));
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  switch (kind) {
    case 0:
      c.all_reduce(head, product2{});
      for (std::int64_t m = 0; m < p; ++m)
        for (std::size_t i = 0; i < block; ++i) of(m)[i] = fold_of(before, members, i);
      break;
    case 1:
      c.broadcast(head, static_cast<int>(root));
      for (std::int64_t m = 0; m < p; ++m)
        for (std::size_t i = 0; i < block; ++i) of(m)[i] = was(root)[i];
      break;
    case 2:
      c.reduce(head, head, product2{}, static_cast<int>(root));
      for (std::size_t i = 0; i < block; ++i) of(root)[i] = fold_of(before, members, i);
      break;
    case 3:
      c.reduce_scatter(x.first(block * static_cast<std::size_t>(p)), x.subspan(block * r, block), product2{});
      for (std::int64_t m = 0; m < p; ++m)
        for (std::int64_t i = m * n; i < (m + 1) * n; ++i) of(m)[at(i)] = fold_of(before, members, at(i));
      break;
    case 4:
      c.all_gather(x.subspan(block * r, block), x.first(block * static_cast<std::size_t>(p)));
      for (std::int64_t m = 0; m < p; ++m)
        for (std::int64_t i = 0; i < p * n; ++i) of(m)[at(i)] = was(i / n)[at(i)];
      break;
    case 5:
      c.all_to_all(x.first(block * static_cast<std::size_t>(p)), out);
      std::copy(out.begin(), out.end(), x.begin());
      for (std::int64_t m = 0; m < p; ++m)
        for (std::int64_t i = 0; i < p * n; ++i) of(m)[at(i)] = was(i / n)[at(m * n + i % n)];
      break;
    case 6:
      c.gather(head, out, static_cast<int>(root));
      c.scatter(out, head, static_cast<int>(root));
      break;
    case 7: {
      // Uneven: member m gives (m + n) % 4 elements to everyone.
      std::vector<std::int64_t> counts;
      std::vector<matrix2> expected;
      for (std::int64_t m = 0; m < p; ++m) {
        counts.push_back((std::min)((m + n) % 4, size / p));
        expected.insert(expected.end(), was(m).begin(), was(m).begin() + counts.back());
      }
      out.resize(expected.size());
      c.all_gather_v(x.first(at(counts[r])), out, counts);
      std::copy(out.begin(), out.end(), x.begin());
      for (std::int64_t m = 0; m < p; ++m) std::copy(expected.begin(), expected.end(), of(m).begin());
      break;
    }
    case 8: {
      // Everyone shifts by `root` with messages, half of them started first.
      const auto shift = static_cast<int>(root), me = static_cast<int>(r), ranks = static_cast<int>(p);
      const std::vector<matrix2> copy(head.begin(), head.end());
      auto receive = c.irecv(head, (me + ranks - shift) % ranks, shift);
      if (shift % 2 == 0)
        c.send(copy, (me + shift) % ranks, shift);
      else
        c.isend(copy, (me + shift) % ranks, shift).wait();
      receive.wait();
      for (std::int64_t m = 0; m < p; ++m)
        for (std::size_t i = 0; i < block; ++i) of(m)[i] = was((m + p - root) % p)[i];
      break;
    }
    default:
      c.barrier();
  }
}

}  // namespace

TEST_CASE("random programs on random meshes mean what the oracle says", "[comm][fuzz]") {
  // HEDDLE_TEST_SEED=<number> repeats a run or starts another.
  const char* given = std::getenv("HEDDLE_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261120;
  CAPTURE(seed);
  using grid = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
  for (std::uint64_t round = 0; round < (on_threads ? 24 : 8); ++round) {
    CAPTURE(round);
    draws shape(seed, 2 * round);
    const grid mesh(1 + static_cast<int>(shape.below(3)), 1 + static_cast<int>(shape.below(4)));
    const std::int64_t size = shape.below(4) == 0 ? 6'000 : 1 + shape.below(60);
    const int steps = size > 1000 ? 8 : on_threads ? 40 : 15;
    if (mesh.size() > most_ranks()) continue;
    notes notes(mesh.size());
    launch(mesh, options_ms(60'000), [&](auto& world) {
      // Each rank draws for its own group, so that groups run different programs at the same time.
      const int r = world.rank();
      state all;
      for (int q = 0; q < mesh.size(); ++q) all.push_back(buffer<matrix2>(q, size));
      std::vector<matrix2> mine = all[static_cast<std::size_t>(r)];
      draws common(seed, 2 * round + 1);
      for (int s = 0; s < steps; ++s) {
        const std::int64_t where = common.below(5);
        const std::uint64_t inner = static_cast<std::uint64_t>(common.below(1'000'000));
        const auto on = [&](auto& c, const auto& members_of) {
          state next = all;
          for (int q = 0; q < mesh.size(); ++q) {  // the oracle runs every group's program
            const std::vector<int> members = members_of(q);
            if (q != *std::min_element(members.begin(), members.end())) continue;
            draws draw(seed + 1, inner * 16 + static_cast<std::uint64_t>(q));
            state changed = all;
            if (std::find(members.begin(), members.end(), r) != members.end()) {
              step(c, members, draw, mine, changed);
            } else {
              ignores stand_in;
              std::vector<matrix2> scratch = mine;
              step(stand_in, members, draw, scratch, changed);
            }
            for (const int m : members) next[static_cast<std::size_t>(m)] = changed[static_cast<std::size_t>(m)];
          }
          all = std::move(next);
        };
        switch (where) {
          case 0:
            on(world.template along<dp>(), [&](int q) { return hd::group<dp>(mesh, q); });
            break;
          case 1:
            on(world.template along<tp>(), [&](int q) { return hd::group<tp>(mesh, q); });
            break;
          case 2:
            on(world.template along<tp, dp>(), [&](int q) { return hd::group<tp, dp>(mesh, q); });
            break;
          case 3: {
            auto part = world.all().split(r % 2, -r);
            on(part, [&](int q) {
              std::vector<int> members;
              for (int m = mesh.size() - 1; m >= 0; --m)
                if (m % 2 == q % 2) members.push_back(m);
              return members;
            });
            break;
          }
          default:
            on(world.all(), [&](int q) { return hd::group<dp, tp>(mesh, q); });
        }
        notes.expect(r, mine == all[static_cast<std::size_t>(r)],
                     "round " + std::to_string(round) + " step " + std::to_string(s));
        if (!(mine == all[static_cast<std::size_t>(r)])) throw std::runtime_error("the oracle disagrees");
      }
    });
    notes.report();
  }
}
