// heddle/model/language_places.hpp: offsets of a language model's tensors in a stage's memory.
#pragma once

#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/placed.hpp>
#include <heddle/model/recompute_plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace heddle::inline v0::model {

/// The layers of a language model with the places of their activations, for microbatches of at most `rows` rows of which
/// `plan` says what is computed again. `width`: of the residual stream. A constant where the description is one: stages allocate by it, and formulas of
/// memory count it.
template <class T, class Layouts, class Description>
struct language_places {
  using in_layer = std::remove_cvref_t<decltype(std::declval<Description&>().in)>;
  using block_layer = std::remove_cvref_t<decltype(std::declval<Description&>().block)>;
  using out_layer = std::remove_cvref_t<decltype(std::declval<Description&>().out)>;
  using placer = layers::placer<T, Layouts>;

  constexpr language_places(const Description& of, const placer& place, std::int64_t rows, std::int64_t context,
                            std::int64_t width, const recompute_plan& again)
      : in(of.in), block(of.block), out(of.out), brief_out(of.out), stream(place.stream_elements(rows, width)) {
    if (Layouts::template splits_rows<dims<dim::width>>) all_of_stream = in_lines(rows * width);
    place.place_activations(in, of_start, rows, {}, true);
    place.place_activations(block, of_block, rows, again.named & block_activations, true);
    place.place_activations(out, of_end, rows, again.of_end(), false);
    place.place_activations(brief_out, of_brief_end, context, {}, true);
  }

  layers::placed<in_layer> in;
  layers::placed<block_layer> block;
  layers::placed<out_layer> out, brief_out;  ///< the second without saving, for one sample at a time
  layers::arena_sizes of_start{}, of_block{}, of_end{}, of_brief_end{};
  std::int64_t stream;             ///< elements of the residual stream on this rank, in whole cache lines
  std::int64_t all_of_stream = 0;  ///< and of the rows of all ranks, where each has a part

  /// Which of the sizes [0] and [1] are those of block `layer` of the model.
  static constexpr layers::dropping drops(const recompute_plan& again, int layer) noexcept {
    return again.every > 0 && (layer + 1) % again.every == 0 ? layers::dropping::all : layers::dropping::named;
  }
  /// Scratch of a stage, whose layers use it in turn.
  constexpr std::int64_t scratch(bool embedding, bool blocks, bool head) const noexcept {
    std::int64_t most = embedding ? of_start.scratch : 0;
    if (blocks) most = (std::max)(most, of_block.scratch);
    if (head) most = (std::max)({most, of_end.scratch, of_brief_end.scratch});
    return most;
  }
  /// So many elements, to the end of a cache line.
  static constexpr std::int64_t in_lines(std::int64_t elements) noexcept {
    std::int64_t used = 0;
    placer::take(used, elements);
    return used;
  }
};

}  // namespace heddle::inline v0::model
