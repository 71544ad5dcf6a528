// refuse: heddle: with_medusa_head trains a head by cross-entropy: the model must not have an rl::policy's
#include <heddle/model/llama.hpp>
#include <heddle/model/with_medusa_head.hpp>
#include <heddle/rl/policy.hpp>

namespace rl = heddle::rl;
using described =
    decltype(heddle::model::with_medusa_head<rl::policy<heddle::model::llama<float>, rl::ppo>>::describe({}));

int main() {}
