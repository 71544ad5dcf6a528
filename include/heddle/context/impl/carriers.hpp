// heddle/context/impl/carriers.hpp: bodies of heddle/context/carriers.hpp.
#pragma once

#include <heddle/context/carriers.hpp>

#include <string>

namespace heddle::inline v0 {

HEDDLE_INLINE const context_carrier& named_context_carrier(std::string_view name) {
  std::string known;
  for (const context_carrier& c : context_carriers()) {
    if (c.name == name) return c;
    known += known.empty() ? "" : ", ";
    known += c.name;
  }
  throw config_error("heddle: no carrier is named \"" + std::string(name) + "\"; the carriers are " + known);
}

}  // namespace heddle::inline v0
