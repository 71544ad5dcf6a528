// heddle/train/activations/offload.hpp: the policy that offloads saved activations, and the memory it gives a stage.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/plan/offload_amount.hpp>
#include <heddle/train/activations/cache.hpp>
#include <heddle/train/activations/file_store.hpp>
#include <heddle/train/activations/memory.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Activations could not be stored or brought back: a full disk, a broken drive. The step ends with it before anything
/// is updated: weights, moments and the position in the data are still those of the step before; with `post_validation`
/// up to rounding, as stages that had stepped are taken back. `launch` throws it as an `io_error` in which it is nested.
struct offload_error : io_error {
  using io_error::io_error;
};

namespace activations {

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
  static_assert(N >= 0, "heddle: amount::first<N>: N layers are offloaded, not less than 0");
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
  static_assert(N >= 1,
                "heddle: prefetch::ahead<N>: layers are brought back at least one layer ahead; or prefetch::off");
  static constexpr std::size_t least = N;
  static constexpr bool grows = Grows;
};
}  // namespace prefetch

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
  int offloaded_layers = 0;          ///< of the stage: now, after what was measured
  double bytes_per_second = 0;       ///< of the store, as last measured or told; 0 if it is not known
  std::int64_t declined = 0;         ///< of `tensors.kept`: would have been offloaded, but the store was behind
  int decisions = 0;                 ///< how often the amount was decided by what was measured or told
};

/// Memory for the saved activations of a stage's layers that is lent out for as long as they are in it: from the forward
/// until the store has them, and from shortly before the backward until its end. What one layer saves of one microbatch
/// goes to the store as one tensor. Memory is allocated as it is needed in the first steps, then used again.
/// Errors: `offload_error`; `config_error` for settings that are negative or not a number.
template <class T, activation_store Store, class Amount, class Prefetch, class MinBytes>
class offloaded_layers {
 public:
  using settings = offload_settings;
  static constexpr bool moves = true;

  offloaded_layers(const settings& given, int slots, std::span<const std::int64_t> elements)
      : settings_(checked(given)),
        layers_(static_cast<int>(elements.size())),
        offloaded_(Amount::layers(layers_)),
        store_(given.store),
        cache_(store_, memory_, MinBytes::value, given.verify),
        leases_(static_cast<std::size_t>(slots * layers_)),
        ids_(static_cast<std::size_t>(slots * layers_), -1),
        scopes_(elements.size()),
        forward_seconds_(elements.size(), 0.0),
        read_seconds_(elements.size(), 0.0),
        backward_seconds_(elements.size(), 0.0) {
    for (const std::int64_t n : elements) bytes_.push_back(n * static_cast<std::int64_t>(sizeof(T)));
    while (tried_ < layers_ && !may_leave(tried_++)) {
    }
  }

  std::span<T> begin(int slot, int layer) {
    return named("storing", layer, [&] {
      cache_.collect();
      if (layer == 0) since_ = now_ns();
      memory::lease& l = leases_[scope(slot, layer)];
      l = memory_.take(bytes_[static_cast<std::size_t>(layer)]);
      return elements(l.bytes());
    });
  }
  void saved(int slot, int layer) {
    const std::int64_t now = now_ns();
    forward_seconds_[static_cast<std::size_t>(layer)] += 1e-9 * static_cast<double>(now - since_);
    if (layer == 0) ++forwards_;
    named("storing", layer, [&] {
      const std::size_t at = scope(slot, layer);
      const memory::lease l = std::exchange(leases_[at], {});
      cache_.collect();
      const bool offloaded = is_offloaded(layer), behind = offloaded && is_behind(layer);
      if (behind) ++declined_;
      ids_[at] = cache_.save(l, l.bytes(), static_cast<int>(at), !offloaded || behind);
    });
    since_ = now_ns();
  }
  std::span<T> need(int slot, int layer) {
    const auto k = static_cast<std::size_t>(layer);
    const std::int64_t now = now_ns();
    if (layer + 1 < layers_ && backward_of_ == slot)
      backward_seconds_[k + 1] = 1e-9 * static_cast<double>(now - since_);
    backward_of_ = slot;
    return named("bringing back", layer, [&] {
      prefetch_before(slot, k);
      const std::span<T> there = elements(cache_.use(ids_[scope(slot, layer)]));
      since_ = now_ns();
      return there;
    });
  }
  void done(int slot, int layer) {
    named("bringing back", layer, [&] { cache_.end(static_cast<int>(scope(slot, layer))); });
  }
  void forget(int slot) {
    for (int l = 0; l < layers_; ++l) {
      leases_[scope(slot, l)] = {};
      done(slot, l);
    }
  }

  /// The backward of this microbatch comes soon: brings back its last layers.
  void reload(int slot) {
    if (layers_ == 0 || Prefetch::least == 0) return;
    for (int l = layers_; l-- > 0 && l + static_cast<int>(Prefetch::least) >= layers_;)
      named("bringing back", l, [&] { cache_.prefetch(static_cast<int>(scope(slot, l))); });
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
    return {cache_.counters(), store_.counters(), memory_.peak_bytes(), memory_.allocated_bytes(), offloaded, rate_,
            declined_,         decisions_};
  }
  void reset_peak() noexcept { memory_.reset_peak(); }

 private:
  static constexpr int tries_every = 16;  // steps

  std::size_t scope(int slot, int layer) const noexcept {
    return static_cast<std::size_t>(slot) * static_cast<std::size_t>(layers_) + static_cast<std::size_t>(layer);
  }
  bool may_leave(int layer) const noexcept {
    return bytes_[static_cast<std::size_t>(layer)] >= MinBytes::value &&
           !(settings_.keep_last && layer + 1 == layers_);
  }
  bool is_offloaded(int layer) const noexcept { return layer < (tries_ ? tried_ : offloaded_) && may_leave(layer); }
  static const settings& checked(const settings& given) {
    if (!(given.bytes_per_second >= 0))  // infinite: a store that costs nothing
      throw config_error("heddle: offload.bytes_per_second must be positive, or 0 to have it measured, got " +
                         std::to_string(given.bytes_per_second));
    if (given.most_waiting_bytes < 0)
      throw config_error("heddle: offload.most_waiting_bytes must be positive, or 0 for what the policy takes, got " +
                         std::to_string(given.most_waiting_bytes));
    return given;
  }
  static std::span<T> elements(std::span<std::byte> bytes) noexcept {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <class Work>
  static auto named(const char* what, int layer, Work&& work) {
    try {
      return work();
    } catch (const offload_error&) {
      throw;
    } catch (const io_error& e) {
      std::string text = "heddle: ";
      text += what;
      text += " activations failed at layer " + std::to_string(layer);
      text += " of a stage; nothing was updated in this step: ";
      text += e.what();
      throw offload_error(text);
    }
  }

  void prefetch_before(int slot, std::size_t running) {
    if (Prefetch::least == 0) return;
    double queued = 0;
    if (Prefetch::grows) {
      const store_counters c = store_.counters();
      const double read = read_rate_ > 0 ? read_rate_ : rate_of(c.bytes_read, c.read_seconds);
      for (std::size_t k = 0; k < running && read > 0; ++k) read_seconds_[k] = static_cast<double>(bytes_[k]) / read;
      if (read > 0) queued = static_cast<double>(cache_.counters().bytes_loaded - c.bytes_read) / read;
    }
    for (std::size_t k = running; k-- > 0;) {
      const int at = static_cast<int>(scope(slot, static_cast<int>(k)));
      const bool now = Prefetch::grows
                           ? plan::read_now(running, k, Prefetch::least, queued, read_seconds_, backward_seconds_)
                           : running - k <= Prefetch::least;
      if (!now) break;
      const std::int64_t before = cache_.counters().loaded;
      cache_.prefetch(at);
      if (cache_.counters().loaded > before) queued += read_seconds_[k];
    }
  }

  // The store is behind: this layer would not be away, or not be back in time.
  bool is_behind(int layer) const {
    const auto l = static_cast<std::size_t>(layer);
    const auto waiting = static_cast<double>(cache_.waiting_bytes() + bytes_[l]);
    if (settings_.most_waiting_bytes > 0) return waiting > static_cast<double>(settings_.most_waiting_bytes);
    if (!Amount::measures || decisions_ == 0 || tries_) return false;
    return waiting > plan::most_waiting_bytes(scopes_, l, rate_) * (1 + 1e-9);
  }

  static double rate_of(std::int64_t bytes, double seconds) noexcept {
    return bytes > 0 && seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
  // Looks at the step that has ended.
  void measure() {
    const store_counters now = store_.counters();
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

  settings settings_;
  int layers_;
  std::vector<std::int64_t> bytes_;  // of each layer
  int offloaded_;
  memory memory_;
  Store store_;
  cache<Store> cache_;
  std::vector<memory::lease> leases_;  // of layers whose forward runs
  std::vector<int> ids_;
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
/// Layers that save less than `MinBytes` per microbatch are kept, and what the head saves, which is used at once.
/// Source: Wu et al., arXiv:2408.10013 (SSDTrain).
template <class Store = file_store, class Amount = amount::adaptive, class Prefetch = prefetch::ahead<2>,
          class MinBytes = min_bytes<(std::int64_t{8} << 20)>>
struct offload {
  static_assert(activation_store<Store> && std::constructible_from<Store, const store_options&>,
                "heddle: activations::offload<Store, ...>: the store does not model activation_store, or is not made "
                "from store_options");
  using kind = activations_kind;
  static constexpr bool reloads = true;
  /// For formulas of memory: how many of a stage's layers are offloaded at least (with `amount::adaptive` perhaps
  /// none), and the bytes that a layer must save. `offload_settings::keep_last` keeps one more.
  static constexpr int fixed_layers(int of) noexcept { return Amount::measures ? 0 : Amount::layers(of); }
  static constexpr std::int64_t least_bytes = MinBytes::value;
  template <class T>
  using layers = offloaded_layers<T, Store, Amount, Prefetch, MinBytes>;
};

}  // namespace activations
}  // namespace heddle::inline v0
