// Boxes of a GPU's memory against the host's.
#include <heddle/tensor/cuda/memory.hpp>

#include "catch.hpp"
#include "tensor/box_trials.hpp"

#include <cstdint>
#include <random>

TEMPLATE_TEST_CASE("boxes of a GPU's memory are copied, folded and filled as the host's", "[cuda][gpu]", double, float,
                   std::int8_t, std::int16_t) {
  using memory = heddle::cuda_memory;
  memory::queue q;
  CHECK(box_trials::first_wrong<memory, TestType>(q, std::random_device{}(), 40) == "");
}
