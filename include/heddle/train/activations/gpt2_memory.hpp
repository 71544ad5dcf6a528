// heddle/train/activations/gpt2_memory.hpp: the bytes of GPT-2's activations as a formula, for `schedule::fits`.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/block.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/gpt2_layers.hpp>
#include <heddle/model/recompute.hpp>
#include <heddle/model/saved_activations.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::train {

/// A GPT-2 on its ranks. `stages`: of the pipeline, with the blocks split evenly; `samples`: of the largest microbatch;
/// `tp`: ranks that split each layer.
template <class S>
concept gpt2_shape = requires {
  { S::config.width } -> std::convertible_to<int>;
  { S::stages } -> std::convertible_to<int>;
  { S::samples } -> std::convertible_to<std::int64_t>;
};

namespace detail {

template <class S>
constexpr int tp_of() noexcept {
  if constexpr (requires { S::tp; })
    return S::tp;
  else
    return 1;
}
// What a policy computes again; with settings given at start-up it may be other.
template <class Activations>
constexpr model::recompute_plan recomputed_by() noexcept {
  if constexpr (requires { Activations::again; })
    return Activations::again;
  else
    return {};
}
template <class Activations>
struct keeps_by {
  using type = Activations;
};
template <class Activations>
  requires requires { typename Activations::kept; }
struct keeps_by<Activations> {
  using type = typename Activations::kept;
};

// Bytes of pieces of memory, each of which begins a cache line.
template <class T>
constexpr std::int64_t in_lines(std::int64_t elements) noexcept {
  constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  return (elements + line - 1) / line * 64;
}
struct saved_piece {
  model::activation what;
  bool for_weights;
  std::int64_t elements;
};
constexpr std::array<saved_piece, 12> pieces_of_block(std::int64_t rows, const model::block_extents& e) noexcept {
  using a = model::activation;
  return {{{a::ln_1_out, true, rows * e.width},
           {a::ln_1_out, true, rows},
           {a::ln_1_out, true, rows},
           {a::attn_qkv, false, rows * 3 * e.heads * e.head_dim},
           {a::attn_out, true, rows * e.heads * e.head_dim},
           {a::attn_out, false, rows * e.heads},
           {a::mid, true, rows * e.width},
           {a::ln_2_out, true, rows * e.width},
           {a::ln_2_out, true, rows},
           {a::ln_2_out, true, rows},
           {a::mlp_hidden, false, rows * e.hidden},
           {a::mlp_activated, true, rows * e.hidden}}};
}
constexpr std::array<saved_piece, 4> pieces_of_end(std::int64_t rows, std::int64_t width, std::int64_t words) noexcept {
  using a = model::activation;
  return {{{a::ln_f_out, true, rows * width},
           {a::ln_f_out, true, rows},
           {a::ln_f_out, true, rows},
           {a::head_logits, true, rows * words}}};
}
// Bytes of the pieces that are in `of`, or of those that are not.
template <class T, std::size_t N>
constexpr std::int64_t bytes_of(const std::array<saved_piece, N>& pieces, model::activation_set of, bool in,
                                bool for_weights_only = false) noexcept {
  std::int64_t n = 0;
  for (const saved_piece& p : pieces)
    if (of.has(p.what) == in && (p.for_weights || !for_weights_only)) n += in_lines<T>(p.elements);
  return n;
}

}  // namespace detail

/// The activations of a GPT-2 with elements `T` under a policy: what `trainer::activation_bytes` counts, of the first
/// rank along tp, which has the most. A memory model for `schedule::fits`, with:
/// - `activation_bytes`: what a slot keeps of a microbatch, without what the policy computes again;
/// - `weight_input_bytes`: from I to W the slot stays, and gradients and what W needs of the recomputed come to it;
/// - `offload_bytes`: what leaves memory with OFFLOAD, for policies whose amount is fixed; nothing with
///   `amount::adaptive`, which may come to keep all;
/// - `recompute_bytes`: as `activation_bytes`, since RECOMPUTE writes into memory that all microbatches share;
/// - `resident_bytes`: that memory, and the other scratch of a stage. Not counted: weights, gradients, moments;
/// - `boundary_bytes`: one tensor between stages.
/// Units: bytes. `Shape` is a `gpt2_shape`.
template <class T, gpt2_shape Shape, policy Activations = activations::keep>
struct gpt2_memory {
  using kept = typename detail::keeps_by<Activations>::type;
  static constexpr model::recompute_plan again = detail::recomputed_by<Activations>();
  static constexpr std::int64_t rows = Shape::samples * Shape::config.context;

  static constexpr model::block_extents extents() noexcept {
    const auto most = [](std::int64_t n) { return balanced_split{n, detail::tp_of<Shape>()}.largest(); };
    const model::gpt2_config& c = Shape::config;
    return {.width = c.width, .heads = most(c.heads), .head_dim = c.head_dim(), .hidden = most(c.hidden())};
  }
  static constexpr std::int64_t words() noexcept {
    return balanced_split{Shape::config.vocabulary, detail::tp_of<Shape>()}.largest();
  }
  /// The blocks of a stage; in a table with two chains the second half has the same.
  static constexpr model::stage_layers layers_of(int stage) noexcept {
    return model::split_layers(Shape::config.layers, stage % Shape::stages, Shape::stages);
  }
  /// What block `layer` of the model keeps of a microbatch.
  static constexpr std::int64_t block_bytes(int layer) noexcept {
    const auto e = extents();
    return detail::in_lines<T>(rows * e.width) +
           detail::bytes_of<T>(detail::pieces_of_block(rows, e), again.of_block(layer), false);
  }
  /// What the final norm and the head keep of one.
  static constexpr std::int64_t end_bytes() noexcept {
    return detail::in_lines<T>(rows * Shape::config.width) + 3 * detail::in_lines<T>(rows) +
           detail::bytes_of<T>(detail::pieces_of_end(rows, Shape::config.width, words()), again.of_end(), false);
  }

  constexpr std::int64_t activation_bytes(int stage) const noexcept {
    const model::stage_layers part = layers_of(stage);
    std::int64_t n = part.has_head() ? end_bytes() : 0;
    for (int l = part.first; l < part.first + part.count; ++l) n += block_bytes(l);
    return n;
  }
  constexpr std::int64_t recompute_bytes(int stage) const noexcept { return activation_bytes(stage); }
  constexpr std::int64_t offload_bytes(int stage) const noexcept {
    std::int64_t n = 0;
    if constexpr (requires { kept::fixed_layers(0); }) {
      const model::stage_layers part = layers_of(stage);
      for (int l = 0; l < kept::fixed_layers(part.count); ++l)
        if (const std::int64_t bytes = block_bytes(part.first + l); bytes >= kept::least_bytes) n += bytes;
    }
    return n;
  }
  /// Between I and W: gradients, and what was computed again and W needs.
  constexpr std::int64_t deferred_bytes(int stage) const noexcept {
    const model::stage_layers part = layers_of(stage);
    const auto e = extents();
    std::int64_t n = ends(part);
    for (int l = part.first; l < part.first + part.count; ++l)
      n += gradients_of_block() + detail::bytes_of<T>(detail::pieces_of_block(rows, e), again.of_block(l), true, true);
    if (part.has_head()) n += detail::bytes_of<T>(detail::pieces_of_end(rows, e.width, words()), again.of_end(), true);
    return n;
  }
  constexpr std::int64_t weight_input_bytes(int stage) const noexcept {
    return activation_bytes(stage) + deferred_bytes(stage);
  }
  constexpr std::int64_t resident_bytes(int stage) const noexcept {
    const model::stage_layers part = layers_of(stage);
    const auto e = extents();
    const std::int64_t residual = detail::in_lines<T>(rows * e.width);
    std::int64_t n = ends(part) + residual;
    if (part.count > 0)
      n += 2 * gradients_of_block() + detail::in_lines<T>(rows * e.heads * e.head_dim) + residual +
           detail::bytes_of<T>(detail::pieces_of_block(rows, e), {}, false);
    else
      n += residual;
    if (!part.has_head()) return n;
    const std::int64_t at_once = Shape::config.context;  // the head evaluates sample by sample
    return n + detail::bytes_of<T>(detail::pieces_of_end(rows, e.width, words()), again.of_end(), true) + residual +
           2 * detail::in_lines<T>(rows) + detail::in_lines<T>(at_once * words()) + 3 * detail::in_lines<T>(at_once);
  }
  constexpr std::int64_t boundary_bytes() const noexcept {
    return rows * Shape::config.width * static_cast<std::int64_t>(sizeof(T));
  }

 private:
  static constexpr std::int64_t gradients_of_block() noexcept {
    const auto e = extents();
    return 4 * detail::in_lines<T>(rows * e.width) + detail::in_lines<T>(rows * e.hidden) +
           detail::in_lines<T>(rows * 3 * e.heads * e.head_dim);
  }
  static constexpr std::int64_t ends(const model::stage_layers& part) noexcept {
    const std::int64_t residual = detail::in_lines<T>(rows * Shape::config.width);
    return (part.has_head() ? residual : 0) + (part.has_embedding() ? residual : 0);
  }
};

}  // namespace heddle::inline v0::train
