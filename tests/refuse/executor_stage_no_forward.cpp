// refuse: heddle: a pipeline stage needs `void forward(int slot, const batch&, std::span<const scalar> in, std::span<scalar> out)`
#include "executor_parts.hpp"

using executor_parts::batch;
struct stage {
  using scalar = double;
  int boundary_elements(int samples) const { return samples; }
  void backward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_weight(int, const batch&) {}
};
template void executor_parts::run<stage>(heddle::schedule::plan_view, std::span<const batch>);
