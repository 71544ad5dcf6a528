// Rows that travel beside the products of linear layers: losses, gradients and logits equal those of one rank, in double, and the
// bytes are those of all_gathers and reduce_scatters.
#include "parallel_training.hpp"
#include "sent_bytes.hpp"

#include <heddle/model/gpt2.hpp>
#include <heddle/model/qwen.hpp>

using namespace model_test;

namespace {

template <int Pieces>
using beside_products = md::megatron_sequence<dp, tp, hd::overlapped<Pieces>>;
using gpt2 = md::gpt2<double, beside_products<2>>;
using qwen = md::qwen3<double, beside_products<1>>;

// 5 rows a sample: parts of tp are uneven, their pieces too, and begin inside of samples.
const model_case<gpt2::config> usual{
    {.layers = 3, .heads = 4, .width = 12, .context = 5, .vocabulary = 17, .initial_deviation = 0.3}, 5, {2, 0, 1}};
// Fewer rows, heads and words than ranks along tp: some ranks hold none.
const model_case<gpt2::config> scarce{
    {.layers = 2, .heads = 2, .width = 6, .context = 3, .vocabulary = 3, .initial_deviation = 0.3}, 3, {1}};

}  // namespace

TEST_CASE("a GPT-2 whose rows travel beside products trains the one-rank model", "[model][parallel][overlap][ranks]") {
  const auto [replicas, stages, parts] =
      GENERATE(table<int, int, int>({{1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {1, 2, 2}, {2, 1, 2}, {2, 2, 2}}));
  const bool apart = GENERATE(false, true);
  CAPTURE(replicas, stages, parts, apart);
  compare_with_one_rank<gpt2>(any_mesh(replicas, stages, parts), usual, apart, any_mesh(1, 1, 1));
}

TEST_CASE("ranks without rows beside products", "[model][parallel][overlap][ranks]") {
  const auto [stages, parts] = GENERATE(table<int, int>({{1, 4}, {2, 4}}));
  const bool apart = GENERATE(false, true);
  CAPTURE(stages, parts, apart);
  compare_with_one_rank<gpt2>(any_mesh(1, stages, parts), scarce, apart, any_mesh(1, 1, 1));
}

TEST_CASE("a model with gated units and grouped queries whose rows travel beside products trains the one-rank model",
          "[model][parallel][overlap][ranks][qwen]") {
  const md::llama_config sizes{.layers = 3,
                               .heads = 4,
                               .kv_heads = 2,
                               .width = 10,
                               .ffn = 7,
                               .context = 5,
                               .vocabulary = 17,
                               .theta = 50,
                               .initial_deviation = 0.3,
                               .head_elements = 6};
  const model_case<qwen::config> shape{sizes, 5, {2, 0, 1}};
  const auto [replicas, stages, parts] = GENERATE(table<int, int, int>({{1, 1, 2}, {1, 1, 3}, {2, 1, 2}, {1, 2, 2}}));
  const bool apart = GENERATE(false, true);
  CAPTURE(replicas, stages, parts, apart);
  compare_with_one_rank<qwen>(any_mesh(replicas, stages, parts), shape, apart, any_mesh(1, 1, 1));
}

TEST_CASE("rows beside products are the bytes of all_gathers and reduce_scatters",
          "[model][parallel][overlap][counts]") {
  const int parts = GENERATE(2, 3);
  CAPTURE(parts);
  const std::int64_t stream = 15 * 12 * 8;         // 15 rows of 12 channels: 8 + 7 over two ranks
  const std::int64_t each = (parts - 1) * stream;  // of one all_gather or one reduce_scatter, of all ranks together
  const std::int64_t ends = each + each + 3 * 2 * (parts - 1) * 15 * 8;
  const auto check = [&](const std::array<std::int64_t, 3>& sent) {  // as for rows that travel at once
    CHECK(sent[0] == 3 * 4 * each + ends);
    CHECK(sent[1] == 3 * 4 * each + each);
    CHECK(sent[2] == 3 * 2 * each + 2 * each);
  };
  check(bytes_of<gpt2>(3, parts));
  check(bytes_of<qwen>(3, parts));
}
