// heddle/collective/impl/decision_text.hpp: bodies of heddle/collective/decision_text.hpp.
#pragma once

#include <heddle/collective/decision_text.hpp>
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

HEDDLE_INLINE std::string explain_choice(const collective_question& q, algorithm_name chosen,
                                         std::span<const algorithm_cost> costs) {
  const auto number = [](const char* format, double x) {
    char digits[48];
    std::snprintf(digits, sizeof digits, format, x);
    return std::string(digits);
  };
  std::string text{to_string(q.what)};
  text += " of " + std::to_string(q.bytes) + " bytes on " + std::to_string(q.ranks);
  text += q.ranks == 1 ? " rank: " : " ranks: ";
  if (chosen == algorithm_name::built_in)
    text += "the communicator's own call";
  else
    text += to_string(chosen);
  std::size_t widest = 0;
  bool known = false;
  for (const algorithm_cost& c : costs) {
    widest = (std::max)(widest, to_string(c.name).size());
    if (c.name != chosen) continue;
    known = true;
    if (costs[0].seconds > 0) text += ", " + number("%.2f", c.seconds / costs[0].seconds) + " times the least";
  }
  if (!known) text += ", for which no cost is known";
  text += "\n";
  for (const algorithm_cost& c : costs) {
    std::string name(to_string(c.name));
    name.resize(widest + 2, ' ');
    text += "  ";
    text += name;
    text += number("%10.4g us", c.seconds * 1e6);
    text += c.name == chosen ? "  <\n" : "\n";
  }
  return text;
}

}  // namespace heddle::inline v0
