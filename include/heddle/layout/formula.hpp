// heddle/layout/formula.hpp: einsum formulas, "bi,io->bo", read at compile time.
#pragma once

#include <heddle/core/fixed_string.hpp>

#include <cstddef>

namespace heddle::inline v0 {
namespace detail {

enum class formula_problem : unsigned char {
  none,
  no_arrow,
  bad_character,
  letter_twice,
  output_letter_twice,
  unknown_output
};

// The dimensions of one operand, one letter each.
template <std::size_t Capacity>
struct formula_term {
  char letters[Capacity]{};
  int count = 0;

  constexpr int find(char letter) const noexcept {
    for (int i = 0; i < count; ++i)
      if (letters[i] == letter) return i;
    return -1;
  }
  constexpr bool has(char letter) const noexcept { return find(letter) >= 0; }
};

template <std::size_t Capacity>
struct formula {
  formula_term<Capacity> operands[Capacity]{};
  int operand_count = 1;
  formula_term<Capacity> output{};
  formula_problem problem = formula_problem::none;
  char culprit = ' ';

  constexpr void refuse(formula_problem p, char at) {
    if (problem != formula_problem::none) return;
    problem = p;
    culprit = at;
  }
  // Nothing is summed and nothing is multiplied: the values are the operand's own, in another order.
  constexpr bool is_permutation() const noexcept { return operand_count == 1 && operands[0].count == output.count; }
};

template <std::size_t N>
constexpr formula<N> read_formula(const fixed_string<N>& text) {
  formula<N> f;
  bool after_arrow = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.text[i];
    if (c == ' ') continue;
    if (c == ',' && !after_arrow) {
      ++f.operand_count;
      continue;
    }
    if (c == '-' && text.text[i + 1] == '>' && !after_arrow) {
      after_arrow = true;
      ++i;
      continue;
    }
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
      f.refuse(formula_problem::bad_character, c);
      continue;
    }
    auto& term = after_arrow ? f.output : f.operands[f.operand_count - 1];
    if (term.has(c)) f.refuse(after_arrow ? formula_problem::output_letter_twice : formula_problem::letter_twice, c);
    term.letters[term.count++] = c;
  }
  if (!after_arrow) f.refuse(formula_problem::no_arrow, ' ');
  for (int i = 0; i < f.output.count; ++i) {
    bool known = false;
    for (int o = 0; o < f.operand_count; ++o) known = known || f.operands[o].has(f.output.letters[i]);
    if (!known) f.refuse(formula_problem::unknown_output, f.output.letters[i]);
  }
  return f;
}

// Carries the letter into the compiler's message.
template <bool Ok, char Letter>
inline constexpr bool formula_is_valid = Ok;

// The formula of a template argument, checked once, with one message per mistake.
template <fixed_string Text>
struct checked_formula {
  static constexpr auto value = read_formula(Text);
  static constexpr formula_problem problem = value.problem;
  static constexpr bool ok = problem == formula_problem::none;
  static_assert(formula_is_valid<(problem != formula_problem::no_arrow), value.culprit>,
                "heddle: an einsum formula needs an arrow and the letters of its result: write \"bi,io->bo\"");
  static_assert(formula_is_valid<(problem != formula_problem::bad_character), value.culprit>,
                "heddle: an einsum formula is made of letters, commas and one arrow; remove the other characters");
  static_assert(formula_is_valid<(problem != formula_problem::letter_twice), value.culprit>,
                "heddle: an einsum formula repeats a letter inside one operand (a diagonal), which has no layout rule; "
                "give each dimension its own letter");
  static_assert(formula_is_valid<(problem != formula_problem::output_letter_twice), value.culprit>,
                "heddle: an einsum formula repeats a letter in its result; name each dimension of the result once");
  static_assert(formula_is_valid<(problem != formula_problem::unknown_output), value.culprit>,
                "heddle: the result of an einsum formula names a letter that no operand has; a dimension cannot come "
                "from nowhere, so add the letter to an operand or remove it");
};

}  // namespace detail
}  // namespace heddle::inline v0
