// heddle/train/impl/host_training.hpp: the list of trainers' parts to compile once.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/model/pipeline/table_runner.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/train/local_stages.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/same_options.hpp>
#if defined(HEDDLE_COMPILED_GEMM)
#include HEDDLE_COMPILED_GEMM_HEADER
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

// HEDDLE_HOST_TRAINING(extern, T); declares that the parts for elements T are elsewhere, HEDDLE_HOST_TRAINING(, T); compiles them
// here: of worlds of threads, without an observer and with a recorder.
#define HEDDLE_HOST_TRAINING(KIND, T)                                                                      \
  KIND template class model::parameter_store<T, host_memory>;                                              \
  KIND template class model::detail::table_runner<T, host_memory, threads_communicator, null_observer>;    \
  KIND template class model::detail::table_runner<T, host_memory, threads_communicator, observe::recorder>; \
  KIND template std::size_t train::detail::first_unfit<T>(std::span<const T>, bool) noexcept
// Sums of gradients by a backend: the host's, with the library of products that the program has.
#define HEDDLE_HOST_SUMS(KIND, GEMM, T)                                                                          \
  KIND template void train::detail::shared_sums<T, host_memory>::add<threads_communicator, compute::host<GEMM>>( \
      threads_communicator&, compute::host<GEMM>&, std::span<const int>, std::span<T>, int)
#define HEDDLE_THREADS_TRAINING(KIND)                                                                                 \
  KIND template void train::detail::require_no_fault<threads_communicator>(threads_communicator&, const std::string&, \
                                                                           std::string, int);                         \
  KIND template void train::stop_nonfinite<threads_communicator>(                                                     \
      threads_communicator&, train::detail::nonfinite_finding, std::int64_t, double, double);                         \
  KIND template void train::require_same_options<threads_communicator>(threads_communicator&, const std::string&)

namespace heddle::inline v0 {

HEDDLE_HOST_TRAINING(extern, float);
HEDDLE_HOST_TRAINING(extern, double);
HEDDLE_HOST_SUMS(extern, compute::portable, float);
HEDDLE_HOST_SUMS(extern, compute::portable, double);
#if defined(HEDDLE_COMPILED_GEMM)
HEDDLE_HOST_SUMS(extern, HEDDLE_COMPILED_GEMM, float);
HEDDLE_HOST_SUMS(extern, HEDDLE_COMPILED_GEMM, double);
#endif
HEDDLE_THREADS_TRAINING(extern);

}  // namespace heddle::inline v0
