// tests/rl/forecast_test.cpp: runs take the memory that is foretold for each rank, within 2 %.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/error.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/spiking_brain.hpp>
#include <heddle/rl/forecast.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/with_critic.hpp>
#include <heddle/testing/checked_backend.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {
namespace rl_forecast_test {

namespace hd = heddle;
namespace rl = heddle::rl;
using hd::dp, hd::pp, hd::tp;
using train_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using generate_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<rl::replica>>;
using policy = rl::policy<hd::model::gpt2<float>, rl::any_objective>;
// The most bytes of all backends that a rank has had.
std::int64_t& most_of_thread() {
  static thread_local std::int64_t bytes = 0;
  return bytes;
}
class backend : public hd::testing::checked_backend<hd::compute::host<hd::compute::portable>> {
 public:
  explicit backend(int threads) : checked_backend(threads) {}
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;
  ~backend() { most_of_thread() += queue().most_bytes(); }
};
using strategy = hd::strategy<train_mesh, hd::zero<1>, backend>;

struct run_case {
  rl::flow how{};
  const char *train, *generate;
  bool reference = false, one_copy = false, critic = false;
};

double reward_of(const rl::question& q) {
  return q.answer[0] % 5;
}

struct runner {
  run_case c;
  rl::meshes<train_mesh, generate_mesh> where{hd::parse_mesh<train_mesh>(c.train),
                                              hd::parse_mesh<generate_mesh>(c.generate)};
  rl::settings s = [this] {
    rl::settings of{.prompts = 4, .answers = 2, .steps = 2, .most_tokens = 4};
    of.sequences = 4, of.rows = 16, of.block_rows = 4;
    of.bucket_bytes = 1 << 12;
    of.one_copy = c.one_copy;
    if (c.critic) of.advantage = rl::advantage_of::reward;
    return of;
  }();
  hd::train::options<policy::config> options = [this] {
    hd::train::options<policy::config> o;
    static_cast<hd::model::gpt2_config&>(o.model) = {
        .layers = 4, .heads = 4, .width = 32, .context = 8, .vocabulary = 64, .initial_deviation = .3};
    if (c.reference)
      o.model.objective = rl::with_kl<rl::reinforce>{};
    else
      o.model.objective = rl::reinforce{};
    o.learning_rate = {.peak = 1e-3, .warmup_steps = 0};
    o.threads_per_rank = 1;
    return o;
  }();
  rl::with_critic<hd::model::gpt2<float>> critic = [this] {
    rl::with_critic<hd::model::gpt2<float>> of;
    of.options.learning_rate = options.learning_rate;
    of.options.microbatches = 2;
    return of;
  }();
  int ranks() const { return where.train.size() + (c.how.apart ? where.generate.size() : 0); }
  rl::memory_forecast forecast(int rank) const {
    if (c.critic) return rl::forecast<strategy>(c.how, where, policy{}, options, s, rank, critic);
    return rl::forecast<strategy>(c.how, where, policy{}, options, s, rank);
  }
  // The most bytes that each rank had in a run.
  std::vector<std::int64_t> counted() const {
    const rl::task task{
        .prompt = [](std::int64_t group) { return std::vector<std::int32_t>{static_cast<int>(group % 7), 1}; },
        .reward = [](std::span<const rl::question> all) { return rl::judge_each(reward_of, all); }};
    std::vector<std::int64_t> most(static_cast<std::size_t>(ranks()));
    hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{ranks()}, [&](auto& world) {
      most_of_thread() = 0;
      const auto report = [](const rl::run_report&) {};
      if (c.critic)
        rl::run<strategy>(world, c.how, where, policy{}, options, s, task, report, rl::no_saves{}, rl::seeded_weights{},
                          critic);
      else
        rl::run<strategy>(world, c.how, where, policy{}, options, s, task, report);
      most[static_cast<std::size_t>(world.rank())] = most_of_thread();
    });
    return most;
  }
};

}  // namespace rl_forecast_test
}  // namespace

TEST_CASE("a run takes the memory that is foretold within two hundredths", "[rl][forecast][ranks]") {
  using namespace rl_forecast_test;
  rl::flow apart;
  apart.apart = true;
  for (const run_case& c :
       {run_case{{}, "dp=2", "dp=2"}, run_case{{}, "tp=2", "pp=2", true},
        run_case{{}, "dp=2,tp=2", "dp=2,replica=2", true, true}, run_case{{}, "pp=2", "tp=2", false, true},
        run_case{apart, "dp=2", "tp=2", true}, run_case{apart, "pp=2", "dp=1"},
        run_case{rl::asyncflow::flow, "dp=2", "tp=2"}, run_case{rl::asyncflow::flow, "pp=2", "dp=2"},
        run_case{{}, "dp=2,tp=2", "dp=2,replica=2", true, true, true},
        run_case{apart, "pp=2", "dp=1", false, false, true}}) {
    const runner all{c};
    INFO(to_string(c.how) << ", train " << c.train << ", generate " << c.generate << ", reference " << c.reference
                          << ", one copy " << c.one_copy << ", critic " << c.critic);
    const std::vector<std::int64_t> counted = all.counted();
    for (int r = 0; r < all.ranks(); ++r) {
      const rl::memory_forecast f = all.forecast(r);
      INFO("rank " << r << ": " << to_string(f));
      CHECK(static_cast<double>(f.total()) ==
            Approx(static_cast<double>(counted[static_cast<std::size_t>(r)])).epsilon(.02));
    }
  }
}

TEST_CASE("a forecast of a run refuses what a run refuses", "[rl][forecast]") {
  using namespace rl_forecast_test;
  runner all{{{}, "dp=2", "dp=2"}};
  CHECK_THROWS_WITH(all.forecast(2), Catch::Contains("rl::forecast: this run has the ranks 0 to 1, got 2"));
  all.c.how.apart = true;
  CHECK(all.forecast(3).training.total() == 0);
  CHECK(all.forecast(0).generation.held() == 0);
  all.s.one_copy = true;
  CHECK_THROWS_WITH(all.forecast(0),
                    Catch::Contains("one_copy is for pipelines whose ranks train and generate in turn"));
  all.s.one_copy = false;
  all.c.how.apart = false;
  all.where.generate = hd::parse_mesh<generate_mesh>("dp=1");
  CHECK_THROWS_WITH(all.forecast(0), Catch::Contains("that generate in turn should each have all of the world's"));
  all.where.generate = hd::parse_mesh<generate_mesh>("dp=2");
  all.c.critic = true;
  CHECK_THROWS_WITH(all.forecast(0), Catch::Contains("settings.advantage must be advantage_of::reward"));
}

TEST_CASE("a model whose layers keep states is trained by its answers, and its states are foretold", "[rl][forecast]") {
  using namespace rl_forecast_test;
  using hybrid = rl::policy<hd::model::spiking_brain<float>, rl::any_objective>;
  const runner usual{{{}, "dp=1", "dp=1"}};
  hd::train::options<hybrid::config> o;
  static_cast<hd::model::spiking_brain_config&>(o.model) = hd::model::spiking_brain_tiny();
  o.model.objective = rl::reinforce{};
  o.threads_per_rank = 1;
  const rl::memory_forecast f = rl::forecast<strategy>({}, usual.where, hybrid{}, o, usual.s, 0);
  // Two of three layers, for four sequences: of each of two heads 4 x 4 numbers.
  CHECK(f.generation.states == 4 * 2 * 2 * 4 * 4 * 4);
  const rl::task task{.prompt = [](std::int64_t) { return std::vector<std::int32_t>{1, 2}; },
                      .reward = [](std::span<const rl::question> all) { return rl::judge_each(reward_of, all); }};
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>{1}, [&](auto& world) {
    int batches = 0;
    rl::run<strategy>(world, {}, usual.where, hybrid{}, o, usual.s, task, [&](const rl::run_report&) { ++batches; });
    if (batches != 2) throw hd::numeric_error("batches: " + std::to_string(batches));
  });
}
