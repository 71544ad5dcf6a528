// heddle/train/sharded_stages.hpp: gathers weights of stages around their use (ZeRO-3).
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/model/pipeline/stage.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/lent_gradients.hpp>
#include <heddle/train/buffer_pool.hpp>
#include <heddle/train/pipeline_axis.hpp>
#include <heddle/train/registered_parameters.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/weight_forecast.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Memory for the parameters of one rank. Units: bytes.
struct parameter_bytes {
  std::int64_t weights = 0;    ///< whole, or this rank's share
  std::int64_t gradients = 0;  ///< the same, and those of a tied embedding that a head borrows
  std::int64_t moments = 0;    ///< and copies for `post_validation_with_copy`
  std::int64_t lent = 0;       ///< whole weights and gradients that come and go (`zero<2>`, `zero<3>`)
  std::int64_t kept = 0;       ///< memory of those that are gone, for the next ones
  std::int64_t rounded = 0;    ///< what a backend keeps of weights for the passes of a step (`products_in<bf16>`)
  std::int64_t total() const noexcept { return weights + gradients + moments + lent + kept + rounded; }
  friend bool operator==(const parameter_bytes&, const parameter_bytes&) = default;
};

namespace detail {

template <class Stage, int Zero>
consteval bool stage_can_be_sharded() {
  if constexpr (!requires { Stage::is_refused; }) {
    constexpr bool gradients = Zero < 2 || model::of_stage::can_lend_gradients<Stage>;
    static_assert(
        model::detail::stage_has_it<gradients, Stage>::value,
        "heddle: zero<2> and zero<3> keep a rank's share of the gradients only: the stage needs `void "
        "lend_gradients(std::span<scalar>)` (elsewhere than on the host row_view<scalar, space>) and `std::int64_t "
        "flat_elements() const`; without them use zero<1>");
    constexpr bool weights = Zero < 3 || !gradients || model::of_stage::can_lend_weights<Stage>;
    static_assert(
        model::detail::stage_has_it<weights, Stage>::value,
        "heddle: zero<3> keeps a rank's share of the weights only: the stage needs `void "
        "lend_weights(std::span<scalar>)` (elsewhere than on the host row_view<scalar, space>) and `std::int64_t "
        "flat_elements() const`; without them use zero<2>");
  }
  return true;
}

// Tells a stage in the making which replica it is, and which memory it need not allocate.
template <int Zero, bool InTrees = false, class Layers>
void complete_layers(Layers& layers, int replica) noexcept {
  if constexpr (requires { layers.tied_apart; }) layers.tied_apart = InTrees;
  if constexpr (requires { layers.replica; }) layers.replica = replica;
  if constexpr (requires { layers.lent_weights, layers.lent_gradients; }) {
    layers.lent_weights = Zero >= 3;
    layers.lent_gradients = Zero >= 2;
  }
}

// Errors: `schedule_error` naming a stage that computes with weights that the table never gathers.
constexpr void require_unshard_of_all(schedule::table_view table) {
  for (int s = 0; s < table.stages(); ++s) {
    bool there = false;
    for (const schedule::action& a : table.list(table.rank_of(s)))
      there = there || (a.kind == schedule::action_kind::unshard && a.stage == s);
    if (!there)
      throw schedule_error("heddle: zero<3>: the table has UNSHARD of some stages, but none of stage " +
                           std::to_string(s) + "; put UNSHARD and RESHARD around the computations of every stage");
  }
}

// Lowers a schedule for a strategy to what executors run (`schedule::plan` or `static_plan`): with RELOAD where activations come
// back (of a policy that is told at run time: if `reloads_now`), with UNSHARD and RESHARD where weights are shares.
template <class Strategy, class When, class Mesh>
constexpr auto lower_for(const When& when, const Mesh& mesh, bool reloads_now = true) {
  auto plan = detail::lower_for_activations<typename Strategy::activations>(
      when, detail::pipeline_mesh<typename Strategy::pipeline>(mesh), reloads_now);
  if constexpr (Strategy::zero::stage < 3) {
    return plan;
  } else {
    const schedule::table_view table = schedule::plan_view(plan).table;
    schedule::plan sharded;
    sharded.table = table.has(schedule::action_kind::unshard)
                        ? schedule::copy(table)
                        : schedule::passes::unshard{.resident = Strategy::zero::resident}(table);
    schedule::require_table(sharded.table, schedule::transfers::rendezvous);
    require_unshard_of_all(sharded.table);
    sharded.memory = schedule::assign_storage(sharded.table);
    return sharded;
  }
}

// Weights of a stage in the memory that it is lent, of which nothing is of its type.
template <class T, class Space, class Group>
struct whole_weights {
  int users = 0;
  buffer<T, Space> memory{};
  started_of_buckets<Group> under_way{};  // into it: ends first
};

}  // namespace detail

/// The stages of a rank under a ZeRO stage. Between `unshard` and `reshard` a stage's weights are whole, in memory that they are
/// lent (`buffer_pool`); `unshard` starts the all-gather, and the first computation waits for it (`before`); elsewhere than on the
/// host the all-gather is in the order of the stages' queue, in which nothing computes beside it. A head that uses
/// the embedding of another stage of this rank has that gathered, too. With fewer than three ZeRO stages weights are whole
/// all the time, and nothing of this happens.
/// `group`: the ranks that have the shares (each bucket's: `bucket_groups`). Every call is made by all of them, in the same
/// order.
template <class HeldStages, class Group>
class sharded_stages {
 public:
  using held_type = typename HeldStages::held;
  using scalar = typename HeldStages::scalar;
  using space = typename HeldStages::space;
  using row = row_view<scalar, space>;
  using memory_type = buffer_pool<scalar, space>;
  static constexpr int zero_stage = decltype(held_type::optimizer)::zero_stage;
  static constexpr int buckets = detail::buckets_of_optimizer<decltype(held_type::optimizer)>;
  static constexpr bool shards_weights =
      zero_stage >= 3 &&
      model::of_stage::can_lend_weights<std::remove_cvref_t<decltype(std::declval<held_type&>().stage)>>;

  /// `by_size`: as much is kept for each size as a step uses at a time, so that none but the first step takes memory or gives it back; so it is
  /// where communicators register memory, too.
  /// `gradients_stay`: whole gradients are there until the end of the backward (`reduce_beside`).
  sharded_stages(HeldStages& held, Group& group, schedule::table_view table, int rank, bool by_size = false,
                 bool gradients_stay = false)
      : held_(held),
        group_(group),
        table_(table),
        rank_(rank),
        by_size_(by_size || registered_type::is_asked(group)),
        gradients_stay_(gradients_stay) {
    if constexpr (shards_weights) {
      weights_.resize(static_cast<std::size_t>(table.stages()));
      held.for_each([](held_type& h) { h.stage.lend_weights({}); });
    }
    const detail::most_lent_bytes most = predicted_lent_bytes();
    held.memory().of_weights().set_limit(most.of_weights);
    if constexpr (!lent_memories<scalar, space>::are_one) held.memory().of_gradients().set_limit(most.of_gradients);
  }

  /// The first weights of a stage; of a sharded one this rank's share.
  void initialize(held_type& h, std::uint64_t seed) {
    if constexpr (shards_weights) {
      lend(h, memory_type::contents::zeros);
      h.stage.initialize(seed);
      if (!alone())
        detail::for_each_bucket(h.stage, h.optimizer, [](auto& stage, auto& optimizer, auto) {
          detail::queue_of_stage(stage).copy(optimizer.owned(stage.weights()), optimizer.weights_of(stage));
        });
      give_back(h);
    } else {
      h.stage.initialize(seed);
    }
  }

  /// UNSHARD and RESHARD. `observe(name, bytes, work, group...)` runs `work`, a call of a group.
  template <class Observe>
  void unshard(int stage, Observe&& observe) {
    if constexpr (shards_weights) for_those_used(stage, [&](held_type& h) { hold(h, observe); });
  }
  void reshard(int stage) {
    if constexpr (shards_weights) for_those_used(stage, [&](held_type& h) { drop(h); });
  }
  /// Before a computation.
  template <class Observe>
  void before(const schedule::action& a, Observe&& observe) {
    using schedule::action_kind;
    if constexpr (shards_weights)
      if (a.kind != action_kind::backward_weight) for_those_used(a.stage, [&](held_type& h) { await(h, observe); });
    if (a.kind == action_kind::backward || a.kind == action_kind::backward_input ||
        a.kind == action_kind::backward_weight)
      held_.at(a.stage).lent.need();
  }
  /// Weights gathered in this step are old: they are given back. Called on all ranks together.
  void drop_all() {
    if constexpr (shards_weights)
      held_.for_each([&](held_type& h) {
        auto& w = of(h);
        if (std::exchange(w.users, 0) > 0) give_back(h);
      });
  }
  /// After the optimizer's step: all ranks' weights are up to date; sharded ones at the next UNSHARD.
  template <class Observe>
  void gather_updated(Observe&& observe) {
    if constexpr (!shards_weights)
      held_.for_each([&](held_type& h) {
        detail::for_each_bucket(h.stage, h.optimizer, [&](auto& stage, auto& optimizer, auto bucket) {
          auto& group = detail::group_of_bucket<decltype(bucket)::value>(group_);
          const auto weights = stage.weights();
          const auto gather = [&] { optimizer.gather(group, weights); };
          if constexpr (zero_stage == 0)  // nothing to gather
            observe("gather weights", bytes_of_row(weights), gather);
          else
            observe("gather weights", bytes_of_row(weights), gather, group);
        });
        model::of_stage::weights_written(h.stage);
      });
  }
  /// Runs `work` with the weights of all stages whole. Called on all ranks together.
  template <class Work>
  void with_weights(Work&& work) {
    const open_call open(open_);
    if constexpr (shards_weights) ++releases_;
    {
      std::deque<gathered_stage> whole;
      for (int k = 0; k < held_.size(); ++k) whole.emplace_back(*this, held_[k].index);
      std::forward<Work>(work)();
    }
    held_.memory().parts_anew();  // steps want other sizes at a time
  }
  /// `forward(stage, in, out)` of a pass without a schedule, with that stage's weights whole.
  template <class Forward>
  decltype(auto) gathered(Forward& forward) {
    if constexpr (shards_weights)
      return [this, &forward](auto& stage, auto in, auto out) {
        const gathered_stage whole(*this, index_of(stage));
        forward(stage, in, out);
      };
    else
      return (forward);
  }

  /// What an executor calls: `base` with UNSHARD, RESHARD and what comes before computations.
  /// Errors: `config_error` inside of `with_weights`, whose weights a step would leave behind.
  template <class Base, class Observe>
  auto hooks(Base base, Observe observe) {
    if (shards_weights && open_ > 0)
      throw config_error("heddle: zero<3>: no step can run inside of with_weights: its weights would be those before");
    if constexpr (zero_stage < 2)
      return base;
    else
      return sharding_hooks<Base, Observe>{base, this, observe};
  }

  /// Bytes on this rank now; the most so far of `total()`, since construction; and what that is predicted to be for a table
  /// that runs, from the sizes of the stages alone: shares (and copies) all the time; n of a stage's weights from UNSHARD to
  /// RESHARD, of it and of the embedding that its head borrows; n of its gradients from its first backward to REDUCE_GRAD, or
  /// to the end of the list where other stages have a share of them. Where one rank has all shares nothing comes and goes.
  /// Memory of what is gone is kept for the next, as far as that prediction allows: between steps `kept` is most of what was lent.
  /// What a backend keeps of weights in the passes of a step is as much for each stage whose weights are there, and at its most, too,
  /// wherever in a step that is: it is kept for the next step.
  parameter_bytes bytes() {
    parameter_bytes b;
    held_.for_each([&](held_type& h) {
      const std::int64_t n = model::of_stage::flat_elements(h.stage);
      std::int64_t owned = 0;
      detail::for_each_bucket(h.stage, h.optimizer, [&](auto&, const auto& optimizer, auto) {
        owned += optimizer.owned_end() - optimizer.owned_begin();
      });
      b.weights += in_bytes((zero_stage >= 3 ? owned : n) + model::of_stage::frozen_elements(h.stage));
      b.gradients += of_sums * in_bytes((zero_stage >= 2 ? owned : n) + (h.borrows() ? h.tied_elements() : 0));
      if constexpr (requires { h.stage.tree_elements(); }) b.gradients += of_sums * in_bytes(h.stage.tree_elements());
      b.moments += h.optimizer.state_bytes();
    });
    b.lent = held_.memory().lent_bytes();
    b.kept = held_.memory().kept_bytes();
    b.rounded = of_keepers([](const compute::kept_weight_memory& m) { return m.bytes; });
    return b;
  }
  std::int64_t peak_bytes() {
    return bytes_that_stay() + held_.memory().peak_bytes() +
           of_keepers([](const compute::kept_weight_memory& m) { return m.peak_bytes; });
  }
  std::int64_t predicted_peak_bytes() {
    return bytes_that_stay() + predicted_lent_bytes().total() +
           of_keepers([this](const compute::kept_weight_memory& m) { return predicted_rounded_bytes(m); });
  }
  /// Gives memory back that is kept between uses; the next step allocates it again, in fresh pages. With `captured_steps` called on all ranks
  /// together.
  void release_kept() {
    ++releases_;
    held_.memory().release_kept();
    held_.for_each([](held_type& h) { model::of_stage::release_kept_weights(h.stage); });
  }
  /// How often that, and `with_weights`, may have given memory of steps back: as often on all ranks.
  std::int64_t releases() const noexcept { return releases_; }
  /// Whether copies of weights that come and go are made by turns of several sizes, each in the memory of the one before.
  bool rounds_by_turns() {
    if (!shards_weights) return false;
    std::int64_t first = -1;
    bool several = false;
    held_.for_each([&](held_type& h) {
      if (model::of_stage::kept_weights<compute::kept_weight_memory>(h.stage).of == nullptr) return;
      const std::int64_t n = model::of_stage::flat_elements(h.stage);
      several = several || (first >= 0 && n != first);
      first = n;
    });
    return several;
  }

 private:
  template <class Base, class Observe>
  struct sharding_hooks : Base {
    sharded_stages* sharded;
    Observe observe;
    void before(const schedule::action& a) { sharded->before(a, observe); }
    void unshard(int stage) { sharded->unshard(stage, observe); }
    void reshard(int stage) { sharded->reshard(stage); }
    void recompute(int stage, int microbatch, int slot) {
      sharded->before({schedule::action_kind::recompute, stage, microbatch}, observe);
      Base::recompute(stage, microbatch, slot);
    }
    // Steps that were taken back have other weights.
    void redo()
      requires requires(Base& b) { b.redo(); }
    {
      sharded->drop_all();
      Base::redo();
    }
  };
  using whole_weights = detail::whole_weights<scalar, space, Group>;
  // A stage's weights, whole until its end, after an error too. Nothing is under way then.
  class gathered_stage {
   public:
    gathered_stage(sharded_stages& all, int stage) : all_(all), stage_(stage) { all.gather(stage); }
    gathered_stage(const gathered_stage&) = delete;
    gathered_stage& operator=(const gathered_stage&) = delete;
    ~gathered_stage() { all_.reshard(stage_); }

   private:
    sharded_stages& all_;
    int stage_;
  };
  struct open_call {
    int& calls;
    explicit open_call(int& count) : calls(count) { ++calls; }
    open_call(const open_call&) = delete;
    open_call& operator=(const open_call&) = delete;
    ~open_call() { --calls; }
  };
  struct silent {
    template <class Work, class... More>
    void operator()(const char*, std::size_t, Work&& work, More&...) const {
      std::forward<Work>(work)();
    }
  };

  // Bytes of a gradient for one of a weight.
  static constexpr auto of_sums = static_cast<std::int64_t>(sizeof(sum_of_type<scalar>) / sizeof(scalar));
  static std::int64_t in_bytes(std::int64_t elements) noexcept {
    return elements * static_cast<std::int64_t>(sizeof(scalar));
  }
  // Whether the rank's share of a stage is all of it, and lies together.
  bool alone() const noexcept { return buckets == 1 && group_.size() == 1; }
  whole_weights& of(const held_type& h) noexcept { return weights_[static_cast<std::size_t>(h.index)]; }
  template <class Stage>
  int index_of(const Stage& stage) {
    int index = -1;
    held_.for_each([&](held_type& h) { index = &h.stage == &stage ? h.index : index; });
    return index;
  }
  // The stage, behind the one whose embedding its head uses.
  template <class F>
  void for_those_used(int stage, F&& f) {
    held_type& h = held_.at(stage);
    if (h.borrows())
      held_.for_each([&](held_type& other) {
        if (other.part == 0) f(other);
      });
    f(h);
  }
  void gather(int stage) {
    unshard(stage, silent{});
    before({schedule::action_kind::forward, stage, 0}, silent{});
  }

  // `holds`: what the memory must hold; where weights are gathered, they overwrite all of it.
  void lend(held_type& h, typename memory_type::contents holds) {
    if constexpr (buckets == 1)
      if (alone()) return h.stage.lend_weights(h.optimizer.weights_of(h.stage));
    buffer<scalar, space>& to = of(h).memory;
    to = held_.memory().of_weights().take(detail::queue_of_stage(h.stage), h.stage.flat_elements(), holds,
                                          "the gathered weights of a stage");
    h.stage.lend_weights(row_at<space>(to.address(), h.stage.flat_elements()));
  }
  void give_back(held_type& h) {
    whole_weights& w = of(h);
    w.under_way.wait();
    h.stage.lend_weights({});
    held_.memory().of_weights().give_back(std::move(w.memory));
  }
  template <class Observe>
  void hold(held_type& h, Observe& observe) {
    whole_weights& w = of(h);
    if (w.users == 0) lend(h, memory_type::contents::any);
    if (w.users++ > 0 || alone()) return;
    const row to = row_at<space>(w.memory.address(), static_cast<std::int64_t>(w.memory.size()));
    const auto start = [&] {
      detail::for_each_bucket(h.stage, h.optimizer, [&](auto& stage, auto& optimizer, auto bucket) {
        constexpr int k = decltype(bucket)::value;
        optimizer.start_gather(
            detail::group_of_bucket<k>(group_),
            part_of_row<space>(to, detail::first_element_of(stage), model::of_stage::flat_elements(stage)),
            w.under_way.template get<k>());
      });
      return &w.under_way;  // a result: what is started is not complete (`testing::faults` does not leave it out)
    };
    observe("gather weights", bytes_of_row(to), start, detail::group_of_bucket<0>(group_));
  }
  void drop(held_type& h) {
    if (--of(h).users == 0) give_back(h);
  }
  template <class Observe>
  void await(held_type& h, Observe& observe) {
    whole_weights& w = of(h);
    if (!w.under_way.any()) return;
    observe("wait for weights", w.memory.size() * sizeof(scalar), [&] { w.under_way.wait(); });
  }

  std::int64_t bytes_that_stay() {
    const parameter_bytes b = bytes();
    return b.total() - b.lent - b.kept - b.rounded;
  }
  // The sum of f(memory) over all that backends of this rank's stages keep of weights.
  template <class F>
  std::int64_t of_keepers(F&& f) {
    std::int64_t sum = 0;
    std::vector<const void*> found;
    held_.for_each([&](held_type& h) {
      const auto m = model::of_stage::kept_weights<compute::kept_weight_memory>(h.stage);
      if (m.of == nullptr || std::find(found.begin(), found.end(), m.of) != found.end()) return;
      found.push_back(m.of);
      sum += f(m);
    });
    return sum;
  }
  // The most that is kept there in the passes of a step: of the frozen weights of each stage, and of those that are whole.
  std::int64_t predicted_rounded_bytes(const compute::kept_weight_memory& memory) {
    std::int64_t stay = 0;
    std::vector<detail::whole_stage> whole = whole_stages();
    std::size_t k = 0;
    held_.for_each([&](held_type& h) {
      const bool here = model::of_stage::kept_weights<compute::kept_weight_memory>(h.stage).of == memory.of;
      if (here) stay += model::of_stage::frozen_elements(h.stage) + (shards_weights ? 0 : whole[k].elements);
      if (!here) whole[k].elements = 0;
      ++k;
    });
    if constexpr (shards_weights) stay += detail::most_whole_weights(table_, rank_, whole);
    return memory.bytes_per_weight * stay;
  }
  detail::most_lent_bytes predicted_lent_bytes() {
    if (zero_stage < 2 || alone()) return {};
    return detail::most_bytes_lent<scalar>(table_, rank_, whole_stages(), shards_weights, by_size_);
  }
  std::vector<detail::whole_stage> whole_stages() {
    std::vector<detail::whole_stage> all;
    held_.for_each([&](held_type& h) {
      all.push_back({h.index, h.part, model::of_stage::flat_elements(h.stage), h.borrows(),
                     !gradients_stay_ && held_.complete_alone(h.index)});
    });
    return all;
  }

  using registered_type = registered_parameters<HeldStages, Group>;
  HeldStages& held_;
  Group& group_;
  schedule::table_view table_;
  int rank_;
  bool by_size_;
  bool gradients_stay_;
  std::int64_t releases_ = 0;
  int open_ = 0;  // calls of with_weights that run
  struct none {};
  [[no_unique_address]] std::conditional_t<shards_weights, std::vector<whole_weights>, none>
      weights_;  // by the stage's number in the table
};

}  // namespace heddle::inline v0::train
