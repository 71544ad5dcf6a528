// heddle/infer/any_runner.hpp: a runner of steps by reference, without its type.
#pragma once

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

}  // namespace heddle::inline v0::infer
