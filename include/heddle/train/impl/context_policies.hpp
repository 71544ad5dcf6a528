// heddle/train/impl/context_policies.hpp: bodies of heddle/train/context_policies.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/train/context_policies.hpp>

#include <string>
#include <string_view>

namespace heddle::inline v0::train::detail {

HEDDLE_INLINE bool is_known(const context_carrier& carrier) {
  for (const context_carrier& c : context_carriers())
    if (c.forward == carrier.forward && c.backward == carrier.backward && c.parts == carrier.parts) return true;
  return false;
}

HEDDLE_INLINE context_settings named_context_settings(std::string_view names) {
  context_settings s;
  struct known_planner {
    std::string_view name;
    context_settings::planner_function plan;
  };
  constexpr known_planner planners[] = {{planner::whole::name, &planner::whole::plan},
                                        {planner::flex::name, &planner::flex::plan},
                                        {planner::hybrid::name, &planner::hybrid::plan}};
  for (int place = 0; !names.empty(); ++place) {
    const std::size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    names = comma == std::string_view::npos ? std::string_view{} : names.substr(comma + 1);
    if (place == 0) {
      s.forward = s.backward = named_context_carrier(name);
    } else if (place == 1) {
      s.cut = named_context_order(name).cut;
    } else if (place == 2) {
      s.plan = nullptr;
      for (const known_planner& p : planners)
        if (p.name == name) s.plan = p.plan;
      if (s.plan == nullptr)
        throw config_error("heddle: no planner of documents is named \"" + std::string(name) +
                           "\"; the planners are whole, flex, hybrid");
    } else {
      throw config_error("heddle: options.context has a carrier, an order and a planner; what is \"" +
                         std::string(name) + "\" for?");
    }
  }
  return s;
}

}  // namespace heddle::inline v0::train::detail
