// heddle/infer/any_runner.hpp: runners of steps by reference, without their types.
#pragma once

#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>

#include <concepts>
#include <memory>
#include <span>

namespace heddle::inline v0::infer {

/// Any `step_runner` with logits of type T, by reference: code that is the same for all models, such as an engine behind a server, is
/// compiled once with it. A call costs a jump through an address, which is nothing beside a step.
template <std::floating_point T>
class any_runner {
 public:
  using scalar = T;

  /// The runner must outlive this.
  template <step_runner R>
    requires(!std::same_as<R, any_runner> && std::same_as<typename R::scalar, T>)
  explicit any_runner(R& runner) noexcept
      : runner_(std::addressof(runner)),
        limits_([](const void* r) { return static_cast<const R*>(r)->limits(); }),
        run_([](void* r, const step& s, std::span<T> logits) { static_cast<R*>(r)->run(s, logits); }) {}

  step_limits limits() const { return limits_(runner_); }
  void run(const step& s, std::span<T> logits) { run_(runner_, s, logits); }

 private:
  void* runner_;
  step_limits (*limits_)(const void*);
  void (*run_)(void*, const step&, std::span<T>);
};
template <class R>
any_runner(R&) -> any_runner<typename R::scalar>;

/// As `any_runner`, of a runner whose steps may have trees and that keeps residual streams, such as `model_runner`: for `medusa_speculation`, too.
template <std::floating_point T>
class any_tree_runner : public any_runner<T> {
 public:
  using capabilities = infer::capabilities<truncate, causal_rows, tree_rows>;

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
