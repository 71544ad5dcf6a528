// heddle/compute/kokkos/team_products.hpp: matrix products and attention of a Kokkos backend as team kernels, on any execution space.
#pragma once

#include <heddle/compute/group/attention_bodies.hpp>
#include <heddle/compute/group/product_members.hpp>
#include <heddle/compute/group/product_tiles.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/teams.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::compute::detail::on_kokkos {

using in_groups::body;

/// The queue of a backend, and its products and attention by teams. Sums are added in an order that depends on the size of the tiles
/// alone. Offsets of groups, slices and pages lie in memory of the execution space, and are not looked at.
template <class Exec, std::int64_t TileBytes, int TeamSize>
class team_products
    : public in_groups::grouped_product_members<team_products<Exec, TileBytes, TeamSize>, kokkos_memory<Exec>> {
 public:
  using space = kokkos_memory<Exec>;

 private:
  template <class T>
  using matrix = matrix_view<T, space>;
  template <class T>
  using in_matrix = std::type_identity_t<matrix<const T>>;
  template <class T>
  using element = std::remove_const_t<T>;

 public:
  explicit team_products(int threads = 1) { check_threads(threads); }
  explicit team_products(Exec instance, int threads = 1) : queue_(std::move(instance)) { check_threads(threads); }

  typename space::queue& queue() noexcept { return queue_; }
  /// Cores of the host that products take beside the threads of Kokkos.
  static constexpr int threads() noexcept { return 1; }
  /// On which bodies of attention are launched.
  template <std::derived_from<ops::attention_operation> Op>
  team_launcher<Exec, TileBytes, TeamSize> launcher(Op) noexcept {
    return {queue_, Op::label};
  }
  static constexpr const char* gemm_name() noexcept { return "team kernels of Kokkos"; }
  static constexpr const char* half_product_name() noexcept { return "team kernels of Kokkos, added up in float"; }

  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires std::is_same_v<T, float> || std::is_same_v<T, double>
  void matmul(in_matrix<T> a, in_matrix<T> b, matrix<T> c, std::type_identity_t<T> beta = T(0)) {
    product<TA, TB, T>(a, b, beta, c);
  }
  /// Of bf16 and f16, added up in float and rounded once.
  template <transpose TA = transpose::no, transpose TB = transpose::no, class T>
    requires is_half_precision<T>
  void matmul(in_matrix<T> a, in_matrix<T> b, matrix<T> c, float beta = 0) {
    product<TA, TB, T>(a, b, beta, c);
  }
  template <transpose TA = transpose::no, transpose TB = transpose::no, class A, class B>
    requires(is_half_precision<std::remove_const_t<A>> &&
             std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>)
  void matmul(matrix<A> a, matrix<B> b, matrix<float> c, float beta = 0) {
    product<TA, TB, element<A>>(a, b, beta, c);
  }

 protected:
  typename space::queue queue_{};

 private:
  friend class in_groups::grouped_product_members<team_products, space>;
  team_launcher<Exec, TileBytes, TeamSize> group_launcher(const char* kernel) noexcept { return {queue_, kernel}; }

  template <transpose TA, transpose TB, class In, class Out, class Sum>
  void product(const matrix<const In>& a, const matrix<const In>& b, Sum beta, const matrix<Out>& c) {
    constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
    const auto [m, n, k] = argument_checks::product_size_of<ta, tb>("matmul", a, b, c);
    in_groups::launch_product_tiles<Sum>(
        group_launcher("heddle::matmul"),
        in_groups::product_tile<ta, tb, In, Out, Sum>{{m, n, k, a.address(), b.address(), c.address(), beta}, 0});
  }
  static void check_threads(int threads) {
    if (threads < 1) [[unlikely]]
      throw config_error("heddle: a compute backend needs at least 1 thread, got " + std::to_string(threads));
  }
};

}  // namespace heddle::inline v0::compute::detail::on_kokkos
