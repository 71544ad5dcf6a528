// heddle/compute/impl/host_kernels.hpp: the list of host kernels that are compiled once.
#pragma once

#include <heddle/compute/host/host.hpp>
#if defined(HEDDLE_COMPILED_GEMM)
#include HEDDLE_COMPILED_GEMM_HEADER
#endif

// HEDDLE_HOST_KERNELS(extern, T); declares that kernels of T are elsewhere, HEDDLE_HOST_KERNELS(, T); compiles them here. Only
// functions that are not inline: compilers instantiate those in each unit all the same. Kernels of half precision are compiled where
// they are used, and so are those that call another library of matrix products than heddle's own, unless HEDDLE_COMPILED_GEMM names
// it: a type such as heddle::compute::onednn, whose header HEDDLE_COMPILED_GEMM_HEADER is.
#define HEDDLE_HOST_KERNELS(KIND, T)                                                       \
  KIND template body_type<ops::adamw, T, team&> body;                                      \
  KIND template body_type<ops::undo_adamw, T, team&> body;                                 \
  KIND template body_type<ops::cross_entropy_loss, T, team&> body;                         \
  KIND template body_type<ops::row_max, T, team&> body;                                    \
  KIND template body_type<ops::row_sum_exp, T, team&> body;                                \
  KIND template body_type<ops::pick_target, T, team&> body;                                \
  KIND template body_type<ops::add_to_softmax, T, team&> body;                             \
  KIND template body_type<ops::cross_entropy_backward, T, team&> body;                     \
  KIND template body_type<ops::weighted_cross_entropy_backward, T, team&> body;            \
  KIND template body_type<ops::gelu, T, team&> body;                                       \
  KIND template body_type<ops::gelu_backward, T, team&> body;                              \
  KIND template body_type<ops::fill, T, team&> body;                                       \
  KIND template body_type<ops::copy, T, team&> body;                                       \
  KIND template body_type<ops::add, T, team&> body;                                        \
  KIND template body_type<ops::scale, T, team&> body;                                      \
  KIND template body_type<ops::add_bias, T, team&> body;                                   \
  KIND template body_type<ops::add_bias_backward, T, team&> body;                          \
  KIND template body_type<ops::sum_of_squares, T, team&> body;                             \
  KIND template body_type<ops::count_nonfinite, T, team&> body;                            \
  KIND template body_type<ops::embedding, T, team&> body;                                  \
  KIND template body_type<ops::embedding_backward, T, team&> body;                         \
  KIND template body_type<ops::add_positions, T, team&> body;                              \
  KIND template body_type<ops::add_positions_backward, T, team&> body;                     \
  KIND template body_type<ops::unfold, T, team&> body;                                     \
  KIND template body_type<ops::unfold_backward, T, team&> body;                            \
  KIND template body_type<ops::layer_norm, T, team&> body;                                 \
  KIND template body_type<ops::layer_norm_backward_input, T, team&> body;                  \
  KIND template body_type<ops::layer_norm_backward_weight, T, team&> body;                 \
  KIND template body_type<ops::rms_norm, T, team&> body;                                   \
  KIND template body_type<ops::rms_norm_backward_input, T, team&> body;                    \
  KIND template body_type<ops::rms_norm_backward_weight, T, team&> body;                   \
  KIND template void choose_greatest(std::int64_t, const T*, std::int64_t, std::int32_t*); \
  KIND template body_type<ops::permute, T, team&> body;                                    \
  KIND template body_type<ops::unpermute_backward, T, team&> body;                         \
  KIND template body_type<ops::gated<silu>, T, team&> body;                                \
  KIND template body_type<ops::gated_backward<silu>, T, team&> body;                       \
  KIND template body_type<ops::gated<gelu_tanh>, T, team&> body;                           \
  KIND template body_type<ops::gated_backward<gelu_tanh>, T, team&> body;                  \
  KIND template body_type<ops::gated<relu>, T, team&> body;                                \
  KIND template body_type<ops::gated_backward<relu>, T, team&> body;                       \
  KIND template body_type<ops::gated<clamped_swiglu>, T, team&> body;                      \
  KIND template body_type<ops::gated_backward<clamped_swiglu>, T, team&> body;             \
  KIND template body_type<ops::rotary<rotary_pairs::halves, false>, T, team&> body;        \
  KIND template body_type<ops::rotary<rotary_pairs::halves, true>, T, team&> body;         \
  KIND template body_type<ops::rotary<rotary_pairs::neighbours, false>, T, team&> body;    \
  KIND template body_type<ops::rotary<rotary_pairs::neighbours, true>, T, team&> body

// What multiplies by a library: attention and products that threads share.
#define HEDDLE_HOST_PRODUCTS(KIND, GEMM, T)                                                                   \
  KIND template body_type<ops::attention, T, product_team<GEMM>&> body;                                       \
  KIND template body_type<ops::attention_backward, T, product_team<GEMM>&> body;                              \
  KIND template void multiply_shared<GEMM, transpose::no, transpose::no, T, T, T>(                            \
      team&, std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, T, T*, \
      std::int64_t);                                                                                          \
  KIND template void multiply_shared<GEMM, transpose::no, transpose::yes, T, T, T>(                           \
      team&, std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, T, T*, \
      std::int64_t);                                                                                          \
  KIND template void multiply_shared<GEMM, transpose::yes, transpose::no, T, T, T>(                           \
      team&, std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, T, T*, \
      std::int64_t);                                                                                          \
  KIND template void multiply_shared<GEMM, transpose::yes, transpose::yes, T, T, T>(                          \
      team&, std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, T, T*, \
      std::int64_t)

#define HEDDLE_HOST_TILES(KIND, T, BYTES)                                                                         \
  KIND template void multiply_blocked<gemm_tile<T, BYTES>, T>(std::int64_t, std::int64_t, std::int64_t, const T*, \
                                                              std::int64_t, std::int64_t, const T*, std::int64_t, \
                                                              std::int64_t, T, T*, std::int64_t)

namespace heddle::inline v0::compute::detail {

HEDDLE_HOST_KERNELS(extern, float);
HEDDLE_HOST_KERNELS(extern, double);
HEDDLE_HOST_PRODUCTS(extern, portable, float);
HEDDLE_HOST_PRODUCTS(extern, portable, double);
#if defined(HEDDLE_COMPILED_GEMM)
HEDDLE_HOST_PRODUCTS(extern, HEDDLE_COMPILED_GEMM, float);
HEDDLE_HOST_PRODUCTS(extern, HEDDLE_COMPILED_GEMM, double);
#endif
HEDDLE_HOST_TILES(extern, float, 16);
HEDDLE_HOST_TILES(extern, double, 16);
#if defined(__x86_64__)
HEDDLE_HOST_TILES(extern, float, 32);
HEDDLE_HOST_TILES(extern, float, 64);
HEDDLE_HOST_TILES(extern, double, 32);
HEDDLE_HOST_TILES(extern, double, 64);
#endif

}  // namespace heddle::inline v0::compute::detail
