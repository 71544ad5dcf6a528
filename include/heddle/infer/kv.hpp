// heddle/infer/kv.hpp: `kv`: keys and values are kept or recomputed when weights change.
#pragma once

#include <heddle/core/config.hpp>

namespace heddle::inline v0::infer {

/// What becomes of the keys and values of requests that run when the model's weights change. `keep`: they stay, so that later tokens see
/// what older weights made of earlier ones. `recompute`: every request is computed again, as if its tokens so far had been its prompt.
enum class kv { keep, recompute };

}  // namespace heddle::inline v0::infer
