// heddle/model/kept_blocks.hpp: a model of Hugging Face without some of its blocks.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/model/hugging_face_model.hpp>

#include <string_view>

namespace heddle::inline v0::model {

/// Blocks as a text names them, "0-3,8-11", of a model that has `all`.
/// Errors: `config_error` for other text, and for blocks beyond the model, twice or in disorder, which are named.
HEDDLE_INLINE kept_blocks parse_blocks(std::string_view text, int all);

/// The model of these blocks alone: its configuration has fewer layers, and its weights are read from the same files (`open_weights`). Where
/// blocks differ by their place, as those of Gemma-3 do, each keeps its kind. Nothing changes for a text without any characters.
/// Errors: as `parse_blocks`; `config_error` where a family cannot have blocks of these kinds in this order.
/// Source: layers left out of a trained model: Gromov et al. 2024, arXiv:2403.17887; by training with skips: Blagoev et al. 2025, arXiv:2502.19913.
HEDDLE_INLINE hugging_face_model with_blocks(hugging_face_model about, std::string_view text);

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/kept_blocks.hpp>
#endif
