// Each facet of the CUDA backend on a GPU against the host's backend, on the same numbers.
#include "compute/backend_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>

namespace {
using namespace backend_trials;
using host = co::host<>;

template <class T>
void compare(double tolerance) {
  for (const auto& [rows, columns] : trial_sizes) {
    CAPTURE(rows, columns);
    check(elementwise<co::cuda, T>(rows, columns), elementwise<host, T>(rows, columns), tolerance,
          columns >= 12 ? 24 : 20);
    check(norms<co::cuda, T>(rows, columns), norms<host, T>(rows, columns), tolerance, 10);
    check(cross_entropy<co::cuda, T>(rows, columns), cross_entropy<host, T>(rows, columns), tolerance, 5);
    check(sums_and_steps<co::cuda, T>(rows, columns), sums_and_steps<host, T>(rows, columns), tolerance, 16);
    check(products<co::cuda, T>(rows, columns), products<host, T>(rows, columns), tolerance, 5);
  }
  for (const std::int64_t sequence : {0, 1, 6, 37, 300}) {
    CAPTURE(sequence);
    check(attention<co::cuda, T>(sequence), attention<host, T>(sequence), tolerance, 4);
  }
}
}  // namespace

TEST_CASE("kernels on a GPU compute what the host's do", "[cuda][gpu]") {
  compare<double>(1e-10);
  compare<float>(1e-4);
  for (const auto& pages : trial_pages) {
    CAPTURE(pages);
    check(sliced_attention<co::cuda>(pages), sliced_attention<host>(pages), 1e-10, 5);
  }
  check(attention_of_overflows<co::cuda>(), attention_of_overflows<host>(), 1e-6, 5);
}
