// refuse: heddle: a task that compares rows of a group has a sampler that cuts groups; take `rl::group` or `rl::balanced` with the group's size
#include <heddle/rl/sample_table.hpp>

namespace rl = heddle::rl;
struct answer {
  using type = int;
};
struct reward {
  using type = double;
};

int main() {
  rl::sample_table<rl::columns<answer, reward>> table(8);
  table.add_task<rl::needs<reward>, 8>(rl::group<4>{});
}
