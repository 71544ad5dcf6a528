// refuse: heddle: with_medusa_head puts a head in place of one that makes its logits in chunks: write with_chunked_loss<with_medusa_head<Base>, Words>
#include <heddle/model/llama.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/model/with_medusa_head.hpp>

namespace md = heddle::model;
using described = decltype(md::with_medusa_head<md::with_chunked_loss<md::llama<float>, 64>>::describe({}));

int main() {}
