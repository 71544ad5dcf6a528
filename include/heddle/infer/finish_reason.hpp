// heddle/infer/finish_reason.hpp: reasons for which requests end, and their names.
#pragma once

#include <cstddef>
#include <iterator>
#include <string_view>

namespace heddle::inline v0::infer {

/// How a request ended. `none`: it goes on. `stop`: a stop token, an end token, or `engine::finish`. `length`: as many tokens as
/// were asked for, or the end of the context. `cancelled`: `engine::cancel`. `error`: `event::message` says what.
enum class finish_reason { none, stop, length, cancelled, error };

/// The name of a reason.
constexpr std::string_view to_string(finish_reason r) noexcept {
  constexpr std::string_view names[] = {"none", "stop", "length", "cancelled", "error"};  // as the enumerators stand
  static_assert(std::size(names) == static_cast<std::size_t>(finish_reason::error) + 1,
                "heddle: every reason has a name");
  const auto at = static_cast<std::size_t>(r);
  return at < std::size(names) ? names[at] : names[0];
}

}  // namespace heddle::inline v0::infer
