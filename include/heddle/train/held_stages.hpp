// heddle/train/held_stages.hpp: the pipeline stages that one rank holds, and the sums of gradients that several ranks
// share.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/sum_among.hpp>
#include <heddle/tensor/sum_among_in_order.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/lent_gradients.hpp>
#include <heddle/train/lent_memory.hpp>
#include <heddle/train/stage_parts.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
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
             lent_memory<typename Stage::scalar, space_of<Stage>>& memory)
      : index(of_stage),
        part(parts.part_of(of_stage)),
        replica(parts.replica_of(of_stage)),
        stage(make()),
        optimizer(detail::optimizer_of_stage<Optimizer>(stage, groups)),
        lent(stage, optimizer, groups.size(), memory) {}

  /// The gradient of what another stage has, too, in whose buffers it is if this one borrows it; empty if there is none.
  row_view<typename Stage::scalar, space_of<Stage>> tied_gradient() { return model::of_stage::tied_gradient(stage); }
  std::int64_t tied_elements() { return model::of_stage::tied_elements(stage); }
  bool borrows() const noexcept { return model::of_stage::borrows_embedding(stage); }
};

/// All stages of one rank, in the table's order.
template <class Stage, class Optimizer>
class held_stages {
 public:
  using held = held_stage<Stage, Optimizer>;
  using stage_type = Stage;
  using scalar = typename Stage::scalar;
  using space = space_of<Stage>;
  using row = row_view<scalar, space>;

  /// `make(stage, lender)` makes a stage; `lender` is the stage of this rank that has the embedding, where the stage
  /// has the head and another has the embedding, null otherwise. Errors: `schedule_error` if the rank would hold two
  /// replicas of one part.
  /// `share` of `shares`: this rank among those over which gradients are summed, or their `groups`.
  template <class MakeStage>
  held_stages(schedule::table_view table, const stage_parts& of_model, int rank, MakeStage&& make, int share,
              int shares)
      : held_stages(table, of_model, rank, make, detail::place_in_group{share, shares}) {}
  template <class MakeStage, class Groups>
  held_stages(schedule::table_view table, const stage_parts& of_model, int rank, MakeStage&& make, const Groups& groups)
      : table_(table), parts_(of_model), rank_(rank) {
    const int parts = parts_.parts();
    std::vector<int> stage_of_part(static_cast<std::size_t>(parts), -1);
    std::vector<int> order;
    for (int s = 0; s < table.stages(); ++s) {
      if (table.rank_of(s) != rank) continue;
      int& other = stage_of_part[static_cast<std::size_t>(parts_.part_of(s))];
      if (other >= 0)
        throw schedule_error("heddle: stages " + std::to_string(other) + " and " + std::to_string(s) +
                             " are replicas of one part of the model and both on pipeline rank " +
                             std::to_string(rank) + "; a trainer keeps one on a rank: use more ranks or one chain");
      other = s;
      order.insert(parts_.part_of(s) == 0 ? order.begin() : order.end(), s);  // the embedding's stage first: it lends
    }
    by_stage_.resize(static_cast<std::size_t>(table.stages()), nullptr);
    for (const int s : order) {
      const bool head = parts > 1 && parts_.part_of(s) == parts - 1;
      const int embedding = stage_of_part.empty() ? -1 : stage_of_part[0];
      Stage* const lender = head && embedding >= 0 ? &at(embedding).stage : nullptr;
      all_.push_back(std::make_unique<held>(parts_, s, [&] { return make(s, lender); }, groups, *memory_));
      by_stage_[static_cast<std::size_t>(s)] = all_.back().get();
    }
    std::sort(all_.begin(), all_.end(), [](const auto& a, const auto& b) { return a->index < b->index; });

    for (int s = 0; s < table.stages(); ++s)
      if (const int x = parts_.part_of(s); x == 0 || x == parts - 1) tied_ranks_.push_back(table.rank_of(s));
    std::sort(tied_ranks_.begin(), tied_ranks_.end());
    tied_ranks_.erase(std::unique(tied_ranks_.begin(), tied_ranks_.end()), tied_ranks_.end());
    find_sharers();
  }

  int size() const noexcept { return static_cast<int>(all_.size()); }
  held& operator[](int k) noexcept { return *all_[static_cast<std::size_t>(k)]; }
  const held& operator[](int k) const noexcept { return *all_[static_cast<std::size_t>(k)]; }
  /// By the stage's number in the table. It must be here.
  held& at(int stage) noexcept { return *by_stage_[static_cast<std::size_t>(stage)]; }
  const held& at(int stage) const noexcept { return *by_stage_[static_cast<std::size_t>(stage)]; }
  bool has(int stage) const noexcept { return by_stage_[static_cast<std::size_t>(stage)] != nullptr; }
  std::vector<Stage*> pointers() const {
    std::vector<Stage*> all;
    for (held* h : by_stage_) all.push_back(h == nullptr ? nullptr : &h->stage);
    return all;
  }
  template <class F>
  void for_each(F&& f) {
    for (const auto& h : all_) f(*h);
  }

  /// Whether the gradients of a stage are complete on this rank when its own microbatches are through: it has no
  /// replica, and no part of the tied embedding that others use, too.
  bool complete_alone(int stage) noexcept {
    return !parts_.has_replicas(parts_.part_of(stage)) && (parts_.parts() == 1 || at(stage).tied_elements() == 0);
  }
  /// Whether the tied embedding's gradient has a share here and one on another rank, and nowhere else.
  bool ties_two_ranks() noexcept {
    const int last = parts_.parts() - 1;
    return last > 0 && !parts_.has_replicas(0) && !parts_.has_replicas(last) && tied_ranks_.size() == 2 &&
           with_tied_gradient() != nullptr;
  }
  /// The stage whose gradients have this rank's share; null if there is none.
  held* with_tied_gradient() noexcept {
    for (const auto& h : all_)
      if (h->tied_elements() > 0 && !h->borrows()) return h.get();
    return nullptr;
  }
  /// That of whole weights and gradients, which the stages are lent.
  lent_memory<scalar, space>& memory() noexcept { return *memory_; }
  int other_tied_rank() const noexcept { return tied_ranks_[tied_ranks_[0] == rank_ ? 1 : 0]; }
  bool has_embedding() const noexcept { return has(parts_.stages_of(0).front()); }
  /// Whether `sum_shared` has anything to do on this rank.
  bool shares() const noexcept {
    for (const auto& h : all_)
      if (parts_.has_replicas(h->part)) return true;
    return parts_.parts() > 1 && std::find(tied_ranks_.begin(), tied_ranks_.end(), rank_) != tied_ranks_.end();
  }

  /// Whether `mine` is true on this rank and on all that share weights with it or with one of those: replicas or the
  /// tied embedding. Called by all ranks of `pipeline`, a control plane, together; who shares nothing sends nothing.
  template <class Communicator>
  bool all_who_share(Communicator& pipeline, bool mine) {
    const char said = mine ? 1 : 0;
    std::vector<char> heard(sharers_.size(), 0);
    std::vector<typename Communicator::request> under_way;
    under_way.reserve(2 * sharers_.size());
    for (std::size_t k = 0; k < sharers_.size(); ++k) {
      under_way.push_back(pipeline.irecv(std::span<char>(&heard[k], 1), sharers_[k], verdict_tag));
      under_way.push_back(pipeline.isend(std::span<const char>(&said, 1), sharers_[k], verdict_tag));
    }
    for (auto& r : under_way) r.wait();
    return mine && std::find(heard.begin(), heard.end(), 0) == heard.end();
  }

  /// Adds up what several stages share: the gradient of the tied embedding over all stages that use it, and the
  /// gradients of replicas over the ranks that hold them. Afterwards every copy has the same bits. Called by all ranks
  /// of `pipeline` together, after their last backward. `tied_too`: the embedding's, too.
  /// Elsewhere than on the host other ranks' shares go through its memory, and are added up there; where the communicator can, all
  /// of it is in the order of the backend's queue.
  template <class Communicator, class Backend>
  void sum_shared(Communicator& pipeline, Backend& backend, bool tied_too) {
    held* const owner = tied_too ? with_tied_gradient() : nullptr;
    for (const auto& h : all_)
      if (owner != nullptr && h->borrows()) {
        const row sum = owner->tied_gradient();
        backend.add(sum, h->tied_gradient(), sum);
      }
    if (owner != nullptr && tied_ranks_.size() > 1)
      sum_among_ranks(pipeline, backend, std::span<const int>(tied_ranks_), owner->tied_gradient(), tied_tag);
    std::vector<int> replicas;
    for (int x = 0; x < parts_.parts(); ++x) {
      if (!parts_.has_replicas(x)) continue;
      replicas.clear();
      held* mine = nullptr;
      for (const int s : parts_.stages_of(x)) {
        replicas.push_back(table_.rank_of(s));
        if (has(s)) mine = &at(s);
      }
      if (mine == nullptr) continue;
      const row all = mine->stage.gradients();
      const row tied = mine->tied_gradient();
      const auto elements = static_cast<std::int64_t>(all.size()), shared = static_cast<std::int64_t>(tied.size());
      const bool inside = shared > 0 && !mine->borrows();
      const std::int64_t begin =
          inside ? heddle::v0::detail::first_element(tied) - heddle::v0::detail::first_element(all) : elements;
      const std::int64_t end = inside ? begin + shared : elements;
      // Padding behind a copy of the embedding is not there in a replica that borrows one.
      const bool more = std::any_of(mine->stage.parameters().begin(), mine->stage.parameters().end(),
                                    [&](const auto& p) { return p.offset >= end; });
      const auto part = [&](std::int64_t first, std::int64_t last) {
        return heddle::v0::detail::part_of_row<space>(all, first, last - first);
      };
      for (const row rest : {part(0, begin), more ? part(end, elements) : part(0, 0)})
        sum_among_ranks(pipeline, backend, std::span<const int>(replicas), rest, replica_tag);
    }
  }

 private:
  static constexpr int tied_tag = 7001, replica_tag = 7002, verdict_tag = 7003;
  static constexpr std::size_t most_at_once = std::size_t{1} << 18;  // elements of each rank

  template <class Communicator, class Backend>
  void sum_among_ranks(Communicator& pipeline, Backend& backend, std::span<const int> ranks, row mine, int tag) {
    if constexpr (std::is_same_v<space, host_memory>) {
      sum_among(pipeline, ranks, mine, room(mine.size(), ranks.size()), tag,
                [&](std::span<scalar> x, std::span<scalar> y, std::span<scalar> to) { backend.add(x, y, to); });
    } else if constexpr (model::detail::messages_are_queued<Communicator, space>()) {
      auto& queue = compute::queue_of(backend);
      const std::size_t n = (std::min)(static_cast<std::size_t>(mine.size()), most_at_once) * (ranks.size() - 1);
      if (static_cast<std::size_t>(queued_room_.size()) < n)
        queued_room_ = buffer<scalar, space>(queue, static_cast<std::int64_t>(n), "shares of other ranks");
      sum_among(queue, pipeline, ranks, mine,
                heddle::v0::detail::row_at<space>(queued_room_.address(), static_cast<std::int64_t>(n)), tag,
                [&](row x, row y, row to) { backend.add(x, y, to); });
    } else {
      written_on_host<scalar, space> here(compute::queue_of(backend), mine);
      const std::span<scalar> all = here.elements();
      sum_among(pipeline, ranks, all, room(all.size(), ranks.size()), tag,
                [](std::span<scalar> x, std::span<scalar> y, std::span<scalar> to) {
                  std::transform(x.begin(), x.end(), y.begin(), to.begin(), [](scalar a, scalar b) { return a + b; });
                });
      here.finish();
    }
  }
  std::span<scalar> room(std::size_t elements, std::size_t ranks) {
    const std::size_t n = (std::min)(elements, most_at_once) * (ranks - 1);
    if (room_.size() < n) room_ = buffer<scalar>(static_cast<std::int64_t>(n));
    return {room_.data(), n};
  }

  // The ranks that share weights with this one, or with one of those: each gets the lowest number of its group.
  void find_sharers() {
    std::vector<int> group(static_cast<std::size_t>(table_.ranks()));
    std::iota(group.begin(), group.end(), 0);
    const auto join = [&](int a, int b) {
      const int from = group[static_cast<std::size_t>(a)], to = group[static_cast<std::size_t>(b)];
      std::replace(group.begin(), group.end(), (std::max)(from, to), (std::min)(from, to));
    };
    if (parts_.parts() > 1)
      for (const int r : tied_ranks_) join(tied_ranks_[0], r);
    for (int x = 0; x < parts_.parts(); ++x)
      for (const int s : parts_.stages_of(x)) join(table_.rank_of(parts_.stages_of(x).front()), table_.rank_of(s));
    for (int r = 0; r < table_.ranks(); ++r)
      if (r != rank_ && group[static_cast<std::size_t>(r)] == group[static_cast<std::size_t>(rank_)])
        sharers_.push_back(r);
  }

  schedule::table_view table_;
  stage_parts parts_;
  int rank_;
  std::unique_ptr<lent_memory<scalar, space>> memory_ = std::make_unique<lent_memory<scalar, space>>();
  std::vector<std::unique_ptr<held>> all_;
  std::vector<held*> by_stage_;
  std::vector<int> tied_ranks_;
  std::vector<int> sharers_;
  buffer<scalar> room_;  // on the host
  struct no_room {};
  [[no_unique_address]] std::conditional_t<std::is_same_v<space, host_memory>, no_room, buffer<scalar, space>>
      queued_room_{};
};

}  // namespace heddle::inline v0::train
