// refuse: heddle: rl::in_flight replaces weights while answers are written, so that generators need ranks of their own: take split in the place of colocated
#include <heddle/rl/pipeline.hpp>

constexpr auto how = heddle::rl::pipeline<heddle::rl::colocated, heddle::rl::in_flight<>>::flow;

int main() {}
