// Mistral, a Llama whose tokens see the last ones only, against transformers.
#include "golden_training.hpp"
#include "llama_golden.hpp"

#include <heddle/compute/attention_slices.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/mistral.hpp>

#include "catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace {
namespace hd = heddle;
namespace md = heddle::model;
}  // namespace

TEST_CASE("Mistral: two steps in float equal those of transformers to 1e-5", "[model][golden]") {
  const model_test::golden_file golden(std::string(HEDDLE_SOURCE_DIR "/tests/golden/mistral_golden.bin"));
  model_test::two_steps_in_float<md::mistral<float>, hd::compute::host<>>(golden, md::mistral_config(model_test::llama_of(golden), 4));
}

TEST_CASE("slices of a window are the pairs of queries and keys that it has", "[compute]") {
  for (const std::int64_t window : {0, 1, 2, 3, 5, 8, 20})
    for (const std::int64_t position : {0, 1, 2, 4, 7, 9})
      for (const std::int64_t rows : {1, 2, 3, 8}) {
        CAPTURE(window, position, rows);
        constexpr std::int64_t first = 11, keys = 30;  // rows of the first query and of key 0
        const auto slices = hd::compute::causal_window(first, first + rows, position, keys, window);
        std::vector<int> seen(static_cast<std::size_t>(rows * (position + rows)));
        for (const hd::compute::attention_slice& s : slices)
          for (std::int64_t q = s.q_begin; q < s.q_end; ++q)
            for (std::int64_t k = s.first_key(q); k < s.last_key(q); ++k) {
              REQUIRE((q >= first && q < first + rows && k >= keys && k < keys + position + rows));
              ++seen[static_cast<std::size_t>((q - first) * (position + rows) + k - keys)];
            }
        bool right = true;
        for (std::int64_t q = 0; q < rows; ++q)
          for (std::int64_t k = 0; k < position + rows; ++k) {
            const bool sees = k <= position + q && (window == 0 || k > position + q - window);
            right = right && seen[static_cast<std::size_t>(q * (position + rows) + k)] == (sees ? 1 : 0);
          }
        CHECK(right);
        // A window that nothing leaves is causal attention: the same slice, so the same bits.
        if (window == 0 || window >= position + rows) {
          REQUIRE(slices.size() == 1);
          CHECK(slices.slices[0] == hd::compute::attention_slice{first, first + rows, keys, keys + position + rows,
                                                                 hd::compute::slice_mask::causal});
        }
      }
}

TEST_CASE("configurations of Mistral name their family and their window", "[model]") {
  CHECK(to_string(md::mistral_7b()).find("mistral layers=32") == 0);
  CHECK(to_string(md::mistral_tiny()).find(" window=5") != std::string::npos);
  md::mistral_config c = md::mistral_tiny();
  c.window = 0;
  CHECK_THROWS_WITH(c.validate(), Catch::Matchers::Contains("window must be 1 to 16777216, got 0"));
  // Per token 12 operations for each element of the queries and each token that is seen: 1, 2, 3, 4, 5, 5, ...
  const auto with = md::describe_mistral(md::mistral_tiny()), without = md::describe_mistral({md::llama_tiny(), 13});
  const double seen = (1 + 2 + 3 + 4 + 5 * 9) / 13.0, all = 14 / 2.0;
  CHECK(md::layers::training_flops(without, 13) - md::layers::training_flops(with, 13) ==
        Approx(12.0 * 24 * (all - seen) * 2));
}
