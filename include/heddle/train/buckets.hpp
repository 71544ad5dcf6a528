// heddle/train/buckets.hpp: parts of a stage's buffers, summed over different axes.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/training_axes.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// Carries the stage into the compiler's message.
template <bool Ok, class Stage>
inline constexpr bool buckets_of_stage = Ok;
// Stops at the first mistake, so that one mistake gives one error.
template <class Stage>
consteval bool buckets_checked() {
  using model::of_stage::bucket_count;
  if constexpr (!model::of_stage::buckets_are_layouts<Stage>) {
    static_assert(buckets_of_stage<model::of_stage::buckets_are_layouts<Stage>, Stage>,
                  "heddle: the stage's `buckets` is no type_list of layouts, one for each bucket of its parameters");
  } else if constexpr (!model::of_stage::first_bucket_is_flat_weights<Stage>) {
    static_assert(
        buckets_of_stage<model::of_stage::first_bucket_is_flat_weights<Stage>, Stage>,
        "heddle: the stage's flat_weights are the layout of its first bucket; make it the first of `buckets`");
  } else if constexpr (bucket_count<Stage> > 1 && !model::of_stage::has_bucket_elements<Stage>) {
    static_assert(buckets_of_stage<model::of_stage::has_bucket_elements<Stage>, Stage>,
                  "heddle: a stage with several buckets needs `bucket_elements() const`, how many elements of its flat "
                  "buffers each bucket has, such as `std::array<std::int64_t, 2>`");
  } else {
    return true;
  }
  return false;
}
// The buckets that a trainer works with; after an error one, so that its uses add no errors of their own.
template <class Stage>
inline constexpr int served_buckets =
    buckets_checked<Stage>() ? static_cast<int>(model::of_stage::bucket_count<Stage>) : 1;

}  // namespace detail

/// This rank's groups along the axes of each bucket of a stage; `Axes`: a list of tags for each. A group may be this rank alone.
template <class World, class... Axes>
class bucket_groups {
 public:
  template <int Bucket>
  using group = std::remove_reference_t<decltype(detail::group_along(
      std::declval<World&>(), type_at<static_cast<std::size_t>(Bucket), Axes...>{}))>;

  /// Called on all ranks of the world together.
  explicit bucket_groups(World& world) : groups_{&detail::group_along(world, Axes{})...} {}

  template <int Bucket>
  group<Bucket>& get() const noexcept {
    return *std::get<static_cast<std::size_t>(Bucket)>(groups_);
  }
  /// Of the largest group.
  int size() const noexcept {
    return std::apply([](auto*... g) { return (std::max)({g->size()...}); }, groups_);
  }

 private:
  std::tuple<std::remove_reference_t<decltype(detail::group_along(std::declval<World&>(), Axes{}))>*...> groups_;
};

namespace detail {

// What a trainer keeps for the sums of its stages' gradients: with one bucket its group, with several all of theirs.
template <class World, class Axes, int Buckets, class List = typename Axes::of_buckets>
struct gradient_groups;
template <class World, class Axes, class... Lists>
struct gradient_groups<World, Axes, 1, type_list<Lists...>> {
  using group = std::remove_reference_t<decltype(group_along(std::declval<World&>(), typename Axes::gradients{}))>;
  using type = group&;
  static group& of(World& world) { return group_along(world, typename Axes::gradients{}); }
};
template <class World, class Axes, int Buckets, class... Lists>
  requires(Buckets > 1)
struct gradient_groups<World, Axes, Buckets, type_list<Lists...>> {
  using group = bucket_groups<World, Lists...>;
  using type = group;
  static group of(World& world) { return group(world); }
};
template <int Bucket, class Groups>
auto& group_of_bucket(Groups& groups) noexcept {
  if constexpr (requires { groups.template get<Bucket>(); })
    return groups.template get<Bucket>();
  else
    return groups;
}

// A communicator's started collective, if it starts any.
template <class Communicator>
struct started_of {
  struct type {
    void wait() {}
    bool test() { return true; }
  };
};
template <starting_communicator Communicator>
struct started_of<Communicator> {
  using type = typename Communicator::started;
};
// Those of a stage's buckets that are under way.
template <class Groups>
struct started_of_buckets {
  std::optional<typename started_of<Groups>::type> one{};
  bool any() const noexcept { return one.has_value(); }
  void wait() {
    if (one) std::exchange(one, {})->wait();
  }
  // Lets those that can go on do so.
  void test() {
    if (one && one->test()) one.reset();
  }
  template <int>
  auto& get() noexcept {
    return one;
  }
};
template <class World, class... Axes>
struct started_of_buckets<bucket_groups<World, Axes...>> {
  template <class Tags>
  using started = std::optional<
      typename started_of<std::remove_reference_t<decltype(group_along(std::declval<World&>(), Tags{}))>>::type>;
  std::tuple<started<Axes>...> all{};
  bool any() const noexcept {
    return std::apply([](const auto&... one) { return (one.has_value() || ...); }, all);
  }
  void wait() {
    std::apply([](auto&... one) { (..., (one ? std::exchange(one, {})->wait() : void())); }, all);
  }
  void test() {
    std::apply([](auto&... one) { (..., (one && one->test() ? one.reset() : void())); }, all);
  }
  template <int Bucket>
  auto& get() noexcept {
    return std::get<static_cast<std::size_t>(Bucket)>(all);
  }
};

// A rank in its group, and the group's size, where no communicator is at hand.
struct place_in_group {
  int rank_, size_;
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
};

// An optimizer for the parameters of a stage, in the memory where these are.
template <class Optimizer, class Stage, class Groups>
Optimizer optimizer_of_stage(Stage& stage, Groups& groups) {
  if constexpr (requires { Optimizer::buckets; }) {
    return Optimizer(stage, groups);
  } else {
    const std::int64_t elements = model::of_stage::flat_elements(stage);
    if constexpr (std::is_same_v<space_of<Stage>, host_memory>)
      return Optimizer(stage.parameters(), elements, groups.rank(), groups.size());
    else
      return Optimizer(stage.queue(), stage.parameters(), elements, groups.rank(), groups.size());
  }
}

// The queue of the memory that a stage lies in.
template <class Stage>
typename space_of<Stage>::queue& queue_of_stage(Stage& stage) noexcept {
  if constexpr (std::is_same_v<space_of<Stage>, host_memory>)
    return *heddle::v0::detail::kept_queue<host_memory>();
  else
    return stage.queue();
}

// The elements of a row of a stage, to be read.
template <class Stage, class Row>
auto read_of_stage(Stage& stage, const Row& row) {
  using T = element_of<const Row>;
  return read_on_host<T, space_of<Stage>>(queue_of_stage(stage), row);
}

// The master weights of an optimizer that keeps some, to be read.
template <class Stage, class Optimizer>
auto read_masters([[maybe_unused]] Stage& stage, Optimizer& optimizer) {
  if constexpr (requires { optimizer.masters(); })
    return read_of_stage(stage, optimizer.masters());
  else
    return 0;
}
// Room for the elements of a row of a stage, to be written.
template <class Stage, class Row>
auto written_of_stage(Stage& stage, const Row& row) {
  using T = element_of<const Row>;
  return written_on_host<T, space_of<Stage>>(queue_of_stage(stage), row);
}

// One bucket of a stage, as optimizers and saves see a stage: elements [begin, end) of its flat buffers.
template <class Stage>
class stage_bucket {
 public:
  using scalar = typename Stage::scalar;
  using space = space_of<Stage>;
  using entry = std::remove_cvref_t<decltype(*std::declval<Stage&>().parameters().begin())>;

  stage_bucket(Stage& stage, std::int64_t begin, std::int64_t end) : stage_(stage), begin_(begin), end_(end) {}

  std::int64_t first_element() const noexcept { return begin_; }
  std::int64_t flat_elements() const noexcept { return end_ - begin_; }
  row_view<scalar, space> weights() { return part_of_row<space>(stage_.weights(), begin_, end_ - begin_); }
  row_view<sum_of_type<scalar>, space> gradients() {
    return part_of_row<space>(stage_.gradients(), begin_, end_ - begin_);
  }
  /// Those of this bucket; offsets are in the bucket.
  std::vector<entry> parameters() const {
    std::vector<entry> mine;
    for (const entry& p : stage_.parameters())
      if (p.offset >= begin_ && p.offset < end_ && p.count > 0) {
        mine.push_back(p);
        mine.back().offset -= begin_;
      }
    return mine;
  }
  auto& queue() { return stage_.queue(); }

 private:
  Stage& stage_;
  std::int64_t begin_, end_;
};
// Of a stage, or of a bucket in its stage.
template <class Stage>
std::int64_t first_element_of(const Stage&) noexcept {
  return 0;
}
template <class Stage>
std::int64_t first_element_of(const stage_bucket<Stage>& bucket) noexcept {
  return bucket.first_element();
}

// Where the buckets of a stage begin, and where the last one ends. Errors: `layout_error` if they are not the stage's
// elements, or a parameter lies in two.
template <int Buckets, class Stage>
std::array<std::int64_t, static_cast<std::size_t>(Buckets) + 1> bucket_begins(Stage& stage) {
  std::array<std::int64_t, static_cast<std::size_t>(Buckets) + 1> begins{};
  std::size_t k = 0;
  for (const std::int64_t n : stage.bucket_elements()) {
    if (n < 0 || k == static_cast<std::size_t>(Buckets)) {
      ++k;
      break;
    }
    begins[k + 1] = begins[k] + n;
    ++k;
  }
  const std::int64_t elements = model::of_stage::flat_elements(stage);
  if (k != static_cast<std::size_t>(Buckets) || begins.back() != elements)
    throw layout_error("heddle: bucket_elements() of a stage must be " + std::to_string(Buckets) +
                       " numbers that add up to its " + std::to_string(elements) + " elements");
  for (const auto& p : stage.parameters()) {
    const std::int64_t first = p.offset, last = first + static_cast<std::int64_t>(p.count);
    for (const std::int64_t cut : begins)
      if (first < cut && cut < last)
        throw layout_error("heddle: the parameter " + std::string(p.name) +
                           " lies in two buckets of its stage; order parameters bucket by bucket");
  }
  return begins;
}

}  // namespace detail

/// The optimizers of a stage with several buckets: each `Optimizer` has the parameters of one, and shares their state (ZeRO)
/// among the ranks over which their gradients are summed. `detail::for_each_bucket` runs over them.
template <class Optimizer, int Buckets>
class bucketed_optimizer {
 public:
  using bucket_type = Optimizer;
  using rule = typename Optimizer::rule;
  using rule_options = typename Optimizer::rule_options;
  using scalars = typename Optimizer::scalars;
  using step_at = typename Optimizer::step_at;
  static constexpr int zero_stage = Optimizer::zero_stage;
  static constexpr int buckets = Buckets;

  /// Errors: `layout_error` if the stage's `bucket_elements()` do not fit its parameters.
  template <class Stage, class Groups>
  bucketed_optimizer(Stage& stage, Groups& groups) : begins_(detail::bucket_begins<Buckets>(stage)) {
    parts_.reserve(static_cast<std::size_t>(Buckets));
    add(stage, groups, std::make_integer_sequence<int, Buckets>{});
  }

  Optimizer& bucket(int k) noexcept { return parts_[static_cast<std::size_t>(k)]; }
  const Optimizer& bucket(int k) const noexcept { return parts_[static_cast<std::size_t>(k)]; }
  /// The elements of bucket k in the stage's flat buffers: [begin(k), begin(k + 1)).
  std::int64_t begin(int k) const noexcept { return begins_[static_cast<std::size_t>(k)]; }
  /// What a rank keeps of the stage's weights and gradients: all of them; of shares (`zero<2>`, `zero<3>`) each bucket has its own.
  template <class Stage>
  auto weights_of(Stage& stage) noexcept
    requires(zero_stage < 3)
  {
    return stage.weights();
  }
  template <class Stage>
  auto gradients_of(Stage& stage) noexcept
    requires(zero_stage < 2)
  {
    return stage.gradients();
  }
  std::int64_t weights_begin() const noexcept { return 0; }
  std::int64_t gradients_begin() const noexcept { return 0; }
  /// Bytes of optimizer state on this rank.
  std::int64_t state_bytes() const noexcept {
    std::int64_t bytes = 0;
    for (const Optimizer& part : parts_) bytes += part.state_bytes();
    return bytes;
  }

 private:
  template <class Stage, class Groups, int... K>
  void add(Stage& stage, Groups& groups, std::integer_sequence<int, K...>) {
    (..., add_one(stage, groups.template get<K>(), K));
  }
  template <class Stage, class Group>
  void add_one(Stage& stage, Group& group, int k) {
    detail::stage_bucket<Stage> part(stage, begin(k), begin(k + 1));
    parts_.push_back(detail::optimizer_of_stage<Optimizer>(part, group));
  }

  std::array<std::int64_t, static_cast<std::size_t>(Buckets) + 1> begins_;
  std::vector<Optimizer> parts_;
};

namespace detail {

// The optimizer of each bucket of a stage.
template <class Optimizer>
struct type_of_bucket {
  using type = Optimizer;
};
template <class Optimizer, int Buckets>
struct type_of_bucket<bucketed_optimizer<Optimizer, Buckets>> {
  using type = Optimizer;
};

template <class Optimizer, int Buckets>
struct optimizer_of_buckets {
  using type = bucketed_optimizer<Optimizer, Buckets>;
};
template <class Optimizer>
struct optimizer_of_buckets<Optimizer, 1> {
  using type = Optimizer;
};
template <class Optimizer, int Buckets>
using bucketed = typename optimizer_of_buckets<Optimizer, Buckets>::type;

template <class Optimizer>
inline constexpr int buckets_of_optimizer = 1;
template <class Optimizer, int Buckets>
inline constexpr int buckets_of_optimizer<bucketed_optimizer<Optimizer, Buckets>> = Buckets;

// Elements [begin, end) of a bucket's gradients that no other rank has a share of: where the optimizer keeps its own.
template <class All, class Stage, class Optimizer>
void keep_gradients(const All&, Stage& stage, Optimizer& optimizer, std::int64_t begin, std::int64_t end) {
  if constexpr (buckets_of_optimizer<All> > 1 && Optimizer::zero_stage >= 2) {
    using space = space_of<Stage>;
    queue_of_stage(stage).copy(part_of_row<space>(stage.gradients(), begin, end - begin),
                               part_of_row<space>(optimizer.gradients_of(stage), begin, end - begin));
  }
}

template <int Bucket, class Stage, class Optimizer, class F>
void for_bucket(Stage& stage, Optimizer& optimizer, F& f) {
  stage_bucket<Stage> part(stage, optimizer.begin(Bucket), optimizer.begin(Bucket + 1));
  f(part, optimizer.bucket(Bucket), std::integral_constant<int, Bucket>{});
}
template <class Stage, class Optimizer, class F, int... K>
void for_buckets(Stage& stage, Optimizer& optimizer, F& f, std::integer_sequence<int, K...>) {
  (..., for_bucket<K>(stage, optimizer, f));
}
// f(stage, optimizer, number) for each bucket as a stage of its own; with one bucket for the stage itself.
template <class Stage, class Optimizer, class F>
void for_each_bucket(Stage& stage, Optimizer& optimizer, F&& f) {
  if constexpr (requires { std::remove_const_t<Optimizer>::buckets; })
    for_buckets(stage, optimizer, f, std::make_integer_sequence<int, Optimizer::buckets>{});
  else
    f(stage, optimizer, std::integral_constant<int, 0>{});
}

}  // namespace detail

}  // namespace heddle::inline v0::train
