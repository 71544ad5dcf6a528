// Training on memory that the host may not touch: the bits of the host's on several meshes and schedules, saves that go from
// one to the other, and errors that name what is not finite.
#include "catch.hpp"
#include "folder.hpp"
#include "random_tokens.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/measure_layers.hpp>
#include <heddle/train/sampling.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace tr = heddle::train;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using host = hd::compute::host<>;
using checked = hd::testing::checked_backend<host>;
constexpr int context = 6, words = 20;
using samples = train_test::random_tokens<context, words, 5>;

struct setup {
  std::string mesh = "", schedule = "1f1b";
  int microbatches = 2, steps = 3;
  double clip = 0.5;
  std::string save_to = "", resume_from = "";
  std::string poison = "";  // a parameter whose first weight becomes this
  double poison_value = 0;
};

struct outcome {
  std::vector<double> numbers;             // loss and norm of each step, then the loss on held-out samples
  std::vector<std::vector<double>> state;  // of each rank: weights, gradients and moments of its stages
  std::vector<std::int32_t> text;          // drawn from the model
  std::vector<double> logits;
  std::int64_t first_step = 0;
  std::vector<std::int64_t> bytes;  // of each rank, of all that training keeps there
  std::string error;
};

template <int Zero, class Backend>
outcome train(const setup& s) {
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  tr::options<hd::model::gpt2_config> o;
  o.model = {.layers = 4, .heads = 4, .width = 8, .context = context, .vocabulary = words};
  o.batch = 7;
  o.microbatches = s.microbatches;
  o.schedule = s.schedule;
  o.steps = s.steps;
  o.clip_norm = s.clip;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(60'000);
  outcome all;
  all.state.resize(static_cast<std::size_t>(mesh.size()));
  all.bytes.resize(all.state.size());
  try {
    hd::launch<hd::threads>(mesh, launch, [&](auto& world) {
      using strategy = hd::strategy<mesh_type, hd::zero<Zero>, hd::schedule::named, Backend>;
      using trainer_type = tr::trainer<hd::model::gpt2<double>, strategy, std::remove_reference_t<decltype(world)>>;
      trainer_type trainer(world, o);
      auto& queue = hd::compute::queue_of(trainer.backend());
      if (!s.resume_from.empty()) {
        const std::int64_t step = tr::resume(trainer, s.resume_from).step;
        if (world.rank() == 0) all.first_step = step;
      }
      for (int k = 0; k < trainer.stages(); ++k)
        for (const auto& p : trainer.stage(k).parameters())
          if (p.name == s.poison && p.count > 0) {
            const std::vector<double> bad{s.poison_value};
            queue.copy(bad, hd::detail::part_of_row<typename Backend::space>(trainer.stage(k).weights(), p.offset, 1));
            queue.wait();
          }
      const auto note = [&](double x) {
        if (world.rank() == 0) all.numbers.push_back(x);
      };
      trainer.run(samples{}, [&](const tr::step_report& report) {
        note(report.loss);
        note(report.gradient_norm);
      });
      if (!s.save_to.empty()) tr::save(trainer, s.save_to);
      note(trainer.validate(samples{}));
      const std::vector<std::int32_t> prompt{1, 2, 3};
      const auto text = tr::sample(trainer, prompt, {.tokens = 3, .temperature = 0.8, .seed = 5});
      if (world.rank() == 0) all.text = text;
      std::vector<double> logits(trainer.is_last_stage() ? words : 0);
      typename trainer_type::batch_type batch;
      batch.tokens = prompt;
      batch.samples = 1;
      batch.sequence = 3;
      trainer.last_logits(batch, logits);
      if (world.rank() == world.size() - 1) all.logits = logits;
      std::vector<double>& state = all.state[static_cast<std::size_t>(world.rank())];
      const auto add = [&](auto row) {
        std::vector<double> values(static_cast<std::size_t>(row.size()));
        queue.copy(row, values);
        queue.wait();
        state.insert(state.end(), values.begin(), values.end());
      };
      all.bytes[static_cast<std::size_t>(world.rank())] = tr::bytes_held(trainer);
      for (int k = 0; k < trainer.stages(); ++k) {
        add(trainer.stage(k).weights());
        add(trainer.stage(k).gradients());
        add(trainer.optimizer_state(k).first_moment());
        add(trainer.optimizer_state(k).second_moment());
      }
    });
  } catch (const std::exception& e) {
    all.error = e.what();
    all.error.erase(0, all.error.find("heddle:"));  // the rank that threw first
  }
  return all;
}

template <int Zero>
void compare(const setup& s) {
  INFO("mesh '" << s.mesh << "', schedule " << s.schedule << ", zero " << Zero);
  const outcome expected = train<Zero, host>(s), got = train<Zero, checked>(s);
  CHECK(expected.error == "");
  CHECK(got.error == "");
  REQUIRE(expected.numbers.size() == static_cast<std::size_t>(2 * (s.steps - expected.first_step) + 1));
  CHECK(expected.numbers[0] > 1);
  CHECK(expected.numbers[1] > s.clip);  // clipped
  CHECK(got.numbers == expected.numbers);
  CHECK(got.text == expected.text);
  CHECK(got.logits == expected.logits);
  CHECK(got.state == expected.state);
  CHECK(got.bytes == expected.bytes);
}

}  // namespace

TEST_CASE("a GPT-2 trains on checked memory with the bits of the host's", "[train][memory][ranks]") {
  for (const char* mesh : {"", "dp=3", "tp=2", "pp=2", "dp=2,pp=2,tp=2", "dp=3,pp=3"}) {
    compare<0>({.mesh = mesh});
    compare<1>({.mesh = mesh});
  }
}

TEST_CASE("several stages on a rank, split backwards and replicas train on checked memory as on the host's",
          "[train][memory][ranks]") {
  // The embedding's rank has the head, too (its gradient is borrowed), or another has it (it travels); replicas.
  for (const char* schedule : {"interleaved", "zb-h1", "zb-v", "chimera"})
    compare<1>({.mesh = "dp=2,pp=2", .schedule = schedule, .microbatches = 4});
  compare<0>({.mesh = "pp=2", .schedule = "chimera", .microbatches = 4});
}

TEST_CASE("a save made on checked memory goes on on the host's, and the other way round", "[train][memory][save]") {
  setup s{.mesh = "dp=2,pp=2,tp=2", .steps = 4};
  const outcome whole = train<1, host>(s);
  REQUIRE(whole.error == "");
  const auto continues = [&](const outcome& resumed) {
    CHECK(resumed.error == "");
    CHECK(resumed.first_step == 2);
    CHECK(resumed.numbers == std::vector<double>(whole.numbers.begin() + 4, whole.numbers.end()));
    CHECK(resumed.state == whole.state);
  };
  const train_test::folder of_checked("checked"), of_host("host");
  setup first = s, second = s;
  first.steps = 2;
  first.save_to = of_checked.path.string();
  REQUIRE(train<1, checked>(first).error == "");
  second.resume_from = first.save_to;
  continues(train<1, host>(second));
  continues(train<1, checked>(second));
  first.save_to = of_host.path.string();
  REQUIRE(train<1, host>(first).error == "");
  second.resume_from = first.save_to;
  continues(train<1, checked>(second));
}

TEST_CASE("what is not finite in checked memory is named as on the host", "[train][memory][nonfinite]") {
  setup s{.mesh = "dp=2,pp=2", .poison = "h.1.mlp.c_fc.weight"};
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    s.poison_value = value;
    const outcome expected = train<1, host>(s), got = train<1, checked>(s);
    INFO(expected.error);
    CHECK(expected.error.find("step 1 stopped") != std::string::npos);
    CHECK(got.error == expected.error);
  }
  // Found behind the last step, when state is read for a save.
  s = {.steps = 0,
       .save_to = "never",
       .poison = "h.2.ln_1.weight",
       .poison_value = std::numeric_limits<double>::infinity()};
  const outcome expected = train<0, host>(s), got = train<0, checked>(s);
  INFO(expected.error);
  CHECK(expected.error.find("step 0 is not saved, older saves stay: weight h.2.ln_1.weight has inf in element 0") !=
        std::string::npos);
  CHECK(got.error == expected.error);
}

TEST_CASE("layers are measured in checked memory", "[train][memory]") {
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(""), {}, [](auto& world) {
    checked backend{1};
    const auto costs = tr::measure_layer_costs<hd::model::gpt2<double>>(
        world, {.layers = 3, .heads = 2, .width = 8, .context = context, .vocabulary = words}, backend, 2);
    REQUIRE(costs.layers.size() == 3);
    CHECK(costs.layers[0] > 0);
    CHECK(costs.last > 0);
  });
}
