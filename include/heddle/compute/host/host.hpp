// heddle/compute/host/host.hpp: the host backend: C++, threads, a library's products.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/host/optimizer.hpp>
#include <heddle/compute/host/attention.hpp>
#include <heddle/compute/host/cached_rows.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/check.hpp>
#include <heddle/compute/host/cross_entropy.hpp>
#include <heddle/compute/host/elementwise.hpp>
#include <heddle/compute/host/embedding.hpp>
#include <heddle/compute/host/expert_choice.hpp>
#include <heddle/compute/host/gated.hpp>
#include <heddle/compute/host/gemm.hpp>
#include <heddle/compute/host/half_attention.hpp>
#include <heddle/compute/host/half_products.hpp>
#include <heddle/compute/host/head_parts.hpp>
#include <heddle/compute/host/images.hpp>
#include <heddle/compute/host/layer_norm.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/compute/host/products.hpp>
#include <heddle/compute/host/rotary.hpp>
#include <heddle/compute/host/routing.hpp>
#include <heddle/compute/host/team.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::compute {

/// The host backend: `compute::host<compute::onednn> backend{threads}` serves one rank with that many cores, the
/// calling thread among them. Kernels are described in kernels.hpp; all are deterministic for a given number of
/// threads, and all but the library's products do not depend on that number at all (the portable ones neither).
/// Errors: `config_error` for fewer than one thread, `layout_error` if the arguments of a kernel do not fit together.
template <class Gemm = portable>
  requires gemm_library<Gemm, float> && gemm_library<Gemm, double>
class host {
 public:
  using kind = backend_kind;
  using gemm = Gemm;
  using space = host_memory;

  explicit host(int threads = 1) : team_(threads) {}
  /// On so many threads that somebody else lends; on its own where `lent` has none.
  host(int threads, const lent_threads& lent) : team_(threads, lent) {}

  int threads() const noexcept { return team_.size(); }
  const char* gemm_name() const noexcept { return Gemm::name(); }
  /// Whether bf16 operands go to the library as they are; if not they are converted to float, block by block, as f16
  /// operands always are. And whether heddle's tiles multiply floats that are rounded to bf16 (`rounds_operands()`).
  const char* half_product_name() const noexcept {
    if (team_.in_tiles) return "bf16 of the library, rounded floats in heddle's tile registers (AMX)";
    if constexpr (bf16_gemm_library<Gemm>)
      if (team_.multiplies_bf16)
        return detail::converts_bf16_products<Gemm>((std::numeric_limits<std::int64_t>::max)())
                   ? "bf16 of the library for few rows, float after conversion for others"
                   : "bf16 of the library";
    return "float after conversion";
  }
  /// Whether `ops::matmul_rounded` may be run: products that round floats to bf16 themselves, in tile registers (AMX).
  bool rounds_operands() const noexcept { return team_.in_tiles; }
  /// Whether attention and `ops::store_rows` take keys and values whose blocks lie head by head (`head_rows::lies_by_head`).
  static constexpr bool takes_blocks_by_head = true;
  /// The host's queue, an empty object: kernels have run when their call returns.
  host_memory::queue& queue() noexcept { return queue_; }
  /// The threads themselves, for work that has no kernel here.
  team& workers() noexcept { return team_; }
  /// On which bodies of operations run: the threads, with the library.
  detail::product_team<Gemm>& launcher() noexcept { return team_; }

 private:
  detail::product_team<Gemm> team_;
  [[no_unique_address]] host_memory::queue queue_;
};

static_assert(backend_queue<host<>>);
static_assert(kernel_set<host<>, float> && kernel_set<host<>, double>);
static_assert(rotary_facet::offered<host<>, float> && gated_facet<silu>::offered<host<>, float>);
static_assert(reduction_facet::offered<host<>, float> && routing_facet::offered<host<>, float> &&
              choice_limit_facet::offered<host<>, float> && expert_balance_facet::offered<host<>, float> &&
              expert_choice_facet::offered<host<>, float> && head_part_facet::offered<host<>, float> &&
              grouped_product_facet::offered<host<>, float> && half_product_facet::offered<host<>, bf16> &&
              cast_facet<bf16>::offered<host<>, float> && stochastic_cast_facet::offered<host<>, float> &&
              master_optimizer_facet<bf16, bf16>::offered<host<>, float> &&
              offered<ops::stochastic_adamw<float>, host<>, float>);
static_assert(product_facet::offered<host<>, bf16> && elementwise_facet::offered<host<>, bf16> &&
              layer_norm_facet::offered<host<>, bf16> && rms_norm_facet::offered<host<>, bf16> &&
              rotary_facet::offered<host<>, bf16> && gated_facet<silu>::offered<host<>, bf16> &&
              embedding_facet::offered<host<>, bf16> && cross_entropy_facet::offered<host<>, bf16> &&
              loss_facet::offered<host<>, bf16> && routing_facet::offered<host<>, bf16> &&
              choice_limit_facet::offered<host<>, bf16> && expert_balance_facet::offered<host<>, bf16> &&
              grouped_product_facet::offered<host<>, bf16> && reduction_facet::offered<host<>, bf16> &&
              master_optimizer_facet<bf16, float>::offered<host<>, float>);

}  // namespace heddle::inline v0::compute

#if defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/compute/impl/host_kernels.hpp>
#endif
