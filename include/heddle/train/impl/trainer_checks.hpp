// heddle/train/impl/trainer_checks.hpp: bodies of trainer_checks.hpp.
#pragma once

#include <heddle/train/trainer_checks.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE void note_name(std::vector<std::string>& names, std::string_view name) {
  names.emplace_back(name);
}
HEDDLE_INLINE void add_name(std::string& names, std::string_view name) {
  std::string line;
  while (!name.empty()) {
    const std::size_t dot = name.find('.'), end = dot == std::string_view::npos ? name.size() : dot;
    const std::string_view part = name.substr(0, end);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    line += number ? std::string_view("*") : part;
    if (dot != std::string_view::npos) line += '.';
    name.remove_prefix(dot == std::string_view::npos ? end : end + 1);
  }
  line += '\n';
  if (names.starts_with(line) || names.find('\n' + line) != std::string::npos) return;
  names += line;
}

HEDDLE_INLINE config_error no_parameter_of_rate(const std::string& text, std::string_view names) {
  std::string known;
  for (; !names.empty(); names.remove_prefix(names.find('\n') + 1)) add_name(known, names.substr(0, names.find('\n')));
  std::string message = "heddle: rates: no trained parameter's name begins with '" + text + "'; their names are ";
  for (const char c : known.substr(0, known.size() - (known.empty() ? 0 : 1)))
    message += c == '\n' ? std::string(", ") : std::string(1, c);
  return config_error(message);
}

HEDDLE_INLINE void refuse_gradients_of_same_step(bool same, std::int64_t step) {
  if (same)
    throw config_error("heddle: the gradients of step " + std::to_string(step + 1) +
                       " have been computed, and the step has not ended: its samples would be the same. End it by "
                       "apply_gradients(result), by apply_gradients(result, update) with an update of your own, or ask "
                       "for the same samples by compute_gradients_again(data)");
}

}  // namespace heddle::inline v0::train::detail
