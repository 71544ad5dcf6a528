// refuse: heddle: rl::policy: this model has an objective already; join objectives as rl::with_kl does, not policies
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/policy.hpp>

namespace rl = heddle::rl;
using described = decltype(rl::policy<rl::policy<heddle::model::gpt2<float>, rl::ppo>, rl::reinforce>::describe({}));

int main() {}
