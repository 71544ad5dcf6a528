// refuse: heddle: two stages make one column; let one of them make it
#include <heddle/rl/sample_table.hpp>

namespace rl = heddle::rl;
struct answer {
  using type = int;
};
struct reward {
  using type = double;
};

using table = rl::sample_table<
    rl::columns_of<rl::stage<rl::needs<>, rl::makes<answer, reward>>, rl::stage<rl::needs<answer>, rl::makes<reward>>>>;

int main() {
  table(1).close();
}
