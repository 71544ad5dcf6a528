// refuse: heddle: with_medusa_heads trains a model with its heads; the description of the model (with_lora, say) freezes the heads: train them with with_medusa_head
#include <heddle/model/llama.hpp>
#include <heddle/model/with_lora.hpp>
#include <heddle/model/with_medusa_heads.hpp>

namespace md = heddle::model;
using described = decltype(md::with_medusa_heads<md::with_lora<md::llama<float>>, 2>::describe({}));

int main() {}
