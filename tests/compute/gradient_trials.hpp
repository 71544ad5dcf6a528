// tests/compute/gradient_trials.hpp: checks values and gradients of expressions on many meshes, against a formula and its differences.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/core/random.hpp>
#include <heddle/testing/on_ranks.hpp>

#include <cmath>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace gradient_trials {
namespace hd = heddle;
namespace hc = heddle::compute;
namespace op = heddle::op;
using hd::dp, hd::tp;

// Known when the program is compiled; the extents of the other are given at run time.
using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using flexible = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
template <class M>
using rows = hd::layout<M, hd::shard<0, dp>>;
template <class M>
using stream = hd::layout<M, hd::shard<0, dp>, hd::identical<tp>>;  // one value that the ranks along tp repeat
template <class M>
using column = hd::layout<M, hd::shard<1, tp>>;
template <class M>
using row = hd::layout<M, hd::shard<0, tp>>;
template <class M>
using copies = hd::layout<M>;
template <class M>
using norm = hd::layout<M, hd::identical<tp>>;
template <class M>
using heads = hd::layout<M, hd::shard<0, dp>, hd::shard<1, tp>>;

using numbers = std::vector<double>;
inline std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}
inline numbers random_numbers(std::int64_t n, std::uint64_t stream_of, double scale = 1) {
  const hd::counter_random random(11, stream_of);
  numbers x(at(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = scale * (2 * random.uniform(i) - 1);
  return x;
}

// A whole operand: its numbers, its shape and the layout it is spread in.
template <class L, std::int64_t... E>
struct operand {
  using layout = L;
  hd::shape<E...> shape;
  const numbers* whole;
  auto part(const L& layout_on, int rank) const {
    return hd::shard_of(hd::view<const double, hd::shape<E...>>(whole->data(), shape), layout_on, rank);
  }
};
template <class L, std::int64_t... E>
operand<L, E...> spread(const numbers& whole, hd::shape<E...> shape) {
  return {shape, &whole};
}

// A function on every rank of a mesh: its result on rank 0, which must be that of all others. Compiled once per mesh.
template <class Mesh>
using body = std::function<std::vector<numbers>(hd::world<hd::threads, Mesh>&)>;
template <class Mesh>
std::vector<numbers> same_on_all(const Mesh& mesh, const body<Mesh>& run) {
  const auto results = hd::testing::on_ranks(mesh, [&](auto& world) { return run(world); });
  INFO(to_string(results));
  REQUIRE(results.ok());
  for (int r = 1; r < mesh.size(); ++r) CHECK(results[r] == results[0]);
  return results[0];
}
// The value, then the gradients of all operands, each whole.
template <class Mesh, class Run>
std::vector<numbers> on_all(const Mesh& mesh, const Run& run) {
  return same_on_all<Mesh>(mesh, [&](hd::world<hd::threads, Mesh>& world) {
    hc::host<> backend;
    const auto whole = [&](auto& part) {
      const auto all = hd::redistribute<hd::layout<Mesh>>(part, world);
      return numbers(all.elements().begin(), all.elements().end());
    };
    auto found = run(backend, world);
    return std::apply([&](auto&... x) { return std::vector<numbers>{whole(x)...}; }, found);
  });
}

inline double worst_difference(const numbers& a, const numbers& b) {
  if (a.size() != b.size()) return 1e300;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

using loss_function = std::function<double(const std::vector<numbers>&)>;
inline numbers central_differences(const loss_function& loss, std::vector<numbers> x, std::size_t which) {
  numbers g(x[which].size());
  const double h = 2e-4;  // of fourth order
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double given = x[which][i];
    const auto moved = [&](double by) {
      x[which][i] = given + by;
      return loss(x);
    };
    g[i] = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
    x[which][i] = given;
  }
  return g;
}

// `run(mesh)` on many meshes: each equals the first, which is one rank, and that equals formula and differences.
template <class Run>
void check(const loss_function& loss, const std::vector<numbers>& x, const Run& run) {
  const auto alone = run(flexible{1, 1});
  REQUIRE(alone.size() == x.size() + 1);
  CHECK(std::abs(alone[0][0] - loss(x)) < 1e-12);
  for (std::size_t k = 0; k < x.size(); ++k) {
    CAPTURE(k);
    CHECK(worst_difference(alone[k + 1], central_differences(loss, x, k)) < 1e-8);
  }
  const auto same = [&](const std::vector<numbers>& found) {
    for (std::size_t k = 0; k < found.size(); ++k) {
      CAPTURE(k);
      CHECK(worst_difference(found[k], alone[k]) < 1e-10);
    }
  };
  for (const auto& [d, t] : std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {2, 2}, {3, 2}, {2, 4}, {8, 1}}) {
    CAPTURE(d, t);
    same(run(flexible{d, t}));
  }
}

}  // namespace gradient_trials
