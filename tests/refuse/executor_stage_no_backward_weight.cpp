// refuse: heddle: a pipeline stage needs `void backward_weight(int slot, const batch&)`, the second half of backward, for schedules that split it
#include "executor_parts.hpp"

using executor_parts::batch;
struct stage {
  using scalar = double;
  int boundary_elements(int samples) const { return samples; }
  void forward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {}
};
template void executor_parts::run<stage>(heddle::schedule::plan_view, std::span<const batch>);
