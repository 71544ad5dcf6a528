// heddle/layout/impl/choose.hpp: bodies of heddle/layout/choose.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/choose.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// What is left of a graph while variables are eliminated.
class choice_elimination {
 public:
  explicit choice_elimination(const choice_graph& graph)
      : states_(graph.states), of_(graph.states.size()), near_(graph.states.size()), sizes_(graph.states.size(), 0) {
    for (const choice_factor& f : graph.factors) add(f);
    for (std::size_t v = 0; v < states_.size(); ++v) look(static_cast<int>(v));
  }

  choice_states run(std::size_t most) {
    choice_states out;
    std::vector<int> left(states_.size());
    for (std::size_t v = 0; v < left.size(); ++v) left[v] = static_cast<int>(v);
    while (!left.empty()) {
      std::size_t pick = 0;
      for (std::size_t i = 1; i < left.size(); ++i)
        if (size(left[i]) < size(left[pick])) pick = i;
      const bool too_large = size(left[pick]) > static_cast<double>(most);
      if (too_large) {
        out.proven = false;
        pick = 0;
        for (std::size_t i = 1; i < left.size(); ++i)
          if (neighbours(left[i]) > neighbours(left[pick])) pick = i;
      }
      const int v = left[pick];
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(pick));
      const std::size_t entries = too_large ? fix(v) : eliminate(v);
      out.largest = (std::max)(out.largest, entries);
    }
    out.cost = constant_;
    out.states.assign(states_.size(), 0);
    for (std::size_t k = steps_.size(); k-- > 0;) {
      std::size_t at = 0;
      for (const int u : steps_[k].variables)
        at = at * count(u) + static_cast<std::size_t>(out.states[static_cast<std::size_t>(u)]);
      out.states[static_cast<std::size_t>(steps_[k].variable)] = steps_[k].best[at];
    }
    return out;
  }

 private:
  struct step {
    int variable;
    std::vector<int> variables;
    std::vector<int> best;
  };
  std::size_t count(int v) const { return static_cast<std::size_t>(states_[static_cast<std::size_t>(v)]); }
  double size(int v) const { return sizes_[static_cast<std::size_t>(v)]; }
  std::size_t neighbours(int v) const { return near_[static_cast<std::size_t>(v)].size(); }

  void add(choice_factor f) {
    if (f.variables.empty()) {
      constant_ += f.costs->front();
      return;
    }
    for (const int v : f.variables) of_[static_cast<std::size_t>(v)].push_back(live_.size());
    live_.push_back(std::move(f));
  }
  void look(int v) {
    auto& near = near_[static_cast<std::size_t>(v)];
    near.clear();
    for (const std::size_t f : of_[static_cast<std::size_t>(v)])
      for (const int u : live_[f].variables)
        if (u != v && std::find(near.begin(), near.end(), u) == near.end()) near.push_back(u);
    double entries = static_cast<double>(count(v));
    for (const int u : near) entries *= static_cast<double>(count(u));
    sizes_[static_cast<std::size_t>(v)] = entries;
  }
  std::vector<choice_factor> take(int v) {
    std::vector<choice_factor> mine;
    const std::vector<std::size_t> numbers = std::move(of_[static_cast<std::size_t>(v)]);
    of_[static_cast<std::size_t>(v)].clear();
    for (const std::size_t f : numbers) {
      for (const int u : live_[f].variables)
        if (u != v) {
          auto& list = of_[static_cast<std::size_t>(u)];
          list.erase(std::find(list.begin(), list.end(), f));
        }
      mine.push_back(std::move(live_[f]));
      live_[f].variables.clear();
    }
    return mine;
  }

  std::size_t eliminate(int v) {
    const std::vector<int> vars = near_[static_cast<std::size_t>(v)];
    const std::vector<choice_factor> mine = take(v);
    std::size_t entries = 1;
    for (const int u : vars) entries *= count(u);
    step s{v, vars, std::vector<int>(entries, 0)};
    std::vector<double> made(entries, std::numeric_limits<double>::infinity());
    std::vector<std::vector<std::size_t>> stride(mine.size(), std::vector<std::size_t>(vars.size() + 1, 0));
    for (std::size_t f = 0; f < mine.size(); ++f) {
      std::size_t width = 1;
      for (std::size_t i = mine[f].variables.size(); i-- > 0;) {
        const int u = mine[f].variables[i];
        stride[f][static_cast<std::size_t>(std::find(vars.begin(), vars.end(), u) - vars.begin())] =
            width;  // v: the last
        width *= count(u);
      }
    }
    std::vector<std::size_t> base(mine.size(), 0), digit(vars.size(), 0);
    for (std::size_t e = 0; e < entries; ++e) {
      for (std::size_t x = 0; x < count(v); ++x) {
        double cost = 0;
        for (std::size_t f = 0; f < mine.size(); ++f) cost += (*mine[f].costs)[base[f] + x * stride[f][vars.size()]];
        if (cost < made[e]) {
          made[e] = cost;
          s.best[e] = static_cast<int>(x);
        }
      }
      for (std::size_t i = vars.size(); i-- > 0;) {
        if (++digit[i] < count(vars[i])) {
          for (std::size_t f = 0; f < mine.size(); ++f) base[f] += stride[f][i];
          break;
        }
        for (std::size_t f = 0; f < mine.size(); ++f) base[f] -= stride[f][i] * (count(vars[i]) - 1);
        digit[i] = 0;
      }
    }
    steps_.push_back(std::move(s));
    add({vars, std::make_shared<const std::vector<double>>(std::move(made))});
    for (const int u : vars) look(u);
    return entries * count(v);
  }

  // Where the least entries of its factors are together least.
  std::size_t fix(int v) {
    const std::vector<int> vars = near_[static_cast<std::size_t>(v)];
    const std::vector<choice_factor> mine = take(v);
    const auto rows = [&](const choice_factor& f) {  // entries behind v
      std::size_t width = 1;
      for (std::size_t i = f.variables.size(); i-- > 0 && f.variables[i] != v;) width *= count(f.variables[i]);
      return width;
    };
    std::vector<double> least(count(v), 0);
    for (const choice_factor& f : mine) {
      std::vector<double> of_state(count(v), std::numeric_limits<double>::infinity());
      const std::size_t width = rows(f);
      for (std::size_t i = 0; i < f.costs->size(); ++i) {
        double& known = of_state[i / width % count(v)];
        known = (std::min)(known, (*f.costs)[i]);
      }
      for (std::size_t x = 0; x < least.size(); ++x) least[x] += of_state[x];
    }
    const auto best = static_cast<std::size_t>(std::min_element(least.begin(), least.end()) - least.begin());
    for (const choice_factor& f : mine) {
      std::vector<double> cut;
      const std::size_t width = rows(f);
      for (std::size_t i = 0; i < f.costs->size(); ++i)
        if (i / width % count(v) == best) cut.push_back((*f.costs)[i]);
      std::vector<int> others = f.variables;
      others.erase(std::find(others.begin(), others.end(), v));
      add({std::move(others), std::make_shared<const std::vector<double>>(std::move(cut))});
    }
    steps_.push_back({v, {}, {static_cast<int>(best)}});
    for (const int u : vars) look(u);
    return count(v);
  }

  const std::vector<int>& states_;
  std::vector<choice_factor> live_;
  std::vector<std::vector<std::size_t>> of_;  // per variable: the factors that are left
  std::vector<std::vector<int>> near_;
  std::vector<double> sizes_;
  std::vector<step> steps_;
  double constant_ = 0;
};

HEDDLE_INLINE void require_choice(const choice_graph& graph) {
  for (std::size_t v = 0; v < graph.states.size(); ++v)
    if (graph.states[v] < 1)
      throw config_error(
          text_of({"heddle: cheapest_states: variable ", v, " has ", graph.states[v], " states; each has at least 1"}));
  for (std::size_t f = 0; f < graph.factors.size(); ++f) {
    const choice_factor& factor = graph.factors[f];
    std::size_t entries = 1;
    for (std::size_t i = 0; i < factor.variables.size(); ++i) {
      const int v = factor.variables[i];
      if (v < 0 || static_cast<std::size_t>(v) >= graph.states.size() ||
          std::find(factor.variables.begin(), factor.variables.begin() + static_cast<std::ptrdiff_t>(i), v) !=
              factor.variables.begin() + static_cast<std::ptrdiff_t>(i))
        throw config_error(text_of({"heddle: cheapest_states: factor ", f, " names variable ", v, "; there are ",
                                    graph.states.size(), ", counted from 0, each once in a factor"}));
      entries *= static_cast<std::size_t>(graph.states[static_cast<std::size_t>(v)]);
    }
    if (!factor.costs || factor.costs->size() != entries)
      throw config_error(text_of({"heddle: cheapest_states: factor ", f, " needs ", entries, " costs; got ",
                                  factor.costs ? factor.costs->size() : std::size_t{0}}));
    for (const double c : *factor.costs)
      if (std::isnan(c)) throw config_error(text_of({"heddle: cheapest_states: a cost of factor ", f, " is NaN"}));
  }
}

}  // namespace detail

HEDDLE_INLINE double cost_of(const choice_graph& graph, const std::vector<int>& states) {
  double sum = 0;
  for (const choice_factor& f : graph.factors) {
    std::size_t at = 0;
    for (const int v : f.variables)
      at = at * static_cast<std::size_t>(graph.states[static_cast<std::size_t>(v)]) +
           static_cast<std::size_t>(states[static_cast<std::size_t>(v)]);
    sum += (*f.costs)[at];
  }
  return sum;
}

HEDDLE_INLINE choice_states cheapest_states(const choice_graph& graph, std::size_t most_entries) {
  detail::require_choice(graph);
  choice_states out = detail::choice_elimination(graph).run(most_entries);
  if (out.proven) return out;
  // One variable after the other, until none gains.
  std::vector<std::vector<std::size_t>> of(graph.states.size());
  for (std::size_t f = 0; f < graph.factors.size(); ++f)
    for (const int v : graph.factors[f].variables) of[static_cast<std::size_t>(v)].push_back(f);
  const auto around = [&](std::size_t v) {
    double sum = 0;
    for (const std::size_t f : of[v]) {
      std::size_t at = 0;
      for (const int u : graph.factors[f].variables)
        at = at * static_cast<std::size_t>(graph.states[static_cast<std::size_t>(u)]) +
             static_cast<std::size_t>(out.states[static_cast<std::size_t>(u)]);
      sum += (*graph.factors[f].costs)[at];
    }
    return sum;
  };
  for (bool gained = true; gained;) {
    gained = false;
    for (std::size_t v = 0; v < of.size(); ++v) {
      int best = out.states[v];
      double least = around(v);
      for (int x = 0; x < graph.states[v]; ++x) {
        out.states[v] = x;
        if (const double cost = around(v); cost < least - 1e-12 * std::abs(least)) {
          least = cost;
          best = x;
          gained = true;
        }
      }
      out.states[v] = best;
    }
  }
  out.cost = cost_of(graph, out.states);
  return out;
}

namespace detail {

HEDDLE_INLINE priced_choice cheapest_within(choice_graph graph, const std::vector<std::vector<double>>& held,
                                            double budget, std::size_t most_entries) {
  const std::size_t plain = graph.factors.size();
  const auto at_price = [&](double price) {
    graph.factors.resize(plain);
    for (std::size_t v = 0; v < held.size() && price > 0; ++v) {
      std::vector<double> costs = held[v];
      for (double& c : costs) c *= price;
      graph.factors.push_back({{static_cast<int>(v)}, std::make_shared<const std::vector<double>>(std::move(costs))});
    }
    priced_choice p{cheapest_states(graph, most_entries), price, 0};
    for (std::size_t v = 0; v < held.size(); ++v) p.held += held[v][static_cast<std::size_t>(p.found.states[v])];
    return p;
  };
  priced_choice best = at_price(0);
  if (best.held <= budget) return best;
  // The least price at which all fits, within a thousandth.
  double low = 0, high = 1e-15;
  for (int turn = 0; turn < 60; ++turn, low = high, high *= 4) {
    best = at_price(high);
    if (best.held <= budget) break;
  }
  for (int turn = 0; turn < 12 && best.held <= budget; ++turn) {
    const double middle = low > 0 ? std::sqrt(low * high) : high / 2;
    if (priced_choice p = at_price(middle); p.held <= budget) {
      best = std::move(p);
      high = middle;
    } else {
      low = middle;
    }
  }
  return best;
}

}  // namespace detail

HEDDLE_INLINE std::string to_string(const chosen_layouts& chosen) {
  using heddle::rounded_text;
  std::string text = rounded_text(chosen.seconds * 1e3, 3) + " ms, " + rounded_text(chosen.held / 1e6, 1) + " MB held";
  text += std::string(chosen.fits ? "" : " (more than there is)") + (chosen.proven ? "" : " (not proven)") + "\n";
  for (const chosen_layout& l : chosen.layouts) text += "  " + l.name + ": " + l.entries + "\n";
  for (const chosen_change& c : chosen.changes)
    text += "  " + c.name + " from " + c.from + " to " + c.to + ": " + rounded_text(c.bytes / 1e6, 1) + " MB sent\n";
  return text;
}
HEDDLE_INLINE std::string to_cpp(const chosen_layouts& chosen, const std::string& mesh) {
  std::string text;
  for (const chosen_layout& l : chosen.layouts) {
    if (l.name.rfind("result ", 0) == 0) continue;
    std::string entries;
    for (const char c : l.entries)
      entries += c == 'S' || c == 'B' || c == 'P' ? std::string("hd::sbp::") + c : std::string(1, c);
    text += "using " + l.name + " = hd::sbp::signature<" + mesh + ", " + entries + ">;\n";
  }
  return text;
}

}  // namespace heddle::inline v0
