// Einsum formulas: what is accepted names every letter of the result in an operand, and has the letters of the text.
#include <heddle/layout/formula.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(formula) {
  namespace hd = heddle;
  constexpr std::size_t most = 32;
  char characters[most + 1]{};
  for (std::size_t i = 0; i < most; ++i) characters[i] = i < size && data[i] != 0 ? static_cast<char>(data[i]) : ' ';
  const hd::fixed_string<most + 1> text(characters);
  const auto f = hd::detail::read_formula(text);
  if (f.problem != hd::detail::formula_problem::none) return;
  int letters = 0, expected = 0;
  for (int o = 0; o < f.operand_count; ++o) letters += f.operands[o].count;
  for (const char c : std::string_view(characters, most))
    expected += (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ? 1 : 0;
  fuzz::require(letters + f.output.count == expected, "every letter has a place");
  for (int i = 0; i < f.output.count; ++i) {
    bool known = false;
    for (int o = 0; o < f.operand_count; ++o) known = known || f.operands[o].has(f.output.letters[i]);
    fuzz::require(known, "a letter of the result is one of an operand");
  }
}
