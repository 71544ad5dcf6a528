// tests/sim/oneflow_gpt_test.cpp: OneFlow's published throughputs of GPT on dp x tp, from three fitted numbers and the levels of a cluster.
#include "catch.hpp"

#include <heddle/mesh/mesh.hpp>
#include <heddle/sim/levels.hpp>

#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace oneflow_gpt {

namespace hd = heddle;
using hd::dp, hd::tp;

// Fitted once: what a GPU computes (the row of one GPU), and the bandwidths of NVLink and of a node's card.
constexpr double flops_per_second = 49.43e12, nvlink = 70e9, card = 8.8e9;
constexpr double context = 2048, vocabulary = 51200;

struct run {
  int dp, tp;
  double batch, hidden, layers;
  double published;  // TFLOP/s of a GPU
};
// Source of the throughputs: github.com/Oneflow-Inc/DLPerf, GPT in half precision, 2048 tokens; system: Yuan et al. 2021, arXiv:2110.15032.
constexpr run runs[]{{8, 1, 16, 1536, 16, 48.03}, {16, 1, 32, 1536, 16, 41.00}, {32, 1, 64, 1536, 16, 38.71},
                     {1, 8, 16, 1536, 16, 31.26}, {1, 16, 16, 3072, 16, 7.25},  {1, 32, 16, 3072, 32, 3.57},
                     {2, 4, 16, 1536, 16, 37.20}, {4, 2, 16, 1536, 16, 36.91},  {2, 8, 16, 2304, 24, 23.81},
                     {4, 8, 32, 2304, 24, 20.41}};

// TFLOP/s of a GPU in nodes of eight. All blocks are computed again in backward, so that of the four passes six all_reduces of a layer's
// output go over tp; gradients go over dp, nothing of it beside the computation.
double predicted(const run& r) {
  const hd::mesh<hd::axis<dp>, hd::axis<tp>> mesh(r.dp, r.tp);
  const hd::sim::levels cluster = hd::sim::fat_tree_levels(32, 8, {0, nvlink}, {0, card}, {0, card});
  const double flops = 96 * r.batch * context * r.layers * r.hidden * r.hidden *
                       (1 + context / (6 * r.hidden) + vocabulary / (16 * r.layers * r.hidden)) / mesh.size();
  const double output = r.batch / r.dp * context * r.hidden * 2;
  const double parameters = (12 * r.layers * r.hidden * r.hidden + vocabulary * r.hidden) / r.tp * 2;
  constexpr auto all_reduce = hd::comm_operation::all_reduce;
  const double seconds = flops / flops_per_second +
                         6 * r.layers * hd::sim::call_seconds<tp>(cluster, mesh, all_reduce, output) +
                         hd::sim::call_seconds<dp>(cluster, mesh, all_reduce, parameters);
  return flops / seconds * 1e-12;
}

TEST_CASE("OneFlow's published throughputs of GPT follow from three fitted numbers", "[sim][oneflow]") {
  std::map<std::pair<int, int>, double> got;
  for (const run& r : runs) {
    const double p = predicted(r);
    CAPTURE(r.dp, r.tp, r.published, p);
    CHECK(std::abs(p / r.published - 1) < 0.25);
    got[{r.dp, r.tp}] = p;
  }
  // Tensor parallelism over nodes collapses as published.
  CHECK(std::abs(got[{1, 8}] / 31.26 - 1) < 0.1);
  CHECK(std::abs(got[{1, 16}] / 7.25 - 1) < 0.1);
  CHECK(got[{2, 4}] > got[{1, 8}]);
  CHECK(got[{4, 2}] > got[{1, 8}]);
}

}  // namespace oneflow_gpt
