// tests/train/context_golden_test.cpp: documents whose tokens ranks share train the Llama that transformers trains document by document.
#include "document_training.hpp"

#include "model/golden_file.hpp"

#include <heddle/model/llama.hpp>

#include <map>
#include <mutex>

using namespace document_training;

namespace {

namespace md = heddle::model;
using model = md::llama<float, md::megatron_context<>>;

struct result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
};
result train(const model_test::golden_file& golden, const std::string& mesh_text, const std::string& context, std::int64_t rows) {
  const auto n = golden.ids("config");
  const auto& rotary = golden.values("rotary");
  const auto& adam = golden.values("optimizer");
  hd::train::options<md::llama_config> o;
  o.model = {.layers = n[0], .heads = n[1], .kv_heads = n[2], .width = n[3], .ffn = n[4], .context = n[5],
             .vocabulary = n[6], .theta = rotary[0], .epsilon = rotary[1]};
  o.batch = 7;
  o.steps = 2;
  o.learning_rate = {.peak = adam[0], .minimum = adam[0], .warmup_steps = 0};
  o.adamw = {.beta1 = adam[1], .beta2 = adam[2], .epsilon = adam[3], .weight_decay = adam[4]};
  o.clip_norm = adam[5];
  o.threads_per_rank = 1;
  o.rows_per_rank = rows;
  o.context = context;
  const std::vector<std::int32_t> tokens = golden.ids("tokens");
  std::vector<std::int64_t> starts{0};
  for (const std::int32_t length : golden.ids("lengths")) starts.push_back(starts.back() + length);
  const hd::io::basic_documents<std::int32_t> data(tokens, std::span<const std::int64_t>(starts), {.shuffle = false});
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  const hd::schedule::tabled when(train_test::table_named("1f1b", mesh.template extent<hd::pp>(), 6));
  result all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    hd::train::trainer<model, hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<1>>, std::remove_reference_t<decltype(world)>>
        trainer(world, o, when);
    const auto each = [&](auto&& f) {
      for (int k = 0; k < trainer.stages(); ++k)
        for (const md::parameter& p : trainer.stage(k).parameters())
          md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
            for (std::int64_t i = 0; i < length; ++i)
              f(p, static_cast<std::size_t>(global + i),
                trainer.stage(k).weights()[static_cast<std::size_t>(p.offset + local + i)]);
          });
    };
    each([&](const md::parameter& p, std::size_t i, float& w) {
      w = static_cast<float>(golden.values("initial." + p.name)[i]);
    });
    std::vector<double> losses, norms;
    for (int step = 0; step < 2; ++step) {
      const auto report = trainer.step(data);
      losses.push_back(report.loss), norms.push_back(report.gradient_norm);
    }
    const std::lock_guard lock(mutex);
    all.losses = losses, all.norms = norms;
    each([&](const md::parameter& p, std::size_t i, float& w) {
      auto& whole = all.weights[p.name];
      whole.resize(golden.values("initial." + p.name).size());
      whole[i] = w;
    });
  });
  return all;
}

}  // namespace

TEST_CASE("two steps on documents are those of transformers, document by document", "[train][context][golden][ranks]") {
  const model_test::golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/documents_golden.bin");
  struct run {
    const char *mesh, *context;
    std::int64_t rows;
  };
  for (const run& r : {run{"", "", 100}, run{"cp=4", "token-ring,zigzag,hybrid", 16}, run{"cp=3", "gather,striped,flex", 48},
                       run{"dp=2,cp=2,tp=2", "burst,zigzag,hybrid", 26}}) {
    INFO("mesh '" << r.mesh << "', " << r.context);
    const result got = train(golden, r.mesh, r.context, r.rows);
    for (std::size_t step = 0; step < 2; ++step) {
      const std::string at = "step" + std::to_string(step + 1) + ".";
      CHECK(std::abs(got.losses[step] - golden.values(at + "loss")[0]) <= 1e-5);
      CHECK(std::abs(got.norms[step] - golden.values(at + "gradient_norm")[0]) <= 1e-5 * got.norms[step]);
    }
    for (const auto& [name, values] : got.weights) {
      INFO(name);
      CHECK(model_test::relative_error(values, golden.values("weight." + name)) <= 1e-5);
    }
  }
}
