// heddle/collective/measured_decisions.hpp: chooses algorithms by costs measured on a network.
#pragma once

#include <heddle/collective/decision.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/rounds.hpp>
#include <heddle/core/type_list.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// From so many bytes on (up to the next decision of the same kind) this algorithm is best.
struct size_decision {
  comm_operation what = comm_operation::all_reduce;
  int ranks = 1;
  bool commutative = true;  ///< of operators for which that holds; without one: true
  std::int64_t from_bytes = 0;
  algorithm_name best = algorithm_name::built_in;
  friend constexpr bool operator==(const size_decision&, const size_decision&) = default;
};

/// Which algorithm is best from which size on, measured or computed for a network. What it does not know is decided by
/// thresholds: where some were given, those; else the usual ones.
class measured_decisions {
 public:
  measured_decisions() = default;
  constexpr explicit measured_decisions(const decision_table& otherwise) : otherwise_(otherwise), own_table_(true) {}

  /// In any order. A decision of the same kind from the same size on takes the place of the one before.
  constexpr void add(const size_decision& d) {
    auto at = decisions_.begin();
    while (at != decisions_.end() && (kind(*at) != kind(d) || at->from_bytes < d.from_bytes)) ++at;
    if (at != decisions_.end() && at->from_bytes == d.from_bytes)
      *at = d;
    else
      decisions_.insert(at, d);
  }
  constexpr std::size_t size() const noexcept { return decisions_.size(); }
  constexpr const std::vector<size_decision>& all() const noexcept { return decisions_; }
  constexpr const decision_table& otherwise() const noexcept { return otherwise_; }

  /// Whether more than the usual thresholds speaks for the choice: a decision for this collective, number of ranks and
  /// size, or thresholds that were given.
  constexpr bool knows(const collective_question& q) const { return own_table_ || find(q) != nullptr; }

  /// The algorithm for a collective; for operators that are not associative or not elementwise, and for kinds and sizes
  /// nothing is known of, the thresholds' one.
  constexpr algorithm_name choose(const collective_question& q) const {
    const size_decision* found = find(q);
    return found != nullptr ? found->best : heddle::choose(q, otherwise_);
  }

 private:
  constexpr const size_decision* find(const collective_question& q) const {
    const size_decision* found = nullptr;
    if (q.associative && q.elementwise) {
      const comm_operation what = without_counts(q.what);
      const bool folds = what == comm_operation::all_reduce || what == comm_operation::reduce ||
                         what == comm_operation::reduce_scatter;
      const size_decision asked{what, q.ranks, q.commutative || !folds, q.bytes, {}};
      for (const size_decision& d : decisions_)
        if (kind(d) == kind(asked) && d.from_bytes <= q.bytes) found = &d;
    }
    return found;
  }
  static constexpr std::int64_t kind(const size_decision& d) {
    return (std::int64_t{d.ranks} * 64 + static_cast<int>(without_counts(d.what))) * 2 + (d.commutative ? 1 : 0);
  }
  // Calls with a count per rank are decided as those without.
  static constexpr comm_operation without_counts(comm_operation what) noexcept {
    switch (what) {
      case comm_operation::reduce_scatter_v:
        return comm_operation::reduce_scatter;
      case comm_operation::all_gather_v:
        return comm_operation::all_gather;
      case comm_operation::all_to_all_v:
        return comm_operation::all_to_all;
      case comm_operation::gather_v:
        return comm_operation::gather;
      case comm_operation::scatter_v:
        return comm_operation::scatter;
      default:
        return what;
    }
  }

  std::vector<size_decision> decisions_;  // of each kind in ascending order of sizes
  decision_table otherwise_;
  bool own_table_ = false;
};

/// An algorithm and its rounds.
struct algorithm_rounds {
  algorithm_name name = algorithm_name::built_in;
  round_table rounds;
};

namespace detail {

template <class A, comm_operation What>
void add_candidate(std::vector<algorithm_rounds>& found, const collective_question& q) {
  constexpr algorithm_name name = algorithm_named(A::name);
  static_assert(name != algorithm_name::built_in, "heddle: decisions do not know this algorithm; add its name to them");
  if (!A::template offers<What>(q.ranks)) return;
  constexpr fold_order order = A::template order<What>;
  if (!q.associative && order != fold_order::none && order != fold_order::dyadic) return;
  if (!q.commutative && order == fold_order::any) return;
  round_table rounds = A::template rounds<What>(q.ranks, 0);
  if (!q.elementwise && order != fold_order::none && rounds.view().items() > 1) return;
  found.push_back({name, static_cast<round_table&&>(rounds)});
}

template <class A, comm_operation... Whats>
void add_candidates(std::vector<algorithm_rounds>& found, const collective_question& q) {
  const auto add = [&]<comm_operation What>() {
    constexpr bool ever = [] {  // few algorithms offer many collectives: the others' rounds are not even compiled
      for (int p = 1; p <= 64; ++p)
        if (A::template offers<What>(p)) return true;
      return false;
    }();
    if constexpr (ever)
      if (q.what == What) add_candidate<A, What>(found, q);
  };
  (add.template operator()<Whats>(), ...);
}

}  // namespace detail

/// The rounds of all algorithms among `As` that could carry out the collective.
///
///     const auto ways = hd::algorithms_for(hd::known_algorithms{}, question);
template <class... As>
std::vector<algorithm_rounds> algorithms_for(type_list<As...>, const collective_question& q) {
  using enum comm_operation;
  std::vector<algorithm_rounds> found;
  (detail::add_candidates<As, broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all, gather, scatter,
                          scan, exclusive_scan>(found, q),
   ...);
  return found;
}

/// An algorithm and the seconds it takes by a model.
struct algorithm_cost {
  algorithm_name name = algorithm_name::built_in;
  double seconds = 0;
};

/// Says how many seconds an algorithm takes for so many bytes: measured, by a model, simulated on a topology.
template <class Cost>
concept algorithm_cost_function = requires(const Cost& cost, const algorithm_rounds& way, std::int64_t bytes) {
  { cost(way, bytes) } -> std::convertible_to<double>;
};

/// The one of these that takes the least seconds; of equals the first, and none whose seconds are not a number.
/// `built_in` if there are none.
template <algorithm_cost_function Cost>
algorithm_cost cheapest(const std::vector<algorithm_rounds>& ways, const Cost& cost, std::int64_t bytes) {
  algorithm_cost best;
  for (const algorithm_rounds& way : ways) {
    const double takes = cost(way, bytes);
    if (takes != takes) continue;
    if (best.name == algorithm_name::built_in || takes < best.seconds * (1 - 1e-9)) best = {way.name, takes};
  }
  return best;
}

namespace detail {

// Hockney's model as a cost function.
struct hockney_cost {
  hockney net;
  double operator()(const algorithm_rounds& way, std::int64_t bytes) const {
    return seconds(way.rounds, net, bytes, 1);
  }
};

}  // namespace detail

/// The same by Hockney's model.
inline algorithm_cost cheapest(const std::vector<algorithm_rounds>& ways, const hockney& net, std::int64_t bytes) {
  return cheapest(ways, detail::hockney_cost{net}, bytes);
}

/// Of all algorithms of a list that could carry out the collective.
template <class... As, class Net>
algorithm_cost cheapest(type_list<As...> algorithms, const collective_question& q, const Net& net) {
  return cheapest(algorithms_for(algorithms, q), net, q.bytes);
}

namespace detail {

// Of the sizes above `low` and up to `high`, from which on another algorithm than at `low` is cheapest, within 3 %.
template <class Cost, class Decide>
void find_changes(const std::vector<algorithm_rounds>& ways, const Cost& cost, std::int64_t low, algorithm_name at_low,
                  std::int64_t high, algorithm_name at_high, const Decide& decide) {
  if (at_low == at_high) return;
  if (high - low <= 1 + low / 32) return decide(high, at_high);
  const std::int64_t middle = low + (high - low) / 2;
  const algorithm_name between = cheapest(ways, cost, middle).name;
  find_changes(ways, cost, low, at_low, middle, between, decide);
  find_changes(ways, cost, middle, between, high, at_high, decide);
}

}  // namespace detail

/// Adds decisions for one collective on so many ranks: at each power of two of up to `most_bytes` bytes, and between
/// these, the algorithm that costs least. `commutative`: of the operators they are for.
template <class... As, algorithm_cost_function Cost>
void add_decisions(measured_decisions& to, type_list<As...> algorithms, comm_operation what, int ranks,
                   bool commutative, const Cost& cost, std::int64_t most_bytes = std::int64_t{1} << 28) {
  const auto ways = algorithms_for(algorithms, {what, ranks, 0, commutative, true, true, {}});
  if (ways.empty()) return;
  const auto decide = [&](std::int64_t from, algorithm_name best) { to.add({what, ranks, commutative, from, best}); };
  std::int64_t low = 0;
  algorithm_name at_low = cheapest(ways, cost, 0).name;
  decide(0, at_low);
  for (std::int64_t high = 1; high <= most_bytes; high *= 2) {
    const algorithm_name at_high = cheapest(ways, cost, high).name;
    detail::find_changes(ways, cost, low, at_low, high, at_high, decide);
    low = high;
    at_low = at_high;
  }
}

/// Adds decisions by Hockney's model for every collective between whose algorithms there is a choice.
template <class... As>
void add_decisions(measured_decisions& to, type_list<As...> algorithms, int ranks, const hockney& net,
                   std::int64_t most_bytes = std::int64_t{1} << 28) {
  using enum comm_operation;
  for (const comm_operation what : {broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all})
    for (const bool commutative : {true, false}) {
      const bool folds = what == all_reduce || what == reduce || what == reduce_scatter;
      if (!folds && !commutative) continue;  // there is no operator
      add_decisions(to, algorithms, what, ranks, commutative, detail::hockney_cost{net}, most_bytes);
    }
}

}  // namespace heddle::inline v0
