// heddle/model/paper/timed.hpp: a backend that computes, and notes times of kernels.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/paper/backend.hpp>
#include <heddle/model/paper/profile.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model {

/// `Kernels` with a clock: each call waits for its queue and is noted in `times()`, with the name, operations and bytes that
/// a `paper_backend<Kernels>` notes of it. It has the kernels and facets of `Kernels`, and its memory.
template <class Kernels>
class timed_backend {
 public:
  using kind = compute::backend_kind;
  using space = space_of<Kernels>;

  /// Made as `Kernels` is.
  template <class... Args>
    requires std::is_constructible_v<Kernels, Args...>
  explicit timed_backend(Args&&... args) : kernels_(std::forward<Args>(args)...) {}

  auto& queue() noexcept { return compute::queue_of(kernels_); }
  int threads() const noexcept { return kernels_.threads(); }
  const char* gemm_name() const noexcept { return kernels_.gemm_name(); }
  const char* half_product_name() const noexcept
    requires requires(const Kernels& k) { k.half_product_name(); }
  {
    return kernels_.half_product_name();
  }
  const kernel_times& times() const noexcept { return times_; }
  kernel_times& times() noexcept { return times_; }

  /// An operation, as `compute::run` calls it.
  template <class Op, class T, class... Args>
    requires compute::offered<Op, Kernels, T>
  void run(const Args&... args) {
    const std::int64_t begin = now_ns();
    compute::run<Op>(kernels_, args...);
    queue().wait();
    times_.note(detail::name_of_operation<Op>(), detail::operation_flops<Op>(queue(), args...),
                (std::int64_t{0} + ... + detail::bytes_of_arguments(args)),
                1e-9 * static_cast<double>(now_ns() - begin));
  }

 private:
  Kernels kernels_;
  kernel_times times_;
};

}  // namespace heddle::inline v0::model
