// refuse: heddle: with_chunked_loss<Base, Words>: logits are made of Words words at a time, which must be positive
#include <heddle/model/gpt2.hpp>
#include <heddle/model/with_chunked_loss.hpp>

namespace md = heddle::model;
using described = decltype(md::with_chunked_loss<md::gpt2<float>, 0>::describe({}));

int main() {}
