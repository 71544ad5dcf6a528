// refuse: heddle: captured_steps needs a backend whose queue can be captured into a graph, as that of compute::cuda; with this backend leave it out
// and: queue_can_be_captured<
#include "captured_parts.hpp"

struct on_host : captured_parts::strategy {
  struct backend {};
};
bool captured = captured_parts::captured<on_host>;
