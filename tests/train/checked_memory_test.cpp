// Training on memory that the host may not touch: the bits of the host's on several meshes and schedules, saves that go from
// one to the other, and errors that name what is not finite.
#include "catch.hpp"
#include "folder.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/measure_layers.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/optimizers/adafactor.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/optimizers/muon.hpp>
#include <heddle/train/optimizers/sgd.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/sampling.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
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
  std::vector<std::vector<double>> state;  // of each rank's stages: whole weights, its share of gradients and moments
  std::vector<std::int32_t> text;          // drawn from the model
  std::vector<double> logits;
  std::int64_t first_step = 0;
  std::vector<std::int64_t> bytes;     // of each rank, of all that training keeps there
  std::vector<std::int64_t> forecast;  // of each rank, the same before anything is allocated
  std::vector<std::int64_t> most;      // of each rank, of all memory that the host may not touch, in the steps
  std::vector<std::int64_t> kept;      // of each rank, of parameters, from step to step
  std::vector<std::int64_t> peaks;  // of each rank, of parameters: the most there was and what it was predicted to be
  std::vector<std::int64_t> taken_back;                  // of each rank, steps
  std::vector<hd::activations::offload_report> reports;  // of each stage, if it offloads
  std::string error;
};

// Steps that are taken before their norm is known are those of a table, which may say where (", OPTIM").
template <class... Policies>
constexpr bool of_table = (std::is_same_v<typename Policies::kind, hd::norm_check_kind> || ... || false);

template <int Zero, class Backend, class... Policies>
outcome train(const setup& s) {
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  tr::options<hd::model::gpt2_config> o;
  o.model = {.layers = 4, .heads = 4, .width = 8, .context = context, .vocabulary = words};
  o.batch = 7;
  o.microbatches = s.microbatches;
  std::optional<hd::schedule::tabled> table;
  if constexpr (of_table<Policies...>)
    table.emplace(train_test::table_named(s.schedule, static_cast<int>(hd::group<pp>(mesh, 0).size()), s.microbatches));
  else
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
  all.forecast.resize(all.state.size());
  all.most.resize(all.state.size());
  all.kept.resize(all.state.size());
  all.peaks.resize(2 * all.state.size());
  all.taken_back.resize(all.state.size());
  try {
    hd::launch<hd::threads>(mesh, launch, [&](auto& world) {
      using strategy =
          hd::strategy<mesh_type, hd::zero<Zero, 1>, Backend, Policies...,
                       std::conditional_t<of_table<Policies...>, hd::schedule::tabled, hd::schedule::named>>;
      using trainer_type = tr::trainer<hd::model::gpt2<double>, strategy, std::remove_reference_t<decltype(world)>>;
      auto trainer = [&] {
        if constexpr (of_table<Policies...>)
          return trainer_type(world, o, *table);
        else
          return trainer_type(world, o);
      }();
      using space = typename Backend::space;
      using hd::part_of_row;
      auto& queue = hd::compute::queue_of(trainer.backend());
      if (!s.resume_from.empty()) {
        const std::int64_t step = tr::resume(trainer, s.resume_from).step;
        if (world.rank() == 0) all.first_step = step;
      }
      for (int k = 0; k < trainer.stages(); ++k)
        for (const auto& p : trainer.stage(k).parameters()) {
          const auto kept = trainer.optimizer_state(k).weights_of(trainer.stage(k));
          const std::int64_t at = p.offset - trainer.optimizer_state(k).weights_begin();
          if (p.name == s.poison && p.count > 0 && at >= 0 && at < static_cast<std::int64_t>(kept.size())) {
            const std::vector<double> bad{s.poison_value};
            queue.copy(bad, part_of_row<space>(kept, at, 1));
            queue.wait();
          }
        }
      const auto note = [&](double x) {
        if (world.rank() == 0) all.numbers.push_back(x);
      };
      trainer.run(samples{}, [&](const tr::step_report& report) {
        note(report.loss);
        note(report.gradient_norm);
      });
      if constexpr (!space::host_accessible) all.most[static_cast<std::size_t>(world.rank())] = queue.most_bytes();
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
      if constexpr (tr::detail::acts_on_whole_tensors<typename strategy::optimizer>)
        all.forecast = all.bytes;  // nothing is predicted
      else
        all.forecast[static_cast<std::size_t>(world.rank())] = tr::predicted_memory(trainer).value().total();
      auto& memory = trainer.parameter_memory();
      const auto rank = static_cast<std::size_t>(world.rank());
      all.kept[rank] = memory.bytes().total() - memory.bytes().kept;
      all.taken_back[rank] = trainer.steps_taken_back();
      for (int k = 0; k < trainer.stages(); ++k)
        if constexpr (requires { trainer.stage(k).saved_layers().report(); }) {
          static std::mutex guard;
          const std::lock_guard lock(guard);
          all.reports.push_back(trainer.stage(k).saved_layers().report());
        }
      all.peaks[2 * rank] = memory.peak_bytes();
      all.peaks[2 * rank + 1] = memory.predicted_peak_bytes();
      memory.with_weights([&] {
        for (int k = 0; k < trainer.stages(); ++k) {
          auto& mine = trainer.optimizer_state(k);
          add(trainer.stage(k).weights());
          add(part_of_row<space>(mine.gradients_of(trainer.stage(k)), mine.owned_begin() - mine.gradients_begin(),
                                 mine.owned_end() - mine.owned_begin()));
          for (int m = 0; m < mine.moments; ++m) add(mine.moment(m));
        }
      });
    });
  } catch (const std::exception& e) {
    all.error = e.what();
    all.error.erase(0, all.error.find("heddle:"));  // the rank that threw first
  }
  return all;
}

template <int Zero, class... Policies>
outcome compare(const setup& s, int of_host, const outcome& expected) {
  INFO("mesh '" << s.mesh << "', schedule " << s.schedule << ", zero " << Zero << ", on the host " << of_host);
  outcome got = train<Zero, checked, Policies...>(s);
  CHECK(expected.error == "");
  CHECK(got.error == "");
  REQUIRE(expected.numbers.size() == static_cast<std::size_t>(2 * (s.steps - expected.first_step) + 1));
  CHECK(expected.numbers[0] > 1);
  CHECK(expected.numbers[1] > s.clip);  // clipped
  CHECK(got.numbers == expected.numbers);
  CHECK(got.text == expected.text);
  CHECK(got.logits == expected.logits);
  CHECK(got.state == expected.state);
  CHECK(got.forecast == got.bytes);
  CHECK(expected.forecast == expected.bytes);
  if (Zero == of_host && sizeof...(Policies) == 0) CHECK(got.bytes == expected.bytes);
  for (std::size_t r = 0; r < got.bytes.size(); ++r) {
    CHECK(got.peaks[2 * r] == got.peaks[2 * r + 1]);
    // Tokens, the logits of a sample and what adds up numbers come on top.
    CHECK(got.most[r] <= got.bytes[r] + 4096);
    const bool shares = Zero >= 2 && s.mesh.find("dp") != std::string::npos;
    if (sizeof...(Policies) == 0) CHECK((got.kept[r] < expected.kept[r]) == shares);
  }
  return got;
}
// The host's run has whole gradients and weights: with shares of them (zero<2>, zero<3>) the bits are the same.
template <int... Zero>
void compare(const setup& s) {
  constexpr int least = (std::min)({Zero...});
  static_assert(least < 2);
  const outcome expected = train<least, host>(s);
  (..., compare<Zero>(s, least, expected));
}

}  // namespace

TEST_CASE("a GPT-2 trains on checked memory with the bits of the host's", "[train][memory][ranks]") {
  for (const char* mesh : {"", "dp=3", "tp=2", "pp=2", "dp=2,pp=2,tp=2", "dp=3,pp=3"}) {
    compare<0>({.mesh = mesh});
    compare<1, 2, 3>({.mesh = mesh});
  }
}

TEST_CASE("rules of optimizers step in checked memory with the bits of the host's", "[train][memory][optimizer]") {
  for (const char* mesh : {"", "dp=2,pp=2,tp=2"}) {
    compare<1, hd::optimizers::sgd>({.mesh = mesh}, 1, train<1, host, hd::optimizers::sgd>({.mesh = mesh}));
    compare<3, hd::optimizers::lion>({.mesh = mesh}, 1, train<3, host, hd::optimizers::lion>({.mesh = mesh}));
  }
}

TEST_CASE("rules on whole matrices step in checked memory with the bits of the host's", "[train][memory][optimizer]") {
  for (const char* mesh : {"", "dp=3,pp=2"}) {
    compare<1, hd::optimizers::muon>({.mesh = mesh}, 1, train<1, host, hd::optimizers::muon>({.mesh = mesh}));
    compare<3, hd::optimizers::adafactor>({.mesh = mesh}, 1, train<3, host, hd::optimizers::adafactor>({.mesh = mesh}));
  }
}

TEST_CASE("several stages on a rank, split backwards and replicas train on checked memory as on the host's",
          "[train][memory][ranks]") {
  // The embedding's rank has the head, too (its gradient is borrowed), or another has it (it travels); replicas.
  for (const char* schedule : {"interleaved", "zb-h1", "zb-v", "chimera"})
    compare<1, 2, 3>({.mesh = "dp=2,pp=2", .schedule = schedule, .microbatches = 4});
  compare<0>({.mesh = "pp=2", .schedule = "chimera", .microbatches = 4});
  // All stages on one rank: nothing makes the host wait for its queue but memory that is to be free.
  compare<1, 2, 3>({.mesh = "dp=2", .schedule = "interleaved", .microbatches = 4});
}

TEST_CASE("steps are taken back in checked memory with the bits of the host's", "[train][memory][post_validation]") {
  const auto most = [](const outcome& o) { return *std::max_element(o.taken_back.begin(), o.taken_back.end()); };
  for (setup s : {setup{.mesh = "pp=2", .schedule = "chimera"}, setup{.mesh = "dp=2,pp=2", .schedule = "zb-v"},
                  setup{.mesh = "pp=2,tp=2"}, setup{.mesh = "dp=2,pp=2", .schedule = "interleaved:2, OPTIM"}}) {
    s.microbatches = 4;
    setup plain = s;
    if (s.schedule[0] == 'i') plain.schedule = "interleaved";
    plain.clip = 1e9;
    plain.clip = s.clip = 0.9 * train<1, host>(plain).numbers[1];  // more than each rank's own share
    const outcome waits = train<1, host>(plain), ahead = train<1, host, hd::post_validation>(s);
    CHECK(most(ahead) >= 1);
    CHECK(compare<1, hd::post_validation>(s, 1, ahead).taken_back == ahead.taken_back);
    // From copies: those of who waits for the norm, bit for bit.
    CHECK(most(compare<3, hd::post_validation_with_copy>(s, 1, waits)) >= 1);
  }
}

TEST_CASE("activations that leave checked memory come back as they were", "[train][memory][offload]") {
  namespace act = hd::activations;
  using ahead = act::prefetch::ahead<2>;
  using to_memory = act::offload<act::memory_store, act::amount::all, ahead, act::min_bytes<0>>;
  using to_files = act::offload<act::file_store, act::amount::first<1>, ahead, act::min_bytes<0>>;
  const auto moved = [](const setup& s, const outcome& got, const outcome& keeps) {
    INFO("mesh '" << s.mesh << "', schedule " << s.schedule);
    CHECK(*std::max_element(got.most.begin(), got.most.end()) <
          *std::max_element(keeps.most.begin(), keeps.most.end()));
    std::int64_t stored = 0;
    for (const auto& r : got.reports) {  // a last stage's only layer stays
      stored += r.tensors.stored;
      CHECK(r.tensors.loaded + r.tensors.forwarded == r.tensors.stored);
      CHECK((r.peak_copied_bytes > 0) == (r.tensors.stored > 0));
    }
    CHECK(stored > 0);
  };
  for (const setup& s : {setup{.mesh = "", .microbatches = 1}, setup{.mesh = "dp=2,pp=2", .microbatches = 4},
                         setup{.mesh = "pp=2,tp=2", .schedule = "zb-v", .microbatches = 4}}) {
    const outcome expected = train<1, host>(s), keeps = train<1, checked>(s);
    moved(s, compare<1, to_memory>(s, 1, expected), keeps);
    moved(s, compare<1, act::recompute<act::every<2>, to_files>>(s, 1, expected), keeps);
  }
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
  continues(train<3, checked>(second));
  first.save_to = of_host.path.string();
  REQUIRE(train<1, host>(first).error == "");
  second.resume_from = first.save_to;
  continues(train<1, checked>(second));
  // Shares of weights are saved as shares, and read back as whole ones.
  const train_test::folder of_shares("shares");
  first.save_to = of_shares.path.string();
  REQUIRE(train<3, checked>(first).error == "");
  second.resume_from = first.save_to;
  continues(train<1, host>(second));
  continues(train<2, checked>(second));
}

TEST_CASE("what is not finite in checked memory is named as on the host", "[train][memory][nonfinite]") {
  setup s{.mesh = "dp=2,pp=2", .poison = "h.1.mlp.c_fc.weight"};
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    s.poison_value = value;
    const outcome expected = train<1, host>(s), got = train<1, checked>(s);
    INFO(expected.error);
    CHECK(expected.error.find("step 1 stopped") != std::string::npos);
    CHECK(got.error == expected.error);
    const outcome shared = train<3, checked>(s);  // another rank may have the share
    CHECK(shared.error.substr(0, shared.error.find(", rank")) ==
          expected.error.substr(0, expected.error.find(", rank")));
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

TEST_CASE("a step that throws while the host is ahead of its queue leaves the tokens there", "[train][memory]") {
  // The second microbatch has a token that is no word. By then the first one's tokens are queued to be copied.
  struct spoilt : samples {
    void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
      samples::fill_train(block, tokens, targets);
      if (block.first > 0) tokens[0] = words;
    }
  };
  std::string error;
  bool is_ahead = false;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(""), {}, [&](auto& world) {
    using strategy = hd::strategy<mesh_type, hd::zero<1, 1>, checked, hd::schedule::named>;
    using trainer_type = tr::trainer<hd::model::gpt2<double>, strategy, std::remove_reference_t<decltype(world)>>;
    tr::options<hd::model::gpt2_config> o;
    o.model = {.layers = 4, .heads = 4, .width = 8, .context = context, .vocabulary = words};
    o.batch = 7;
    o.microbatches = 2;
    o.schedule = "1f1b";
    o.threads_per_rank = 1;
    auto trainer = std::make_unique<trainer_type>(world, o);
    std::atomic<bool> thrown = false, passed = false;
    auto& queue = trainer->backend().queue();
    queue.wait();
    queue.run(
        [&] {  // what follows in the queue begins when the trainer is ending; it waits for no step that does not throw
          const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
          while (!thrown && std::chrono::steady_clock::now() < end) std::this_thread::yield();
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          passed = true;
        });
    try {
      trainer->step(spoilt{});
    } catch (const hd::config_error& e) {
      error = e.what();
      is_ahead = !passed;
    }
    thrown = true;
    trainer.reset();  // not in the handler: while an exception unwinds the stack a queue leaves out what has not begun
  });
  CHECK_THAT(error, Catch::Matchers::Contains("token"));
  CHECK(is_ahead);
}
