// heddle/sim/activation_offload.hpp: a step with offloaded activations in virtual time.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

/// A layer of the simulated step. Units: any two, one for all times and one for all bytes.
struct offloaded_layer {
  double forward = 0, backward = 0;
  double bytes = 0;  ///< of its activations, what it is computed again from among them
  double input = 0;  ///< of these, what stays where the others are computed again
};

/// What becomes of a layer's activations between its forward and its backward.
enum class activation_use : unsigned char { keep, recompute, offload };

/// A store that writes and reads at the same time, each one request after the other. Units: bytes per time.
struct offload_rates {
  double write = 0;
  double read = 0;
};

/// How a simulated step went. Units: those of the layers.
struct offload_outcome {
  double end = 0;        ///< of the last backward
  double stall = 0;      ///< time in which a backward waits for its activations
  double peak = 0;       ///< bytes of activations at the same time, those being written or read included
  double peak_kept = 0;  ///< the same if nothing is offloaded
  double written = 0;    ///< bytes
  double read = 0;       ///< bytes
  int stored = 0;        ///< layers
  int forwarded = 0;     ///< layers that were served from memory: their write had not ended
  int loaded = 0;        ///< layers that were read
  double again = 0;      ///< time in which layers are computed again
  double resident = 0;   ///< bytes that stay from the forward to the backward
  double saving() const noexcept { return peak_kept > 0 ? 1 - peak / peak_kept : 0; }
};

/// So many layers before the one whose backward begins.
struct ahead {
  std::size_t depth = 2;
  bool operator()(std::size_t running, std::size_t candidate, double /*queued*/) const noexcept {
    return running - candidate <= depth;
  }
};

/// Forward of all layers, then backward of all in reverse, with one use for each; the last is not offloaded, but kept.
/// A layer's activations exist from the end of its forward; its write begins when those before it have ended, and frees
/// them when it ends. When the backward of layer n begins, `reads_now(n, k, queued)` says of each next offloaded layer
/// k < n whether to bring it back now, where `queued` is the time that the reads under way still take; it stops at the
/// first that is not. A layer whose write has not ended is served from memory (forwarded). A layer that is not there
/// when its backward begins stalls it. A layer that is computed again takes its forward once more before its backward, and all of its bytes from
/// then on. The end of a backward frees its layer.
/// Errors: `config_error` for a rate that is not positive, for times and bytes that are negative or not finite, and for other than one use a
/// layer.
template <class ReadsNow = ahead>
offload_outcome simulate_activations(std::span<const offloaded_layer> layers, offload_rates rates,
                                     std::span<const activation_use> uses, ReadsNow reads_now = {}) {
  if (!(rates.write > 0) || !(rates.read > 0))
    throw config_error("heddle: a simulated store writes and reads at rates that are positive");
  constexpr double never = std::numeric_limits<double>::infinity();
  const auto is_good = [](double x) { return x >= 0 && x < never; };
  for (const offloaded_layer& l : layers)
    if (!is_good(l.forward) || !is_good(l.backward) || !is_good(l.bytes) || !is_good(l.input) || l.input > l.bytes)
      throw config_error(
          "heddle: times and bytes of a simulated layer are numbers that are not negative, and its input is one of its "
          "bytes");
  const std::size_t n = layers.size();
  if (uses.size() != n)
    throw config_error("heddle: " + std::to_string(n) +
                       " simulated layers have as many uses of their activations, got " + std::to_string(uses.size()));
  std::vector<std::size_t> away;  // layers that are offloaded
  for (std::size_t i = 0; i + 1 < n; ++i)
    if (uses[i] == activation_use::offload) away.push_back(i);

  offload_outcome o;
  std::vector<std::pair<double, double>> changes;  // time, bytes taken or given back
  std::vector<double> written(n, never), there(n, 0.0);
  double now = 0, writer = 0;
  for (std::size_t i = 0; i < n; ++i) {
    now += layers[i].forward;
    const bool again = uses[i] == activation_use::recompute, leaves = uses[i] == activation_use::offload && i + 1 < n;
    changes.emplace_back(now, again ? layers[i].input : layers[i].bytes);
    o.peak_kept += layers[i].bytes;
    if (!leaves) o.resident += again ? layers[i].input : layers[i].bytes;
    if (!leaves) continue;
    writer = (std::max)(writer, now) + layers[i].bytes / rates.write;
    written[i] = writer;
    ++o.stored;
    o.written += layers[i].bytes;
  }
  double reader = 0;
  std::size_t next = away.size();  // of the layers that are away, those before this one have not been asked for
  const auto bring_back = [&](std::size_t k) {
    if (written[k] > now) {  // stays until its backward has ended
      written[k] = never;
      ++o.forwarded;
      return;
    }
    changes.emplace_back(written[k], -layers[k].bytes);
    changes.emplace_back(now, layers[k].bytes);
    reader = (std::max)(reader, now) + layers[k].bytes / rates.read;
    there[k] = reader;
    ++o.loaded;
    o.read += layers[k].bytes;
  };
  for (std::size_t i = n; i-- > 0;) {
    while (next > 0 && away[next - 1] < i && reads_now(i, away[next - 1], (std::max)(0.0, reader - now)))
      bring_back(away[--next]);
    if (next > 0 && away[next - 1] == i) bring_back(away[--next]);
    if (there[i] > now) {
      o.stall += there[i] - now;
      now = there[i];
    }
    if (uses[i] == activation_use::recompute) {
      changes.emplace_back(now, layers[i].bytes - layers[i].input);
      now += layers[i].forward;
      o.again += layers[i].forward;
    }
    now += layers[i].backward;
    changes.emplace_back(now, -layers[i].bytes);
  }
  o.end = now;
  // What is given back at a time makes room for what is taken at the same time.
  std::sort(changes.begin(), changes.end());
  double held = 0;
  for (const auto& [at, bytes] : changes) {
    held += bytes;
    o.peak = (std::max)(o.peak, held);
  }
  return o;
}

/// The same where layers before `first_kept` are offloaded, and it and all later ones kept.
template <class ReadsNow = ahead>
offload_outcome simulate_offload(std::span<const offloaded_layer> layers, offload_rates rates, std::size_t first_kept,
                                 ReadsNow reads_now = {}) {
  std::vector<activation_use> uses(layers.size(), activation_use::keep);
  std::fill_n(uses.begin(), (std::min)(first_kept, layers.size()), activation_use::offload);
  return simulate_activations(layers, rates, uses, reads_now);
}

}  // namespace heddle::inline v0::sim
