// Predicts a step of a 175B transformer on thousands of ranks: gains of overlaps, the cost of a slow rank.
// step_at_scale [data parallel ranks [slow rank [factor]]]
// run: 192 4242 1.1
// prints: 12288 ranks: pp=8 x dp=192 x tp=8
// prints: tensor overlap, 8 chunks
// prints: only simulated
// prints: rank 4242 takes 1.10 times as long
// prints: of the critical path are on rank 4242
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/sim/transformer_step.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace hd = heddle;
namespace sim = hd::sim;

int main(int argc, char** argv) try {
  using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::dp>, hd::axis<hd::tp>>;
  const mesh_type mesh{8, argc > 1 ? std::atoi(argv[1]) : 192, 8};
  const int slow = argc > 2 ? std::atoi(argv[2]) : 4242;
  const double factor = argc > 3 ? std::atof(argv[3]) : 1.1;

  // What a device of 312 Tflop/s achieves, and the cluster: NVLink in nodes of 8, a 200 Gb/s card a device, pods of 64
  // nodes.
  const sim::transformer_job job{.layers = 96,
                                 .hidden = 12288,
                                 .context = 2048,
                                 .vocabulary = 64000,
                                 .matmul_rate = 206e12,
                                 .attention_rate = 120e12,
                                 .half_seconds = 0.26e-3,
                                 .message_share = 0.32};
  const sim::levels cluster({{1, 5e-6, 280e9}, {8, 10e-6, 22e9, 8}, {512, 20e-6, 10e12}});
  // 6,144 sequences a step on 192 pipelines: 32 microbatches each.
  const auto table = hd::schedule::make_table(hd::schedule::named("interleaved:6", 32), mesh.extent<hd::pp>());
  std::printf("%d ranks: %s\n\n", mesh.size(), to_string(mesh).c_str());

  const auto rows = sim::ablation<sim::parallel_block, sim::window<1024>, sim::overlap_tensor<8>, sim::overlap_pipeline,
                                  sim::overlap_data>(job, table, mesh, cluster);
  std::printf("%s\n", to_string(rows).c_str());

  const sim::step& even = rows.back().result;
  std::printf("%.3f s: %.3f s computing, %.3f s in messages along pp, %.3f s in calls along dp\n", even.seconds,
              even.computing, even.exposed[0], even.exposed[1]);

  const auto best = sim::changed<sim::parallel_block, sim::window<1024>, sim::overlap_tensor<8>, sim::overlap_pipeline,
                                 sim::overlap_data>(job);
  const sim::step late = sim::simulate_step(best, table, mesh, cluster, {.slow = {{slow, factor}}});
  int there = 0;
  for (const sim::step_event& e : late.critical) there += e.rank == slow ? 1 : 0;
  std::printf("rank %d takes %.2f times as long: the step %.3f s, %+.1f %%\n", slow, factor, late.seconds,
              100 * (late.seconds / even.seconds - 1));
  std::printf("%d of the %d actions of the critical path are on rank %d\n", there,
              static_cast<int>(late.critical.size()), slow);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
