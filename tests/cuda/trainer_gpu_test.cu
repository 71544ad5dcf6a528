// A GPT-2 on the CUDA backend, its ranks threads that share a GPU, against the host.
#include "catch.hpp"
#include "train/random_tokens.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/captured_steps.hpp>
#include <heddle/train/optimizers/adafactor.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/optimizers/muon.hpp>
#include <heddle/train/optimizers/sgd.hpp>
#include <heddle/train/trainer.hpp>

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
constexpr int context = 12, words = 37, steps = 4;

struct setup {
  const char *mesh, *schedule;
  int microbatches;
};

// Loss and norm of each step.
template <class Backend, class... Policies>
std::vector<double> train(const std::string& mesh, const char* schedule, int microbatches) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = 4, .heads = 4, .width = 32, .context = context, .vocabulary = words};
  o.batch = 8;
  o.microbatches = microbatches;
  o.schedule = schedule;
  o.steps = steps;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  std::vector<double> numbers;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), [&](auto& world) {
    using strategy = hd::strategy<mesh_type, hd::zero<1>, hd::schedule::named, Backend, Policies...>;
    hd::train::trainer<hd::model::gpt2<float>, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    trainer.run(train_test::random_tokens<context, words>{}, [&](const hd::train::step_report& report) {
      if (world.rank() != 0) return;
      numbers.push_back(report.loss);
      numbers.push_back(report.gradient_norm);
    });
  });
  return numbers;
}

}  // namespace

TEST_CASE("a GPT-2 trains on a GPU as on the host, its ranks threads", "[cuda][gpu][train]") {
  for (const setup& s : {setup{"", "1f1b", 1}, setup{"dp=2", "1f1b", 1}, setup{"tp=2", "1f1b", 1},
                         setup{"pp=2", "zb-h1", 4}, setup{"dp=2,pp=2,tp=2", "1f1b", 2}}) {
    CAPTURE(s.mesh, s.schedule);
    const std::vector<double> got = train<hd::compute::cuda>(s.mesh, s.schedule, s.microbatches),
                              expected = train<hd::compute::host<>>(s.mesh, s.schedule, s.microbatches);
    REQUIRE(got.size() == 2 * steps);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= 1e-4 * std::abs(expected[i]));
  }
}

TEST_CASE("steps that are launched as graphs on a GPU have the bits of eager ones", "[cuda][gpu][train][graph]") {
  for (const setup& s :
       {setup{"", "1f1b", 2}, setup{"dp=2", "1f1b", 1}, setup{"tp=2", "1f1b", 1}, setup{"pp=2", "1f1b", 4},
        setup{"pp=2", "zb-h1", 4}, setup{"dp=2,tp=2", "1f1b", 2}, setup{"dp=2,pp=2", "zb-h1", 2}}) {
    CAPTURE(s.mesh, s.schedule);
    const std::vector<double> got = train<hd::compute::cuda, hd::captured_steps>(s.mesh, s.schedule, s.microbatches),
                              expected = train<hd::compute::cuda>(s.mesh, s.schedule, s.microbatches);
    REQUIRE(got.size() == 2 * steps);
    CHECK(got == expected);
  }
}

TEST_CASE("rules of optimizers step on a GPU as on the host, eagerly and in graphs", "[cuda][gpu][train][optimizer]") {
  const auto check = [&]<class Rule>(Rule) {
    const std::vector<double> got = train<hd::compute::cuda, Rule>("dp=2,tp=2", "1f1b", 2),
                              captured = train<hd::compute::cuda, Rule, hd::captured_steps>("dp=2,tp=2", "1f1b", 2),
                              expected = train<hd::compute::host<>, Rule>("dp=2,tp=2", "1f1b", 2);
    REQUIRE(got.size() == 2 * steps);
    CHECK(got == captured);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= 1e-3 * std::abs(expected[i]));
  };
  check(hd::optimizers::sgd{});
  check(hd::optimizers::lion{});
}

TEST_CASE("rules on whole matrices step on a GPU as on the host", "[cuda][gpu][train][optimizer]") {
  const auto check = [&]<class Rule>(Rule) {
    const std::vector<double> got = train<hd::compute::cuda, Rule>("dp=2,pp=2", "1f1b", 2),
                              expected = train<hd::compute::host<>, Rule>("dp=2,pp=2", "1f1b", 2);
    REQUIRE(got.size() == 2 * steps);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) <= 1e-3 * std::abs(expected[i]));
  };
  check(hd::optimizers::muon{});
  check(hd::optimizers::adafactor{});
}
