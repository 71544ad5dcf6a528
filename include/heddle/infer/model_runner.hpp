// heddle/infer/model_runner.hpp: runs steps of a language model on all ranks of a world.
#pragma once

#include <heddle/compute/token_draws.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/memory_plan.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_draws.hpp>
#include <heddle/infer/step_message.hpp>
#include <heddle/infer/step_rows.hpp>
#include <heddle/mesh/axis.hpp>
#include <heddle/model/layers/cached_traits.hpp>
#include <heddle/model/reach.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/tensor/watched_queue.hpp>

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

namespace detail {
// What layers that keep rows of tokens, states, or see later tokens, allow.
template <class Model, class Block>
constexpr auto select_model_capabilities() {
  using keeps = model::layers::cached_traits<Block>;
  if constexpr (!std::is_same_v<model::reach_of<Model>, model::earlier>)
    return capabilities<window_rows, rows_see<model::reach_of<Model>>>{};
  else if constexpr (keeps::has_states && keeps::sees_all)
    return capabilities<next_token, copy_states>{};
  else if constexpr (keeps::has_states)
    return capabilities<next_token, bounded_reach, copy_states>{};
  else if constexpr (!keeps::sees_all)
    return capabilities<truncate, causal_rows, next_token, bounded_reach>{};
  else if constexpr (keeps::windows)
    return capabilities<truncate, causal_rows, next_token>{};
  else
    return capabilities<truncate, causal_rows, tree_rows, next_token>{};
}
template <class Model, class Block>
using capabilities_of_model = decltype(select_model_capabilities<Model, Block>());
}  // namespace detail

/// Replicas of a world whose axes split samples run each step together (`lockstep_runner`): their layers may exchange rows.
struct replicas_together {};

/// A described language model on the ranks of a world, split over the axes that its sharding names and over `Pipeline`: a
/// `step_runner`. Rank 0 leads: it calls `run`, and every other rank calls `follow`, which computes what the leader asks for and
/// returns after the leader's `finish` (or its destructor) or `interrupt`.
///
/// On a device the step's tokens, positions and pages go there by one copy, the cache stays there, and tokens are drawn there (`drawing_runner`) or logits of the wanted rows come
/// to the leader's memory of the host.
/// A step goes to all ranks over the control plane, the residual stream from stage to stage along `Pipeline`, and the logits of
/// the wanted rows to the leader. Every rank of a group calls the same collectives in the same order, whatever the step holds.
/// A step whose values are refused (`require_step`) is refused before any other rank hears of it. After any other error the ranks no
/// longer agree: the runner refuses further steps, and the error has to leave the body of `launch`, which ends all ranks with it.
///
/// Errors: `config_error` for a mesh whose axes split samples (give each replica a world of its own, `world.sub`, or a `lockstep_runner`) and for a step
/// that breaks the limits. `World` and `Backend` must outlive it.
template <class Model, class World, class Backend, class Pipeline = pp>
class model_runner {
 public:
  using capabilities =
      detail::capabilities_of_model<Model, typename cached_stage<Model, World, Backend, Pipeline>::block_layer>;
  using scalar = typename Model::scalar;
  using T = scalar;
  using stage_type = cached_stage<Model, World, Backend, Pipeline>;
  using config_type = typename Model::config;
  using whole_mesh = typename stage_type::whole_mesh;

  /// `from`: as that of `cached_stage`.
  model_runner(const config_type& config, World& world, Backend& backend, cache_extent cache, std::int64_t max_rows,
               typename stage_type::memory_from from = stage_memory::own)
      : model_runner(checked(config, world), world, backend, cache, max_rows, from, false) {}
  /// One of several replicas: ranks along axes that split samples. Each has a leader of its own, and all of them run each step, one without
  /// rows where they have none.
  model_runner(const config_type& config, World& world, Backend& backend, cache_extent cache, std::int64_t max_rows,
               replicas_together)
      : model_runner(config, world, backend, cache, max_rows, stage_memory::own, true) {}
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
  bool leads() const noexcept { return leads_replica(*world_); }
  step_limits limits() const {
    return {.vocabulary = stage_.config().vocabulary,
            .context = stage_.config().context,
            .block_rows = stage_.cache().block_rows,
            .blocks = stage_.cache().blocks,
            .max_rows = stage_.max_rows(),
            .states = stage_type::keeps::has_states ? stage_.cache().states : 0,
            .window = stage_type::keeps::sees_all ? 0 : stage_.window(),
            .trees = capabilities::template has<tree_rows> && stage_.cache().order == cache_order::by_token};
  }

  /// The blocks of `block_rows` tokens that fit into `bytes` on every rank of the mesh, beside the states of `states` sequences.
  static std::int64_t cache_blocks_for(std::int64_t bytes, const config_type& config, const whole_mesh& mesh,
                                       std::int64_t block_rows, std::int64_t states = 0) {
    if (block_rows < 1)
      throw config_error("heddle: a block of the cache should have at least 1 row, got " + std::to_string(block_rows));
    constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)();
    std::int64_t blocks = most / block_rows;
    for (int r = 0; r < mesh.size(); ++r) {
      const model::stage_layers part = layers_of(config, mesh, r);
      const std::int64_t of_block = stage_type::cache_bytes_of_block(config, mesh, r, part, block_rows);
      const std::int64_t left = bytes - states * stage_type::state_bytes_of_sequence(config, mesh, r, part);
      blocks = (std::min)(blocks, (std::max)(left, std::int64_t{0}) / (std::max)(of_block, std::int64_t{1}));
    }
    return blocks;
  }

  /// The bytes of a runner on this rank, before it is made, also of one of a `lockstep_runner`. Errors: `config_error` for a cache or rows that do not fit.
  static memory_plan plan(const config_type& config, World& world, Backend& backend, cache_extent cache,
                          std::int64_t max_rows) {
    const model::stage_layers part = layers_of(config, world.mesh(), world.rank());
    memory_plan p = stage_type::plan(config, world, backend, part, cache, max_rows);
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t few = (std::min)(max_rows, stage_type::head_rows), rows = max_rows * config.width * size;
    const bool last = part.has_head(), leader = leads_replica(world);
    p.messages = (part.has_embedding() ? 0 : rows) + (last ? 0 : rows) +
                 (keeps_logits(world, last) ? few * config.vocabulary * size : 0);
    if (!on_host && (leader || last)) p.streams = rows;
    if constexpr (draws_on_device)
      if (leader) {
        p.inputs += step_draws<Backend, T>::bytes_for(max_rows);
        p.drawing = few * config.vocabulary * static_cast<std::int64_t>(sizeof(double));
      }
    return p;
  }
  /// The blocks of `block_rows` tokens of a cache with which a runner takes up to `bytes` on each rank in its largest step, by `plan`; 0 where not even the rest fits. For all ranks of
  /// the world the same, who call it together, each with what its device has free (`queue.free_bytes()`, divided by the ranks that share it, less what is to stay free).
  /// `states`: of sequences, of a model whose layers keep some.
  static std::int64_t cache_blocks_within(std::int64_t bytes, const config_type& config, World& world, Backend& backend,
                                          std::int64_t block_rows, std::int64_t max_rows, std::int64_t states = 0) {
    // Pages of a step are those of the whole context.
    const cache_extent whole{(config.context + block_rows - 1) / (std::max)(block_rows, std::int64_t{1}), block_rows,
                             states};
    const memory_plan p = plan(config, world, backend, whole, max_rows);
    constexpr std::int64_t most = (std::numeric_limits<std::int32_t>::max)();
    std::int64_t blocks = most / block_rows;
    if (p.cache > 0) blocks = (std::min)(blocks, (bytes - (p.total() - p.cache)) / (p.cache / whole.blocks));
    if (bytes < p.total() - p.cache) blocks = 0;
    world.control().all_reduce(std::span<std::int64_t>(&blocks, 1), minimum{});
    return blocks;
  }

  /// On the leader: computes a step on all ranks. Copies of blocks come first, then keys and values of the rows go to the cache.
  /// Shapes: logits [wanted rows, vocabulary]. Errors: `config_error` for a step that breaks the limits, for logits of another size, on a
  /// rank that does not lead, and after `finish` or a failed step.
  void run(const step& s, std::span<T> logits) { run(s, logits, {}, {}); }

  /// Whether tokens can be drawn where the logits are (`drawing_runner`): on a device whose backend has `token_drawing_kernels`.
  bool draws() const noexcept { return draws_on_device; }
  /// On the leader: pinned memory for n logits, where tokens can be drawn; else empty. Errors: `memory_error`.
  std::span<T> logits_memory([[maybe_unused]] std::size_t n) {
    if constexpr (draws_on_device)
      return step_draws_.logits_memory(stage_.queue(), n);
    else
      return {};
  }
  /// The same step; the wanted rows that `draws` names, ascending, are drawn on the device, and their logits stay there. Logits may be empty where
  /// it names all of them. Errors: as above, and `config_error` for draws of rows that are not wanted, or where none can be drawn.
  void run(const step& s, std::span<T> logits, std::span<const compute::token_draw> draws,
           std::span<compute::token_drawn> drawn) {
    require_draws(draws, drawn.size(), s.wanted.size());
    require(s, logits.size(), !draws.empty() && draws.size() == s.wanted.size());
    state_ = state::failed;  // until it has succeeded
    if (control().size() > 1) {
      message_.write(s);
      send_message();
    }
    compute(s, logits, draws);
    if constexpr (draws_on_device)
      if (!draws.empty()) std::ranges::copy(step_draws_.drawn(), drawn.begin());
    state_ = state::ready;
  }
  /// Throws what `run` would for a step and the size of its logits, before any rank hears of it.
  void require(const step& s, std::size_t logits, bool all_drawn = false) const {
    require_ready("run");
    const step_limits limits_now = limits();
    require_step(s, limits_now);
    if constexpr (stage_type::keeps::windows)
      if (s.everywhere)
        throw config_error(
            "heddle: model_runner: rows of layers with a window see the last tokens before them; a step should not be "
            "everywhere");
    if constexpr (!std::is_same_v<model::reach_of<Model>, model::earlier>)
      if (!s.everywhere)
        throw config_error(
            "heddle: model_runner: rows of a masked model also see tokens behind them; a step should be everywhere");
    const std::int64_t expected = static_cast<std::int64_t>(s.wanted.size()) * limits_now.vocabulary;
    if (static_cast<std::int64_t>(logits) != expected && !(all_drawn && logits == 0))
      throw config_error("heddle: model_runner: " + std::to_string(s.wanted.size()) + " wanted rows have " +
                         std::to_string(expected) + " logits, got room for " + std::to_string(logits));
  }
  /// On the leader, after a step with `step::streams`: the residual stream of each wanted row as it leaves the last block, before the final norm.
  /// Shapes: [wanted rows, width].
  std::span<const T> streams() const noexcept { return streams_; }
  /// On the other ranks: computes what the leader asks for, until it finishes or interrupts; then says which, and `finished` also where it is called again after that.
  /// They wait in a broadcast meanwhile, so where the leader may be idle for long the time-out of `launch_options` must be longer, or 0 for none.
  followed follow() {
    if (leads()) throw config_error("heddle: model_runner: rank 0 leads: it calls run and finish");
    while (state_ == state::ready) {
      state_ = state::failed;
      auto& control = this->control();
      control.broadcast(message_.head(), 0);
      if (!message_.has_step()) {
        const followed word = message_.word();
        state_ = word == followed::finished ? state::finished : state::ready;
        return word;
      }
      message_.make_room();
      control.broadcast(message_.body(), 0);
      message_.read(step_);
      compute(step_, {}, {});
      state_ = state::ready;
    }
    return followed::finished;
  }
  /// On the leader, between two steps: lets `follow` return `interrupted` on the other ranks, so that all ranks can do something together, such as take other
  /// weights. The other ranks call `follow` again before the leader's next `run`, `interrupt` or `finish` returns.
  /// Errors: `config_error` on a rank that does not lead, and after `finish` or a failed step.
  void interrupt() {
    require_ready("interrupt");
    if (control().size() == 1) return;
    message_.write_interrupt();
    send_message();
  }
  /// Takes no further step, and tells no other rank: where they do not follow, or an error ends all ranks.
  void abandon() noexcept { state_ = state::failed; }
  /// On the leader: lets `follow` return on the other ranks. Nothing happens the second time, on other ranks and after a step that failed.
  void finish() {
    if (state_ != state::ready || !leads()) return;
    state_ = state::finished;
    if (control().size() == 1) return;
    message_.write_finish();
    send_message();
  }

 private:
  enum class state : unsigned char { ready, finished, failed };
  model_runner(const config_type& config, World& world, Backend& backend, cache_extent cache, std::int64_t max_rows,
               typename stage_type::memory_from from, bool together)
      : world_(&world),
        backend_(&backend),
        together_(together),
        stage_(config, world, backend, layers_of(config, world.mesh(), world.rank()), cache, max_rows, from) {
    const std::int64_t elements = max_rows * config.width;
    auto& queue = stage_.queue();
    if (!stage_.is_first()) in_ = memory(queue, elements, "what comes from the stage before");
    if (!stage_.is_last()) out_ = memory(queue, elements, "what goes to the next stage");
    // Logits that are on their way to the leader, or to its memory of the host.
    if (keeps_logits(world, stage_.is_last()))
      found_ = memory(queue, (std::min)(max_rows, stage_type::head_rows) * config.vocabulary, "logits of a step");
    if constexpr (draws_on_device)
      if (leads()) step_draws_.reserve(queue, static_cast<std::size_t>(max_rows));
  }
  // Where kernels run on cores of the host, messages are the host's, after a wait for them; on a device they go in the order of the queue, and the
  // host waits for logits that come to its memory, and at the end of a step.
  using space = typename stage_type::space;
  using row = typename stage_type::row;
  using const_row = typename stage_type::const_row;
  using memory = buffer<T, space>;
  static constexpr bool on_host = heddle::v0::detail::kernels_run_on_host<space>();

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
                         " ranks; give each replica a world of its own, world.sub<...>(), with an engine in each, or "
                         "where they share experts a lockstep_runner");
    return config;
  }
  // The axes between replicas, those of one, and its control plane.
  template <class... Tags>
  static typename whole_mesh::template tags_among<Tags...> axes_of_world(type_list<Tags...>);
  using row_axes = decltype(axes_of_world(typename stage_type::layouts::row_axes{}));
  using own_axes = typename model::detail::axes_without<typename whole_mesh::tags, row_axes>::type;
  template <class... Tags>
  auto& control_along(type_list<Tags...>) {
    return world_->template control_along_if<Tags...>();
  }
  auto& control() {
    if constexpr (row_axes::size == 0)
      return world_->control();
    else
      return control_along(own_axes{});
  }
  static bool leads_replica(const World& world) {
    if constexpr (row_axes::size == 0)
      return world.rank() == 0;
    else
      return first_along(world, own_axes{});
  }
  template <class... Tags>
  static bool first_along([[maybe_unused]] const World& world, type_list<Tags...>) {
    return ((world.mesh().template coordinate<Tags>(world.rank()) == 0) && ...);
  }
  // The rank of the last stage that has whole logits is the first of its replica along every axis but the pipeline's.
  static bool has_logits(const World& world) { return leads_replica(world) || first_of_stage(world, own_axes{}); }
  template <class... Tags>
  static bool first_of_stage(const World& world, type_list<Tags...>) {
    return ((std::is_same_v<Tags, Pipeline> || world.mesh().template coordinate<Tags>(world.rank()) == 0) && ...);
  }
  static bool keeps_logits(const World& world, bool last) {
    const bool leads = leads_replica(world);
    return has_logits(world) && (on_host ? last && !leads : last || leads);
  }

  void require_ready(const char* verb) const {
    if (!leads())
      throw config_error(std::string("heddle: model_runner: ") + verb + " is for rank 0; other ranks call follow");
    if (state_ != state::ready)
      throw config_error(std::string("heddle: model_runner: no step can follow ") +
                         (state_ == state::finished ? "finish" : "a step that failed"));
  }
  void send_message() {
    auto& control = this->control();
    control.broadcast(message_.head(), 0);
    if (message_.has_step()) control.broadcast(message_.body(), 0);
  }
  static void require_draws(std::span<const compute::token_draw> draws, std::size_t drawn, std::size_t wanted) {
    if (draws.size() != drawn || (!draws.empty() && !draws_on_device))
      throw config_error("heddle: model_runner: " + std::to_string(draws.size()) + " draws have room for " +
                         std::to_string(drawn) + " tokens" +
                         (draws_on_device ? "" : ", and this backend draws none: ask for logits"));
    std::int64_t last = -1;
    for (const compute::token_draw& d : draws) {
      if (d.row <= last || d.row >= static_cast<std::int64_t>(wanted))
        throw config_error("heddle: model_runner: rows of draws should ascend below the " + std::to_string(wanted) +
                           " wanted rows, got " + std::to_string(d.row) + " after " + std::to_string(last));
      last = d.row;
    }
  }
  void compute(const step& s, std::span<T> logits, std::span<const compute::token_draw> draws) {
    if constexpr (requires { world_->mark(steps_); } &&
                  (std::is_same_v<space, host_memory> || !runs_host_code<typename space::queue>))
      world_->mark(steps_++);
    stage_.move_rows(s.moves);
    stage_.copy_blocks(s.copies);
    stage_.copy_states(s.state_copies);
    if constexpr (draws_on_device)
      if (leads()) step_draws_.begin(stage_.queue(), draws, stage_type::head_rows);
    if (s.rows() == 0 && !together_) return;  // replicas meet in layers, whoever has rows
    rows_.prepare(s, stage_.cache().block_rows, stage_.window(), stage_.order_of(s));
    auto&& pipeline = world_->template along_if<Pipeline>();
    const std::int64_t elements = stage_.stream_elements(s.rows());
    const row in = part_of(in_, stage_.is_first() ? 0 : elements), out = part_of(out_, stage_.is_last() ? 0 : elements);
    if (!stage_.is_first()) receive(pipeline, in, pipeline.rank() - 1, stream_tag);
    stage_.forward(rows_, rows_.tokens(), in, out);
    wait_on_host();  // the step's rows are the host's
    if (!stage_.is_last()) send(pipeline, out, pipeline.rank() + 1, stream_tag);
    const auto wanted = static_cast<std::int64_t>(s.wanted.size());
    if (s.streams) give_streams(pipeline, wanted * stage_.config().width);
    const std::int64_t vocabulary = stage_.config().vocabulary;
    for (std::int64_t i = 0; i < wanted; i += stage_type::head_rows) {
      const std::int64_t rows = (std::min)(stage_type::head_rows, wanted - i), n = rows * vocabulary;
      const std::span<T> asked = leads() && !logits.empty() ? logits.subspan(static_cast<std::size_t>(i * vocabulary),
                                                                             static_cast<std::size_t>(n))
                                                            : std::span<T>();
      const row mine = on_host && leads() ? as_row(asked) : part_of(found_, found_.empty() ? 0 : n);
      if (stage_.is_last()) {
        stage_.logits(i, rows, mine);
        wait_on_host();
      }
      if (pipeline.size() > 1 && has_logits(*world_)) {
        if (stage_.is_last()) send(pipeline, mine, 0, logits_tag);
        if (leads()) receive(pipeline, mine, pipeline.size() - 1, logits_tag);
      }
      if constexpr (draws_on_device) {
        if (leads()) step_draws_.take(*backend_, i, vocabulary, const_matrix(mine, rows), logits);
      } else if (!on_host && leads()) {
        stage_.queue().copy(const_row(mine), asked);
      }
    }
    if constexpr (draws_on_device)
      if (leads()) step_draws_.end(stage_.queue());
    if constexpr (!on_host) stage_.queue().wait();  // for what is the host's again, and once in a step
  }
  // Residual streams of the wanted rows, n elements, to `streams_` of the leader.
  template <class Group>
  void give_streams(Group& pipeline, std::int64_t n) {
    const bool has_some = leads() || stage_.is_last();
    streams_.resize(has_some && (on_host || leads()) ? static_cast<std::size_t>(n) : 0);
    if (!on_host && has_some && static_cast<std::int64_t>(kept_.size()) < n)
      kept_ = memory(stage_.queue(), stage_.max_rows() * stage_.config().width, "residual streams of a step");
    const row mine = on_host ? as_row(std::span<T>(streams_)) : part_of(kept_, has_some ? n : 0);
    if (stage_.is_last()) {
      stage_.streams(mine);
      wait_on_host();
    }
    if (pipeline.size() > 1 && has_logits(*world_)) {
      if (stage_.is_last()) send(pipeline, mine, 0, streams_tag);
      if (leads()) receive(pipeline, mine, pipeline.size() - 1, streams_tag);
    }
    if (!on_host && leads()) stage_.queue().copy(const_row(mine), streams_);
  }

  auto const_matrix(const row& x, std::int64_t rows) const {
    return matrix_view<const T, space>(first_element(x), dynamic_shape<2>(rows, stage_.config().vocabulary));
  }
  static row as_row(std::span<T> x) noexcept { return row_at<space>(x.data(), static_cast<std::int64_t>(x.size())); }
  static row part_of(memory& x, std::int64_t n) noexcept { return row_at<space>(x.address(), n); }
  template <class Element>
  static std::span<Element> elements(const row& x) noexcept {
    return {first_element(x), element_count(x)};
  }
  template <class Group>
  void send(Group& group, const row& x, int to, int tag) {
    if constexpr (on_host)
      group.send(elements<const T>(x), to, tag);
    else
      heddle::v0::send(stage_.queue(), group, x, to, tag);
  }
  template <class Group>
  void receive(Group& group, const row& x, int from, int tag) {
    if constexpr (on_host)
      group.recv(elements<T>(x), from, tag);
    else
      heddle::v0::recv(stage_.queue(), group, x, from, tag);
  }
  void wait_on_host() {
    if constexpr (on_host && !std::is_same_v<space, host_memory>) stage_.queue().wait();
  }

  static constexpr int stream_tag = 7101, logits_tag = 7102, streams_tag = 7103;
  World* world_;
  Backend* backend_;
  bool together_;  // with other replicas
  stage_type stage_;
  [[no_unique_address]] heddle::v0::detail::watched_by_world<World, typename space::queue> watched_{*world_,
                                                                                                    stage_.queue()};
  state state_ = state::ready;
  std::int64_t steps_ = 0;  // that were computed: the world's mark
  step_message message_{};
  step step_{};
  step_rows rows_{};
  memory in_{}, out_{}, found_{}, kept_{};
  static constexpr bool draws_on_device = detail::draws_on_device<Backend, T>;
  [[no_unique_address]] step_draws<Backend, T> step_draws_{};
  std::vector<T> streams_{};
};

}  // namespace heddle::inline v0::infer
