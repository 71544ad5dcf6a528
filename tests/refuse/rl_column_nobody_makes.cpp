// refuse: heddle: a stage needs a column that no stage makes; add a stage that makes it, or take it out of `needs`
#include <heddle/rl/sample_table.hpp>

namespace rl = heddle::rl;
struct answer {
  using type = int;
};
struct reward {
  using type = double;
};

using table = rl::sample_table<
    rl::columns_of<rl::stage<rl::needs<>, rl::makes<answer>>, rl::stage<rl::needs<answer, reward>, rl::makes<>>>>;

int main() {
  table(1).close();
}
