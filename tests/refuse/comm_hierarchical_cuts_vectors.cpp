// refuse: this algorithm cuts the vector, and the operator declares elementwise = false; use one that sends whole vectors
#include <heddle/collective/algorithms.hpp>
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>

#include <span>
#include <vector>

// An algorithm that is for eight ranks and more. Folds vectors as long as the group is, not their elements.
struct convolution {
  static constexpr bool commutative = true;
  static constexpr bool elementwise = false;
  void operator()(std::span<const float> a, std::span<const float> b, std::span<float> result) const {
    const std::size_t n = a.size();
    for (std::size_t i = 0; i < n; ++i) {
      result[i] = 0;
      for (std::size_t j = 0; j < n; ++j) result[i] += a[j] * b[(i + n - j) % n];
    }
  }
};

void program(heddle::threads_communicator& c, std::vector<float>& x) {
  heddle::all_reduce<heddle::algo::hierarchical<8>>(c, x, convolution{});
}
