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
  // Statistics and sums of elements of type T: float for those of 16 bits, and then T is deduced from what is summed: such a call has a second form.
  template <class T>
  using in_sums = std::type_identity_t<row<const sum_of_type<T>>>;
  template <class T>
  using sums = std::type_identity_t<row<sum_of_type<T>>>;
  template <class T>
  using sum_matrix = std::type_identity_t<matrix<sum_of_type<T>>>;
  template <class T>
  using in_sum_matrix = std::type_identity_t<matrix<const sum_of_type<T>>>;
  using ids_row = row<const std::int32_t>;
  template <class T>
  using heads = head_rows<T, Space>;
  template <class T>
  using in_heads = std::type_identity_t<heads<const T>>;

 public:
  template <class A, class T>
  void gated(in_row<T> gate, in_row<T> up, row<T> h) {
    argument_checks::sizes("gated", gate.size(), "elements of up", up.size(), "elements of h", h.size());
    launch_gated<A>(on(), gate.size(), gate.address(), up.address(), h.address());
  }
  template <class A, class T>
  void gated_backward(in_row<T> gate, in_row<T> up, in_row<T> dh, row<T> dgate, also<T> dup) {
    argument_checks::sizes("gated_backward", gate.size(), "elements of up", up.size(), "elements of dh", dh.size(),
                           "elements of dgate", dgate.size(), "elements of dup", dup.size());
    launch_gated_backward<A>(on(), gate.size(), gate.address(), up.address(), dh.address(), dgate.address(),
                             dup.address());
  }

  /// Errors: also `layout_error` for a position that the tables do not have, where kernels run on the host: then
  /// the positions are looked at after a wait for the queue.
  template <rotary_pairs Pairs = rotary_pairs::halves, class T>
  void rotary(in_heads<T> x, ids_row positions, in_sum_matrix<T> cos, in_sum_matrix<T> sin, heads<T> y) {
    turn<Pairs, false, T>("rotary", x, positions, cos, sin, y);
  }
  template <rotary_pairs Pairs = rotary_pairs::halves, class T>
  void rotary_backward(in_heads<T> dy, ids_row positions, in_sum_matrix<T> cos, in_sum_matrix<T> sin, heads<T> dx) {
    turn<Pairs, true, T>("rotary_backward", dy, positions, cos, sin, dx);
  }

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

  Backend& self() noexcept { return static_cast<Backend&>(*this); }
  auto& queue() noexcept { return self().queue(); }
  auto on() noexcept { return self().launcher(); }
  template <class T, class U>
  static void same_shape(const char* kernel, const char* what, const matrix<T>& x, const matrix<U>& y) {
    if constexpr (!checks_arguments) return;
    if (x.extent(0) != y.extent(0) || x.extent(1) != y.extent(1)) [[unlikely]]
      wrong_shape(kernel, what, {x.extent(0), x.extent(1)}, {y.extent(0), y.extent(1)});
  }
  template <rotary_pairs Pairs, bool Back, class T>
  void turn(const char* kernel, const heads<const T>& x, const ids_row& positions, const in_sum_matrix<T>& cos,
            const in_sum_matrix<T>& sin, const heads<T>& y) {
    using checks = argument_checks;
    // Their sizes and addresses are looked at, not what is there.
    const head_rows<const T> from{x.data, x.rows, x.heads, x.head_dim, x.stride};
    const head_rows<const T> to{y.data, y.rows, y.heads, y.head_dim, y.stride};
    checks::same_heads<T>(kernel, "the output", from, to);
    checks::rows_apart(kernel, "the input", from);
    same_shape(kernel, "the table of sines", cos, sin);
    expect(kernel, "number of positions", x.rows, positions.size());
    if (checks_arguments && 2 * cos.extent(1) > x.head_dim) [[unlikely]]
      throw layout_error("heddle: " + std::string(kernel) + ": tables of " + std::to_string(cos.extent(1)) +
                         " columns turn " + std::to_string(2 * cos.extent(1)) + " elements, but a head has " +
                         std::to_string(x.head_dim));
    if constexpr (decltype(on())::host_can_read && checks_arguments) {
      queue().wait();
      for (std::int64_t r = 0; r < positions.size(); ++r)
        if (const std::int32_t p = positions.address()[r]; p < 0 || p >= cos.extent(0)) [[unlikely]]
          throw layout_error("heddle: " + std::string(kernel) + ": positions should be from 0 to " +
                             std::to_string(cos.extent(0) - 1) + ", as the tables are, got " + std::to_string(p));
    }
    launch_rotary<Pairs, Back>(on(), x, positions.address(), cos.extent(1), cos.address(), sin.address(), y);
  }
  static void optimizer_sizes(const char* kernel, std::int64_t n, std::int64_t g, std::int64_t m, std::int64_t v) {
    argument_checks::sizes(kernel, n, "elements of g", g, "elements of m", m, "elements of v", v);
  }
  static void optimizer_sizes(std::int64_t n, std::int64_t weights, std::int64_t g, std::int64_t m, std::int64_t v) {
    argument_checks::sizes("adamw", n, "elements of the weights", weights);
    optimizer_sizes("adamw", n, g, m, v);
  }
};

}  // namespace heddle::inline v0::compute::detail
