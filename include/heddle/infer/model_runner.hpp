// heddle/infer/model_runner.hpp: computes steps of a described language model on all ranks of a world.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_message.hpp>
#include <heddle/infer/step_rows.hpp>
#include <heddle/mesh/axis.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A described language model on the ranks of a world, split over the axes that its sharding names and over `Pipeline`: a
/// `step_runner`. Rank 0 leads: it calls `run`, and every other rank calls `follow`, which computes what the leader asks for and
/// returns after the leader's `finish` (or its destructor).
///
/// A step goes to all ranks over the control plane, the residual stream from stage to stage along `Pipeline`, and the logits of
/// the wanted rows to the leader. Every rank of a group calls the same collectives in the same order, whatever the step holds.
/// A step whose values are refused (`require_step`) is refused before any other rank hears of it. After any other error the ranks no
/// longer agree: the runner refuses further steps, and the error has to leave the body of `launch`, which ends all ranks with it.
///
/// Errors: `config_error` for a mesh whose axes split samples (give each replica a world of its own, `world.sub`) and for a step
/// that breaks the limits. `World` and `Backend` must outlive it.
template <class Model, class World, class Backend, class Pipeline = pp>
class model_runner {
 public:
  using capabilities = infer::capabilities<truncate, causal_rows, tree_rows>;
  using scalar = typename Model::scalar;
  using T = scalar;
  using stage_type = cached_stage<Model, World, Backend, Pipeline>;
  using config_type = typename Model::config;
  using whole_mesh = typename stage_type::whole_mesh;

  model_runner(const config_type& config, World& world, Backend& backend, cache_extent cache, std::int64_t max_rows)
      : world_(&world),
        stage_(checked(config, world), world, backend, layers_of(config, world.mesh(), world.rank()), cache, max_rows) {
    const auto elements = static_cast<std::size_t>(max_rows * config.width);
    if (!stage_.is_first()) in_.resize(elements);
    if (!stage_.is_last()) out_.resize(elements);
    // Logits that are on their way to the leader.
    if (stage_.is_last() && !leads() && has_logits())
      found_.resize(static_cast<std::size_t>((std::min)(max_rows, stage_type::head_rows) * config.vocabulary));
  }
  model_runner(const model_runner&) = delete;
  model_runner& operator=(const model_runner&) = delete;
  ~model_runner() {
    try {
      finish();
    } catch (...) {  // the world has ended with an error of its own
    }
  }

  /// The part of the model on this rank, whose weights are to be filled: `initialize`, or `model::read_parameters(stage(), ...)`.
  stage_type& stage() noexcept { return stage_; }
  const stage_type& stage() const noexcept { return stage_; }
  /// Whether this rank calls `run`.
  bool leads() const noexcept { return world_->rank() == 0; }
  step_limits limits() const {
    return {.vocabulary = stage_.config().vocabulary,
            .context = stage_.config().context,
            .block_rows = stage_.cache().block_rows,
            .blocks = stage_.cache().blocks,
            .max_rows = stage_.max_rows()};
  }

  /// The blocks of `block_rows` tokens that fit into `bytes` on every rank of the mesh.
  static std::int64_t cache_blocks_for(std::int64_t bytes, const config_type& config, const whole_mesh& mesh,
                                       std::int64_t block_rows) {
    if (block_rows < 1)
      throw config_error("heddle: a block of the cache should have at least 1 row, got " + std::to_string(block_rows));
    std::int64_t largest = 1;
    for (int r = 0; r < mesh.size(); ++r)
      largest = (std::max)(largest,
                           stage_type::cache_bytes_of_block(config, mesh, r, layers_of(config, mesh, r), block_rows));
    constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)();
    return (std::min)((std::max)(bytes, std::int64_t{0}) / largest, most / block_rows);
  }

  /// On the leader: computes a step on all ranks. Copies of blocks come first, then keys and values of the rows go to the cache.
  /// Shapes: logits [wanted rows, vocabulary]. Errors: `config_error` for a step that breaks the limits, for logits of another size, on a
  /// rank that does not lead, and after `finish` or a failed step.
  void run(const step& s, std::span<T> logits) {
    if (!leads()) throw config_error("heddle: model_runner: run is for rank 0; other ranks call follow");
    if (state_ != state::ready)
      throw config_error(std::string("heddle: model_runner: no step can follow ") +
                         (state_ == state::finished ? "finish" : "a step that failed"));
    const step_limits limits_now = limits();
    require_step(s, limits_now);
    const std::int64_t expected = static_cast<std::int64_t>(s.wanted.size()) * limits_now.vocabulary;
    if (static_cast<std::int64_t>(logits.size()) != expected)
      throw config_error("heddle: model_runner: " + std::to_string(s.wanted.size()) + " wanted rows have " +
                         std::to_string(expected) + " logits, got room for " + std::to_string(logits.size()));
    state_ = state::failed;  // until it has succeeded
    if (world_->size() > 1) {
      message_.write(s);
      send_message();
    }
    compute(s, logits);
    state_ = state::ready;
  }
  /// On the leader, after a step with `step::streams`: the residual stream of each wanted row as it leaves the last block, before the final norm.
  /// Shapes: [wanted rows, width].
  std::span<const T> streams() const noexcept { return streams_; }
  /// On the other ranks: computes what the leader asks for, until it finishes. They wait in a broadcast meanwhile, so where the leader may
  /// be idle for long the time-out of `launch_options` must be longer, or 0 for none.
  void follow() {
    if (leads()) throw config_error("heddle: model_runner: rank 0 leads: it calls run and finish");
    while (state_ == state::ready) {
      state_ = state::failed;
      auto& control = world_->control();
      control.broadcast(message_.head(), 0);
      if (message_.finishes()) {
        state_ = state::finished;
        return;
      }
      message_.make_room();
      control.broadcast(message_.body(), 0);
      message_.read(step_);
      compute(step_, {});
      state_ = state::ready;
    }
  }
  /// On the leader: lets `follow` return on the other ranks. Nothing happens the second time, on other ranks and after a step that failed.
  void finish() {
    if (!leads() || state_ != state::ready) return;
    state_ = state::finished;
    if (world_->size() == 1) return;
    message_.write_finish();
    send_message();
  }

 private:
  enum class state : unsigned char { ready, finished, failed };

  static model::stage_layers layers_of(const config_type& config, const whole_mesh& mesh, int rank) {
    if constexpr (whole_mesh::template has<Pipeline>)
      return Model::layers_of(config, mesh.template coordinate<Pipeline>(rank), mesh.template extent<Pipeline>());
    else
      return Model::layers_of(config, 0, 1);
  }
  template <class... Tags>
  static int ranks_that_split_rows(const whole_mesh& mesh, type_list<Tags...>) {
    return (1 * ... * mesh.template extent_or_one<Tags>());
  }
  static const config_type& checked(const config_type& config, World& world) {
    const int replicas = ranks_that_split_rows(world.mesh(), typename stage_type::layouts::row_axes{});
    if (replicas != 1)
      throw config_error("heddle: model_runner: samples are split over " + std::to_string(replicas) +
                         " ranks; give each replica a world of its own, world.sub<...>(), with an engine in each");
    return config;
  }
  // The rank of the last stage that has whole logits is the first along every axis but the pipeline's.
  bool has_logits() const { return world_->rank() == 0 || first_of_stage(typename whole_mesh::tags{}); }
  template <class... Tags>
  bool first_of_stage(type_list<Tags...>) const {
    return ((std::is_same_v<Tags, Pipeline> || world_->mesh().template coordinate<Tags>(world_->rank()) == 0) && ...);
  }

  void send_message() {
    auto& control = world_->control();
    control.broadcast(message_.head(), 0);
    if (!message_.finishes()) control.broadcast(message_.body(), 0);
  }
  void compute(const step& s, std::span<T> logits) {
    stage_.move_rows(s.moves);
    stage_.copy_blocks(s.copies);
    if (s.rows() == 0) return;
    rows_.prepare(s, stage_.cache().block_rows);
    auto&& pipeline = world_->template along_if<Pipeline>();
    const auto elements = static_cast<std::size_t>(s.rows() * stage_.config().width);
    const std::span<T> in = std::span<T>(in_).first(stage_.is_first() ? 0 : elements);
    const std::span<T> out = std::span<T>(out_).first(stage_.is_last() ? 0 : elements);
    if (!stage_.is_first()) pipeline.recv(in, pipeline.rank() - 1, stream_tag);
    stage_.forward(rows_, s.tokens, as_row(std::span<const T>(in)), as_row(out));
    wait();  // the step's rows are the host's
    if (!stage_.is_last()) pipeline.send(std::span<const T>(out), pipeline.rank() + 1, stream_tag);
    const auto wanted = std::span<const std::int64_t>(s.wanted);
    if (s.streams) {
      streams_.resize(leads() || stage_.is_last() ? wanted.size() * static_cast<std::size_t>(stage_.config().width)
                                                  : 0);
      if (stage_.is_last()) {
        stage_.streams(wanted, as_row(std::span<T>(streams_)));
        wait();
      }
      if (pipeline.size() > 1 && has_logits()) {
        if (stage_.is_last()) pipeline.send(std::span<const T>(streams_), 0, streams_tag);
        if (leads()) pipeline.recv(std::span<T>(streams_), pipeline.size() - 1, streams_tag);
      }
    }
    const auto vocabulary = static_cast<std::size_t>(stage_.config().vocabulary);
    for (std::size_t i = 0; i < wanted.size(); i += static_cast<std::size_t>(stage_type::head_rows)) {
      const auto now =
          wanted.subspan(i, (std::min)(static_cast<std::size_t>(stage_type::head_rows), wanted.size() - i));
      const std::size_t n = now.size() * vocabulary;
      const std::span<T> mine =
          leads() ? logits.subspan(i * vocabulary, n) : std::span<T>(found_).first(found_.empty() ? 0 : n);
      if (stage_.is_last()) {
        stage_.logits(now, as_row(mine));
        wait();
      }
      if (pipeline.size() == 1 || !has_logits()) continue;
      if (stage_.is_last()) pipeline.send(std::span<const T>(mine), 0, logits_tag);
      if (leads()) pipeline.recv(mine, pipeline.size() - 1, logits_tag);
    }
  }

  // Memory of the host as the backend's kernels take it, and a wait for what they have been given.
  template <class E>
  static auto as_row(std::span<E> x) noexcept {
    return heddle::v0::detail::row_at<typename stage_type::space>(x.data(), static_cast<std::int64_t>(x.size()));
  }
  void wait() {
    if constexpr (!std::is_same_v<typename stage_type::space, host_memory>) stage_.queue().wait();
  }

  static constexpr int stream_tag = 7101, logits_tag = 7102, streams_tag = 7103;
  World* world_;
  stage_type stage_;
  state state_ = state::ready;
  step_message message_{};
  step step_{};
  step_rows rows_{};
  std::vector<T> in_{}, out_{}, found_{}, streams_{};
};

}  // namespace heddle::inline v0::infer
