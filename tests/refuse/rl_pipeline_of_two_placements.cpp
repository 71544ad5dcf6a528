// refuse: heddle: rl::pipeline<...> got two policies of one kind; keep one of them
#include <heddle/rl/pipeline.hpp>

constexpr auto how = heddle::rl::pipeline<heddle::rl::colocated, heddle::rl::split>::flow;

int main() {}
