// heddle/model/stage_memory.hpp: memory of a stage: saved activations, gradients, work.
#pragma once

#include <heddle/model/layers/placed.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/tensor/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::inline v0::model {

/// What a `language_stage` allocates besides parameters and the saved activations of its blocks, in the places that `Places`
/// (`language_places`) has computed. Units: elements; addresses are in the space.
template <class T, class Places, class Space = host_memory>
class stage_memory {
 public:
  using dropping = layers::dropping;

  /// `deferred`: microbatches that wait for backward_weight at once.
  stage_memory(typename Space::queue& queue, const Places& at, stage_layers part, const recompute_plan& again,
               int slots, int deferred)
      : stage_memory(at, part, again) {
    saved_ = buffer<T, Space>(queue, slot_ * slots, "the saved activations of a stage");
    sets_ = buffer<T, Space>(queue, set_ * deferred, "the gradients that wait for backward_weight");
    work_ = buffer<T, Space>(queue, work_elements_, "the working memory of a stage");
  }
  /// The sizes alone, without memory, for predictions.
  stage_memory(const Places& at, stage_layers part, const recompute_plan& again)
      : block_deferred_(at.stream + at.shared_by(part.first, part.count).deferred),
        head_deferred_(part.has_head() ? at.of_end.deferred : 0),
        slot_(part.has_head() ? at.stream + at.of_end.saved[0] : 0) {
    deferred_at_.resize(static_cast<std::size_t>(part.count) + 1);
    waiting_at_.resize(static_cast<std::size_t>(part.count) + 1);
    for (int l = 0; l <= part.count; ++l) {
      deferred_at_[static_cast<std::size_t>(l)] = set_;
      if (l < part.count) set_ += at.stream + at.sizes_of(part.first + l).deferred;
    }
    for (int l = 0; l < part.count; ++l) {
      waiting_at_[static_cast<std::size_t>(l)] = set_;
      set_ += at.sizes_of(part.first + l).waiting[static_cast<std::size_t>(Places::drops(again, part.first + l))];
    }
    waiting_at_.back() = set_;
    if (part.has_head()) set_ += at.of_end.waiting[0];
    end_deferred_at_ = set_;
    const std::int64_t ends = head_deferred_ + (part.has_embedding() ? at.stream : 0);
    set_ += ends;
    work_elements_ = place_work(at, part, ends);
  }

  // ---- saved from forward to backward ------------------------------------------------------------------------------
  /// What enters the head, and behind it what the head saves.
  T* end_saved(int slot) noexcept { return saved_.address() + slot * slot_; }
  std::int64_t slot_elements() const noexcept { return slot_; }

  // ---- made by backward_input for backward_weight: of each block its output's gradient first ------------------------
  T* set(std::size_t i) noexcept { return sets_.address() + static_cast<std::int64_t>(i) * set_; }
  T* deferred(T* set, int layer) const noexcept { return set + deferred_at_[static_cast<std::size_t>(layer)]; }
  T* waiting(T* set, int layer) const noexcept { return set + waiting_at_[static_cast<std::size_t>(layer)]; }
  T* end_deferred(T* set) const noexcept { return set + end_deferred_at_; }
  T* end_waiting(T* set) const noexcept { return set + waiting_at_.back(); }
  /// Among those of the ends.
  T* embedding_gradient(T* end) const noexcept { return end + head_deferred_; }
  std::int64_t set_elements() const noexcept { return set_; }

  // ---- working memory -----------------------------------------------------------------------------------------------
  /// The deferred tensors of a block and of the ends where backward_weight follows at once; two blocks take turns.
  T* deferred_now(int layer) noexcept { return work(at_.pair) + (layer % 2) * block_deferred_; }
  T* end_deferred_now() noexcept { return work(at_.end); }
  T* scratch() noexcept { return work(at_.scratch); }
  T* shared() noexcept { return work(at_.shared); }
  T* end_shared() noexcept { return work(at_.end_shared); }
  T* x() noexcept { return work(at_.x); }
  T* y() noexcept { return work(at_.y); }
  /// The residual stream of all ranks, where each has a part of the rows.
  T* all_of_stream() noexcept { return work(at_.all); }
  T* brief() noexcept { return work(at_.brief); }
  T* constants() noexcept { return work(at_.constants); }
  std::int64_t work_elements() const noexcept { return work_elements_; }

 private:
  std::int64_t place_work(const Places& at, stage_layers part, std::int64_t ends) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t elements) {
      const std::int64_t begin = used;
      used += elements;
      return begin;
    };
    const bool blocks = part.count > 0, head = part.has_head();
    const layers::arena_sizes of_blocks = at.shared_by(part.first, part.count);
    if (blocks) at_.pair = take(2 * block_deferred_);
    at_.end = take(ends);
    at_.scratch = take(at.scratch(part.has_embedding(), part.first, part.count, head));
    at_.shared = take(of_blocks.shared);
    at_.end_shared = take(head ? at.of_end.shared : 0);
    at_.x = take(at.stream);
    at_.y = take(at.stream);
    at_.all = take(head ? at.all_of_stream : 0);
    at_.brief = take(head ? at.of_brief_end.shared : 0);
    at_.constants = take(of_blocks.constants);
    return used;
  }
  T* work(std::int64_t at) noexcept { return work_.address() + at; }

  std::int64_t block_deferred_, head_deferred_, slot_;
  std::int64_t set_ = 0, end_deferred_at_ = 0, work_elements_ = 0;
  std::vector<std::int64_t> deferred_at_{}, waiting_at_{};
  struct {
    std::int64_t pair = 0, end = 0, scratch = 0, shared = 0, end_shared = 0, x = 0, y = 0, all = 0, brief = 0,
                 constants = 0;
  } at_;
  buffer<T, Space> saved_{};
  buffer<T, Space> sets_{};
  buffer<T, Space> work_{};
};

}  // namespace heddle::inline v0::model
