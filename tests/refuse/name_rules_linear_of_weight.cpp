// refuse: heddle: named_linear<path>: multiplies by a kernel [in, out], and what PyTorch calls weight is [out, in]
#include <heddle/train/three_functions.hpp>

using layer = heddle::train::named_linear<"model.layers.0.mlp.up_proj.weight">;
constexpr std::size_t size = sizeof(layer);
