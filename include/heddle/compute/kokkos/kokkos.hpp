// heddle/compute/kokkos/kokkos.hpp: a backend on a Kokkos execution space: Kokkos kernels, and products of the host in memory of the host.
#pragma once

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/adamw.hpp>
#include <heddle/compute/kokkos/cached_rows.hpp>
#include <heddle/compute/kokkos/elementwise.hpp>
#include <heddle/compute/kokkos/expert_choice.hpp>
#include <heddle/compute/kokkos/expert_members.hpp>
#include <heddle/compute/kokkos/head_parts.hpp>
#include <heddle/compute/kokkos/host_threads.hpp>
#include <heddle/compute/kokkos/images.hpp>
#include <heddle/compute/kokkos/rows.hpp>
#include <heddle/compute/kokkos/sums.hpp>
#include <heddle/compute/launched_facets.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute {

namespace detail::on_kokkos {

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
template <class Space, class T>
constexpr head_rows<T> for_host(const head_rows<T, Space>& x) noexcept {
  return {x.data, x.rows, x.heads, x.head_dim, x.stride};
}
template <class Space>
constexpr key_pages for_host(const key_pages_in<Space>& x) noexcept {
  return {for_host<Space>(x.pages), x.page_rows};
}

}  // namespace detail::on_kokkos

/// A backend on an instance of a Kokkos execution space: `compute::kokkos<Kokkos::Serial, compute::onednn>`. It serves one rank;
/// tensors lie in `kokkos_memory<ExecSpace>`. Element-wise kernels, biases, norms, embeddings, rows of caches, softmax cross-entropy, sums,
/// casts, AdamW, images and the routing of experts are Kokkos kernels on that instance; where that runs on the host they are made of the
/// host's vectorised loops. Sums are added in an order that depends on their shape, and on whether the host computes them, but not on the
/// number of threads. Matrix products (also of experts) and attention run on the host, by `host<Gemm>` with `threads` cores, after a fence of the
/// instance: the backend has them where the host can use the memory of the execution space. On OpenMP and Threads these are threads of the
/// instance, if it has that many.
/// Kernels are described in kernels.hpp.
/// Errors: `kokkos_not_initialized` if Kokkos is not; `config_error` for fewer than one thread; `layout_error` if the arguments
/// of a kernel do not fit together.
template <class ExecSpace, class Gemm = portable>
  requires gemm_library<Gemm, float> && gemm_library<Gemm, double>
class kokkos : public detail::launched_facets<kokkos<ExecSpace, Gemm>, kokkos_memory<ExecSpace>>,
               public detail::on_kokkos::cache_members<kokkos<ExecSpace, Gemm>, kokkos_memory<ExecSpace>>,
               public detail::on_kokkos::expert_members<kokkos<ExecSpace, Gemm>, kokkos_memory<ExecSpace>>,
               public detail::on_kokkos::expert_choice_members<kokkos<ExecSpace, Gemm>, kokkos_memory<ExecSpace>>,
               public detail::on_kokkos::head_part_members<kokkos<ExecSpace, Gemm>, kokkos_memory<ExecSpace>>,
               public detail::on_kokkos::image_members<kokkos<ExecSpace, Gemm>, kokkos_memory<ExecSpace>> {
  using facets = detail::launched_facets<kokkos, kokkos_memory<ExecSpace>>;
  template <class T>
  using row = vector_view<T, kokkos_memory<ExecSpace>>;

 public:
  using kind = backend_kind;
  using space = kokkos_memory<ExecSpace>;
  using gemm = Gemm;

  /// On an instance of its own.
  explicit kokkos(int threads = 1) : host_(threads, lent(threads)) {}
  /// On this instance.
  explicit kokkos(ExecSpace instance, int threads = 1) : queue_(std::move(instance)), host_(threads, lent(threads)) {}

  typename space::queue& queue() noexcept { return queue_; }
  /// The cores of products; how many threads kernels have is Kokkos' own setting.
  int threads() const noexcept { return host_.threads(); }
  const char* gemm_name() const noexcept { return host_.gemm_name(); }
  const char* half_product_name() const noexcept { return host_.half_product_name(); }

 private:
  using host_kernels = host<Gemm>;

 public:
  using facets::adamw;
  using facets::cast;
  /// From float to bf16 with stochastic rounding.
  void cast(row<const float> x, row<bf16> y, const stochastic& rounding) {
    detail::expect("cast", "elements of y", x.size(), y.size());
    detail::on_kokkos::launch_cast_stochastic(launcher(), x.size(), x.address(), rounding, y.address());
  }
  /// Into bf16 weights that are rounded stochastically.
  template <class T, class G>
  void adamw(row<T> master, row<bf16> weights, row<G> g, std::type_identity_t<row<T>> m, std::type_identity_t<row<T>> v,
             const adamw_step& step, const stochastic& rounding) {
    facets::optimizer_sizes(master.size(), weights.size(), g.size(), m.size(), v.size());
    detail::on_kokkos::launch_adamw(launcher(), master.size(), master.address(), weights.address(),
                                    static_cast<const std::remove_const_t<G>*>(g.address()), m.address(), v.address(),
                                    step, rounding);
  }

  // ---- on the host ----
  template <transpose TA = transpose::no, transpose TB = transpose::no, class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.template matmul<TA, TB>(detail::on_kokkos::for_host<space>(args)...);
    }
  void matmul(const Args&... args) {
    queue_.wait();
    host_.template matmul<TA, TB>(detail::on_kokkos::for_host<space>(args)...);
  }
  template <class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.attention(detail::on_kokkos::for_host<space>(args)...);
    }
  void attention(const Args&... args) {
    queue_.wait();
    host_.attention(detail::on_kokkos::for_host<space>(args)...);
  }
  template <class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.attention_backward(detail::on_kokkos::for_host<space>(args)...);
    }
  void attention_backward(const Args&... args) {
    queue_.wait();
    host_.attention_backward(detail::on_kokkos::for_host<space>(args)...);
  }
  template <transpose TB = transpose::no, class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.template grouped_matmul<TB>(detail::on_kokkos::for_host<space>(args)...);
    }
  void grouped_matmul(const Args&... args) {
    queue_.wait();
    host_.template grouped_matmul<TB>(detail::on_kokkos::for_host<space>(args)...);
  }
  template <class... Args>
    requires space::host_accessible && requires(host_kernels& h, const Args&... args) {
      h.grouped_matmul_backward_weight(detail::on_kokkos::for_host<space>(args)...);
    }
  void grouped_matmul_backward_weight(const Args&... args) {
    queue_.wait();
    host_.grouped_matmul_backward_weight(detail::on_kokkos::for_host<space>(args)...);
  }

 private:
  friend class detail::launched_facets<kokkos, space>;
  friend class detail::on_kokkos::cache_members<kokkos, space>;
  friend class detail::on_kokkos::expert_members<kokkos, space>;
  friend class detail::on_kokkos::expert_choice_members<kokkos, space>;
  friend class detail::on_kokkos::head_part_members<kokkos, space>;
  friend class detail::on_kokkos::image_members<kokkos, space>;
  detail::on_kokkos::on<ExecSpace> launcher() const noexcept { return {queue_.instance()}; }

  lent_threads lent(int threads) const { return detail::on_kokkos::threads_of(queue_.instance(), threads); }

  typename space::queue queue_{};
  host_kernels host_;  // may have threads of the queue's instance
};

}  // namespace heddle::inline v0::compute
