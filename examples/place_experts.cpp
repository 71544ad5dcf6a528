// Places the experts of a mixture where their tokens are (Speculative MoE): counts which experts a corpus chooses, places, prints what is saved.
// run: --corpus @SOURCE_DIR@/LICENSE --write placement.txt --svg experts_license.svg
// prints: 4 layers of 16 experts on 4 ranks:
// prints: in the file's order, rows anywhere:  25.0 %
// prints: on text that was not counted:
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/watched_choices.hpp>
#include <heddle/core/error.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/plan/co_clustering.hpp>
#include <heddle/plan/experts_svg.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace plan = heddle::plan;
using backend = hd::compute::watched_choices<hd::compute::host<>>;

namespace {
// A small Mixtral of bytes, with drawn weights. Any stage on such a backend is counted like this.
constexpr md::mixtral_config config{
    {.layers = 4, .heads = 4, .kv_heads = 2, .width = 64, .ffn = 32, .context = 64, .vocabulary = 256}, 16, 2};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw hd::io_error("heddle: cannot read '" + path + "'");
  return {std::istreambuf_iterator<char>(file), {}};
}

// How often each expert of each layer is chosen for each byte of a text.
plan::expert_counts counted(const std::string& text) {
  plan::expert_counts counts(config.layers, config.vocabulary, config.experts);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp, 1>>{}, {}, [&](auto& world) {
    backend kernels{1};
    md::mixtral<float>::stage<std::remove_reference_t<decltype(world)>, backend> stage(
        config, world, kernels, md::split_layers(config.layers, 0, 1), 1, 1);
    stage.initialize(1);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(config.context));
    int layer = 0;
    kernels.chosen = [&](hd::matrix_view<const std::int32_t> ids) {
      for (std::int64_t row = 0; row < ids.extent(0); ++row)
        for (std::int64_t k = 0; k < ids.extent(1); ++k)
          ++counts.at(layer, tokens[static_cast<std::size_t>(row)], ids(row, k));
      layer = (layer + 1) % config.layers;
    };
    for (std::size_t begin = 0; begin + tokens.size() <= text.size(); begin += tokens.size()) {
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<unsigned char>(text[begin + i]);
      stage.forward_only({tokens, {}, 1, 1.0f}, {}, {});
    }
  });
  return counts;
}
}  // namespace

int main(int argc, char** argv) try {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  if (argc % 2 == 0 || !given.contains("--corpus") || given.size() > 1 + given.count("--write") + given.count("--svg"))
    return std::printf("usage: place_experts --corpus FILE [--write PLACEMENT] [--svg PICTURE]\n"), argc == 2 ? 0 : 2;
  const std::string text = read(given["--corpus"]);
  // The placement is made from one half and tried on the other.
  const plan::expert_counts first = counted(text.substr(0, text.size() / 2)),
                            second = counted(text.substr(text.size() / 2));
  const plan::expert_placement placed = plan::co_cluster(first, {.ranks = 4});
  std::printf("%s\n", to_string(placed).c_str());
  const double later = plan::local_share_of(placed, second);
  std::printf("in the file's order, rows anywhere:  %.1f %%\n", 100.0 / placed.ranks);
  std::printf("on text that was not counted:        %.1f %% local, %.1f %% of the bytes of all-to-alls saved\n",
              100 * later, 100 * plan::all_to_all_saving(later, placed.ranks));
  for (int layer = 0; layer < placed.layers; ++layer) {
    std::printf("layer %d reads experts", layer);
    for (const int e : placed.order(layer)) std::printf(" %d", e);
    std::printf("\n");
  }
  const auto write = [&](const char* option, const std::string& what) {
    if (given.contains(option) && !(std::ofstream(given[option]) << what))
      throw hd::io_error("heddle: cannot write '" + given[option] + "'");
  };
  write("--write", to_text(placed));  // plan::parse_expert_placement reads it
  write("--svg", plan::experts_svg(placed, second, "experts on text that was not counted"));
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
