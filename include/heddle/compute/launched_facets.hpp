// heddle/compute/launched_facets.hpp: facets of backends whose kernels are launched in the order of a queue: their arguments are checked, then they are launched.
#pragma once

#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace heddle::inline v0::compute::detail {

/// The base of a backend in memory of `Space`. `Backend` has `queue()` and `launcher()`, a small value whose namespace has the
/// kernels: `launch_gelu(launcher, n, x, y)` and so on, on addresses. `launcher.host_can_read`: the host can read that memory when the
/// queue is done.
/// Kernels are described in kernels.hpp. Errors: `layout_error` if the arguments of a kernel do not fit together.
template <class Backend, memory_space Space>
class launched_facets {
  template <class T>
  using row = vector_view<T, Space>;
  template <class T>
  using matrix = matrix_view<T, Space>;
  // What a kernel only reads: the element type is deduced from what it writes.
  template <class T>
  using in_row = std::type_identity_t<row<const T>>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;
  template <class T>
  using also = std::type_identity_t<row<T>>;

 public:
  // ---- AdamW ----
  template <class T>
  void adamw(row<T> p, in_row<T> g, also<T> m, also<T> v, const adamw_step& step) {
    optimizer_sizes("adamw", p.size(), g.size(), m.size(), v.size());
    launch_adamw(on(), p.size(), p.address(), g.address(), m.address(), v.address(), step);
  }
  template <class T, class W, class G>
  void adamw(row<T> master, row<W> weights, row<G> g, also<T> m, also<T> v, const adamw_step& step) {
    optimizer_sizes(master.size(), weights.size(), g.size(), m.size(), v.size());
    launch_adamw(on(), master.size(), master.address(), weights.address(), static_cast<const G*>(g.address()),
                 m.address(), v.address(), step);
  }
  /// Takes the last `adamw` with the same arguments back, up to rounding.
  template <class T>
  void undo_adamw(row<T> p, in_row<T> g, also<T> m, also<T> v, const adamw_step& step) {
    optimizer_sizes("undo_adamw", p.size(), g.size(), m.size(), v.size());
    launch_undo_adamw(on(), p.size(), p.address(), g.address(), m.address(), v.address(), step);
  }

 private:
  friend Backend;
  launched_facets() = default;

  auto on() noexcept { return static_cast<Backend&>(*this).launcher(); }
  static void optimizer_sizes(const char* kernel, std::int64_t n, std::int64_t g, std::int64_t m, std::int64_t v) {
    argument_checks::sizes(kernel, n, "elements of g", g, "elements of m", m, "elements of v", v);
  }
  static void optimizer_sizes(std::int64_t n, std::int64_t weights, std::int64_t g, std::int64_t m, std::int64_t v) {
    argument_checks::sizes("adamw", n, "elements of the weights", weights);
    optimizer_sizes("adamw", n, g, m, v);
  }
};

}  // namespace heddle::inline v0::compute::detail
