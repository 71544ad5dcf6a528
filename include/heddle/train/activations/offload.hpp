// heddle/train/activations/offload.hpp: the policy that offloads saved activations.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/plan/offload_amount.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/activations/cache.hpp>
#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/pooled_layers.hpp>
#include <heddle/train/activations/store.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// Activations could not be stored or brought back: a full disk, a broken drive. The step ends with it before anything
/// is updated: weights, moments and the position in the data are still those of the step before; with `post_validation`
/// up to rounding, as stages that had stepped are taken back. `launch` throws it as an `io_error` in which it is nested.
struct offload_error : io_error {
  using io_error::io_error;
};

namespace activations {

namespace detail {
// In functions: clang takes a class whose own assertion failed for broken, and says so a second time.
template <int N>
constexpr bool amount_checked() {
  static_assert(N >= 0, "heddle: amount::first<N>: N layers are offloaded, not less than 0");
  return true;
}
template <int N>
constexpr bool prefetch_checked() {
  static_assert(N >= 1,
                "heddle: prefetch::ahead<N>: layers are brought back at least one layer ahead; or prefetch::off");
  return true;
}
template <class Store>
constexpr bool store_checked() {
  static_assert(activation_store<Store> && std::constructible_from<Store, const store_options&>,
                "heddle: activations::offload<Store, ...>: the store does not model activation_store, or is not made "
                "from store_options");
  return true;
}
}  // namespace detail

/// How many layers of a stage are offloaded: the first ones, whose backward comes last.
namespace amount {
/// All layers are offloaded.
struct all {
  static constexpr bool measures = false;
  static constexpr int layers(int of) noexcept { return of; }
};
/// The first N layers are offloaded, or all if there are fewer.
template <int N>
struct first {
  static_assert(detail::amount_checked<N>());
  static constexpr bool measures = false;
  static constexpr int layers(int of) noexcept { return N < of ? N : of; }
};
/// As many as the store takes and gives behind the computation: all in the first two steps, the second of which is
/// measured, then `plan::amount_to_offload` for the lower of the rates at which the store wrote and read. Each later
/// step is measured too, and where that rate is a fifth below or a fourth above the last it is decided again: drives
/// become slower when their cache is full, and others come and go (ranks that share a drive each measure their share).
/// Within a step, a layer stays that could not be written and read before its backward (`plan::most_waiting_bytes`).
/// Where steps move nothing any more, every 16th offloads one layer, to see whether the store has recovered.
struct adaptive {
  static constexpr bool measures = true;
  static constexpr int layers(int of) noexcept { return of; }
};
}  // namespace amount

/// When layers are brought back.
namespace prefetch {
/// When a backward waits for them: never before.
struct off {
  static constexpr std::size_t least = 0;
  static constexpr bool grows = false;
};
/// When the backward of the layer N after them begins; with `Grows` sooner if they would be late (`plan::read_now`).
template <int N, bool Grows = true>
struct ahead {
  static_assert(detail::prefetch_checked<N>());
  static constexpr std::size_t least = N >= 1 ? N : 1;
  static constexpr bool grows = Grows;
};
}  // namespace prefetch

/// What goes to the store as one tensor.
namespace granularity {
/// What a block saves.
struct blocks {
  static constexpr int in_block = 1;
};
/// What half of a block saves, for blocks that are a sequence of two layers: less waits for the store, and comes back,
/// at a time. Backward then runs both verbs of the second layer before those of the first. `prefetch::ahead<N>` and
/// `min_bytes` are of halves.
struct halves {
  static constexpr int in_block = 2;
};
}  // namespace granularity

/// Layers that save less are kept.
template <std::int64_t N>
struct min_bytes {
  static constexpr std::int64_t value = N;
};

/// What became of the activations of one stage.
struct offload_report {
  cache_counters tensors{};  ///< one tensor is what one layer saves of one microbatch
  store_counters store{};
  std::int64_t peak_bytes = 0;       ///< the most that layers' activations took at a time, those on their way included
  std::int64_t allocated_bytes = 0;  ///< for them
  int offloaded_layers = 0;          ///< of the stage, or halves of them: now, after what was measured
  double bytes_per_second = 0;       ///< of the store, as last measured or told; 0 if it is not known
  std::int64_t declined = 0;         ///< of `tensors.kept`: would have been offloaded, but the store was behind
  int decisions = 0;                 ///< how often the amount was decided by what was measured or told
  /// The most that their copies on the host took at a time, where the activations lie in memory that the host may not touch.
  std::int64_t peak_copied_bytes = 0;
};

/// Memory for the saved activations of a stage's layers that is lent out for as long as they are in it: from the forward
/// until the store has them, and from shortly before the backward until its end. What one layer saves of one microbatch
/// goes to the store as one tensor. Memory is allocated as it is needed in the first steps, then used again.
/// In memory that the host may not touch (`Space`) what layers save is copied to the host, where the store is, and back, in the order
/// of `queue`, which must outlive this object. The host waits for the queue when it has been given the forward of a layer that is
/// offloaded (with `amount::adaptive`, which measures, of every layer), and before a layer comes back, for the one that came before it.
/// Errors: `offload_error`; `config_error` for settings that are negative or not a number.
/// With `granularity::halves` each half of a layer is what is called a layer here: 2 l and 2 l + 1 of layer l.
template <class T, activation_store Store, class Amount, class Prefetch, class MinBytes,
          memory_space Space = host_memory, class Granularity = granularity::blocks>
class offloaded_layers {
 public:
  using settings = offload_settings;
  using row = row_view<T, Space>;
  static constexpr bool moves = true, halves = Granularity::in_block == 2;

  offloaded_layers(const settings& given, int slots, std::span<const std::int64_t> elements)
    requires std::is_same_v<Space, host_memory>
      : offloaded_layers(*heddle::v0::detail::kept_queue<Space>(), given, slots, elements) {}
  offloaded_layers(typename Space::queue& queue, const settings& given, int slots,
                   std::span<const std::int64_t> elements)
      : queue_(queue),
        settings_(checked(given)),
        layers_(static_cast<int>(elements.size())),
        offloaded_(Granularity::in_block * Amount::layers(layers_ / Granularity::in_block)),
        lent_(queue, given, static_cast<std::size_t>(slots * layers_), MinBytes::value),
        scopes_(elements.size()),
        forward_seconds_(elements.size(), 0.0),
        read_seconds_(elements.size(), 0.0),
        backward_seconds_(elements.size(), 0.0) {
    for (const std::int64_t n : elements) bytes_.push_back(n * static_cast<std::int64_t>(sizeof(T)));
    while (tried_ < layers_ && !may_leave(tried_++)) {
    }
  }

  row begin(int slot, int layer) {
    return named("storing", layer, [&] {
      lent_.collect();
      if (layer == 0) since_ = now_ns();
      return lent_.take(scope(slot, layer), bytes_[static_cast<std::size_t>(layer)]);
    });
  }
  void saved(int slot, int layer) {
    if constexpr (Amount::measures) queue_->wait();
    const std::int64_t now = now_ns();
    forward_seconds_[static_cast<std::size_t>(layer)] += 1e-9 * static_cast<double>(now - since_);
    if (layer == 0) ++forwards_;
    named("storing", layer, [&] {
      const std::size_t at = scope(slot, layer);
      lent_.collect();
      const bool offloaded = is_offloaded(layer), behind = offloaded && is_behind(layer);
      if (behind) ++declined_;
      lent_.save(at, !offloaded || behind);
    });
    since_ = now_ns();
  }
  row need(int slot, int layer) {
    const auto k = static_cast<std::size_t>(layer);
    lent_.wait_for_turn(scope(slot, layer));
    const std::int64_t now = now_ns();
    if (layer + 1 < layers_ && backward_of_ == slot)
      backward_seconds_[k + 1] = 1e-9 * static_cast<double>(now - since_);
    backward_of_ = slot;
    return named("bringing back", layer, [&] {
      prefetch_before(slot, k);
      const row there = lent_.use(scope(slot, layer));
      since_ = now_ns();
      return there;
    });
  }
  void done(int slot, int layer) {
    named("bringing back", layer, [&] { lent_.end(scope(slot, layer)); });
  }
  void forget(int slot) {
    for (int l = 0; l < layers_; ++l) named("bringing back", l, [&] { lent_.drop(scope(slot, l)); });
  }

  /// The backward of this microbatch comes soon: brings back its last layers.
  void reload(int slot) {
    if (layers_ == 0 || Prefetch::least == 0) return;
    for (int l = layers_; l-- > 0 && l + static_cast<int>(Prefetch::least) >= layers_;)
      named("bringing back", l, [&] { lent_.prefetch(scope(slot, l)); });
  }
  /// A step begins. With `amount::adaptive` the third one decides how much is offloaded, later ones may do so again.
  void begin_step() {
    if constexpr (Amount::measures) measure();
    ++steps_;
  }

  std::int64_t bytes_per_slot() const noexcept {
    return std::accumulate(bytes_.begin(), bytes_.end(), std::int64_t{0});
  }
  offload_report report() const {
    int offloaded = 0;
    for (int l = 0; l < layers_; ++l) offloaded += is_offloaded(l);
    return {lent_.counters(), lent_.store(), lent_.peak_bytes(),       lent_.allocated_bytes(), offloaded, rate_,
            declined_,        decisions_,    lent_.peak_copied_bytes()};
  }
  void reset_peak() noexcept { lent_.reset_peak(); }

 private:
  static constexpr int tries_every = 16;  // steps

  std::size_t scope(int slot, int layer) const noexcept {
    return static_cast<std::size_t>(slot) * static_cast<std::size_t>(layers_) + static_cast<std::size_t>(layer);
  }
  bool may_leave(int layer) const noexcept {
    return bytes_[static_cast<std::size_t>(layer)] >= MinBytes::value &&
           !(settings_.keep_last && layer + Granularity::in_block >= layers_);
  }
  bool is_offloaded(int layer) const noexcept { return layer < (tries_ ? tried_ : offloaded_) && may_leave(layer); }
  static const settings& checked(const settings& given) {
    if (!(given.bytes_per_second >= 0))  // infinite: a store that costs nothing
      throw config_error("heddle: offload.bytes_per_second must be positive, or 0 to have it measured, got " +
                         number_text(given.bytes_per_second));
    if (given.most_waiting_bytes < 0)
      throw config_error("heddle: offload.most_waiting_bytes must be positive, or 0 for what the policy takes, got " +
                         std::to_string(given.most_waiting_bytes));
    return given;
  }
  template <class Work>
  static auto named(const char* what, int layer, Work&& work) {
    try {
      return work();
    } catch (const offload_error&) {
      throw;
    } catch (const io_error& e) {
      throw offload_error(
          text_of({"heddle: ", what, " activations failed at layer ", layer / Granularity::in_block,
                                   " of a stage; nothing was updated in this step: ", e.what()}));
    }
  }

  void prefetch_before(int slot, std::size_t running) {
    if (Prefetch::least == 0) return;
    double queued = 0;
    if (Prefetch::grows) {
      const store_counters c = lent_.store();
      const double read = read_rate_ > 0 ? read_rate_ : rate_of(c.bytes_read, c.read_seconds);
      for (std::size_t k = 0; k < running && read > 0; ++k) read_seconds_[k] = static_cast<double>(bytes_[k]) / read;
      if (read > 0) queued = static_cast<double>(lent_.counters().bytes_loaded - c.bytes_read) / read;
    }
    for (std::size_t k = running; k-- > 0;) {
      const bool now = Prefetch::grows
                           ? plan::read_now(running, k, Prefetch::least, queued, read_seconds_, backward_seconds_)
                           : running - k <= Prefetch::least;
      if (!now) break;
      const std::int64_t before = lent_.counters().loaded;
      lent_.prefetch(scope(slot, static_cast<int>(k)));
      if (lent_.counters().loaded > before) queued += read_seconds_[k];
    }
  }

  // The store is behind: this layer would not be away, or not be back in time.
  bool is_behind(int layer) const {
    const auto l = static_cast<std::size_t>(layer);
    const auto waiting = static_cast<double>(lent_.waiting_bytes() + bytes_[l]);
    if (settings_.most_waiting_bytes > 0) return waiting > static_cast<double>(settings_.most_waiting_bytes);
    if (!Amount::measures || decisions_ == 0 || tries_) return false;
    return waiting > plan::most_waiting_bytes(scopes_, l, rate_) * (1 + 1e-9);
  }

  static double rate_of(std::int64_t bytes, double seconds) noexcept {
    return bytes > 0 && seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
  // Looks at the step that has ended.
  void measure() {
    const store_counters now = lent_.store();
    const double written =
                     rate_of(now.bytes_written - before_.bytes_written, now.write_seconds - before_.write_seconds),
                 read = rate_of(now.bytes_read - before_.bytes_read, now.read_seconds - before_.read_seconds);
    const bool told = settings_.bytes_per_second > 0;
    const double rate = told       ? settings_.bytes_per_second
                        : read > 0 ? (written > 0 ? (std::min)(written, read) : read)
                                   : written;
    if (read > 0) read_rate_ = read;
    if (steps_ >= 2 && forwards_ > 0 && rate > 0) {
      const bool other = rate < 0.8 * rate_ || rate > 1.25 * rate_;
      if (decisions_ == 0 || tries_ || other) decide(rate);
    }
    tries_ = decisions_ > 0 && !told && rate == 0 && steps_ % tries_every == 0;
    before_ = now;
    forwards_ = 0;
    std::fill(forward_seconds_.begin(), forward_seconds_.end(), 0.0);
  }
  void decide(double rate) {
    rate_ = rate;
    ++decisions_;
    for (std::size_t l = 0; l < bytes_.size(); ++l) {
      const bool leaves = may_leave(static_cast<int>(l));
      scopes_[l] = {leaves ? static_cast<double>(bytes_[l]) : 0.0,
                    forward_seconds_[l] / static_cast<double>(forwards_)};
    }
    offloaded_ = static_cast<int>(plan::amount_to_offload(scopes_, rate_).first_kept);
  }

  [[no_unique_address]] heddle::v0::detail::kept_queue<Space> queue_;
  settings settings_;
  int layers_;
  std::vector<std::int64_t> bytes_;  // of each layer
  int offloaded_;
  detail::pooled_layers<T, Store, Space> lent_;
  std::vector<plan::offload_scope> scopes_;  // as the last decision saw them
  std::vector<double> forward_seconds_, read_seconds_, backward_seconds_;
  std::int64_t since_ = 0;
  int backward_of_ = -1;
  int steps_ = 0;
  std::int64_t forwards_ = 0;
  store_counters before_;  // when this step began
  double rate_ = 0, read_rate_ = 0;
  bool tries_ = false;  // this step offloads only to measure,
  int tried_ = 0;       // the last of so many layers
  std::int64_t declined_ = 0;
  int decisions_ = 0;
};

/// Saved activations of a stage's layers are stored elsewhere between forward and backward.
/// `Store`: where; constructed from `store_options`. `Amount`: how many layers. `Prefetch`: when they come back.
/// Layers that save less than `MinBytes` per microbatch are kept, and what the head saves, which is used at once. `Granularity`: whether
/// what a block saves goes as one tensor or as two.
/// Source: Wu et al., arXiv:2408.10013 (SSDTrain).
template <class Store = file_store, class Amount = amount::adaptive, class Prefetch = prefetch::ahead<2>,
          class MinBytes = min_bytes<(std::int64_t{8} << 20)>, class Granularity = granularity::blocks>
struct offload {
  static_assert(detail::store_checked<Store>());
  using kind = activations_kind;
  static constexpr bool reloads = true;
  /// For formulas of memory: how many of a stage's layers are offloaded at least (with `amount::adaptive` perhaps
  /// none), and the bytes that a layer must save. `offload_settings::keep_last` keeps one more.
  static constexpr int fixed_layers(int of) noexcept { return Amount::measures ? 0 : Amount::layers(of); }
  static constexpr std::int64_t least_bytes = MinBytes::value;
  static constexpr bool halves = Granularity::in_block == 2;
  template <class T>
  using layers = offloaded_layers<T, Store, Amount, Prefetch, MinBytes, host_memory, Granularity>;
  template <class T, class Space>
  using layers_in = offloaded_layers<T, Store, Amount, Prefetch, MinBytes, Space, Granularity>;
};

}  // namespace activations
}  // namespace heddle::inline v0
