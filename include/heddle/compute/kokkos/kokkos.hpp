// heddle/compute/kokkos/kokkos.hpp: a backend on any Kokkos execution space.
#pragma once

#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/compute/kokkos/optimizer.hpp>
#include <heddle/compute/kokkos/cached_rows.hpp>
#include <heddle/compute/kokkos/elementwise.hpp>
#include <heddle/compute/kokkos/expert_choice.hpp>
#include <heddle/compute/kokkos/head_parts.hpp>
#include <heddle/compute/kokkos/host_products.hpp>
#include <heddle/compute/kokkos/images.hpp>
#include <heddle/compute/kokkos/routing.hpp>
#include <heddle/compute/kokkos/rows.hpp>
#include <heddle/compute/kokkos/sums.hpp>
#include <heddle/compute/kokkos/team_products.hpp>
#include <heddle/compute/kokkos/teams.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0::compute {

namespace detail::on_kokkos {

/// Where a backend's products and attention are computed.
template <class Exec, class Gemm>
struct products_of {
  using type = host_products<Exec, Gemm>;
};
template <class Exec, std::int64_t TileBytes, int TeamSize>
struct products_of<Exec, teams<TileBytes, TeamSize>> {
  using type = team_products<Exec, TileBytes, TeamSize>;
};
template <class Gemm>
inline constexpr bool are_teams = false;
template <std::int64_t TileBytes, int TeamSize>
inline constexpr bool are_teams<teams<TileBytes, TeamSize>> = true;
/// Whether teams have room for three tiles of 8 x 9 double, and no negative number of threads.
template <class Gemm>
inline constexpr bool teams_have_room = true;
template <std::int64_t TileBytes, int TeamSize>
inline constexpr bool teams_have_room<teams<TileBytes, TeamSize>> = TileBytes >= 2048 && TeamSize >= 0;
/// What a backend has that is asked for nothing else.
template <class Exec>
using usual_products = std::conditional_t<kokkos_memory<Exec>::host_accessible, portable, teams<>>;

}  // namespace detail::on_kokkos

/// A backend on an instance of a Kokkos execution space: `compute::kokkos<Kokkos::Serial, compute::onednn>`. It serves one rank;
/// tensors lie in `kokkos_memory<ExecSpace>`. Element-wise kernels, biases, norms, embeddings, rows of caches, softmax cross-entropy, sums,
/// casts, AdamW, images and the routing of experts are Kokkos kernels on that instance; where that runs on the host they are made of the
/// host's vectorised loops. Sums are added in an order that depends on their shape, and on whether the host computes them, but not on the
/// number of threads. Matrix products (also of experts) and attention run on the host, by `host<Gemm>` with `threads` cores, after a fence of the
/// instance, where the host can use the memory of the execution space. On OpenMP and Threads these are threads of the
/// instance, if it has that many. Elsewhere, and for a `Gemm` that is `teams<>`, they are team kernels of the instance.
/// Kernels are described in kernels.hpp.
/// Errors: `kokkos_not_initialized` if Kokkos is not; `config_error` for fewer than one thread; `layout_error` if the arguments
/// of a kernel do not fit together.
template <class ExecSpace, class Gemm = detail::on_kokkos::usual_products<ExecSpace>>
  requires detail::on_kokkos::are_teams<Gemm> || (gemm_library<Gemm, float> && gemm_library<Gemm, double>)
class kokkos : public detail::on_kokkos::products_of<ExecSpace, Gemm>::type {
  static_assert(
      detail::on_kokkos::teams_have_room<Gemm>,
      "heddle: teams<TileBytes, TeamSize> takes at least 2048 bytes, which are three tiles of 8 x 9 double, and "
      "a number of threads, or 0 for one that suits the tile");
  using products = typename detail::on_kokkos::products_of<ExecSpace, Gemm>::type;

 public:
  using kind = backend_kind;
  using space = kokkos_memory<ExecSpace>;
  using gemm = Gemm;

  /// On an instance of its own.
  explicit kokkos(int threads = 1) : products(threads) {}
  /// On this instance.
  explicit kokkos(ExecSpace instance, int threads = 1) : products(std::move(instance), threads) {}

  /// On which bodies of operations are launched.
  auto launcher() noexcept { return this->launcher_of({this->queue_.instance(), this->queue_, rooms_}); }

  using products::queue;

 private:
  detail::on_kokkos::kept_rooms<ExecSpace> rooms_{};
};

}  // namespace heddle::inline v0::compute
