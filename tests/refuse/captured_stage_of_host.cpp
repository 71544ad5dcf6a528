// refuse: heddle: a step of this stage reads on the host what the device computes, or is not known not to (experts that rows are routed to, activations that leave the device): leave captured_steps out, or say `static constexpr bool only_queues = true` in the stage if it does not
// and: routed
#include "captured_parts.hpp"

struct routed {
  using space = captured_parts::stage::space;
};
bool captured = captured_parts::captured<captured_parts::strategy, routed>;
