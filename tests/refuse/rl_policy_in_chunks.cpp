// refuse: heddle: with_chunked_loss makes the logits of a layers::language_head in chunks; this model has another head
#include <heddle/model/gpt2.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/rl/policy.hpp>

namespace rl = heddle::rl;
using described =
    decltype(heddle::model::with_chunked_loss<rl::policy<heddle::model::gpt2<float>, rl::ppo>, 64>::describe({}));

int main() {}
