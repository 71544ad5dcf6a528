// refuse: heddle: an objective has `rl::term operator()(double log_probability, const rl::token&) const` and `std::string to_string(const Objective&)`
#include <heddle/model/gpt2.hpp>
#include <heddle/rl/policy.hpp>

namespace rl = heddle::rl;
struct mine {
  rl::term operator()(double lp, const rl::token& t) const { return {-t.advantage * lp, -t.advantage}; }
};
using model = rl::policy<heddle::model::gpt2<float>, mine>;
model it;

int main() {}
