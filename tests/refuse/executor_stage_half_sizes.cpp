// refuse: heddle: a stage whose tensors are not equally large needs both `std::int64_t input_elements(const batch&) const` and `std::int64_t output_elements(const batch&) const`
#include "executor_parts.hpp"

using executor_parts::batch;
struct stage {
  using scalar = double;
  int boundary_elements(int samples) const { return samples; }
  int input_elements(const batch& b) const { return b.samples; }
  void forward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_weight(int, const batch&) {}
};
template void executor_parts::run<stage>(heddle::schedule::plan_view, std::span<const batch>);
