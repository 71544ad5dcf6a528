// heddle/rl/objective_checks.hpp: checks of what an objective reads of a token.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/objective.hpp>

#include <string>

namespace heddle::inline v0::rl::detail {

// By its value where that says so (`any_objective`), else by its type.
template <class Objective>
bool knows_what_drew(const Objective& o) {
  if constexpr (requires { o.knows_what_drew(); }) return o.knows_what_drew();
  return reads_behaviour<Objective>;
}
template <class Objective>
bool knows_reference(const Objective& o) {
  if constexpr (requires { o.knows_reference(); }) return o.knows_reference();
  return reads_reference<Objective>;
}
template <class Objective>
inline constexpr bool may_know_reference =
    reads_reference<Objective> || requires(const Objective& o) { o.knows_reference(); };

// Errors: `config_error` for an objective that does not read what it must.
template <class Objective>
void require_objective(const Objective& o, const flow& how) {
  if (how.overtakes() && !how.as_is && !knows_what_drew(o))
    throw config_error("heddle: rl: this pipeline writes one answer with several versions of the weights, and " +
                       to_string(o) + " does not read what drew a token");
}

}  // namespace heddle::inline v0::rl::detail
