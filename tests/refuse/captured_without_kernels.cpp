// refuse: heddle: captured_steps sums the norm of a step by a kernel: compile this file with nvcc
#include "captured_parts.hpp"

struct without_kernels : captured_parts::strategy {
  struct backend {
    struct space {
      static constexpr bool host_accessible = false;
      struct queue {
        using graph = int;
        using pinned = int;
      };
    };
  };
};
bool captured = captured_parts::captured<without_kernels>;
