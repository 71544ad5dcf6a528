// tests/train/skipping_test.cpp: microbatches of a GPT-2 skip and swap stages, on many ranks as on one.
#include "catch.hpp"
#include "folder.hpp"
#include "small_dataset.hpp"
#include "transport.hpp"

#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/plan/skippipe.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/sim/serial_nodes.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
namespace plan = heddle::plan;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using tensors = std::map<std::string, std::vector<double>>;

struct setup {
  sc::path_table paths;
  bool in_order_of_simulation = true;
  std::vector<int> layers{};  // of each stage; empty: even
  int dp = 1, tp = 1;
  int layers_of_model = 5, steps = 2;
  std::int64_t batch = 26;
  double clip = 0.5, rate = 1e-3;
  int ignore_every = 0;
  bool learnable = false;  // a sequence that can be learnt, instead of noise
  std::string save_to{}, resume_from{};
};

hd::model::gpt2_config config_of(const setup& s) {
  return {.layers = s.layers_of_model, .heads = 2, .width = 16, .context = 6, .vocabulary = 37};
}

train_test::small_dataset data_of(const setup& s) {
  std::vector<std::uint8_t> tokens = train_test::noise(6 * 60 + 1, 37);
  if (s.learnable)
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint8_t>(i * i % 7);
  return {std::move(tokens), {.context = 6, .batch = s.batch, .ignore_every = s.ignore_every}};
}

// What a run did, step by step.
struct record {
  tensors weights;    // before the step
  tensors gradients;  // scaled, before clipping
  double loss = 0, norm = 0;
};
struct outcome {
  std::vector<record> steps;
  tensors after;  // weights
  double validation = 0;
  int apart = 0;  // elements that replicas have with other bits
  std::int64_t sends = 0, bytes = 0;
  std::vector<int> peak_live;
};

int fill_in(tensors& whole, const tensors& part) {
  int apart = 0;
  for (const auto& [name, values] : part) {
    auto& to = whole.try_emplace(name, values.size(), std::nan("")).first->second;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) continue;
      if (!std::isnan(to[i]) && to[i] != values[i]) ++apart;
      to[i] = values[i];
    }
  }
  return apart;
}
template <class Stage, class T>
tensors named(const Stage& stage, std::span<const T> flat, std::int64_t begin, std::int64_t end, double scale) {
  tensors whole;
  for (const auto& p : stage.parameters()) {
    auto& to = whole[p.name];
    to.resize(static_cast<std::size_t>(p.global_count()), std::nan(""));
    hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      for (std::int64_t k = 0; k < length; ++k)
        if (const std::int64_t at = p.offset + local + k; at >= begin && at < end)
          to[static_cast<std::size_t>(global + k)] = static_cast<double>(flat[static_cast<std::size_t>(at)]) * scale;
    });
  }
  return whole;
}
void merge_all(tensors& t, int& apart) {
  transport_test::merge(t, [&](tensors& all, tensors&& other) { apart += fill_in(all, other); });
}

template <class T, class... Policies, class When>
outcome train(const setup& s, const When& when, int ranks_along_pp) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = config_of(s);
  o.batch = s.batch;
  o.layers_per_stage = s.layers;
  o.steps = s.steps;
  o.learning_rate = {.peak = s.rate, .minimum = s.rate / 10, .warmup_steps = 1, .total_steps = s.steps};
  o.clip_norm = s.clip;
  o.threads_per_rank = 1;
  const train_test::small_dataset data = data_of(s);
  const mesh_type mesh(s.dp, ranks_along_pp, s.tp);
  outcome all;
  std::mutex guard;
  all.peak_live.resize(static_cast<std::size_t>(mesh.size()));
  std::vector<std::int64_t> sends(all.peak_live.size()), bytes(sends.size());
  transport_test::launch(mesh, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::train::trainer<hd::model::gpt2<T>, hd::strategy<mesh_type, When, hd::zero<1>, Policies...>, world_type> trainer(
        world, o, when);
    if (!s.resume_from.empty()) hd::train::resume(trainer, s.resume_from);
    const auto collect = [&](bool gradients, double scale, tensors& to) {
      const std::lock_guard lock(guard);
      for (int k = 0; k < trainer.stages(); ++k) {
        auto& stage = trainer.stage(k);
        auto& state = trainer.optimizer_state(k);
        const auto n = static_cast<std::int64_t>(stage.weights().size());
        all.apart += fill_in(to, gradients ? named(stage, std::span<const T>(stage.gradients()), state.owned_begin(),
                                                   state.owned_end(), scale)
                                           : named(stage, std::span<const T>(stage.weights()), 0, n, 1));
      }
    };
    for (auto k = static_cast<std::size_t>(trainer.steps_done()); trainer.steps_done() < s.steps; ++k) {
      {
        const std::lock_guard lock(guard);
        all.steps.resize((std::max)(all.steps.size(), k + 1));
      }
      world.all().barrier();
      collect(false, 1, all.steps[k].weights);
      const auto step = trainer.compute_gradients(data);
      collect(true, step.gradient_scale, all.steps[k].gradients);
      if (world.rank() == 0) {
        all.steps[k].loss = step.loss;
        all.steps[k].norm = step.gradient_norm;
      }
      trainer.apply_gradients(step);
      world.all().barrier();
    }
    collect(false, 1, all.after);
    const double validation = trainer.validate(data);
    if (world.rank() == 0) all.validation = validation;
    const auto rank = static_cast<std::size_t>(world.rank());
    sends[rank] = trainer.counters().sends;
    bytes[rank] = trainer.counters().bytes_sent;
    all.peak_live[rank] = trainer.counters().peak_live;
    if (!s.save_to.empty()) hd::train::save(trainer, s.save_to);
  });
  auto steps = all.steps.size();
  transport_test::tell(steps, 0);
  all.steps.resize(steps);
  int apart = 0;  // of different processes
  for (record& r : all.steps) {
    merge_all(r.weights, apart);
    merge_all(r.gradients, apart);
    transport_test::tell(r.loss, 0);
    transport_test::tell(r.norm, 0);
  }
  merge_all(all.after, apart);
  transport_test::merge(all.apart, [](int& a, int b) { a += b; });
  all.apart += apart;
  transport_test::tell(all.validation, 0);
  transport_test::share(sends);
  transport_test::share(bytes);
  transport_test::share(all.peak_live);
  for (std::size_t r = 0; r < sends.size(); ++r) all.sends += sends[r], all.bytes += bytes[r];
  return all;
}

// The same step on one rank: for each microbatch a model of its own, made of the blocks on its way, in their order.
struct reference {
  tensors gradients;
  double loss = 0, norm = 0;
};
std::string renamed(const std::string& name, const std::vector<int>& blocks) {  // "h.1.x" is the second block of a way
  if (name.rfind("h.", 0) != 0) return name;
  const auto dot = name.find('.', 2);
  return "h." + std::to_string(blocks[static_cast<std::size_t>(std::stoi(name.substr(2, dot - 2)))]) + name.substr(dot);
}
template <sc::gradient_scale Scale>
reference serial(const setup& s, const tensors& weights, int step) {
  const sc::path_table& paths = s.paths;
  const train_test::small_dataset data = data_of(s);
  const auto config = config_of(s);
  std::vector<int> counts = s.layers;
  for (int k = 0; s.layers.empty() && k < paths.stages; ++k)
    counts.push_back(hd::model::split_layers(config.layers, k, paths.stages).count);
  std::vector<std::vector<int>> blocks_of(counts.size());
  int block = 0;
  for (std::size_t k = 0; k < counts.size(); ++k)
    for (int i = 0; i < counts[k]; ++i) blocks_of[k].push_back(block++);

  reference r;
  for (const auto& [name, values] : weights) r.gradients[name].assign(values.size(), 0);
  double targets_counted = 0;
  std::vector<double> visited(static_cast<std::size_t>(config.layers), 0);  // samples that passed a block
  hd::compute::host<> backend(1);
  hd::launch<hd::threads>(hd::mesh<>{}, [&](auto& world) {
    using stage_type = hd::model::gpt2<double>::stage<std::remove_reference_t<decltype(world)>, hd::compute::host<>>;
    for (int d = 0; d < s.dp; ++d) {
      const hd::balanced_split over_dp{s.batch, s.dp};
      const hd::balanced_split cut{over_dp.size(d), paths.microbatches()};
      for (int i = 0; i < paths.microbatches(); ++i) {
        std::vector<int> blocks;
        for (const int node : paths.path(i))
          for (const int b : blocks_of[static_cast<std::size_t>(paths.stage_of_node[static_cast<std::size_t>(node)])])
            blocks.push_back(b);
        const std::int64_t samples = cut.size(i);
        for (const int b : blocks) visited[static_cast<std::size_t>(b)] += static_cast<double>(samples);
        auto smaller = config;
        smaller.layers = static_cast<int>(blocks.size());
        stage_type stage(smaller, world, backend, {0, smaller.layers, 0, 1}, 1, samples);
        for (const auto& p : stage.parameters()) {
          const auto& from = weights.at(renamed(p.name, blocks));
          std::copy(from.begin(), from.end(), stage.weights().begin() + p.offset);
        }
        std::vector<std::int32_t> tokens(static_cast<std::size_t>(samples * 6)), targets(tokens.size());
        data.fill_train({step * s.batch + over_dp.offset(d) + cut.offset(i), samples}, tokens, targets);
        for (const std::int32_t t : targets) targets_counted += t >= 0 ? 1 : 0;
        stage.zero_gradients();
        const hd::model::batch<double> b{tokens, targets, static_cast<int>(samples), 1.0, 0};
        stage.forward(0, b, {}, {});
        r.loss += stage.loss_sum(0);
        stage.backward(0, b, {}, {});
        for (const auto& p : stage.parameters()) {
          auto& to = r.gradients[renamed(p.name, blocks)];
          for (std::size_t k = 0; k < to.size(); ++k)
            to[k] += stage.gradients()[static_cast<std::size_t>(p.offset) + k];
        }
      }
    }
  });
  r.loss /= targets_counted;
  for (auto& [name, values] : r.gradients) {
    double factor = 1 / targets_counted;
    if (name.rfind("h.", 0) == 0) {
      const double seen = visited[static_cast<std::size_t>(std::stoi(name.substr(2)))];
      if (std::is_same_v<Scale, sc::by_visits> && seen > 0) factor *= static_cast<double>(s.batch) / seen;
    }
    for (double& g : values) {
      g *= factor;
      r.norm += g * g;
    }
  }
  r.norm = std::sqrt(r.norm);
  return r;
}

double largest_error(const tensors& got, const tensors& wanted) {
  double worst = got.size() == wanted.size() ? 0 : 1e300;
  for (const auto& [name, values] : wanted) {
    const auto found = got.find(name);
    if (found == got.end() || found->second.size() != values.size()) return 1e300;
    double scale = 0, error = 0;
    for (const double v : values) scale = (std::max)(scale, std::abs(v));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double e = std::abs(found->second[i] - values[i]);
      if (!(e <= error)) error = e;
    }
    if (const double e = error / (scale > 0 ? scale : 1); !(e <= worst)) worst = e;
  }
  return worst;
}

sc::visit_costs random_costs(int nodes, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> work(0.5, 1.5), link(0.2, 3);
  const auto n = static_cast<std::size_t>(nodes);
  sc::visit_costs costs;
  for (std::size_t i = 0; i < n; ++i) costs.forward.push_back(work(random));
  costs.message.assign(n * n, 0);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) costs.message[a * n + b] = costs.message[b * n + a] = link(random);
  return costs;
}
std::vector<int> nodes_of(const std::vector<int>& sizes) {
  std::vector<int> stage_of_node;
  for (std::size_t k = 0; k < sizes.size(); ++k)
    stage_of_node.insert(stage_of_node.end(), static_cast<std::size_t>(sizes[k]), static_cast<int>(k));
  return stage_of_node;
}
sc::path_table planned(const std::vector<int>& sizes, plan::skip_options o, unsigned seed) {
  const auto stage_of_node = nodes_of(sizes);
  const auto costs = random_costs(static_cast<int>(stage_of_node.size()), seed);
  o.even_visits = true;
  return plan::skippipe(costs, stage_of_node, static_cast<int>(sizes.size()), o).paths;
}
sc::routed schedule_of(const setup& s) {
  if (!s.in_order_of_simulation) return sc::routed(s.paths);
  return sc::routed(s.paths, hd::sim::serial_nodes{}(s.paths, random_costs(s.paths.nodes(), 3)));
}
bool fits(const setup& s) {
  return s.paths.nodes() * s.dp * s.tp <= transport_test::most_ranks();
}

template <sc::gradient_scale Scale>
outcome check(const setup& s) {
  const sc::routed when = schedule_of(s);
  outcome got;
  if constexpr (std::is_same_v<Scale, sc::by_batch>)  // the default, and the schedule as any table
    got = train<double>(s, sc::tabled(when, s.paths.nodes()), s.paths.nodes());
  else
    got = train<double, Scale>(s, when, s.paths.nodes());
  CHECK(got.apart == 0);
  REQUIRE(got.steps.size() == static_cast<std::size_t>(s.steps));
  for (int k = 0; k < s.steps; ++k) {
    CAPTURE(k);
    const record& step = got.steps[static_cast<std::size_t>(k)];
    const reference wanted = serial<Scale>(s, step.weights, k);
    CHECK(step.loss == Approx(wanted.loss).epsilon(1e-12));
    CHECK(step.norm == Approx(wanted.norm).epsilon(1e-10));
    CHECK(largest_error(step.gradients, wanted.gradients) <= 1e-10);
  }
  CHECK(largest_error(got.after, got.steps.back().weights) > 1e-6);  // it has learnt something
  CHECK(got.validation > 0);
  // In the order of a simulation nodes hold what their slots can; the loss is one more, for a moment.
  for (int r = 0; r < s.dp * s.paths.nodes() * s.tp && s.in_order_of_simulation; ++r) {
    const int node = r / s.tp % s.paths.nodes();
    const bool origin = s.paths.stage_of_node[static_cast<std::size_t>(node)] == 0;
    CHECK(got.peak_live[static_cast<std::size_t>(r)] <= hd::sim::serial_nodes{}.slots + (origin ? 1 : 0));
  }
  // 2 L messages for each microbatch, each one boundary tensor.
  const std::int64_t messages = s.paths.length > 1 ? 2 * s.paths.length : 0;
  CHECK(got.sends == messages * s.dp * s.tp * s.paths.microbatches());
  CHECK(got.bytes == messages * s.batch * s.tp * 6 * 16 * 8);
  return got;
}

// Ways by hand: two origins, swaps, skips, a stage that nobody visits at first sight.
sc::path_table by_hand() {
  sc::path_table t;
  t.stages = 4;
  t.length = 3;
  t.stage_of_node = {0, 1, 2, 3, 0};
  t.way = {0, 2, 1, 4, 1, 3, 0, 2, 3, 4, 3, 2, 0, 1, 2};
  return t;
}

}  // namespace

TEST_CASE("a GPT-2 on planned ways has the gradients of one rank: two of three stages, two nodes each",
          "[train][skippipe]") {
  setup s;
  s.paths = planned({2, 2, 2}, {.path_length = 2, .exchanges = 100}, 1);
  if (!fits(s)) return;
  REQUIRE(s.paths.microbatches() == 12);
  check<sc::by_batch>(s);
  check<sc::by_visits>(s);
}

TEST_CASE("a GPT-2 on planned ways has the gradients of one rank: three of five stages", "[train][skippipe]") {
  setup s;
  s.paths = planned({2, 1, 2, 1, 1}, {.path_length = 3, .slots = 2, .per_origin = 2, .waves = 1, .exchanges = 100}, 4);
  s.layers = {1, 0, 2, 1, 1};  // a stage without a block, too
  s.batch = 11;
  if (!fits(s)) return;
  check<sc::by_batch>(s);
  check<sc::by_visits>(s);
}

TEST_CASE("a GPT-2 on ways with skips and swaps, all first visits first", "[train][skippipe]") {
  setup s;
  s.paths = by_hand();
  s.in_order_of_simulation = false;
  s.ignore_every = 5;
  if (!fits(s)) return;
  check<sc::by_batch>(s);
  check<sc::by_visits>(s);
}

TEST_CASE("a GPT-2 on ways, copied over dp and cut over tp", "[train][skippipe][ranks]") {
  setup s;
  s.paths = planned({1, 1, 2}, {.path_length = 2, .slots = 4, .per_origin = 2, .exchanges = 50}, 2);
  s.ignore_every = 7;
  s.dp = 2;
  if (!fits(s)) return;
  check<sc::by_batch>(s);
  s.dp = 1;
  s.tp = 2;
  check<sc::by_visits>(s);
}

TEST_CASE("one node for each stage, and one for the whole model", "[train][skippipe][ranks]") {
  setup s;
  s.paths = planned({1, 1, 1, 1}, {.path_length = 3, .slots = 3, .per_origin = 3, .exchanges = 50}, 5);
  if (!fits(s)) return;
  check<sc::by_visits>(s);
  s.paths = planned({1}, {.path_length = 1, .slots = 3, .per_origin = 3}, 6);
  check<sc::by_batch>(s);
  s.paths = planned({3}, {.path_length = 1, .slots = 3, .per_origin = 3}, 6);
  check<sc::by_batch>(s);
}

TEST_CASE("a GPT-2 in single precision on ways has the gradients of one rank", "[train][skippipe]") {
  setup s;
  s.paths = planned({2, 2, 2}, {.path_length = 2, .exchanges = 100}, 3);
  s.steps = 1;
  if (!fits(s)) return;
  const outcome got = train<float>(s, sc::tabled(schedule_of(s), 6), 6);
  CHECK(got.apart == 0);
  const reference wanted = serial<sc::by_batch>(s, got.steps.at(0).weights, 0);
  double worst = 0;
  for (const auto& [name, values] : wanted.gradients)
    for (std::size_t i = 0; i < values.size(); ++i)
      worst = (std::max)(worst, std::abs(got.steps[0].gradients.at(name).at(i) - values[i]));
  CHECK(worst <= 1e-6);
  CHECK(worst > 0);
}

TEST_CASE("two runs on ways have the same bits", "[train][skippipe]") {
  setup s;
  s.paths = planned({2, 2, 2}, {.path_length = 2, .exchanges = 50}, 7);
  if (!fits(s)) return;
  const sc::routed when = schedule_of(s);
  const outcome one = train<double, sc::by_visits>(s, when, 6), two = train<double, sc::by_visits>(s, when, 6);
  CHECK(one.after == two.after);
  CHECK(one.steps.back().gradients == two.steps.back().gradients);
  CHECK(one.steps.back().loss == two.steps.back().loss);
}

TEST_CASE("all stages in order are a plain pipeline, bit for bit: a GPT-2", "[train][skippipe][ranks]") {
  setup s;
  s.layers = {2, 1, 1, 1};
  s.paths.stages = s.paths.length = 4;
  s.paths.stage_of_node = {0, 1, 2, 3};
  for (int i = 0; i < 6; ++i) s.paths.way.insert(s.paths.way.end(), {0, 1, 2, 3});
  if (!fits(s)) return;
  const outcome ways = check<sc::by_batch>(s);
  setup plain = s;
  const sc::tabled when(sc::make_table(sc::one_f_one_b<hd::microbatches<>>(hd::microbatches<>{6}), 4));
  const outcome pipeline = train<double>(plain, when, 4);
  REQUIRE(pipeline.steps.size() == ways.steps.size());
  for (std::size_t k = 0; k < ways.steps.size(); ++k) {
    CHECK(ways.steps[k].gradients == pipeline.steps[k].gradients);
    CHECK(ways.steps[k].loss == pipeline.steps[k].loss);
  }
  CHECK(ways.validation == pipeline.validation);
}

TEST_CASE("the loss falls in a short training on ways", "[train][skippipe]") {
  setup s;
  s.paths = planned({2, 1, 1, 1}, {.path_length = 3, .slots = 4, .per_origin = 3, .waves = 1, .exchanges = 50}, 8);
  s.learnable = true;
  s.steps = 40;
  s.batch = 12;
  s.rate = 2e-2;
  s.clip = 1;
  if (!fits(s)) return;
  const outcome got = train<double, sc::by_visits>(s, schedule_of(s), s.paths.nodes());
  CHECK(got.steps.front().loss > 3.3);
  CHECK(got.steps.back().loss < 0.5 * got.steps.front().loss);
  CHECK(got.validation < 0.5 * got.steps.front().loss);  // of the whole model, without skips
}

TEST_CASE("a run on ways is saved once, and a plain pipeline goes on from it", "[train][skippipe]") {
  setup s;
  s.paths = planned({2, 2, 2}, {.path_length = 2, .exchanges = 50}, 9);
  if (!fits(s)) return;
  const train_test::folder saves("ways");
  s.save_to = saves.path.string();
  const outcome ways = train<double, sc::by_visits>(s, schedule_of(s), 6);
  setup next = s;
  next.save_to = "";
  next.resume_from = s.save_to;
  next.steps = s.steps + 1;
  const outcome again = train<double, sc::by_visits>(next, schedule_of(s), 6);
  REQUIRE(again.steps.size() == 3);
  CHECK(again.steps[2].weights == ways.after);
  const outcome plain = train<double>(next, sc::tabled(sc::make_table(sc::one_f_one_b<>(hd::microbatches<>{4}), 2)), 2);
  REQUIRE(plain.steps.size() == 3);
  CHECK(plain.steps[2].weights == ways.after);
}

TEST_CASE("a node leaves: weights and moments behind the new plan are the same bits", "[train][skippipe]") {
  setup s;
  s.paths = planned({2, 2, 2}, {.path_length = 2, .exchanges = 50}, 9);
  if (!fits(s)) return;
  const train_test::folder before("leave-before"), after("leave-after"), again("leave-again");
  s.save_to = before.path.string();
  const outcome ways = train<double, sc::by_visits>(s, schedule_of(s), 6);

  setup fewer = s;  // the last node of stage 2 but one is gone
  fewer.paths = planned({2, 2, 1}, {.path_length = 2, .slots = 6, .exchanges = 50}, 10);
  fewer.resume_from = s.save_to;
  fewer.save_to = after.path.string();
  const outcome left = train<double, sc::by_visits>(fewer, schedule_of(fewer), 5);
  CHECK(left.apart == 0);
  CHECK(left.after == ways.after);

  // Moments, too: back on the first plan, what is saved has the bytes of the first save.
  setup back = s;
  back.resume_from = fewer.save_to;
  back.save_to = again.path.string();
  train<double, sc::by_visits>(back, schedule_of(back), 6);
  int files = 0;
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(before.path)) {
    if (!entry.is_regular_file()) continue;
    const auto read = [](const std::filesystem::path& file) {
      std::ifstream in(file, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(in), {});
    };
    const auto name = std::filesystem::relative(entry.path(), before.path);
    CAPTURE(name.string());
    const bool same = read(entry.path()) == read(again.path / name);
    CHECK(same);
    ++files;
    bytes += entry.file_size();
  }
  CHECK(files > 6);
  std::size_t elements = 0;
  for (const auto& [name, values] : ways.after) elements += values.size();
  CHECK(bytes >= 3 * sizeof(double) * elements);

  // It goes on as one rank would on the ways that are left.
  fewer.steps = s.steps + 1;
  fewer.save_to = "";
  const outcome next = train<double, sc::by_visits>(fewer, schedule_of(fewer), 5);
  REQUIRE(next.steps.size() == static_cast<std::size_t>(fewer.steps));
  const reference wanted = serial<sc::by_visits>(fewer, ways.after, s.steps);
  CHECK(next.steps.back().loss == Approx(wanted.loss).epsilon(1e-12));
  CHECK(largest_error(next.steps.back().gradients, wanted.gradients) <= 1e-10);
}

TEST_CASE("a table with ways trains, if they go from the first stage to the last", "[train][skippipe][ranks]") {
  if (transport_test::most_ranks() < 3) return;
  // Three stages on three ranks; microbatch 1 skips stage 1.
  sc::action_table t;
  t.microbatches = 2;
  t.rank_of_stage = {0, 1, 2};
  t.next = {1, 2, 2, sc::not_on_path, -1, -1};
  t.previous = {-1, -1, 0, sc::not_on_path, 1, 0};
  using enum sc::action_kind;
  t.actions = {{forward, 0, 0},  {forward, 0, 1}, {backward, 0, 0}, {backward, 0, 1}, {forward, 1, 0},
               {backward, 1, 0}, {forward, 2, 0}, {backward, 2, 0}, {forward, 2, 1},  {backward, 2, 1}};
  t.offsets = {0, 4, 6, 10};
  setup s;
  s.paths.stages = s.paths.length = 3;  // of the first microbatch only: the gradients are checked for messages and sums
  s.steps = 1;
  const outcome got = train<double>(s, sc::tabled(t), 3);
  CHECK(got.sends == 2 * (2 + 1));
  CHECK(got.apart == 0);
  CHECK(got.steps.at(0).loss > 3);

  sc::action_table nobody = t;  // neither comes to stage 1
  nobody.next = {2, 2, sc::not_on_path, sc::not_on_path, -1, -1};
  nobody.previous = {-1, -1, sc::not_on_path, sc::not_on_path, 0, 0};
  nobody.actions = {{forward, 0, 0}, {forward, 0, 1},  {backward, 0, 0}, {backward, 0, 1},
                    {forward, 2, 0}, {backward, 2, 0}, {forward, 2, 1},  {backward, 2, 1}};
  nobody.offsets = {0, 4, 4, 8};
  CHECK_THROWS_WITH(train<double>(s, sc::tabled(nobody), 3),
                    Catch::Matchers::Contains("no microbatch comes to part 1, which would learn nothing"));

  sc::action_table ends_early = t;  // microbatch 1 never comes to the loss
  ends_early.next = {1, 1, 2, -1, -1, sc::not_on_path};
  ends_early.previous = {-1, -1, 0, 0, 1, sc::not_on_path};
  ends_early.actions = {{forward, 0, 0}, {forward, 0, 1},  {backward, 0, 0}, {backward, 0, 1}, {forward, 1, 0},
                        {forward, 1, 1}, {backward, 1, 1}, {backward, 1, 0}, {forward, 2, 0},  {backward, 2, 0}};
  ends_early.offsets = {0, 4, 8, 10};
  CHECK_THROWS_WITH(train<double>(s, sc::tabled(ends_early), 3),
                    Catch::Matchers::Contains("the way of microbatch 1 does not"));
}

TEST_CASE("layers of ways are given for the stages, without the loss", "[train][skippipe][ranks]") {
  setup s;
  s.paths = planned({1, 1, 1}, {.path_length = 2, .slots = 3, .per_origin = 3}, 5);
  if (!fits(s)) return;
  s.layers = {2, 2, 1, 0};
  CHECK_THROWS_WITH((train<double, sc::by_visits>(s, schedule_of(s), 3)),
                    Catch::Matchers::Contains("4 numbers, the schedule cuts the model into 3 stages"));
}
