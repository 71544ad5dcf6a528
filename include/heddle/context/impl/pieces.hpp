// heddle/context/impl/pieces.hpp: bodies of heddle/context/pieces.hpp.
#pragma once

#include <heddle/context/pieces.hpp>

#include <string>
#include <string_view>

namespace heddle::inline v0 {

HEDDLE_INLINE const context_order& named_context_order(std::string_view name) {
  std::string known;
  for (const context_order& order : context_orders()) {
    if (order.name == name) return order;
    known += known.empty() ? "" : ", ";
    known += order.name;
  }
  throw config_error("heddle: no token order is named \"" + std::string(name) + "\"; the orders are " + known);
}

}  // namespace heddle::inline v0
