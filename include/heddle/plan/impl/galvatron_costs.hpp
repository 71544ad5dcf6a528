// heddle/plan/impl/galvatron_costs.hpp: bodies of heddle/plan/galvatron_costs.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/galvatron_costs.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

// The value of a degree, or an error that says which is missing.
HEDDLE_INLINE double of_degree(const std::vector<double>& by_degree, int degree, const char* what) {
  const auto at = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(degree))) - 1;
  if (at >= by_degree.size())
    throw config_error("heddle: the profile has no " + std::string(what) + " for a degree of " +
                       std::to_string(degree));
  return by_degree[at];
}
template <class Key, class Value>
const Value& measured(const std::map<Key, Value>& of, const std::type_identity_t<Key>& key, int ranks,
                      const char* what) {
  const auto found = of.find(key);
  if (found == of.end())
    throw config_error("heddle: the profile has no " + std::string(what) + " of " + std::to_string(ranks) + " ranks");
  return found->second;
}

HEDDLE_INLINE void require_galvatron_space(const galvatron_space& space) {
  if (space.devices < 1 || !std::has_single_bit(static_cast<unsigned>(space.devices)) || space.layers < 1 ||
      space.batch < 1 || space.microbatches < 1 || space.batch % space.microbatches != 0 || space.budget_mib < 0 ||
      (space.default_zero != 0 && space.default_zero != 2))
    throw config_error("heddle: Galvatron searches a power of two of devices (got " + std::to_string(space.devices) +
                       "), at least 1 layer (" + std::to_string(space.layers) + "), a batch (" +
                       std::to_string(space.batch) + ") that its microbatches (" + std::to_string(space.microbatches) +
                       ") divide, and ZeRO-0 or 2 beside 3");
}

}  // namespace detail

HEDDLE_INLINE galvatron_costs::galvatron_costs(const galvatron_profile& profile, int batch, int microbatches)
    : profile_(profile), batch_(batch), microbatches_(microbatches) {
  if (batch < 1 || microbatches < 1 || batch % microbatches != 0)
    throw config_error("heddle: a batch of " + std::to_string(batch) + " is not divided by " +
                       std::to_string(microbatches) + " microbatches");
}

HEDDLE_INLINE double galvatron_costs::all_reduce_ms(const galvatron_strategy& s) const {
  if (s.sharded() == 1) return 0;
  // All ranks together are neighbours in any case.
  const auto strided = profile_.all_reduce.find({s.sharded(), false});
  if (s.tensor > 1 && strided != profile_.all_reduce.end()) return strided->second;
  return detail::measured(profile_.all_reduce, {s.sharded(), true}, s.sharded(), "all-reduce");
}

HEDDLE_INLINE double galvatron_costs::layer_seconds(const galvatron_strategy& s, bool synchronised) const {
  const double n = samples(s), forward = profile_.forward(n / s.width());
  const double backward = forward * (profile_.backward + (s.recompute ? 1 : 0));
  const double gradients = 2.0 * (s.sharded() - 1) * (profile_.parameters / s.tensor / s.sharded()) *
                           (profile_.half_precision ? 0.5 : 1.0);  // MiB
  double ms = forward;
  if (s.data > 1 && synchronised)
    ms += overlapped(backward, gradients * all_reduce_ms(s), profile_.slowdown);
  else
    ms += backward;
  if (s.width() > 1) {
    const bool tensor = s.tensor > 1;
    const double calls = (tensor ? 6 : 4) * (s.recompute ? 1.5 : 1.0);
    const auto& times = tensor ? profile_.all_gather : profile_.all_to_all;
    ms += calls * detail::measured(times, s.width(), s.width(), tensor ? "all-gather" : "all-to-all")(message_mib(n));
  }
  if (s.zero == 3) ms += gradients / 2 * all_reduce_ms(s);
  // Of all layers together: the source divides by their number what it does not multiply by it.
  if (s.pipeline > 1)
    ms += s.pipeline * 2 * message_mib(n) * detail::measured(profile_.p2p, s.pipeline, s.pipeline, "message") /
          profile_.layers;
  return ms * 0.001;
}

HEDDLE_INLINE double galvatron_costs::states_ratio(const galvatron_strategy& s) const {
  if (s.zero == 0) return 1;
  const bool half = profile_.half_precision;
  const double share = 1.0 / s.sharded() + 0.003;
  const auto mixed = [&](double part) { return part * share + (1 - part); };
  if (microbatches_ == 1) return s.zero == 3 ? share : mixed(half ? 7.0 / 8 : 3.0 / 4);
  if (profile_.asynchronous_reduction)
    return s.zero == 3 ? mixed(half ? 7.0 / 8 : 3.0 / 4) : mixed(half ? 6.0 / 8 : 2.0 / 4);
  if (s.zero == 3) return share * 5 / 4;
  return half ? mixed(7.0 / 8) * 5 / 4 : mixed(3.0 / 4);
}

HEDDLE_INLINE std::int64_t galvatron_costs::layer_mib(const galvatron_strategy& s, int stage) const {
  const double states = 4 * profile_.parameters / s.tensor * states_ratio(s);
  const double each =
      s.recompute ? profile_.recomputed / s.width() : detail::of_degree(profile_.activations, s.width(), "activations");
  return static_cast<std::int64_t>(std::ceil(states + each * in_flight(s, stage) * samples(s)));
}

HEDDLE_INLINE double galvatron_costs::ends_seconds(const galvatron_strategy& s, int stage, bool synchronised) const {
  if (stage != 0 && stage != s.pipeline - 1) return 0;
  const double n = samples(s);
  const double forward = profile_.ends_forward(n / s.width()) / (s.pipeline == 1 ? 1 : 2);
  const double all = detail::of_degree(ends_of(s, stage).states, s.tensor, "states of the ends") / 4 *
                     (profile_.half_precision ? 0.5 : 1.0) * all_reduce_ms(s) * (s.sharded() - 1) / s.sharded();
  // Only computation is slower meanwhile.
  const auto beside = [&](double computation, double communication) {
    const double slow = computation * profile_.slowdown;
    return slow > communication ? communication + (slow - communication) / profile_.slowdown : communication;
  };
  const double before = s.zero == 3 ? 0.5 : 0.0;
  double ms =
      beside(forward, all * before) + beside(forward * profile_.backward, all * (before + (synchronised ? 0.5 : 0.0)));
  if (s.tensor > 1)
    ms += (s.pipeline == 1 ? 2 : 1) *
          detail::measured(profile_.all_gather, s.tensor, s.tensor, "all-gather")(message_mib(n));
  return ms * 0.001;
}

HEDDLE_INLINE std::int64_t galvatron_costs::ends_mib(const galvatron_strategy& s, int stage) const {
  if (stage != 0 && stage != s.pipeline - 1) return static_cast<std::int64_t>(std::ceil(profile_.context));
  const auto& ends = ends_of(s, stage);
  return static_cast<std::int64_t>(std::ceil(
      detail::of_degree(ends.states, s.tensor, "states of the ends") * states_ratio(s) +
      detail::of_degree(ends.activations, s.width(), "activations of the ends") * in_flight(s, stage) * samples(s) +
      profile_.context));
}

HEDDLE_INLINE double galvatron_costs::change_seconds(const galvatron_strategy& from,
                                                     const galvatron_strategy& to) const {
  if (from == to) return 0;
  if (from.width() != to.width()) {
    const galvatron_strategy& wider = from.width() > to.width() ? from : to;
    const double n = static_cast<double>(batch_) / microbatches_ / wider.data, g = wider.width();
    return (g - 1) / g * n * profile_.sequence * profile_.hidden * element_bytes() * 1e-7 *
           detail::measured(profile_.all_reduce, {wider.width(), true}, wider.width(), "all-reduce");
  }
  // So small that they only order layers that cost the same: those with more sharding and recomputation first.
  const bool same_ranks = from.tensor == to.tensor && from.ulysses == to.ulysses && from.data == to.data;
  if (!same_ranks)
    return from.zero == to.zero && from.recompute == to.recompute && from.data == to.data && to.ulysses > 1 ? 1e-10 : 0;
  if (to.zero == 3 && to.recompute) return 3e-9;
  if (from.zero == to.zero) return to.recompute ? 2e-9 : 0;
  if (from.recompute == to.recompute) return to.zero == 3 ? 1e-9 : 0;
  return from.zero == 3 && to.recompute ? 1e-9 : 0;
}

HEDDLE_INLINE double galvatron_costs::buffer_mib(const galvatron_strategy& s) const {
  return message_mib(static_cast<double>(batch_) / microbatches_ / s.data);
}

HEDDLE_INLINE double galvatron_pipeline_seconds(const std::vector<double>& stages,
                                                const std::vector<double>& synchronised, int microbatches) {
  const int depth = static_cast<int>(std::ssize(stages));
  double sum = 0;
  for (const double s : stages) sum += s;
  const double behind = sum - stages.front();
  const double ramp = (std::max)((std::min)(depth - 1, microbatches - 1) * stages.front(), behind);
  const double seconds = (std::max)(sum + stages.back() * (microbatches - 1),
                                    ramp + stages.front() * (std::max)(0, microbatches + 1 - depth));
  double exposed = 0, before = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    before += stages[s];
    exposed = (std::max)(exposed, synchronised[s] - before);
  }
  return seconds + exposed;
}

HEDDLE_INLINE std::vector<galvatron_strategy> galvatron_strategies(const galvatron_space& space) {
  detail::require_galvatron_space(space);
  std::vector<galvatron_strategy> all;
  for (int depth = 1; depth <= space.devices; depth *= 2)
    for (int width = 1; depth * width <= space.devices; width *= 2)
      for (const bool ulysses : {false, true}) {
        if (width == 1 && ulysses) continue;
        const int data = space.devices / depth / width;
        for (const int zero : data == 1 ? std::vector<int>{0} : std::vector<int>{space.default_zero, 3})
          for (const bool recompute : {false, true})
            all.push_back({depth, ulysses ? 1 : width, ulysses ? width : 1, data, zero, recompute});
      }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace heddle::inline v0::plan
