// examples/gpt2_train/backend.hpp: names the backend that the program computes with: the host's, Kokkos or CUDA.
//
// The programs gpt2_train_kokkos and gpt2_train_cuda are compiled from the same source, with HEDDLE_EXAMPLE_KOKKOS and, by nvcc,
// with HEDDLE_EXAMPLE_CUDA.
#pragma once

#include <heddle/compute/host/host.hpp>
#include HEDDLE_GEMM_HEADER

#include <cstdint>
#include <string>

#if defined(HEDDLE_EXAMPLE_CUDA)
#include <heddle/compute/cuda/cuda.hpp>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#endif

#if defined(HEDDLE_EXAMPLE_KOKKOS)
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/tensor/kokkos/short_waits.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>
#endif

namespace computed {

#if defined(HEDDLE_EXAMPLE_KOKKOS)

using execution_space = Kokkos::DefaultHostExecutionSpace;  // products and attention are the host's
using by = heddle::compute::kokkos<execution_space, HEDDLE_GEMM>;
inline by backend_of(int threads) {
  return by(threads);
}
inline constexpr std::int64_t gemm_extent = 1024;  // of the product whose speed is measured

/// Kokkos, from `begin` to the end of the program. Takes the words `--kokkos-..` out of the command line; Kokkos would also answer
/// to words that are the program's own, such as `--help`.
class session {
 public:
  session(int& argc, char** argv) : words_{argv[0]} {
    int left = 1;
    for (int i = 1; i < argc; ++i) {
      if (std::string_view(argv[i]).rfind("--kokkos-", 0) == 0)
        words_.emplace_back(argv[i]);
      else
        argv[left++] = argv[i];
    }
    argc = left;
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() {
    if (Kokkos::is_initialized()) Kokkos::finalize();
  }
  /// With a share of the cores for each rank of the process, if nobody has said how many threads: more than there are cores
  /// would wait for each other in every kernel. Several threads of OpenMP sleep soon where they wait.
  void begin(int ranks) {
    bool said = std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("KOKKOS_NUM_THREADS") != nullptr;
    for (std::size_t i = 1; i < words_.size(); ++i) said = said || words_[i].find("threads") != std::string::npos;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (!said)
      words_.push_back((KOKKOS_VERSION < 30700 ? "--kokkos-threads=" : "--kokkos-num-threads=") +
                       std::to_string(std::max(1, cores / ranks)));
    std::vector<char*> argv;
    for (std::string& word : words_) argv.push_back(word.data());
    int n = static_cast<int>(argv.size());
    argv.push_back(nullptr);
    Kokkos::initialize(n, argv.data());
    if (execution_space().concurrency() > 1) waits_.emplace();
  }

 private:
  std::vector<std::string> words_;
  std::optional<heddle::kokkos_short_waits> waits_;
};

inline std::string about(const char* gemm) {
  const auto threads = execution_space().concurrency();
  return "Kokkos " + std::to_string(KOKKOS_VERSION / 10000) + "." + std::to_string(KOKKOS_VERSION / 100 % 100) + "." +
         std::to_string(KOKKOS_VERSION % 100) + ": execution space " + execution_space::name() + " with " +
         std::to_string(threads) + (threads == 1 ? " thread" : " threads") +
         ", an instance for each rank; products by " + gemm + ", and attention, on the host";
}

#elif defined(HEDDLE_EXAMPLE_CUDA)

using by = heddle::compute::cuda;  // ranks that are threads share the device
inline by backend_of(int /*threads*/) {
  return {};
}
inline constexpr std::int64_t gemm_extent = 8192;

/// Ends the program with status 3 where there is no device.
struct session {
  session(int&, char**) {}
  void begin(int) {
    int devices = 0;
    const cudaError_t asked = cudaGetDeviceCount(&devices);
    if (asked == cudaSuccess && devices > 0) return;
    std::fprintf(stderr, "heddle: this program computes on a CUDA device, and there is none: %s\n",
                 asked != cudaSuccess ? cudaGetErrorString(asked) : "no device is visible");
    std::exit(3);
  }
};

inline std::string about(const char* gemm) {
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) return std::string("CUDA; products by ") + gemm;
  return std::string("CUDA: ") + device.name + " with " + std::to_string(device.totalGlobalMem >> 20) +
         " MiB, a stream for each rank; products by " + gemm;
}

#else

using by = heddle::compute::host<HEDDLE_GEMM>;
inline by backend_of(int threads) {
  return by(threads);
}
inline constexpr std::int64_t gemm_extent = 1024;

struct session {
  session(int&, char**) {}
  void begin(int) {}
};

inline std::string about(const char* gemm) {
  return std::string("host; products by ") + gemm;
}

#endif

}  // namespace computed
