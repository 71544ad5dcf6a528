// refuse: heddle: with_medusa_heads joins heads whose logits have no cap: train those of this model with with_medusa_head
#include <heddle/model/gemma2.hpp>
#include <heddle/model/with_medusa_heads.hpp>

namespace md = heddle::model;
using described = decltype(md::with_medusa_heads<md::gemma2<float>, 2>::describe({}));

int main() {}
