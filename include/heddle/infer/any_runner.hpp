// heddle/infer/any_runner.hpp: runners of steps by reference, without their types.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/drawing_runner.hpp>
#include <heddle/infer/step.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>

namespace heddle::inline v0::infer {

/// Any `step_runner` with logits of type T, by reference: code that is the same for all models, such as an engine behind a server, is
/// compiled once with it. A call costs a jump through an address, which is nothing beside a step.
/// `Capabilities`: those that the runners have at least; a runner that lacks one is not taken.
template <logit T, class Capabilities = infer::capabilities<truncate, causal_rows, next_token>>
class any_runner {
 public:
  using scalar = T;
  using capabilities = Capabilities;

  /// The runner must outlive this.
  template <step_runner R>
    requires(!std::same_as<R, any_runner> && std::same_as<typename R::scalar, T> &&
             detail::all_offered<Capabilities, runner_capabilities<R>>::value)
  explicit any_runner(R& runner) noexcept
      : runner_(std::addressof(runner)),
        limits_([](const void* r) { return static_cast<const R*>(r)->limits(); }),
        run_([](void* r, const step& s, std::span<T> logits) { static_cast<R*>(r)->run(s, logits); }) {
    if constexpr (drawing_runner<R>) {
      if (!runner.draws()) return;
      memory_ = [](void* r, std::size_t n) { return static_cast<R*>(r)->logits_memory(n); };
      draw_ = [](void* r, const step& s, std::span<T> logits, draws_type draws, drawn_type drawn) {
        static_cast<R*>(r)->run(s, logits, draws, drawn);
      };
    }
  }

  step_limits limits() const { return limits_(runner_); }
  void run(const step& s, std::span<T> logits) { run_(runner_, s, logits); }
  /// As of `drawing_runner`; a runner that is none draws nothing and has no memory for logits.
  bool draws() const noexcept { return draw_ != nullptr; }
  std::span<T> logits_memory(std::size_t n) { return memory_ == nullptr ? std::span<T>() : memory_(runner_, n); }
  void run(const step& s, std::span<T> logits, std::span<const compute::token_draw> draws,
           std::span<compute::token_drawn> drawn) {
    if (draw_ != nullptr) return draw_(runner_, s, logits, draws, drawn);
    if (!draws.empty()) throw config_error("heddle: this runner draws no tokens: ask for logits");
    run(s, logits);
  }

 private:
  void* runner_;
  step_limits (*limits_)(const void*);
  void (*run_)(void*, const step&, std::span<T>);
  using draws_type = std::span<const compute::token_draw>;
  using drawn_type = std::span<compute::token_drawn>;
  std::span<T> (*memory_)(void*, std::size_t) = nullptr;
  void (*draw_)(void*, const step&, std::span<T>, draws_type, drawn_type) = nullptr;
};
template <class R>
any_runner(R&) -> any_runner<typename R::scalar>;

/// As `any_runner`, of a runner whose steps may have trees and that keeps residual streams, such as `model_runner`: for `medusa_speculation`, too.
template <logit T>
class any_tree_runner : public any_runner<T> {
 public:
  using capabilities = infer::capabilities<truncate, causal_rows, tree_rows, next_token>;

  /// The runner must outlive this.
  template <step_runner R>
    requires(!std::same_as<R, any_tree_runner> && std::same_as<typename R::scalar, T> && stream_runner<R> &&
             runner_capabilities<R>::template has<tree_rows>)
  explicit any_tree_runner(R& runner) noexcept
      : any_runner<T>(runner),
        runner_(std::addressof(runner)),
        streams_([](const void* r) { return static_cast<const R*>(r)->streams(); }) {}

  std::span<const T> streams() const { return streams_(runner_); }

 private:
  const void* runner_;
  std::span<const T> (*streams_)(const void*);
};
template <class R>
any_tree_runner(R&) -> any_tree_runner<typename R::scalar>;

}  // namespace heddle::inline v0::infer
