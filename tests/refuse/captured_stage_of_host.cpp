// refuse: heddle: a step of this stage reads on the host what the device computes, or is not known not to (experts whose rows travel between ranks, activations that leave the device): split experts over an axis that splits no samples or sequences, keep activations on the device, or leave captured_steps out; a stage of one's own says `static constexpr bool only_queues = true` if it does not
// and: routed
#include "captured_parts.hpp"

struct routed {
  using space = captured_parts::stage::space;
};
bool captured = captured_parts::captured<captured_parts::strategy, routed>;
