#include <heddle/schedule/named.hpp>
#include <heddle/sim/transformer_step.hpp>

#include "catch.hpp"

#include <string>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace sim = heddle::sim;
using hd::dp, hd::pp, hd::tp;

TEST_CASE("a transformer's layer takes what its operations and exchanges take", "[sim]") {
  // By hand: 24 s h^2, 4 s^2 h, two halves, four exchanges.
  const sim::transformer_job job{.layers = 4,
                                 .hidden = 10,
                                 .context = 6,
                                 .vocabulary = 5,
                                 .matmul_rate = 100,
                                 .attention_rate = 20,
                                 .half_seconds = 3};
  const auto plain = sim::forward_of_layer(job, 2, 1.5);
  CHECK(plain.products == Approx(24.0 * 6 * 100 / 2 / 100));
  CHECK(plain.attention == Approx(4.0 * 36 * 10 / 2 / 20));
  CHECK(plain.other == 6);
  CHECK(plain.exchanges == 6);
  const auto parallel = sim::forward_of_layer(sim::changed<sim::parallel_block, sim::window<3>>(job), 2, 1.5);
  CHECK(parallel.attention == Approx(plain.attention / 2));
  CHECK(parallel.other == 3);
  CHECK(parallel.exchanges == 3);
  // Products of 18 a call hide all but the first of four chunks; exchanges of 40 hide the products.
  CHECK(sim::forward_of_layer(sim::changed<sim::overlap_tensor<4>>(job), 2, 1.5).exchanges == Approx(4 * 1.5 / 4));
  CHECK(sim::forward_of_layer(sim::changed<sim::overlap_tensor<4>>(job), 2, 40).exchanges ==
        Approx(4 * (40.0 - 18 + 10)));

  // One rank: microbatches times the layers and the head, forward and twice that backward.
  const hd::mesh<hd::axis<pp, 1>> one;
  const auto s = sim::simulate_step(job, sc::make_table(sc::named("1f1b", 7), 1), one, sim::levels({{1, 0, 1}}));
  CHECK(s.seconds ==
        Approx(7 * 3 * (4 * (24.0 * 600 / 100 + 4.0 * 360 / 20 + 6) + 2.0 * 6 * 10 * 5 / 100)).epsilon(1e-12));
  CHECK_THROWS_AS(sim::simulate_step(job, sc::make_table(sc::named("1f1b", 7), 3), hd::mesh<hd::axis<pp, 3>>{},
                                     sim::levels({{1, 0, 1}})),
                  hd::config_error);
}

// Jiang et al. 2024, arXiv:2402.15627, table 3: 175B on 256 GPUs of 312 Tflop/s, batch 256, MFU in percent, cumulative.
TEST_CASE("one set of parameters gives the gains of MegaScale's ablation", "[sim]") {
  const hd::mesh<hd::axis<pp, 8>, hd::axis<dp, 4>, hd::axis<tp, 8>> mesh;
  const sim::transformer_job job{.layers = 96,
                                 .hidden = 12288,
                                 .context = 2048,
                                 .vocabulary = 64000,
                                 .matmul_rate = 206e12,
                                 .attention_rate = 120e12,
                                 .half_seconds = 0.26e-3,
                                 .message_share = 0.32};
  // NVLink, one 200 Gb/s card a device.
  const sim::levels cluster({{1, 5e-6, 280e9}, {8, 10e-6, 22e9, 8}});
  const auto rows =
      sim::ablation<sim::parallel_block, sim::window<1024>, sim::overlap_tensor<8>, sim::overlap_pipeline,
                    sim::overlap_data>(job, sc::make_table(sc::named("interleaved:6", 64), 8), mesh, cluster);
  const std::vector<double> published{47.7, 52.3, 53.3, 55.5, 58.0, 59.5};
  REQUIRE(rows.size() == published.size());
  // Floating-point operations of a token: 72 l h^2 (1 + s / (6 h) + V / (12 l h)).
  const double l = 96, h = 12288, s = 2048, v = 64000;
  const double of_token = 72 * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
  std::vector<double> mfu, gain{0};
  for (const auto& row : rows) mfu.push_back(100 * 256 * s * of_token / (row.result.seconds * 256 * 312e12));
  for (std::size_t i = 1; i < mfu.size(); ++i) {
    CAPTURE(rows[i].added);
    gain.push_back(mfu[i] - mfu[i - 1]);
    CHECK(gain[i] == Approx(published[i] - published[i - 1]).margin(1.5).epsilon(0));
    CHECK(mfu[i] == Approx(published[i]).margin(1.5).epsilon(0));
  }
  // parallel block > pipeline > tensor > data > window
  CHECK(gain[1] > gain[4]);
  CHECK(gain[4] > gain[3]);
  CHECK(gain[3] > gain[5]);
  CHECK(gain[5] > gain[2]);
  CHECK(gain[3] + gain[4] + gain[5] == Approx(6.2).margin(1.5).epsilon(0));
  // What is not run by heddle is marked.
  const std::string text = to_string(rows);
  CHECK(rows[2].runs_as.empty());
  CHECK(rows[3].runs_as.empty());
  CHECK(text.find("tensor overlap, 8 chunks") != std::string::npos);
  std::size_t marked = 0;
  for (std::size_t at = 0; (at = text.find("only simulated", at)) != std::string::npos; ++at) ++marked;
  CHECK(marked == 2);
  // Messages and calls that run beside computation show less.
  CHECK(rows[4].result.exposed[0] < rows[3].result.exposed[0]);
  CHECK(rows[5].result.exposed[1] < rows[4].result.exposed[1]);
}
