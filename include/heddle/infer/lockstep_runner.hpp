// heddle/infer/lockstep_runner.hpp: replicas that share experts, in steps together.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/step.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::infer {

/// A `model_runner` whose ranks along axes that split samples are replicas, with their experts over these axes (`model::expert_parallel`): rows
/// travel between replicas in each layer, so that a step of one is a step of all. The first rank of each replica leads it and has an
/// engine; other ranks call `follow`. Leaders call `turn` until it says no:
///
///     while (runner.turn(engine, [&](const event& e) { ... })) submit_what_has_come(engine);
///     runner.finish();
///
/// Before each step leaders tell one another whether they have one; who has none computes a step without rows. When none has, `turn`
/// says so to all of them in the same call, so none is left waiting. An error on one rank has to leave the body of `launch`, which ends all.
/// `Runner`: a `model_runner`. Tokens are drawn on the host.
template <class Runner>
class lockstep_runner {
 public:
  using scalar = typename Runner::scalar;
  using capabilities = runner_capabilities<Runner>;
  using stage_type = typename Runner::stage_type;

  /// As `model_runner`'s. The world must outlive it.
  template <class World, class Backend>
  lockstep_runner(const typename Runner::config_type& config, World& world, Backend& backend, cache_extent cache,
                  std::int64_t max_rows)
      : runner_(config, world, backend, cache, max_rows, replicas_together{}),
        world_(&world),
        meet_([](void* w, std::int64_t& has_rows) { meet<World>(*static_cast<World*>(w), has_rows); }) {}

  stage_type& stage() noexcept { return runner_.stage(); }
  bool leads() const noexcept { return runner_.leads(); }
  step_limits limits() const { return runner_.limits(); }

  /// On a leader: computes a step, which other replicas join. Errors: as `model_runner::run`; a step that is refused before others hear of
  /// it is no step of theirs.
  void run(const step& s, std::span<scalar> logits) {
    runner_.require(s, logits.size());
    any_has_rows(true);
    runner_.run(s, logits);
    ++steps_;
  }
  /// On a leader without a step: computes one without rows, if another replica has one; else there is none, and all leaders are told so.
  /// Errors: as `run`.
  bool rest() {
    step none;
    none.everywhere = capabilities::template has<window_rows>;
    runner_.require(none, 0);
    if (!any_has_rows(false)) return false;
    runner_.run(none, {});
    ++rests_;
    return true;
  }
  /// On a leader: a step of its engine where that has work, whose events go to `on_event`, else a rest. Whether there may be more to do.
  template <class Engine, class F>
  bool turn(Engine& engine, F&& on_event) {
    if (engine.idle()) return rest();
    for (const auto& e : engine.step()) on_event(e);
    return true;
  }
  /// As of `model_runner`.
  followed follow() { return runner_.follow(); }
  void finish() { runner_.finish(); }

  /// Steps with rows of this replica, and those without.
  std::int64_t steps() const noexcept { return steps_; }
  std::int64_t rests() const noexcept { return rests_; }

 private:
  template <class World, class... Tags>
  static void meet_along(World& world, std::int64_t& has_rows, type_list<Tags...>) {
    world.template control_along_if<Tags...>().all_reduce(std::span<std::int64_t>(&has_rows, 1), maximum{});
  }
  template <class World>
  static void meet(World& world, std::int64_t& has_rows) {
    meet_along(world, has_rows, typename stage_type::layouts::row_axes{});
  }
  bool any_has_rows(bool own) {
    if (!leads()) throw config_error("heddle: lockstep_runner: a rank that does not lead its replica calls follow");
    std::int64_t has_rows = own ? 1 : 0;
    meet_(world_, has_rows);
    return has_rows > 0;
  }

  Runner runner_;
  void* world_;
  void (*meet_)(void*, std::int64_t&);
  std::int64_t steps_ = 0, rests_ = 0;
};

}  // namespace heddle::inline v0::infer
