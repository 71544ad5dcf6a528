// heddle/infer/any_engine.hpp: an engine without its type, whatever its policies.
#pragma once

#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/step.hpp>

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::infer {

/// An `engine` without its type: what programs do with one whose decoding policy is known at run time. Members are those of `engine`.
class any_engine {
 public:
  virtual ~any_engine() = default;
  virtual request_id submit(request r) = 0;
  virtual bool cancel(request_id id) = 0;
  virtual bool finish(request_id id) = 0;
  virtual void weights_changed(kv what) = 0;
  virtual std::span<const event> step() = 0;
  virtual bool failed() const noexcept = 0;
  virtual bool idle() const noexcept = 0;
  virtual engine_counts counts() const = 0;
  virtual std::int64_t context() const = 0;
  virtual step_limits limits() const = 0;
  virtual const engine_options& options() const noexcept = 0;
  /// Tokens that the decoding policy proposes at most for a step of a sequence; 0: it proposes none.
  virtual std::int64_t most_proposed() const noexcept = 0;
};

/// An `engine` as an `any_engine`; `Engine` may be a reference.
template <class Engine>
class held_engine final : public any_engine {
 public:
  /// Arguments as of the engine's constructor.
  template <class... Arguments>
  explicit held_engine(Arguments&&... arguments) : engine_(std::forward<Arguments>(arguments)...) {}

  request_id submit(request r) override { return engine_.submit(std::move(r)); }
  bool cancel(request_id id) override { return engine_.cancel(id); }
  bool finish(request_id id) override { return engine_.finish(id); }
  void weights_changed(kv what) override { engine_.weights_changed(what); }
  std::span<const event> step() override { return engine_.step(); }
  bool failed() const noexcept override { return engine_.failed(); }
  bool idle() const noexcept override { return engine_.idle(); }
  engine_counts counts() const override { return engine_.counts(); }
  std::int64_t context() const override { return engine_.context(); }
  step_limits limits() const override { return engine_.limits(); }
  const engine_options& options() const noexcept override { return engine_.options(); }
  std::int64_t most_proposed() const noexcept override {
    return std::remove_reference_t<Engine>::decoding::most_proposed;
  }

 private:
  Engine engine_;
};

}  // namespace heddle::inline v0::infer
