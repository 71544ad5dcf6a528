// Serves a mixture with experts and rows in the order of a placement (Speculative MoE), beside the file's order: rows that leave their rank.
// run: --placement @SOURCE_DIR@/tests/golden/placements/license.txt --corpus @SOURCE_DIR@/LICENSE
// prints: 4 layers of 16 experts on 4 ranks:
// prints: in the file's order 7
// prints: logits: equal to 1e-9
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/watched_choices.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/rows_by_experts.hpp>
#include <heddle/model/experts_in_order.hpp>
#include <heddle/model/mixtral.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

namespace hd = heddle;
namespace md = heddle::model;
namespace plan = heddle::plan;
using hd::tp, hd::dim::split;

namespace {
// The model of place_experts. Heads, words and experts are split over the ranks, and rows between layers.
using model = md::mixtral<double, hd::sharding<split<hd::dim::heads, tp>, split<hd::dim::vocabulary, tp>,
                                               split<hd::dim::sequence, tp>, split<hd::dim::experts, tp>>>;
constexpr md::mixtral_config config{
    {.layers = 4, .heads = 4, .kv_heads = 2, .width = 64, .ffn = 32, .context = 64, .vocabulary = 256}, 16, 2};

// Its drawn weights by name, in place of a file's (io::safetensors_folder).
struct drawn_weights {
  struct one {
    std::vector<std::int64_t> extents;
    std::vector<double> values;
    std::span<const std::int64_t> shape() const { return extents; }
    std::string where() const { return "drawn weights"; }
    void read(std::int64_t first, std::span<double> to) const {
      std::copy_n(values.begin() + first, to.size(), to.begin());
    }
  };
  std::map<std::string, one, std::less<>> all;
  bool contains(std::string_view name) const { return all.contains(name); }
  const one& tensor(std::string_view name) const { return all.find(name)->second; }
};

struct served {
  double choices = 0, sent = 0;                                         // of experts, and of those on another rank
  std::vector<double> logits = std::vector<double>(config.vocabulary);  // behind the last 64 bytes
};
served serve(const std::string& text, int ranks, drawn_weights& weights, const plan::expert_placement* placed) {
  served found;
  std::mutex mutex;
  hd::launch<hd::threads>(hd::mesh<hd::axis<tp>>(ranks), [&](auto& world) {
    using backend = hd::compute::watched_choices<hd::compute::host<>>;
    backend kernels{1};
    hd::infer::model_runner<model, std::remove_reference_t<decltype(world)>, backend> runner(config, world, kernels,
                                                                                             {1, 64}, 64);
    auto& stage = runner.stage();
    stage.initialize(1);
    if (ranks == 1)
      for (const md::parameter& p : stage.parameters())
        md::for_each_tensor(p, [&](const md::parameter& of) {
          const auto from = stage.weights().begin() + of.offset;
          weights.all[of.name] = {of.shape, {from, from + of.count}};
        });
    if (placed != nullptr) {
      md::read_parameters(stage, weights, md::experts_in_order<>(model::describe(config), placed->orders()));
      stage.order_rows(hd::infer::rows_by_experts(*placed, ranks, config.vocabulary));
    }
    kernels.chosen = [&](hd::matrix_view<const std::int32_t> ids) {
      const std::lock_guard lock(mutex);
      for (const std::int32_t e : ids.elements())
        ++found.choices, found.sent += e / (config.experts / ranks) != world.rank();
    };
    if (!runner.leads()) return void(runner.follow());
    for (std::size_t begin = 0; begin + 64 <= text.size(); begin += 64) {
      hd::infer::step step{.sequences = {{0, 64, 0, 0, 1}}, .blocks = {0}, .wanted = {63}};
      for (const char c : text.substr(begin, 64)) step.tokens.push_back(static_cast<unsigned char>(c));
      runner.run(step, found.logits);
    }
  });
  return found;
}
std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw hd::io_error("heddle: cannot read '" + path + "'");
  return {std::istreambuf_iterator<char>(file), {}};
}
}  // namespace

int main(int argc, char** argv) try {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  if (argc != 5 || !given.contains("--placement") || !given.contains("--corpus"))
    return std::printf("usage: placed_experts --placement FILE --corpus FILE\n"), argc == 2 ? 0 : 2;
  const plan::expert_placement placed =
      plan::parse_expert_placement(read(given["--placement"]), config.experts, config.vocabulary, given["--placement"]);
  const std::string text = read(given["--corpus"]), rest = text.substr(text.size() * 3 / 4);  // what was not counted
  if (rest.size() < 64) throw hd::config_error("heddle: a corpus of at least 256 bytes is needed");
  drawn_weights weights;
  const served alone = serve(rest, 1, weights, nullptr), plain = serve(rest, placed.ranks, weights, nullptr),
               ordered = serve(rest, placed.ranks, weights, &placed);
  double off = 0;
  for (std::size_t i = 0; i < alone.logits.size(); ++i)
    off = std::max({off, std::abs(plain.logits[i] - alone.logits[i]), std::abs(ordered.logits[i] - alone.logits[i])});
  std::printf("%s\nrows that leave their rank: in the file's order %.1f %%, in the placement's %.1f %%\nlogits: %s\n",
              to_string(placed).c_str(), 100 * plain.sent / plain.choices, 100 * ordered.sent / ordered.choices,
              off < 1e-9 ? "equal to 1e-9" : "differ");
  return off < 1e-9 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
