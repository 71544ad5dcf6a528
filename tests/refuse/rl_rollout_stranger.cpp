// refuse: heddle: rl::rollout: a completion policy is wait_all, partial<Over>, slots<H>, a completion_rule or a type of completion_kind with `completion_rule rule() const`
#include <heddle/infer/any_engine.hpp>
#include <heddle/rl/rollout.hpp>

struct when_ready {};
void collect(heddle::infer::any_engine& e) { heddle::rl::rollout(e, when_ready{}).step(); }

int main() {}
