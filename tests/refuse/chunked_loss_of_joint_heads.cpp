// refuse: heddle: with_chunked_loss makes the logits of a layers::language_head in chunks; this model has another head
#include <heddle/model/llama.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/model/with_medusa_heads.hpp>

namespace md = heddle::model;
using described = decltype(md::with_chunked_loss<md::with_medusa_heads<md::llama<float>, 2>, 64>::describe({}));

int main() {}
