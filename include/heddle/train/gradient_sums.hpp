// heddle/train/gradient_sums.hpp: gradients of a rank's stages, summed over all ranks.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/registered_parameters.hpp>
#include <heddle/train/steps.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// Reductions that go on beside the backward (`reduce_beside`): started, and waited for at its end. None for other
// policies.
template <class HeldStages, class Data, bool Beside>
class reductions_under_way {
 public:
  static constexpr bool any() noexcept { return false; }
};
template <class Space>
inline constexpr bool reductions_can_start = std::is_same_v<Space, host_memory>;
template <class Optimizer>
constexpr bool sums_as_kept() {
  static_assert(std::is_same_v<typename Optimizer::gradient_type, typename Optimizer::sum_type>,
                "heddle: reduce_beside sums gradients in the type in which they are kept; leave gradients_in<G> out of "
                "the precision, or reduce_beside out of the strategy");
  return true;
}
template <class HeldStages, class Data>
class reductions_under_way<HeldStages, Data, true> {
  using calls = started_of_buckets<Data>;
  static_assert(
      reductions_can_start<typename HeldStages::space>,
      "heddle: reduce_beside is for backends of the host's memory; those of others reduce in the order of their "
      "queue, which the host does not wait for: leave it out");

 public:
  bool any() const noexcept { return !under_way_.empty(); }
  void add(calls&& one) {
    if (one.any()) under_way_.push_back(std::move(one));
  }
  // Transports whose calls go on only where somebody looks at them do so now.
  void go_on() {
    for (calls& one : under_way_) one.test();
  }
  void wait() {
    for (calls& one : under_way_) one.wait();
    under_way_.clear();
  }

 private:
  std::vector<calls> under_way_;
};

}  // namespace detail

/// Adds up gradients over `data`, the ranks along the axes that gradients are summed over (each bucket's: `bucket_groups`), and
/// over the pipeline where several stages have a share: replicas, and the tied embedding.
///
/// A stage's gradients are reduced over `data` as soon as they are complete (REDUCE_GRAD). Of a stage with a share of the
/// tied embedding that is all but this share. Where one rank has the embedding and another the head, the head's share
/// travels from there on, beside what the two still compute; the embedding's rank adds it to its own at the end of the
/// step, and the sum travels back. Replicas are added up at the end.
/// With `zero<2>` and `zero<3>` a stage's whole gradients are given back when they are reduced.
/// `Reductions`: whether the rank waits for a reduction over `data` where it begins, or for all of them in `finish`
/// (`reduce_beside`).
/// A communicator that registers memory has what it sums and gathers in it (`registered_parameters`).
/// Where the stages' memory is not the host's, reductions over `data` go in the order of the backend's queue, and what travels
/// along the pipeline goes through the host's memory; or in that order, too, where the communicator can (`sends_in_order_of`): the head's
/// share then travels at the end of the step, when both ranks are through their lists, so that neither keeps the other from what it still computes.
/// Memory: one copy of the tied gradient on the embedding's rank. `observe(name, bytes, work, group...)` runs `work`.
template <class HeldStages, communicator Pipeline, class Data, class Backend, class Reductions = reduce_in_turn>
class gradient_sums {
 public:
  using scalar = sum_of_type<typename HeldStages::scalar>;  // of gradients
  using space = typename HeldStages::space;
  using row = row_view<scalar, space>;
  using const_row = row_view<const scalar, space>;
  using held_type = typename HeldStages::held;

  gradient_sums(HeldStages& held, Pipeline& pipeline, Data& data, Backend& backend)
      : held_(held),
        pipeline_(pipeline),
        data_(data),
        backend_(backend),
        registered_(held, data),
        queue_(compute::queue_of(backend)) {
    if (!held.ties_two_ranks()) return;
    tied_ = held.with_tied_gradient();
    embeds_ = held.has_embedding();
    if (embeds_) room_ = buffer<scalar, space>(*queue_, tied_->tied_elements(), "the gradient of a tied embedding");
  }

  /// Of the copy.
  std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(room_.size() * sizeof(scalar)); }

  /// A step begins. Called on all ranks together.
  void begin() {
    held_.for_each([](held_type& h) { h.reduced = false; });
    sent_ = false;
    if (!queued && !in_trees && tied_ != nullptr && embeds_)
      static_cast<void>(on_its_way_.emplace(
          pipeline_.irecv(messages_.to_receive(*queue_, room()), held_.other_tied_rank(), head_share)));
  }
  /// All microbatches of a stage are through.
  template <class Observe>
  void complete(int stage, Observe&& observe) {
    held_type& h = held_.at(stage);
    if constexpr (Reductions::beside) under_way_.go_on();
    if (!h.reduced) h.lent.need();
    if (held_.complete_alone(stage)) reduce(h, observe);
    if (&h == tied_ && !sent_) send_tied(observe);
  }
  /// All microbatches of all stages are through: what is left is added up. Called on all ranks together.
  template <class Observe>
  void finish(Observe&& observe) {
    held_.for_each([](held_type& h) {
      if (!h.reduced) h.lent.need();
    });
    if (tied_ != nullptr) {
      if (!sent_) send_tied(observe);
      observe("add tied gradients", bytes_of_row(tied_->tied_gradient()), [&] { add_tied(); });
    }
    if (held_.shares())
      observe("add shared gradients", std::size_t{0}, [&] { held_.sum_shared(pipeline_, backend_, tied_ == nullptr); });
    held_.for_each([&](held_type& h) { reduce(h, observe); });
    if constexpr (Reductions::beside) {
      if (under_way_.any()) observe("wait for gradients", std::size_t{0}, [&] { under_way_.wait(); });
      held_.for_each([](held_type& h) { h.lent.give_back(); });
    }
  }

 private:
  static constexpr int head_share = 7003, whole_sum = 7004;
  static constexpr bool queued = model::detail::messages_are_queued<Pipeline, space>();
  // Shares of the tied gradient are then summed over `data` before they are added: their own tree for each.
  static constexpr bool in_trees = requires { typename Reductions::sums; };

  // The part of the flat buffer that is the tied gradient.
  std::pair<std::int64_t, std::int64_t> tied_part() const {
    const row share = tied_->tied_gradient(), all = tied_->stage.gradients();
    const std::int64_t begin = first_element(share) - first_element(all);
    return {begin, begin + static_cast<std::int64_t>(share.size())};
  }
  row room() noexcept { return row_at<space>(room_.address(), static_cast<std::int64_t>(room_.size())); }
  template <class Observe>
  void send_tied(Observe& observe) {
    sent_ = true;
    if (!queued && !in_trees && !embeds_)
      static_cast<void>(on_its_way_.emplace(pipeline_.isend(
          messages_.to_send(*queue_, const_row(tied_->tied_gradient())), held_.other_tied_rank(), head_share)));
    const auto [begin, end] = tied_part();
    reduce(*tied_, 0, begin, observe);
    reduce(*tied_, end, elements_of(*tied_), observe);
  }
  void add_tied() {
    const row mine = tied_->tied_gradient();
    const int other = held_.other_tied_rank();
    if constexpr (in_trees) {
      auto& group = detail::group_of_bucket<0>(data_);
      if (group.size() > 1) Reductions::sums::all_reduce(*queue_, group, mine);
      tied_->reduced = true;
    }
    if constexpr (queued || in_trees) {
      if (embeds_) {
        recv(*queue_, pipeline_, room(), other, head_share);
        compute::run<compute::ops::add>(backend_, const_row(mine), const_row(room()), mine);
        send(*queue_, pipeline_, mine, other, whole_sum);
      } else {
        send(*queue_, pipeline_, mine, other, head_share);
        recv(*queue_, pipeline_, mine, other, whole_sum);
      }
    } else {
      on_its_way_->wait();
      on_its_way_.reset();
      if (embeds_) {
        messages_.received(*queue_, room());
        compute::run<compute::ops::add>(backend_, const_row(mine), const_row(room()), mine);
        pipeline_.send(messages_.to_send(*queue_, const_row(mine)), other, whole_sum);
      } else {
        pipeline_.recv(messages_.to_receive(*queue_, mine), other, whole_sum);
        messages_.received(*queue_, mine);
      }
    }
  }

  template <class Observe>
  void reduce(held_type& h, Observe& observe) {
    if (std::exchange(h.reduced, true)) return;
    const auto [begin, end] = &h != tied_ ? std::pair{std::int64_t{0}, elements_of(h)} : tied_part();
    reduce(h, begin, end, observe);
    if constexpr (in_trees) add_head(h, observe);
    if constexpr (!Reductions::beside) h.lent.give_back();
  }
  template <class Observe>
  void reduce(held_type& h, std::int64_t begin, std::int64_t end, Observe& observe) {
    if (begin == end) return;
    const row all = h.stage.gradients();
    const row part = part_of_row<space>(all, begin, end - begin);
    if (h.gradient_factor != 1)
      compute::run<compute::ops::scale>(backend_, part, static_cast<scalar>(h.gradient_factor));
    [[maybe_unused]] std::conditional_t<Reductions::beside, detail::started_of_buckets<Data>, int> started{};
    detail::for_each_bucket(h.stage, h.optimizer, [&](auto& stage, auto& optimizer, auto bucket) {
      auto& group = detail::group_of_bucket<decltype(bucket)::value>(data_);
      const row mine = stage.gradients();
      const std::int64_t at = detail::first_element_of(stage), size = static_cast<std::int64_t>(mine.size());
      const std::int64_t from = (std::clamp)(begin - at, std::int64_t{0}, size);
      const std::int64_t to = (std::clamp)(end - at, std::int64_t{0}, size);
      if (group.size() > 1 && from < to)
        observe(
            "reduce gradients", bytes_of_row(part_of_row<space>(mine, from, to - from)),
            [&] {
              if constexpr (Reductions::beside) {
                static_assert(detail::sums_as_kept<std::remove_reference_t<decltype(optimizer)>>());
                auto& under_way = started.template get<decltype(bucket)::value>();
                optimizer.start_reduce(group, mine, from, to, under_way);
                return &under_way;  // a result: what is started is not complete
              } else if constexpr (in_trees) {
                optimizer.template reduce<typename Reductions::sums>(group, mine, from, to);
              } else {
                optimizer.reduce(group, mine, from, to);
              }
            },
            group);
      else
        detail::keep_gradients(h.optimizer, stage, optimizer, from, to);
    });
    if constexpr (Reductions::beside) under_way_.add(std::move(started));
  }
  // Of a stage with embedding and tied head, whose shares are apart.
  template <class Observe>
  void add_head(held_type& h, Observe& observe) {
    if constexpr (requires { h.stage.table_gradient(); }) {
      if (!h.borrows()) return;
      const row head = h.tied_gradient(), table = h.stage.table_gradient();
      auto& group = detail::group_of_bucket<0>(data_);
      if (group.size() > 1)
        observe("reduce gradients", bytes_of_row(head), [&] { Reductions::sums::all_reduce(*queue_, group, head); });
      compute::run<compute::ops::add>(backend_, const_row(table), const_row(head), table);
    }
  }
  static std::int64_t elements_of(held_type& h) { return static_cast<std::int64_t>(h.stage.gradients().size()); }

  HeldStages& held_;
  Pipeline& pipeline_;
  Data& data_;
  Backend& backend_;
  registered_parameters<HeldStages, Data> registered_;
  [[no_unique_address]] heddle::v0::detail::kept_queue<space> queue_;
  held_type* tied_ = nullptr;  // of this rank, if another has the other share
  bool embeds_ = false;        // this is the embedding's rank
  bool sent_ = false;
  buffer<scalar, space> room_;
  [[no_unique_address]] host_messages<scalar, space> messages_{};
  std::optional<typename Pipeline::request> on_its_way_;  // into it: ends first
  [[no_unique_address]] detail::reductions_under_way<HeldStages, Data, Reductions::beside> under_way_{};
};

}  // namespace heddle::inline v0::train
