// heddle/model/pipeline/stage.hpp: concepts of a pipeline stage that executors need.
#pragma once

#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace heddle::inline v0::model {

/// The stages of a pipeline by their number, null where another rank has them: made of a list or a container of pointers. A
/// program with stages of several types compiles the container once.
template <class Stage>
class stage_pointers {
 public:
  stage_pointers() = default;
  stage_pointers(std::initializer_list<Stage*> stages) {
    for (Stage* s : stages) add(s);
  }
  template <class Stages>
    requires(!std::same_as<Stages, stage_pointers>)
  stage_pointers(const Stages& stages) {
    for (Stage* s : stages) add(s);
  }
  void add(Stage* stage) { all_.push_back(stage); }
  std::size_t size() const noexcept { return all_.size(); }
  Stage* operator[](std::size_t s) const noexcept { return static_cast<Stage*>(all_[s]); }

 private:
  std::vector<void*> all_;
};

/// A pipeline stage that runs forward, as an executor sees it. A stage does not keep `in` and `out` after the call; they
/// are empty where the microbatch enters or leaves the model here. `boundary_elements(samples)` is the size of the tensor
/// between stages, at its largest; a stage whose microbatches differ in length has `boundary_elements(samples, sequence)`
/// too, which is called with the batch's. What it says of one microbatch must be the same on all ranks. Where not all
/// tensors of a microbatch are equally large, a stage says both: `input_elements(batch)` of what it gets and
/// `output_elements(batch)` of what it gives, never more than `boundary_elements`. `model::of_stage` lists what else a
/// stage may have. `in` and `out` are rows in the stage's memory: spans, unless it names another (`typename S::space`, with
/// `queue()`, in whose order it works).
template <class S, class Batch>
concept forward_stage = requires(S s, const Batch& b, row_view<const typename S::scalar, space_of<S>> in,
                                 row_view<typename S::scalar, space_of<S>> out) {
  typename S::scalar;
  { s.boundary_elements(b.samples) } -> std::convertible_to<std::int64_t>;
  s.forward(0, b, in, out);
};

/// A stage for forward-only tables: it says so, `static constexpr bool forward_only = true`.
template <class S, class Batch>
concept inference_stage = forward_stage<S, Batch> && of_stage::forward_only<S>;

/// One pipeline stage as an executor sees it. `forward(slot, batch, in, out)` saves what the backward needs in `slot`;
/// `backward(slot, batch, dout, din)`, or `backward_input` and later `backward_weight(slot, batch)`, use it. A stage does
/// not keep `in`, `out`, `dout` or `din` after the call.
template <class S, class Batch>
concept pipeline_stage =
    forward_stage<S, Batch> && requires(S s, const Batch& b, row_view<const typename S::scalar, space_of<S>> in,
                                        row_view<typename S::scalar, space_of<S>> out) {
      s.backward(0, b, in, out);
      s.backward_input(0, b, in, out);
      s.backward_weight(0, b);
    };

/// A stage that may work at the same time as another on a thread of its own: `a.runs_beside(b)`, asked with the two
/// stages of an overlapped pair. Who says yes promises for F, B, I and W of both, of any two microbatches, that neither
/// writes memory that the other reads or writes (so not for a stage and itself, unless it keeps nothing outside the
/// slot), and that neither calls a communicator: collectives of two threads have no order that all ranks share. Stages
/// that do not say so run the two computations of a pair one after the other, in the order of the table on every rank.
template <class S>
concept companionable_stage = of_stage::has_runs_beside<S>;

namespace detail {

// Carries the stage into the compiler's message, next to the text that names the member.
template <bool Has, class Stage>
struct stage_has_it {
  static constexpr bool value = Has;
};

// One error for each member that is missing, and none of their consequences: who gets false uses none of them.
template <class S>
consteval bool stage_sizes_checked() {
  constexpr bool scalar = requires { typename S::scalar; };
  static_assert(stage_has_it<scalar, S>::value,
                "heddle: a pipeline stage needs `using scalar = ...;`, the type of the elements between stages");
  constexpr bool boundary = requires(S& s) {
    { s.boundary_elements(0) } -> std::convertible_to<std::int64_t>;
  };
  static_assert(
      stage_has_it<boundary, S>::value,
      "heddle: a pipeline stage needs `std::int64_t boundary_elements(std::int64_t samples) const`, the size of "
      "the tensor between stages at its largest");
  return scalar && boundary;
}
template <class S, class Batch>
consteval bool stage_verbs_checked() {
  using in = row_view<const typename S::scalar, space_of<S>>;
  using out = row_view<typename S::scalar, space_of<S>>;
  constexpr bool forward = requires(S& s, const Batch& b, in x, out y) { s.forward(0, b, x, y); };
  constexpr bool sizes = requires(S& s, const Batch& b) { s.input_elements(b); } ==
                         requires(S& s, const Batch& b) { s.output_elements(b); };
  static_assert(
      stage_has_it<sizes, S>::value,
      "heddle: a stage whose tensors are not equally large needs both `std::int64_t input_elements(const batch&) "
      "const` and `std::int64_t output_elements(const batch&) const`");
  static_assert(stage_has_it<forward, S>::value,
                "heddle: a pipeline stage needs `void forward(int slot, const batch&, std::span<const scalar> in, "
                "std::span<scalar> out)`");
  if constexpr (of_stage::forward_only<S>) {
    return forward && sizes;
  } else {
    constexpr bool backward = requires(S& s, const Batch& b, in dy, out dx) { s.backward(0, b, dy, dx); };
    static_assert(stage_has_it<backward, S>::value,
                  "heddle: a pipeline stage needs `void backward(int slot, const batch&, std::span<const scalar> dout, "
                  "std::span<scalar> din)`; one without backwards says `static constexpr bool forward_only = true;`");
    constexpr bool input = requires(S& s, const Batch& b, in dy, out dx) { s.backward_input(0, b, dy, dx); };
    static_assert(stage_has_it<input, S>::value,
                  "heddle: a pipeline stage needs `void backward_input(int slot, const batch&, std::span<const scalar> "
                  "dout, std::span<scalar> din)`, the first half of backward, for schedules that split it");
    constexpr bool weight = requires(S& s, const Batch& b) { s.backward_weight(0, b); };
    static_assert(stage_has_it<weight, S>::value,
                  "heddle: a pipeline stage needs `void backward_weight(int slot, const batch&)`, the second half of "
                  "backward, for schedules that split it");
    return forward && sizes && backward && input && weight;
  }
}

// A group of optional members is there whole or not at all: half of one has a member that is missing, or misspelled.
template <class S>
consteval bool stage_groups_checked() {
  constexpr bool lends = requires(S& s, row_view<typename S::scalar, space_of<S>> w) {
    s.lend_weights(w);
  } || requires(S& s, row_view<sum_of_type<typename S::scalar>, space_of<S>> g) { s.lend_gradients(g); };
  constexpr bool memory = lends == requires(S& s) { s.flat_elements(); } &&
                          requires(S& s) { s.weights_stay(true); } == requires(S& s) { s.weights_written(); } &&
                          requires(S& s) { s.kept_weights(); } == requires(S& s) { s.release_kept_weights(); } &&
                          requires(S& s) { s.frozen_weights(); } == requires(S& s) { s.frozen_parameters(); };
  static_assert(
      stage_has_it<memory, S>::value,
      "heddle: a stage that lends its memory (model::of_stage::lends_memory) needs lend_weights(row) or "
      "lend_gradients(row) together with flat_elements(), weights_stay(bool) with weights_written(), "
      "kept_weights() with release_kept_weights(), frozen_weights() with frozen_parameters(); one of a pair is "
      "missing or misspelled");
  constexpr bool tied = of_stage::ties_embedding<S> ||
                        !(
                            requires(S& s) { s.tied_gradient(); } || requires(S& s) { s.tied_elements(); } ||
                            requires(S& s) { s.borrows_embedding(); });
  static_assert(
      stage_has_it<tied, S>::value,
      "heddle: a stage whose weight another stage has too (model::of_stage::ties_embedding) needs "
      "tied_gradient(), `std::int64_t tied_elements() const` and `bool borrows_embedding() const`; one of them "
      "is missing or misspelled");
  constexpr bool moved =
      of_stage::moves_activations<S> || !(
                                            of_stage::takes_settings<S> || requires(S& s) { s.saved_layers(); } ||
                                            requires(S& s) { s.recompute(0); } || requires(S& s) { s.release(0); });
  static_assert(
      stage_has_it<moved, S>::value,
      "heddle: a stage that moves its activations or computes them again (model::of_stage::moves_activations) "
      "needs layers_memory::settings, saved_layers(), recompute(int slot) and release(int slot); one of them is "
      "missing or misspelled");
  constexpr bool reported = of_stage::reports_memory<S> ||
                            !(
                                requires(S& s) { s.saved_bytes_per_slot(); } ||
                                requires(S& s) { s.deferred_bytes(); } || requires(S& s) { s.workspace_bytes(); });
  static_assert(stage_has_it<reported, S>::value,
                "heddle: a stage that reports its memory (model::of_stage::reports_memory) needs `std::int64_t "
                "saved_bytes_per_slot() const`, deferred_bytes() and workspace_bytes(); one of them is missing or "
                "misspelled");
  return memory && tied && moved && reported;
}

template <class S>
struct scalar_of_stage {
  using type = float;  // of a stage that was refused
};
template <class S>
  requires requires { typename S::scalar; }
struct scalar_of_stage<S> {
  using type = typename S::scalar;
};

}  // namespace detail

}  // namespace heddle::inline v0::model
