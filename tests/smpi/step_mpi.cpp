// step_mpi <cluster>, under smpirun: a step of stages that sleep, with messages along pp and rings along dp, takes what
// sim::simulate_step predicts: ten schedules on one pipeline within 5 %, three on several pipelines within 10 %.
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/mpi.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/sim/world_step.hpp>

#include <unistd.h>

#include "clusters.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <type_traits>
#include <vector>

using hd::dp, hd::pp;

namespace {

constexpr std::int64_t boundary = 250'000, gradient = 2'000'000;  // elements: 1 MB, 8 MB

struct batch {
  int samples = 1;
};
struct sleeping_stage {
  using scalar = float;
  static void sleep(int us) { usleep(static_cast<useconds_t>(us)); }  // in virtual time
  std::int64_t boundary_elements(int samples) const { return samples * boundary; }
  void forward(int, const batch&, std::span<const float>, std::span<float>) { sleep(500); }
  void backward(int, const batch&, std::span<const float>, std::span<float>) { sleep(1000); }
  void backward_input(int, const batch&, std::span<const float>, std::span<float>) { sleep(500); }
  void backward_weight(int, const batch&) { sleep(500); }
};
template <class Communicator>
struct ring_of_gradients {
  Communicator& data;
  std::vector<float>&whole, &mine;
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {
    hd::reduce_scatter<hd::algo::ring>(data, std::span<const float>(whole), std::span<float>(mine), hd::plus{});
  }
};

template <class World>
int compare(World& world, const hd::sim::levels& where) {
  int wrong = 0;
  auto& line = world.template along<pp>();
  auto& data = world.template along<dp>();
  using line_type = std::remove_reference_t<decltype(line)>;
  std::vector<float> whole(static_cast<std::size_t>(gradient)), mine(static_cast<std::size_t>(gradient / data.size()));
  std::vector<const char*> names{"1f1b", "interleaved:2", "zb-h1"};
  if (data.size() == 1)
    names.insert(names.end(), {"gpipe", "interleaved:4", "breadth-first:2", "zb-h2", "zb-v", "v-half", "hanayo:1"});
  for (const char* name : names) {
    const hd::schedule::plan plan =
        hd::schedule::make_plan(hd::schedule::make_table(hd::schedule::named(name, 16), line.size()));
    std::vector<sleeping_stage> stages(static_cast<std::size_t>(plan.table.view().stages()));
    std::vector<sleeping_stage*> held;
    for (sleeping_stage& s : stages) held.push_back(&s);
    hd::null_observer observer;
    hd::model::executor<sleeping_stage, line_type, hd::null_observer> run(plan, held, line, 1, observer);
    const std::vector<batch> batches(16);
    world.all().barrier();
    const double begin = MPI_Wtime();
    run.run(std::span<const batch>(batches), 0,
            ring_of_gradients<std::remove_reference_t<decltype(data)>>{data, whole, mine});
    double seconds = MPI_Wtime() - begin;
    world.all().all_reduce(std::span(&seconds, 1), hd::maximum{});
    const auto step = hd::sim::simulate_step(
        plan.table, world.mesh(), hd::sim::step_times<>{{500e-6, 500e-6, 500e-6}, 4.0 * boundary, {4.0 * gradient}},
        where, {.data_beside = false});
    const bool near = std::abs(seconds / step.seconds - 1) <= (data.size() == 1 ? 0.05 : 0.1);
    wrong += near ? 0 : 1;
    if (world.rank() == 0)
      std::printf("%d ranks, %s: %.3f ms, predicted %.3f ms, ratio %.4f%s\n", world.size(), name, 1e3 * seconds,
                  1e3 * step.seconds, seconds / step.seconds, near ? "" : ", too far");
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const hd::topology t = named(argv[1]);
  const hd::link_class inside = step_inside, between = step_between;
  const hd::sim::levels where(
      {{1, inside.seconds, inside.bytes_per_second}, {8, between.seconds, between.bytes_per_second}});
  using mesh = hd::mesh<hd::axis<pp, 8>, hd::axis<dp>>;
  int wrong = 0;
  const int status = hd::launch<hd::mpi>(mesh{t.ranks() / 8}, [&](auto& world) { wrong = compare(world, where); });
  return status != 0 || wrong != 0 ? 1 : 0;
}
