// heddle/train/sharded_optimizer.hpp: an optimizer's rule over flat parameters (ZeRO).
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/host/cast.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/determined.hpp>
#include <heddle/train/cast_backend.hpp>
#include <heddle/train/mixed_types.hpp>
#include <heddle/train/optimizers/by_default.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/optimizer_shards.hpp>
#include <heddle/train/rule_kernels.hpp>
#include <heddle/train/share_windows.hpp>
#include <heddle/train/zero.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::train {

/// The optimizer of the parameters a rank holds in one flat buffer, with elements T, by `Rule` (`optimizer_rule`); the ranks over which their
/// gradients are summed, d of them (dp, say), hold the same. With `zero<1>` rank r of them owns the r-th part of the balanced cut of that
/// buffer: it alone keeps moments for it and updates it; with `zero<2>` it alone keeps this part's gradients, too, with `zero<3>` its weights: in
/// memory of the optimizer, while the whole buffers come and go (`held_stage`). Which element has which type: see `precision`; `precision<>` of
/// a model that is not of 16 bits converts nothing.
/// One step is `reduce` (gradients over those ranks), `counted_sum_of_squares` (for the global norm), `update`, `gather`.
/// Arguments `weights` and `gradients` are those of `weights_of` and `gradients_of`; `reduce` and `gather` take whole ones.
///
/// Bytes sent per rank and step by the ring formulas, of n elements: gradients (d-1)/d n s_G, once more that with `zero<0>`, where the sum is
/// gathered; weights (d-1)/d n s_W with `zero<1>`; with `zero<3>` weights at each UNSHARD. Gradients of a type G of their own travel by
/// all_to_all_v and are added up in T; each goes to its owner at once, so that none is rounded twice.
/// Memory beside the stage's buffers: `state_bytes`, of `owned` elements s_M if masters are kept and s_V for each moment, and
/// rooms for blocks of a size that does not grow with the model.
/// All of it lies in `Space`; elsewhere than on the host conversions are those of the backend that `start` gets, in the order of one
/// queue, which must outlive the optimizer.
template <class T, class Rule, class Precision, class Zero, memory_space Space = host_memory>
class sharded_optimizer : public optimizer_shards<T, Zero, Space> {
  using base = optimizer_shards<T, Zero, Space>;
  using kernels = detail::rule_kernels<Rule>;

 public:
  using rule = Rule;
  using rule_options = typename kernels::options;
  static constexpr int moments = Rule::moments;
  static constexpr bool undoes = kernels::undoes;
  static constexpr bool whole_tensors = detail::acts_on_whole_tensors<Rule>;
  using base::gradients_begin, base::owned, base::weights_begin;
  using typename base::const_row, typename base::row, typename base::sum_row, typename base::const_sum_row;
  using sum_type = typename base::sum;
  using weight_type = typename Precision::template weight<T>;
  using gradient_type = typename Precision::template gradient<T>;
  using master_type = typename Precision::template master<T>;
  using moment_type = typename Precision::template moment<T>;
  /// What the rule computes in.
  using arithmetic = heddle::v0::detail::wider_of<float, heddle::v0::detail::wider_of<master_type, moment_type>>;
  using moment_row = row_view<moment_type, Space>;
  using scalars = typename kernels::template scalars<arithmetic>;
  /// Where the numbers of a captured step are.
  using step_at = typename kernels::template step_at<arithmetic>;
  static constexpr bool is_plain = Precision::template is_plain<T>;
  static constexpr bool keeps_masters = Precision::template keeps_masters<T>;
  static constexpr bool rounds_weights =
      std::is_same_v<arithmetic, float> && std::is_same_v<typename Precision::weight_rounding, rounding::stochastic>;
  static constexpr bool rounds_moments =
      std::is_same_v<arithmetic, float> && std::is_same_v<typename Precision::moment_rounding, rounding::stochastic>;

  static_assert(
      detail::mixed_types_checked<T, weight_type, gradient_type, master_type, arithmetic,
                                  typename Precision::weight_rounding, typename Precision::moment_rounding>());

  /// `table`: one entry per tensor with id, offset, count, counted, decay; of `model::parameter` where something is rounded
  /// stochastically. `elements`: size of the flat buffer.
  sharded_optimizer(const auto& table, std::int64_t elements, int rank, int ranks)
    requires std::is_same_v<Space, host_memory>
      : sharded_optimizer(*heddle::v0::detail::kept_queue<Space>(), table, elements, rank, ranks) {}
  sharded_optimizer(typename Space::queue& queue, const auto& table, std::int64_t elements, int rank, int ranks)
      : base(queue, table, elements, rank, shares_of(table, elements, ranks)), rank_(rank) {
    if constexpr (whole_tensors) tensors_ = tensors_type(Rule::name, table);
    if constexpr (rounds_weights || rounds_moments)
      for (const auto& p : table) add_runs(p);
    const std::int64_t kept = owned_elements();
    if constexpr (keeps_masters)
      masters_ = buffer<master_type, Space>(queue, kept, "the master weights of the optimizer");
    if constexpr (!whole_tensors)
      for (auto& m : moments_) m = buffer<moment_type, Space>(queue, kept, "the moments of the optimizer");

    const std::int64_t block = elements_of_block(kept);
    constexpr const char* blocks = "blocks of the optimizer";
    if constexpr (copies_masters) master_room_ = buffer<arithmetic, Space>(queue, block, blocks);
    if constexpr (copies_moments) moment_room_ = buffer<arithmetic, Space>(queue, moments * block, blocks);
    if constexpr (!std::is_same_v<weight_type, T>) weight_room_ = buffer<weight_type, Space>(queue, block, blocks);
    if (ranks == 1) return;
    window_ = window_of(base::largest_share(), ranks);
    if constexpr (sends_weights)
      weights_sent_ = buffer<weight_type, Space>(queue, (1 + ranks) * window_, "weights on their way");
    if constexpr (sends_gradients)
      gradients_sent_ = buffer<gradient_type, Space>(queue, 2 * ranks * window_, "gradients on their way");
    if constexpr (sends_gradients && !on_host)
      sum_room_ = buffer<sum_type, Space>(queue, window_, "gradients on their way");
  }

  /// The rule's k-th number of state for each owned element.
  moment_row moment(int k) noexcept { return all_of(moments_[static_cast<std::size_t>(k)]); }
  moment_row first_moment() noexcept
    requires(moments > 0)
  {
    return moment(0);
  }
  moment_row second_moment() noexcept
    requires(moments > 1)
  {
    return moment(1);
  }
  /// The owned master weights.
  row_view<master_type, Space> masters() noexcept
    requires keeps_masters
  {
    return all_of(masters_);
  }
  /// Memory for what the rule keeps of each tensor, which follows from its options; the first `update` makes it otherwise. Before, there are no
  /// moments.
  void prepare(const rule_options& options)
    requires whole_tensors
  {
    if (tensors_.placed()) return;
    tensors_.template place<Rule, arithmetic>(options, begin_, end_);
    for (int k = 0; k < moments; ++k)
      moments_[static_cast<std::size_t>(k)] = buffer<moment_type, Space>(
          *queue_, tensors_.owned(k).end - tensors_.owned(k).begin, "the moments of the optimizer");
    tensors_.allocate(*queue_);
  }
  /// Moment k of a parameter as a parameter of its own, in a buffer of which `moment(k)` begins at element `moment_begin(k)`.
  template <class Parameter>
  Parameter moment_of(const Parameter& p, int k) const
    requires whole_tensors
  {
    return tensors_.slot_of(p, k);
  }
  std::int64_t moment_begin(int k) const noexcept
    requires whole_tensors
  {
    return tensors_.owned(k).begin;
  }
  /// Bytes of optimizer state on this rank, the copy of `remember` and the rooms included.
  std::int64_t state_bytes() const noexcept {
    std::int64_t all = bytes(masters_) + bytes(masters_before_) + bytes(moments_before_) + bytes(weights_before_);
    for (const auto& m : moments_) all += bytes(m);
    return all + room_bytes();
  }
  /// The same before it is made, for rank `rank` of `ranks` that share `elements`; `copies`: with that of `remember`.
  static std::int64_t state_bytes_of(std::int64_t elements, int rank, int ranks, bool copies) noexcept
    requires(!whole_tensors)
  {
    const std::int64_t owned = base::owned_of(elements, rank, ranks), block = (std::min)(owned, most_in_a_block);
    const auto bytes_of = [](std::int64_t n, std::size_t size) { return n * static_cast<std::int64_t>(size); };
    const std::int64_t master = keeps_masters ? bytes_of(owned, sizeof(master_type)) : 0;
    const std::int64_t state = master + bytes_of(moments * owned, sizeof(moment_type));
    std::int64_t all = state;
    if (copies) all += state + bytes_of(owned, sizeof(weight_type));
    if constexpr (copies_masters) all += bytes_of(block, sizeof(arithmetic));
    if constexpr (copies_moments) all += bytes_of(moments * block, sizeof(arithmetic));
    if constexpr (!std::is_same_v<weight_type, T>) all += bytes_of(block, sizeof(weight_type));
    if (ranks == 1) return all;
    const std::int64_t window = window_of(balanced_split{elements, ranks}.largest(), ranks);
    if constexpr (sends_weights) all += bytes_of((1 + ranks) * window, sizeof(weight_type));
    if constexpr (sends_gradients) all += bytes_of(2 * ranks * window, sizeof(gradient_type));
    if constexpr (sends_gradients && !on_host) all += bytes_of(window, sizeof(sum_type));
    return all;
  }
  /// Of that, the rooms for blocks of elements that are converted, and for steps of whole tensors.
  std::int64_t room_bytes() const noexcept {
    std::int64_t of_tensors = 0;
    if constexpr (whole_tensors) of_tensors = tensors_.bytes();
    return of_tensors + bytes(master_room_) + bytes(moment_room_) + bytes(weight_room_) + bytes(weights_sent_) +
           bytes(gradients_sent_) + bytes(sum_room_);
  }

  /// The seed of stochastic rounding, and the stage's first weights.
  void start(row weights, std::uint64_t seed)
    requires(!is_plain && std::is_same_v<Space, host_memory>)
  {
    seed_ = seed;
    adopt(weights);
  }
  /// The same with the backend that converts, which must live as long as the optimizer; on the host it is not asked.
  template <class Backend>
  void start([[maybe_unused]] Backend& backend, row weights, std::uint64_t seed)
    requires(!is_plain)
  {
    if constexpr (!on_host) casts_.template keep<sharded_optimizer>(backend);
    seed_ = seed;
    adopt(weights);
  }
  /// After somebody has written the stage's weights: the owned ones, as they are, become the masters, and all of them are
  /// rounded to the nearest of type W.
  void adopt(row weights)
    requires(!is_plain)
  {
    if constexpr (keeps_masters) convert(kept_of(weights), masters());
    if constexpr (!std::is_same_v<weight_type, T> && on_host) {
      for (T& w : weights) w = static_cast<T>(converted<weight_type>(w));
    } else if constexpr (!std::is_same_v<weight_type, T>) {
      buffer<weight_type, Space> rounded(*queue_, static_cast<std::int64_t>(weights.size()), "weights being rounded");
      convert(weights, all_of(rounded));
      convert(all_of(rounded), weights);
    }
  }

  /// Sums gradients over a group of those ranks; afterwards the owned part holds the sum.
  /// Of elements [begin, end), by default all: all parts of a step together give the bits of the whole. `Sums` has the calls.
  template <class Sums = detail::sums_of_transport, class Communicator>
  void reduce(Communicator& group, sum_row gradients, std::int64_t begin = 0, std::int64_t end = base::to_the_end) {
    end = (std::min)(end, static_cast<std::int64_t>(gradients.size()));
    if (group.size() == 1 || begin >= end) return;
    const sum_row part = part_of(gradients, begin, end);
    const std::vector<std::int64_t> shares = base::shares_within(begin, end);
    if constexpr (sends_gradients)
      reduce_rounded(group, part, begin, shares);
    else if constexpr (Zero::stage == 0)
      Sums::all_reduce(*queue_, group, part);
    else
      Sums::reduce_scatter_v(*queue_, group, as_const(part), base::share_within(gradients, begin, end),
                             std::span<const std::int64_t>(shares));
  }

  /// One step of the rule on the owned part. `step` counts from 1; gradients are multiplied by `gradient_scale` first.
  template <class Backend>
  void update(Backend& backend, row weights, const_sum_row gradients, const rule_options& constants,
              double learning_rate, std::int64_t step, double gradient_scale) {
    if constexpr (require_kernels<Backend>())
      each_block(constants, learning_rate, step, gradient_scale,
                 [&](std::int64_t begin, std::int64_t end, const step_type& s) {
                   update_block(backend, weights, gradients, begin, end, step, s);
                 });
  }

  /// As `change`, by `update(owned_parameters)`.
  template <class Update>
  void update_by(row weights, const_sum_row gradients, double gradient_scale, Update&& update) {
    change(weights, [&](auto written) {
      const auto slot = [&](int k) { return k < moments && !whole_tensors ? moment(k) : moment_row{}; };
      const const_sum_row kept = base::kept_of_gradients(gradients);
      update(owned_parameters<decltype(written), const_sum_row, moment_row>{written, kept, slot(0), slot(1), gradient_scale});
    });
  }
  /// `work(row)` writes the masters, or the weights where these are none; weights are then rounded to the nearest.
  template <class Work>
  void change(row weights, Work&& work) {
    constexpr bool nearest = !rounds_weights && !rounds_moments && (on_host || !keeps_masters);
    static_assert(nearest,
                  "heddle: an update of one's own rounds weights to the nearest, masters on the host only: leave "
                  "rounding::stochastic out of the precision, and masters_in<M> on a device");
    if constexpr (nearest && !keeps_masters) work(kept_of(weights));
    if constexpr (nearest && keeps_masters) {
      work(masters());
      const row mine = kept_of(weights);
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = converted<T>(converted<weight_type>(masters()[i]));
    }
  }

  /// The scalars of each of the kernels of `update_at`, in their order: f(scalars).
  template <class F>
  void each_step(const rule_options& constants, double learning_rate, std::int64_t step, F&& f) const {
    each_segment(constants, learning_rate, step, 1.0, [&](std::int64_t, std::int64_t, const step_type& s) {
      f(kernels::template scalars_of<arithmetic>(s));
    });
  }
  /// Whether a backend has the kernels of `update_at`: where nothing is converted, or only the weights, which are of the model's type.
  template <class Backend>
  static constexpr bool updates_at =
      is_plain ? kernels::template updates_at<Backend, T>
               : keeps_masters && !rounds_weights && std::is_same_v<weight_type, T> &&
                     std::is_same_v<arithmetic, sum_type> && std::is_same_v<master_type, arithmetic> &&
                     std::is_same_v<moment_type, arithmetic> &&
                     kernels::template updates_masters_at<Backend, arithmetic, weight_type, sum_type>;
  /// `update` whose kernels read the scalars of `each_step` and the scale of gradients from memory when they run, `at` and behind it.
  /// Returns what is behind the last. Nothing changes where the scale there is negative.
  template <class Backend>
    requires updates_at<Backend>
  step_at update_at(Backend& backend, row weights, const_sum_row gradients, const rule_options& constants, step_at at) {
    base::each_rated(detail::rates_of(constants), [&](std::int64_t begin, std::int64_t end, bool, double) {
      const row w = part_of(weights, begin - weights_begin(), end - weights_begin());
      const const_sum_row g = part_of(gradients, begin - gradients_begin(), end - gradients_begin());
      if constexpr (is_plain)
        kernels::template update_at<arithmetic>(backend, w, g, moments_within(begin, end), at);
      else
        kernels::template update_masters_at<arithmetic>(backend, kept(begin, end - begin), w, g,
                                                        moments_within(begin, end), at);
      ++at.scalars;
    });
    return at;
  }

  /// Takes back the `update` with the same arguments, weights and moments up to rounding, where the rule can.
  template <class Backend>
  void undo(Backend& backend, row weights, const_sum_row gradients, const rule_options& constants, double learning_rate,
            std::int64_t step, double gradient_scale)
    requires(is_plain && undoes)
  {
    if constexpr (kernels::template undo_required<sharded_optimizer, Backend, T>())
      each_segment(constants, learning_rate, step, gradient_scale,
                   [&](std::int64_t begin, std::int64_t end, const step_type& s) {
                     kernels::template undo<T>(backend,
                                               part_of(weights, begin - weights_begin(), end - weights_begin()),
                                               part_of(gradients, begin - gradients_begin(), end - gradients_begin()),
                                               moments_within(begin, end), s);
                   });
  }

  /// Memory for the copies of `remember`, which allocates it otherwise.
  void allocate_copies() {
    if (weights_before_.size() != 0) return;
    constexpr const char* copies = "copies of weights and moments";
    const std::int64_t kept = owned_elements();
    weights_before_ = buffer<weight_type, Space>(*queue_, kept, copies);
    std::int64_t of_moments = 0;
    for (const auto& m : moments_) of_moments += static_cast<std::int64_t>(m.size());
    moments_before_ = buffer<moment_type, Space>(*queue_, of_moments, copies);
    if constexpr (keeps_masters) masters_before_ = buffer<master_type, Space>(*queue_, kept, copies);
  }
  /// Copies the owned weights, masters and moments, for `restore`.
  void remember(const_row weights) {
    allocate_copies();
    convert(kept_of(weights), all_of(weights_before_));
    each_copy([&](auto mine, auto before) { queue_->copy(mine, before); });
    if constexpr (keeps_masters) queue_->copy(masters_, masters_before_);
  }
  /// The owned weights, masters and moments as they were at `remember`, bit for bit.
  void restore(row weights) {
    convert(all_of(weights_before_), kept_of(weights));
    each_copy([&](auto mine, auto before) { queue_->copy(before, mine); });
    if constexpr (keeps_masters) queue_->copy(masters_before_, masters_);
  }

  /// Brings every rank of the group up to date after `update`; with `zero<3>` the next UNSHARD does.
  template <class Communicator>
  void gather(Communicator& group, row weights) {
    if constexpr (Zero::stage == 1 || Zero::stage == 2) gather_whole(group, weights);
  }
  /// With `zero<3>`: gathers all ranks' shares of the weights into `to`, a whole flat buffer. Weights of a type of their own have arrived
  /// when it returns (elsewhere than on the host: in the order of the queue); of others `started` gets the call that is under way, on
  /// the host, where the communicator starts calls.
  template <class Communicator, class Started>
  void start_gather(Communicator& group, row to, [[maybe_unused]] Started& started) {
    const std::span<const std::int64_t> shares(shares_);
    if constexpr (sends_weights) {
      queue_->copy(weights_, owned(to));
      gather_whole(group, to);
    } else if constexpr (starting_communicator<Communicator> && on_host) {
      started.emplace(group.start_all_gather_v(as_const(all_of(weights_)), to, shares));
    } else {
      heddle::v0::all_gather_v(*queue_, group, as_const(all_of(weights_)), to, shares);
    }
  }

 private:
  using base::all_of, base::as_const, base::bytes, base::kept_of, base::owned_elements, base::part_of, base::share_of;
  using base::begin_, base::end_, base::queue_, base::shares_, base::weights_;
  static constexpr bool on_host = std::is_same_v<Space, host_memory>;
  static constexpr std::int64_t most_in_a_block = 1 << 16;  // elements that are converted at a time
  static constexpr bool sends_gradients = !std::is_same_v<gradient_type, sum_type>;
  static constexpr bool sends_weights = Zero::stage >= 1 && !std::is_same_v<weight_type, T>;
  static constexpr bool copies_moments = !std::is_same_v<moment_type, arithmetic>;
  // Whether the stage's weights are what the rule steps, where they are.
  static constexpr bool in_place = !keeps_masters && std::is_same_v<weight_type, T> && std::is_same_v<T, arithmetic>;
  static constexpr bool copies_masters = !in_place && !(keeps_masters && std::is_same_v<master_type, arithmetic>);
  using step_type = typename kernels::template step<arithmetic>;
  using arithmetic_rows = typename kernels::template slots<arithmetic, Space>;
  static_assert(!rounds_moments || !whole_tensors,
                "heddle: stochastic rounding of moments has random bits for those of single elements");
  static_assert(!rounds_moments || moments <= 3,
                "heddle: stochastic rounding has random bits for three moments; take moments_in<float>");

  static std::int64_t window_of(std::int64_t largest, int ranks) noexcept {
    return (std::min)(largest, (std::max)(most_in_a_block / ranks, std::int64_t{1}));
  }
  static std::vector<std::int64_t> shares_of([[maybe_unused]] const auto& table, std::int64_t elements, int ranks) {
    if constexpr (whole_tensors)
      return tensors_type(Rule::name, table).shares(elements, ranks);
    else
      return base::balanced_shares(elements, ranks);
  }
  std::int64_t elements_of_block(std::int64_t kept) const noexcept {
    if constexpr (whole_tensors)
      return tensors_.largest(begin_, end_);
    else
      return (std::min)(kept, most_in_a_block);
  }
  template <class From, class To>
  void convert(const From& x, const To& y) const {
    casts_.template convert<element_of<const From>, element_of<const To>>(*queue_, as_const(x), y);
  }
  template <class Communicator>
  void gather_whole(Communicator& group, row weights) {
    if (group.size() == 1) return;
    if constexpr (sends_weights)
      detail::for_each_window(shares_, window_, [&](std::int64_t at, const std::vector<std::int64_t>& counts) {
        gather_window(group, weights, shares_, at, counts, weights_sent_);
      });
    else
      heddle::v0::all_gather_v(*queue_, group, as_const(owned(weights)), weights,
                               std::span<const std::int64_t>(shares_));
  }
  template <class Backend>
  static consteval bool require_kernels() {
    using compute::require_facet;
    if constexpr (is_plain) {
      return true;  // kernels say it themselves
    } else {
      bool there =
          kernels::template required<sharded_optimizer, Backend, arithmetic, weight_type, sum_type, in_place>();
      if constexpr (copies_moments)
        there = there && require_facet<sharded_optimizer, compute::cast_facet<moment_type>, Backend, arithmetic>();
      if constexpr (rounds_weights || rounds_moments)
        there = there && require_facet<sharded_optimizer, compute::stochastic_cast_facet, Backend, arithmetic>();
      return there;
    }
  }

  // f(begin, end, step) for the owned elements with their own numbers, in order; and in blocks, where something is converted.
  template <class F>
  void each_segment(const rule_options& constants, double rate, std::int64_t step, double scale, F&& f) const {
    base::each_rated(
        detail::rates_of(constants), [&](std::int64_t begin, std::int64_t end, bool decays, double factor) {
          f(begin, end, kernels::template step_of<arithmetic>(constants, factor * rate, step, decays, scale));
        });
  }
  template <class F>
  void each_block(const rule_options& constants, double rate, std::int64_t step, double scale, F&& f) {
    if constexpr (whole_tensors) {
      prepare(constants);
      tensors_.each(detail::rates_of(constants), [&](const auto& t, double factor) {
        f(t.offset, t.offset + t.tensor.count(),
          kernels::template step_of<arithmetic>(constants, tensors_, t, factor * rate, step, scale));
      });
    } else {
      constexpr std::int64_t most = in_place && !copies_moments ? base::to_the_end : most_in_a_block;
      each_segment(constants, rate, step, scale, [&](std::int64_t begin, std::int64_t end, const step_type& s) {
        for (; end - begin > most; begin += most) f(begin, begin + most, s);
        f(begin, end, s);
      });
    }
  }
  // f(moment, its copy) for each.
  template <class F>
  void each_copy(F&& f) {
    std::int64_t at = 0;
    for (int k = 0; k < moments; ++k) {
      const auto n = static_cast<std::int64_t>(moments_[static_cast<std::size_t>(k)].size());
      f(moment(k), part_of(all_of(moments_before_), at, at + n));
      at += n;
    }
  }
  // All moments of what a step is of.
  auto moments_of([[maybe_unused]] std::int64_t begin, [[maybe_unused]] std::int64_t end,
                  [[maybe_unused]] const step_type& step) {
    if constexpr (whole_tensors) {
      std::array<moment_row, static_cast<std::size_t>(moments)> rows{};
      for (std::size_t k = 0; k < rows.size(); ++k)
        rows[k] = part_of(moment(static_cast<int>(k)), step.slots[k].begin, step.slots[k].end);
      return rows;
    } else {
      return moments_within(begin, end);
    }
  }
  // Elements [begin, end) of all moments.
  auto moments_within(std::int64_t begin, std::int64_t end) {
    std::array<moment_row, static_cast<std::size_t>(moments)> rows{};
    for (int k = 0; k < moments; ++k)
      rows[static_cast<std::size_t>(k)] = part_of(moment(k), begin - begin_, end - begin_);
    return rows;
  }

  void add_runs(const model::parameter& p) {
    model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      const std::int64_t at = p.offset + local;
      const std::int64_t first = (std::max)(at, begin_), last = (std::min)(at + length, end_);
      if (first < last) runs_.push_back({first, last, global + first - at, static_cast<std::uint64_t>(p.id)});
    });
  }
  // Rounds elements [begin, end) of the flat buffer stochastically; `x` and `y` begin at the first.
  template <class Backend>
  void round(Backend& backend, std::int64_t begin, std::int64_t end, row_view<const float, Space> x,
             row_view<bf16, Space> y, std::int64_t step, detail::rounded what) const {
    auto run = std::partition_point(runs_.begin(), runs_.end(), [&](const auto& r) { return r.end <= begin; });
    for (; run != runs_.end() && run->begin < end; ++run) {
      const std::int64_t first = (std::max)(run->begin, begin), last = (std::min)(run->end, end);
      compute::run<compute::ops::stochastic_cast>(
          backend, part_of(x, first - begin, last - begin), part_of(y, first - begin, last - begin),
          detail::rounding_of(seed_, step, run->parameter, what, run->in_whole + first - run->begin));
    }
  }

  template <class Backend>
  void update_block(Backend& backend, row weights, const_sum_row gradients, std::int64_t begin, std::int64_t end,
                    std::int64_t number, const step_type& step) {
    const std::int64_t n = end - begin;
    const row w = part_of(weights, begin - weights_begin(), end - weights_begin());
    const const_sum_row g = part_of(gradients, begin - gradients_begin(), end - gradients_begin());
    const auto mine = moments_of(begin, end, step);
    arithmetic_rows m{};
    for (int k = 0; k < moments; ++k) {
      const auto at = static_cast<std::size_t>(k);
      if constexpr (copies_moments) {
        m[at] = part_of(all_of(moment_room_), k * n, k * n + static_cast<std::int64_t>(mine[at].size()));
        compute::cast(backend, as_const(mine[at]), m[at]);
      } else {
        m[at] = mine[at];
      }
    }
    if constexpr (in_place)
      kernels::template update<arithmetic>(backend, w, g, m, step);
    else
      update_masters(backend, w, g, m, begin, number, step);
    for (int k = 0; k < moments; ++k) {
      const auto at = static_cast<std::size_t>(k);
      if constexpr (rounds_moments)
        round(backend, begin, end, m[at], mine[at], number,
              static_cast<detail::rounded>(static_cast<int>(detail::rounded::moment) + k));
      else if constexpr (copies_moments)
        compute::cast(backend, as_const(m[at]), mine[at]);
    }
  }
  template <class Backend>
  void update_masters(Backend& backend, row w, const_sum_row g, const arithmetic_rows& m, std::int64_t begin,
                      std::int64_t number, const step_type& step) {
    const auto n = static_cast<std::int64_t>(w.size());
    row_view<arithmetic, Space> p;
    if constexpr (copies_masters) {
      p = part_of(all_of(master_room_), 0, n);
      if constexpr (keeps_masters)
        compute::cast(backend, as_const(kept(begin, n)), p);
      else
        compute::cast(backend, as_const(w), p);
    } else {
      p = kept(begin, n);
    }
    row_view<weight_type, Space> rounded = part_of(all_of(weight_room_), 0, std::is_same_v<weight_type, T> ? 0 : n);
    if constexpr (std::is_same_v<weight_type, T>) rounded = w;
    kernels::template update_masters<arithmetic>(backend, p, rounded, g, m, step);
    if constexpr (rounds_weights) round(backend, begin, begin + n, p, rounded, number, detail::rounded::weight);
    if constexpr (!std::is_same_v<weight_type, T>) compute::cast(backend, as_const(rounded), w);
    if constexpr (keeps_masters && copies_masters) compute::cast(backend, as_const(p), kept(begin, n));
  }
  row_view<master_type, Space> kept(std::int64_t begin, std::int64_t n) {
    return part_of(all_of(masters_), begin - begin_, begin - begin_ + n);
  }

  // Every rank gets all shares of `flat` in a window, in another type.
  template <class Communicator, class Row, class U>
  void gather_window(Communicator& group, Row flat, const std::vector<std::int64_t>& shares, std::int64_t at,
                     const std::vector<std::int64_t>& counts, buffer<U, Space>& room) const {
    const std::int64_t mine = counts[static_cast<std::size_t>(rank_)];
    std::int64_t all = 0;
    for (const std::int64_t n : counts) all += n;
    const auto out = part_of(all_of(room), 0, mine), in = part_of(all_of(room), mine, mine + all);
    detail::for_each_share(shares, at, counts, [&](int r, std::int64_t begin, std::int64_t end, std::int64_t) {
      if (r == rank_) convert(part_of(flat, begin, end), out);
    });
    heddle::v0::all_gather_v(*queue_, group, as_const(out), in, std::span<const std::int64_t>(counts));
    detail::for_each_share(shares, at, counts, [&](int, std::int64_t begin, std::int64_t end, std::int64_t in_window) {
      convert(part_of(in, in_window, in_window + end - begin), part_of(flat, begin, end));
    });
  }
  // The sum over all ranks of `flat`, elements from `first` on, each rounded: of a rank's share, with `zero<0>` of all.
  template <class Communicator>
  void reduce_rounded(Communicator& group, sum_row flat, std::int64_t first, const std::vector<std::int64_t>& shares) {
    detail::for_each_window(shares, window_, [&](std::int64_t at, const std::vector<std::int64_t>& counts) {
      const std::int64_t mine = counts[static_cast<std::size_t>(rank_)], ranks = group.size();
      std::int64_t all = 0;
      for (const std::int64_t n : counts) all += n;
      const auto out = part_of(all_of(gradients_sent_), 0, all);
      const auto in = part_of(all_of(gradients_sent_), all, all + ranks * mine);
      sum_row sum{};
      detail::for_each_share(shares, at, counts, [&](int r, std::int64_t begin, std::int64_t end, std::int64_t in_window) {
        convert(part_of(flat, begin, end), part_of(out, in_window, in_window + end - begin));
        if (r == rank_) sum = Zero::stage >= 2 ? share_of(flat, first + begin, first + end) : part_of(flat, begin, end);
      });
      const std::vector<std::int64_t> received(counts.size(), mine);
      heddle::v0::all_to_all_v(*queue_, group, as_const(out), std::span<const std::int64_t>(counts), in,
                               std::span<const std::int64_t>(received));
      queue_->zero(sum);
      for (std::int64_t r = 0; r < ranks; ++r) {
        const auto from = part_of(in, r * mine, (r + 1) * mine);
        if constexpr (on_host) {
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<sum_type>(from[i]);
        } else if (mine > 0) {
          const sum_row given = part_of(all_of(sum_room_), 0, mine);
          convert(from, given);
          casts_.add(given, sum);
        }
      }
      if constexpr (Zero::stage == 0) gather_window(group, flat, shares, at, counts, gradients_sent_);
    });
  }

  using tensors_type = detail::tensors_of_rule<kernels, arithmetic, Space, whole_tensors>;
  [[no_unique_address]] tensors_type tensors_{};
  [[no_unique_address]] detail::cast_backend<T, weight_type, gradient_type, master_type, Space> casts_{};
  int rank_ = 0;
  std::int64_t window_ = 1;  // elements of each share that travel at a time
  std::uint64_t seed_ = 0;
  std::vector<detail::rounded_run> runs_;  // in the order of the flat buffer; empty without stochastic rounding
  buffer<master_type, Space> masters_;
  std::array<buffer<moment_type, Space>, static_cast<std::size_t>(moments)> moments_;
  buffer<sum_type, Space> sum_room_;           // not on the host
  buffer<weight_type, Space> weights_before_;  // the copies are empty if nobody asks for them
  buffer<moment_type, Space> moments_before_;
  buffer<master_type, Space> masters_before_;
  buffer<arithmetic, Space> master_room_;
  buffer<arithmetic, Space> moment_room_;
  buffer<weight_type, Space> weight_room_;
  buffer<weight_type, Space> weights_sent_;
  buffer<gradient_type, Space> gradients_sent_;
};

/// The default rule with everything of elements T.
template <class T, class Zero, memory_space Space = host_memory>
using optimizer = sharded_optimizer<T, optimizers::by_default, precision<>, Zero, Space>;

}  // namespace heddle::inline v0::train
