// refuse: heddle: a task needs a column that the table has not; let a stage make it, or take it out of `needs`
#include <heddle/rl/sample_table.hpp>

namespace rl = heddle::rl;
struct answer {
  using type = int;
};
struct reward {
  using type = double;
};

int main() {
  rl::sample_table<rl::columns<answer>> table(8);
  table.add_task<rl::needs<reward>>();
}
