// heddle/train/activations/recompute.hpp: the policy that recomputes activations.
#pragma once

#include <heddle/core/fixed_string.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/model/saved_activations.hpp>

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::activations {

// ---- what is computed again -------------------------------------------------------------------------------------
/// Nothing, unless the settings say so at start-up.
struct none {
  static constexpr model::recompute_plan again{};
};
namespace detail {
// In a function: clang takes a class whose own assertion failed for broken, and says so a second time.
template <int K>
constexpr int every_checked() {
  static_assert(K > 0, "heddle: activations::every<K>: every how many blocks? K is at least 1");
  return K > 0 ? K : 1;
}
}  // namespace detail
/// Everything in every K-th block of the model (blocks K-1, 2K-1, ...): only its input is kept.
template <int K>
struct every {
  static constexpr model::recompute_plan again{{}, detail::every_checked<K>()};
};
/// Everything in every block.
using full = every<1>;

namespace detail {
// What the compiler prints next to the advice.
template <fixed_string Name>
struct saved_activation {
  static constexpr bool exists = model::detail::activation_if_named(Name.view()).any();
};
template <fixed_string... Names>
constexpr model::activation_set named_activations() {
  if constexpr ((saved_activation<Names>::exists && ...)) {
    return (model::activation_set{} | ... | model::activation_named(Names.view()));
  } else {
    static_assert((saved_activation<Names>::exists && ...),
                  "heddle: activations::named<...>: no saved activation has this name; there are ln_1.out, attn.qkv, "
                  "attn.out, mid, ln_2.out, mlp.hidden, mlp.activated, ln_f.out and head.logits; what layers of your "
                  "own call by their tags is named in options.recompute");
    return {};
  }
}
}  // namespace detail

/// The activations of these names (`model::activation_names`), in every block and behind the last.
template <fixed_string... Names>
struct named {
  static constexpr model::recompute_plan again{detail::named_activations<Names...>(), 0};
};

namespace detail {
template <int Part, int Of>
constexpr model::row_share checked_tail() {
  static_assert(0 < Part && Part <= Of,
                "heddle: activations::keep_tail<Part, Of>: a share of the rows: 0 < Part <= Of, such as keep_tail<1, 2>");
  return 0 < Part && Part <= Of ? model::row_share{Part, Of} : model::row_share{1, 2};
}
}  // namespace detail

/// Where outputs of attention are dropped, those of a rank's last rows are kept all the same, Part / Of of them, and only the queries
/// before them attend again. In the order `split::zigzag` the last rows are the late halves of documents, which see most keys: with
/// `keep_tail<1, 2>` a quarter of the attention is done again for half of the memory. For models with a context split.
/// Source: Sun et al. 2025, arXiv:2509.19836 (sequence-level selective checkpointing).
template <int Part, int Of>
struct keep_tail {
  static constexpr model::recompute_plan again{{}, 0, detail::checked_tail<Part, Of>()};
};

// ---- the policy -------------------------------------------------------------------------------------------------
namespace detail {
template <class T>
concept kept_somehow = policy<T> && std::is_same_v<typename T::kind, activations_kind>;

/// Memory of kind `Base` for what is kept, with settings that say what is not.
template <class Base, model::recompute_plan Again>
class recomputed_layers : public Base {
 public:
  struct settings : Base::settings {
    model::recompute_plan again = Again;  ///< `model::parse_recompute` reads it from text
  };
  recomputed_layers(const settings& how, int slots, std::span<const std::int64_t> elements)
    requires std::constructible_from<Base, const typename Base::settings&, int, std::span<const std::int64_t>>
      : Base(how, slots, elements) {}
  template <class Queue>
    requires std::constructible_from<Base, Queue&, const typename Base::settings&, int, std::span<const std::int64_t>>
  recomputed_layers(Queue& queue, const settings& how, int slots, std::span<const std::int64_t> elements)
      : Base(queue, how, slots, elements) {}
  recomputed_layers(const settings& how, int slots, int layers, std::int64_t elements)
    requires std::constructible_from<Base, const typename Base::settings&, int, int, std::int64_t>
      : Base(how, slots, layers, elements) {}
};

// A policy for what is kept says nothing about what is not.
template <class What>
constexpr model::recompute_plan again_of() noexcept {
  if constexpr (kept_somehow<What>)
    return {};
  else
    return What::again;
}
template <class... Whats>
constexpr model::recompute_plan again_of_all() noexcept {
  static_assert(((again_of<Whats>().every > 0 ? 1 : 0) + ... + 0) <= 1,
                "heddle: activations::recompute<...> got two of full and every<K>; keep one of them");
  constexpr int tails = ((again_of<Whats>().tail.any() ? 1 : 0) + ... + 0);
  static_assert(tails <= 1, "heddle: activations::recompute<...> got two of keep_tail<Part, Of>; keep one of them");
  static_assert(tails == 0 || (again_of<Whats>().drops_attention() || ...),
                "heddle: activations::keep_tail<Part, Of> keeps rows of attn.out where it is dropped: add full, every<K> or "
                "named<\"attn.out\">");
  model::recompute_plan plan;
  ((plan.named = plan.named | again_of<Whats>().named, plan.every = plan.every | again_of<Whats>().every,
    plan.tail = again_of<Whats>().tail.any() ? again_of<Whats>().tail : plan.tail),
   ...);
  return plan;
}
template <class... Whats>
struct kept_by {
  using type = keep;
};
template <class What, class... Whats>
struct kept_by<What, Whats...> : kept_by<Whats...> {};
template <kept_somehow What, class... Whats>
struct kept_by<What, Whats...> {
  static_assert((!kept_somehow<Whats> && ...),
                "heddle: activations::recompute<...> got two policies for what is kept; keep one of them");
  using type = What;
};
// Of a policy that keeps what is kept in that space; nothing of others.
template <class Kept, class T, class Space>
struct kept_in {};
template <class Kept, class T, class Space>
  requires requires { typename Kept::template layers_in<T, Space>; }
struct kept_in<Kept, T, Space> {
  using type = typename Kept::template layers_in<T, Space>;
};
}  // namespace detail

/// Drops saved activations after forward and computes them again in backward: `none`, `full`, `every<K>`, `named<...>`,
/// or several of these together; `full, named<"head.logits">` keeps the least, `keep_tail<Part, Of>` more. A policy
/// among them says how the rest is kept, as `offload<...>`; without one, in memory.
///
/// Gradients are the same bits as with `keep`. A backward computes everything once: with a split backward in
/// backward_input, and what backward_weight needs waits for it. What the last forward before it has computed of its own
/// microbatch is not computed again. Over tp, `mid` is summed again.
/// Source: Chen et al. 2016, arXiv:1604.06174; selective: Korthikanti et al. 2022, arXiv:2205.05198.
template <class... Whats>
struct recompute {
  using kind = activations_kind;
  using kept = typename detail::kept_by<Whats...>::type;
  static constexpr model::recompute_plan again = detail::again_of_all<Whats...>();
  /// Whether what is kept has to be brought back before a backward.
  static constexpr bool reloads = requires { requires kept::reloads; };
  template <class T>
  using layers = detail::recomputed_layers<typename kept::template layers<T>, again>;
  template <class T, class Space>
  using layers_in = detail::recomputed_layers<typename detail::kept_in<kept, T, Space>::type, again>;
};

}  // namespace heddle::inline v0::activations
