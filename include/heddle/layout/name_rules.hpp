// heddle/layout/name_rules.hpp: tensor-parallel layouts from the names and shapes of a model's parameters.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0 {

/// A parameter of a model: its path, parts separated by '/', and its extents: `{"h/0/mlp/fc_in/kernel", {64, 256}}`.
/// Weights of linear layers are [in, out]; their last part is "kernel", that of lookup tables "embedding".
/// Errors: `layout_error` (a compile error in constant expressions) for more than four dimensions.
struct named_shape {
  static constexpr int max_rank = 4;
  std::string_view path{};
  std::array<std::int64_t, 4> extents{};
  int rank = 0;

  constexpr named_shape() = default;
  constexpr named_shape(std::string_view name, std::initializer_list<std::int64_t> shape) : path(name) {
    for (const std::int64_t extent : shape) add(extent);
  }
  constexpr void add(std::int64_t extent) {
    if (rank == max_rank) throw layout_error("heddle: named_shape: a parameter has at most 4 dimensions");
    extents[static_cast<std::size_t>(rank++)] = extent;
  }
};

/// A rule that goes before the generated ones: parameters whose path ends with the parts of `pattern` are split along
/// `dim`, or copied if it is -1. In a part, '*' stands for any text: `{"attn/c_attn/kernel", -1}`, `{"*_proj/kernel", 1}`.
struct name_rule {
  std::string_view pattern{};
  int dim = -1;
};

/// The output of the linear layers named by `from` goes, element by element, into those named by `to`. Patterns as in
/// `name_rule`, without the last part of the path ("kernel").
struct linear_link {
  std::string_view from{};
  std::string_view to{};
};

/// Why a parameter is split as it is.
enum class rule_reason : unsigned char {
  given,          ///< an explicit rule
  no_matrix,      ///< neither a kernel nor an embedding: copied
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
  bool fallback = false;      ///< the dimension the rule prefers does not divide
  bool mixes_fused = false;   ///< q|k|v lie side by side in the dimension split: equal chunks mix q with k and v
  bool splits_heads = false;  ///< the parts are no whole numbers of heads (fewer key-value heads than ranks, say)
  friend constexpr bool operator==(const rule_notes&, const rule_notes&) = default;
};

/// What the rules say about one parameter.
struct parameter_rule {
  int dim = -1;  ///< the dimension split over the tensor-parallel axis, or -1: a copy on every rank
  rule_reason why = rule_reason::no_matrix;
  rule_notes notes{};
  friend constexpr bool operator==(const parameter_rule&, const parameter_rule&) = default;
};

/// Settings of the rules. The lists are not copied.
struct name_rules_options {
  std::span<const name_rule> given{};    ///< tried first, in order
  std::span<const linear_link> links{};  ///< `dataflow_rules` only: the model's linear chains
  std::int64_t head_dim = 0;             ///< elements of an attention head; 0: not checked
};
inline constexpr name_rules_options default_name_rules{};

namespace detail {

// The parts of a path, from the end: part 0 is the leaf. Empty beyond the first.
constexpr std::string_view path_part(std::string_view path, std::size_t from_end) {
  for (;; --from_end) {
    const std::size_t at = path.rfind('/');
    if (from_end == 0) return at == std::string_view::npos ? path : path.substr(at + 1);
    if (at == std::string_view::npos) return {};
    path = path.substr(0, at);
  }
}
constexpr std::size_t path_parts(std::string_view path) {
  std::size_t n = 1;
  for (const char c : path) n += c == '/' ? 1u : 0u;
  return n;
}
constexpr std::string_view without_leaf(std::string_view path) {
  const std::size_t at = path.rfind('/');
  return at == std::string_view::npos ? std::string_view{} : path.substr(0, at);
}

constexpr bool part_matches(std::string_view pattern, std::string_view text) {
  // '*' with one level of going back, which is all that wildcards without classes need.
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}
constexpr bool path_ends_with(std::string_view path, std::string_view pattern) {
  const std::size_t wanted = path_parts(pattern);
  if (wanted > path_parts(path)) return false;
  for (std::size_t i = 0; i < wanted; ++i)
    if (!part_matches(path_part(pattern, i), path_part(path, i))) return false;
  return true;
}

constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
constexpr bool has_ignoring_case(std::string_view text, std::string_view word) {
  for (std::size_t i = 0; i + word.size() <= text.size(); ++i) {
    std::size_t j = 0;
    while (j < word.size() && lower(text[i + j]) == word[j]) ++j;
    if (j == word.size()) return true;
  }
  return false;
}
constexpr bool has_token(std::string_view name, std::string_view token) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= name.size(); ++i)
    if (i == name.size() || name[i] == '_') {
      if (name.substr(begin, i - begin) == token) return true;
      begin = i + 1;
    }
  return false;
}
constexpr bool begins_or_ends_with_one_of(std::string_view name, std::string_view letters) {
  return !name.empty() &&
         (letters.find(name.front()) != std::string_view::npos || letters.find(name.back()) != std::string_view::npos);
}

// Parameters that share a rule: the last two parts of a kernel's path, the last of any other.
struct rule_key {
  std::string_view name{};  // first part of the key
  std::string_view leaf{};  // second part, or empty
  int rank = 0;             // -1: of different ranks, or never split
  std::array<bool, 4> valid{};
  bool in_attention = false;
  parameter_rule rule{};

  constexpr bool same(const rule_key& other) const { return name == other.name && leaf == other.leaf; }
  constexpr bool before(const rule_key& other) const {
    return name != other.name ? name < other.name : leaf < other.leaf;
  }
};
constexpr bool splittable_leaf(std::string_view leaf) {
  return leaf == "kernel" || leaf == "embedding";
}

constexpr rule_key key_of(const named_shape& p, int m) {
  const std::string_view leaf = path_part(p.path, 0);
  rule_key key;
  key.name = leaf;
  if (leaf == "kernel" && path_parts(p.path) > 1) {
    key.name = path_part(p.path, 1);
    key.leaf = leaf;
  }
  key.rank = splittable_leaf(leaf) ? p.rank : -1;
  for (int d = 0; d < p.rank; ++d)
    key.valid[static_cast<std::size_t>(d)] = key.rank >= 0 && p.extents[static_cast<std::size_t>(d)] % m == 0;
  key.in_attention = has_ignoring_case(p.path, "attention") || has_ignoring_case(p.path, "attn");
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

constexpr std::vector<rule_key> generated_keys(std::span<const named_shape> parameters, int m) {
  std::vector<rule_key> keys;
  for (const named_shape& p : parameters) {
    const rule_key mine = key_of(p, m);
    std::size_t at = 0;
    while (at < keys.size() && keys[at].before(mine)) ++at;
    if (at == keys.size() || !keys[at].same(mine)) {
      keys.push_back(mine);  // inserted by hand: a list of keys is short
      for (std::size_t i = keys.size() - 1; i > at; --i) std::swap(keys[i], keys[i - 1]);
      continue;
    }
    rule_key& key = keys[at];
    key.in_attention = key.in_attention && mine.in_attention;
    if (key.rank != mine.rank) key.rank = -1;
    for (std::size_t d = 0; d < 4; ++d) key.valid[d] = key.rank >= 0 && key.valid[d] && mine.valid[d];
  }
  int last = -1;
  for (rule_key& key : keys) {
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
      key.rule.notes.fallback = count < key.rank;
      last = d;
    } else {
      key.rule.notes.fallback = d != (choice.ascending ? 0 : key.rank - 1);
    }
    key.rule.dim = d;
    key.rule.why = choice.why;
  }
  return keys;
}

// Queries, keys and values in one matrix: said by the name, or three times as many outputs as inputs in attention.
constexpr bool holds_fused_qkv(const named_shape& p, std::string_view name) {
  if (p.rank < 2 || path_part(p.path, 0) != "kernel") return false;
  const bool in_attention = has_ignoring_case(p.path, "attention") || has_ignoring_case(p.path, "attn");
  return has_ignoring_case(name, "qkv") || name == "c_attn" || name == "query_key_value" ||
         (in_attention && p.rank == 2 && p.extents[1] == 3 * p.extents[0]);
}
constexpr void add_notes(parameter_rule& rule, const named_shape& p, int m, std::int64_t head_dim) {
  if (rule.dim < 0 || m == 1 || path_part(p.path, 0) != "kernel") return;
  const std::string_view name = path_part(p.path, 1);
  if (rule.why != rule_reason::given) rule.notes.mixes_fused = rule.dim == p.rank - 1 && holds_fused_qkv(p, name);
  const bool in_attention = has_ignoring_case(p.path, "attention") || has_ignoring_case(p.path, "attn");
  const bool heads_there = rule.why == rule_reason::attention_in || rule.why == rule_reason::column
                               ? rule.dim == p.rank - 1
                           : rule.why == rule_reason::attention_out || rule.why == rule_reason::row ? rule.dim == 0
                                                                                                    : false;
  if (head_dim > 0 && in_attention && heads_there)
    rule.notes.splits_heads = p.extents[static_cast<std::size_t>(rule.dim)] / m % head_dim != 0;
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
    std::string text = "heddle: name_rules: the rule for ";
    text += rule.pattern;
    text += " splits a dimension that ";
    text += p.path;
    text += " does not have";
    throw layout_error(text);
  }
  return {rule.dim, rule_reason::given, {}};
}

constexpr void check_rule_input(std::span<const named_shape> parameters, int m) {
  if (m < 1) throw layout_error("heddle: name_rules: a model is split over one rank or more");
  for (const named_shape& p : parameters)
    if (p.path.empty()) throw layout_error("heddle: name_rules: a parameter has no name");
}

// The role of a layer of a linear chain, found once for all parameters that a pattern names.
enum class chain_role : unsigned char { unknown, busy, column, row, whole };

struct chain {
  std::span<const named_shape> parameters;
  std::span<const linear_link> links;
  int m;
  std::vector<std::string_view> patterns{};
  std::vector<chain_role> roles{};

  constexpr chain(std::span<const named_shape> all, std::span<const linear_link> between, int ranks)
      : parameters(all), links(between), m(ranks) {}
  constexpr ~chain() {}  // written out for nvcc, which takes the type for no literal one otherwise

  constexpr std::size_t place(std::string_view pattern) {
    for (std::size_t i = 0; i < patterns.size(); ++i)
      if (patterns[i] == pattern) return i;
    patterns.push_back(pattern);
    roles.push_back(chain_role::unknown);
    return patterns.size() - 1;
  }
  // Whether all kernels the pattern names can be cut along their inputs (first dimension) or outputs (last).
  constexpr bool divides(std::string_view pattern, bool outputs) const {
    bool any = false;
    for (const named_shape& p : parameters) {
      if (path_part(p.path, 0) != "kernel" || !path_ends_with(without_leaf(p.path), pattern)) continue;
      if (p.rank < 2 || p.extents[outputs ? static_cast<std::size_t>(p.rank - 1) : 0] % m != 0) return false;
      any = true;
    }
    return any;
  }
  constexpr chain_role role_of(std::size_t at) {
    if (roles[at] == chain_role::busy) {
      std::string text = "heddle: dataflow_rules: the linear links come back to ";
      text += patterns[at];
      text += "; a chain has a first layer";
      throw layout_error(text);
    }
    if (roles[at] != chain_role::unknown) return roles[at];
    roles[at] = chain_role::busy;
    const std::string_view pattern = patterns[at];
    bool fed = false, all_split = true;
    for (const linear_link& link : links)
      if (link.to == pattern) {
        fed = true;
        const bool split = role_of(place(link.from)) == chain_role::column;
        all_split = all_split && split;
      }
    chain_role role = chain_role::whole;
    if (fed && all_split && divides(pattern, false))
      role = chain_role::row;
    else if (divides(pattern, true))
      role = chain_role::column;
    return roles[at] = role;
  }
};

}  // namespace detail

/// How to split each parameter over `m` ranks, from names and shapes alone. Columns (outputs, the last dimension) and
/// rows (inputs, the first) are told by name; names that say nothing alternate in alphabetical order. Parameters with
/// one key (the last two parts of a kernel's path, the leaf of others) share one rule, and only dimensions that `m`
/// divides in all of them are split. Works at compile time and at run time; one rule per parameter, in their order.
/// For m = 1 the rules name dimensions too, which splits nothing.
/// Errors: `layout_error` (a compile error in constant expressions) for m < 1, a parameter without a name, and an
/// explicit rule with a dimension that its parameter does not have.
/// Source: Tan et al., "Redco", arXiv:2310.16355, section 3.1; the order of tests as in its partition_utils.
constexpr std::vector<parameter_rule> name_rules(std::span<const named_shape> parameters, int m,
                                                 const name_rules_options& options = {}) {
  detail::check_rule_input(parameters, m);
  const std::vector<detail::rule_key> keys = detail::generated_keys(parameters, m);
  std::vector<parameter_rule> rules;
  rules.reserve(parameters.size());
  for (const named_shape& p : parameters) {
    parameter_rule rule;
    if (const std::size_t at = detail::given_rule(p, options.given); at < options.given.size()) {
      rule = detail::applied(p, options.given[at]);
    } else {
      const detail::rule_key mine = detail::key_of(p, m);
      for (const detail::rule_key& key : keys)
        if (key.same(mine)) rule = key.rule;
    }
    detail::add_notes(rule, p, m, options.head_dim);
    rules.push_back(rule);
  }
  return rules;
}

/// As `name_rules`, but layers named in `options.links` are split by what feeds them: by outputs if the activation is
/// whole, by inputs if the layer before it split it; so every pair needs one reduction, whatever the names. A dimension
/// that does not divide starts the chain anew. Layers outside the links follow their names.
/// Errors: as `name_rules`; `layout_error` if the links form a circle.
/// Source: the alternation of Tan et al., arXiv:2310.16355, section 3.1, along data flow.
constexpr std::vector<parameter_rule> dataflow_rules(std::span<const named_shape> parameters, int m,
                                                     const name_rules_options& options) {
  std::vector<parameter_rule> rules = name_rules(parameters, m, options);
  detail::chain chain(parameters, options.links, m);
  for (const linear_link& link : options.links) {
    chain.role_of(chain.place(link.from));
    chain.role_of(chain.place(link.to));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const named_shape& p = parameters[i];
    if (rules[i].why == rule_reason::given || detail::path_part(p.path, 0) != "kernel") continue;
    for (std::size_t c = 0; c < chain.patterns.size(); ++c) {
      if (!detail::path_ends_with(detail::without_leaf(p.path), chain.patterns[c])) continue;
      const detail::chain_role role = chain.roles[c];
      rules[i] = {-1, rule_reason::indivisible, {}};
      if (role == detail::chain_role::column) rules[i] = {p.rank - 1, rule_reason::column, {}};
      if (role == detail::chain_role::row) rules[i] = {0, rule_reason::row, {}};
      detail::add_notes(rules[i], p, m, options.head_dim);
      break;
    }
  }
  return rules;
}

/// Splits by explicit rules only: the first match wins.
/// Errors: `layout_error` naming the first parameter that no rule matches.
constexpr std::vector<parameter_rule> explicit_rules(std::span<const named_shape> parameters,
                                                     std::span<const name_rule> rules) {
  std::vector<parameter_rule> result;
  for (const named_shape& p : parameters) {
    const std::size_t at = detail::given_rule(p, rules);
    if (at == rules.size()) {
      std::string text = "heddle: explicit_rules: no rule matches ";
      text += p.path;
      text += "; end the list with {\"*\", -1} to copy all others";
      throw layout_error(text);
    }
    result.push_back(detail::applied(p, rules[at]));
  }
  return result;
}

/// Why, in words: `"q, k, v: by outputs"`.
constexpr std::string_view to_string(rule_reason why) noexcept {
  constexpr std::array<std::string_view, 12> words{"explicit rule",
                                                   "neither kernel nor embedding",
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

/// `"splits dimension 1 (q, k, v: by outputs); warning: ..."`, `"copied (neither kernel nor embedding)"`.
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
    text += "; warning: q, k and v lie side by side here, equal chunks mix them: give a rule, or split them by heads";
  if (rule.notes.splits_heads)
    text += "; warning: the parts are no whole heads, attention has to send more (fewer key-value heads than ranks?)";
  return text;
}

}  // namespace heddle::inline v0
