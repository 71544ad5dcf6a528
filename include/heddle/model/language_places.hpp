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

/// The names of the activations of a description that are called by their tags (`layers::by_tag`).
template <class Description>
constexpr own_activations own_activations_of(const Description& of) {
  own_activations own;
  layers::detail::add_own_activations(of.in, own);
  layers::detail::add_own_activations(of.block, own);
  layers::detail::add_own_activations(of.other, own);
  layers::detail::add_own_activations(of.out, own);
  return own;
}

/// The layers of a language model with the places of their activations, for microbatches of at most `rows` rows of which
/// `plan` says what is computed again. `width`: of the residual stream. A constant where the description is one: stages allocate by it, and formulas of
/// memory count it.
template <class T, class Layouts, class Description>
struct language_places {
  using in_layer = std::remove_cvref_t<decltype(std::declval<Description&>().in)>;
  using main_block = std::remove_cvref_t<decltype(std::declval<Description&>().block)>;
  using other_block = std::remove_cvref_t<decltype(std::declval<Description&>().other)>;
  /// All kinds of block, for traits of layers.
  using block_layer = layers::kinds_of_block<main_block, other_block>;
  using out_layer = std::remove_cvref_t<decltype(std::declval<Description&>().out)>;
  using placer = layers::placer<T, Layouts>;

  constexpr language_places(const Description& of, const placer& place, std::int64_t rows, std::int64_t context,
                            std::int64_t width, const recompute_plan& again)
      : in(of.in),
        block(of.block),
        other(of.other),
        others(of.others),
        out(of.out),
        brief_out(of.out),
        stream(place.stream_elements(rows, width)) {
    if (Layouts::template splits_rows<dims<dim::width>>) all_of_stream = in_lines(rows * width);
    own_activations own;  // in the order of `own_activations_of`
    of_block.tail_rows = of_other.tail_rows = again.tail.of_rows(rows);
    place.place_activations(in, of_start, rows, {}, true, own);
    place.place_activations(block, of_block, rows, again.named & block_activations, true, own);
    place.place_activations(other, of_other, rows, again.named & block_activations, true, own);
    place.place_activations(out, of_end, rows, again.of_end(), false, own);
    place.place_activations(brief_out, of_brief_end, context, {}, true, own);
  }

  layers::placed<in_layer> in;
  layers::placed<main_block> block;
  [[no_unique_address]] layers::placed<other_block> other;  ///< the second kind of block, where there is one
  layers::other_layers others;                              ///< the layers of the model that have it
  layers::placed<out_layer> out, brief_out;                 ///< the second without saving, for one sample at a time
  layers::arena_sizes of_start{}, of_block{}, of_other{}, of_end{}, of_brief_end{};
  std::int64_t stream;             ///< elements of the residual stream on this rank, in whole cache lines
  std::int64_t all_of_stream = 0;  ///< and of the rows of all ranks, where each has a part

  /// Which of the sizes [0] and [1] are those of block `layer` of the model.
  static constexpr layers::dropping drops(const recompute_plan& again, int layer) noexcept {
    return again.all_of_block(layer) ? layers::dropping::all : layers::dropping::named;
  }
  /// Calls `f` with the placed block of a layer of the model.
  template <class F>
  constexpr decltype(auto) with_block(int layer, F&& f) const {
    return layers::with_kind<has_others>(others, layer, block, other, f);
  }
  template <class F>
  constexpr decltype(auto) with_block(int layer, F&& f) {
    return layers::with_kind<has_others>(others, layer, block, other, f);
  }
  /// Calls `f(placed block, layer)` for each kind of block that layers [first, first + count) have, with the first layer of that kind.
  template <class F>
  constexpr void each_kind(int first, int count, F&& f) const {
    if (const int l = first_of(false, first, count); l >= 0) f(block, l);
    if constexpr (has_others)
      if (const int l = first_of(true, first, count); l >= 0) f(other, l);
  }
  /// Elements that block `layer` keeps of a microbatch: its input, what it saves, and a tail of what it drops.
  constexpr std::int64_t kept(const recompute_plan& again, int layer) const noexcept {
    return stream + saved_of(again, layer) + (again.keeps_tail(layer) ? sizes_of(layer).tail : 0);
  }
  /// Where that tail lies, behind what the block saves; null where it keeps none.
  constexpr T* tail_in(const recompute_plan& again, int layer, T* saved) const noexcept {
    return saved != nullptr && again.keeps_tail(layer) ? saved + saved_of(again, layer) : nullptr;
  }
  /// The sizes of the block of a layer of the model.
  constexpr const layers::arena_sizes& sizes_of(int layer) const noexcept {
    return has_others && others.has(layer) ? of_other : of_block;
  }
  /// What layers [first, first + count) use in turn: the most of each; and the constants of each kind of block among them.
  constexpr layers::arena_sizes shared_by(int first, int count) const noexcept {
    layers::arena_sizes all;
    for (const bool second : {false, true}) {
      if (first_of(second, first, count) < 0) continue;
      const layers::arena_sizes& one = second ? of_other : of_block;
      all.shared = (std::max)(all.shared, one.shared);
      all.deferred = (std::max)(all.deferred, one.deferred);
      all.scratch = (std::max)(all.scratch, one.scratch);
      all.constants += one.constants;
    }
    return all;
  }
  /// Where those of the block of `layer` begin among the constants of layers [first, first + count).
  constexpr std::int64_t constants_of(int layer, int first, int count) const noexcept {
    return has_others && others.has(layer) && first_of(false, first, count) >= 0 ? of_block.constants : 0;
  }
  /// Scratch of a stage with layers [first, first + count), which use it in turn.
  constexpr std::int64_t scratch(bool embedding, int first, int count, bool head) const noexcept {
    std::int64_t most = (std::max)(embedding ? of_start.scratch : 0, shared_by(first, count).scratch);
    if (head) most = (std::max)({most, of_end.scratch, of_brief_end.scratch});
    return most;
  }
  /// So many elements, to the end of a cache line.
  static constexpr std::int64_t in_lines(std::int64_t elements) noexcept {
    std::int64_t used = 0;
    placer::take(used, elements);
    return used;
  }

 private:
  constexpr std::int64_t saved_of(const recompute_plan& again, int layer) const noexcept {
    return sizes_of(layer).saved[static_cast<std::size_t>(drops(again, layer))];
  }
  static constexpr bool has_others = !std::is_same_v<other_block, layers::no_block>;
  // The first of layers [first, first + count) with this kind of block; -1 without.
  constexpr int first_of(bool second, int first, int count) const noexcept {
    if constexpr (!has_others) {
      return !second && count > 0 ? first : -1;
    } else {
      for (int l = first; l < first + count; ++l)
        if (others.has(l) == second) return l;
      return -1;
    }
  }
};

}  // namespace heddle::inline v0::model
