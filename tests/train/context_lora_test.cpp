// tests/train/context_lora_test.cpp: adapters trained on documents that ranks share are those of one rank.
#include "document_training.hpp"

#include <heddle/model/llama.hpp>
#include <heddle/model/with_lora.hpp>

using namespace document_training;

namespace {

namespace md = heddle::model;
using model = md::with_lora<md::llama<double, md::megatron_context<>>>;
constexpr model::config settings{
    md::llama_config{.layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 13, .context = 40, .vocabulary = 31}, 3, 6.0};
outcome train(const setup& s) {
  return document_training::train<model, hd::zero<1>, language_training::recompute>(settings, s);
}

}  // namespace

TEST_CASE("adapters trained on documents that ranks share are those of one rank, in double", "[train][context][ranks]") {
  const outcome serial = train({.microbatches = 1, .rows = 400});
  REQUIRE(serial.weights.size() == 2 * 7 * 2);  // two of each linear layer of each block, and nothing else
  REQUIRE(serial.norms[0] > 0);
  REQUIRE(std::abs(serial.losses[2] - serial.losses[0]) > 1e-9);
  const setup runs[] = {
      {"cp=4", "token-ring,zigzag,hybrid", "1f1b", 8, 12},
      {"dp=2,cp=2,tp=2", "gather,striped,flex", "gpipe", 5, 20},
      {"pp=2,cp=3", "burst,zigzag,whole", "zb-h1", 8, 20, "full,keep-tail 1/2"},
  };
  for (const setup& s : runs) {
    INFO(s.mesh << ", " << s.context << ", " << s.schedule);
    check_same(train(s), serial);
  }
}
