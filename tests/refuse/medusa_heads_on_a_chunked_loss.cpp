// refuse: heddle: with_medusa_heads trains heads that keep their logits: take the model without with_chunked_loss
#include <heddle/model/llama.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/model/with_medusa_heads.hpp>

namespace md = heddle::model;
using described = decltype(md::with_medusa_heads<md::with_chunked_loss<md::llama<float>, 64>, 2>::describe({}));

int main() {}
