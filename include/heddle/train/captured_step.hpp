// heddle/train/captured_step.hpp: a training step as one graph of a queue (not run on a GPU).
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/batch_checks.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/eager_step.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/step_batches.hpp>
#include <heddle/train/step_graph.hpp>
#include <heddle/train/step_sums.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train::detail {

// ---- what can be captured ----

template <bool Ok, class Backend>
inline constexpr bool queue_can_be_captured = Ok;
template <bool Ok, class Backend>
inline constexpr bool launches_in_this_file = Ok;
template <bool Ok, class Strategy>
inline constexpr bool strategy_can_be_captured = Ok;
template <bool Ok, class Stage>
inline constexpr bool stage_only_queues = Ok;
template <bool Ok, class Communicator>
inline constexpr bool communicator_can_be_captured = Ok;

// Whether steps are captured. A compile error where the strategy asks for it and something in a step cannot be in a graph; one at a time.
template <class Strategy, class Stage, class Optimizer, class World>
consteval bool steps_are_captured() {
  if constexpr (!Strategy::steps::captured || requires { Stage::is_refused; }) {
    return false;
  } else {
    using backend = typename Strategy::backend;
    using queue = typename space_of<backend>::queue;
    using communicator = std::remove_cvref_t<decltype(std::declval<World&>().all())>;
    if constexpr (constexpr bool single = !requires { requires Optimizer::whole_tensors; }; !single)
      static_assert(
          strategy_can_be_captured<single, Strategy>,
          "heddle: captured_steps has optimizer rules of single elements, whose kernels read a step's numbers from "
          "the device's memory; with a rule of whole matrices leave it out");
    else if constexpr (constexpr bool ok = requires {
                         typename queue::graph;
                         typename queue::pinned;
                       }; !ok)
      static_assert(queue_can_be_captured<ok, backend>,
                    "heddle: captured_steps needs a backend whose queue can be captured into a graph, as that of "
                    "compute::cuda; with this backend leave it out");
    else if constexpr (constexpr bool kernels = launches_kernels<queue>; !kernels)
      static_assert(launches_in_this_file<kernels, backend>,
                    "heddle: captured_steps sums the norm of a step by a kernel: compile this file with nvcc");
    else if constexpr (constexpr bool waits = !Strategy::norm_check::steps_first; !waits)
      static_assert(strategy_can_be_captured<waits, Strategy>,
                    "heddle: with post_validation the host decides whether a step is taken back, which a graph "
                    "cannot; leave post_validation or captured_steps out");
    else if constexpr (constexpr bool unobserved = !Strategy::observer::enabled; !unobserved)
      static_assert(strategy_can_be_captured<unobserved, Strategy>,
                    "heddle: a step that is launched as a graph tells an observer nothing; leave the observer or "
                    "captured_steps out");
    else if constexpr (constexpr bool plain = requires { requires Optimizer::template updates_at<backend>; }; !plain)
      static_assert(strategy_can_be_captured<plain, Strategy>,
                    "heddle: captured_steps has steps of the optimizer in the model's element type, "
                    "by a backend that reads their scalars from its memory (compute::ops::adamw_at); leave "
                    "precision<...> of weights, gradients or moments, or captured_steps, out");
    else if constexpr (constexpr bool alike = model::of_stage::takes_samples<Stage>; !alike)
      static_assert(stage_only_queues<alike, Stage>,
                    "heddle: the documents of a step, and who sends what of them, differ from step to step, and a graph "
                    "repeats one step: leave the context split or captured_steps out");
    else if constexpr (constexpr bool only = model::of_stage::only_queues<Stage>; !only)
      static_assert(stage_only_queues<only, Stage>,
                    "heddle: a step of this stage reads on the host what the device computes, or is not known not to "
                    "(experts whose rows travel between ranks, activations that leave the device): split experts over "
                    "an axis that splits no samples or sequences, keep activations on the device, or leave "
                    "captured_steps out; a stage of one's own says `static constexpr bool only_queues = true` if it "
                    "does not");
    else if constexpr (constexpr bool in_order = heddle::v0::detail::goes_on_stream_of<communicator, queue> ||
                                                 heddle::v0::detail::shares_device_of<communicator, queue>;
                       !in_order)
      static_assert(communicator_can_be_captured<in_order, communicator>,
                    "heddle: the calls of this communicator wait on the host, so that no graph can have them: take "
                    "hd::nccl, or leave captured_steps out");
    else
      return true;
    return false;
  }
}

// ---- the sums of a step, on the device ----

// One rank's, as `trainer` adds them up on the host: losses of microbatches and squares of stages in their order.
struct sums_of_rank {
  const double *losses, *squares, *given;  // given: targets and stops
  std::int64_t microbatches, stages;
  bool counts_loss;
  double* to;
  HEDDLE_HD void operator()(std::int64_t) const {
    double loss = 0, norm = 0;
    for (std::int64_t i = 0; i < microbatches; ++i) loss += losses[i];
    for (std::int64_t i = 0; i < stages; ++i) norm += squares[i];
    to[0] = counts_loss ? loss : 0.0;
    to[1] = given[0];
    to[2] = norm;
    to[3] = given[1];
  }
};
// Those of all ranks, in the order of the ranks, and what gradients are multiplied with: negative where there is no step.
struct scale_of_step {
  const double* all;
  int ranks;
  double targets, clip_norm;
  double* to;
  HEDDLE_HD void operator()(std::int64_t) const {
    for (int k = 0; k < 4; ++k) {
      double sum = all[k];
      for (int r = 1; r < ranks; ++r) sum = sum + all[4 * r + k];
      to[k] = sum;
    }
    const double scale = targets / to[1], loss = to[0] / to[1], root = std::sqrt(to[2]);
#if defined(__CUDA_ARCH__)
    const double norm = __dmul_rn(root, scale);  // rounded, as on the host, before anything is added
#else
    const double norm = root * scale;
#endif
    const double part = clip_norm / (norm + 1e-6);
    to[4] = is_finite(loss) && is_finite(norm) && is_finite(scale) ? (part < 1.0 ? part : 1.0) * scale : -1.0;
  }
  HEDDLE_HD static bool is_finite(double x) {  // whatever the compiler assumes of numbers
    std::uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    return (bits >> 52 & 0x7ff) != 0x7ff;
  }
};

/// The steps of a trainer whose strategy has `captured_steps`. What changes from step to step lies in pinned memory, which the graph
/// reads; what the host reads of a step is there when the graph has run. Errors: `config_error` for ranks that cannot be captured.
/// Ranks that are threads and share a device have one graph together.
template <class Run>
class captured_step {
  using T = typename Run::scalar;
  using Batch = typename Run::batch_type;
  using Space = typename Run::space;
  using World = typename Run::world_type;
  using Scalars = typename Run::optimizer_type::scalars;
  using queue_type = typename Space::queue;
  using pinned = typename queue_type::pinned;
  using contents = model::batch_contents<Batch>;
  using communicator = std::remove_cvref_t<decltype(std::declval<World&>().all())>;

 public:
  explicit captured_step(Run& run) : graph_(run.world.all()) {
    auto& all = run.world.all();
    if constexpr (requires { all.completes_calls(); })
      if (all.completes_calls())
        throw config_error(
            "heddle: captured_steps: each call of this transport waits until it is complete "
            "(nccl_settings::complete), which a graph cannot; take hd::nccl");
    if (run.sharded.rounds_by_turns())
      throw config_error(
          "heddle: captured_steps: with zero<3> and precision<products_in<bf16>> the stages of a rank must have as "
          "many "
          "elements each, since the memory of their rounded weights is given back otherwise, which a graph cannot; "
          "take "
          "zero<2>, one stage for each rank, or leave captured_steps out");
    queue_type& queue = run.backend.queue();
    typename pinned::queue staging(queue);
    const auto on_host = [&]<class X>(buffer<X, pinned>& x, std::size_t n) {
      x = buffer<X, pinned>(staging, static_cast<std::int64_t>(n), "what a captured step reads and writes");
    };
    const auto on_device = [&]<class X>(buffer<X, Space>& x, std::size_t n) {
      x = buffer<X, Space>(queue, static_cast<std::int64_t>(n), "the sums and scalars of a captured step");
    };
    std::size_t segments = 0;
    run.steps.each_step(0, [&](const Scalars&) { ++segments; });
    on_host(inputs_, run.batches.input_count());
    on_host(targets_, run.batches.target_count());
    on_host(given_, 2);
    on_host(scalars_, segments);
    on_host(sums_, 4);
    on_device(given_there_, 2);
    on_device(scalars_there_, segments);
    on_device(mine_, 4);
    on_device(all_, all.size() > 1 ? 4 * static_cast<std::size_t>(all.size()) : 0);
    on_device(step_, 5);
    run.batches.lie_in(std::span(inputs_.data(), inputs_.size()), std::span(targets_.data(), targets_.size()));
    run.executor.send_in_order();
  }

  static step_hooks<Run> hooks(Run& run) noexcept { return {run}; }
  static constexpr bool pending() noexcept { return false; }
  static constexpr std::int64_t taken_back() noexcept { return 0; }
  /// Memory that the graph uses may be another: the next step is done eagerly, the one behind it captured again. On all ranks together.
  void forget() noexcept { next_ = way::eager; }
  /// The same, and the graph goes at once: its memory is there for what comes before that step, and for the step. Behind a step, whose queue has been waited for.
  void drop(queue_type& queue) {
    forget();
    if (!graph_.drop()) return;
    if constexpr (requires { queue.release_kept(); }) queue.release_kept();
  }
  /// Operations of the graph, which may be that of all ranks; 0 before the second step.
  std::size_t operations() const noexcept { return graph_.operations(); }

  template <class Data>
  step_report step(Run& run, const Data& data) {
    const std::int64_t start = now_ns();
    const step_report report = run.new_report();
    queue_type& queue = run.backend.queue();
    run.load(data);
    check(run);
    given_[0] = run.beside.rank() == 0 ? run.batches.counted_targets() : 0.0;
    given_[1] = run.options.stop != nullptr && *run.options.stop ? 1.0 : 0.0;
    std::size_t k = 0;
    run.steps.each_step(run.at.step, [&](const Scalars& s) { scalars_[k++] = s; });
    const auto give = [&] { give_step(run, queue); };
    if (std::exchange(releases_, run.sharded.releases()) != run.sharded.releases()) forget();
    const way now = next_;
    next_ = way::eager;  // after an error
    if (now == way::eager) {
      drop(queue);
      give();
    }
    // A graph's memory is another pool's: what the eager step left in the device's would be held twice.
    if constexpr (requires { queue.release_kept(); })
      if (now == way::capture) queue.release_kept();
    if (now == way::capture) graph_.capture(queue, give);
    if (now != way::eager) graph_.launch(queue);
    queue.wait();
    next_ = now == way::eager ? way::capture : way::launch;

    run.at.stopped = run.at.stopped || sums_[3] > 0;
    const step_result result = result_of({sums_[0], sums_[1], sums_[2]}, run.targets_of_a_step());
    refuse_no_targets(result, run.at.step);
    if (!result.is_finite())
      stop_nonfinite(run.world.control(), find_nonfinite(run.held, run.backend), run.at.step, result.loss,
                     result.gradient_norm);
    run.end_step();
    return completed(report, result, now_ns() - start);
  }

 private:
  enum class way : unsigned char { eager, capture, launch };

  // What the stages' forwards refuse, which a graph does not call.
  static void check(Run& run) {
    if constexpr (requires(const Batch& b) {
                    run.options.model.context;
                    run.options.model.vocabulary;
                    model::checked_batch(run.options.model, run.max_samples, b, true, true);
                  })
      run.batches.check_ends([&](const Batch& b, bool begins, bool ends) {
        using head = typename model::detail::head_of<typename Run::model_type>::type;
        static_cast<void>(model::detail::checked_batch_of<head>(run.options.model, run.max_samples, b, begins, ends));
      });
  }
  // All of a step, in the order of the queue; nothing here waits.
  void give_step(Run& run, queue_type& queue) {
    queue.copy(given_, given_there_);
    queue.copy(scalars_, scalars_there_);
    run.run_backward(hooks(run));
    const auto losses = run.losses.there(), squares = run.steps.squares_there();
    launch_each(queue, 1,
                sums_of_rank{losses.address(), squares.address(), given_there_.address(), losses.size(), squares.size(),
                             run.counts_loss, mine_.address()});
    auto& all = run.world.all();
    if (all.size() > 1) heddle::v0::all_gather(queue, all, mine_, all_);
    launch_each(queue, 1,
                scale_of_step{all.size() > 1 ? all_.address() : mine_.address(), all.size(),
                              static_cast<double>(run.targets_of_a_step()), run.steps.clip_norm(), step_.address()});
    run.steps.update_at({scalars_there_.address(), step_.address() + 4});
    run.gather_weights();
    queue.copy(row_at<Space>(step_.address(), 4), sums_);
  }

  buffer<typename contents::input, pinned> inputs_{};
  buffer<typename contents::target, pinned> targets_{};
  buffer<double, pinned> given_{}, sums_{};
  buffer<Scalars, pinned> scalars_{};
  buffer<double, Space> given_there_{}, mine_{}, all_{}, step_{};
  buffer<Scalars, Space> scalars_there_{};
  step_graph<communicator, queue_type> graph_;
  way next_ = way::eager;
  std::int64_t releases_ = 0;  // of the trainer's memory, before the last step
};

}  // namespace heddle::inline v0::train::detail
