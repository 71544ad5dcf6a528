// A GPT-2, a Llama and a Mixtral whose activations are bf16 on the bodies of the CUDA backend's kernels, over the stand-in for CUDA, against the same on the host.
#include "emulated_launcher.hpp"
#include "train/random_tokens.hpp"

#include "catch.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/train/memory_forecast.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<1>>;
using mixed = hd::precision<hd::masters_in<float>, hd::moments_in<float>>;
constexpr int context = 6, words = 21, steps = 4;

struct outcome {
  std::vector<double> losses;
  std::int64_t predicted = 0, held = 0;  // bytes of all ranks together
};

template <class Model, class Zero, class Backend>
outcome train(const std::string& mesh) {
  hd::train::options<typename Model::config> o;
  o.model.layers = 2;
  o.model.heads = 2;
  o.model.width = 16;
  o.model.context = context;
  o.model.vocabulary = words;
  if constexpr (requires { o.model.kv_heads; }) o.model.kv_heads = 1, o.model.ffn = 24;
  if constexpr (requires { o.model.experts; }) o.model.experts = 4, o.model.balance = 0.01;
  o.batch = 4;
  o.microbatches = 2;
  o.steps = steps;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  outcome all;
  std::mutex guard;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), [&](auto& world) {
    using strategy = hd::strategy<mesh_type, Zero, mixed, Backend>;
    hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    trainer.run(train_test::random_tokens<context, words>{}, [&](const hd::train::step_report& report) {
      if (world.rank() == 0) all.losses.push_back(report.loss);
    });
    const auto predicted = hd::train::predicted_memory(trainer);
    const std::lock_guard lock(guard);
    all.predicted += predicted ? predicted->total() : -1;
    all.held +=
        trainer.parameter_memory().bytes().total() + trainer.activation_bytes().total() + trainer.boundary_bytes();
  });
  return all;
}

// What one step gives the stream of a device.
struct step_work {
  int kernels = 0, products = 0, ended = 0, copies = 0, fills = 0, waits = 0;
  friend step_work operator-(const step_work& a, const step_work& b) {
    return {a.kernels - b.kernels, a.products - b.products, a.ended - b.ended,
            a.copies - b.copies,   a.fills - b.fills,       a.waits - b.waits};
  }
  friend bool operator==(const step_work&, const step_work&) = default;
  friend std::ostream& operator<<(std::ostream& to, const step_work& w) {
    return to << w.kernels << " kernels, of these " << w.products << " products, " << w.ended << " with an end; "
              << w.copies << " copies, " << w.fills << " fills, " << w.waits << " waits";
  }
};
step_work work_so_far() {
  auto calls = cuda_double::calls();
  step_work w{cuda_double::kernels(),   cuda_double::products_made(), 0,
              calls["cudaMemcpyAsync"], calls["cudaMemsetAsync"],     calls["cudaStreamSynchronize"]};
  for (const auto& n : cuda_double::ended_products()) w.ended += n;
  return w;
}
step_work work_of_step(int layers) {
  hd::train::options<hd::model::gpt2_config> o;
  constexpr int length = 16, vocabulary = 24;
  o.model = {.layers = layers, .heads = 1, .width = 64, .context = length, .vocabulary = vocabulary};
  o.batch = 8;  // 128 rows, as many as sums over rows take two parts of
  o.microbatches = 1;
  o.steps = 3;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  std::vector<step_work> after;
  using alone = hd::mesh<hd::axis<hd::dp>>;
  hd::launch<hd::threads>(alone{1}, [&](auto& world) {
    using strategy = hd::strategy<alone, emulated>;
    hd::train::trainer<hd::model::gpt2<hd::bf16>, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    trainer.run(train_test::random_tokens<length, vocabulary>{},
                [&](const hd::train::step_report&) { after.push_back(work_so_far()); });
  });
  return after.at(2) - after.at(1);
}

}  // namespace

TEMPLATE_TEST_CASE("a model in bf16 trains on the CUDA backend as on the host, with shares of its weights, too",
                   "[cuda][train][bf16]", hd::model::gpt2<hd::bf16>, hd::model::llama<hd::bf16>,
                   hd::model::mixtral<hd::bf16>) {
  using hd::zero;
  using hd::compute::host;
  for (const char* mesh : {"", "dp=2", "pp=2", "tp=2"}) {
    CAPTURE(mesh);
    const outcome expected = train<TestType, zero<1>, host<>>(mesh), got = train<TestType, zero<1>, emulated>(mesh);
    REQUIRE(got.losses.size() == steps);
    REQUIRE(expected.losses.size() == steps);
    double worst = 0;
    for (std::size_t i = 0; i < got.losses.size(); ++i)
      worst = (std::max)(worst, std::abs(got.losses[i] - expected.losses[i]) / expected.losses[i]);
    CHECK(worst < 2e-3);  // steps that change nothing are 1.4e-2 apart
    CHECK(got.held == got.predicted);
    if (std::string(mesh) != "dp=2") continue;
    const auto check = [&](const outcome& shares) {
      CHECK(shares.losses == got.losses);
      CHECK(shares.held == shares.predicted);
    };
    check(train<TestType, zero<3>, emulated>(mesh));
    if constexpr (std::is_same_v<TestType, hd::model::gpt2<hd::bf16>>) check(train<TestType, zero<2>, emulated>(mesh));
  }
}

// The bounds of docs/benchmarks/gpu.md are counted from these: whoever adds a pass over activations sees it here.
TEST_CASE("a step of a GPT-2 in bf16 has as many kernels, copies and waits as the ledger says", "[cuda][train][bf16]") {
  const step_work two = work_of_step(2), three = work_of_step(3);
  // Forward: 4 products, 2 norms, 2 sums, attention. Backward: 8 products, 2 norms, 3 kernels of attention; of 4 biases and 2 norms 8 sums. 8 of AdamW.
  const step_work layer{.kernels = 38, .products = 12, .ended = 9, .fills = 7};
  CHECK(three - two == layer);
  // Gradients set to zero, both embeddings, the head with its norm and loss, the gradients of all of them, the norm of gradients, AdamW; inputs, targets,
  // the loss and the norm are copied, and waited for are these two. A room that a kernel takes from the launcher is filled with zeros: of a layer
  // 3 of sums of columns and attention, 4 of products with sums of columns; of the rest two of sorted tokens, one of the loss and one of the norm.
  CHECK(two - layer - layer ==
        step_work{.kernels = 25, .products = 3, .ended = 0, .copies = 5, .fills = 8, .waits = 2});
}
