// tests/collective/determined_test.cpp: reductions that are asked for a fixed tree fold it, whatever the transport does by itself.
#include "catch.hpp"
#include "transport.hpp"

#include <heddle/collective/determined.hpp>
#include <heddle/core/random.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hd = heddle;

namespace {
using determined_ranks = hd::mesh<hd::axis<hd::dp>>;
float determined_value(int rank, std::size_t i) {
  return static_cast<float>(hd::counter_random(3, static_cast<std::uint64_t>(rank)).uniform(i)) * 1e3f;
}
// The aligned tree over ranks [first, first + count), from its definition.
float determined_tree(int first, int count, std::size_t i) {
  if (count == 1) return determined_value(first, i);
  int half = 1;
  while (2 * half < count) half *= 2;
  return determined_tree(first, half, i) + determined_tree(first + half, count - half, i);
}
}  // namespace

TEST_CASE("reductions mesh to mesh fold the aligned tree", "[collective][determinism][ranks]") {
  for (const int p : transport_test::rank_counts({1, 2, 3, 4, 5, 7, 8}))
    for (const std::size_t n : {std::size_t{1}, std::size_t{13}, std::size_t{1500}}) {
      std::vector<int> right(static_cast<std::size_t>(p), 0);
      transport_test::launch(determined_ranks{p}, [&](auto& world) {
        auto& all = world.all();
        const auto me = static_cast<std::size_t>(all.rank());
        const auto mine = [&] {
          std::vector<float> x(n);
          for (std::size_t i = 0; i < n; ++i) x[i] = determined_value(all.rank(), i);
          return x;
        };
        std::vector<float> x = mine(), same = mine();
        hd::all_reduce(all, x, hd::plus{}, hd::determinism::mesh_to_mesh{});
        hd::all_reduce<hd::algo::dyadic>(all, same, hd::plus{});
        bool ok = true;
        for (std::size_t i = 0; i < n; ++i) {
          const auto wanted = std::bit_cast<std::uint32_t>(determined_tree(0, p, i));
          ok = ok && std::bit_cast<std::uint32_t>(x[i]) == wanted && std::bit_cast<std::uint32_t>(same[i]) == wanted;
        }
        std::vector<float> once = mine(), again = mine();
        hd::all_reduce(all, once, hd::plus{}, hd::determinism::run_to_run{});
        hd::all_reduce(all, again, hd::plus{}, hd::determinism::run_to_run{});
        ok = ok && once == again;
        if (std::has_single_bit(static_cast<unsigned>(p))) {
          std::vector<std::int64_t> counts(static_cast<std::size_t>(p), static_cast<std::int64_t>(n) / p);
          counts.back() += static_cast<std::int64_t>(n) % p;
          std::size_t begin = 0;
          for (std::size_t r = 0; r < me; ++r) begin += static_cast<std::size_t>(counts[r]);
          std::vector<float> part(static_cast<std::size_t>(counts[me]));
          const std::vector<float> in = mine();
          hd::reduce_scatter_v(all, in, part, counts, hd::plus{}, hd::determinism::mesh_to_mesh{});
          for (std::size_t i = 0; i < part.size(); ++i)
            ok = ok && std::bit_cast<std::uint32_t>(part[i]) ==
                           std::bit_cast<std::uint32_t>(determined_tree(0, p, begin + i));
        }
        right[me] = ok ? 1 : 0;
      });
      transport_test::share(right);
      CAPTURE(p, n);
      CHECK(right == std::vector<int>(static_cast<std::size_t>(p), 1));
    }
}
