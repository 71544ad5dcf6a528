// refuse: heddle: rl::critic puts values in place of the words of a layers::language_head; this model has another head
#include <heddle/model/llama.hpp>
#include <heddle/model/with_medusa_heads.hpp>
#include <heddle/rl/critic.hpp>

namespace md = heddle::model;
using described = decltype(heddle::rl::critic<md::with_medusa_heads<md::llama<float>, 2>>::describe({}));

int main() {}
