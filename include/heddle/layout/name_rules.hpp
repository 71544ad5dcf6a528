// heddle/layout/name_rules.hpp: tensor-parallel layouts by parameter names and shapes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/named_shape.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// A rule that goes before the generated ones: parameters whose path ends with the parts of `pattern` are split along
/// `dim`, or copied if it is -1. In a part, '*' stands for any text: `{"attn/c_attn/kernel", -1}`, `{"*_proj/kernel", 1}`.
struct name_rule {
  std::string_view pattern{};
  int dim = -1;
};

/// The output of the linear layers named by `from` goes, element by element, into those named by `to`. Patterns as in
/// `name_rule`, without the last part of the path ("kernel", "weight").
struct linear_link {
  std::string_view from{};
  std::string_view to{};
};

/// Why a parameter is split as it is.
enum class rule_reason : unsigned char {
  given,          ///< an explicit rule
  no_matrix,      ///< no matrix of a linear layer and no embedding, as far as names say: copied
  indivisible,    ///< no dimension is divisible for all parameters that share the key, or their ranks differ: copied
  embedding,      ///< the vocabulary if it divides
  attention_in,   ///< q, k, v: by outputs
  attention_out,  ///< o: by inputs
  up,             ///< named as a first layer (up, gate, wi, in): by outputs
  down,           ///< named as a second layer (down, wo, out): by inputs
  head,           ///< by outputs
  alternation,    ///< the other dimension than the last alternating key
  column,         ///< fed by a whole activation: by outputs (dataflow_rules)
  row             ///< fed by an activation that is split: by inputs (dataflow_rules)
};

/// What a person should know about a split; several may hold.
struct rule_notes {
  bool fallback = false;       ///< the dimension the rule prefers does not divide
  bool mixes_fused = false;    ///< q|k|v, k|v or gate|up lie side by side in the dimension split: equal chunks mix them
  bool splits_heads = false;   ///< in attention: the parts are no whole heads (fewer key-value heads than ranks, say)
  bool copies_matrix = false;  ///< two dimensions or more, and a copy on every rank, which no explicit rule asked for
  friend constexpr bool operator==(const rule_notes&, const rule_notes&) = default;
};

/// What the rules say about one parameter.
struct parameter_rule {
  int dim = -1;  ///< the dimension split over the tensor-parallel axis, or -1: a copy on every rank
  rule_reason why = rule_reason::no_matrix;
  rule_notes notes{};
  friend constexpr bool operator==(const parameter_rule&, const parameter_rule&) = default;
};

/// Settings of `name_rules`. The lists are not copied.
struct name_rules_options {
  std::span<const name_rule> given{};    ///< tried first, in order
  std::span<const linear_link> links{};  ///< `dataflow_rules` only: the model's linear chains
  std::int64_t head_dim = 0;             ///< elements of an attention head; 0: not checked
  weight_order weights = weight_order::by_name;
};

namespace detail {

// Parameters that share a rule: the last two parts of a kernel's path, the last of any other.
struct rule_key {
  std::string_view name{};  // first part of the key
  std::string_view leaf{};  // second part: "kernel", or empty
  int rank = 0;             // -1: of different ranks, or never split
  std::array<bool, 4> valid{};
  bool in_attention = false;
  parameter_rule rule{};

  constexpr bool same(const rule_key& other) const {
    return same_text(name, other.name) && leaf.empty() == other.leaf.empty();
  }
  constexpr void merge(const rule_key& other) {
    in_attention = in_attention && other.in_attention;
    if (rank != other.rank) rank = -1;
    for (std::size_t d = 0; d < 4; ++d) valid[d] = rank >= 0 && valid[d] && other.valid[d];
  }
  constexpr bool before(const rule_key& other) const {
    return name != other.name ? name < other.name : leaf < other.leaf;
  }
};
constexpr bool splittable_leaf(std::string_view leaf) {
  return same_text(leaf, kernel_leaf) || same_text(leaf, embedding_leaf);
}

constexpr rule_key key_of(const seen_parameter& s, int m) {
  const named_shape& p = s.shape;
  const std::size_t at = last_separator(p.path);
  const std::string_view leaf = s.leaf;
  rule_key key;
  key.name = leaf;
  if (at != std::string_view::npos && same_text(leaf, kernel_leaf)) {
    key.name = path_part(p.path.substr(0, at), 0);
    key.leaf = leaf;
    key.in_attention = goes_through_attention(p.path);
  }
  key.rank = splittable_leaf(leaf) ? p.rank : -1;
  for (int d = 0; d < p.rank; ++d)
    key.valid[static_cast<std::size_t>(d)] = key.rank >= 0 && p.extents[static_cast<std::size_t>(d)] % m == 0;
  return key;
}

struct rule_choice {
  rule_reason why;
  bool ascending;
};
// The tests of names, in their order.
constexpr rule_choice choice_for(const rule_key& key) {
  const std::string_view name = key.name;
  if (name == "embedding" && key.leaf.empty()) return {rule_reason::embedding, true};
  if (key.in_attention && begins_or_ends_with_one_of(name, "qkv")) return {rule_reason::attention_in, false};
  if (key.in_attention && begins_or_ends_with_one_of(name, "o")) return {rule_reason::attention_out, true};
  if (name.starts_with("up") || name.starts_with("gate") || name.starts_with("wi") || has_token(name, "in"))
    return {rule_reason::up, false};
  if (name.starts_with("down") || name.starts_with("wo") || has_token(name, "out")) return {rule_reason::down, true};
  if (name.starts_with("head") || name.ends_with("head")) return {rule_reason::head, false};
  return {rule_reason::alternation, false};
}

// The keys of a list, and for each parameter the place of its own.
struct generated_rules {
  std::vector<rule_key> keys{};
  std::vector<std::size_t> of{};
  constexpr generated_rules() {}
  constexpr ~generated_rules() {}  // written out for nvcc, which takes the type for no literal one otherwise

  // A table of places, at most half full: as many comparisons as parameters, whatever the number of keys.
  constexpr void collect(std::span<const seen_parameter> parameters, int m) {
    std::size_t slots = 2;
    while (slots < 2 * parameters.size()) slots *= 2;
    std::vector<std::size_t> table(slots, parameters.size());
    of.reserve(parameters.size());
    for (const seen_parameter& p : parameters) {
      const rule_key mine = key_of(p, m);
      std::uint32_t hash = 0;
      for (const char c : mine.name) hash = hash * 31u + static_cast<unsigned char>(c);
      std::size_t slot = (hash ^ (hash >> 15)) & (slots - 1);
      while (table[slot] != parameters.size() && !keys[table[slot]].same(mine)) slot = (slot + 1) & (slots - 1);
      if (table[slot] == parameters.size()) {
        table[slot] = keys.size();
        keys.push_back(mine);
      } else {
        keys[table[slot]].merge(mine);
      }
      of.push_back(table[slot]);
    }
  }
};

constexpr generated_rules generate_rules(std::span<const seen_parameter> parameters, int m) {
  generated_rules result;
  result.collect(parameters, m);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < result.keys.size(); ++i) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return result.keys[a].before(result.keys[b]); });
  int last = -1;
  for (const std::size_t at : order) {
    rule_key& key = result.keys[at];
    std::array<int, 4> dims{};
    int count = 0;
    for (int d = key.rank; d-- > 0;)
      if (key.valid[static_cast<std::size_t>(d)]) dims[static_cast<std::size_t>(count++)] = d;
    if (count == 0) {
      key.rule.why =
          splittable_leaf(key.leaf.empty() ? key.name : key.leaf) ? rule_reason::indivisible : rule_reason::no_matrix;
      continue;
    }
    const rule_choice choice = choice_for(key);
    int d = choice.ascending ? dims[static_cast<std::size_t>(count - 1)] : dims[0];
    if (choice.why == rule_reason::alternation) {
      if (d == last && count > 1) d = dims[1];
      key.rule.notes.fallback = d != (key.rank > 1 && last == key.rank - 1 ? key.rank - 2 : key.rank - 1);
      last = d;
    } else {
      key.rule.notes.fallback = d != (choice.ascending ? 0 : key.rank - 1);
    }
    key.rule.dim = d;
    key.rule.why = choice.why;
  }
  return result;
}

constexpr bool names_fused_qkv(std::string_view name) {
  return has_ignoring_case(name, "qkv") || name == "c_attn" || name == "query_key_value";
}
// Two matrices: keys and values, or the gate and what it gates.
constexpr bool names_fused_pair(std::string_view name) {
  for (std::size_t i = 0; i + 1 < name.size(); ++i)
    if (name[i] == 'k' && name[i + 1] == 'v' && (i == 0 || name[i - 1] == '_') &&
        (i + 2 == name.size() || name[i + 2] == '_'))
      return true;
  if (name.size() < 7) return false;
  return (name[0] == 'k' && name.starts_with("key_value")) || (name[0] == 'g' && name.starts_with("gate_up")) ||
         (name[0] == 'u' && name.starts_with("up_gate"));
}
// Queries, keys and values, or a pair, side by side in dimension `dim`, the last one: said by the name, or three times as many
// outputs as inputs in attention. With a dimension of their own, [in, 3, heads, head_dim], they are apart.
constexpr bool holds_fused(const named_shape& p, std::string_view name, bool in_attention, int dim) {
  if (p.rank < 2 || dim != p.rank - 1) return false;
  const bool three = names_fused_qkv(name), pair = !three && names_fused_pair(name);
  for (int d = 1; d < dim; ++d)
    if (p.extents[static_cast<std::size_t>(d)] == (pair ? 2 : 3)) return false;
  return three || pair || (in_attention && p.rank == 2 && p.extents[1] == 3 * p.extents[0]);
}
// Whether parts of the split dimension hold broken heads. Heads are outputs of q, k, v and inputs of o, in one dimension
// or in two, [in, heads, head_dim] and [heads, head_dim, out].
constexpr bool breaks_heads(const parameter_rule& rule, const named_shape& p, std::string_view name, int m,
                            std::int64_t head_dim) {
  if (p.rank < 2) return false;
  bool outputs = begins_or_ends_with_one_of(name, "qkv") || names_fused_qkv(name);
  bool inputs = !outputs && (begins_or_ends_with_one_of(name, "o") || has_token(name, "out"));
  if (rule.why == rule_reason::column || rule.why == rule_reason::row) {
    outputs = rule.why == rule_reason::column;
    inputs = !outputs;
  }
  if (!outputs && !inputs) return false;
  // The dimension of one head's elements, if it is apart.
  const int inner = outputs ? p.rank - 1 : 1;
  const bool apart = p.rank > 2 && p.extents[static_cast<std::size_t>(inner)] == head_dim;
  if (apart) return rule.dim == inner;
  return rule.dim == (outputs ? p.rank - 1 : 0) && p.extents[static_cast<std::size_t>(rule.dim)] / m % head_dim != 0;
}
constexpr void add_notes(parameter_rule& rule, const seen_parameter& s, int m, std::int64_t head_dim) {
  const named_shape& p = s.shape;
  if (m == 1) return;
  if (rule.dim < 0)
    rule.notes.copies_matrix =
        rule.why != rule_reason::given && p.rank >= 2 && !same_text(s.leaf, "bias") && !same_text(s.leaf, "scale");
  if (rule.dim < 0 || !same_text(s.leaf, kernel_leaf)) return;
  const std::string_view name = path_part(p.path, 1);
  const bool in_attention = goes_through_attention(p.path);
  if (rule.why != rule_reason::given) rule.notes.mixes_fused = holds_fused(p, name, in_attention, rule.dim);
  if (head_dim > 0 && in_attention) rule.notes.splits_heads = breaks_heads(rule, p, name, m, head_dim);
}

// How many numbers a linear layer adds up for one output. q, k, v may have their outputs in several dimensions; every other
// kernel has its inputs in all dimensions but the last ([heads, head_dim, out], or a window before [in, out]).
constexpr std::int64_t inputs_of(const named_shape& given) {
  const named_shape p = seen(given, weight_order::by_name).shape;
  if (p.rank < 1) return 1;
  const std::string_view name = path_part(p.path, 1);
  if (p.rank < 3 ||
      (goes_through_attention(p.path) && (begins_or_ends_with_one_of(name, "qkv") || names_fused_qkv(name))))
    return p.extents[0];
  std::int64_t n = 1;
  for (int d = 0; d + 1 < p.rank; ++d) n *= p.extents[static_cast<std::size_t>(d)];
  return n;
}

// The place of the first rule that matches, or their number. Not a pointer: g++ 12 with -fsanitize=undefined takes a
// comparison with null for no constant.
constexpr std::size_t given_rule(const named_shape& p, std::span<const name_rule> given) {
  std::size_t i = 0;
  while (i < given.size() && !path_ends_with(p.path, given[i].pattern)) ++i;
  return i;
}
constexpr parameter_rule applied(const named_shape& p, const name_rule& rule) {
  if (rule.dim < -1 || rule.dim >= p.rank) {
    throw layout_error(text_of(
        {"heddle: name_rules: the rule for ", rule.pattern, " splits a dimension that ", p.path, " does not have"}));
  }
  return {rule.dim, rule_reason::given, {}};
}

constexpr void require_rule_input(std::span<const named_shape> parameters, int m) {
  if (m < 1) throw layout_error("heddle: name_rules: a model is split over one rank or more");
  for (const named_shape& p : parameters)
    if (p.path.empty()) throw layout_error("heddle: name_rules: a parameter has no name");
}

// What a layer of a linear chain does to an activation: columns leave it split, all others leave it whole.
enum class chain_role : unsigned char { unlinked, unknown, busy, column, row, whole };

// The layers that links name, each with a role of its own. A pattern may name one layer in every block; such layers are
// linked within the deepest folder they share.
struct chain {
  std::span<const seen_parameter> parameters;
  int m;
  std::vector<chain_role> roles{};
  struct edge {
    std::size_t from, to;
  };
  std::vector<edge> edges{};

  constexpr chain(std::span<const seen_parameter> all, int ranks) : parameters(all), m(ranks) {
    roles.resize(all.size(), chain_role::unlinked);
  }
  constexpr ~chain() {}  // written out for nvcc, which takes the type for no literal one otherwise

  constexpr std::vector<std::size_t> named_by(std::string_view pattern) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!same_text(parameters[i].leaf, "kernel") || !path_ends_with(without_leaf(parameters[i].shape.path), pattern))
        continue;
      found.push_back(i);
      if (roles[i] == chain_role::unlinked) roles[i] = chain_role::unknown;
    }
    if (found.empty()) {
      throw layout_error(text_of({"heddle: dataflow_rules: no kernel is named by ", pattern,
                                  "; a link gives the ends of paths without their last part"}));
    }
    return found;
  }
  // Compared from the end, where paths of blocks differ.
  static constexpr bool lies_in(std::string_view path, std::string_view folder) {
    if (folder.empty()) return true;
    if (path.size() <= folder.size() || last_separator(path.substr(folder.size(), 1)) != 0) return false;
    for (std::size_t i = folder.size(); i-- > 0;)
      if (path[i] != folder[i]) return false;
    return true;
  }
  constexpr void add(const linear_link& link) {
    const std::vector<std::size_t> from = named_by(link.from), to = named_by(link.to);
    for (const std::size_t t : to) {
      std::string_view folder = without_leaf(parameters[t].shape.path);
      for (bool found = false; !found;) {
        folder = without_leaf(folder);
        for (const std::size_t f : from)
          if (lies_in(parameters[f].shape.path, folder)) {
            found = true;
            edges.push_back({f, t});
          }
      }
    }
  }
  // An explicit rule decides first, and those it feeds follow it.
  constexpr void give(std::size_t at, int dim) {
    const int last = parameters[at].shape.rank - 1;
    roles[at] = dim == last && last > 0 ? chain_role::column : dim == 0 ? chain_role::row : chain_role::whole;
  }
  constexpr bool divides(std::size_t at, bool outputs) const {
    const named_shape& p = parameters[at].shape;
    return p.rank >= 2 && p.extents[outputs ? static_cast<std::size_t>(p.rank - 1) : 0] % m == 0;
  }
  constexpr chain_role role_of(std::size_t at) {
    if (roles[at] == chain_role::busy) {
      throw layout_error(text_of({"heddle: dataflow_rules: the linear links come back to ", parameters[at].shape.path,
                                  "; a chain has a first layer"}));
    }
    if (roles[at] != chain_role::unknown) return roles[at];
    roles[at] = chain_role::busy;
    bool fed = false, all_split = true;
    for (const edge& e : edges)
      if (e.to == at) {
        fed = true;
        const bool split = role_of(e.from) == chain_role::column;
        all_split = all_split && split;
      }
    chain_role role = chain_role::whole;
    if (fed && all_split && divides(at, false))
      role = chain_role::row;
    else if (divides(at, true))
      role = chain_role::column;
    return roles[at] = role;
  }
};

// The rules in dimensions of parameters as they are seen.
constexpr std::vector<parameter_rule> rules_for(std::span<const seen_parameter> parameters, int m,
                                                const name_rules_options& options) {
  const generated_rules generated = generate_rules(parameters, m);
  std::vector<parameter_rule> rules;
  rules.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const seen_parameter& p = parameters[i];
    parameter_rule rule = generated.keys[generated.of[i]].rule;
    if (const std::size_t at = given_rule(p.shape, options.given); at < options.given.size()) {
      rule = applied(p.shape, options.given[at]);
      rule.dim = p.own_dim(rule.dim);  // the rule names one of the parameter itself
    }
    add_notes(rule, p, m, options.head_dim);
    rules.push_back(rule);
  }
  return rules;
}
// And in their own.
constexpr std::vector<parameter_rule> in_own_dims(std::vector<parameter_rule> rules,
                                                  std::span<const seen_parameter> parameters) {
  for (std::size_t i = 0; i < rules.size(); ++i) rules[i].dim = parameters[i].own_dim(rules[i].dim);
  return rules;
}

}  // namespace detail

/// How to split each parameter over `m` ranks, from names and shapes alone. Columns (outputs, the last dimension of a kernel, the
/// first of PyTorch's weights) and rows (inputs) are told by name; names that say nothing alternate in alphabetical order.
/// Parameters with one key (the last two parts of a kernel's path, the leaf of others) share one rule, and only dimensions that `m`
/// divides in all of them are split. Works at compile time and at run time; one rule per parameter, in their order.
/// For m = 1 the rules name dimensions too, which splits nothing.
/// Errors: `layout_error` (a compile error in constant expressions) for m < 1, a parameter without a name, and an
/// explicit rule with a dimension that its parameter does not have.
/// Source: Tan et al., "Redco", arXiv:2310.16355, section 3.1; the order of tests as in its partition_utils.
constexpr std::vector<parameter_rule> name_rules(std::span<const named_shape> parameters, int m,
                                                 const name_rules_options& options = {}) {
  detail::require_rule_input(parameters, m);
  const std::vector<detail::seen_parameter> all = detail::seen(parameters, options.weights);
  return detail::in_own_dims(detail::rules_for(all, m, options), all);
}

/// As `name_rules`, but layers named in `options.links` are split by what feeds them: by outputs if the activation is
/// whole, by inputs if the layer before it split it; so every pair needs one reduction, whatever the names. A dimension
/// that does not divide starts the chain anew, and an explicit rule for a layer decides for those it feeds. Each layer
/// has a role of its own: a link between patterns that name layers of many blocks holds within each block (the deepest
/// folder that two layers share). Layers outside the links follow their names.
/// Errors: as `name_rules`; `layout_error` if the links form a circle, or a link names no kernel.
/// Source: the alternation of Tan et al., arXiv:2310.16355, section 3.1, along data flow.
constexpr std::vector<parameter_rule> dataflow_rules(std::span<const named_shape> parameters, int m,
                                                     const name_rules_options& options) {
  detail::require_rule_input(parameters, m);
  const std::vector<detail::seen_parameter> all = detail::seen(parameters, options.weights);
  std::vector<parameter_rule> rules = detail::rules_for(all, m, options);
  detail::chain chain(all, m);
  for (const linear_link& link : options.links) chain.add(link);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (rules[i].why == rule_reason::given) chain.give(i, rules[i].dim);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (rules[i].why == rule_reason::given || chain.roles[i] == detail::chain_role::unlinked) continue;
    const detail::seen_parameter& p = all[i];
    const detail::chain_role role = chain.role_of(i);
    rules[i] = {-1, rule_reason::indivisible, {}};
    if (role == detail::chain_role::column) rules[i] = {p.shape.rank - 1, rule_reason::column, {}};
    if (role == detail::chain_role::row) rules[i] = {0, rule_reason::row, {}};
    detail::add_notes(rules[i], p, m, options.head_dim);
  }
  return detail::in_own_dims(std::move(rules), all);
}

/// Splits by explicit rules only: the first match wins.
/// Errors: `layout_error` naming the first parameter that no rule matches.
constexpr std::vector<parameter_rule> explicit_rules(std::span<const named_shape> parameters,
                                                     std::span<const name_rule> rules) {
  std::vector<parameter_rule> result;
  for (const named_shape& p : parameters) {
    const std::size_t at = detail::given_rule(p, rules);
    if (at == rules.size()) {
      throw layout_error(text_of(
          {"heddle: explicit_rules: no rule matches ", p.path, "; end the list with {\"*\", -1} to copy all others"}));
    }
    result.push_back(detail::applied(p, rules[at]));
  }
  return result;
}

/// Why, in words: `"q, k, v: by outputs"`.
constexpr std::string_view to_string(rule_reason why) noexcept {
  constexpr std::array<std::string_view, 12> words{"explicit rule",
                                                   "no kernel, embedding or matrix called weight",
                                                   "no dimension divides",
                                                   "embedding",
                                                   "q, k, v: by outputs",
                                                   "attention's output: by inputs",
                                                   "first layer by name: by outputs",
                                                   "second layer by name: by inputs",
                                                   "head: by outputs",
                                                   "alternation in alphabetical order",
                                                   "fed by a whole activation: by outputs",
                                                   "fed by a split activation: by inputs"};
  return words[static_cast<std::size_t>(why)];
}

/// `"splits dimension 1 (q, k, v: by outputs); warning: ..."`, `"copied (no kernel, embedding or matrix called weight)"`.
inline std::string to_string(const parameter_rule& rule) {
  std::string text = "copied";
  if (rule.dim >= 0) {
    text = "splits dimension ";
    text += std::to_string(rule.dim);
  }
  text += " (";
  text += to_string(rule.why);
  if (rule.notes.fallback) text += "; the preferred dimension does not divide";
  text += ")";
  if (rule.notes.mixes_fused)
    text +=
        "; warning: several matrices (q, k and v, or a gate and what it gates) lie side by side here, equal chunks mix "
        "them: "
        "give a rule, or split them one by one";
  if (rule.notes.splits_heads)
    text += "; warning: the parts are no whole heads, attention has to send more (fewer key-value heads than ranks?)";
  if (rule.notes.copies_matrix)
    text += "; warning: every rank holds all of this matrix; give a rule if that is not meant";
  return text;
}

}  // namespace heddle::inline v0
