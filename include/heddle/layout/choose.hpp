// heddle/layout/choose.hpp: the cheapest layouts of all operators of a model, found exactly.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/layout/operations.hpp>
#include <heddle/layout/repair_cost.hpp>
#include <heddle/layout/sbp.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Costs of the states of some variables together: an entry for each combination, the last variable's state changes
/// first. Infinity forbids a combination.
struct choice_factor {
  std::vector<int> variables;
  std::shared_ptr<const std::vector<double>> costs;
};
/// Variables, each in one of so many states, and what their states cost.
struct choice_graph {
  std::vector<int> states;
  std::vector<choice_factor> factors;
};
/// A state for each variable.
struct choice_states {
  double cost = 0;          ///< infinity if every combination is forbidden
  std::vector<int> states;  ///< of equal ones those with small numbers
  bool proven = true;       ///< whether nothing is cheaper; false if tables grew beyond the limit
  std::size_t largest = 0;  ///< entries of the largest table
};
/// What states cost together.
[[nodiscard]] HEDDLE_INLINE double cost_of(const choice_graph& graph, const std::vector<int>& states);
/// The cheapest states on any graph, cycles too: variables are eliminated one after the other, that whose neighbours
/// have the fewest combinations first. Where a table would have more than `most_entries`, the variable with the most
/// neighbours is fixed where it alone is cheapest, and the result is not `proven`; variables are then improved one by
/// one.
/// Errors: `config_error` for a variable without states, one that is not there or twice in a factor, tables of another
/// size, costs that are NaN. Source: nonserial dynamic programming, Bertele and Brioschi 1972.
[[nodiscard]] HEDDLE_INLINE choice_states cheapest_states(const choice_graph& graph,
                                                          std::size_t most_entries = std::size_t{1} << 26);

/// What `layout_program::choose` weighs. Operators that multiply and sum count two operations for each combination of
/// their letters, others one per element. Inputs and weights are held. Units: floating-point operations, bytes and
/// seconds of one rank.
struct layout_costs {
  double flops_per_second = 100e12;
  double bytes_per_second = 100e9;  ///< what a rank sends
  double latency = 5e-6;            ///< seconds of a redistribution, beside its bytes
  int element_bytes = 2;
  bool backward = false;  ///< gradients too: twice the operations, redistributed as duals say; results are held
  double bytes = std::numeric_limits<double>::infinity();  ///< what a rank may hold
  std::size_t most_entries = std::size_t{1} << 26;         ///< as in `cheapest_states`
};

/// The layout of an input, a weight or an operator's result.
struct chosen_layout {
  std::string name;     ///< of inputs and weights; "result 3" for those of operators, counted from 0
  std::string entries;  ///< per mesh axis, in the spelling of `sbp`: "S<0>, B"
  double bytes = 0;     ///< that count as held by a rank
};
/// A redistribution between what makes a value and what reads it.
struct chosen_change {
  std::string name;  ///< the value
  std::string from;  ///< entries as it is made
  std::string to;    ///< entries as it is read
  double bytes = 0;  ///< that a rank sends, forward
};
/// The cheapest layouts of a model.
struct chosen_layouts {
  double seconds = 0;                  ///< of a rank; infinity if nothing fits
  double held = 0;                     ///< bytes of a rank
  double price = 0;                    ///< seconds per byte held at which the budget was met; 0 if it did not bind
  bool proven = true;                  ///< whether nothing costs less in seconds + price * held
  bool fits = true;                    ///< whether `held` is within the budget
  std::vector<chosen_layout> layouts;  ///< in the order in which they were named
  std::vector<chosen_change> changes;  ///< that send something
};
/// Lines for people.
HEDDLE_INLINE std::string to_string(const chosen_layouts& chosen);
/// C++: a layout for each input and weight, `using w = hd::sbp::signature<mesh, hd::sbp::S<1>>;`.
HEDDLE_INLINE std::string to_cpp(const chosen_layouts& chosen, const std::string& mesh);

template <mesh_like Mesh>
class layout_program;

/// A value of a `layout_program`. It refers to the program.
template <class Mesh>
class program_value {
 public:
  using mesh_type = Mesh;
  const std::vector<std::int64_t>& extents() const { return program_->values_[at_].extents; }

 private:
  friend class layout_program<Mesh>;
  program_value(layout_program<Mesh>* program, std::size_t at) : program_(program), at_(at) {}
  layout_program<Mesh>* program_;
  std::size_t at_;

  template <class Op, class First, class... Rest>
  friend auto record_in_program(const First& first, const Rest&... rest);
};

namespace detail {
template <class T>
inline constexpr bool is_program_value = false;
template <class Mesh>
inline constexpr bool is_program_value<program_value<Mesh>> = true;

// A state of a value's maker: how it reads its operands, how its result lies, and into how many parts its work is cut.
template <std::size_t Axes>
struct program_state {
  std::vector<axis_table<Axes>> operands;
  axis_table<Axes> result{};
  double parts = 1;
};
template <std::size_t Axes>
struct program_node {
  std::string name;
  std::string kind;  // equal ones have equal states and costs
  std::vector<std::int64_t> extents;
  std::vector<std::size_t> operands;
  std::shared_ptr<const std::vector<program_state<Axes>>> states;
  double operations = 0;
  enum class role : unsigned char { input, weight, result, output } is = role::result;
};
// The core that needs no types: seconds per node and state, bytes held, edges; raises the price of a byte until all
// fits.
struct priced_choice {
  choice_states found;
  double price = 0;
  double held = 0;
};
HEDDLE_INLINE priced_choice cheapest_within(choice_graph graph, const std::vector<std::vector<double>>& held,
                                            double budget, std::size_t most_entries);

template <std::size_t Axes>
std::string entries_of(const axis_table<Axes>& table) {
  std::string text;
  for (std::size_t a = 0; a < Axes; ++a) {
    if (a > 0) text += ", ";
    const axis_use& u = table.use[a];
    text += u.role == axis_role::sharded   ? "S<" + std::to_string(u.dim) + ">"
            : u.role == axis_role::partial ? "P"
                                           : "B";
  }
  return text;
}
// Levels of cuts: of axes that cut one dimension, the earlier one cuts first.
template <std::size_t Axes>
void set_levels(axis_table<Axes>& t) {
  for (std::size_t a = 0; a < Axes; ++a) {
    if (t.use[a].role != axis_role::sharded) continue;
    t.use[a].level = 0;
    for (std::size_t b = 0; b < a; ++b)
      if (t.use[b].role == axis_role::sharded && t.use[b].dim == t.use[a].dim) ++t.use[a].level;
  }
}
template <std::size_t Axes>
axis_table<Axes> dual_table(axis_table<Axes> t) {
  for (std::size_t a = 0; a < Axes; ++a) {
    axis_use& u = t.use[a];
    if (u.role == axis_role::sharded) continue;
    const bool copies = u.role != axis_role::partial;
    u = {};
    if (copies) u.role = axis_role::partial, u.op = 0;
  }
  return t;
}
}  // namespace detail

/// A model whose layouts are to be chosen: inputs and weights with their extents, and operators on them, written as on
/// tensors and in expressions (`einsum<"bi,io->bo">(x, w)`, `apply<op::gelu>(h)`). Nothing is computed.
/// The mesh's extents are those of `Mesh`, which must all be static.
template <mesh_like Mesh>
class layout_program {
 public:
  static constexpr std::size_t axes = Mesh::rank;
  using value = program_value<Mesh>;

  layout_program() = default;
  layout_program(const layout_program&) = delete;  // values refer to it
  layout_program& operator=(const layout_program&) = delete;

  /// What comes from outside. With entries, one per mesh axis, its layout is given: `input<sbp::B>("x", {64, 256})`.
  template <class... Entries>
  value input(std::string name, std::vector<std::int64_t> extents) {
    return source<Entries...>(std::move(name), std::move(extents), node::role::input);
  }
  /// What is trained: with `backward` its gradient comes back into its layout.
  template <class... Entries>
  value weight(std::string name, std::vector<std::int64_t> extents) {
    return source<Entries...>(std::move(name), std::move(extents), node::role::weight);
  }
  /// Asks for a value in a layout: `output<sbp::B>(y)`.
  template <class... Entries>
  void output(const value& v) {
    node n{"output", {}, v.extents(), {v.at_}, nullptr, 0, node::role::output};
    const table_type t = table_of_entries<Entries...>(n.name, n.extents);
    n.kind = "out " + detail::entries_of(t) + shown(n.extents);
    n.states = std::make_shared<const std::vector<state>>(std::vector<state>{{{t}, t, 1}});
    values_.push_back(std::move(n));
  }
  /// The cheapest layouts. Errors: `config_error` for costs that are not above 0.
  [[nodiscard]] chosen_layouts choose(const layout_costs& costs = {}) const;

  std::size_t operators() const noexcept { return operators_; }

 private:
  using node = detail::program_node<axes>;
  using state = detail::program_state<axes>;
  using table_type = detail::axis_table<axes>;
  static constexpr std::array<int, axes> mesh_extents = detail::extents_or_unknown<Mesh>(typename Mesh::tags{});
  static_assert(
      [] {
        for (const int e : mesh_extents)
          if (e < 1) return false;
        return detail::repair_costs<axes>::possible;
      }(),
      "heddle: layout_program<mesh>: choosing layouts needs a mesh of at most 8 axes whose extents are static");

  friend class program_value<Mesh>;
  template <class Op, class First, class... Rest>
  friend auto record_in_program(const First& first, const Rest&... rest);

  static std::string shown(const std::vector<std::int64_t>& extents) {
    std::string text;
    for (const std::int64_t e : extents) text += " " + std::to_string(e);
    return text;
  }
  template <class... Entries>
  static table_type table_of_entries(const std::string& name, const std::vector<std::int64_t>& extents) {
    static_assert(sizeof...(Entries) == axes && (detail::is_sbp<Entries> && ...),
                  "heddle: layout_program: give one of sbp::S<dim>, sbp::B, sbp::P per mesh axis");
    table_type t{{Entries::use...}};
    for (const detail::axis_use& u : t.use)
      if (u.role == axis_role::sharded && u.dim >= static_cast<int>(extents.size()))
        throw layout_error("heddle: layout_program: " + name + " has " + std::to_string(extents.size()) +
                           " dimensions, and a layout splits dimension " + std::to_string(u.dim) +
                           "; dimensions count from 0");
    detail::set_levels(t);
    return t;
  }
  template <class... Entries>
  value source(std::string name, std::vector<std::int64_t> extents, typename node::role is) {
    for (const std::int64_t e : extents)
      if (e < 1)
        throw layout_error("heddle: layout_program: " + name + " has an extent of " + std::to_string(e) +
                           "; extents are at least 1");
    if (extents.size() > detail::planned_dims)
      throw layout_error("heddle: layout_program: " + name + " has " + std::to_string(extents.size()) +
                         " dimensions; at most " + std::to_string(detail::planned_dims) + " are planned");
    node n{std::move(name), {}, std::move(extents), {}, nullptr, 0, is};
    std::vector<state> all;
    if constexpr (sizeof...(Entries) > 0) {
      const table_type t = table_of_entries<Entries...>(n.name, n.extents);
      all.push_back({{}, t, 1});
      n.kind = "given " + detail::entries_of(t);
    } else {
      table_type t{};
      each_table(n.extents, t, 0, all);
    }
    n.kind += (is == node::role::weight ? "weight" : "input") + shown(n.extents);
    n.states = std::make_shared<const std::vector<state>>(std::move(all));
    values_.push_back(std::move(n));
    return {this, values_.size() - 1};
  }
  // Copies, and every dimension that is long enough for the axes that cut it.
  static void each_table(const std::vector<std::int64_t>& extents, table_type& t, std::size_t a,
                         std::vector<state>& all) {
    if (a == axes) {
      all.push_back({{}, t, 1});
      detail::set_levels(all.back().result);
      return;
    }
    each_table(extents, t, a + 1, all);
    for (std::size_t d = 0; d < extents.size() && mesh_extents[a] > 1; ++d) {
      t.use[a].role = axis_role::sharded;
      t.use[a].dim = static_cast<int>(d);
      if (extents[d] >= cut_by(t, a + 1, static_cast<int>(d))) each_table(extents, t, a + 1, all);
      t.use[a] = {};
    }
  }
  static std::int64_t cut_by(const table_type& t, std::size_t end, int dim) {
    std::int64_t parts = 1;
    for (std::size_t a = 0; a < end; ++a)
      if (t.use[a].role == axis_role::sharded && t.use[a].dim == dim) parts *= mesh_extents[a];
    return parts;
  }
  static double parts_of(const table_type& t) {
    double parts = 1;
    for (std::size_t a = 0; a < axes; ++a)
      if (t.use[a].role == axis_role::sharded) parts *= mesh_extents[a];
    return parts;
  }

  template <std::size_t N>
  value record(const factor_rule<N>& rule, bool sums_only, const std::vector<std::size_t>& operands);

  std::vector<node> values_;
  std::size_t operators_ = 0;
};

/// Records an operator; `einsum` and `apply` call it.
template <class Op, class First, class... Rest>
auto record_in_program(const First& first, const Rest&... rest) {
  const std::array<int, 1 + sizeof...(Rest)> ranks{static_cast<int>(first.extents().size()),
                                                   static_cast<int>(rest.extents().size())...};
  return first.program_->record(Op::rule(ranks), std::is_same_v<typename Op::monoid, plus>, {first.at_, rest.at_...});
}
/// What `layout_program` chooses layouts for.
template <class T>
concept program_operand = detail::is_program_value<T>;

/// An operator of a `layout_program`: it has one result whose dimensions are those of its operands.
/// Errors: `layout_error` if a dimension has two extents, or the result has a dimension that no operand has.
template <operation Op, program_operand First, program_operand... Rest>
auto apply(const First& first, const Rest&... rest) {
  return record_in_program<Op>(first, rest...);
}
/// The same; redistribution where layouts do not fit is what is chosen anyway.
template <operation Op, program_operand First, program_operand... Rest>
auto apply(auto_redistribute, const First& first, const Rest&... rest) {
  return record_in_program<Op>(first, rest...);
}
/// A product by formula in a `layout_program`.
template <fixed_string Formula, program_operand... X>
auto einsum(const X&... x) {
  return record_in_program<op::einsum<Formula>>(x...);
}
/// The same; redistribution where layouts do not fit is what is chosen anyway.
template <fixed_string Formula, program_operand... X>
auto einsum(auto_redistribute, const X&... x) {
  return record_in_program<op::einsum<Formula>>(x...);
}

template <mesh_like Mesh>
template <std::size_t N>
program_value<Mesh> layout_program<Mesh>::record(const factor_rule<N>& rule, bool sums_only,
                                                 const std::vector<std::size_t>& operands) {
  node n{"result " + std::to_string(operators_), "op", {}, operands, nullptr, 0, node::role::result};
  std::map<char, std::int64_t> extent;
  double work = 1, largest = 0;
  for (std::size_t o = 0; o < operands.size(); ++o) {
    const node& from = values_[operands[o]];
    const auto& term = rule.operands[o];
    if (term.count != static_cast<int>(from.extents.size()))
      throw layout_error("heddle: layout_program: operand " + std::to_string(o) + " of " + n.name + " has " +
                         std::to_string(from.extents.size()) + " dimensions; the operator takes " +
                         std::to_string(term.count));
    double elements = 1;
    n.kind += " " + std::to_string(term.slot) + "," + std::to_string(term.partials) + ":";
    for (int d = 0; d < term.count; ++d) {
      const std::int64_t here = from.extents[static_cast<std::size_t>(d)];
      const auto [at, added] = extent.emplace(term.letters[d], here);
      if (!added && at->second != here)
        throw layout_error("heddle: layout_program: dimension " + std::to_string(d) + " of operand " +
                           std::to_string(o) + " of " + n.name + " is " + std::to_string(here) + " and " +
                           std::to_string(at->second) + " in another operand");
      elements *= static_cast<double>(here);
      n.kind += term.letters[d];
    }
    largest = largest < elements ? elements : largest;
  }
  n.kind += "->";
  for (int d = 0; d < rule.results[0].count; ++d) {
    const char c = rule.results[0].letters[d];
    const auto at = extent.find(c);
    if (at == extent.end())
      throw layout_error("heddle: layout_program: dimension " + std::to_string(d) + " of " + n.name +
                         " is none of its operands'; layouts are chosen for operators whose results have the "
                         "dimensions of their operands");
    n.extents.push_back(at->second);
    n.kind += c;
  }
  bool multiplies = false;  // a factor that is summed, or one that not all operands have
  for (const auto& [letter, e] : extent) {
    work *= static_cast<double>(e);
    n.kind +=
        " " + std::string(1, letter) + std::to_string(static_cast<int>(rule.kind_of(letter))) + "=" + std::to_string(e);
    multiplies = multiplies || (operands.size() > 1 && rule.kind_of(letter) == factor_kind::reduction);
  }
  n.operations = multiplies ? 2 * work : largest;
  n.kind += sums_only ? "+" : "?";

  const detail::operator_facts facts[]{{true, false, sums_only}};
  std::vector<state> all;
  std::vector<table_type> tables(operands.size());
  std::array<char, axes> letter_of{};
  const auto cuts = [&](char letter, std::size_t end) {
    std::int64_t parts = 1;
    for (std::size_t a = 0; a < end; ++a)
      if (letter_of[a] == letter) parts *= mesh_extents[a];
    return parts;
  };
  const auto each = [&](const auto& self, std::size_t a) -> void {
    if (a == axes) {
      std::vector<table_type> tried = tables;
      for (table_type& t : tried) detail::set_levels(t);
      const auto out = detail::propagate_strictly(rule, tried.data(), facts);
      if (!out.legal()) return;
      state s{std::move(tried), out.results[0], 1};
      for (std::size_t b = 0; b < axes; ++b)
        if (letter_of[b] != 0) s.parts *= mesh_extents[b];
      detail::set_levels(s.result);
      all.push_back(std::move(s));
      return;
    }
    self(self, a + 1);
    if (mesh_extents[a] == 1) return;
    for (const auto& [letter, e] : extent) {
      const factor_kind kind = rule.kind_of(letter);
      if (kind == factor_kind::whole || kind == factor_kind::combined) continue;
      if (kind == factor_kind::reduction && !sums_only) continue;
      letter_of[a] = letter;
      if (e >= cuts(letter, a + 1)) {
        for (std::size_t o = 0; o < operands.size(); ++o)
          if (const int d = rule.operands[o].find(letter); d >= 0) {
            tables[o].use[a].role = axis_role::sharded;
            tables[o].use[a].dim = d;
          }
        self(self, a + 1);
        for (table_type& t : tables) t.use[a] = {};
      }
      letter_of[a] = 0;
    }
    for (int slot = 1; slot <= static_cast<int>(operands.size()); ++slot) {
      bool any = false;
      for (std::size_t o = 0; o < operands.size(); ++o)
        if (rule.operands[o].slot == slot) {
          any = true;
          tables[o].use[a].role = axis_role::partial;
          tables[o].use[a].op = 0;
        }
      if (any) self(self, a + 1);
      for (table_type& t : tables) t.use[a] = {};
    }
  };
  each(each, 0);
  n.states = std::make_shared<const std::vector<state>>(std::move(all));
  values_.push_back(std::move(n));
  ++operators_;
  return {this, values_.size() - 1};
}

template <mesh_like Mesh>
chosen_layouts layout_program<Mesh>::choose(const layout_costs& costs) const {
  if (!(costs.flops_per_second > 0) || !(costs.bytes_per_second > 0) || !(costs.latency >= 0) ||
      costs.element_bytes < 1 || !(costs.bytes > 0))
    throw config_error(
        "heddle: choose: operations and bytes per second, bytes of an element and of a rank must be above 0, latencies "
        "at least 0");
  const auto bytes_of = [&](const node& n) {
    double bytes = costs.element_bytes;
    for (const std::int64_t e : n.extents) bytes *= static_cast<double>(e);
    return bytes;
  };
  const auto sent = [&](const table_type& from, const table_type& to, const node& of) {
    if (from == to) return 0.0;
    detail::repair_costs<axes> cost(mesh_extents, std::array<table_type, 2>{from, to},
                                    static_cast<int>(of.extents.size()));
    return cost(from, to) * bytes_of(of);
  };
  const auto seconds_of = [&](double bytes) {
    return bytes > 0 ? bytes / costs.bytes_per_second + costs.latency : 0.0;
  };
  choice_graph graph;
  std::vector<std::vector<double>> held;
  using table_ptr = std::shared_ptr<const std::vector<double>>;
  std::map<std::string, table_ptr> known;
  for (std::size_t v = 0; v < values_.size(); ++v) {
    const node& n = values_[v];
    graph.states.push_back(static_cast<int>(n.states->size()));
    std::vector<double> alone, bytes;
    const bool held_here =
        n.is == node::role::input || n.is == node::role::weight || (costs.backward && n.is == node::role::result);
    for (const state& s : *n.states) {
      alone.push_back(n.operations / s.parts * (costs.backward ? 3 : 1) / costs.flops_per_second);
      bytes.push_back(held_here ? bytes_of(n) / parts_of(s.result) : 0);
    }
    graph.factors.push_back({{static_cast<int>(v)}, std::make_shared<const std::vector<double>>(std::move(alone))});
    held.push_back(std::move(bytes));
    for (std::size_t o = 0; o < n.operands.size(); ++o) {
      const node& from = values_[n.operands[o]];
      table_ptr& table = known[from.kind + "|" + n.kind + "|" + std::to_string(o)];
      if (!table) {
        std::vector<double> made;
        made.reserve(from.states->size() * n.states->size());
        for (const state& s : *from.states)
          for (const state& t : *n.states) {
            const table_type& to = t.operands[o];
            double seconds = seconds_of(sent(s.result, to, from));
            if (costs.backward && from.is != node::role::input)
              seconds +=
                  seconds_of(sent(detail::dual_table(to),
                                  from.is == node::role::weight ? s.result : detail::dual_table(s.result), from));
            made.push_back(seconds);
          }
        table = std::make_shared<const std::vector<double>>(std::move(made));
      }
      if (n.operands[o] != v) graph.factors.push_back({{static_cast<int>(n.operands[o]), static_cast<int>(v)}, table});
    }
  }
  const detail::priced_choice best = detail::cheapest_within(graph, held, costs.bytes, costs.most_entries);
  chosen_layouts out;
  out.proven = best.found.proven;
  out.price = best.price;
  out.held = best.held;
  out.fits = best.held <= costs.bytes;
  out.seconds = cost_of(graph, best.found.states);
  for (std::size_t v = 0; v < values_.size(); ++v) {
    const node& n = values_[v];
    const auto at = static_cast<std::size_t>(best.found.states[v]);
    const state& s = (*n.states)[at];
    if (n.is != node::role::output) out.layouts.push_back({n.name, detail::entries_of(s.result), held[v][at]});
    for (std::size_t o = 0; o < n.operands.size(); ++o) {
      const node& from = values_[n.operands[o]];
      const table_type& made = (*from.states)[static_cast<std::size_t>(best.found.states[n.operands[o]])].result;
      const double bytes = sent(made, s.operands[o], from);
      if (bytes > 0)
        out.changes.push_back({from.name, detail::entries_of(made), detail::entries_of(s.operands[o]), bytes});
    }
  }
  return out;
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/layout/impl/choose.hpp>
#endif
