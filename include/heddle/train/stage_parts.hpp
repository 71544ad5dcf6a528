// heddle/train/stage_parts.hpp: the part of the model on each stage, and replicated ones.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/schedule/table.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// A schedule that says itself which part of the model a stage is, such as `schedule::routed`: `part_of(stage)` of
/// `parts()`. Optionally `parts_with_layers()`: so many parts, from the first on, share out the model's layers.
template <class When>
concept tells_parts = requires(const When& when) {
  { when.part_of(0) } -> std::same_as<int>;
  { when.parts() } -> std::same_as<int>;
};

/// The parts of a model that the stages of a table are. Stages with the same part are replicas of each other: they hold
/// the same weights, each sees a part of the microbatches, and their gradients are added up. Microbatches of a table
/// with ways pass a subset of the parts, in any order; the first part and the last one, which have embedding and loss,
/// begin and end every way, and every part is on some way: another would learn nothing.
class stage_parts {
 public:
  /// Of a table alone: its chains are replicas; without chains every stage is a part of its own. Errors:
  /// `schedule_error` for a way that does not begin with the first part and end with the last, and for a part on no way.
  explicit stage_parts(schedule::table_view t) : parts_(t.parts()), with_layers_(t.parts()) {
    for (int s = 0; s < t.stages(); ++s) part_of_.push_back(t.part_of(s));
    index(t);
  }
  /// Of a schedule, whose table it is. Errors: the same, and for parts that are not there or that no stage is.
  template <schedule::schedule_policy When>
  stage_parts(const When& when, schedule::table_view t) : parts_(t.parts()), with_layers_(t.parts()) {
    if constexpr (tells_parts<When>) {
      parts_ = with_layers_ = when.parts();
      if constexpr (requires { when.parts_with_layers(); }) with_layers_ = when.parts_with_layers();
    }
    for (int s = 0; s < t.stages(); ++s) {
      if constexpr (tells_parts<When>)
        part_of_.push_back(when.part_of(s));
      else
        part_of_.push_back(t.part_of(s));
    }
    index(t);
  }

  int parts() const noexcept { return parts_; }
  /// The first parts that share out the model's layers; the others have none, but perhaps the loss.
  int parts_with_layers() const noexcept { return with_layers_; }
  int part_of(int stage) const noexcept { return part_of_[at(stage)]; }
  /// Which of the stages with its part a stage is, in their order.
  int replica_of(int stage) const noexcept { return replica_of_[at(stage)]; }
  /// The stages with this part, in order.
  std::span<const int> stages_of(int part) const noexcept { return stages_of_[at(part)]; }
  bool has_replicas(int part) const noexcept { return stages_of_[at(part)].size() > 1; }
  friend bool operator==(const stage_parts&, const stage_parts&) = default;

 private:
  static std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

  void index(schedule::table_view t);
  [[noreturn]] static void refuse(const std::string& what) {
    std::string text = "heddle: the stages of the schedule are no parts of a model: ";
    text += what;
    throw schedule_error(text);
  }

  int parts_ = 0;
  int with_layers_ = 0;
  std::vector<int> part_of_{};
  std::vector<int> replica_of_{};
  std::vector<std::vector<int>> stages_of_{};
};

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/stage_parts.hpp>
#endif
