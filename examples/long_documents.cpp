// Trains a byte-level Llama on documents of very different lengths, whose tokens several ranks share, without padding.
// run: --data @SOURCE_DIR@/docs --mesh cp=4 --context token-ring,zigzag --planner hybrid --rows-per-rank 128 --longest 384 --batch 8 --microbatches 8 --steps 2 --width 32 --heads 4 --layers 2
// prints: cp=4
// prints: step     2/2
// prints: nothing is padded
// mpi: 4 slow
// virtual: 64 --mesh dp=8,cp=8 --planner whole --rows-per-rank 32 --longest 96 --batch 16 --microbatches 2 --steps 1 --width 16 --heads 2 --layers 1
// varies: [0-9]+ tok/s
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/documents.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/train/context.hpp>
#include <heddle/train/make_trainer.hpp>

#include "tool.hpp"
#include "transport.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::cp>, hd::axis<hd::tp>>;
using model = hd::model::llama<float, hd::model::megatron_context<>>;

namespace {

struct settings {
  std::string data = HEDDLE_SOURCE_DIR "/docs", mesh = "cp=4", context = "token-ring,zigzag", planner = "hybrid";
  std::int64_t rows = 2048, longest = 4096, batch = 16, steps = 20, microbatches = 8, separator = -1;
  int layers = 4, width = 64, heads = 4;
  double lr = 3e-3;
};

// What the ranks of a step's documents do, as the planner has it.
template <class Batches>
std::string about(const Batches& batches) {
  std::map<std::size_t, int> groups;  // how many documents so many ranks share
  for (const hd::plan::document_wave& w : batches.waves())
    for (const hd::plan::placed_document& d : w.documents) ++groups[d.ranks.size()];
  std::string text = std::to_string(batches.waves().size()) + " waves, documents on ";
  const char* between = "";
  for (const auto& [ranks, documents] : groups) {
    text += between + std::to_string(documents) + "x" + std::to_string(ranks);
    between = " ";
  }
  const auto lengths = batches.lengths();
  return text + ", longest " + std::to_string(lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
}

int train(const settings& s) {
  const mesh_type mesh = hd::parse_mesh<mesh_type>(s.mesh);
  const hd::io::corpus corpus(s.data);
  const hd::io::documents_options cut{.seed = 1, .longest = s.longest};
  const hd::io::basic_documents<std::uint8_t> data =
      s.separator < 0 ? hd::io::basic_documents<std::uint8_t>(corpus.tokens(), corpus.starts(), cut)
                      : hd::io::basic_documents<std::uint8_t>(corpus.tokens(), static_cast<std::uint8_t>(s.separator), cut);
  hd::train::options<model::config> o;
  o.model = {.layers = s.layers,
             .heads = s.heads,
             .kv_heads = std::max(1, s.heads / 2),
             .width = s.width,
             .ffn = 3 * s.width,
             .context = static_cast<int>(s.longest),
             .vocabulary = hd::io::corpus::vocabulary()};
  o.batch = s.batch;
  o.microbatches = static_cast<int>(s.microbatches);
  o.steps = s.steps;
  o.learning_rate = {.peak = s.lr, .minimum = s.lr / 10, .warmup_steps = s.steps / 10};
  o.rows_per_rank = s.rows;
  o.context = s.context + "," + s.planner;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    const bool speaks = world.rank() == 0;
    auto trainer = hd::train::make_trainer<hd::strategy<mesh_type, hd::zero<1>>>(model{}, world, o);
    if (speaks)
      std::printf("mesh         %s\nmodel        %s\ndata         %s: %lld documents of up to %lld tokens, %lld empty\n",
                  hd::to_string(mesh).c_str(), hd::model::to_string(o.model).c_str(), corpus.name().c_str(),
                  static_cast<long long>(data.documents()), static_cast<long long>(data.longest()),
                  static_cast<long long>(data.empty()));
    std::int64_t all_rows = 0, all_tokens = 0;
    trainer.run(data, [&](const hd::train::step_report& r) {
      // Ranks along tp and pp have the same rows.
      const bool counts = mesh.template coordinate<hd::tp>(world.rank()) == 0 && mesh.template coordinate<hd::pp>(world.rank()) == 0;
      std::array<double, 1> rows{0};
      for (const auto& b : trainer.batches().all()) rows[0] += counts ? b.samples : 0;
      world.control().all_reduce(std::span<double>(rows), hd::plus{});
      all_rows += static_cast<std::int64_t>(rows[0]);
      all_tokens += r.tokens;
      if (speaks)
        std::printf("step %5lld/%lld  loss %.4f  %lld rows, %lld tokens, %s  %.0f tok/s\n",
                    static_cast<long long>(r.step + 1), static_cast<long long>(r.steps), r.loss,
                    static_cast<long long>(rows[0]), static_cast<long long>(r.tokens),
                    about(trainer.batches()).c_str(), r.tokens_per_second);
    });
    if (speaks)
      std::printf("%lld rows for %lld tokens: %s\n", static_cast<long long>(all_rows), static_cast<long long>(all_tokens),
                  all_rows == all_tokens ? "nothing is padded" : "SOME ARE PADDED");
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Trains a byte-level Llama on documents whose tokens several ranks share.");
  app.add_option("--data", s.data, "file, or folder of text files, each a document");
  app.add_option("--separator", s.separator, "byte that ends a document; -1: the end of a file")->range(-1, 255);
  app.add_option("--mesh", s.mesh, "ranks along dp, pp, cp and tp, as in dp=2,cp=4");
  app.add_option("--context", s.context, "what carries attention, and the order of tokens, as in burst,striped");
  app.add_option("--planner", s.planner, "who shares which documents")->one_of({"whole", "flex", "hybrid"});
  app.add_option("--rows-per-rank", s.rows, "the most tokens of a microbatch on a rank")->range(1, 1 << 24);
  app.add_option("--longest", s.longest, "longer documents are cut; the model's context")->range(1, 1 << 24);
  app.add_option("--batch", s.batch, "documents of a step")->range(1, 1 << 20);
  app.add_option("--microbatches", s.microbatches, "of a step; what documents do not need is empty")->range(1, 1 << 16);
  app.add_option("--steps", s.steps, "optimizer steps")->range(1, 1000000000);
  app.add_option("--layers", s.layers, "blocks")->range(1, 1000);
  app.add_option("--width", s.width, "elements of the residual stream")->range(1, 1 << 16);
  app.add_option("--heads", s.heads, "query heads")->range(1, 1024);
  app.add_option("--lr", s.lr, "the highest learning rate")->more_than(0);
  return tool::run(app, argc, argv, [&] { return train(s); });
}
