// A character model in two parts on two ranks each, as --choose says, beside the same on one rank.
// run: --text @SOURCE_DIR@/LICENSE --choose --steps 40
// mpi: 4
// virtual: 8 --text @SOURCE_DIR@/LICENSE --steps 4
// varies: rounds a second on .*
// prints: using table = hd::sbp::signature<left::mesh, hd::sbp::S<1>>;
// prints: using weights = hd::sbp::signature<left::mesh, hd::sbp::S<1>>;
// prints: using out = hd::sbp::signature<right::mesh, hd::sbp::S<1>>;
// prints: using between = hd::sbp::signature<right::mesh, hd::sbp::B>;
// prints: losses and weights of one rank to 1e-12: yes
// prints: 4 slots act 1.8 times as fast as 1 in virtual time
#include <heddle/compute/host/host.hpp>
#include <heddle/layout/choose.hpp>
#include <heddle/train/flow.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "flow/letters.hpp"
#include "number_given.hpp"
#include "transport.hpp"

namespace hd = heddle;
namespace flow = hd::flow;
using hd::sbp::B, hd::sbp::S;
using namespace letters;

struct all {};
using left = flow::placement<hd::mesh<hd::axis<hd::tp, 2>>, 0>;   // ranks 0 and 1
using right = flow::placement<hd::mesh<hd::axis<hd::tp, 2>>, 2>;  // ranks 2 and 3
struct parts_run : run {
  double seconds = 0, makespan = 0;
  std::string plan;
};

// On four ranks, with so many slots.
parts_run in_parts(const text& t, int steps, int slots) {
  parts_run result;
  hd::launch<hd::threads, hd::mesh<hd::axis<all, 4>>>([&](auto& world) {
    hd::compute::host<> backend;
    auto model = flow::chain<double>(
        world, backend, rounds, slots,
        flow::on<left>(bottom, flow::weight<S<1>>(table), flow::weight<S<1>>(weights), flow::ids<B>(before_it)),
        flow::on<right>(top, flow::weight<S<1>>(out), flow::before<B>(between), flow::ids<B>(next)));
    model.initialize(initialize);
    std::vector<double> losses;
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < steps; ++step) {
      losses.push_back(model.step([&](int part, int, int round, ids to) { t.feed(step, round, part == 1, to); }));
      model.update(descend);
    }
    world.all().all_reduce(std::span<double>(losses),
                           hd::plus{});  // twice the loss: both ranks of the last part have it
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    double norm = 0;
    model.each_weight([&](int, int, const auto& w, const auto&) {
      for (const double x : w.elements()) norm += x * x;  // all are split: no element is on two ranks
    });
    world.all().all_reduce(std::span<double>(&norm, 1), hd::plus{});
    if (on::keeps(world.rank())) {
      for (double& l : losses) l /= 2;
      result = {{losses, norm}, took.count(), model.makespan(), to_string(model)};
    }
  });
  return result;
}

// The cheapest signatures of each part, as C++.
void choose() {
  hd::layout_program<left::mesh> l;
  l.output<B>(bottom(l.weight("table", {96, 16}), l.weight("weights", {8, 16, 128}), l.input<B>("read", {32, 8})));
  hd::layout_program<right::mesh> r;
  r.output<S<1>>(scores(r.weight("out", {128, 96}), r.input("between", {32, 128})));  // classes may stay split
  const hd::layout_costs costs{.flops_per_second = 1e9, .bytes_per_second = 1e9, .element_bytes = 8, .backward = true};
  std::printf("%s", to_cpp(l.choose(costs), "left::mesh").c_str());
  std::printf("%s", to_cpp(r.choose(costs), "right::mesh").c_str());
}

int main(int argc, char** argv) try {
  on::begin(argc, argv);
  std::string file;
  int steps = 200;
  bool chooses = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const bool more = i + 1 < argc;
    if (option == "--choose") {
      chooses = true;
    } else if (option == "--text" && more) {
      file = argv[++i];
    } else if (option == "--steps" && more) {
      if (!number_given("flow", "--steps", argv[++i], 1, 1'000'000, steps)) return 2;
    } else {
      std::fprintf(stderr, "flow: expected --text FILE, --steps NUMBER or --choose, got %s\n", argv[i]);
      return 2;
    }
  }
  std::ifstream in(file, std::ios::binary);
  const text t{{std::istreambuf_iterator<char>(in), {}}};
  if (t.letters.size() < 16) {
    std::fprintf(stderr, "flow: --text must be a file of at least 16 characters, got '%s'\n", file.c_str());
    return 2;
  }
  if (chooses) choose();
  const parts_run four = in_parts(t, steps, 4), single = in_parts(t, steps, 1);
  const run one = on_one_rank<hd::threads>(t, steps);
  std::printf("%sstep  two parts  one rank\n", four.plan.c_str());
  bool same = std::abs(four.norm - one.norm) <= 1e-12 * one.norm;
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    same = same && std::abs(four.losses[i] - one.losses[i]) <= 1e-12 && single.losses[i] == four.losses[i];
    if (i % 10 == 0 || i + 1 == one.losses.size()) std::printf("%4zu %10.6f %9.6f\n", i, four.losses[i], one.losses[i]);
  }
  std::printf("losses and weights of one rank to 1e-12: %s\n", same ? "yes" : "no");
  std::printf("rounds a second on %s: %.0f with 4 slots, %.0f with 1\n", on::ranks_are, steps * rounds / four.seconds,
              steps * rounds / single.seconds);
  std::printf("4 slots act %.1f times as fast as 1 in virtual time\n", single.makespan / four.makespan);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
