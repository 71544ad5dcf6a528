// heddle/plan/impl/fabric_step.hpp: bodies of heddle/plan/fabric_step.hpp.
#pragma once

#include <heddle/collective/round_load.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/fabric_step.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

HEDDLE_INLINE void require_fabric(const topology& start, const circuit_switch& fabric, int ranks) {
  require_switch(fabric);
  if (start.ranks() != ranks)
    throw config_error(
        text_of({"heddle: fabric_step: a mesh of ", ranks, " ranks on a fabric of ", start.ranks(), " ranks"}));
}

HEDDLE_INLINE std::vector<fabric_way> ways_of_traffic(const rank_traffic& traffic,
                                                      const std::vector<std::vector<int>>& groups, int ranks) {
  std::vector<fabric_way> ways;
  const auto add = [&](const char* name, const std::vector<matching>& rounds) {
    round_table table;
    table.what = comm_operation::all_to_all;
    table.ranks = traffic.ranks();
    for (std::size_t k = 0; k < rounds.size(); ++k)
      for (const circuit_message& m : rounds[k]) {
        table.transfers.push_back(
            {static_cast<int>(k), m.from, m.to, arrival::store, static_cast<int>(table.items.size()), 1});
        table.items.push_back(static_cast<int>(table.items.size()));
        table.sizes.push_back(m.bytes);
      }
    table.blocks = static_cast<int>(table.items.size());
    ways.push_back({name, round_groups(table, groups, ranks), 0});
  };
  matching all;
  for (int from = 0; from < traffic.ranks(); ++from)
    for (int to = 0; to < traffic.ranks(); ++to)
      if (traffic(from, to) > 0) all.push_back({from, to, traffic(from, to)});
  add("all at once", all.empty() ? std::vector<matching>{} : std::vector<matching>{all});
  add("fewest matchings", matchings(traffic));
  add("shifts", shifts(traffic));
  return ways;
}

// The states of a fabric in a step, and what each round of each way takes in each.
class fabric_table {
 public:
  fabric_table(const fabric_calls& step, const topology& start, const circuit_switch& fabric) {
    std::vector<topology> states{start};
    names_.push_back("the start");
    for (const fabric_kind& kind : step.kinds)
      for (const fabric_way& way : kind.ways) {
        const round_view rounds = way.rounds;
        for (int k = 0; k < rounds.rounds(); ++k) {
          if (ports_needed(rounds, k) > fabric.ports) continue;
          topology matched = circuits_of(rounds, k, fabric, start.ranks());
          if (std::find(states.begin(), states.end(), matched) != states.end()) continue;
          states.push_back(std::move(matched));
          names_.push_back("circuits of round " + std::to_string(k) + " of " + way.name + " (" + kind.name + ")");
        }
      }
    for (const fabric_kind& kind : step.kinds) {
      seconds_.emplace_back();
      for (const fabric_way& way : kind.ways) {
        const auto rounds = static_cast<std::size_t>(round_view(way.rounds).rounds());
        auto& table = seconds_.back().emplace_back(
            rounds, std::vector<double>(states.size(), std::numeric_limits<double>::infinity()));
        for (std::size_t s = 0; s < states.size(); ++s) {
          const load_map loads(way.rounds, states[s], way.bytes, 1, routing::split);
          for (std::size_t k = 0; k < rounds; ++k)
            if (loads[static_cast<int>(k)].possible) table[k][s] = loads[static_cast<int>(k)].seconds();
        }
      }
    }
  }
  std::size_t states() const { return names_.size(); }
  std::vector<std::string> take_names() { return std::move(names_); }
  const std::vector<std::vector<double>>& way(std::size_t kind, std::size_t w) const { return seconds_[kind][w]; }
  std::size_t ways(std::size_t kind) const { return seconds_[kind].size(); }

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<std::vector<std::vector<double>>>> seconds_;  // kind, way, round, state
};

// One call from `now`, the least seconds in each state: what they are after it, and by which ways.
struct fabric_search {
  const fabric_table& table;
  double switching;
  bool hide;

  struct result {
    std::vector<double> after;
    std::vector<std::size_t> way;                             // per state
    std::vector<std::vector<std::vector<std::size_t>>> from;  // way, round, state: the state before
  };
  double first_delay(const fabric_call& call) const {
    return hide ? (std::max)(0.0, switching - call.compute) : switching;
  }
  result run(const fabric_call& call, const std::vector<double>& now) const {
    const std::size_t states = now.size();
    result out{
        std::vector<double>(states, std::numeric_limits<double>::infinity()), std::vector<std::size_t>(states, 0), {}};
    for (std::size_t w = 0; w < table.ways(call.kind); ++w) {
      const auto& rounds = table.way(call.kind, w);
      std::vector<double> current = now, next(states);
      for (double& c : current) c += call.compute;
      auto& from = out.from.emplace_back(rounds.size(), std::vector<std::size_t>(states));
      for (std::size_t k = 0; k < rounds.size(); ++k) {
        const double delay = k == 0 ? first_delay(call) : switching;
        const auto least = static_cast<std::size_t>(std::min_element(current.begin(), current.end()) - current.begin());
        for (std::size_t s = 0; s < states; ++s) {
          const bool moves = current[least] + delay < current[s];
          from[k][s] = moves ? least : s;
          next[s] = (moves ? current[least] + delay : current[s]) + rounds[k][s];
        }
        std::swap(current, next);
      }
      for (std::size_t s = 0; s < states; ++s)
        if (current[s] < out.after[s]) {
          out.after[s] = current[s];
          out.way[s] = w;
        }
    }
    return out;
  }
  // What a call takes in one state; the best way.
  double within(const fabric_call& call, std::size_t state) const {
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t w = 0; w < table.ways(call.kind); ++w) {
      double sum = 0;
      for (const auto& round : table.way(call.kind, w)) sum += round[state];
      best = (std::min)(best, sum);
    }
    return best;
  }
};

HEDDLE_INLINE fabric_plan planned(const fabric_calls& step, const topology& start, const circuit_switch& fabric,
                                  const step_options& options) {
  constexpr double never = std::numeric_limits<double>::infinity();
  fabric_table table(step, start, fabric);
  const fabric_search search{table, fabric.reconfiguration_seconds, options.hide_behind_computation};
  const std::size_t states = table.states();
  fabric_plan plan;

  plan.single = never;
  for (std::size_t s = 0; s < states; ++s) {
    double sum = step.compute;
    if (s > 0) sum += step.calls.empty() ? never : search.first_delay(step.calls[0]);
    for (const fabric_call& call : step.calls) sum += call.compute + search.within(call, s);
    if (s == 0) plan.fixed = sum;
    plan.single = (std::min)(plan.single, sum);
  }

  std::vector<double> now(states, never), alone(states, never);
  now[0] = alone[0] = 0;
  std::vector<fabric_search::result> found;
  for (const fabric_call& call : step.calls) {
    found.push_back(search.run(call, now));
    now = found.back().after;
    const std::vector<double> after = search.run(call, alone).after;
    const auto best = std::min_element(after.begin(), after.end());
    std::fill(alone.begin(), alone.end(), never);
    alone[static_cast<std::size_t>(best - after.begin())] = *best;
    if (*std::min_element(now.begin(), now.end()) == never)
      throw config_error("heddle: fabric_step: no state of the fabric carries each round of " +
                         step.kinds[call.kind].name);
  }
  plan.call_by_call = *std::min_element(alone.begin(), alone.end()) + step.compute;
  auto at = static_cast<std::size_t>(std::min_element(now.begin(), now.end()) - now.begin());
  plan.seconds = now[at] + step.compute;

  plan.calls.resize(step.calls.size());
  for (std::size_t c = step.calls.size(); c-- > 0;) {
    const fabric_call& call = step.calls[c];
    planned_call& made = plan.calls[c];
    const std::size_t w = found[c].way[at];
    const auto& rounds = table.way(call.kind, w);
    made.name = step.kinds[call.kind].name;
    made.way = step.kinds[call.kind].ways[w].name;
    made.states.assign(rounds.size(), 0);
    for (std::size_t k = rounds.size(); k-- > 0;) {
      made.states[k] = static_cast<int>(at);
      made.seconds += rounds[k][at];
      const std::size_t before = found[c].from[w][k][at];
      if (before != at) {
        const double paid = k == 0 ? search.first_delay(call) : search.switching;
        made.seconds += paid;
        made.hidden += search.switching - paid;
        ++made.switches;
      }
      at = before;
    }
    plan.switches += made.switches;
    plan.hidden += made.hidden;
  }
  plan.states = table.take_names();
  return plan;
}

}  // namespace detail

HEDDLE_INLINE std::string to_string(const fabric_plan& plan) {
  using heddle::rounded_text;
  const auto ms = [](double seconds) { return rounded_text(seconds * 1e3, 3) + " ms"; };
  const auto line = [&](const char* name, double seconds) {
    return std::string(name) + ms(seconds) + ", " + rounded_text(seconds / plan.seconds, 2) + " of the plan's\n";
  };
  std::string text = "planned together      " + ms(plan.seconds) + ", " + std::to_string(plan.switches) +
                     " switches, " + ms(plan.hidden) + " of switching hidden\n" +
                     line("first topology        ", plan.fixed) + line("best single topology  ", plan.single) +
                     line("call by call          ", plan.call_by_call);
  for (std::size_t c = 0; c < plan.calls.size();) {
    const planned_call& call = plan.calls[c];
    std::size_t end = c + 1;
    while (end < plan.calls.size() && plan.calls[end].name == call.name && plan.calls[end].way == call.way &&
           plan.calls[end].states == call.states && plan.calls[end].switches == call.switches)
      ++end;
    text += std::to_string(end - c) + " x " + call.name + ": " + call.way + ", " + ms(call.seconds) + ", " +
            std::to_string(call.switches) + " switches; states";
    for (const int s : call.states) text += " " + std::to_string(s);
    text += "\n";
    c = end;
  }
  for (std::size_t s = 0; s < plan.states.size(); ++s)
    text += "state " + std::to_string(s) + ": " + plan.states[s] + "\n";
  return text;
}

}  // namespace heddle::inline v0::plan
