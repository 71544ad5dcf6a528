// A GPT-2 trains over the stand-in for NCCL as over threads, and NCCL is given tensors only.
#include <heddle/comm/nccl.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/sampling.hpp>
#include <heddle/train/trainer.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "../../train/random_tokens.hpp"
#include "catch.hpp"
#include "double.hpp"

namespace {

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
constexpr int context = 6, words = 20, steps = 3;
using checked = hd::testing::checked_backend<hd::compute::host<>>;
using samples = train_test::random_tokens<context, words>;

struct setup {
  std::string mesh;
  int microbatches = 2;
  std::string schedule = "1f1b";
  int layers = 2, width = 8;
  bool poisoned = false;
};

struct outcome {
  std::vector<double> numbers;  // loss and norm of each step, then the loss on held-out samples
  std::vector<std::int32_t> text;
  std::int64_t host_bytes = 0;  // copied between device and host in all steps but the first, by all ranks
  std::string error;
};

template <class Transport, class... Policies>
outcome train(const setup& s) {
  constexpr bool on_device = (std::is_same_v<Policies, checked> || ...);
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = s.layers, .heads = 2, .width = s.width, .context = context, .vocabulary = words};
  o.batch = 4;
  o.microbatches = s.microbatches;
  o.schedule = s.schedule;
  o.steps = steps;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(20'000);
  outcome all;
  std::atomic<std::int64_t> host_bytes = 0;
  try {
    hd::launch<Transport>(mesh, launch, [&](auto& world) {
      hd::train::trainer<hd::model::gpt2<double>,
                         hd::strategy<mesh_type, hd::zero<1>, hd::schedule::named, Policies...>,
                         std::remove_reference_t<decltype(world)>>
          trainer(world, o);
      if constexpr (on_device) {
        // The stand-in's devices are those of a thread: communicators connect on the rank's own, before the queue's uses them.
        for (auto* group : {&trainer.dp_group(), &trainer.tp_group()}) group->native();
      } else if (s.poisoned && world.rank() == world.size() - 1) {
        trainer.stage().weights()[0] = std::numeric_limits<double>::quiet_NaN();
      }
      const auto note = [&](double x) {
        if (world.rank() == 0) all.numbers.push_back(x);
      };
      trainer.run(samples{}, [&](const hd::train::step_report& report) {
        note(report.loss);
        note(report.gradient_norm);
        if constexpr (on_device) {
          const std::int64_t so_far = trainer.backend().queue().bytes_copied_with_host();
          if (report.step == 0) host_bytes -= so_far;
          if (report.step + 1 == steps) host_bytes += so_far;
        }
      });
      note(trainer.validate(samples{}));
      const std::vector<std::int32_t> prompt{1, 2, 3};
      const auto text = hd::train::sample(trainer, prompt, {.tokens = 4, .temperature = 0.8, .seed = 5});
      if (world.rank() == 0) all.text = text;
    });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  all.host_bytes = host_bytes;
  return all;
}

double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

}  // namespace

namespace {

// Tensors are of doubles, the smallest with a number per row. What splits communicators is the transport's own.
void check_transfers() {
  int splits = 0, tensors = 0;
  std::map<std::string, int> others;
  for (const auto& t : nccl_double::transfers()) {
    if (t.function == "ncclAllGather" && t.type == ncclInt64 && t.count == 2)
      ++splits;
    else if (t.type == ncclFloat64 && t.count >= context)
      ++tensors;
    else
      ++others[t.function + " of " + std::to_string(t.count) + " of type " + std::to_string(t.type)];
  }
  for (const auto& [what, n] : others) {
    INFO(n << " times " << what);
    CHECK(false);
  }
  CHECK(tensors > 0);
  CHECK(splits == nccl_double::calls()["ncclCommSplit"]);
  CHECK(nccl_double::open_communicators() == 0);
  CHECK(nccl_double::open_resources() == 0);
}

}  // namespace

TEST_CASE("a GPT-2 trains over the stand-in for NCCL as over threads; its scalars pass NCCL by", "[nccl][train]") {
  for (const char* mesh : {"dp=2", "tp=2", "pp=2", "dp=2,tp=2", "dp=2,pp=2", "dp=2,pp=2,tp=2"}) {
    for (const int m : {1, 2}) {
      CAPTURE(mesh, m);
      const outcome expected = train<hd::threads>({mesh, m});
      REQUIRE(expected.error == "");
      REQUIRE(expected.numbers.size() == 2 * steps + 1);
      nccl_double::reset();
      const outcome got = train<hd::nccl_complete>({mesh, m});
      CHECK(got.error == "");
      CHECK(largest_relative(got.numbers, expected.numbers) < 1e-12);
      CHECK(got.text == expected.text);
      check_transfers();
      nccl_double::reset();
      const outcome ahead = train<hd::nccl_complete, hd::post_validation>({mesh, m});
      CHECK(ahead.error == "");
      CHECK(largest_relative(ahead.numbers, expected.numbers) < 1e-9);  // steps are taken back and done again
      check_transfers();
    }
  }
  nccl_double::reset();
}

TEST_CASE("a GPT-2 in memory that the host may not touch trains over the stand-in for NCCL with the bits of the host's",
          "[nccl][train][memory]") {
  for (const setup& s :
       {setup{"dp=2"}, setup{"tp=2"}, setup{"dp=3,tp=2"}, setup{"pp=2", 1}, setup{"pp=2", 4}, setup{"pp=2,tp=2", 4},
        setup{"dp=2,pp=2", 2, "zb-h1"}, setup{"pp=3", 4, "1f1b", 5}, setup{"pp=3", 4, "zb-h1", 3},
        setup{"pp=2,tp=2", 4, "interleaved", 4}, setup{"pp=2", 4, "zb-v", 4}, setup{"dp=2,pp=2", 2, "chimera", 3}}) {
    CAPTURE(s.mesh, s.schedule, s.microbatches, s.layers);
    const outcome expected = train<hd::nccl_complete>(s);
    REQUIRE(expected.error == "");
    nccl_double::reset();
    const outcome got = train<hd::nccl_complete, checked>(s);
    CHECK(got.error == "");
    CHECK(got.numbers == expected.numbers);
    CHECK(got.text == expected.text);
    check_transfers();
    nccl_double::reset();
  }
}

// What a step copies between device and host are samples, losses and norms: none of it grows with the width of the model, as
// the tensors between stages and gradients do.
TEST_CASE("neither tensors between stages nor gradients go through the host over the stand-in for NCCL",
          "[nccl][train][memory]") {
  for (const setup& s : {setup{"pp=2", 4, "1f1b"}, setup{"dp=2,pp=2", 2, "chimera", 3}}) {
    CAPTURE(s.mesh, s.schedule);
    setup wide = s;
    wide.width *= 2;
    const outcome narrow = train<hd::nccl_complete, checked>(s), twice = train<hd::nccl_complete, checked>(wide);
    CHECK(narrow.error == "");
    CHECK(twice.error == "");
    CHECK(narrow.host_bytes > 0);
    CHECK(narrow.host_bytes == twice.host_bytes);
    CHECK(narrow.numbers != twice.numbers);
  }
  nccl_double::reset();
}

TEST_CASE("ranks over the stand-in for NCCL agree where a NaN came from, on the control plane", "[nccl][train]") {
  const outcome expected = train<hd::threads>({.mesh = "dp=2,tp=2", .microbatches = 1, .poisoned = true});
  nccl_double::reset();
  const outcome got = train<hd::nccl_complete>({.mesh = "dp=2,tp=2", .microbatches = 1, .poisoned = true});
  INFO(got.error);
  CHECK(got.error.find("was not finite before the step, rank 3") != std::string::npos);
  CHECK(got.error.substr(got.error.find("heddle")) == expected.error.substr(expected.error.find("heddle")));
  check_transfers();
  nccl_double::reset();
}
