// Steps that are launched as graphs, by each rank or once for all ranks that share a device, have the bits of steps that the host gives operation by
// operation, over the stand-ins for CUDA and NCCL.
#include <heddle/comm/threads.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/captured_steps.hpp>
#include <heddle/train/optimizers/lion.hpp>
#include <heddle/train/optimizers/sgd.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../cuda/emulated_launcher.hpp"
#include "../train/random_tokens.hpp"
#include "catch.hpp"
#include "double.hpp"

namespace {

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<1>>;
constexpr int context = 6, words = 20;
// One sample may hold a token that the model does not have, or be one that cannot be read.
struct samples : train_test::random_tokens<context, words> {
  std::int64_t strange = -1, unreadable = -1;
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    random_tokens::fill_train(block, tokens, targets);
    const auto has = [&](std::int64_t sample) { return block.first <= sample && sample < block.first + block.count; };
    if (has(strange)) tokens[static_cast<std::size_t>((strange - block.first) * context())] = words;
    if (has(unreadable)) throw hd::io_error("sample " + std::to_string(unreadable) + " cannot be read");
  }
};

struct setup {
  std::string mesh;
  std::string schedule = "1f1b";
  int microbatches = 2;
  int layers = 2;
  int steps = 5;
  int validate_every = 0;
  std::int64_t poisoned_before = -1;  // of rank 0, the step before which a weight is no number
  samples data{};
  int devices = 1;        // for ranks that are threads, by turns
  bool asks = false;      // rank 0 what its memory is, after each step
  bool releases = false;  // all ranks what they keep, after the third step
  std::string fails =
      "";  // what is called behind each step, if "hook", or the next call of this function of CUDA's behind step `failing_after`, of rank `failing` or (-1) of all
  int failing = -1;
  std::int64_t failing_after = 0;
};
struct outcome {
  std::vector<double> numbers;  // of each step loss, norm and learning rate, and losses on held-out samples
  std::map<int, std::vector<double>> weights;  // of each rank behind the last step, with moments and masters
  std::map<std::string, int> calls;
  std::vector<int> graphs;  // that are there behind each step, as rank 0 sees it
  bool unchanged = true;    // by the step behind the one that was poisoned
  bool captured = false;    // a rank's queue, behind an error
  std::string error;
};

template <class Transport, class Model, class... Policies>
outcome train(const setup& s) {
  using strategy = hd::strategy<mesh_type, hd::schedule::named, emulated, Policies...>;
  hd::train::options<typename Model::config> o;
  o.model.layers = s.layers;
  o.model.heads = 2;
  o.model.width = 8;
  o.model.context = context;
  o.model.vocabulary = words;
  if constexpr (requires { o.model.kv_heads; }) o.model.kv_heads = 2, o.model.ffn = 12;
  if constexpr (requires { o.model.experts; })
    o.model.experts = 5, o.model.balance = 0.05, o.model.initial_deviation = 0.3;
  o.batch = 5;  // microbatches of two sizes
  o.microbatches = s.microbatches;
  o.schedule = s.schedule;
  o.steps = s.steps;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 2, .total_steps = 10};
  o.validate_every = s.validate_every;
  o.validation_samples = 4;
  o.threads_per_rank = 1;
  hd::launch_options launch;
  launch.timeout = std::chrono::milliseconds(20'000);
  outcome all;
  std::mutex guard;
  nccl_double::reset();
  try {
    hd::launch<Transport>(hd::parse_mesh<mesh_type>(s.mesh), launch, [&](auto& world) {
      const hd::detail::on_cuda_device mine(s.devices > 1 ? world.rank() % s.devices
                                                          : hd::detail::cuda_device_of_thread());
      hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
      const auto state = [&] {
        std::vector<double> numbers;
        const auto read = [&](auto row) {
          const auto here = hd::train::detail::read_of_stage(trainer.stage(0), row);
          numbers.insert(numbers.end(), here.elements().begin(), here.elements().end());
        };
        for (int k = 0; k < trainer.stages(); ++k) {
          auto& optimizer = trainer.optimizer_state(k);
          read(optimizer.weights_of(trainer.stage(k)));
          for (int m = 0; m < optimizer.moments; ++m) read(optimizer.moment(m));
          if constexpr (requires { optimizer.masters(); }) read(optimizer.masters());
        }
        return numbers;
      };
      std::string error;
      std::vector<double> before;
      try {
        trainer.run(
            s.data,
            [&](const hd::train::step_report& r) {
              const std::lock_guard lock(guard);
              if (world.rank() == 0)
                for (const double x : {r.loss, r.gradient_norm, r.learning_rate, r.validation_loss.value_or(0)})
                  all.numbers.push_back(x);
            },
            [&](auto& t) {
              if (world.rank() == 0) {
                auto calls = cuda_double::calls();
                all.graphs.push_back(calls["cudaGraphInstantiate"] - calls["cudaGraphExecDestroy"]);
              }
              if (s.asks && world.rank() == 0) static_cast<void>(t.parameter_memory().bytes());
              if (s.releases && t.steps_done() == 3) t.parameter_memory().release_kept();
              if (s.fails == "hook" && t.steps_done() == s.failing_after && s.failing == world.rank())
                throw hd::io_error("no room for the save");
              if (s.fails != "" && t.steps_done() == s.failing_after && (s.failing < 0 || s.failing == world.rank()))
                cuda_double::fail_next(s.fails, cudaErrorIllegalAddress);
              if (t.steps_done() != s.poisoned_before) return;
              if (world.rank() == 0) {
                using scalar = typename Model::scalar;
                const std::vector<scalar> bad{hd::converted<scalar>(std::numeric_limits<double>::quiet_NaN())};
                t.backend().queue().copy(bad, hd::part_of_row<hd::cuda_memory>(t.stage(0).weights(), 3, 1));
                t.backend().queue().wait();
              }
              before = state();
            });
      } catch (const hd::numeric_error& e) {
        error = e.what();
      } catch (const hd::error&) {
        const std::lock_guard lock(guard);
        all.captured = all.captured || cuda_double::is_captured(trainer.backend().queue().stream());
        throw;
      }
      auto& memory = trainer.parameter_memory();
      if (memory.peak_bytes() > memory.predicted_peak_bytes())
        error += "peak " + std::to_string(memory.peak_bytes()) + ", predicted " +
                 std::to_string(memory.predicted_peak_bytes());
      const std::vector<double> after = state();
      const std::lock_guard lock(guard);
      if (error != "") all.error = error;
      all.weights[world.rank()] = after;
      for (std::size_t i = 0; i < before.size(); ++i)
        all.unchanged = all.unchanged && (after[i] == before[i] || (after[i] != after[i] && before[i] != before[i]));
    });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  all.calls = nccl_double::calls();
  return all;
}

template <class Transport, class Model, class... Policies>
void check_same(const setup& s) {
  CAPTURE(s.mesh, s.schedule, s.microbatches);
  const outcome expected = train<Transport, Model, Policies...>(s);
  REQUIRE(expected.error == "");
  REQUIRE(expected.numbers.size() == 4 * static_cast<std::size_t>(s.steps));
  CHECK(expected.calls.count("cudaGraphLaunch") == 0);
  const outcome got = train<Transport, Model, hd::captured_steps, Policies...>(s);
  CHECK(got.error == "");
  CHECK(got.numbers == expected.numbers);
  CHECK(got.weights == expected.weights);
  const int ranks = hd::parse_mesh<mesh_type>(s.mesh).size();
  constexpr bool shared = std::is_same_v<Transport, hd::threads>;  // one graph for all
  const int graphs = shared ? 1 : ranks, together = shared && ranks > 1 ? ranks : 0;
  const bool again = s.validate_every > 0;
  CHECK(got.calls.at("cudaGraphLaunch") == graphs * (again ? s.steps / 2 : s.steps - 1 - (s.releases ? 1 : 0)));
  CHECK(got.calls.at("cudaGraphInstantiate") == graphs * (again ? s.steps / 2 : s.releases ? 2 : 1));
  static int counted = 0;  // of two of each kind
  if (again || s.releases || counted++ >= 2) return;
  // What one more step costs the host: a launch, and waiting for it. Of ranks that share a graph its launch waits for all their streams, which
  // wait for it.
  setup longer = s;
  longer.steps += 2;
  auto more = train<Transport, Model, hd::captured_steps, Policies...>(longer).calls;
  for (const auto& [name, n] : got.calls) more[name] -= n;
  for (const auto& [name, n] : more) {
    if (name == "ncclCommGetAsyncError" || name == "cudaStreamQuery") continue;  // as often as it takes
    if (s.devices > 1 && name == "cudaSetDevice")
      continue;  // as the rank that launches is on the leader's device or not
    const std::map<std::string, int> expected_calls{
        {"cudaGraphLaunch", graphs},
        {"cudaStreamSynchronize", shared ? ranks : 0},
        {"cudaEventCreateWithFlags", together > 0 ? together + 1 : 0},
        {"cudaEventRecord", together > 0 ? together + 1 : 0},
        {"cudaStreamWaitEvent", together > 0 ? 2 * (together - 1) : 0},
    };
    CAPTURE(name);
    const auto found = expected_calls.find(name);
    CHECK(n == 2 * (found == expected_calls.end() ? 0 : found->second));
  }
}

using gpt2 = hd::model::gpt2<double>;
using llama = hd::model::llama<hd::bf16>;
using recomputed = hd::activations::recompute<hd::activations::full>;

// A mixture whose experts lie on the ranks of tp, are chosen by biased scores in groups, and take so many rows each.
struct limited_experts
    : hd::model::described<
          limited_experts, double, hd::model::batch<double>, hd::model::mixtral_config,
          hd::sharding<hd::dim::split<hd::dim::samples, dp>, hd::dim::split<hd::dim::heads, tp>,
                       hd::dim::split<hd::dim::vocabulary, tp>, hd::dim::split<hd::dim::experts, tp>>> {
  static constexpr auto describe(const config& c) {
    using namespace hd::model::layers;
    using mixture = experts<grouped_scores<>, hd::compute::silu, capacity<>>;
    mixture some("block_sparse_moe", "gate", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
    some.balance = c.balance;
    return train_only<all_but_selection_bias>(describe_llama_with<grouped_attention<>, false>(c, some, no_adapter{}));
  }
};

// A rule of one's own, whose numbers depend on the step.
struct own_sum {
  using kind = hd::optimizer_kind;
  static constexpr const char* name = "own_sum";
  static constexpr int moments = 2;
  struct options {
    void validate() const {}
    friend std::string to_string(const options&) { return "none"; }
  };
  template <class T>
  struct scalars {
    T rate, decay;
  };
  template <class T>
  static scalars<T> at(const options&, double rate, std::int64_t step, bool decays) {
    return {static_cast<T>(rate / static_cast<double>(step)), static_cast<T>(decays ? 0.1 : 0)};
  }
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    m[0] += g;
    m[1] += g * g;
    w -= s.rate * (m[0] / (T(1e-2) + m[1]) + s.decay * w);
  }
};

}  // namespace

TEST_CASE("a step that one rank launches as a graph has the bits of an eager one", "[cuda][graph][train]") {
  check_same<hd::threads, gpt2>({""});
  check_same<hd::threads, hd::model::gpt2<float>, hd::zero<3>, hd::precision<hd::products_in<hd::bf16>>>(
      {"", "1f1b", 1});
  check_same<hd::threads, llama, hd::zero<3>, recomputed>({"", "1f1b", 3});
  check_same<hd::threads, gpt2>({.mesh = "", .steps = 6, .validate_every = 2});
}

TEST_CASE("a step of ranks that share a device is one graph for all, with the bits of an eager one",
          "[cuda][graph][train]") {
  const int before = cuda_double::open_resources();
  for (const setup& s : {setup{"dp=2"}, setup{"tp=2"}, setup{"pp=2", "1f1b", 4}, setup{"pp=2", "zb-h1"},
                         setup{.mesh = "dp=2", .steps = 6, .validate_every = 2}})
    check_same<hd::threads, gpt2>(s);
  check_same<hd::threads, hd::model::gpt2<float>, hd::zero<1>>({"dp=3"});
  check_same<hd::threads, hd::model::gpt2<float>, hd::zero<1>>({"dp=2,pp=2", "zb-h1"});
  check_same<hd::threads, hd::model::gpt2<float>, hd::zero<1>>({"pp=2", "chimera", 4, 3});
  check_same<hd::threads, hd::model::gpt2<float>, hd::zero<1>>({"dp=2,pp=2", "chimera", 2, 3});
  check_same<hd::threads, gpt2, hd::zero<2>>({"dp=2,tp=2"});
  check_same<hd::threads, gpt2, hd::zero<2>>({.mesh = "dp=2", .releases = true});
  check_same<hd::threads, gpt2, hd::zero<3>>({"dp=2,tp=2"});
  check_same<hd::threads, gpt2, hd::zero<3>>({"dp=2,pp=2", "interleaved", 2, 4});
  check_same<hd::threads, llama, hd::zero<3>, recomputed>({"dp=2,pp=2", "interleaved", 2, 4});
  // On two devices that reach each other's memory.
  check_same<hd::threads, hd::model::gpt2<float>, hd::zero<1>>({.mesh = "dp=2,pp=2", .devices = 2});
  check_same<hd::threads, gpt2, hd::zero<3>>({.mesh = "dp=2,tp=2", .devices = 2});
  CHECK(cuda_double::unreachable_arguments() == 0);
  CHECK(cuda_double::open_resources() == before);
}

TEST_CASE("steps that all ranks launch as graphs have the bits of eager ones over the stand-in for NCCL",
          "[nccl][cuda][graph][train]") {
  for (const setup& s : {setup{"dp=3"}, setup{"tp=2"}, setup{"pp=2", "1f1b", 4}, setup{"dp=2,pp=2", "zb-h1"},
                         setup{"pp=2,tp=2", "interleaved", 4, 4}, setup{"dp=2,pp=2", "chimera", 2, 3}})
    check_same<hd::nccl, gpt2, hd::zero<1>>(s);
  check_same<hd::nccl, hd::model::gpt2<float>, hd::zero<2>, hd::precision<hd::products_in<hd::float8>>>({"dp=2,pp=2"});
  check_same<hd::nccl, hd::model::gpt2<hd::bf16>, hd::zero<2>>({"dp=2,pp=2"});  // masters in float
  check_same<hd::nccl, hd::model::gpt2<hd::bf16>, hd::zero<2>>({"dp=2,pp=2", "interleaved", 2, 4});
  check_same<hd::nccl, gpt2, hd::zero<3>>({"dp=2,tp=2"});
  // Stages of several sizes on a rank, whose gradients and weights come and go.
  check_same<hd::nccl, gpt2, hd::zero<2>>({"dp=2,pp=2", "interleaved", 2, 4});
  check_same<hd::nccl, gpt2, hd::zero<3>>({"dp=2,pp=2", "interleaved", 2, 4});
  // Fewer held-out samples than ranks that could read them; one rank alone that asks for bytes; memory that is given back.
  check_same<hd::nccl, gpt2, hd::zero<1>>({.mesh = "dp=3", .steps = 6, .validate_every = 2});
  check_same<hd::nccl, gpt2, hd::zero<2>>({.mesh = "dp=2", .asks = true});
  check_same<hd::nccl, gpt2, hd::zero<2>>({.mesh = "dp=2", .releases = true});
  CHECK(nccl_double::open_resources() == 0);
}

TEST_CASE("captured steps of other rules than AdamW have the bits of eager ones",
          "[nccl][cuda][graph][train][optimizer]") {
  using namespace hd::optimizers;
  for (const char* mesh : {"", "dp=2,tp=2"}) check_same<hd::threads, hd::model::gpt2<float>, lion, hd::zero<3>>({mesh});
  check_same<hd::nccl, gpt2, sgd, hd::zero<1>>({"dp=2,pp=2"});
  check_same<hd::nccl, hd::model::gpt2<hd::bf16>, lion, hd::zero<2>>({"dp=2,pp=2"});  // masters in float
  check_same<hd::nccl, gpt2, own_sum>({"dp=3"});
  // What is not finite changes nothing.
  const setup s{.mesh = "dp=2", .poisoned_before = 3};
  const outcome expected = train<hd::nccl, gpt2, own_sum>(s),
                got = train<hd::nccl, gpt2, own_sum, hd::captured_steps>(s);
  CHECK(got.error.find("not finite") != std::string::npos);
  CHECK(got.error == expected.error);
  CHECK(got.unchanged);
  CHECK(nccl_double::open_resources() == 0);
}

TEST_CASE("a captured step of a mixture of experts has the bits of an eager one where no rows travel",
          "[nccl][cuda][graph][train][experts]") {
  using mixtral = hd::model::mixtral<double>;  // hidden units of experts are split over tp
  for (const char* mesh : {"", "dp=2", "tp=2", "dp=2,tp=2"}) check_same<hd::threads, mixtral>({mesh});
  for (const char* mesh : {"dp=2", "tp=3"}) check_same<hd::nccl, limited_experts, hd::zero<1>>({mesh});
  check_same<hd::nccl, hd::model::mixtral<hd::bf16>, hd::zero<2>>({"dp=2,tp=2"});
  CHECK(nccl_double::open_resources() == 0);
}

TEST_CASE("the graph of a step goes before a step that is done eagerly, with its memory", "[cuda][graph][train]") {
  for (const char* mesh : {"", "dp=2"}) {
    CAPTURE(mesh);
    const outcome got = train<hd::threads, gpt2, hd::captured_steps>({.mesh = mesh, .steps = 6, .validate_every = 2});
    CHECK(got.error == "");
    CHECK(got.graphs == std::vector<int>{0, 1, 0, 1, 0, 1});
  }
  // Without validation it stays until the trainer ends.
  CHECK(train<hd::threads, gpt2, hd::captured_steps>({.mesh = "", .steps = 4}).graphs == std::vector<int>{0, 1, 1, 1});
}

TEST_CASE("a captured step whose loss is not finite is an error, and changes nothing", "[nccl][cuda][graph][train]") {
  for (const std::int64_t before : {1, 3}) {  // the step that is captured, and one that is launched again
    const setup s{.mesh = "dp=2", .poisoned_before = before};
    const outcome expected = train<hd::nccl, gpt2>(s), got = train<hd::nccl, gpt2, hd::captured_steps>(s);
    CHECK(got.error.find("not finite") != std::string::npos);
    CHECK(got.error == expected.error);
    CHECK(got.unchanged);
    CHECK(got.numbers == expected.numbers);
  }
}

TEST_CASE("samples of a captured step are checked as those of an eager one, and a rank that fails ends the others",
          "[nccl][cuda][graph][train]") {
  const auto check = []<class Transport>(Transport) {
    for (const std::int64_t sample : {11, 17}) {  // of five a step: in the third and in the fourth, on one of two ranks
      setup s{.mesh = "dp=2", .data = {{}, sample}};
      CHECK(train<Transport, gpt2, hd::captured_steps>(s).error.find(
                "tokens hold the id 20, outside the vocabulary of 20") != std::string::npos);
      s.data = {{}, -1, sample};
      CHECK(train<Transport, gpt2, hd::captured_steps>(s).error.find("sample " + std::to_string(sample) +
                                                                     " cannot be read") != std::string::npos);
      nccl_double::reset();
    }
  };
  check(hd::nccl{});
  check(hd::threads{});
}

TEST_CASE("a rank that fails in an eager step over the stand-in for NCCL ends the others, which wait for their streams",
          "[nccl][cuda][train]") {
  const auto error_of = [](const setup& s) {
    const std::string error = train<hd::nccl, gpt2, hd::zero<1>>(s).error;
    nccl_double::reset();
    cuda_double::reset();
    return error;
  };
  // A sample of the third step that one of two ranks reads; a copy of the next forward; work between two steps, as a save.
  CHECK_THAT(error_of({.mesh = "dp=2", .data = {{}, -1, 11}}), Catch::Contains("sample 11 cannot be read"));
  for (const char* mesh : {"dp=2", "tp=2", "pp=2"})
    for (const int rank : {0, 1}) {
      CAPTURE(mesh, rank);
      CHECK_THAT(error_of({.mesh = mesh, .fails = "cudaMemcpyAsync", .failing = rank, .failing_after = 1}),
                 Catch::Contains("rank " + std::to_string(rank) + ": heddle: cudaMemcpyAsync"));
      CHECK_THAT(error_of({.mesh = mesh, .fails = "hook", .failing = rank, .failing_after = 2}),
                 Catch::Contains("rank " + std::to_string(rank) + ": no room for the save"));
    }
}

TEST_CASE(
    "a rank that fails while all are captured, or as the graph is launched, ends the others, and no queue is captured",
    "[cuda][graph][train]") {
  int before = cuda_double::open_resources();
  for (const char* mesh : {"dp=2", "dp=2,pp=2"})
    for (const auto& [function, rank, after] :
         {std::tuple{"cudaMemcpyAsync", 1, 1}, std::tuple{"cudaMemcpyAsync", 0, 1},
          std::tuple{"cudaStreamWaitEvent", 1, 1}, std::tuple{"cudaEventRecord", 1, 1},
          std::tuple{"cudaMemsetAsync", 1, 1}, std::tuple{"cudaStreamBeginCapture", 0, 1},
          std::tuple{"cudaGraphInstantiate", 0, 1}, std::tuple{"cudaGraphLaunch", -1, 2}}) {
      CAPTURE(mesh, function, rank);
      const outcome got = train<hd::threads, gpt2, hd::captured_steps>(
          {.mesh = mesh, .fails = function, .failing = rank, .failing_after = after});
      CHECK_THAT(got.error, Catch::Contains(function));
      CHECK_FALSE(got.captured);
      CHECK(got.numbers.size() == 4 * static_cast<std::size_t>(after));
      cuda_double::reset();
      // Nobody waits while an exception is on its way, so that the five pinned buffers of a rank may stay the process's.
      CHECK(cuda_double::open_resources() <= before + 5 * hd::parse_mesh<mesh_type>(mesh).size());
      before = cuda_double::open_resources();
    }
}

TEST_CASE("captured steps are refused where calls wait, and where rounded weights come and go",
          "[nccl][cuda][graph][train]") {
  CHECK(train<hd::nccl_complete, gpt2, hd::captured_steps>({"dp=2"}).error.find(
            "heddle: captured_steps: each call of this transport waits until it is complete") != std::string::npos);
  using rounded = hd::precision<hd::products_in<hd::bf16>>;
  CHECK(train<hd::nccl, hd::model::gpt2<float>, hd::captured_steps, hd::zero<3>, rounded>(
            {"dp=2,pp=2", "interleaved", 2, 4})
            .error.find("heddle: captured_steps: with zero<3> and precision<products_in<bf16>> the stages of a rank") !=
        std::string::npos);
  nccl_double::reset();
}
