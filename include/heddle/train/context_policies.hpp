// heddle/train/context_policies.hpp: policies of context<...>: carriers, orders, groups.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/context/carriers.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/context/pieces.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/plan/document_waves.hpp>
#include <heddle/plan/flex_groups.hpp>
#include <heddle/plan/hybrid_data.hpp>
#include <heddle/plan/sequence_costs.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

/// The kind of policies that carry the backward pass, where the carrier of the forward pass does not.
struct backward_carrier_kind {};
/// Another carrier for the backward pass than for the forward one.
template <context_carrier_policy Carrier>
struct backward {
  using kind = backward_carrier_kind;
  using carrier = Carrier;
};

/// The kind of policies that say which ranks share which documents: `plan(lengths, ranks, rows_per_rank, costs, balance)` is a pure
/// function, which every rank calls alike.
struct document_planner_kind {};
namespace planner {
/// All ranks of the axis share every document.
struct whole {
  using kind = document_planner_kind;
  static constexpr std::string_view name = "whole";
  static std::vector<plan::document_wave> plan(std::span<const std::int64_t> lengths, int ranks, std::int64_t rows,
                                               const heddle::plan::sequence_costs&, heddle::plan::balance) {
    return heddle::plan::whole_axis(lengths, ranks, rows);
  }
};
/// Groups of powers of two: `plan::flex_groups`.
struct flex {
  using kind = document_planner_kind;
  static constexpr std::string_view name = "flex";
  static std::vector<plan::document_wave> plan(std::span<const std::int64_t> lengths, int ranks, std::int64_t rows,
                                               const heddle::plan::sequence_costs& costs, heddle::plan::balance) {
    return heddle::plan::flex_groups(lengths, ranks, rows, costs, {.smallest = 1});
  }
};
/// As many ranks as a document needs, any of them: `plan::hybrid_data`.
struct hybrid {
  using kind = document_planner_kind;
  static constexpr std::string_view name = "hybrid";
  static std::vector<plan::document_wave> plan(std::span<const std::int64_t> lengths, int ranks, std::int64_t rows,
                                               const heddle::plan::sequence_costs& costs,
                                               heddle::plan::balance by) {
    return heddle::plan::hybrid_data(lengths, ranks, rows, costs, by);
  }
};
}  // namespace planner

namespace train {

/// The decisions of a `context<Policies...>`, as values.
struct context_settings {
  using planner_function = std::vector<plan::document_wave> (*)(std::span<const std::int64_t>, int, std::int64_t,
                                                                const plan::sequence_costs&, plan::balance);
  context_carrier forward = carrier_of<carrier::kv_ring>();
  context_carrier backward = carrier_of<carrier::kv_ring>();
  context_cut (*cut)(std::vector<context_document>, int ranks) = &cut_documents<split::zigzag>;
  std::vector<compute::attention_slice> (*mask)(std::int64_t length) = [](std::int64_t length) {
    return masks::causal{}.slices(length);
  };
  planner_function plan = &planner::whole::plan;
};

namespace detail {

struct order_kind {};
struct mask_kind {};
template <class P>
consteval auto kind_of_context_policy() {
  if constexpr (requires { typename P::kind; })
    return std::type_identity<typename P::kind>{};
  else if constexpr (split_policy<P>)
    return std::type_identity<order_kind>{};
  else if constexpr (document_mask<P>)
    return std::type_identity<mask_kind>{};
  else
    return std::type_identity<void>{};
}
template <class P>
using context_kind_of = typename decltype(kind_of_context_policy<P>())::type;
template <bool Ok, class Policy>
inline constexpr bool is_policy_of_context = Ok;

template <class P>
void decide(context_settings& s) {
  using kind = context_kind_of<P>;
  if constexpr (std::is_same_v<kind, carrier_kind>) {
    s.forward = s.backward = carrier_of<P>();
  } else if constexpr (std::is_same_v<kind, order_kind>) {
    s.cut = &cut_documents<P>;
  } else if constexpr (std::is_same_v<kind, mask_kind>) {
    s.mask = [](std::int64_t length) { return P{}.slices(length); };
  } else if constexpr (std::is_same_v<kind, document_planner_kind>) {
    s.plan = &P::plan;
  }
}
template <class P>
void decide_backward(context_settings& s) {
  if constexpr (std::is_same_v<context_kind_of<P>, backward_carrier_kind>) s.backward = carrier_of<typename P::carrier>();
}

// Whether a carrier is one of this library's, both of whose passes are tested: tables of others are checked.
HEDDLE_INLINE bool is_known(const context_carrier& carrier);

/// By names: "token-ring,zigzag,hybrid". Errors: `config_error` that lists the known ones.
HEDDLE_INLINE context_settings named_context_settings(std::string_view names);

}  // namespace detail

/// Those of a sharding's context split. `names`: `options.context`, for `context<>` without policies only. Errors: `config_error`.
template <class Context>
struct settings_of_context;
template <class... Policies>
struct settings_of_context<context<Policies...>> {
  static_assert((detail::is_policy_of_context<!std::is_void_v<detail::context_kind_of<Policies>>, Policies> && ...),
                "heddle: context<Policies...> takes a carrier, backward<carrier>, an order (a split policy), a mask "
                "(masks::...) and a planner (planner::...)");
  static_assert((detail::is_policy_of_context<(count_of<detail::context_kind_of<Policies>,
                                                        detail::context_kind_of<Policies>...> == 1),
                                              Policies> &&
                 ...),
                "heddle: context<Policies...> got two policies of one kind; keep one of them");
  static context_settings make(const std::string& names) {
    if constexpr (sizeof...(Policies) == 0) {
      return detail::named_context_settings(names);
    } else {
      if (!names.empty())
        throw config_error("heddle: options.context is \"" + names +
                           "\", but the sharding's context<...> has policies; use context<> to choose by name");
      context_settings s;
      (detail::decide<Policies>(s), ...);
      (detail::decide_backward<Policies>(s), ...);
      return s;
    }
  }
};

}  // namespace train
}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/context_policies.hpp>
#endif
