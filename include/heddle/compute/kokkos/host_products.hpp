// heddle/compute/kokkos/host_products.hpp: the host's products for a Kokkos backend.
#pragma once

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/host_threads.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>

namespace heddle::inline v0::compute::detail::on_kokkos {

/// What kernels are launched on, and the host's backend, whose products and attention are run in memory that it can use.
template <class Exec, class Gemm>
struct on_host : on<Exec> {
  host<Gemm>& products;
};
template <class Op>
concept run_on_host = std::derived_from<Op, ops::product_operation> || std::derived_from<Op, ops::attention_operation>;
/// Products and attention of the host, once the queue is done with the operands.
template <run_on_host Op, class Exec, class Gemm, class... V>
  requires kokkos_memory<Exec>::host_accessible &&
           requires(const on_host<Exec, Gemm>& to, const V&... v) { body(Op{}, to.products.launcher(), v...); }
void body(Op op, const on_host<Exec, Gemm>& to, const V&... v) {
  to.queue.wait();
  body(op, to.products.launcher(), v...);
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

 protected:
  on_host<Exec, Gemm> launcher_of(const on<Exec>& of) noexcept { return {of, host_}; }

  typename space::queue queue_{};

 private:
  lent_threads lent(int threads) const { return threads_of(queue_.instance(), threads); }

  host<Gemm> host_;  // may have threads of the queue's instance
};

}  // namespace heddle::inline v0::compute::detail::on_kokkos
