// refuse: heddle: rl::bounded_stale and one_step_off write batches while the trainer steps, so that generators need ranks of their own: take split in the place of colocated
#include <heddle/rl/pipeline.hpp>

constexpr auto how = heddle::rl::pipeline<heddle::rl::one_step_off>::flow;

int main() {}
