// heddle/train/gradient_sums.hpp: the gradients of a rank's stages, added up over all ranks that have a share of them.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/tensor/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace heddle::inline v0::train {

/// Adds up gradients over `data`, the ranks along the axes that gradients are summed over, and over the pipeline where several stages have a share: replicas, and the tied embedding.
///
/// A stage's gradients are reduced over `data` as soon as they are complete (REDUCE_GRAD). Of a stage with a share of the
/// tied embedding that is all but this share. Where one rank has the embedding and another the head, the head's share
/// travels from there on, beside what the two still compute; the embedding's rank adds it to its own at the end of the
/// step, and the sum travels back. Replicas are added up at the end.
/// With `zero<2>` and `zero<3>` a stage's whole gradients are given back when they are reduced.
/// Memory: one copy of the tied gradient on the embedding's rank. `observe(name, bytes, work)` runs `work`.
template <class HeldStages, communicator Pipeline, communicator Data, class Backend>
class gradient_sums {
 public:
  using held_type = typename HeldStages::held;
  using scalar = typename HeldStages::scalar;

  gradient_sums(HeldStages& held, Pipeline& pipeline, Data& data, Backend& backend)
      : held_(held), pipeline_(pipeline), data_(data), backend_(backend) {
    if (!held.ties_two_ranks()) return;
    tied_ = held.with_tied_gradient();
    embeds_ = held.has_embedding();
    if (embeds_) room_ = buffer<scalar>(tied_->tied_elements());
  }

  /// Of the copy.
  std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(room_.size() * sizeof(scalar)); }

  /// A step begins. Called on all ranks together.
  void begin() {
    held_.for_each([](held_type& h) { h.reduced = false; });
    sent_ = false;
    if (tied_ != nullptr && embeds_)
      on_its_way_.emplace(
          pipeline_.irecv(std::span<scalar>(room_.data(), room_.size()), held_.other_tied_rank(), head_share));
  }
  /// All microbatches of a stage are through.
  template <class Observe>
  void complete(int stage, Observe&& observe) {
    held_type& h = held_.at(stage);
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
      observe("add tied gradients", tied_->tied_gradient().size_bytes(), [&] { add_tied(); });
    }
    if (held_.shares())
      observe("add shared gradients", std::size_t{0}, [&] { held_.sum_shared(pipeline_, backend_, tied_ == nullptr); });
    held_.for_each([&](held_type& h) { reduce(h, observe); });
  }

 private:
  static constexpr int head_share = 7003, whole_sum = 7004;

  // The part of the flat buffer that is the tied gradient.
  std::pair<std::size_t, std::size_t> tied_part() const {
    const std::span<scalar> share = tied_->tied_gradient();
    const auto begin = static_cast<std::size_t>(share.data() - tied_->stage.gradients().data());
    return {begin, begin + share.size()};
  }
  template <class Observe>
  void send_tied(Observe& observe) {
    sent_ = true;
    if (!embeds_)
      on_its_way_.emplace(
          pipeline_.isend(std::span<const scalar>(tied_->tied_gradient()), held_.other_tied_rank(), head_share));
    const auto [begin, end] = tied_part();
    reduce(*tied_, 0, begin, observe);
    reduce(*tied_, end, tied_->stage.gradients().size(), observe);
  }
  void add_tied() {
    const std::span<scalar> mine = tied_->tied_gradient();
    on_its_way_->wait();
    on_its_way_.reset();
    const int other = held_.other_tied_rank();
    if (embeds_) {
      backend_.add(std::span<const scalar>(mine), std::span<const scalar>(room_.data(), room_.size()), mine);
      pipeline_.send(std::span<const scalar>(mine), other, whole_sum);
    } else {
      pipeline_.recv(mine, other, whole_sum);
    }
  }

  template <class Observe>
  void reduce(held_type& h, Observe& observe) {
    if (std::exchange(h.reduced, true)) return;
    const auto [begin, end] = &h != tied_ ? std::pair{std::size_t{0}, h.stage.gradients().size()} : tied_part();
    reduce(h, begin, end, observe);
    h.lent.give_back();
  }
  template <class Observe>
  void reduce(held_type& h, std::size_t begin, std::size_t end, Observe& observe) {
    const std::span<scalar> all = h.stage.gradients();
    const std::span<scalar> part = all.subspan(begin, end - begin);
    if (part.empty()) return;
    if (h.gradient_factor != 1) backend_.scale(part, static_cast<scalar>(h.gradient_factor));
    if (data_.size() > 1)
      observe("reduce gradients", part.size_bytes(), [&] {
        h.optimizer.reduce(data_, all, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
      });
  }

  HeldStages& held_;
  Pipeline& pipeline_;
  Data& data_;
  Backend& backend_;
  held_type* tied_ = nullptr;  // of this rank, if another has the other share
  bool embeds_ = false;        // this is the embedding's rank
  bool sent_ = false;
  buffer<scalar> room_;
  std::optional<typename Pipeline::request> on_its_way_;  // into it: ends first
};

}  // namespace heddle::inline v0::train
