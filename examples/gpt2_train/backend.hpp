// examples/gpt2_train/backend.hpp: what the program computes with: the host's kernels, or Kokkos where it is compiled for that.
//
// The program gpt2_train_kokkos is compiled from the same source with HEDDLE_EXAMPLE_KOKKOS.
#pragma once

#include HEDDLE_GEMM_HEADER

#include <string>

#if defined(HEDDLE_EXAMPLE_KOKKOS)
#include <heddle/compute/kokkos/kokkos.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>
#endif

namespace computed {

#if defined(HEDDLE_EXAMPLE_KOKKOS)

using execution_space = Kokkos::DefaultHostExecutionSpace;  // products and attention are the host's
using by = heddle::compute::kokkos<execution_space, HEDDLE_GEMM>;

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
  /// would wait for each other in every kernel.
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
  }

 private:
  std::vector<std::string> words_;
};

inline std::string about(const char* gemm) {
  const auto threads = execution_space().concurrency();
  return "Kokkos " + std::to_string(KOKKOS_VERSION / 10000) + "." + std::to_string(KOKKOS_VERSION / 100 % 100) + "." +
         std::to_string(KOKKOS_VERSION % 100) + ": execution space " + execution_space::name() + " with " +
         std::to_string(threads) + (threads == 1 ? " thread" : " threads") +
         ", an instance for each rank; products by " + gemm + ", and attention, on the host";
}

#else

using by = heddle::compute::host<HEDDLE_GEMM>;

struct session {
  session(int&, char**) {}
  void begin(int) {}
};

inline std::string about(const char* gemm) {
  return std::string("host; products by ") + gemm;
}

#endif

}  // namespace computed
