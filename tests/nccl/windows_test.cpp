// What trainers sum and gather lies in windows where the transport asks for it, under every stage of ZeRO, over the stand-ins for CUDA and NCCL.
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/captured_steps.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/trainer.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../cuda/emulated_launcher.hpp"
#include "../train/random_tokens.hpp"
#include "catch.hpp"
#include "double.hpp"
#include "small_mixtral.hpp"

namespace {

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<1>>;
using in_windows = hd::basic_nccl<hd::nccl_settings{.windows = true}>;
constexpr int context = 6, words = 20, steps = 4;
using samples = train_test::random_tokens<context, words>;

struct setup {
  std::string mesh;
  std::string schedule = "1f1b";
  int layers = 2, microbatches = 2, experts = 4;
  bool whole_first = false;  // weights before the first step
};
template <class Config>
Config config_of(const setup& s) {
  if constexpr (std::is_same_v<Config, hd::model::mixtral_config>)
    return nccl_test::small_mixtral(s.layers, context, words, s.experts);
  else
    return {.layers = s.layers, .heads = 2, .width = 8, .context = context, .vocabulary = words};
}
struct outcome {
  std::vector<double> numbers;                 // of each step loss and norm, then the loss on held-out samples
  std::map<int, std::vector<double>> weights;  // of each rank
  std::int64_t stages = 0;                     // of all ranks
  bool as_predicted = true;
  std::string error;
};

template <class Transport, class Model, class... Policies>
outcome train(const setup& s) {
  using strategy = hd::strategy<mesh_type, hd::schedule::named, emulated, Policies...>;
  hd::train::options<typename Model::config> o;
  o.model = config_of<typename Model::config>(s);
  o.batch = 6;
  o.microbatches = s.microbatches;
  o.schedule = s.schedule;
  o.steps = steps;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(20'000);
  outcome all;
  std::mutex guard;
  nccl_double::reset();
  try {
    hd::launch<Transport>(hd::parse_mesh<mesh_type>(s.mesh), launch, [&](auto& world) {
      hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
      if (s.whole_first) trainer.parameter_memory().with_weights([] {});
      trainer.run(samples{}, [&](const hd::train::step_report& r) {
        if (world.rank() == 0) all.numbers.insert(all.numbers.end(), {r.loss, r.gradient_norm});
      });
      const double held_out = trainer.validate(samples{});
      if (world.rank() == 0) all.numbers.push_back(held_out);
      const auto held = trainer.parameter_memory().bytes();
      const std::int64_t lent = held.lent + held.kept;
      trainer.parameter_memory().release_kept();  // windows stay
      auto& memory = trainer.parameter_memory();
      const auto forecast = hd::train::predicted_memory(trainer);
      const bool predicted = memory.peak_bytes() <= memory.predicted_peak_bytes() && forecast->parameters.lent == lent;
      std::vector<double> mine;
      for (int k = 0; k < trainer.stages(); ++k) {
        const auto keep = [&](auto& bucket, auto& optimizer, auto) {
          const auto here = hd::train::detail::read_of_stage(bucket, optimizer.weights_of(bucket));
          for (const auto x : here.elements()) mine.push_back(static_cast<double>(x));
        };
        hd::train::detail::for_each_bucket(trainer.stage(k), trainer.optimizer_state(k), keep);
      }
      const std::lock_guard lock(guard);
      all.weights[world.rank()] = mine;
      all.stages += trainer.stages();
      all.as_predicted = all.as_predicted && predicted;
    });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  return all;
}

// How many collectives of gradients and weights there were, and how many of them had everything in windows.
struct seen {
  int all = 0, inside = 0;
};
std::map<std::string, seen> shares(ncclDataType_t type) {
  std::map<std::string, seen> found;
  for (const auto& t : nccl_double::transfers()) {
    if (t.type != type || t.count < context) continue;
    seen& of = found[t.function];
    ++of.all;
    of.inside += t.in_windows;
  }
  return found;
}

template <class Model, class Zero, class... Policies>
void check_windows(const setup& s, ncclDataType_t gradients, ncclDataType_t weights) {
  CAPTURE(s.mesh, s.schedule, Zero::stage);
  const int before = nccl_double::open_resources();
  const outcome expected = train<hd::nccl, Model, Zero, Policies...>(s);
  REQUIRE(expected.error == "");
  CHECK(nccl_double::calls().count("ncclCommWindowRegister") == 0);
  const outcome got = train<in_windows, Model, Zero, Policies...>(s);
  CHECK(got.error == "");
  CHECK(got.numbers == expected.numbers);
  CHECK(got.weights == expected.weights);
  CHECK(got.as_predicted);
  auto sums = shares(gradients), gathers = shares(weights);
  const auto check_inside = [&](const seen& one_call, const seen& of_group) {
    // A captured step is given to NCCL twice: eagerly, and when it is captured.
    constexpr int given = (std::is_same_v<Policies, hd::captured_steps> || ...) ? 2 : steps;
    CHECK(one_call.all + of_group.all >= given * got.stages);
    CHECK(one_call.inside == one_call.all);
    CHECK(of_group.inside == of_group.all);
    CHECK((one_call.all > 0) == (s.mesh != "dp=3"));  // whose shares of 1096 elements are not equal
  };
  check_inside(sums["ncclReduceScatter"], sums["ncclReduce"]);
  check_inside(gathers["ncclAllGather"], gathers["ncclBroadcast"]);
  // One window for a stage's weights (and gradients, under zero<1>), one for its shares, and one for all that is lent to a rank's stages.
  const auto ranks = static_cast<std::int64_t>(got.weights.size());
  constexpr bool two_types = !std::is_same_v<typename Model::scalar, hd::sum_of_type<typename Model::scalar>>;
  const std::int64_t windows = Zero::stage == 1   ? got.stages
                               : Zero::stage == 2 ? 2 * got.stages + ranks
                                                  : got.stages + (two_types ? 2 : 1) * ranks;
  auto calls = nccl_double::calls();
  CHECK(calls["ncclCommWindowRegister"] == windows);
  CHECK(calls["ncclCommWindowDeregister"] == windows);
  CHECK(calls["ncclMemAlloc"] == windows);
  CHECK(nccl_double::open_communicators() == 0);
  CHECK(nccl_double::open_resources() == before);
  nccl_double::reset();
}

}  // namespace

TEST_CASE("lent buffers are parts of memory that somebody gave while there is room", "[cuda][train][memory]") {
  nccl_double::reset();
  const int before = cuda_double::open_resources();
  {
    using memory = hd::train::buffer_pool<double, hd::cuda_memory>;
    hd::cuda_memory::queue queue;
    hd::buffer<double, hd::cuda_memory> given(queue, 128, "parts");
    {
      memory lent;
      lent.set_limit(8 * 100);
      lent.lie_in(given.address(), 128);
      auto a = lent.take(queue, 33, memory::contents::any, "a"), b = lent.take(queue, 40, memory::contents::zeros, "b");
      CHECK(a.address() == given.address());
      CHECK(b.address() == given.address() + 64);  // in units of 256 bytes
      CHECK(lent.lent_bytes() == 8 * 73);
      auto c = lent.take(queue, 20, memory::contents::any, "c");  // behind b there are 0
      CHECK((c.address() < given.address() || c.address() >= given.address() + 128));
      lent.give_back(std::move(c));
      lent.give_back(std::move(a));
      lent.release_kept();  // c alone
      CHECK(lent.kept_bytes() == 8 * 33);
      a = lent.take(queue, 33, memory::contents::zeros, "a");
      CHECK(a.address() == given.address());
      lent.give_back(std::move(a));
      lent.give_back(std::move(b));
      CHECK(lent.kept_bytes() == 8 * 73);
      b = lent.take(queue, 40, memory::contents::any, "b");
      lent.parts_anew();  // b is lent
      CHECK(lent.kept_bytes() == 8 * 33);
      lent.give_back(std::move(b));
      lent.parts_anew();
      CHECK(lent.kept_bytes() == 0);
      a = lent.take(queue, 100, memory::contents::any, "all");
      CHECK(a.address() == given.address());
      lent.give_back(std::move(a));
    }
    queue.wait();
  }
  CHECK(cuda_double::open_resources() == before);
}

TEST_CASE("what ZeRO sums and gathers lies in windows where the transport asks for it, with the same bits",
          "[nccl][cuda][train][memory]") {
  using gpt2 = hd::model::gpt2<double>;
  for (const setup& s : {setup{"dp=2"}, setup{"dp=3", "1f1b", 1}, setup{"dp=2,pp=2", "zb-v", 4, 2},
                         setup{"dp=2,pp=2", "interleaved", 4, 2}, setup{"dp=2,tp=2"}}) {
    check_windows<gpt2, hd::zero<1>>(s, ncclFloat64, ncclFloat64);
    check_windows<gpt2, hd::zero<2>>(s, ncclFloat64, ncclFloat64);
    check_windows<gpt2, hd::zero<3>>(s, ncclFloat64, ncclFloat64);
  }
}

TEST_CASE("weights may be whole before the first step where they lie in windows", "[nccl][cuda][train][memory]") {
  using gpt2 = hd::model::gpt2<double>;
  const setup s{.mesh = "dp=2,pp=2", .schedule = "interleaved", .layers = 5, .microbatches = 2, .whole_first = true};
  check_windows<gpt2, hd::zero<3>>(s, ncclFloat64, ncclFloat64);
}

TEST_CASE("weights of bf16 and their gradients of float lie in windows of their own", "[nccl][cuda][train][memory]") {
  check_windows<hd::model::gpt2<hd::bf16>, hd::zero<3>>({"dp=2,pp=2", "interleaved", 4, 2}, ncclFloat32, ncclBfloat16);
}

TEST_CASE("captured steps have what ZeRO sums and gathers in windows, too", "[nccl][cuda][graph][train][memory]") {
  check_windows<hd::model::gpt2<double>, hd::zero<3>, hd::captured_steps>({"dp=2,pp=2", "interleaved", 4, 2},
                                                                          ncclFloat64, ncclFloat64);
}

TEST_CASE("stages that hold different numbers of elements on the ranks of a window have none, and the same bits",
          "[nccl][cuda][train][memory][experts]") {
  namespace dim = hd::dim;
  using model = hd::model::mixtral<double, hd::sharding<dim::split<dim::samples, dp>, dim::split<dim::experts, dp>>>;
  const auto check = [&]<class Zero>(int experts, int windows) {
    CAPTURE(Zero::stage, experts);
    const setup s{.mesh = "dp=2", .experts = experts};
    const int before = nccl_double::open_resources();
    const outcome expected = train<hd::nccl, model, Zero>(s), got = train<in_windows, model, Zero>(s);
    CHECK(expected.error == "");
    CHECK(got.error == "");
    CHECK(got.numbers == expected.numbers);
    CHECK(got.weights == expected.weights);
    CHECK(got.as_predicted);
    CHECK(nccl_double::calls()["ncclCommWindowRegister"] == windows);
    CHECK(nccl_double::open_resources() == before);
    nccl_double::reset();
  };
  // Two ranks: a window each for gradients and weights, or for shares and for what is lent. Five experts are three and two.
  check.template operator()<hd::zero<1>>(4, 2);
  check.template operator()<hd::zero<1>>(5, 0);
  check.template operator()<hd::zero<3>>(4, 4);
  check.template operator()<hd::zero<3>>(5, 2);
}
