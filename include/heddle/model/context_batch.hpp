// heddle/model/context_batch.hpp: microbatches of parts of documents, on a stage.
#pragma once

#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/context/program.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/batch_checks.hpp>
#include <heddle/model/described.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/model/rows_of_batch.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model {

/// What a rank does for attention in the two passes over a microbatch. `again`: forward once more, where outputs of its last
/// `kept` rows are there yet.
struct context_programs {
  context_program forward{}, backward{}, again{};
  std::int64_t kept = 0;
};

/// One microbatch of the rows that a rank has of some documents: `samples` rows, each with its position in its document. `tokens` are
/// needed on the first stage, `targets` (already shifted; negative: ignored) on the last, `positions` and `programs` on all.
/// `loss_scale` multiplies the gradient: 1 / (tokens of the whole step). `Context`: the sharding's `context<Policies...>`.
/// Shapes: tokens, targets, positions [samples].
template <class T, class Context>
struct context_batch {
  std::span<const std::int32_t> tokens{}, targets{}, positions{};
  const context_programs* programs = nullptr;
  int samples = 0;
  sum_of_type<T> loss_scale = 1;
  int sequence = 1;
};

template <class T, class Context>
struct batch_contents<context_batch<T, Context>> {
  using input = std::int32_t;
  using target = std::int32_t;
  template <class Config>
  static constexpr sample_extents extents(const Config&) {
    return {1, 1};
  }
  static void give(context_batch<T, Context>& b, std::span<const input> inputs, std::span<const target> targets) {
    b.tokens = inputs;
    b.targets = targets;
  }
};

/// What the first layer reads of rows of documents: their tokens.
template <class Config, class T, class Context>
compute::token_ids inputs_of(const Config&, const context_batch<T, Context>& b, extent_of_batch) {
  return b.tokens;
}

/// The extent of a microbatch: rows, each a sequence of one. Errors: `config_error` naming what does not fit.
template <class Config, class T, class Context>
extent_of_batch checked_batch(const Config& config, std::int64_t max_samples, const context_batch<T, Context>& b,
                              bool reads_tokens, bool reads_targets) {
  if (b.samples < 0 || b.samples > max_samples)
    throw config_error("heddle: a microbatch of " + std::to_string(b.samples) + " rows of documents; this stage has room for " +
                       std::to_string(max_samples));
  if (b.sequence != 1)
    throw config_error("heddle: rows of documents are sequences of 1, got " + std::to_string(b.sequence));
  if (b.programs == nullptr || b.programs->forward.rows != b.samples)
    throw config_error("heddle: a microbatch of " + std::to_string(b.samples) +
                       " rows of documents came without the programs of their attention");
  const auto require = [&](std::span<const std::int32_t> ids, const char* what, std::int64_t end, bool negative) {
    if (static_cast<std::int64_t>(ids.size()) != b.samples)
      throw config_error("heddle: a microbatch of " + std::to_string(b.samples) + " rows of documents came with " +
                         std::to_string(ids.size()) + " " + what);
    for (const std::int32_t id : ids)
      if (id >= end || (id < 0 && !negative))
        throw config_error(std::string("heddle: ") + what + " hold " + std::to_string(id) + "; expected 0 to " +
                           std::to_string(end - 1));
  };
  require(b.positions, "positions", config.context, false);
  if (reads_tokens) require(b.tokens, "tokens", config.vocabulary, false);
  if (reads_targets) require(b.targets, "targets", config.vocabulary, true);
  return {b.samples, 1};
}

/// What layers see of such a microbatch: attention by its programs. As `Cache` of a `layer_run`.
template <class T, class Executor>
struct context_rows {
  Executor* executor = nullptr;
  const context_programs* programs = nullptr;
  T* tail = nullptr;  ///< where the block at work keeps outputs of the last rows, and their log-sum-exp; null where it does not

  using heads = typename Executor::template heads<T>;
  using const_heads = typename Executor::template heads<const T>;
  using sum = sum_of_type<T>;

  /// `again`: as it was computed before, for what was dropped since.
  void attend(bool again, const const_heads& q, const const_heads& k, const const_heads& v, sum scale, const heads& out,
              row_view<sum, typename Executor::space> lse) {
    executor->attend(again && tail != nullptr ? programs->again : programs->forward, q, k, v, scale, out, lse);
    if (tail == nullptr) return;
    using numbers = typename Executor::template numbers<sum>;
    const auto copy = [&](const auto& of_rows, const auto& kept) {
      executor->copy(again ? kept : of_rows, again ? of_rows : kept);
    };
    const std::int64_t n = programs->kept, first = out.rows - n, width = out.width();
    if (n > 0) {
      copy(heads{out.row(first, 0), n, out.heads, out.head_dim, out.stride}, heads{tail, n, out.heads, out.head_dim, width});
      copy(numbers{first_element(lse) + first, n, out.heads, 1, out.rows},
           numbers{reinterpret_cast<sum*>(tail + lines<T>(n * width)), n, out.heads, 1, n});
    }
    tail += lines<T>(n * width) + lines<sum>(n * out.heads) * static_cast<std::int64_t>(sizeof(sum) / sizeof(T));
  }
  // Elements up to the next cache line, as memory is placed.
  template <class E>
  static constexpr std::int64_t lines(std::int64_t n) noexcept {
    constexpr auto line = static_cast<std::int64_t>(64 / sizeof(E));
    return (n + line - 1) / line * line;
  }
  template <class... X>
  void attend_backward(const X&... x) const {
    executor->attend_backward(programs->backward, x...);
  }
};

/// Positions and programs of the microbatches of a stage, and what carries their attention.
template <class T, class Context, class Layouts, class Backend, class World>
class rows_of_batch<context_batch<T, Context>, Layouts, Backend, World> {
  template <class Axis>
  static decltype(auto) along(World& world, type_list<Axis>) {
    return world.template along_if<Axis>();
  }
  template <class Axis>
  static std::vector<int> names_along(World& world, type_list<Axis>) {
    if constexpr (std::remove_cvref_t<decltype(world.mesh())>::template has<Axis>) {
      const auto members = group<Axis>(world.mesh(), world.rank());
      return {members.begin(), members.end()};
    } else {
      return {world.rank()};
    }
  }
  using axes = typename Layouts::context_axes;
  // A reference, or one that reports to an observer and is kept.
  using communicator_type = decltype(along(std::declval<World&>(), axes{}));
  using executor_type = context_executor<T, Backend, std::remove_reference_t<communicator_type>>;
  // Other messages along the axis have lower ones.
  static constexpr int first_tag = 1 << 10;
  struct carrier_of_stage {
    communicator_type ranks;
    executor_type executor;
    carrier_of_stage(World& world, Backend& backend)
        : ranks(along(world, axes{})), executor(backend, ranks, first_tag) {
      if constexpr (heddle::v0::detail::takes_events<std::remove_reference_t<communicator_type>>)
        executor.name_ranks(names_along(world, axes{}));
    }
  };

 public:
  static constexpr bool of_samples = false;
  using seen = context_rows<T, executor_type>;

  rows_of_batch(World& world, Backend& backend, int places)
      : attention_(std::make_unique<carrier_of_stage>(world, backend)),
        places_(static_cast<std::size_t>(places)),
        queue_(&compute::queue_of(backend)) {}
  template <class Config>
  static constexpr std::int64_t of_sample(const Config&) noexcept {
    return 1;
  }
  template <class Config>
  static constexpr std::int64_t samples_of_head(const Config& config) noexcept {
    return config.context;
  }
  /// On a device the positions are copied in the order of the queue, until when the batch stays as it is.
  void take(int place, const context_batch<T, Context>& b) {
    given& g = places_[static_cast<std::size_t>(place)];
    g.programs = b.programs;
    if constexpr (std::is_same_v<space, host_memory>) {
      g.positions = b.positions;
    } else {
      const std::int64_t n = std::ssize(b.positions);
      const auto here = row_at<space>(g.room.of(*queue_, n + 1, "positions of rows"), n);
      queue_->copy(b.positions, here);
      g.positions = here;
    }
  }
  template <class Run>
  void show(int place, Run& run) const {
    const given& g = places_[static_cast<std::size_t>(place)];
    run.positions = g.positions;
    run.cache = {&attention_->executor, g.programs};
  }

 private:
  using space = space_of<Backend>;
  struct given {
    compute::token_ids_in<space> positions{};
    const context_programs* programs = nullptr;
    compute::detail::growing_room<std::int32_t, space> room{};  // on a device
  };
  std::unique_ptr<carrier_of_stage> attention_;  // layers have its address
  std::vector<given> places_;
  typename space::queue* queue_;
};

}  // namespace heddle::inline v0::model
