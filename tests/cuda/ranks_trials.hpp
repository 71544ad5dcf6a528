// tests/cuda/ranks_trials.hpp: collectives and messages of threads that share a device, against the same calls in the host's memory.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/space_collectives.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace ranks_trials {

namespace hd = heddle;
using memory = hd::cuda_memory;
using line = hd::mesh<hd::axis<hd::dp>>;

/// Does not commute: the order of the ranks shows.
struct latest {
  template <class T>
  HEDDLE_HD static constexpr T identity() {
    return T(0);
  }
  template <class T>
  HEDDLE_HD constexpr T operator()(const T& a, const T& b) const {
    return b == T(0) ? a : b;
  }
};

/// One rank's side of a comparison: each call twice, once with the host's memory, once with the device's.
template <class T, class Comm>
class side {
 public:
  side(Comm& comm, memory::queue& queue, unsigned seed)
      : comm_(comm), queue_(queue), random_(seed + 977u * static_cast<unsigned>(comm.rank())) {}

  /// `call(comm, in, out)` for `in` elements here and `out` there. What differs is noted.
  template <class Call>
  void apart(const char* what, std::int64_t in, std::int64_t out, const Call& call) {
    const std::vector<T> x = some(in);
    std::vector<T> expected = some(out), got = expected;
    hd::buffer<T, memory> from(queue_, in), to(queue_, out);
    queue_.copy(x, from);
    queue_.copy(got, to);
    call(comm_, std::span<const T>(x), std::span<T>(expected));
    auto there = comm_.in_order_of(queue_);
    call(there, std::span<const T>(from.address(), x.size()), std::span<T>(to.address(), got.size()));
    queue_.zero(from);  // at once: whoever read it was there before
    queue_.copy(to, got);
    queue_.wait();
    note(what, expected, got);
  }
  /// `call(comm, inout)`.
  template <class Call>
  void in_place(const char* what, std::int64_t count, const Call& call) {
    std::vector<T> expected = some(count), got = expected;
    hd::buffer<T, memory> x(queue_, count);
    queue_.copy(got, x);
    call(comm_, std::span<T>(expected));
    auto there = comm_.in_order_of(queue_);
    call(there, std::span<T>(x.address(), got.size()));
    queue_.copy(x, got);
    queue_.wait();
    note(what, expected, got);
  }
  const std::string& wrong() const noexcept { return wrong_; }

 private:
  std::vector<T> some(std::int64_t n) {
    std::vector<T> x(static_cast<std::size_t>(n));
    for (T& e : x) e = static_cast<T>(static_cast<double>(random_() % 2001) / (sizeof(T) > 2 ? 7.0 : 20.0));
    return x;
  }
  void note(const char* what, const std::vector<T>& expected, const std::vector<T>& got) {
    if (!expected.empty() && std::memcmp(expected.data(), got.data(), expected.size() * sizeof(T)) != 0 &&
        wrong_.empty())
      wrong_ = std::string(what) + " of rank " + std::to_string(comm_.rank());
  }
  Comm& comm_;
  memory::queue& queue_;
  std::mt19937 random_;
  std::string wrong_;
};

/// All calls on so many ranks, with counts drawn by the seed, some of them 0, on so many devices by turns. The first call whose bits differ, or nothing.
template <class T>
std::string first_wrong(int ranks, unsigned seed, int devices = 1) {
  std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
  hd::launch<hd::threads>(line{ranks}, {}, [&](auto& world) {
    auto& comm = world.all();
    memory::queue queue(comm.rank() % devices);
    side<T, std::remove_reference_t<decltype(comm)>> me(comm, queue, seed);
    std::mt19937 random(seed);  // the same numbers on all ranks
    const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    const int p = ranks, r = comm.rank();
    const auto at = [](const std::vector<std::int64_t>& v, int i) { return v[static_cast<std::size_t>(i)]; };
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, 1 + below(300), std::int64_t{700}}) {
      const int root = static_cast<int>(below(p));
      me.apart("all_reduce", n, n, [](auto& c, auto x, auto y) { c.all_reduce(x, y, hd::plus{}); });
      me.apart("all_reduce of maxima", n, n, [](auto& c, auto x, auto y) { c.all_reduce(x, y, hd::maximum{}); });
      me.apart("all_reduce that keeps the latest", n, n, [](auto& c, auto x, auto y) { c.all_reduce(x, y, latest{}); });
      me.in_place("all_reduce in place", n, [](auto& c, auto x) { c.all_reduce(x, hd::plus{}); });
      me.apart("reduce", n, r == root ? n : 0, [&](auto& c, auto x, auto y) { c.reduce(x, y, hd::plus{}, root); });
      me.in_place("broadcast", n, [&](auto& c, auto x) { c.broadcast(x, root); });
      me.apart("reduce_scatter", n * p, n, [](auto& c, auto x, auto y) { c.reduce_scatter(x, y, hd::plus{}); });
      me.in_place("reduce_scatter in place", n * p, [&](auto& c, auto x) {
        c.reduce_scatter(std::span<const T>(x), x.subspan(static_cast<std::size_t>(r * n), static_cast<std::size_t>(n)),
                         hd::plus{});
      });
      me.apart("all_gather", n, n * p, [](auto& c, auto x, auto y) { c.all_gather(x, y); });
      me.in_place("all_gather in place", n * p, [&](auto& c, auto x) {
        c.all_gather(std::span<const T>(x.subspan(static_cast<std::size_t>(r * n), static_cast<std::size_t>(n))), x);
      });
      me.apart("all_to_all", n * p, n * p, [](auto& c, auto x, auto y) { c.all_to_all(x, y); });
      me.apart("gather", n, r == root ? n * p : 0, [&](auto& c, auto x, auto y) { c.gather(x, y, root); });
      me.apart("scatter", r == root ? n * p : 0, n, [&](auto& c, auto x, auto y) { c.scatter(x, y, root); });

      std::vector<std::int64_t> counts;
      std::int64_t total = 0;
      for (int i = 0; i < p; ++i) {
        counts.push_back(below(3) == 0 ? 0 : below(90));
        total += counts.back();
      }
      me.apart("reduce_scatter_v", total, at(counts, r),
               [&](auto& c, auto x, auto y) { c.reduce_scatter_v(x, y, counts, hd::plus{}); });
      me.apart("all_gather_v", at(counts, r), total, [&](auto& c, auto x, auto y) { c.all_gather_v(x, y, counts); });
      me.apart("gather_v", at(counts, r), r == root ? total : 0,
               [&](auto& c, auto x, auto y) { c.gather_v(x, y, counts, root); });
      me.apart("scatter_v", r == root ? total : 0, at(counts, r),
               [&](auto& c, auto x, auto y) { c.scatter_v(x, counts, y, root); });

      std::vector<std::int64_t> sent, received;  // of the pair (from, to): drawn for all pairs
      std::int64_t out = 0, in = 0;
      for (int from = 0; from < p; ++from)
        for (int to = 0; to < p; ++to) {
          const std::int64_t k = below(3) == 0 ? 0 : below(40);
          if (from == r) sent.push_back(k), out += k;
          if (to == r) received.push_back(k), in += k;
        }
      me.apart("all_to_all_v", out, in, [&](auto& c, auto x, auto y) { c.all_to_all_v(x, sent, y, received); });
      if (p > 1)
        me.apart("messages round the ranks", n, n, [&](auto& c, auto x, auto y) {
          const int next = (r + 1) % p, last = (r + p - 1) % p;
          if (r == 0) c.send(x, next, 3);
          c.recv(y, last, 3);
          if (r != 0) c.send(x, next, 3);
        });
    }
    wrong[static_cast<std::size_t>(r)] = me.wrong();
  });
  for (const std::string& w : wrong)
    if (!w.empty()) return w + " among " + std::to_string(ranks) + ", seed " + std::to_string(seed);
  return {};
}

// The sums that four ranks have of a tensor without dimensions, whose parts are 1, 2, 3 and 4.
inline std::vector<float> sums_of_scalars() {
  using mesh = hd::mesh<hd::axis<hd::dp, 4>>;
  using part = hd::layout<mesh, hd::partial<hd::plus, hd::dp>>;
  using whole = hd::layout<mesh, hd::replicate<>>;
  std::vector<float> sums(4);
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    memory::queue q;
    hd::sharded<float, 0, part> x(part{}, hd::shape<>{}, world.rank());
    x.elements()[0] = static_cast<float>(world.rank() + 1);
    const auto there = hd::copy_to<memory>(q, x);
    const auto sum = hd::copy_to<hd::host_memory>(q, hd::redistribute<whole>(there, world, q));
    sums[static_cast<std::size_t>(world.rank())] = sum.elements()[0];
  });
  return sums;
}

}  // namespace ranks_trials
