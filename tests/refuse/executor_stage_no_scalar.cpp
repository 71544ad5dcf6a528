// refuse: heddle: a pipeline stage needs `using scalar = ...;`, the type of the elements between stages
#include "executor_parts.hpp"

using executor_parts::batch;
struct stage {
  int boundary_elements(int samples) const { return samples; }
  void forward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_weight(int, const batch&) {}
};
template void executor_parts::run<stage>(heddle::schedule::plan_view, std::span<const batch>);
