// refuse: heddle: a step that is launched as a graph tells an observer nothing; leave the observer or captured_steps out
#include "captured_parts.hpp"

struct watched : captured_parts::strategy {
  struct observer {
    static constexpr bool enabled = true;
  };
};
bool captured = captured_parts::captured<watched>;
