// refuse: heddle: rl::partial<Over>: Over times as many groups are started as a round delivers: at least 1
#include <heddle/rl/completion.hpp>

heddle::rl::partial<0> how;

int main() {}
