// heddle/train/local_stages.hpp: the stages that one rank holds, and shared gradients.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/pipeline/stage.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/sum_among.hpp>
#include <heddle/tensor/sum_among_in_order.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/held_parts.hpp>
#include <heddle/train/lent_gradients.hpp>
#include <heddle/train/buffer_pool.hpp>
#include <heddle/train/stage_parts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// A stage of the schedule on the rank that holds it, with the optimizer of its parameters. `index` is the stage's
/// number in the table, `part` which part of the model it is, `replica` which of the stages that are this part.
template <class Stage, class Optimizer>
struct held_stage {
  int index;
  int part;
  int replica;
  Stage stage;
  Optimizer optimizer;
  bool reduced = false;        ///< this step's gradients have been summed over the ranks that share them
  bool stepped = false;        ///< and its optimizer has used them
  double gradient_factor = 1;  ///< what the gradients are multiplied with once its replicas have added them up
  lent_gradients<Stage, Optimizer> lent;  ///< where they are while microbatches add to them

  /// `groups`: the ranks over which gradients are summed, `rank()` and `size()`; `bucket_groups` of several buckets.
  template <class MakeStage, class Groups>
  held_stage(const stage_parts& parts, int of_stage, MakeStage&& make, Groups& groups,
             typename lent_gradients<Stage, Optimizer>::memory_type& memory)
      : index(of_stage),
        part(parts.part_of(of_stage)),
        replica(parts.replica_of(of_stage)),
        stage(make()),
        optimizer(detail::optimizer_of_stage<Optimizer>(stage, groups)),
        lent(stage, optimizer, groups.size(), memory) {}

  /// The gradient of what another stage has, too, in whose buffers it is if this one borrows it; empty if there is none.
  row_view<sum_of_type<typename Stage::scalar>, space_of<Stage>> tied_gradient() {
    return model::of_stage::tied_gradient(stage);
  }
  std::int64_t tied_elements() { return model::of_stage::tied_elements(stage); }
  bool borrows() const noexcept { return model::of_stage::borrows_embedding(stage); }
};

namespace detail {

// Sums over the ranks of a pipeline that share a tensor, with memory for what comes from the others.
template <class T, class Space>
class shared_sums {
 public:
  using row = row_view<T, Space>;

  template <class Communicator, class Backend>
  [[gnu::noinline]] void add(Communicator& pipeline, Backend& backend, std::span<const int> ranks, row mine, int tag) {
    if constexpr (std::is_same_v<Space, host_memory>) {
      sum_among(pipeline, ranks, mine, room(mine.size(), ranks.size()), tag, adds<Backend>{&backend});
    } else if constexpr (model::detail::messages_are_queued<Communicator, Space>()) {
      auto& queue = compute::queue_of(backend);
      const std::size_t n = (std::min)(static_cast<std::size_t>(mine.size()), most_at_once) * (ranks.size() - 1);
      if (static_cast<std::size_t>(queued_room_.size()) < n)
        queued_room_ = buffer<T, Space>(queue, static_cast<std::int64_t>(n), "shares of other ranks");
      sum_among(queue, pipeline, ranks, mine, row_at<Space>(queued_room_.address(), static_cast<std::int64_t>(n)), tag,
                adds<Backend>{&backend});
    } else {
      written_on_host<T, Space> here(compute::queue_of(backend), mine);
      const std::span<T> all = here.elements();
      sum_among(pipeline, ranks, all, room(all.size(), ranks.size()), tag,
                [](std::span<T> x, std::span<T> y, std::span<T> to) {
                  std::transform(x.begin(), x.end(), y.begin(), to.begin(), [](T a, T b) { return a + b; });
                });
      here.finish();
    }
  }

 private:
  static constexpr std::size_t most_at_once = std::size_t{1} << 18;  // elements of each rank
  template <class Backend>
  struct adds {
    Backend* backend;
    void operator()(row x, row y, row to) const { compute::run<compute::ops::add>(*backend, x, y, to); }
  };
  std::span<T> room(std::size_t elements, std::size_t ranks) {
    const std::size_t n = (std::min)(elements, most_at_once) * (ranks - 1);
    if (room_.size() < n) room_ = buffer<T>(static_cast<std::int64_t>(n));
    return {room_.data(), n};
  }

  buffer<T> room_;  // on the host
  struct no_room {};
  [[no_unique_address]] std::conditional_t<std::is_same_v<Space, host_memory>, no_room, buffer<T, Space>>
      queued_room_{};
};

// Whether `mine` is true on this rank and on all `sharers`, each of which calls this, too.
template <class Communicator>
bool all_agree(Communicator& group, std::span<const int> sharers, bool mine, int tag) {
  const char said = mine ? 1 : 0;
  std::vector<char> heard(sharers.size(), 0);
  std::vector<typename Communicator::request> under_way;
  under_way.reserve(2 * sharers.size());
  for (std::size_t k = 0; k < sharers.size(); ++k) {
    under_way.push_back(group.irecv(std::span<char>(&heard[k], 1), sharers[k], tag));
    under_way.push_back(group.isend(std::span<const char>(&said, 1), sharers[k], tag));
  }
  for (auto& r : under_way) r.wait();
  return mine && std::find(heard.begin(), heard.end(), 0) == heard.end();
}

}  // namespace detail

/// All stages of one rank, in the table's order.
template <class Stage, class Optimizer>
class local_stages {
 public:
  using held = held_stage<Stage, Optimizer>;
  using stage_type = Stage;
  using optimizer_type = Optimizer;
  using scalar = typename Stage::scalar;
  using space = space_of<Stage>;
  using sum = sum_of_type<scalar>;  // of gradients
  using row = row_view<sum, space>;

  /// `make(stage, lender)` makes a stage; `lender` is the stage of this rank that has the embedding, where the stage
  /// has the head and another has the embedding, null otherwise. Errors: `schedule_error` if the rank would hold two
  /// replicas of one part.
  /// `share` of `shares`: this rank among those over which gradients are summed, or their `groups`.
  template <class MakeStage>
  local_stages(schedule::table_view table, const stage_parts& of_model, int rank, MakeStage&& make, int share,
               int shares)
      : local_stages(table, of_model, rank, make, detail::place_in_group{share, shares}) {}
  template <class MakeStage, class Groups>
  local_stages(schedule::table_view table, const stage_parts& of_model, int rank, MakeStage&& make,
               const Groups& groups)
      : here_(table, of_model, rank), all_(here_.stages().size()) {
    for (const int s : here_.to_make()) {
      const int embedding = here_.lender_of(s);
      Stage* const lender = embedding < 0 ? nullptr : &at(embedding).stage;
      all_.at[place(s)] = new held(here_.parts(), s, [&] { return make(s, lender); }, groups, memory_->of_gradients());
    }
    for (int s = 0; s < table.stages(); ++s) pointers_.add(here_.has(s) ? &at(s).stage : nullptr);
  }

  int size() const noexcept { return static_cast<int>(all_.at.size()); }
  held& operator[](int k) noexcept { return *all_[static_cast<std::size_t>(k)]; }
  const held& operator[](int k) const noexcept { return *all_[static_cast<std::size_t>(k)]; }
  /// By the stage's number in the table. It must be here.
  held& at(int stage) noexcept { return *all_[place(stage)]; }
  const held& at(int stage) const noexcept { return *all_[place(stage)]; }
  bool has(int stage) const noexcept { return here_.has(stage); }
  /// By the stage's number in the table; null where it is elsewhere.
  const model::stage_pointers<Stage>& pointers() const noexcept { return pointers_; }
  template <class F>
  void for_each(F&& f) {
    for (int k = 0; k < size(); ++k) f((*this)[k]);
  }

  /// Whether the gradients of a stage are complete on this rank when its own microbatches are through: it has no
  /// replica, and no part of the tied embedding that others use, too.
  bool complete_alone(int stage) noexcept {
    return !here_.has_replicas(stage) && (here_.parts().parts() == 1 || at(stage).tied_elements() == 0);
  }
  /// Whether the tied embedding's gradient has a share here and one on another rank, and nowhere else.
  bool ties_two_ranks() noexcept { return here_.ties_two_ranks() && with_tied_gradient() != nullptr; }
  /// The stage whose gradients have this rank's share; null if there is none.
  held* with_tied_gradient() noexcept {
    for (int k = 0; k < size(); ++k)
      if (held& h = (*this)[k]; h.tied_elements() > 0 && !h.borrows()) return &h;
    return nullptr;
  }
  /// That of whole weights and gradients, which the stages are lent.
  lent_memories<scalar, space>& memory() noexcept { return *memory_; }
  int other_tied_rank() const noexcept { return here_.other_tied_rank(); }
  bool has_embedding() const noexcept { return here_.has_embedding(); }
  /// Whether `sum_shared` has anything to do on this rank.
  bool shares() const noexcept { return here_.shares(); }

  /// Whether `mine` is true on this rank and on all that share weights with it or with one of those: replicas or the
  /// tied embedding. Called by all ranks of `pipeline`, a control plane, together; who shares nothing sends nothing.
  template <class Communicator>
  bool all_who_share(Communicator& pipeline, bool mine) {
    return detail::all_agree(pipeline, here_.sharers(), mine, verdict_tag);
  }

  /// Adds up what several stages share: the gradient of the tied embedding over all stages that use it, and the
  /// gradients of replicas over the ranks that hold them. Afterwards every copy has the same bits. Called by all ranks
  /// of `pipeline` together, after their last backward. `tied_too`: the embedding's, too.
  /// Elsewhere than on the host other ranks' shares go through its memory, and are added up there; where the communicator can, all
  /// of it is in the order of the backend's queue.
  template <class Communicator, class Backend>
  void sum_shared(Communicator& pipeline, Backend& backend, bool tied_too) {
    held* const owner = tied_too ? with_tied_gradient() : nullptr;
    for_each([&](held& h) {
      if (owner == nullptr || !h.borrows()) return;
      const row all = owner->tied_gradient();
      compute::run<compute::ops::add>(backend, all, h.tied_gradient(), all);
    });
    if (owner != nullptr && here_.tied_ranks().size() > 1)
      sums_.add(pipeline, backend, here_.tied_ranks(), owner->tied_gradient(), tied_tag);
    for (const held_parts::replicated& r : here_.replicas()) {
      held& mine = at(r.stage);
      const row all = mine.stage.gradients();
      const row tied = mine.tied_gradient();
      const auto elements = static_cast<std::int64_t>(all.size()), shared = static_cast<std::int64_t>(tied.size());
      const bool inside = shared > 0 && !mine.borrows();
      const std::int64_t begin = inside ? first_element(tied) - first_element(all) : elements;
      const std::int64_t end = inside ? begin + shared : elements;
      // Padding behind a copy of the embedding is not there in a replica that borrows one.
      bool more = false;
      for (const auto& p : mine.stage.parameters()) more = more || p.offset >= end;
      const auto part = [&](std::int64_t first, std::int64_t last) {
        return part_of_row<space>(all, first, last - first);
      };
      for (const row rest : {part(0, begin), more ? part(end, elements) : part(0, 0)})
        sums_.add(pipeline, backend, r.ranks, rest, replica_tag);
    }
  }

 private:
  static constexpr int tied_tag = 7001, replica_tag = 7002, verdict_tag = 7003;

  std::size_t place(int stage) const noexcept { return static_cast<std::size_t>(here_.place_of(stage)); }

  held_parts here_;
  std::unique_ptr<lent_memories<scalar, space>> memory_ = std::make_unique<lent_memories<scalar, space>>();
  // Plain pointers, so that a program compiles their container once and not for each mesh.
  struct owned {
    explicit owned(std::size_t stages) : at(stages) {}
    owned(const owned&) = delete;
    owned& operator=(const owned&) = delete;
    ~owned() {
      for (void* h : at) delete static_cast<held*>(h);
    }
    held* operator[](std::size_t k) const noexcept { return static_cast<held*>(at[k]); }
    std::vector<void*> at;
  };
  owned all_;
  model::stage_pointers<Stage> pointers_;
  detail::shared_sums<sum, space> sums_;
};

/// The passes of one step over all stages of a rank, from its begin to its end: in between, weights are written only by those who say so.
template <class HeldStages>
class passes_of_step {
 public:
  // It delegates, so that an error in it ends what has begun, too.
  explicit passes_of_step(HeldStages& held) : passes_of_step(held, begun{}) {
    held_.for_each([](auto& h) { model::of_stage::begin_step(h.stage); });
    weights_stay(true);
  }
  passes_of_step(const passes_of_step&) = delete;
  passes_of_step& operator=(const passes_of_step&) = delete;
  ~passes_of_step() { weights_stay(false); }

 private:
  struct begun {};
  passes_of_step(HeldStages& held, begun) noexcept : held_(held) {}
  void weights_stay(bool stay) {
    held_.for_each([stay](auto& h) { model::of_stage::weights_stay(h.stage, stay); });
  }
  HeldStages& held_;
};

}  // namespace heddle::inline v0::train

#if defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/host_training.hpp>
#endif
