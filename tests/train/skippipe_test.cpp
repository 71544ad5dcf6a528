// tests/train/skippipe_test.cpp: real runs in which microbatches skip stages have the gradients of one rank.
#include "catch.hpp"
#include "small_model.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/plan/skippipe.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/sim/serial_nodes.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace plan = heddle::plan;
using small_model::difference;

namespace {

struct result {
  std::vector<std::vector<double>> gradients;  // by part, as its first replica has them
  std::vector<double> apart;                   // of the replicas of each part, at most
  double loss = 0;
  std::int64_t sends = 0, bytes = 0;
  std::vector<int> peak_live;  // by rank
};

// One step of the small model on ways: every node runs its list, then the replicas of a part add up their gradients and
// scale them.
template <sc::gradient_scale Scale>
result run(const sc::routed& when, int sends_in_flight = 1) {
  const sc::path_table& paths = when.paths();
  const sc::action_table table = sc::make_table(when, paths.nodes());
  const sc::plan made = sc::make_plan(table, sends_in_flight);
  const sc::plan_view view = made;
  const auto batches = small_model::batches(table.microbatches);
  std::vector<std::vector<std::vector<double>>> gradients(static_cast<std::size_t>(paths.nodes()));
  std::vector<double> losses(gradients.size());
  std::vector<std::int64_t> sends(gradients.size()), bytes(gradients.size());
  std::vector<int> peaks(gradients.size());
  transport_test::launch(hd::mesh<hd::axis<hd::pp>>(paths.nodes()), [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    const auto rank = static_cast<std::size_t>(pipe.rank());
    std::vector<small_model::stage> here;
    here.reserve(2);
    std::vector<small_model::stage*> held(static_cast<std::size_t>(when.stages()), nullptr);
    for (int s = 0; s < when.stages(); ++s)
      if (when.rank_of(s) == pipe.rank()) {
        here.emplace_back(when.part_of(s), when.parts(), view.storage.slots(s));
        held[static_cast<std::size_t>(s)] = &here.back();
      }
    hd::null_observer off;
    hd::model::executor<small_model::stage, std::remove_reference_t<decltype(pipe)>> executor(
        view, held, pipe, small_model::most_samples, off);
    small_model::rank_result mine;
    executor.run(std::span<const small_model::batch>(batches), 0, small_model::hooks{mine});
    // Replicas are the nodes of one stage; on those of stage 0 also the loss.
    auto replicas = pipe.split(when.part_of(pipe.rank()), pipe.rank());
    gradients[rank].resize(static_cast<std::size_t>(when.parts()));
    for (small_model::stage& s : here) {
      replicas.all_reduce(std::span<double>(s.gradients), hd::plus{});
      for (double& g : s.gradients) g *= sc::gradient_factor<Scale>(paths, s.part);
      gradients[rank][static_cast<std::size_t>(s.part)] = s.gradients;
      losses[rank] += s.loss;
    }
    sends[rank] = executor.counters().sends;
    bytes[rank] = executor.counters().bytes_sent;
    peaks[rank] = executor.counters().peak_live;
  });
  transport_test::share(gradients);
  transport_test::share(losses);
  transport_test::share(sends);
  transport_test::share(bytes);
  transport_test::share(peaks);
  result r;
  r.gradients.resize(static_cast<std::size_t>(when.parts()));
  r.apart.resize(r.gradients.size());
  r.peak_live = peaks;
  for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
    for (std::size_t part = 0; part < r.gradients.size(); ++part) {
      const auto& g = gradients[rank][part];
      if (g.empty()) continue;
      if (r.gradients[part].empty()) r.gradients[part] = g;
      r.apart[part] = (std::max)(r.apart[part], difference(g, r.gradients[part]));
    }
    r.loss += losses[rank];
    r.sends += sends[rank];
    r.bytes += bytes[rank];
  }
  return r;
}

// The parts that each microbatch passes, the loss last.
std::vector<std::vector<int>> parts_of(const sc::path_table& paths) {
  std::vector<std::vector<int>> ways;
  for (int i = 0; i < paths.microbatches(); ++i) {
    std::vector<int> way;
    for (const int n : paths.path(i)) way.push_back(paths.stage_of_node[static_cast<std::size_t>(n)]);
    way.push_back(paths.stages);
    ways.push_back(way);
  }
  return ways;
}

template <sc::gradient_scale Scale>
void check_run(const sc::routed& when, int slots) {
  const sc::path_table& paths = when.paths();
  const result got = run<Scale>(when);
  const auto expected = small_model::serial(when.parts(), paths.microbatches(), parts_of(paths));
  for (int part = 0; part < when.parts(); ++part) {
    CAPTURE(part);
    std::vector<double> wanted = expected.gradients[static_cast<std::size_t>(part)];
    for (double& g : wanted) g *= sc::gradient_factor<Scale>(paths, part);
    CHECK(difference(got.gradients[static_cast<std::size_t>(part)], wanted) <= 1e-12);
    CHECK(got.apart[static_cast<std::size_t>(part)] == 0);
  }
  CHECK(got.loss == Approx(expected.loss).epsilon(1e-12));
  // 2 L messages per microbatch, each one boundary tensor.
  CHECK(got.sends == std::int64_t{2} * paths.length * paths.microbatches());
  std::int64_t bytes = 0;
  for (const auto& b : small_model::batches(paths.microbatches()))
    bytes += std::int64_t{2} * paths.length * 8 * b.samples * b.sequence * small_model::width;
  CHECK(got.bytes == bytes);
  for (int n = 0; n < paths.nodes(); ++n)  // the loss is one more, for a moment
    CHECK(got.peak_live[static_cast<std::size_t>(n)] <= slots + (when.loss_stage_of(n) >= 0 ? 1 : 0));
}

plan::skip_plan planned(const std::vector<int>& sizes, const plan::skip_options& o, unsigned seed,
                        sc::visit_costs& costs) {
  std::vector<int> stage_of_node;
  for (std::size_t s = 0; s < sizes.size(); ++s)
    stage_of_node.insert(stage_of_node.end(), static_cast<std::size_t>(sizes[s]), static_cast<int>(s));
  const auto n = stage_of_node.size();
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> work(0.5, 1.5), link(0.2, 3);
  costs = {};
  for (std::size_t i = 0; i < n; ++i) costs.forward.push_back(work(random));
  costs.message.assign(n * n, 0);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) costs.message[a * n + b] = costs.message[b * n + a] = link(random);
  return plan::skippipe(costs, stage_of_node, static_cast<int>(sizes.size()), o);
}

}  // namespace

TEST_CASE("microbatches that visit two of three stages, on six nodes", "[train][skippipe][ranks]") {
  if (transport_test::most_ranks() < 6) return;
  for (const unsigned seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    sc::visit_costs costs;
    const plan::skip_plan made = planned({2, 2, 2}, {.path_length = 2, .exchanges = 100}, seed, costs);
    REQUIRE(made.paths.microbatches() == 12);
    const sc::routed when(made.paths, hd::sim::serial_nodes{}(made.paths, costs));
    check_run<sc::by_batch>(when, 3);
    check_run<sc::by_visits>(when, 3);
  }
}

TEST_CASE("stages skipped and in another order, as planned, without a simulation", "[train][skippipe][ranks]") {
  if (transport_test::most_ranks() < 7) return;
  sc::visit_costs costs;
  plan::skip_options o{.path_length = 3, .slots = 2, .per_origin = 2, .waves = 1, .exchanges = 100};
  const plan::skip_plan made = planned({2, 1, 2, 1, 1}, o, 4, costs);
  check_run<sc::by_batch>(sc::routed(made.paths, made.planned), 2);  // in the order of the plan itself
  check_run<sc::by_visits>(sc::routed(made.paths), o.per_origin * 2);
}

TEST_CASE("all stages in order are a plain pipeline, bit for bit", "[train][skippipe][ranks]") {
  using rules = plan::skip_rules<plan::no_swaps, plan::keep_first_stage>;
  if (transport_test::most_ranks() < 4) return;
  sc::visit_costs costs;
  costs.forward.assign(4, 1.0);
  costs.message.assign(16, 0.5);
  plan::skip_options o{.path_length = 4, .slots = 3, .per_origin = 3};
  const plan::skip_plan made = plan::skippipe<rules>(costs, std::vector<int>{0, 1, 2, 3}, 4, o);
  for (int i = 0; i < made.paths.microbatches(); ++i) {
    const std::vector<int> way(made.paths.path(i).begin(), made.paths.path(i).end());
    CHECK(way == std::vector<int>{0, 1, 2, 3});
  }
  const sc::routed when(made.paths, hd::sim::serial_nodes{}(made.paths, costs));
  const result got = run<sc::by_batch>(when);
  const int m = made.paths.microbatches();
  auto expected = small_model::serial(5, m).gradients;
  for (const int five :
       transport_test::rank_counts(std::vector{5})) {  // a plain pipeline with the loss as its fifth stage
    const sc::action_table plain = sc::make_table(sc::gpipe<hd::microbatches<>>(hd::microbatches<>{m}), five);
    const auto by_rank = small_model::run(plain);
    for (int part = 0; part < 5; ++part)
      CHECK(small_model::gradient_of(plain, by_rank, part) == expected[static_cast<std::size_t>(part)]);
  }
  for (int part = 0; part < 5; ++part) {
    for (double& g : expected[static_cast<std::size_t>(part)]) g *= 1.0 / m;
    CHECK(got.gradients[static_cast<std::size_t>(part)] == expected[static_cast<std::size_t>(part)]);
  }
}

namespace {

// A stage on a node that takes so long for a forward; the loss is computed by the backward's visit.
struct sleeping_stage {
  struct batch {
    int samples = 1;
  };
  using scalar = double;
  double forward_seconds, backward_seconds;
  static void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  std::int64_t boundary_elements(int samples) const { return samples; }
  void forward(int, const batch&, std::span<const double>, std::span<double>) { rest(forward_seconds); }
  void backward(int, const batch&, std::span<const double>, std::span<double>) { rest(backward_seconds); }
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_weight(int, const batch&) {}
};
struct sleeping_hooks {
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
};

// Seconds of a step of nodes that sleep as long as the costs say: the shortest of so many.
double seconds_slept(const sc::routed& when, const sc::visit_costs& costs, int steps) {
  const int nodes = when.paths().nodes();
  const sc::plan made = sc::make_plan(sc::make_table(when, nodes));
  const sc::plan_view view = made;
  const std::vector<sleeping_stage::batch> batches(static_cast<std::size_t>(when.paths().microbatches()));
  double least = 1e9;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::pp>>(nodes), [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    const double f = costs.forward[static_cast<std::size_t>(pipe.rank())];
    std::vector<sleeping_stage> here;
    here.reserve(2);
    std::vector<sleeping_stage*> held(static_cast<std::size_t>(when.stages()), nullptr);
    for (int s = 0; s < when.stages(); ++s)
      if (when.rank_of(s) == pipe.rank()) {
        const bool loss = s >= nodes;
        here.push_back({loss ? 0 : f, f * (loss ? costs.loss_factor : costs.backward_factor)});
        held[static_cast<std::size_t>(s)] = &here.back();
      }
    hd::null_observer off;
    hd::model::executor<sleeping_stage, std::remove_reference_t<decltype(pipe)>> executor(view, held, pipe, 1, off);
    for (int step = 0; step < steps; ++step) {
      world.all().barrier();
      const auto begin = std::chrono::steady_clock::now();
      executor.run(std::span<const sleeping_stage::batch>(batches), 0, sleeping_hooks{});
      world.all().barrier();
      if (pipe.rank() == 0)
        least = (std::min)(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  });
  return least;
}

}  // namespace

TEST_CASE("when a node leaves, steps take what the simulation of the new plan says", "[train][skippipe][slow]") {
  double before = 0;
  for (const std::vector<int>& sizes : {std::vector{2, 2, 2}, std::vector{2, 2, 1}}) {
    std::vector<int> stage_of_node;
    for (std::size_t s = 0; s < sizes.size(); ++s)
      stage_of_node.insert(stage_of_node.end(), static_cast<std::size_t>(sizes[s]), static_cast<int>(s));
    const std::size_t n = stage_of_node.size();
    sc::visit_costs costs;
    for (std::size_t k = 0; k < n; ++k) costs.forward.push_back(0.03 + 0.005 * static_cast<double>(k % 3));
    costs.message.assign(n * n, 0.0);
    const hd::sim::serial_nodes nodes{.slots = 6, .gap = 0, .injected_gap = 0};
    const plan::skip_options o{.path_length = 2, .slots = 6, .wave_seconds = 0, .even_visits = true, .exchanges = 100};
    const auto paths = plan::skippipe(costs, stage_of_node, 3, o, [&](const sc::path_table& p) {
                         return nodes.seconds(p, costs);
                       }).paths;
    const double predicted = nodes.seconds(paths, costs);
    const double slept = seconds_slept(sc::routed(paths, nodes(paths, costs)), costs, 3);
    CAPTURE(sizes.back(), predicted, slept);
    CHECK(slept > 0.97 * predicted);
    CHECK(slept < 1.15 * predicted);
    CHECK(predicted > before);
    before = predicted;
  }
}
