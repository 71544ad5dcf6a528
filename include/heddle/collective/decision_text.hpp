// heddle/collective/decision_text.hpp: explains in text which algorithm a collective takes.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/collective/decision.hpp>
#include <heddle/collective/measured_decisions.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// What each of these takes for so many bytes, cheapest first; of equals the first of `ways` first.
template <algorithm_cost_function Cost>
std::vector<algorithm_cost> costs_of(const std::vector<algorithm_rounds>& ways, const Cost& cost, std::int64_t bytes) {
  std::vector<algorithm_cost> costs;
  for (const algorithm_rounds& way : ways) {
    const algorithm_cost one{way.name, cost(way, bytes)};
    std::size_t at = costs.size();
    while (at > 0 && one.seconds < costs[at - 1].seconds) --at;
    costs.insert(costs.begin() + static_cast<std::ptrdiff_t>(at), one);
  }
  return costs;
}
/// The same by Hockney's model.
inline std::vector<algorithm_cost> costs_of(const std::vector<algorithm_rounds>& ways, const hockney& net,
                                            std::int64_t bytes) {
  return costs_of(ways, detail::hockney_cost{net}, bytes);
}

/// A line for the choice, then one per algorithm, cheapest first. `costs` as `costs_of` gives them.
///
///     all_reduce of 1048576 bytes on 12 ranks: pat, 1.00 times the least
///       pat                               256.3 us  <
///       swing                             256.3 us
///       ...
HEDDLE_INLINE std::string explain_choice(const collective_question& q, algorithm_name chosen,
                                         std::span<const algorithm_cost> costs);

/// What the thresholds choose, beside all algorithms of a list that could carry out the collective, by Hockney's model
/// (measured by `measure_links`, say).
///
///     std::puts(hd::explain_choice(hd::known_algorithms{}, question, net).c_str());
template <class... As>
std::string explain_choice(type_list<As...> algorithms, const collective_question& q, const hockney& net) {
  return explain_choice(q, choose(q), costs_of(algorithms_for(algorithms, q), net, q.bytes));
}
/// What measured decisions choose.
template <class... As>
std::string explain_choice(type_list<As...> algorithms, const collective_question& q, const hockney& net,
                           const measured_decisions& decisions) {
  return explain_choice(q, decisions.choose(q), costs_of(algorithms_for(algorithms, q), net, q.bytes));
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/collective/impl/decision_text.hpp>
#endif
