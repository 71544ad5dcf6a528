// heddle/layout/operations.hpp: operators that layouts propagate through, as factor rules.
#pragma once

#include <heddle/core/shape.hpp>
#include <heddle/layout/merge_monoids.hpp>
#include <heddle/layout/propagate.hpp>
#include <heddle/layout/reshape.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::inline v0 {
namespace detail {

template <int Least, int Most = Least, class Monoid = plus>
struct operation_base {
  using kind = operation_kind;
  using monoid = Monoid;
  static constexpr int least = Least;
  static constexpr int most = Most;
};

inline constexpr int most_dims = 12;

// Dimensions that some operand is known to have, and all of them may.
template <std::size_t K>
constexpr int rank_of_all(const std::array<int, K>& ranks, int least = 0) {
  int rank = least;
  for (const int r : ranks) rank = r > rank ? r : rank;
  return rank > most_dims ? most_dims : rank;
}
constexpr void append(rule_term<20>& term, char letter) {
  term.letters[term.count++] = letter;
}

template <int... Dims>
constexpr bool is_listed(int dim) {
  return ((Dims == dim) || ...);
}
template <int... Dims>
inline constexpr int dims_reach = [] {
  int most = 0;
  ((most = Dims >= most ? Dims + 1 : most), ...);
  return most;
}();
template <int... Dims>
inline constexpr bool dims_sound = [] {
  constexpr int dims[]{Dims..., -2};
  bool ok = true;
  for (std::size_t i = 0; i < sizeof...(Dims); ++i) {
    ok = ok && dims[i] >= 0 && dims[i] < most_dims;
    for (std::size_t j = 0; j < i; ++j) ok = ok && dims[i] != dims[j];
  }
  return ok;
}();

template <bool Ok, int... Dims>
inline constexpr bool operator_dimensions_are_valid = Ok;
// The base of operators that name dimensions.
template <int... Dims>
struct checked_dims {
  static constexpr bool ok = dims_sound<Dims...>;
  static_assert(
      operator_dimensions_are_valid<ok, Dims...>,
      "heddle: an operator names a dimension that is negative, beyond 11 or named twice; dimensions count from 0");
};
template <class Op, int... Dims>
struct checked_reduction {
  static constexpr bool ok = checked_dims<Dims...>::ok && is_commutative<Op>;
};
template <class Checked, int Least, int Most = Least, class Monoid = plus>
struct checked_operation : operation_base<Least, Most, Monoid> {
  using checked = Checked;
};

template <int IdsRank>
struct checked_ids_rank {
  static constexpr bool ok = IdsRank >= 0 && IdsRank < most_dims;
  static_assert(operator_dimensions_are_valid<ok, IdsRank>,
                "heddle: op::embedding<dimensions of the ids>: ids have 0 to 11 dimensions, the result one more");
};
template <int Space>
struct checked_space {
  static constexpr bool ok = Space >= 1 && Space <= 3;
  static_assert(operator_dimensions_are_valid<ok, Space>,
                "heddle: op::convolution<dimensions of space>: give 1, 2 or 3");
};
template <int... Perm>
struct checked_perm {
  static constexpr bool ok = dims_sound<Perm...> && dims_reach<Perm...> == static_cast<int>(sizeof...(Perm));
  static_assert(operator_dimensions_are_valid<ok, Perm...>,
                "heddle: op::transpose<perm...>: name each dimension from 0 up once");
};

// One operand, one factor per dimension, those of `Dims` of another kind; the result has all of them, or not those, or
// others in their place.
enum class listed : unsigned char { kept, dropped, replaced };
template <int... Dims>
constexpr factor_rule<> unary_rule(int rank, factor_kind kind, listed in_result, unsigned char partials,
                                   int results = 1) {
  factor_rule<> rule;
  auto& x = rule.operand(partials == no_partials ? 0 : 1, partials);
  for (int d = 0; d < rank; ++d) append(x, rule.factor(is_listed<Dims...>(d) ? kind : factor_kind::pass));
  char fresh[most_dims]{};
  for (int d = 0; d < rank; ++d)
    fresh[d] = is_listed<Dims...>(d) && in_result == listed::replaced ? rule.factor(factor_kind::whole) : x.letters[d];
  for (int r = 0; r < results; ++r) {
    auto& y = rule.result();
    for (int d = 0; d < rank; ++d)
      if (!is_listed<Dims...>(d) || in_result != listed::dropped) append(y, fresh[d]);
  }
  return rule;
}
// The base of operators on one operand that do this along `Dims`.
template <factor_kind Kind, listed InResult, unsigned char Partials, int Results, int... Dims>
struct along {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    return unary_rule<Dims...>(rank_of_all(ranks, dims_reach<Dims...>), Kind, InResult, Partials, Results);
  }
};

// Operands of one shape; `slots` in the bits of `joint`, or one each.
template <std::size_t K>
constexpr factor_rule<> aligned_rule(const std::array<int, K>& ranks, unsigned char partials, bool joint,
                                     int first = 0) {
  factor_rule<> rule;
  const int rank = rank_of_all(ranks);
  for (int d = 0; d < rank; ++d) rule.factor();
  for (int o = 0; o < static_cast<int>(K); ++o) {
    const bool holds = partials != no_partials && o >= first;
    auto& x = rule.operand(holds ? (joint ? 1 : o + 1) : 0, holds ? partials : static_cast<unsigned char>(no_partials));
    for (int d = 0; d < rank; ++d) append(x, rule.factors[d].letter);
  }
  auto& y = rule.result();
  for (int d = 0; d < rank; ++d) append(y, rule.factors[d].letter);
  return rule;
}

template <class Base, unsigned char Partials, bool Joint, int First = 0>
struct aligned_operation : Base {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    return aligned_rule(ranks, Partials, Joint, First);
  }
};

template <bool Ok, class From, class To>
inline constexpr bool reshape_is_valid = Ok;
template <class From, class To>
struct checked_reshape;
template <std::int64_t... F, std::int64_t... T>
struct checked_reshape<shape<F...>, shape<T...>> {
  static constexpr bool fixed = ((F >= 0) && ...) && ((T >= 0) && ...);
  static constexpr bool same = [] {
    if constexpr (fixed)
      return (std::int64_t{1} * ... * F) == (std::int64_t{1} * ... * T);
    else
      return true;
  }();
  static constexpr bool ok = fixed && same;
  static_assert(
      reshape_is_valid<fixed, shape<F...>, shape<T...>>,
      "heddle: op::reshape<from, to>: all extents must be static, because what a split becomes depends on them");
  static_assert(reshape_is_valid<same, shape<F...>, shape<T...>>,
                "heddle: op::reshape<from, to>: both shapes must have the same number of elements");
};

// A formula that only broadcasts: its result has every letter.
template <fixed_string Text>
struct broadcast_formula {
  using formula_type = checked_formula<Text>;
  static constexpr bool covers = [] {
    if (!formula_type::ok) return true;
    constexpr auto f = formula_type::value;
    for (int o = 0; o < f.operand_count; ++o)
      for (int d = 0; d < f.operands[o].count; ++d)
        if (!f.output.has(f.operands[o].letters[d])) return false;
    return true;
  }();
  static_assert(
      formula_is_valid<covers, ' '>,
      "heddle: the formula of an elementwise operator sums over a letter, because its result lacks it; name all "
      "letters in the result, or use einsum");
  static constexpr bool ok = formula_type::ok && covers;
};
template <fixed_string Text, unsigned char Partials, bool Joint>
struct broadcast_operation {
  using kind = operation_kind;
  using monoid = plus;
  using checked = broadcast_formula<Text>;
  static constexpr int least = checked_formula<Text>::value.operand_count;
  static constexpr int most = least;
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    auto rule = einsum_rule(checked_formula<Text>::value);
    for (int o = 0; o < rule.operand_count; ++o) {
      rule.operands[o].partials = Partials;
      rule.operands[o].slot = Partials == no_partials ? 0 : Joint ? 1 : o + 1;
    }
    return rule;
  }
};

}  // namespace detail

/// The operators that `propagate_through` knows. Dimensions count from 0. What an operator needs whole, no axis may
/// split; every other split stays, whatever its policy. Identical stays identical, varying against replicated varies.
/// Where a dimension that is needed whole is split after all, the comment names the operators that do it in parts.
namespace op {

/// Any function of elements at the same place: operands of one shape, 1 to 8 of them. Takes no partial values.
struct elementwise : detail::aligned_operation<detail::operation_base<1, 8>, no_partials, false> {};
/// A function of elements with broadcasting: `elementwise_of<"bsh,h->bsh">`.
template <fixed_string Formula>
struct elementwise_of : detail::broadcast_operation<Formula, no_partials, false> {};
/// A linear combination, of one operand or more: all of them are `partial<plus>` over an axis, or none.
struct elementwise_linear : detail::aligned_operation<detail::operation_base<1, 8>, sums, true> {};
/// A sum of tensors of one shape: `elementwise_linear` by its usual name.
using add = elementwise_linear;
/// A sum with broadcasting, of a bias for example: `add_of<"bsh,h->bsh">`.
template <fixed_string Formula>
struct add_of : detail::broadcast_operation<Formula, sums, true> {};
/// A product of elements: one factor may be `partial<plus>` while the others replicate.
struct multiply : detail::aligned_operation<detail::operation_base<1, 8>, sums, false> {};
/// A product of elements with broadcasting: `multiply_of<"bsh,h->bsh">`.
template <fixed_string Formula>
struct multiply_of : detail::broadcast_operation<Formula, sums, false> {};
/// Multiplication by a constant of any sign; by one that is not negative, maxima and minima pass too.
struct scale : detail::aligned_operation<detail::operation_base<1>, sums, true> {};
/// Multiplication by a constant that is not negative: sums, maxima and minima pass.
struct scale_up : detail::aligned_operation<detail::operation_base<1>, sums | extrema, true> {};
/// A function that nowhere decreases (exp, relu, adding a constant): passes maxima and minima, not sums.
struct monotone : detail::aligned_operation<detail::operation_base<1>, extrema, true> {};
/// Elements combined under an operator: `combine<maximum>`. All operands are `partial<Op>` over an axis, or none.
template <class Op>
struct combine : detail::aligned_operation<detail::operation_base<1, 8, Op>, own, true> {};
/// `condition ? a : b`, element by element. Partial values of any operator in both a and b.
struct select : detail::aligned_operation<detail::operation_base<3>, any_partials, true, 1> {};

/// Combines the elements along `Dims` under a commutative operator: `reduce<maximum, 1>`. The dimensions are dropped.
template <class Op, int... Dims>
struct reduce : detail::checked_operation<detail::checked_reduction<Op, Dims...>, 1, 1, Op>,
                detail::along<factor_kind::reduction, detail::listed::dropped, own, 1, Dims...> {
  static_assert(
      is_commutative<Op>,
      "heddle: op::reduce<Op, dims...>: the operator must be commutative, because parts are combined in any order");
  static_assert(sizeof...(Dims) > 0, "heddle: op::reduce<Op, dims...>: name the dimensions to combine");
};
/// The sum along `Dims` divided by the number of elements of the whole tensor, so that parts of any size add up.
template <int... Dims>
struct mean : reduce<plus, Dims...> {};
/// The sum of squares along `Dims`, or of any other function of elements: the part of a norm over a split dimension
/// that each rank can do. Reduce it, then finish with `elementwise_of`.
template <int... Dims>
struct sum_of_squares : detail::checked_operation<detail::checked_dims<Dims...>, 1>,
                        detail::along<factor_kind::reduction, detail::listed::dropped, no_partials, 1, Dims...> {};

/// Softmax or log-softmax along one dimension. In parts: `reduce<maximum, Dim>`, exponentials, `reduce<plus, Dim>`.
template <int Dim>
struct softmax : detail::checked_operation<detail::checked_dims<Dim>, 1>,
                 detail::along<factor_kind::whole, detail::listed::kept, no_partials, 1, Dim> {};
/// Layer normalisation of x over `Dims`; weight and bias, if given, have these dimensions. In parts: `reduce<plus,
/// ...>`, `sum_of_squares`.
template <int... Dims>
struct layer_norm : detail::checked_operation<detail::checked_dims<Dims...>, 1, 3> {
  static_assert(sizeof...(Dims) > 0, "heddle: op::layer_norm<dims...>: name the dimensions to normalise");
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    const int rank = detail::rank_of_all(std::array{ranks[0]}, detail::dims_reach<Dims...>);
    auto made = detail::unary_rule<Dims...>(rank, factor_kind::whole, detail::listed::kept, no_partials);
    for (std::size_t o = 1; o < K; ++o) {
      auto& weight = made.operand();
      for (int d = 0; d < rank; ++d)
        if (detail::is_listed<Dims...>(d)) detail::append(weight, made.operands[0].letters[d]);
    }
    return made;
  }
};
/// RMS normalisation of x over `Dims`, with or without a weight. In parts: `sum_of_squares`.
template <int... Dims>
struct rms_norm : layer_norm<Dims...> {
  static constexpr int most = 2;
};

/// Rows of a table `[vocabulary, features]` by ids of `IdsRank` dimensions. Where the rows are split, a rank gives
/// zeros for the rows of others, and the result is a sum; where the features are split, the result's last dimension is.
template <int IdsRank = 1>
struct embedding : detail::checked_operation<detail::checked_ids_rank<IdsRank>, 2> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    factor_rule<> made;
    auto& table = made.operand(1, sums);
    auto& ids = made.operand();
    auto& out = made.result();
    detail::append(table, made.factor(factor_kind::reduction));
    const char feature = made.factor();
    detail::append(table, feature);
    for (int d = 0; d < IdsRank; ++d) detail::append(ids, made.factor());
    for (int d = 0; d < IdsRank; ++d) detail::append(out, ids.letters[d]);
    detail::append(out, feature);
    return made;
  }
};
/// Cross-entropy of logits with classes along `Dim` against class numbers; the result lacks `Dim`. Where classes are
/// split (loss-parallel), the operator itself combines the ranks' maxima, sums and target logits, and the losses are
/// identical over the axis; their sum over split tokens is `partial<plus>`. That is how a loss is typed.
template <int Dim>
struct cross_entropy : detail::checked_operation<detail::checked_dims<Dim>, 2> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    int rank = detail::rank_of_all(std::array{ranks[0]}, Dim + 1);
    rank = ranks[1] + 1 > rank ? detail::rank_of_all(std::array{ranks[1] + 1}) : rank;
    auto made = detail::unary_rule<Dim>(rank, factor_kind::combined, detail::listed::dropped, no_partials);
    auto& labels = made.operand();
    for (int d = 0; d < rank; ++d)
      if (d != Dim) detail::append(labels, made.operands[0].letters[d]);
    return made;
  }
};

/// Dimension d of the result is dimension `Perm[d]` of the operand: `transpose<1, 0>`.
template <int... Perm>
struct transpose : detail::checked_operation<detail::checked_perm<Perm...>, 1> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    factor_rule<> made;
    auto& x = made.operand(1, any_partials);
    auto& y = made.result();
    for (std::size_t d = 0; d < sizeof...(Perm); ++d) detail::append(x, made.factor());
    (detail::append(y, x.letters[Perm]), ...);
    return made;
  }
};
/// The elements in row-major order under another static shape: `reshape<shape<12, 8>, shape<96>>`. A split
/// survives on dimensions that both shapes have, and on the leading factor of joined or parted ones if the axis divides
/// it.
template <class From, class To>
struct reshape;
template <std::int64_t... F, std::int64_t... T>
struct reshape<shape<F...>, shape<T...>>
    : detail::checked_operation<detail::checked_reshape<shape<F...>, shape<T...>>, 1> {
  static constexpr bool has_own_evaluation = true;
  static constexpr int rank = static_cast<int>(sizeof...(F));
  template <std::size_t Axes>
  static constexpr auto evaluate(const detail::axis_table<Axes>& table, const std::array<int, Axes>& extents) {
    return detail::propagate_reshape(table, extents, std::array<std::int64_t, sizeof...(F)>{F...},
                                     std::array<std::int64_t, sizeof...(T)>{T...});
  }
};
/// Operands one after the other along `Dim`.
template <int Dim>
struct concat : detail::checked_operation<detail::checked_dims<Dim>, 1, 8> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    auto made = detail::unary_rule<Dim>(detail::rank_of_all(ranks, Dim + 1), factor_kind::whole,
                                        detail::listed::replaced, any_partials);
    for (std::size_t o = 1; o < K; ++o) {
      auto& x = made.operand(1, any_partials);
      for (int d = 0; d < made.operands[0].count; ++d)
        detail::append(x, d == Dim ? made.factor(factor_kind::whole) : made.operands[0].letters[d]);
    }
    return made;
  }
};
/// A range of elements, perhaps with a step, along `Dims`.
template <int... Dims>
struct slice : detail::checked_operation<detail::checked_dims<Dims...>, 1>,
               detail::along<factor_kind::whole, detail::listed::replaced, any_partials, 1, Dims...> {};
/// Elements added before and after along `Dims`, copies of a constant. A padded dimension must not be split: parts of the
/// longer dimension begin elsewhere. `pad_zeros` adds zeros, so it is linear and sums pass.
template <int... Dims>
struct pad : detail::checked_operation<detail::checked_dims<Dims...>, 1>,
             detail::along<factor_kind::whole, detail::listed::replaced, no_partials, 1, Dims...> {};
/// Zeros added before and after along `Dims`: linear, so that sums pass.
template <int... Dims>
struct pad_zeros : detail::checked_operation<detail::checked_dims<Dims...>, 1>,
                   detail::along<factor_kind::whole, detail::listed::replaced, sums, 1, Dims...> {};
/// Convolution over 1 to 3 dimensions, any stride, padding with zeros and dilation: x `[batch, in, space...]` and kernels
/// `[out, in, window...]` give `[batch, out, space...]`. The batch or `out` may be split, and `in`, which gives a sum.
/// Split space is refused: at its edges a part needs elements of its neighbours (a halo). Add a bias with `add_of`.
template <int Space>
struct convolution : detail::checked_operation<detail::checked_space<Space>, 2> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    factor_rule<> made;
    auto& x = made.operand(1, sums);
    auto& kernels = made.operand(2, sums);
    auto& y = made.result();
    const char batch = made.factor(), out = made.factor(), in = made.factor(factor_kind::reduction);
    for (const char letter : {batch, in}) detail::append(x, letter);
    for (const char letter : {out, in}) detail::append(kernels, letter);
    for (const char letter : {batch, out}) detail::append(y, letter);
    for (int d = 0; d < Space; ++d)
      for (auto* term : {&x, &kernels, &y}) detail::append(*term, made.factor(factor_kind::whole));
    return made;
  }
};
/// `data` at the places along `Dim` that an index of one dimension names. Where `Dim` is split, a rank gives zeros for
/// the places of others, and the result is a sum.
template <int Dim>
struct gather : detail::checked_operation<detail::checked_dims<Dim>, 2> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    factor_rule<> made;
    const int rank = detail::rank_of_all(std::array{ranks[0]}, Dim + 1);
    auto& data = made.operand(1, any_partials);
    auto& index = made.operand();
    auto& out = made.result();
    for (int d = 0; d < rank; ++d)
      detail::append(data, made.factor(d == Dim ? factor_kind::reduction : factor_kind::pass));
    detail::append(index, made.factor());
    for (int d = 0; d < rank; ++d) detail::append(out, d == Dim ? index.letters[0] : data.letters[d]);
    return made;
  }
};
/// `base` with `updates` written at the places along `Dim` that an index of one dimension names: (base, index,
/// updates). Where `Dim` is split, each rank writes what is its own. The index must not be split: later writes win.
template <int Dim>
struct scatter : detail::checked_operation<detail::checked_dims<Dim>, 3> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    const int rank = detail::rank_of_all(std::array{ranks[0], ranks[2]}, Dim + 1);
    auto made = detail::unary_rule<>(rank, factor_kind::pass, detail::listed::kept, any_partials);
    auto& index = made.operand();
    detail::append(index, made.factor(factor_kind::whole));
    auto& updates = made.operand(1, any_partials);
    for (int d = 0; d < rank; ++d) detail::append(updates, d == Dim ? index.letters[0] : made.operands[0].letters[d]);
    return made;
  }
};
/// Sums `updates` into a tensor of zeros at the places along `Dim` that an index of one dimension names: (updates,
/// index). Updates that are split with their index give a sum. The backward of `gather` and `embedding`.
template <int Dim>
struct scatter_add : detail::checked_operation<detail::checked_dims<Dim>, 2> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>& ranks) {
    auto made = detail::unary_rule<Dim>(detail::rank_of_all(std::array{ranks[0]}, Dim + 1), factor_kind::reduction,
                                        detail::listed::replaced, sums);
    auto& index = made.operand();
    detail::append(index, made.operands[0].letters[Dim]);
    return made;
  }
};

/// All prefixes along `Dim` combined under an operator, of which partial values pass. In parts: the exclusive scan over
/// the ranks of what `reduce` gives.
template <class Op, int Dim>
struct scan : detail::checked_operation<detail::checked_dims<Dim>, 1, 1, Op>,
              detail::along<factor_kind::whole, detail::listed::kept, own, 1, Dim> {};
template <int Dim>
struct cumsum : scan<plus, Dim> {};  ///< all prefixes along `Dim`, summed
/// Sorted along `Dim`: values and their places.
template <int Dim>
struct sort : detail::checked_operation<detail::checked_dims<Dim>, 1>,
              detail::along<factor_kind::whole, detail::listed::replaced, no_partials, 2, Dim> {};
/// The largest elements along `Dim`: values and their places. In parts: the largest of each part, gathered, and of
/// those the largest again.
template <int Dim>
struct top_k : sort<Dim> {};
/// The place of the largest element along `Dim`, which is dropped. In parts: `largest_with_index`.
template <int Dim>
struct argmax : detail::checked_operation<detail::checked_dims<Dim>, 1>,
                detail::along<factor_kind::whole, detail::listed::dropped, no_partials, 1, Dim> {};
/// The largest element along `Dim` with its place, an `indexed_value`; `Dim` may be split, under the monoid
/// `take_larger`.
template <int Dim>
struct largest_with_index : detail::checked_operation<detail::checked_dims<Dim>, 1, 1, take_larger>,
                            detail::along<factor_kind::reduction, detail::listed::dropped, no_partials, 1, Dim> {};

/// Random numbers in the shape and layout of an operand, by global index, so that every layout gives the same ones.
struct random : elementwise {
  static constexpr int most = 1;
};
/// Elements kept or set to zero by global index: linear in the operand.
struct dropout : scale {};

/// Attention of queries `[b, h, s, d]`, keys `[b, h, t, d]` and values `[b, h, t, e]`, any mask: `[b, h, s, e]`. Keys must
/// not be split along t: see `attention_state`. Where heads share keys and values these have fewer; heads are split alike.
struct attention : detail::operation_base<3> {
  static constexpr factor_rule<> rule_with(factor_kind keys, unsigned char partials) {
    factor_rule<> made;
    const char b = made.factor(), h = made.factor(), s = made.factor(), e = made.factor();
    const char d = made.factor(factor_kind::whole), t = made.factor(keys);
    const auto fill = [](rule_term<20>& term, const char(&letters)[4]) {
      for (const char c : letters) detail::append(term, c);
    };
    fill(made.operand(), {b, h, s, d});
    fill(made.operand(), {b, h, t, d});
    fill(made.operand(partials == no_partials ? 0 : 1, partials), {b, h, t, e});
    fill(made.result(), {b, h, s, e});
    return made;
  }
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    return rule_with(factor_kind::whole, sums);
  }
};
/// Attention whose result is a `softmax_state` per element, which is partial under `merge_softmax` where keys and
/// values are split along t: attention over split keys.
struct attention_state : detail::operation_base<3, 3, merge_softmax> {
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    return attention::rule_with(factor_kind::reduction, no_partials);
  }
};

}  // namespace op
}  // namespace heddle::inline v0
