// tests/rl/stage_test.cpp: stages of policies: cross-entropy as a special case, memory that the host may not touch,
// activations made again, adapters, and log-probabilities of heads in chunks.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/model/with_lora.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/activations/recompute.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace rl = heddle::rl;
namespace act = heddle::activations;

namespace {

using host = hd::compute::host<>;
using checked = hd::testing::checked_backend<host>;
using mesh = hd::mesh<hd::axis<hd::tp>>;
using base = md::tied_qwen3<double>;
template <class Base>
using policy = rl::policy<Base, rl::any_objective>;

constexpr int context = 5, words = 23, samples = 3;
constexpr md::llama_config sizes{
    .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 21, .context = context, .vocabulary = words};

template <class Config>
Config config_of(const rl::any_objective& objective) {
  Config c{};
  static_cast<md::llama_config&>(c) = sizes;
  if constexpr (requires { c.objective; }) c.objective = objective;
  return c;
}

struct data {
  std::vector<std::int32_t> tokens, ids, targets;
};
// `plain`: every advantage and weight is 1.
data random_data(bool plain) {
  const hd::counter_random random(5, 1);
  std::uint64_t at = 0;
  const auto number = [&](double least, double most) { return least + (most - least) * random.uniform(at++); };
  data d;
  for (int s = 0; s < samples; ++s) {
    const std::size_t begin = d.ids.size();
    for (int i = 0; i < context; ++i) {
      d.tokens.push_back(static_cast<std::int32_t>(random.integer(at++) % words));
      d.ids.push_back(random.integer(at++) % 5 == 0 ? -1 : static_cast<std::int32_t>(random.integer(at++) % words));
    }
    d.targets.insert(d.targets.end(), d.ids.begin() + static_cast<long>(begin), d.ids.end());
    for (int c = 0; c < 5; ++c)
      for (int i = 0; i < context; ++i) {
        const double x = c == 0 ? number(-2, 2) : c == 4 ? number(0, 2) : number(-4, -2);
        d.targets.push_back(std::bit_cast<std::int32_t>(static_cast<float>(plain && (c == 0 || c == 4) ? 1 : x)));
      }
  }
  return d;
}

struct result {
  double loss = 0, again = 0;
  std::vector<double> gradients, log_probabilities;
  friend bool operator==(const result&, const result&) = default;
};

// One stage with all layers: forward and backward in two halves, then the loss and the log-probabilities without
// saving.
template <class Model, class Backend, class Activations = act::keep, class World>
result run(World& world, const rl::any_objective& objective, bool plain = false, const std::string& again = "") {
  using stage_type = md::language_stage<Model, World, Backend, Activations>;
  const auto config = config_of<typename Model::config>(objective);
  Backend backend{1};
  typename stage_type::layers_memory::settings saving{};
  if constexpr (requires { saving.again; })
    saving.again = md::parse_recompute(again, stage_type::named_by_tags(config));
  stage_type stage(config, world, backend, md::split_layers(config.layers, 0, 1), 1, samples, 1, nullptr, saving);
  stage.initialize(3);
  hd::compute::run<hd::compute::ops::scale>(backend, stage.weights(), 5.0);
  if (stage.frozen_weights().size() > 0)
    hd::compute::run<hd::compute::ops::scale>(backend, stage.frozen_weights(), 5.0);
  stage.zero_gradients();
  const data d = random_data(plain);
  typename Model::batch b;
  b.tokens = d.tokens, b.samples = samples, b.loss_scale = 1.0 / 8;
  b.targets = d.ids;
  if constexpr (requires { config.objective; }) b.targets = d.targets;
  result r;
  stage.forward(0, b, {}, {});
  stage.backward_input(0, b, {}, {});
  stage.backward_weight(0, b);
  r.loss = stage.loss_sum(0);
  r.again = stage.forward_only(b, {}, {});
  r.log_probabilities.resize(samples * context);
  stage.target_log_probabilities(b, {}, {}, r.log_probabilities);
  r.gradients.resize(static_cast<std::size_t>(stage.gradients().size()));
  backend.queue().copy(stage.gradients(), std::span<double>(r.gradients));
  backend.queue().wait();
  return r;
}
template <class Model, class Backend, class Activations = act::keep>
std::vector<result> on_ranks(int tp, const rl::any_objective& objective, bool plain = false,
                             const std::string& again = "") {
  std::vector<result> all(static_cast<std::size_t>(tp));
  hd::launch<hd::threads>(hd::parse_mesh<mesh>("tp=" + std::to_string(tp)), [&](auto& world) {
    all[static_cast<std::size_t>(world.rank())] = run<Model, Backend, Activations>(world, objective, plain, again);
  });
  return all;
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = (std::max)(most, std::abs(a[i] - b[i])), size = (std::max)(size, std::abs(b[i]));
  return most / size;
}

template <class Model, class Backend>
constexpr bool only_queues = md::language_stage<Model, hd::world<hd::threads, mesh>, Backend>::only_queues;

const rl::any_objective mixed = rl::with_kl<rl::ppo>{{}, .25};

}  // namespace

TEST_CASE("REINFORCE with advantages of 1 is cross-entropy", "[rl][stage]") {
  for (const int tp : {1, 2}) {
    const auto plain = on_ranks<base, host>(tp, {}, true),
               got = on_ranks<policy<base>, host>(tp, rl::reinforce{0}, true);
    for (std::size_t r = 0; r < plain.size(); ++r) {
      CHECK(std::abs(got[r].loss - plain[r].loss) <= 1e-13 * plain[r].loss);
      CHECK(std::abs(got[r].again - plain[r].again) <= 1e-13 * plain[r].again);
      CHECK(difference(got[r].gradients, plain[r].gradients) <= 1e-13);
      CHECK(difference(got[r].log_probabilities, plain[r].log_probabilities) <= 1e-13);
      double sum = 0;
      for (const double lp : plain[r].log_probabilities) sum -= lp;
      CHECK(std::abs(sum - plain[r].loss) <= 1e-13 * plain[r].loss);
    }
  }
}

TEST_CASE("policies in memory that the host may not touch compute the bits of the host", "[rl][stage]") {
  STATIC_REQUIRE(only_queues<base, checked>);
  STATIC_REQUIRE_FALSE(only_queues<policy<base>, checked>);  // so captured_steps refuses it
  for (const int tp : {1, 2}) {
    const auto here = on_ranks<policy<base>, host>(tp, mixed);
    CHECK(here[0].loss != 0);
    CHECK(std::abs(here[0].loss - here[0].again) <= 1e-13 * std::abs(here[0].loss));
    CHECK(on_ranks<policy<base>, checked>(tp, mixed) == here);
  }
}

TEST_CASE("policies whose activations are made again have the same gradients", "[rl][stage]") {
  CHECK(on_ranks<policy<base>, host, act::recompute<>>(1, mixed, false, "full") ==
        on_ranks<policy<base>, host>(1, mixed));
}

TEST_CASE("adapters go around a policy and inside it", "[rl][stage]") {
  const auto around = on_ranks<md::with_lora<policy<base>>, host>(1, mixed),
             inside = on_ranks<policy<md::with_lora<base>>, host>(1, mixed);
  CHECK(around == inside);
  const auto plain = on_ranks<md::with_lora<base>, host>(1, {}, true),
             got = on_ranks<policy<md::with_lora<base>>, host>(1, rl::reinforce{0}, true);
  CHECK(std::abs(got[0].loss - plain[0].loss) <= 1e-13 * plain[0].loss);
  CHECK(difference(got[0].gradients, plain[0].gradients) <= 1e-13);
}

TEST_CASE("log-probabilities of a head in chunks are those of the whole head", "[rl][stage]") {
  for (const int tp : {1, 2}) {
    const auto whole = on_ranks<base, host>(tp, {}), chunks = on_ranks<md::with_chunked_loss<base, 5>, host>(tp, {});
    for (std::size_t r = 0; r < whole.size(); ++r)
      CHECK(difference(chunks[r].log_probabilities, whole[r].log_probabilities) <= 1e-13);
  }
}
