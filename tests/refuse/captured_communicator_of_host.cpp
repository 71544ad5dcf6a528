// refuse: heddle: the calls of this communicator wait on the host, so that no graph can have them: take hd::nccl, or leave captured_steps out
// and: of_host
#include "captured_parts.hpp"

struct of_host {
  static constexpr bool host_memory = true;
};
struct world_of_host {
  of_host& all();
};
bool captured =
    captured_parts::captured<captured_parts::strategy, captured_parts::stage, captured_parts::optimizer, world_of_host>;
