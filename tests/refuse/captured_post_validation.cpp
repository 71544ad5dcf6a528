// refuse: heddle: with post_validation the host decides whether a step is taken back, which a graph cannot; leave post_validation or captured_steps out
#include "captured_parts.hpp"

struct ahead : captured_parts::strategy {
  using norm_check = heddle::post_validation;
};
bool captured = captured_parts::captured<ahead>;
