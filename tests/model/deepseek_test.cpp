// DeepSeek-V3 as a stage: against Hugging Face transformers over two steps, and any split against one rank.
#include "golden_training.hpp"
#include "parallel_training.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/deepseek.hpp>
#include HEDDLE_GEMM_HEADER

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using namespace model_test;

namespace {
using backend = hd::compute::host<HEDDLE_GEMM>;
}

TEST_CASE("DeepSeek-V3: two steps in float equal those of transformers to 1e-5", "[model][golden][deepseek]") {
  const golden_file golden(HEDDLE_SOURCE_DIR "/tests/golden/deepseek_golden.bin");
  const auto& n = golden.ids("config");
  const auto& rotary = golden.values("rotary");
  two_steps_in_float<md::deepseek<float>, backend>(golden, md::deepseek_config{.layers = n[0],
                                                                               .heads = n[1],
                                                                               .width = n[3],
                                                                               .ffn = n[4],
                                                                               .context = n[5],
                                                                               .vocabulary = n[6],
                                                                               .query_latent = n[11],
                                                                               .key_latent = n[12],
                                                                               .still = n[13],
                                                                               .rotating = n[14],
                                                                               .value = n[15],
                                                                               .experts = n[9],
                                                                               .chosen = n[10],
                                                                               .shared = n[16],
                                                                               .groups = n[17],
                                                                               .kept_groups = n[18],
                                                                               .factor = 1.7,
                                                                               .theta = rotary[0],
                                                                               .epsilon = rotary[1]});
}
