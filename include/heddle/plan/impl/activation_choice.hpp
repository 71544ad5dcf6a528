// heddle/plan/impl/activation_choice.hpp: bodies of heddle/plan/activation_choice.hpp.
#pragma once

#include <heddle/plan/activation_choice.hpp>
#include <heddle/core/error.hpp>
#include <heddle/draw/svg.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {

namespace detail {
inline void require_size(const microbatch_costs& costs, const activation_limits& limits) {
  if (costs.samples < 1 || limits.samples % costs.samples != 0)
    throw config_error("heddle: microbatches have a number of samples that divides the " +
                       std::to_string(limits.samples) + " of a step, got " + std::to_string(costs.samples));
}
}  // namespace detail

HEDDLE_INLINE activation_choice simulate_choice(const microbatch_costs& costs, const activation_limits& limits,
                                                std::span<const sim::activation_use> uses) {
  detail::require_size(costs, limits);
  const int microbatches = limits.samples / costs.samples, in_flight = (std::min)(microbatches, limits.stages);
  activation_choice c;
  c.samples = costs.samples;
  c.uses.assign(uses.begin(), uses.end());
  c.microbatch = sim::simulate_activations(costs.blocks, limits.rates, uses, limits.ahead);
  c.step_seconds = (microbatches + limits.stages - 1) * c.microbatch.end;
  c.samples_per_second = c.step_seconds > 0 ? limits.samples / c.step_seconds : 0;
  c.peak_bytes = (in_flight - 1) * c.microbatch.resident + c.microbatch.peak;
  return c;
}

namespace detail {

// The search over the uses of all blocks with microbatches of one size. Blocks are decided from the first on.
class activation_search {
 public:
  activation_search(const microbatch_costs& costs, const activation_limits& limits, std::int64_t most,
                    activation_choice& best)
      : costs_(costs),
        limits_(limits),
        most_(most),
        best_(best),
        microbatches_(limits.samples / costs.samples),
        in_flight_((std::min)(microbatches_, limits.stages)),
        uses_(costs.blocks.size(), sim::activation_use::keep),
        by_price_(costs.blocks.size()) {
    std::iota(by_price_.begin(), by_price_.end(), std::size_t{0});
    by_saving_ = by_seconds_ = by_price_;
    const auto price = [&](std::size_t i) {  // seconds for each byte that computing again saves
      const sim::offloaded_layer& l = costs.blocks[i];
      return l.bytes > l.input ? l.forward / (l.bytes - l.input) : std::numeric_limits<double>::infinity();
    };
    const auto saving = [&](std::size_t i) { return costs.blocks[i].bytes - costs.blocks[i].input; };
    const auto seconds = [&](std::size_t i) { return costs.blocks[i].forward; };
    std::sort(by_price_.begin(), by_price_.end(), [&](std::size_t a, std::size_t b) { return price(a) < price(b); });
    std::sort(by_saving_.begin(), by_saving_.end(),
              [&](std::size_t a, std::size_t b) { return saving(a) > saving(b); });
    std::sort(by_seconds_.begin(), by_seconds_.end(),
              [&](std::size_t a, std::size_t b) { return seconds(a) < seconds(b); });
    double forward = 0;
    for (const sim::offloaded_layer& l : costs.blocks) {
      forward += l.forward;
      least_seconds_ += l.forward + l.backward;
    }
    writes_ = costs.blocks.empty() ? 0 : limits.rates.write * (forward - costs.blocks.front().forward);
  }

  void run() {
    begin_with_runs();
    decide(0, 0, 0, 0);
  }

 private:
  using use = sim::activation_use;

  void look() {
    if (simulated_ >= most_) {
      best_.proven = false;
      return;
    }
    ++simulated_;
    const std::int64_t all = best_.simulated + 1;
    activation_choice c = simulate_choice(costs_, limits_, uses_);
    const bool better = c.peak_bytes <= limits_.bytes &&
                        (c.step_seconds < best_.step_seconds ||
                         (c.step_seconds == best_.step_seconds && c.microbatch.written < best_.microbatch.written));
    if (better) {
      c.proven = best_.proven;
      best_ = std::move(c);
    }
    best_.simulated = all;
  }

  // Good choices first: the first blocks are offloaded, and others beside each other computed again.
  void begin_with_runs() {
    const std::size_t n = uses_.size();
    for (std::size_t away = 0; away <= n; ++away)
      for (std::size_t again = 0; away + again <= n; ++again)
        for (const std::size_t first : {away, n - again}) {
          if (again == 0 && first != away) continue;
          std::fill(uses_.begin(), uses_.end(), use::keep);
          std::fill_n(uses_.begin(), away, use::offload);
          std::fill_n(uses_.begin() + static_cast<std::ptrdiff_t>(first), again, use::recompute);
          if (simulated_ < most_ / 2) look();
        }
  }

  // The least seconds of computing again with which what is not decided yet may fit; infinite where nothing does. Of a peak it counts what is
  // there when the last forward ends: what stays, and what is offloaded beyond all that the store may have written by then. The greater of two
  // bounds: parts of blocks, the cheapest first; and as many whole blocks as it takes, each as fast as the fastest that are left.
  double least_again(std::size_t decided, double resident, double offloaded) const {
    const double held = in_flight_ * resident;
    if (held > limits_.bytes) return std::numeric_limits<double>::infinity();
    double over = held + offloaded - writes_ - limits_.bytes, seconds = 0;
    for (std::size_t i = decided; i < uses_.size(); ++i) over += costs_.blocks[i].bytes;
    over -= 1e-9 * limits_.bytes;  // sums in another order
    const auto each_while = [&](const std::vector<std::size_t>& order, const auto& more, const auto& work) {
      for (std::size_t k = 0; k < order.size() && more(); ++k)
        if (order[k] >= decided) work(costs_.blocks[order[k]]);
    };
    double left = over, whole_seconds = 0;
    each_while(
        by_price_, [&] { return left > 0; },
        [&](const sim::offloaded_layer& l) {
          const double saved = l.bytes - l.input;
          if (saved > 0) seconds += l.forward * (std::min)(1.0, left / saved);
          left -= saved;
        });
    if (left > 0) return std::numeric_limits<double>::infinity();
    int blocks = 0;
    left = over;
    each_while(
        by_saving_, [&] { return left > 0; },
        [&](const sim::offloaded_layer& l) {
          left -= l.bytes - l.input;
          ++blocks;
        });
    each_while(
        by_seconds_, [&] { return blocks > 0; },
        [&](const sim::offloaded_layer& l) {
          whole_seconds += l.forward;
          --blocks;
        });
    return (std::max)(seconds, whole_seconds);
  }

  void decide(std::size_t block, double again, double resident, double offloaded) {
    const double least =
        (microbatches_ + limits_.stages - 1) * (least_seconds_ + again + least_again(block, resident, offloaded));
    if (++visited_ > 16 * most_) best_.proven = false;
    if (!best_.proven || least * (1 + 1e-9) >= best_.step_seconds) return;
    if (block == uses_.size()) return look();
    const sim::offloaded_layer& l = costs_.blocks[block];
    uses_[block] = use::keep;
    decide(block + 1, again, resident + l.bytes, offloaded);
    if (block + 1 < uses_.size()) {  // the last is kept all the same
      uses_[block] = use::offload;
      decide(block + 1, again, resident, offloaded + l.bytes);
    }
    uses_[block] = use::recompute;
    decide(block + 1, again + l.forward, resident + l.input, offloaded);
  }

  const microbatch_costs& costs_;
  const activation_limits& limits_;
  std::int64_t most_;
  activation_choice& best_;
  int microbatches_, in_flight_;
  std::vector<use> uses_;
  std::vector<std::size_t> by_price_, by_saving_{}, by_seconds_{};
  std::int64_t simulated_ = 0, visited_ = 0;
  double least_seconds_ = 0, writes_ = 0;
};

}  // namespace detail

HEDDLE_INLINE activation_choice choose_activations(std::span<const microbatch_costs> sizes,
                                                   const activation_limits& limits, std::int64_t most_simulated) {
  if (limits.samples < 1 || limits.stages < 1 || !(limits.bytes >= 0))
    throw config_error(
        "heddle: activations are chosen for a step of at least one sample, for at least one stage and for "
        "bytes that are not negative, got " +
        std::to_string(limits.samples) + ", " + std::to_string(limits.stages) + " and " + std::to_string(limits.bytes));
  for (const microbatch_costs& m : sizes) {
    if (m.blocks.empty() || m.blocks.size() != sizes.front().blocks.size())
      throw config_error(
          "heddle: activations are chosen for as many blocks with every size of microbatches, and at "
          "least one; got " +
          std::to_string(m.blocks.size()) + " with microbatches of " + std::to_string(m.samples) + " and " +
          std::to_string(sizes.front().blocks.size()) + " with those of " + std::to_string(sizes.front().samples));
  }
  activation_choice best;
  for (const microbatch_costs& m : sizes)  // refuses what is no number
    static_cast<void>(simulate_choice(m, limits, std::vector<sim::activation_use>(m.blocks.size())));
  for (const microbatch_costs& m : sizes) detail::activation_search(m, limits, most_simulated, best).run();
  return best;
}

HEDDLE_INLINE std::vector<activation_choice> activation_curve(std::span<const microbatch_costs> sizes,
                                                              activation_limits limits, int steps,
                                                              std::int64_t most_simulated) {
  std::vector<activation_choice> curve;
  for (double first_peak = 0;;) {
    activation_choice c = choose_activations(sizes, limits, most_simulated);
    if (!c.fits()) return curve;
    if (curve.empty()) first_peak = c.peak_bytes;
    // A search that was ended may have missed what the next one found in less memory.
    while (!curve.empty() && curve.back().step_seconds > c.step_seconds) curve.pop_back();
    curve.push_back(std::move(c));
    limits.bytes = curve.back().peak_bytes - first_peak / (std::max)(1, steps);
    if (!(limits.bytes >= 0) || !(first_peak > 0)) return curve;
  }
}

HEDDLE_INLINE std::string to_string(const activation_choice& choice) {
  if (!choice.fits()) return "no choice fits";
  std::string letters;
  for (const sim::activation_use u : choice.uses)
    letters += u == sim::activation_use::keep ? 'k' : u == sim::activation_use::recompute ? 'r' : 'o';
  return "microbatches of " + std::to_string(choice.samples) + ": " + letters + ", " +
         svg_number(choice.samples_per_second) + " samples/s, " + svg_number(choice.peak_bytes * 1e-9) +
         " GB at the peak" + (choice.proven ? "" : ", not proven the fastest");
}

HEDDLE_INLINE std::string activation_curve_svg(std::span<const activation_choice> curve, const std::string& title) {
  constexpr double left = 80, top = 56, width = 460, height = 280;
  double fastest = 0, most = 0;
  for (const activation_choice& c : curve) {
    fastest = (std::max)(fastest, c.samples_per_second);
    most = (std::max)(most, c.peak_bytes);
  }
  svg_drawing out;
  out.words(24, 34, title, 15, "#111111", "start", true);
  out.rect(left, top, 1, height, "#333333");
  out.rect(left, top + height, width, 1, "#333333");
  out.words(left + width / 2, top + height + 36, "samples per second", 12, "#333333", "middle");
  out.words(24, top - 6, "GB at the peak", 12, "#333333");
  for (int tick = 0; tick <= 4; ++tick) {
    out.words(left + width * tick / 4, top + height + 16, svg_number(fastest * tick / 4), 11, "#333333", "middle");
    out.words(left - 8, top + height * (1 - tick / 4.0) + 4, svg_number(most * 1e-9 * tick / 4), 11, "#333333", "end");
  }
  std::vector<int> sizes;
  for (const activation_choice& c : curve) {
    auto size = std::find(sizes.begin(), sizes.end(), c.samples);
    if (size == sizes.end()) size = sizes.insert(sizes.end(), c.samples);
    const double x = left + (fastest > 0 ? width * c.samples_per_second / fastest : 0);
    const double y = top + height * (most > 0 ? 1 - c.peak_bytes / most : 1);
    out.rect(x - 4, y - 4, 8, 8, rank_colour(static_cast<int>(size - sizes.begin())), 4);
  }
  double y = top + 12;
  for (std::size_t i = 0; i < sizes.size(); ++i, y += 20) {
    out.rect(left + width + 20, y - 8, 10, 10, rank_colour(static_cast<int>(i)), 4);
    out.words(left + width + 36, y, "microbatches of " + std::to_string(sizes[i]), 12, "#333333");
  }
  return out.text("", 20, "#ffffff");
}

}  // namespace heddle::inline v0::plan
