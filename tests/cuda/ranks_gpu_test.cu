// Ranks that are threads and share a GPU, against the same calls and redistributions in the host's memory.
#include <heddle/tensor/cuda/memory.hpp>

#include "catch.hpp"
#include "ranks_trials.hpp"
#include "tensor/box_trials.hpp"

#include <random>
#include <vector>

TEST_CASE("calls of threads that share a GPU have the bits of those in the host's memory", "[cuda][gpu][ranks]") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CHECK(ranks_trials::first_wrong<float>(ranks, std::random_device{}()) == "");
    CHECK(ranks_trials::first_wrong<double>(ranks, std::random_device{}()) == "");
  }
}

TEST_CASE("calls of threads on two GPUs that reach each other's memory have the bits of those in the host's",
          "[cuda][gpu][ranks]") {
  int devices = 0, there = 0, back = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  if (devices > 1) REQUIRE(cudaDeviceCanAccessPeer(&there, 0, 1) == cudaSuccess);
  if (devices > 1) REQUIRE(cudaDeviceCanAccessPeer(&back, 1, 0) == cudaSuccess);
  CHECK(ranks_trials::first_wrong<float>(4, std::random_device{}(), there + back == 2 ? 2 : 1) == "");
}

TEMPLATE_TEST_CASE("redistributions of a GPU's memory have the bits of the host's", "[cuda][gpu][ranks]", double, float,
                   std::int8_t) {
  CHECK(box_trials::first_wrong_plan<heddle::cuda_memory, TestType>(std::random_device{}(), 24) == "");
}

TEST_CASE("a tensor without dimensions is summed in a GPU's memory", "[cuda][gpu][ranks]") {
  CHECK(ranks_trials::sums_of_scalars() == std::vector<float>(4, 10.0f));
}
