// refuse: heddle: a pipeline stage needs `std::int64_t boundary_elements(std::int64_t samples) const`, the size of the tensor between stages at its largest
#include "executor_parts.hpp"

using executor_parts::batch;
struct stage {
  using scalar = double;
  void forward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_weight(int, const batch&) {}
};
template void executor_parts::run<stage>(heddle::schedule::plan_view, std::span<const batch>);
