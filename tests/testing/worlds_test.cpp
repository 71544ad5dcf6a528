#include <heddle/tensor/redistribute_async.hpp>
#include <heddle/testing/counting_world.hpp>
#include <heddle/testing/on_ranks.hpp>
#include <heddle/testing/random_cases.hpp>

#include "catch.hpp"

#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace hd = heddle;
namespace ht = hd::testing;
using hd::dp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
}

TEST_CASE("on_ranks collects what each rank returns", "[testing]") {
  const auto sums = ht::on_ranks(mesh{2, 3}, [](auto& world) {
    int x = world.rank();
    world.template along<tp>().all_reduce(std::span<int>(&x, 1), hd::plus{});
    return x;
  });
  REQUIRE(sums.ok());
  CHECK(sums.by_rank.size() == 6);
  CHECK(sums[0] == 3);
  CHECK(sums[5] == 12);
  CHECK_FALSE(sums.all_are(3));
  CHECK(ht::on_ranks(mesh{1, 4}, [](auto& world) { return world.size() == 4; }).all_are(true));
  CHECK(ht::on_ranks(mesh{2, 1}, [](auto&) {}).all_are(ht::nothing{}));
}

TEST_CASE("on_ranks gives the first error and ends the other ranks", "[testing]") {
  const auto failed = ht::on_ranks(mesh{1, 3}, [](auto& world) {
    if (world.rank() == 1) throw std::runtime_error("no more");
    world.all().barrier();
    return 1;
  });
  CHECK_FALSE(failed.ok());
  CHECK(failed.error == "rank 1: no more");
  CHECK_FALSE(failed.by_rank[1].has_value());
  CHECK_THROWS_AS(failed[1], hd::error);

  const auto reports = ht::on_ranks(
      mesh{1, 3}, [](auto& world) { return world.rank() < 2 ? ht::report{true, "", 2} : ht::failure("a wrong sum"); });
  const ht::report all = ht::joined(reports);
  CHECK(all.what == "rank 2: a wrong sum");
  CHECK(all.cases == 5);
}

TEST_CASE("the counting world counts what others read", "[testing]") {
  const mesh m{2, 2};
  std::vector<std::int64_t> sent(4);
  std::vector<char> right(4, 0);
  ht::counting::run(m, [&](auto& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    std::vector<int> x{world.rank(), 1}, all(4);
    world.template along<tp>().all_gather(x, all);  // 8 bytes to one neighbour
    world.all().all_reduce(x, hd::plus{});          // 2 elements over 4 ranks: 2 (p - 1) T in total
    const int to = (world.rank() + 1) % 4, from = (world.rank() + 3) % 4;
    int got = -1;
    auto arrives = world.all().irecv(std::span<int>(&got, 1), from, 7);
    auto leaves = world.all().isend(std::span<const int>(&x[0], 1), to, 7);  // 4 bytes
    leaves.wait();
    arrives.wait();
    world.all().barrier();
    sent[me] = world.bytes_sent();
    right[me] = x == std::vector<int>{6, 4} && all[1] == 1 &&
                all[2] == world.rank() - world.template coordinate<tp>() + 1 && got == 6 && !world.mismatch();
  });
  CHECK(right == std::vector<char>(4, 1));
  CHECK(sent[0] + sent[1] + sent[2] + sent[3] == 4 * 8 + 2 * 3 * 8 + 4 * 4);
}

TEST_CASE("the counting world notices counts that disagree, and ends when a rank throws", "[testing]") {
  bool noticed = false;
  ht::counting::run(mesh{1, 2}, [&](auto& world) {
    std::vector<int> in(2), out(2);
    const std::vector<std::int64_t> give{1, 1},
        take = world.rank() == 0 ? std::vector<std::int64_t>{2, 0} : std::vector<std::int64_t>{1, 1};
    world.all().all_to_all_v(in, give, out, take);
    if (world.rank() == 0) noticed = world.mismatch();
  });
  CHECK(noticed);
  CHECK_THROWS_WITH(ht::counting::run(mesh{1, 3},
                                      [](auto& world) {
                                        if (world.rank() == 2) throw std::runtime_error("rank 2 is ill");
                                        world.all().barrier();
                                      }),
                    "rank 2 is ill");
}

TEST_CASE("the counting world ends where ranks wait for one that left, or for each other", "[testing]") {
  const auto text = [](auto body) {
    try {
      ht::counting::run(mesh{1, 3}, body, std::chrono::milliseconds(200));
    } catch (const hd::aborted_error& e) {
      return std::string(e.what());
    }
    return std::string("ended well");
  };
  const std::string left = text([](auto& world) {
    if (world.rank() != 1) world.all().barrier();
  });
  INFO(left);
  CHECK(left.find("waits in a collective or barrier of ranks 0 1 2") != std::string::npos);
  CHECK(left.find("rank 1 has returned") != std::string::npos);
  const std::string apart = text([](auto& world) {
    int x = 0;
    if (world.rank() == 0)
      world.all().recv(std::span<int>(&x, 1), 2);
    else
      world.all().barrier();
  });
  INFO(apart);
  CHECK(apart.find("heddle: counting world: nothing came for 200 ms; rank 0 waits in a receive from rank 2") == 0);
  CHECK(apart.find("rank 2 waits in a collective or barrier of ranks 0 1 2") != std::string::npos);
  CHECK(text([](auto& world) {
          int x = world.rank();
          if (x == 0) world.all().send(std::span<int>(&x, 1), 1);
          if (x == 1) world.all().recv(std::span<int>(&x, 1), 0);  // from one that may have left
        }) == "ended well");
}

TEST_CASE("random cases repeat with their seed, and failures are made small", "[testing]") {
  std::vector<std::string> first, second;
  for (auto* texts : {&first, &second}) {
    ht::case_options o;
    o.seed = 7;
    o.cases = 20;
    const auto r = ht::for_random_cases<mesh, 2>(o, [&](const mesh& m, const auto& s, std::uint64_t) {
      texts->push_back(to_string(m) + ", " + to_string(s));
      return m.size() <= 16 && s.size() <= 4096 ? ht::report{true, "", 1} : ht::failure("too large");
    });
    CHECK(r.what == "");
    CHECK(r.cases == 20);
  }
  CHECK(first == second);
  CHECK(first[0] != first[1]);

  const auto small = ht::for_random_cases<mesh, 2>({}, [](const mesh& m, const auto& s, std::uint64_t) {
    return m.size() >= 3 && s[1] >= 5 ? ht::failure("bad") : ht::report{};
  });
  CHECK_THAT(small.what, Catch::Matchers::Contains("shape 0 x 5: bad") && Catch::Matchers::Contains("seed 1, case "));
  CHECK((small.what.find("dp=3 x tp=1") != std::string::npos || small.what.find("dp=1 x tp=3") != std::string::npos ||
         small.what.find("dp=2 x tp=2") != std::string::npos));
  const auto thrown = ht::for_random_cases<mesh, 1>(
      {}, [](const mesh&, const auto&, std::uint64_t) -> ht::report { throw std::runtime_error("oh"); });
  CHECK_THAT(thrown.what, Catch::Matchers::Contains("mesh dp=1 x tp=1, shape 0: threw: oh"));
  ht::case_options none;
  none.cases = 0;
  CHECK_FALSE(
      (ht::for_random_cases<mesh, 1>(none, [](const mesh&, const auto&, std::uint64_t) { return ht::report{}; }).ok()));
}

namespace {
using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using sums = hd::layout<fixed, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
using tiles = hd::layout<fixed, hd::shard<0, dp>, hd::shard<1, tp>>;
using columns = hd::layout<fixed, hd::shard<1, dp, tp>>;

template <class L, class World>
hd::sharded<double, 2, L> filled(World& world, double value) {
  hd::sharded<double, 2, L> x(L{}, hd::dynamic_shape<2>{6, 5}, world.rank());
  for (double& e : x.elements()) e = value;
  return x;
}
template <class X>
bool all_are(const X& x, double value) {
  for (const double e : x.elements())
    if (e != value) return false;
  return true;
}
}  // namespace

TEST_CASE("queues of redistributions run in the counting world side by side", "[testing]") {
  const hd::dynamic_shape<2> shape{6, 5};
  const auto plan = hd::plan_redistribution(sums{}, columns{});
  const auto other = hd::plan_redistribution(tiles{}, columns{});
  std::vector<char> right(4, 0);
  std::vector<std::int64_t> sent(4), said(4);
  ht::counting::run(fixed{}, [&](auto& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    const auto a = filled<sums>(world, 1), b = filled<sums>(world, 10);
    const auto c = filled<tiles>(world, 7);
    {
      hd::redistribution_queue first(world), second(world);
      auto a_later = first.template start<columns>(a);
      auto b_later = second.template start<columns>(b);
      auto c_later = first.template start<columns>(c);
      bool ok = true;
      if (me % 2 == 0) ok = all_are(std::move(b_later).wait(), 20);
      ok = ok && all_are(std::move(c_later).wait(), 7) && all_are(std::move(a_later).wait(), 2);
      if (me % 2 == 1) ok = ok && all_are(std::move(b_later).wait(), 20);
      right[me] = ok && !world.mismatch();
    }
    world.all().barrier();
    sent[me] = world.bytes_sent();
    said[me] = 2 * plan.bytes_sent(shape, sizeof(double), world.rank()) +
               other.bytes_sent(shape, sizeof(double), world.rank());
  });
  CHECK(right == std::vector<char>(4, 1));
  CHECK(sent == said);
}

TEST_CASE("a queue in the counting world ends with a rank that leaves or throws", "[testing]") {
  const auto body = [](bool throws) {
    return [throws](auto& world) {
      if (world.rank() == 3) {
        if (throws) throw std::runtime_error("no more");
        return;
      }
      const auto a = filled<sums>(world, 1), b = filled<sums>(world, 1);
      hd::redistribution_queue first(world), second(world);
      auto a_later = first.template start<columns>(a);
      auto b_later = second.template start<columns>(b);
      static_cast<void>(std::move(b_later).wait());
      static_cast<void>(std::move(a_later).wait());
    };
  };
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(ht::counting::run(fixed{}, body(true)), "no more");
  CHECK_THROWS_WITH(ht::counting::run(fixed{}, body(false)), Catch::Matchers::Contains("rank 3 has returned"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}
