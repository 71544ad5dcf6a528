// heddle/model/pipeline/hooks.hpp: calls a caller's hook if there is one.
#pragma once

#include <heddle/schedule/action.hpp>

#include <type_traits>

namespace heddle::inline v0::model::detail {

// A hook that is there but cannot be called would be passed over in silence: that is refused.
template <bool Named, bool Callable>
consteval bool hook_is_callable() {
  static_assert(!Named || Callable,
                "heddle: a hook of model::executor has the wrong parameters: optimizer_step, unshard and reshard take "
                "(int stage), recompute, offload and reload take (int stage, int microbatch, int slot), before takes "
                "(const schedule::action&)");
  return Callable;
}

// Before a computation begins: F, B, I or W.
template <class Hooks>
void call_before(Hooks& hooks, const schedule::action& a) {
  using H = std::remove_cvref_t<Hooks>;
  if constexpr (hook_is_callable<requires { &H::before; }, requires { hooks.before(a); }>()) hooks.before(a);
}

// The optional hooks: what they mean is the caller's; where they stand is the table's.
template <class Hooks>
void call_optional_hook(Hooks& hooks, const schedule::action& a, int slot) {
  using schedule::action_kind;
  using H = std::remove_cvref_t<Hooks>;
  switch (a.kind) {
    case action_kind::optimizer_step:
      if constexpr (hook_is_callable<requires { &H::optimizer_step; }, requires { hooks.optimizer_step(0); }>())
        hooks.optimizer_step(a.stage);
      break;
    case action_kind::unshard:
      if constexpr (hook_is_callable<requires { &H::unshard; }, requires { hooks.unshard(0); }>())
        hooks.unshard(a.stage);
      break;
    case action_kind::reshard:
      if constexpr (hook_is_callable<requires { &H::reshard; }, requires { hooks.reshard(0); }>())
        hooks.reshard(a.stage);
      break;
    case action_kind::recompute:
      if constexpr (hook_is_callable<requires { &H::recompute; }, requires { hooks.recompute(0, 0, 0); }>())
        hooks.recompute(a.stage, a.microbatch, slot);
      break;
    case action_kind::offload:
      if constexpr (hook_is_callable<requires { &H::offload; }, requires { hooks.offload(0, 0, 0); }>())
        hooks.offload(a.stage, a.microbatch, slot);
      break;
    case action_kind::reload:
      if constexpr (hook_is_callable<requires { &H::reload; }, requires { hooks.reload(0, 0, 0); }>())
        hooks.reload(a.stage, a.microbatch, slot);
      break;
    default:
      break;
  }
}

}  // namespace heddle::inline v0::model::detail
