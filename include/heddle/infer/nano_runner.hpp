// heddle/infer/nano_runner.hpp: runs a step as nano-batches on lanes, ranks that share.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/infer/cache_extent.hpp>
#include <heddle/infer/cut_step.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_message.hpp>
#include <heddle/mesh/axis.hpp>
#include <heddle/plan/nano_batches.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// The axis of ranks that share the memory of one: nano-batches run on them at the same time.
struct lane {};

namespace detail {
template <class World>
inline constexpr bool lanes_share_memory = requires(World& w) { w.control().shared_with_all(std::shared_ptr<int>()); };
template <bool Ok, class World>
inline constexpr bool ranks_share_memory = Ok;
template <class Lane, class World, class... Tags>
auto world_of_lane(World& world, type_list<Tags...>) {
  using tags = joined_lists<std::conditional_t<std::is_same_v<Tags, Lane>, type_list<>, type_list<Tags>>...>;
  return [&]<class... Left>(type_list<Left...>) { return world.template sub<Left...>(); }(tags{});
}
}  // namespace detail

/// A `model_runner` for each lane of the mesh, that of lane 0 with the weights and the cache, the others with working memory alone: a
/// `step_runner`. A step is cut between sequences where `plan` cuts its batch, and each lane computes a part: while one waits for messages,
/// another computes. The bits are those of the whole step. Steps that cannot be cut, steps of less than half of the plan's rows, and all
/// steps of a `serial` plan are computed whole by lane 0.
///
/// Rank 0 leads, and every other rank calls `follow`, as with `model_runner`. Weights are filled on lane 0 (`owns_memory`), before the first step.
/// A backend with `take_turns(compute::turns*)` (`compute::in_turns`) shares turns with those of the other lanes at its place.
///
/// Errors: `config_error` for a plan with more parts than lanes, and as `model_runner`. At compile time, for ranks that are processes.
/// Source: Zhu et al. 2024, arXiv:2408.12757 (NanoFlow).
template <class Model, class World, class Backend, class Pipeline = pp, class Lane = lane>
class nano_runner {
  static_assert(
      detail::ranks_share_memory<detail::lanes_share_memory<World>, World>,
      "heddle: nano_runner: lanes are ranks that share memory, and ranks of MPI are processes; take hd::threads");

 public:
  using world_of_lane =
      decltype(detail::world_of_lane<Lane>(std::declval<World&>(), typename World::mesh_type::tags{}));
  using runner_type = model_runner<Model, world_of_lane, Backend, Pipeline>;
  using capabilities = typename runner_type::capabilities;
  using scalar = typename Model::scalar;
  using stage_type = typename runner_type::stage_type;
  using config_type = typename Model::config;

  /// All ranks of the world make one together. `max_rows`: of a step, on each lane.
  nano_runner(const config_type& config, World& world, Backend& backend, cache_extent cache, std::int64_t max_rows,
              plan::nano_plan plan)
      : world_(&world),
        plan_(checked(std::move(plan), lanes().size())),
        board_(lanes().shared_with_all(owns_memory() ? std::make_shared<board>() : nullptr)),
        of_lane_(detail::world_of_lane<Lane>(world, typename World::mesh_type::tags{})),
        runner_(std::make_unique<runner_type>(config, of_lane_, backend, cache, max_rows, lender())) {
    if (owns_memory()) {
      board_->stage = &runner_->stage();
      lanes().barrier();
    }
    if constexpr (takes_turns) {
      if (owns_memory()) board_->turns = std::make_unique<turns_type>();
      lanes().barrier();
      backend.take_turns(board_->turns.get());
      backend_ = &backend;
    }
  }
  nano_runner(const nano_runner&) = delete;
  nano_runner& operator=(const nano_runner&) = delete;
  ~nano_runner() {
    try {
      finish();
    } catch (...) {  // the world has ended with an error of its own
      state_ = state::failed;
    }
    if (owns_memory() && state_ != state::finished) {  // other lanes may still compute with its memory
      runner_->abandon();
      board_->left = std::move(runner_);
    }
    if constexpr (takes_turns) backend_->take_turns(nullptr);
  }

  /// The part of the model on this rank; whether its weights and cache are its own, which are to be filled.
  stage_type& stage() noexcept { return runner_->stage(); }
  const stage_type& stage() const noexcept { return runner_->stage(); }
  bool owns_memory() const { return world_->template coordinate<Lane>() == 0; }
  bool leads() const noexcept { return world_->rank() == 0; }
  step_limits limits() const { return runner_->limits(); }
  const plan::nano_plan& plan() const noexcept { return plan_; }
  /// On the leader: how many parts the last step had.
  int last_parts() const noexcept { return last_parts_; }

  /// As `model_runner::run`.
  void run(const step& s, std::span<scalar> logits) {
    require_ready("run");
    runner_->require(s, logits.size());
    std::vector<step> parts = parts_of(s);
    last_parts_ = parts.size() < 2 ? 1 : static_cast<int>(parts.size());
    state_ = state::failed;
    if (parts.size() < 2) {
      if (apart_) meet(word::together);
      apart_ = false;
      runner_->run(s, logits);
      streams_ = runner_->streams();
    } else {
      run_parts(s, std::move(parts), logits);
    }
    state_ = state::ready;
  }
  /// As `model_runner::streams`.
  std::span<const scalar> streams() const noexcept { return streams_; }

  /// As `model_runner::follow`.
  followed follow() {
    if (leads()) throw config_error("heddle: nano_runner: rank 0 leads: it calls run and finish");
    while (state_ == state::ready) {
      state_ = state::failed;
      const word w = of_lane_.rank() == 0 ? follow_lanes() : follow_lane();
      state_ = w == word::finished ? state::finished : state::ready;
      if (w == word::interrupted) return followed::interrupted;
    }
    return followed::finished;
  }
  /// As `model_runner::interrupt`; no lane computes any more when `follow` returns.
  void interrupt() {
    require_ready("interrupt");
    meet(word::interrupted);
    apart_ = false;
  }
  /// As `model_runner::finish`.
  void finish() {
    if (!leads() || state_ != state::ready) return;
    state_ = state::finished;
    if (apart_) meet(word::together);  // whose memory goes, nobody reads
    say(word::finished);
    runner_->finish();
  }

 private:
  enum class state : unsigned char { ready, finished, failed };
  enum class word : std::int64_t { parts, together, interrupted, finished };
  static constexpr bool takes_turns = requires(Backend& b) { b.take_turns(nullptr); };
  static auto turns_of() {
    if constexpr (takes_turns)
      return std::type_identity<typename Backend::turns_type>{};
    else
      return std::type_identity<char>{};
  }
  using turns_type = typename decltype(turns_of())::type;
  // What the lanes at one place share. Parts, logits and streams are those of the leader's place.
  struct board {
    stage_type* stage = nullptr;
    std::unique_ptr<runner_type> left{};  // the owner's, after an error
    std::unique_ptr<turns_type> turns{};
    std::vector<step> parts{};
    std::vector<scalar> found{};  // logits of lanes that the caller's memory may not outlive
    std::vector<std::span<scalar>> logits{};
    std::vector<std::span<const scalar>> streams{};
  };

  static plan::nano_plan checked(plan::nano_plan plan, int lanes) {
    if (plan.serial || plan.parts.size() < 2) return plan;
    std::int64_t rows = 0;
    for (const int p : plan.parts) rows = p < 1 ? -1 : rows < 0 ? rows : rows + p;
    if (std::cmp_greater(plan.parts.size(), lanes) || rows != plan.rows)
      throw config_error("heddle: nano_runner: a plan should have at most " + std::to_string(lanes) +
                         " parts, a lane for each, of at least 1 row and of " + std::to_string(plan.rows) +
                         " rows together, got " + std::to_string(plan.parts.size()) + " parts");
    return plan;
  }
  auto& lanes() { return world_->template control_along<Lane>(); }
  stage_type* lender() {
    if (owns_memory()) return nullptr;
    lanes().barrier();
    return board_->stage;
  }
  void require_ready(const char* verb) const {
    if (!leads())
      throw config_error(std::string("heddle: nano_runner: ") + verb + " is for rank 0; other ranks call follow");
    if (state_ != state::ready)
      throw config_error(std::string("heddle: nano_runner: no step can follow ") +
                         (state_ == state::finished ? "finish" : "a step that failed"));
  }
  std::vector<step> parts_of(const step& s) const {
    if (plan_.serial || plan_.parts.size() < 2 || 2 * s.rows() < plan_.rows) return {};
    std::vector<std::int64_t> rows;
    std::int64_t planned = 0, before = 0;
    for (const int p : plan_.parts) {
      planned += p;
      const std::int64_t end = (2 * s.rows() * planned + plan_.rows) / (2 * plan_.rows);
      rows.push_back(end - std::exchange(before, end));
    }
    return cut_step(s, rows, runner_->limits().block_rows);
  }
  void run_parts(const step& s, std::vector<step> parts, std::span<scalar> logits) {
    if (!s.moves.empty() || !s.copies.empty() || !s.state_copies.empty()) {
      if (apart_) meet(word::together);
      step first;
      first.moves = s.moves;
      first.copies = s.copies;
      first.state_copies = s.state_copies;
      runner_->run(first, {});
    }
    board& b = *board_;
    b.parts = std::move(parts);
    b.logits.clear();
    b.streams.assign(b.parts.size(), {});
    const auto n = static_cast<std::size_t>(runner_->limits().vocabulary);
    const std::size_t own = b.parts[0].wanted.size() * n;
    b.found.resize(logits.size() - own);
    b.logits.push_back(logits.first(own));
    for (std::size_t k = 1, at = 0; k < b.parts.size(); at += b.logits[k++].size())
      b.logits.push_back(std::span(b.found).subspan(at, b.parts[k].wanted.size() * n));
    meet(word::parts);
    apart_ = true;
    run_part();
    std::ranges::copy(b.found, logits.begin() + std::ssize(b.logits[0]));
    kept_streams_.clear();
    for (const std::span<const scalar> x : b.streams) kept_streams_.insert(kept_streams_.end(), x.begin(), x.end());
    streams_ = kept_streams_;
  }
  // On the leader of each lane.
  void run_part() {
    board& b = *board_;
    const auto k = static_cast<std::size_t>(world_->template coordinate<Lane>());
    if (k < b.parts.size()) {
      runner_->run(b.parts[k], b.logits[k]);
      if (b.parts[k].streams) b.streams[k] = runner_->streams();
    }
    lanes().barrier();  // all logits are there
  }
  void say(word w) {
    auto number = static_cast<std::int64_t>(w);
    lanes().broadcast(std::span<std::int64_t>(&number, 1), 0);
  }
  // On the leader of all: all ranks of all lanes have computed what they were asked for, and are told what comes next.
  void meet(word w) {
    say(w);
    meet_in_lane(w);
  }
  void meet_in_lane(word w) {
    runner_->interrupt();
    auto number = static_cast<std::int64_t>(w);
    of_lane_.control().broadcast(std::span<std::int64_t>(&number, 1), 0);
    meet_lanes();
  }
  // Nobody at this place goes on before all have come: what one lane has written another may read.
  void meet_lanes() {
    runner_->stage().queue().wait();
    if constexpr (takes_turns)
      if (owns_memory()) backend_->expect_turn();
    lanes().barrier();
  }
  word heard(auto& group) {
    std::int64_t number = 0;
    group.broadcast(std::span<std::int64_t>(&number, 1), 0);
    return static_cast<word>(number);
  }
  // On the leader of another lane.
  word follow_lanes() {
    const word w = heard(lanes());
    if (w == word::finished) {
      runner_->finish();
      return w;
    }
    meet_in_lane(w);
    if (w == word::parts) run_part();
    return w;
  }
  word follow_lane() {
    if (runner_->follow() == followed::finished) return word::finished;
    const word w = heard(of_lane_.control());
    meet_lanes();
    return w;
  }

  World* world_;
  plan::nano_plan plan_;
  std::shared_ptr<board> board_;
  world_of_lane of_lane_;
  std::unique_ptr<runner_type> runner_;
  Backend* backend_ = nullptr;
  state state_ = state::ready;
  bool apart_ = false;  // lanes may still compute parts of the last step
  int last_parts_ = 0;
  std::vector<scalar> kept_streams_{};
  std::span<const scalar> streams_{};
};

}  // namespace heddle::inline v0::infer
