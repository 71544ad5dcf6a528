// heddle/compute/kokkos/host_products.hpp: matrix products and attention of a Kokkos backend by the host's kernels, in memory that the host can use.
#pragma once

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/host_threads.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace heddle::inline v0::compute::detail::on_kokkos {

// What a kernel of the host takes for an argument in Kokkos memory that the host can use.
template <class Space, class X>
constexpr const X& for_host(const X& x) noexcept {
  return x;
}
template <class Space, class T, class Shape>
constexpr auto for_host(const view<T, Shape, Space>& x) noexcept {
  if constexpr (Shape::rank() == 1)
    return std::span<T>(x.address(), static_cast<std::size_t>(x.size()));
  else
    return view<T, Shape>(x.address(), x.shape());
}

/// The queue of a backend, and the host's kernels with `threads` cores, after a fence of the queue's instance. On OpenMP and Threads
/// these are threads of the instance, if it has that many.
template <class Exec, class Gemm>
class host_products {
 public:
  using space = kokkos_memory<Exec>;

  explicit host_products(int threads = 1) : host_(threads, lent(threads)) {}
  explicit host_products(Exec instance, int threads = 1) : queue_(std::move(instance)), host_(threads, lent(threads)) {}

  typename space::queue& queue() noexcept { return queue_; }
  /// The cores of products; how many threads kernels have is Kokkos' own setting.
  int threads() const noexcept { return host_.threads(); }
  const char* gemm_name() const noexcept { return host_.gemm_name(); }
  const char* half_product_name() const noexcept { return host_.half_product_name(); }
  /// On which bodies of attention run.
  library_team<Gemm> launcher(const ops::attention_operation& op)
    requires kokkos_memory<Exec>::host_accessible
  {
    return waited().launcher(op);
  }

  template <transpose TA = transpose::no, transpose TB = transpose::no, class... Args>
    requires kokkos_memory<Exec>::host_accessible &&
             requires(host<Gemm>& h, const Args&... args) { h.template matmul<TA, TB>(for_host<space>(args)...); }
  void matmul(const Args&... args) {
    waited().template matmul<TA, TB>(for_host<space>(args)...);
  }
  template <transpose TB = transpose::no, class... Args>
    requires kokkos_memory<Exec>::host_accessible &&
             requires(host<Gemm>& h, const Args&... args) { h.template grouped_matmul<TB>(for_host<space>(args)...); }
  void grouped_matmul(const Args&... args) {
    waited().template grouped_matmul<TB>(for_host<space>(args)...);
  }
  template <class... Args>
    requires kokkos_memory<Exec>::host_accessible && requires(host<Gemm>& h, const Args&... args) {
      h.grouped_matmul_backward_weight(for_host<space>(args)...);
    }
  void grouped_matmul_backward_weight(const Args&... args) {
    waited().grouped_matmul_backward_weight(for_host<space>(args)...);
  }

 protected:
  typename space::queue queue_{};

 private:
  /// The host's backend, once the queue is done with the operands.
  host<Gemm>& waited() {
    queue_.wait();
    return host_;
  }
  lent_threads lent(int threads) const { return threads_of(queue_.instance(), threads); }

  host<Gemm> host_;  // may have threads of the queue's instance
};

}  // namespace heddle::inline v0::compute::detail::on_kokkos
