// refuse: heddle: rl::slots<H>: H answers are under way at once: at least 1
#include <heddle/rl/completion.hpp>

heddle::rl::slots<0> how;

int main() {}
