// heddle/train/strategy.hpp: a training strategy as one type: mesh, schedule, ZeRO and more.
#pragma once

#include <heddle/compute/facets.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/determinism.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/saved_activations.hpp>
#include <heddle/schedule/gradient_scale.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/optimizers/by_default.hpp>
#include <heddle/train/pipeline_axis.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/steps.hpp>
#include <heddle/train/zero.hpp>

#include <type_traits>

namespace heddle::inline v0 {

namespace schedule {
class named;  // of schedule/named.hpp, with all generators
}

namespace detail {

// What is declared before it is defined in a header of its own, with all that it brings, has no kind before that is included.
template <class P>
inline constexpr bool strategy_has_header =
    policy<P> || !contains<P, schedule::named, captured_steps, post_validation, post_validation_with_copy>;
template <class... Ps>
inline constexpr bool has_mesh = policies_of_kind<mesh_kind, Ps...> != 0;

struct strategy_policies
    : policy_set<strategy_policies, mesh_kind, schedule_kind, zero_kind, compute::backend_kind, observer_kind,
                 layers_kind, norm_check_kind, steps_kind, activations_kind, pipeline_axis_kind,
                 schedule::gradient_scale_kind, precision_kind, optimizer_kind, reductions_kind, determinism_kind> {
  template <class P>
  static constexpr void refuse_unknown() {
    static_assert(strategy_has_header<P>,
                  "heddle: strategy<...> has a policy whose header is missing: schedule::named needs #include "
                  "<heddle/schedule/named.hpp>, captured_steps <heddle/train/captured_steps.hpp>, post_validation and "
                  "post_validation_with_copy <heddle/train/post_validation.hpp>");
    if constexpr (strategy_has_header<P>)
      static_assert(takes<P>,
                    "heddle: strategy<...> does not know this policy; it takes a mesh, a schedule, zero<N>, a compute "
                    "backend, an observer, a pipeline_axis, layers_by_cost, post_validation, captured_steps, "
                    "reduce_beside, determinism, precision<...>, an optimizer's rule, what becomes of saved "
                    "activations and how gradients of "
                    "skipped stages are scaled");
  }
  template <class... Ps>
  static constexpr void refuse_doubled() {
    static_assert((only_policy_of_its_kind<Ps, Ps...> && ...),
                  "heddle: strategy<...> got two policies of one kind; keep one of them");
  }
};
// Of the axes of a mesh, or pp: a mesh without that has one pipeline rank.
template <class Axis, class Mesh>
inline constexpr bool mesh_has_pipeline = std::is_same_v<Axis, pp> || Mesh::template has<Axis>;
// What a rounded weight or moment was before a step does not follow from what it is behind it.
template <class NormCheck, class Precision>
inline constexpr bool step_can_be_taken_back = !NormCheck::steps_first || NormCheck::copies || !Precision::is_of_state;
template <class NormCheck, class Rule>
inline constexpr bool rule_can_be_taken_back =
    !NormCheck::steps_first || NormCheck::copies || train::detail::rule_kernels<Rule>::undoes;
template <class NormCheck, class Precision, class Reductions>
constexpr bool taking_back_checked() {
  static_assert(!NormCheck::steps_first || !Reductions::beside,
                "heddle: with post_validation a stage steps when its gradients are summed, which reduce_beside leaves "
                "to the end of the backward; leave one of the two out");
  static_assert(step_can_be_taken_back<NormCheck, Precision>,
                "heddle: post_validation takes steps back by the optimizer's formulas, and what precision<...> rounds "
                "is not brought back by them; use post_validation_with_copy");
  return true;
}
// Random bits are addressed by the elements of parameters.
template <class Rule, class Precision>
inline constexpr bool moments_can_be_rounded =
    !train::detail::acts_on_whole_tensors<Rule> ||
    !std::is_same_v<typename Precision::moment_rounding, rounding::stochastic>;
template <class Rule, class NormCheck, class Precision>
constexpr bool rule_fits() {
  if constexpr (train::detail::rule_checked<Rule>()) {
    static_assert(moments_can_be_rounded<Rule, Precision>,
                  "heddle: moments are rounded stochastically by rules of single elements only; with a rule of whole "
                  "tensors take "
                  "moments_in<V>, which rounds to the nearest");
    static_assert(
        rule_can_be_taken_back<NormCheck, Rule>,
        "heddle: post_validation takes steps back, and the rule of this optimizer has no `undo`; give it one, "
        "or use post_validation_with_copy");
    return rule_can_be_taken_back<NormCheck, Rule> && moments_can_be_rounded<Rule, Precision>;
  } else {
    return false;
  }
}
// After an error the default stands in.
template <class Rule, class NormCheck, class Precision>
using checked_rule = std::conditional_t<rule_fits<Rule, NormCheck, Precision>(), Rule, optimizers::by_default>;

// A backend under a `precision`, and whether it has what that needs; of those that round operands of products in train/products.hpp.
template <class Backend, class Precision>
struct backend_under {
  using type = Backend;
};
template <class Backend, class Precision>
struct checked_products {
  static constexpr bool value() { return true; }
};
// A policy for saved activations says where it can keep them.
template <class Activations, class Space>
struct keeps_activations_in_memory {
  static constexpr bool value =
      std::is_same_v<Space, host_memory> || requires { typename Activations::template layers_in<float, Space>; };
};
template <class Backend, class Precision, class Activations>
constexpr bool backend_checked() {
  if constexpr (!checked_products<Backend, Precision>::value())
    return false;
  else if constexpr (!keeps_activations_in_memory<Activations, space_of<Backend>>::value)
    static_assert(keeps_activations_in_memory<Activations, space_of<Backend>>::value,
                  "heddle: this policy keeps saved activations in the host's memory only; with this backend take "
                  "activations::keep, activations::recompute or activations::offload");
  else
    return true;
  return false;
}
// After an error a backend of the host stands in.
template <class Backend, bool Fits>
using backend_if = std::conditional_t<Fits, Backend, compute::host<>>;

template <class... Ps>
struct selected_strategy {
  using mesh = v0::select_policy<mesh_kind, heddle::mesh<>, Ps...>;
  using schedule = v0::select_policy<schedule_kind, heddle::schedule::one_f_one_b<microbatches<>>, Ps...>;
  using zero = v0::select_policy<zero_kind, heddle::zero<0>, Ps...>;
  using precision = v0::select_policy<precision_kind, heddle::precision<>, Ps...>;
  using observer = v0::select_policy<observer_kind, null_observer, Ps...>;
  using layers = v0::select_policy<layers_kind, layers_evenly, Ps...>;
  using norm_check = v0::select_policy<norm_check_kind, norm_first, Ps...>;
  using steps = v0::select_policy<steps_kind, eager_steps, Ps...>;
  using reductions = v0::select_policy<reductions_kind, reduce_in_turn, Ps...>;
  using activations = v0::select_policy<activations_kind, heddle::activations::keep, Ps...>;
  using pipeline = typename v0::select_policy<pipeline_axis_kind, pipeline_axis<pp>, Ps...>::axis;
  using chosen_backend = v0::select_policy<compute::backend_kind, compute::host<>, Ps...>;
  using backend =
      typename backend_under<backend_if<chosen_backend, backend_checked<chosen_backend, precision, activations>()>,
                             precision>::type;
  using gradient_scale = v0::select_policy<heddle::schedule::gradient_scale_kind, heddle::schedule::by_batch, Ps...>;
  using determinism = v0::select_policy<determinism_kind, heddle::determinism::not_guaranteed, Ps...>;
  using optimizer = checked_rule<v0::select_policy<optimizer_kind, optimizers::by_default, Ps...>, norm_check, precision>;
  static_assert(taking_back_checked<norm_check, precision, reductions>());

  static constexpr bool fits() {
    static_assert(has_mesh<Ps...>, "heddle: strategy<...> needs a mesh: strategy<mesh<axis<dp, 2>>, ...>");
    static_assert(!has_mesh<Ps...> || mesh_has_pipeline<pipeline, mesh>,
                  "heddle: the mesh of this strategy has no axis of the name in pipeline_axis<...>; name one of the "
                  "mesh's axes, or add the axis to the mesh (without the policy the pipeline runs along pp)");
    return has_mesh<Ps...> && mesh_has_pipeline<pipeline, mesh>;
  }
};

// A refused strategy still names something for every kind, and what is made from it knows, so that its uses add no
// errors of their own.
struct refused_strategy : selected_strategy<> {
  using schedule = heddle::schedule::one_f_one_b<microbatches<1>>;  // which needs no number
  static constexpr bool is_refused = true;
};
template <class Strategy>
inline constexpr bool is_refused_strategy = requires { Strategy::is_refused; };

}  // namespace detail

/// How a model is trained. Policies in any order, at most one per kind; what is left out has the default:
/// schedule 1F1B with run-time microbatches, `zero<0>`, the portable host backend, no observer, layers evenly over the
/// stages, AdamW, the gradient norm known before a step, each operation given to the backend by the host, saved activations kept in memory, gradients of stages that
/// microbatches skip divided by all of them (`schedule::by_batch`), gradients
/// summed where they are complete (`reduce_in_turn`), the pipeline along `pp`, everything of the model's element
/// type (`precision<>`), bits that other runs need not have (`determinism::not_guaranteed`). A mesh is required.
/// Members: `mesh`, `schedule`, `pipeline`, `zero`, `backend`, `observer`, `layers`, `norm_check`, `steps`, `reductions`,
/// `activations`, `gradient_scale`, `precision`, `determinism`, `optimizer`.
template <class... Policies>
struct strategy : decltype(detail::strategy_policies::choose<detail::selected_strategy<Policies...>,
                                                             detail::refused_strategy, Policies...>())::type {};

}  // namespace heddle::inline v0
