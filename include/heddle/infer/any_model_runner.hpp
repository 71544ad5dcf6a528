// heddle/infer/any_model_runner.hpp: a model runner without its type.
#pragma once

#include <heddle/compute/token_draws.hpp>
#include <heddle/infer/cache_extent.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_message.hpp>
#include <heddle/model/any_stage.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// The cache of a model runner on a rank without its type, for a `cache_mover`: rows of tokens, no states.
template <class E, memory_space Space = host_memory>
class any_cached_rows {
 public:
  using T = E;
  using space = Space;
  struct keeps {
    static constexpr bool has_states = false;
  };
  using tensor_visitor = std::function<void(int layer, int tensor, const matrix_view<E, Space>& rows)>;
  using extents = std::vector<std::int64_t>;
  using columns_visitor = std::function<void(int layer, int tensor, extents logical, extents own, extents first)>;

  virtual ~any_cached_rows() = default;
  /// As of `cached_stage`.
  virtual const cache_extent& cache() const noexcept = 0;
  virtual void visit_cache(const tensor_visitor& visit) = 0;
  virtual void each_cached_columns(const columns_visitor& visit) const = 0;
  template <bool OfStates = false>
  void visit_cached_columns(const columns_visitor& visit) const {
    static_assert(!OfStates, "heddle: any_cached_rows: an any_model_runner keeps no states");
    each_cached_columns(visit);
  }
};

/// A `model_runner` without its type: a `step_runner` on the rank that leads. Members are those of `model_runner`. Whether it has `tree_rows` only a run
/// says (`limits().trees`), and an engine asks.
template <logit T, memory_space Space = host_memory>
class any_model_runner : public any_cached_rows<T, Space> {
 public:
  using capabilities = infer::capabilities<truncate, causal_rows, tree_rows, next_token>;
  using scalar = T;

  /// The weights on this rank, to be filled (`model::read_parameters`).
  virtual model::any_weights<T, Space>& stage() noexcept = 0;
  virtual bool leads() const noexcept = 0;
  virtual step_limits limits() const = 0;
  virtual void run(const step& s, std::span<T> logits) = 0;
  virtual void run(const step& s, std::span<T> logits, std::span<const compute::token_draw> draws,
                   std::span<compute::token_drawn> drawn) = 0;
  virtual bool draws() const noexcept = 0;
  virtual std::span<T> logits_memory(std::size_t n) = 0;
  virtual std::span<const T> streams() const noexcept = 0;
  virtual followed follow() = 0;
  virtual void interrupt() = 0;
  virtual void finish() = 0;
};

/// A `model_runner` as an `any_model_runner`.
template <class Runner>
class held_runner final : public any_model_runner<typename Runner::scalar, typename Runner::stage_type::space> {
  using T = typename Runner::scalar;
  using space = typename Runner::stage_type::space;
  static_assert(
      detail::all_offered<capabilities<truncate, causal_rows, next_token>, runner_capabilities<Runner>>::value,
      "heddle: held_runner: an any_model_runner is of a causal model that keeps rows of tokens; take a model_runner of "
      "this model with its type");

 public:
  /// Arguments as of the runner's constructor.
  template <class Config, class World, class Backend>
  held_runner(const Config& config, World& world, Backend& backend, cache_extent cache, std::int64_t max_rows)
      : runner_(config, world, backend, cache, max_rows), stage_(world, runner_.stage()) {}

  model::any_weights<T, space>& stage() noexcept override { return stage_; }
  bool leads() const noexcept override { return runner_.leads(); }
  step_limits limits() const override { return runner_.limits(); }
  void run(const step& s, std::span<T> logits) override { runner_.run(s, logits); }
  void run(const step& s, std::span<T> logits, std::span<const compute::token_draw> draws,
           std::span<compute::token_drawn> drawn) override {
    runner_.run(s, logits, draws, drawn);
  }
  bool draws() const noexcept override { return runner_.draws(); }
  std::span<T> logits_memory(std::size_t n) override { return runner_.logits_memory(n); }
  std::span<const T> streams() const noexcept override { return runner_.streams(); }
  followed follow() override { return runner_.follow(); }
  void interrupt() override { runner_.interrupt(); }
  void finish() override { runner_.finish(); }
  const cache_extent& cache() const noexcept override { return runner_.stage().cache(); }
  void visit_cache(const typename any_cached_rows<T, space>::tensor_visitor& visit) override {
    runner_.stage().visit_cache(visit);
  }
  void each_cached_columns(const typename any_cached_rows<T, space>::columns_visitor& visit) const override {
    runner_.stage().visit_cached_columns(visit);
  }

 private:
  Runner runner_;
  model::detail::held_weights<model::any_weights<T, space>, typename Runner::stage_type&> stage_;
};

}  // namespace heddle::inline v0::infer
