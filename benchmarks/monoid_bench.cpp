// benchmarks/monoid_bench.cpp: sets folded by a learned operator in a tree, and by the recurrence with the same weights: forward,
// width 128, one core, portable products. The depth of the recurrence is the size of a set, that of the tree its logarithm; the tree
// does both orders, twice the products of a recurrence.
//   monoid_bench [rounds]
#include "read_bandwidth.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/graph_layer.hpp>
#include <heddle/model/learned_monoid.hpp>
#include <heddle/model/recurrent_fold.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  constexpr std::int64_t width = 128;
  hd::compute::host<hd::compute::portable> compute;
  md::learned_monoid<float> monoid({.width = width});
  md::detail::lone_rank alone;
  std::printf("sets  elements      tree  recurrence  ratio\n");
  for (const std::int64_t size : {64, 1024, 4096})
    for (const std::int64_t sets : {1, 16, 128}) {
      if (size * sets > 64 * 1024) continue;
      std::vector<std::int64_t> trees;
      for (std::int64_t t = 0; t <= sets; ++t) trees.push_back(t * size);
      const hd::dyadic_plan plan(trees, std::vector<std::int64_t>{0, trees.back()}, 0);
      hd::dyadic_fold<float> tree(plan, width);
      md::recurrent_fold<float> recurrence(plan, width);
      const hd::counter_random random(1, 2);
      std::vector<float> leaves(static_cast<std::size_t>(trees.back() * width));
      for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i] = static_cast<float>(random.normal(i));
      const std::span<const float> x(leaves);
      std::vector<double> by_tree, by_recurrence;
      for (int r = -1; r < rounds; ++r) {
        const spent t = time_of([&] { tree.forward(alone, x, monoid.op(compute)); });
        const spent s = time_of([&] { recurrence.forward(alone, x, monoid.op<md::one_order>(compute)); });
        if (r < 0) continue;
        by_tree.push_back(1e3 * t.processor);
        by_recurrence.push_back(1e3 * s.processor);
      }
      std::printf("%4d  %8d  %5.2f ms  %7.2f ms  %5.2f\n", static_cast<int>(sets), static_cast<int>(size),
                  median(by_tree), median(by_recurrence), median(by_recurrence) / median(by_tree));
      std::fflush(stdout);
    }
}
