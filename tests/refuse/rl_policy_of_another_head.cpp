// refuse: heddle: rl::policy puts an objective in place of the cross-entropy of a layers::language_head; this model has another head
#include <heddle/model/llama.hpp>
#include <heddle/model/with_medusa_heads.hpp>
#include <heddle/rl/policy.hpp>

namespace md = heddle::model;
using described =
    decltype(heddle::rl::policy<md::with_medusa_heads<md::llama<float>, 2>, heddle::rl::ppo>::describe({}));

int main() {}
