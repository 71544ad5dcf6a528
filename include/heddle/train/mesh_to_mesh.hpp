// heddle/train/mesh_to_mesh.hpp: training with the same bits on any number of ranks.
#pragma once

#include <heddle/collective/determined.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/determinism.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/exact_sum.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/text.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/stage_sizes.hpp>
#include <heddle/schedule/action.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/determined.hpp>
#include <heddle/train/steps.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace train::detail {

/// A stage whose gradients of single microbatches are added in the aligned binary tree over their numbers: a binary counter, whose digits
/// are buffers. The number of microbatches is a power of two (`add_in_tree`), so that behind the last one all of the sum is in the stage's
/// own buffer.
/// Memory: log2 of the microbatches times the gradients.
template <class Stage>
class stage_in_trees : public Stage {
  using sum = sum_of_type<typename Stage::scalar>;
  using space = space_of<Stage>;

 public:
  using Stage::Stage;
  using typename Stage::batch_type;

  void add_in_tree(int microbatches) {
    const int digits = std::countr_zero(static_cast<unsigned>(microbatches));
    for (int k = 0; k < digits; ++k) digits_.emplace_back(this->queue(), elements(), "gradients of some microbatches");
  }
  /// Elements of all digits.
  std::int64_t tree_elements() noexcept { return static_cast<std::int64_t>(digits_.size()) * elements(); }

  void zero_gradients() {
    Stage::zero_gradients();
    leaf_ = 0;
  }
  template <class... Rows>
  void backward(int slot, const batch_type& b, const Rows&... rows) {
    Stage::backward(slot, b, rows...);
    end_leaf();
  }
  void backward_weight(int slot, const batch_type& b) {
    Stage::backward_weight(slot, b);
    end_leaf();
  }

 private:
  std::int64_t own_elements() noexcept { return this->borrows_embedding() ? this->tied_elements() : 0; }
  std::int64_t elements() noexcept { return this->flat_elements() + own_elements(); }
  // Adds the digits that are set to what the last microbatch gave, and leaves the sum in the next digit, unless it is the whole. A block at a
  // time, so that each number comes from memory once and goes there once.
  void end_leaf() {
    const auto set = static_cast<std::size_t>(std::countr_one(leaf_));
    ++leaf_;
    const std::int64_t flat = this->flat_elements();
    carry(this->gradients(), 0, set);
    if (own_elements() > 0) carry(this->tied_gradient(), flat, set);  // of a head apart from the flat gradients
  }
  template <class Row>
  void carry(const Row& mine, std::int64_t at, std::size_t set) {
    constexpr std::size_t block = 1024;
    for (std::size_t begin = 0; begin < mine.size(); begin += block) {
      const std::size_t n = (std::min)(block, mine.size() - begin);
      sum* const x = mine.data() + begin;
      const auto digit = [&](std::size_t k) { return digits_[k].data() + at + begin; };
      for (std::size_t k = 0; k < set; ++k) add(digit(k), x, n);
      if (set == digits_.size()) continue;
      std::copy_n(x, n, digit(set));
      std::fill_n(x, n, sum{});
    }
  }
  static void add(const sum* __restrict digit, sum* __restrict to, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) to[i] = digit[i] + to[i];
  }

  std::vector<buffer<sum, space>> digits_{};
  unsigned leaf_ = 0;
};

/// Sums of gradients over ranks in the tree over their numbers.
struct sums_in_trees {
  template <class Queue, class Group, class Row>
  static void all_reduce(Queue&, Group& group, const Row& x) {
    heddle::v0::all_reduce(group, x, plus{}, determinism::mesh_to_mesh{});
  }
  template <class Queue, class Group, class In, class Out, class Counts>
  static void reduce_scatter_v(Queue&, Group& group, const In& in, const Out& out, Counts counts) {
    heddle::v0::reduce_scatter_v(group, in, out, counts, plus{}, determinism::mesh_to_mesh{});
  }
};
struct reduce_in_trees : reduce_in_turn {
  using sums = sums_in_trees;
};

// What does not hold, for the compiler's message.
template <class Run>
struct in_trees_for {
  using strategy = typename Run::strategy;
  using optimizer = typename Run::optimizer_of_bucket;
  using mesh = typename Run::mesh_type;
  // Along which axes ranks have other samples, or other stages.
  template <class Tag, class... Shares>
  static constexpr bool free_along(type_list<Shares...>) {
    return std::is_same_v<Tag, typename strategy::pipeline> || contains<Tag, Shares...>;
  }
  template <class Tag>
  static constexpr bool one_rank_along() {
    using axis = typename mesh::template axis_of<Tag>;
    if constexpr (free_along<Tag>(typename Run::axes::shares{}) || !axis::is_static)
      return true;
    else
      return axis::size() == 1;
  }
  template <class... Tags>
  static constexpr bool all_free(type_list<Tags...>) {
    return (one_rank_along<Tags>() && ...);
  }
  static constexpr bool axes = all_free(typename mesh::tags{});
  static constexpr bool zero = strategy::zero::stage <= 1;
  static constexpr bool steps = std::is_same_v<typename Run::space, host_memory> && !strategy::steps::captured &&
                                !strategy::norm_check::steps_first && !strategy::reductions::beside;
  static constexpr bool gradients =
      Run::buckets == 1 && std::is_same_v<typename optimizer::gradient_type, typename optimizer::sum_type>;
};

// A stage's parameters and microbatches must be such that every mesh adds the same numbers in the same tree.
inline void require_trees(int microbatches, int ranks, std::int64_t batch, int other_ranks, bool shared) {
  const auto refuse = [](const char* what, const char* expected, std::int64_t got) {
    throw config_error(text_of({"heddle: determinism::mesh_to_mesh: ", what, ": expected ", expected, ", got ", got}));
  };
  if (!std::has_single_bit(static_cast<unsigned>(microbatches)))
    refuse("microbatches of a step on each rank", "a power of two", microbatches);
  if (!std::has_single_bit(static_cast<unsigned>(ranks)))
    refuse("ranks that share a step's samples", "a power of two", ranks);
  if (batch % (std::int64_t{microbatches} * ranks) != 0)
    refuse("samples of a step", "a multiple of all ranks' microbatches", batch);
  if (other_ranks != 1) refuse("ranks along axes other than those of samples and stages", "1", other_ranks);
  if (shared)
    throw config_error(
        "heddle: determinism::mesh_to_mesh: a rank has embedding and head in two stages, or replicas; take a schedule "
        "with one chain whose first and last stage are on different ranks");
}
// Errors: `config_error` naming the stage whose weight gradients come in another order than that of microbatches, or that some skip.
inline void require_weights_in_order(schedule::table_view table) {
  for (int s = 0; s < table.stages(); ++s) {
    int next = 0;
    for (const schedule::action& a : table.list(table.rank_of(s)))
      if (a.stage == s &&
          (a.kind == schedule::action_kind::backward || a.kind == schedule::action_kind::backward_weight)) {
        if (a.microbatch != next)
          throw config_error(text_of({"heddle: determinism::mesh_to_mesh: weight gradients of stage ", s,
                                      ": expected those of microbatch ", next, ", got those of ",
                                      static_cast<int>(a.microbatch), "; take a schedule that has them in order"}));
        ++next;
      }
    if (next != table.microbatches())  // what is in digits would be left out
      throw config_error(text_of({"heddle: determinism::mesh_to_mesh: microbatches with weight gradients of stage ", s,
                                  ": expected ", table.microbatches(), ", got ", next,
                                  "; take a schedule in which all microbatches go through all stages"}));
  }
}

template <>
struct determined<determinism::mesh_to_mesh> {
  static constexpr bool in_trees = true;
  template <class Stage>
  using stage = stage_in_trees<Stage>;
  template <class Reductions>
  using reductions = reduce_in_trees;

  // Stops at the first mistake.
  template <class Run>
  static consteval bool fits() {
    using fit = in_trees_for<Run>;
    if constexpr (!fit::axes)
      static_assert(in_trees_for<Run>::axes,
                    "heddle: determinism::mesh_to_mesh is for meshes of data-parallel ranks and pipeline stages: along "
                    "other axes (tp, ep, cp) sums are cut by the mesh; give those 1 rank");
    else if constexpr (!fit::zero)
      static_assert(
          in_trees_for<Run>::zero,
          "heddle: determinism::mesh_to_mesh keeps the gradients of a step's microbatches whole; take zero<0> "
          "or zero<1>");
    else if constexpr (!fit::steps)
      static_assert(in_trees_for<Run>::steps,
                    "heddle: determinism::mesh_to_mesh is for eager steps in the host's memory; leave captured_steps, "
                    "post_validation and reduce_beside out, and take a backend of the host");
    else if constexpr (!fit::gradients)
      static_assert(
          in_trees_for<Run>::gradients,
          "heddle: determinism::mesh_to_mesh adds gradients of one bucket in the type in which they are kept; "
          "leave gradients_in<G> and expert axes out");
    else
      return heddle::v0::detail::promise_checked<typename Run::gradient_group, determinism::mesh_to_mesh>();
    return false;
  }

  /// Behind the making of a trainer's stages.
  template <class Run>
  static void start(Run& run) {
    bool shared = false;
    run.held.for_each([&](auto& h) {
      const bool tied = h.tied_elements() > 0 && run.held.ties_two_ranks();  // one share here, the other on another rank
      shared = shared || (!tied && !run.held.complete_alone(h.index)) || (h.borrows() && !h.stage.layers().tied_apart);
    });
    const int others = run.world.size() / (run.sample_ranks.size() * run.pipeline.size());
    require_trees(run.table().microbatches(), run.sample_ranks.size(), run.options.batch, others, shared);
    require_weights_in_order(run.table());
    run.held.for_each([&](auto& h) { h.stage.add_in_tree(run.table().microbatches()); });
  }
  /// The squared norm of all gradients, from exact sums over all ranks.
  template <class Run>
  static double squares(Run& run) {
    exact_sum sum;
    run.held.for_each([&](auto& h) {
      for_each_bucket(h.stage, h.optimizer, [&](auto& stage, auto& optimizer, auto) {
        optimizer.each_counted_gradient(optimizer.gradients_of(stage),
                                        [&](auto row) { sum.add_squares(std::span(std::as_const(row))); });
      });
    });
    run.world.control().all_reduce(sum.words(), plus{});
    return sum.value();
  }
  /// Bytes of the digits that a stage of these sizes will have, and of a head's gradient apart.
  static std::int64_t elements_of(const model::stage_sizes& n, bool apart, int microbatches) noexcept {
    const std::int64_t own = n.borrows_embedding || apart ? n.tied_elements : 0;
    return std::countr_zero(static_cast<unsigned>(microbatches)) * (n.flat_elements + own) + (apart ? own : 0);
  }
};

}  // namespace train::detail

template <class Stage>
struct model::sizes_of_stage<train::detail::stage_in_trees<Stage>> : model::sizes_of_stage<Stage> {
  using model::sizes_of_stage<Stage>::sizes_of_stage;
};

}  // namespace heddle::inline v0
