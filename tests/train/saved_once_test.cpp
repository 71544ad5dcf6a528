// tests/train/saved_once_test.cpp: no tensor occurs twice in what blocks save from forward to backward: families, adapters, recomputation.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/any_model.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/train/activations/recompute.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;

namespace {

using saved_records = std::vector<float>;  // of all blocks of all microbatches, one behind the other

// In memory, and copied when a block's forward has ended.
class recorded_layers : public md::resident_layers<float> {
 public:
  struct settings {
    saved_records* to = nullptr;
  };
  recorded_layers(hd::host_memory::queue& queue, const settings& how, int slots, std::span<const std::int64_t> elements)
      : md::resident_layers<float>(queue, {}, slots, elements), to_(how.to) {}
  void saved(int slot, int layer) {
    const std::span<float> record = need(slot, layer);
    to_->insert(to_->end(), record.begin(), record.end());
  }

 private:
  saved_records* to_;
};
struct record_what_is_kept {
  using kind = hd::activations_kind;
  template <class T>
  using layers = recorded_layers;
};

using saved_once_mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::ep>, hd::axis<hd::tp>>;
using saved_once_backend = hd::compute::host<HEDDLE_GEMM>;
constexpr int samples_of_each = 2, microbatches_saved = 2;

// The longest run of numbers that occurs twice, found by blocks of 64 bytes; blocks of one number do not count.
std::size_t longest_repeat(const saved_records& all) {
  constexpr std::size_t block = 16;
  const auto hash = [&](std::size_t at) {
    std::uint64_t h = 14695981039346656037u;
    for (std::size_t i = 0; i < block; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &all[at + i], sizeof bits);
      h = (h ^ bits) * 1099511628211u;
    }
    return h;
  };
  const auto is_constant = [&](std::size_t at) {
    return std::all_of(&all[at], &all[at] + block, [&](float x) { return x == all[at]; });
  };
  std::unordered_map<std::uint64_t, std::size_t> first;
  for (std::size_t at = 0; at + block <= all.size(); at += block)
    if (!is_constant(at)) first.try_emplace(hash(at), at);
  std::size_t longest = 0;
  for (std::size_t at = 0; at + block <= all.size();) {
    const auto found = is_constant(at) ? first.end() : first.find(hash(at));
    std::size_t length = 0;
    if (found != first.end() && found->second != at)
      while (std::max(at, found->second) + length < all.size() && all[at + length] == all[found->second + length])
        ++length;
    longest = std::max(longest, length);
    at += std::max<std::size_t>(length, 1);
  }
  return longest;
}

// Forwards of two microbatches with tokens of their own.
template <class Stage, class Config>
void run_microbatches(Stage& stage, const Config& config) {
  const hd::counter_random random(7, 3);
  for (int m = 0; m < microbatches_saved; ++m) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(samples_of_each * config.context)),
        targets(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(random.integer(static_cast<std::uint64_t>(m) * tokens.size() + i) %
                                            static_cast<std::uint64_t>(config.vocabulary));
    std::rotate_copy(tokens.begin(), tokens.begin() + 1, tokens.end(), targets.begin());
    stage.forward(m, md::batch<float>{tokens, targets, samples_of_each, 1.0f}, {}, {});
  }
}
// A fraction of the smallest tensor of the rows of a microbatch, and more than the rows of five equal tokens in a row.
std::size_t tensor_sized(int context) {
  return static_cast<std::size_t>(4 * samples_of_each * context);
}

}  // namespace

TEST_CASE("blocks of no family save a tensor twice, nor do adapters", "[train][saved_once]") {
  for (const char* family : {"gpt2", "llama3", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "smollm3",
                             "granite", "phi3", "olmo2", "gemma3", "gpt_oss", "deepseek"})
    for (const int rank : {0, 4}) {
      CAPTURE(family, rank);
      std::ifstream in(std::string(HEDDLE_SOURCE_DIR "/tests/golden/models/") + family + "/config.json");
      const md::any_config config(md::from_config(nlohmann::json::parse(in)), 16, rank, 2.0 * rank);
      saved_records all;
      hd::launch<hd::threads>(hd::parse_mesh<saved_once_mesh>(""), [&](auto& world) {
        saved_once_backend kernels(1);
        const recorded_layers::settings how{&all};
        const auto stage = md::make_stage<float>(config, world, kernels, md::split_layers(config.layers, 0, 1),
                                                 microbatches_saved, samples_of_each, 0, nullptr,
                                                 md::any_layers<float>::settings::of<recorded_layers>(how));
        stage->initialize(3);
        stage->weights_written();
        run_microbatches(*stage, config);
      });
      REQUIRE(all.size() > 10 * tensor_sized(config.context));
      CHECK(longest_repeat(all) < tensor_sized(config.context));
      // A tensor that is there twice would be found.
      const std::size_t third = all.size() / 3;
      const saved_records copied(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(tensor_sized(config.context)));
      all.insert(all.begin() + static_cast<std::ptrdiff_t>(third), copied.begin(), copied.end());
      CHECK(longest_repeat(all) >= tensor_sized(config.context));
    }
}

TEST_CASE("what recomputation keeps has no tensor twice", "[train][saved_once]") {
  const md::gpt2_config config{.layers = 4, .heads = 4, .width = 24, .context = 16, .vocabulary = 61};
  std::size_t kept_all = 0;
  for (const char* again : {"none", "every 2", "mlp.hidden", "ln_1.out,mlp.activated", "attn.qkv,attn.out", "full"}) {
    CAPTURE(again);
    saved_records all;
    hd::launch<hd::threads>(hd::parse_mesh<saved_once_mesh>(""), [&](auto& world) {
      using stage_type = md::gpt2<float>::stage<std::remove_reference_t<decltype(world)>, saved_once_backend,
                                                hd::activations::recompute<record_what_is_kept>>;
      saved_once_backend kernels(1);
      typename stage_type::layers_memory::settings how;
      how.to = &all;
      how.again = md::parse_recompute(again);
      stage_type stage(config, world, kernels, md::split_layers(config.layers, 0, 1), microbatches_saved,
                       samples_of_each, 0, nullptr, how);
      stage.initialize(3);
      run_microbatches(stage, config);
    });
    if (kept_all == 0) kept_all = all.size();
    CHECK((std::string(again) == "none" || all.size() < kept_all));
    REQUIRE(all.size() >= tensor_sized(config.context));
    CHECK(longest_repeat(all) < tensor_sized(config.context));
  }
}
#endif
