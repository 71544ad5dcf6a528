// heddle/io/safetensors/other_weights.hpp: explains folders without safetensors.
#pragma once

#include <heddle/core/config.hpp>

#include <filesystem>
#include <string>

namespace heddle::inline v0::io::detail {

// Continues the sentence "... has neither model.safetensors nor its index"; empty where nothing else is there.
HEDDLE_INLINE std::string other_weights(const std::filesystem::path& folder);

}  // namespace heddle::inline v0::io::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/safetensors/other_weights.hpp>
#endif
