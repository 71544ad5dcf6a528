// heddle/compute/kokkos/team_products.hpp: products and attention as team kernels.
#pragma once

#include <heddle/compute/group/attention_bodies.hpp>
#include <heddle/compute/group/grouped_products.hpp>
#include <heddle/compute/group/product_tiles.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/launch.hpp>
#include <heddle/compute/kokkos/teams.hpp>
#include <heddle/compute/ops/products.hpp>
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

/// What kernels are launched on, with teams for products and attention.
template <class Exec, std::int64_t TileBytes, int TeamSize>
struct on_teams : on<Exec> {
  team_launcher<Exec, TileBytes, TeamSize> teams_for(const char* kernel) const noexcept {
    return {this->queue, kernel};
  }
};
template <transpose TA, transpose TB, bool Sums, class Exec, std::int64_t TileBytes, int TeamSize, class T>
void body(ops::matmul<TA, TB, Sums>, const on_teams<Exec, TileBytes, TeamSize>& to, std::int64_t m, std::int64_t n,
          std::int64_t k, const T* a, const T* b, product_result<T, Sums>* c, sum_of_type<T> beta) {
  using sum = sum_of_type<T>;
  in_groups::launch_product_tiles<sum>(to.teams_for("heddle::matmul"), in_groups::product_tile < TA == transpose::yes,
                                       TB == transpose::yes, T, product_result<T, Sums>,
                                       sum > {{m, n, k, a, b, c, beta}, 0});
}
template <transpose TB, bool Sums, class Exec, std::int64_t TileBytes, int TeamSize, class T>
void body(ops::grouped_matmul<TB, Sums>, const on_teams<Exec, TileBytes, TeamSize>& to, std::int64_t rows,
          std::int64_t n, std::int64_t k, std::int64_t experts, std::int64_t, const T* x, const std::int64_t* offsets,
          const T* w, product_result<T, Sums>* y, sum_of_type<T> beta) {
  in_groups::multiply_groups<TB == transpose::yes>(
      to.teams_for("heddle::grouped_matmul"),
      in_groups::grouped_product_operands<T, product_result<T, Sums>, sum_of_type<T>>{rows, experts, k, n, x, w,
                                                                                      offsets, y, beta});
}
template <class Exec, std::int64_t TileBytes, int TeamSize, class T>
void body(ops::grouped_matmul_backward_weight, const on_teams<Exec, TileBytes, TeamSize>& to, std::int64_t,
          std::int64_t n, std::int64_t k, std::int64_t experts, std::int64_t, const T* x, const T* dy,
          const std::int64_t* offsets, sum_of_type<T>* dw, sum_of_type<T> beta) {
  in_groups::multiply_groups(
      to.teams_for("heddle::grouped_matmul_backward_weight"),
      in_groups::grouped_weight_operands<T, sum_of_type<T>, sum_of_type<T>>{experts, k, n, x, dy, offsets, dw, beta});
}
template <std::derived_from<ops::attention_operation> Op, class Exec, std::int64_t TileBytes, int TeamSize, class... V>
  requires requires(const team_launcher<Exec, TileBytes, TeamSize>& of, const V&... v) {
    in_groups::body(Op{}, of, v...);
  }
void body(Op op, const on_teams<Exec, TileBytes, TeamSize>& to, const V&... v) {
  in_groups::body(op, to.teams_for(Op::label), v...);
}

/// The queue of a backend, and its products and attention by teams. Sums are added in an order that depends on the size of the tiles
/// alone.
template <class Exec, std::int64_t TileBytes, int TeamSize>
class team_products {
 public:
  using space = kokkos_memory<Exec>;

  explicit team_products(int threads = 1) { check_threads(threads); }
  explicit team_products(Exec instance, int threads = 1) : queue_(std::move(instance)) { check_threads(threads); }

  typename space::queue& queue() noexcept { return queue_; }
  /// Cores of the host that products take beside the threads of Kokkos.
  static constexpr int threads() noexcept { return 1; }
  static constexpr const char* gemm_name() noexcept { return "team kernels of Kokkos"; }
  static constexpr const char* half_product_name() noexcept { return "team kernels of Kokkos, added up in float"; }

 protected:
  static on_teams<Exec, TileBytes, TeamSize> launcher_of(const on<Exec>& of) noexcept { return {of}; }

  typename space::queue queue_{};

 private:
  static void check_threads(int threads) {
    if (threads < 1) [[unlikely]]
      throw config_error("heddle: a compute backend needs at least 1 thread, got " + std::to_string(threads));
  }
};

}  // namespace heddle::inline v0::compute::detail::on_kokkos
