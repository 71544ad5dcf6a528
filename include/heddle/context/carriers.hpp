// heddle/context/carriers.hpp: carriers: what travels so that queries meet all their keys.
#pragma once

#include <heddle/context/table.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

/// The kind of policies that carry operands of attention: see `context_carrier_policy`.
struct carrier_kind {};

/// A carrier: a type that writes the rounds of one document, whose ranks it is given in their order, for both passes.
///
///     using kind = hd::carrier_kind;
///     static constexpr std::string_view name = "ring";
///     static constexpr void forward(hd::context_builder& b, std::span<const int> ranks);
///     static constexpr void backward(hd::context_builder& b, std::span<const int> ranks);
///     // May be left out: the heads are cut into so many parts.
///     static constexpr int parts = 4;
///     // May be left out: whether it can spread a document over so many ranks.
///     static constexpr bool offers(int ranks);
template <class C>
concept context_carrier_policy =
    std::same_as<typename C::kind, carrier_kind> && requires(context_builder& b, std::span<const int> ranks) {
      { C::name } -> std::convertible_to<std::string_view>;
      C::forward(b, ranks);
      C::backward(b, ranks);
    };

/// A carrier as a value, chosen at run time.
struct context_carrier {
  std::string_view name{};
  int parts = 1;
  bool (*offers)(int ranks) = nullptr;
  void (*forward)(context_builder&, std::span<const int> ranks) = nullptr;
  void (*backward)(context_builder&, std::span<const int> ranks) = nullptr;
};

namespace detail {

// Rank i of a ring, for any i.
constexpr int ring_rank(std::span<const int> ranks, int i) noexcept {
  const int n = static_cast<int>(ranks.size());
  return ranks[static_cast<std::size_t>((i % n + n) % n)];
}

template <class C>
constexpr bool carrier_offers(int ranks) {
  if constexpr (requires { C::offers(ranks); })
    return C::offers(ranks);
  else
    return ranks > 0;
}

template <class C>
constexpr int carrier_parts() {
  if constexpr (requires { C::parts; })
    return C::parts;
  else
    return 1;
}

// Keys go around towards lower ranks; gradients of keys follow one hop behind.
constexpr void ring_of_keys(context_builder& b, std::span<const int> ranks) {
  const int n = static_cast<int>(ranks.size());
  for (int o = 0; o < n; ++o)
    for (int k = 0; k < n; ++k) {
      const int owner = ring_rank(ranks, o), here = ring_rank(ranks, o - k), next = ring_rank(ranks, o - k - 1);
      b.attend(k, here, here, owner);
      if (k + 1 < n) b.move(k, here, next, context_kind::keys, owner);
      if (b.pass() == context_pass::backward && k > 0) b.give_back(k + 1, here, next, context_kind::of_keys, owner);
    }
}

// Queries go around towards lower ranks; partial results go home in one hop, or follow one hop behind.
constexpr void ring_of_queries(context_builder& b, std::span<const int> ranks, bool direct) {
  const int n = static_cast<int>(ranks.size());
  for (int o = 0; o < n; ++o)
    for (int k = 0; k < n; ++k) {
      const int owner = ring_rank(ranks, o), here = ring_rank(ranks, o - k), next = ring_rank(ranks, o - k - 1);
      b.attend(k, here, owner, here);
      if (k + 1 < n) b.move(k, here, next, context_kind::queries, owner);
      if (k > 0) b.give_back(k + 1, here, direct ? owner : next, context_kind::of_queries, owner);
    }
}

constexpr void gather_keys(context_builder& b, std::span<const int> ranks) {
  for (const int owner : ranks)
    for (const int here : ranks) {
      b.move(0, owner, here, context_kind::keys, owner);
      b.attend(owner == here ? 0 : 1, here, here, owner);
      if (b.pass() == context_pass::backward) b.give_back(2, here, owner, context_kind::of_keys, owner);
    }
}

// Groups of `heads` neighbours exchange rows for parts of the heads; keys go around the groups.
constexpr void heads_and_ring(context_builder& b, std::span<const int> ranks, int heads) {
  const int p = static_cast<int>(ranks.size()), u = (std::min)(heads, p), groups = p / u, share = b.parts() / u;
  const auto rank = [&](int group, int member) {
    return ring_rank(ranks, ((group % groups + groups) % groups) * u + member);
  };
  const bool backward = b.pass() == context_pass::backward;
  for (int i = 0; i < b.parts(); ++i) {
    const int m = i / share;  // who attends with this part, in each group
    for (int o = 0; o < groups; ++o) {
      for (int n = 0; n < u; ++n) {
        b.move(0, rank(o, n), rank(o, m), context_kind::queries, rank(o, n), i);
        b.move(0, rank(o, n), rank(o, m), context_kind::keys, rank(o, n), i);
        b.give_back(groups + 1, rank(o, m), rank(o, n), context_kind::of_queries, rank(o, n), i);
      }
      for (int k = 0; k < groups; ++k)
        for (int n = 0; n < u; ++n) {
          const int here = rank(o - k, m), next = rank(o - k - 1, m), owner = rank(o, n);
          for (int q = 0; q < u; ++q) b.attend(1 + k, here, rank(o - k, q), owner, i);
          if (k + 1 < groups) b.move(1 + k, here, next, context_kind::keys, owner, i);
          if (backward && k > 0) b.give_back(2 + k, here, next, context_kind::of_keys, owner, i);
        }
      for (int n = 0; n < u && backward; ++n)
        b.give_back(groups + (groups > 1 ? 2 : 1), rank(o, m), rank(o, n), context_kind::of_keys, rank(o, n), i);
    }
  }
}

// Nodes of `local` ranks: within a node keys go around as in a ring; meanwhile each rank sends those it began with to
// the next node.
constexpr void ring_of_rings(context_builder& b, std::span<const int> ranks, int local) {
  const int p = static_cast<int>(ranks.size()), l = (std::min)(local, p), nodes = p / l;
  const auto rank = [&](int node, int j) {
    return ring_rank(ranks, ((node % nodes + nodes) % nodes) * l + (j % l + l) % l);
  };
  for (int i = 0; i < nodes; ++i)
    for (int j = 0; j < l; ++j)
      for (int f = 0; f < nodes; ++f)
        for (int t = 0; t < l; ++t) {
          const int k = f * l + t, owner = rank(i, j), here = rank(i - f, j - t);
          const int next = t + 1 < l ? rank(i - f, j - t - 1) : rank(i - f - 1, j);
          b.attend(k, here, here, owner);
          if (t + 1 < l) b.move(k, here, next, context_kind::keys, owner);
          if (t == 0 && f + 1 < nodes) b.move(k, here, rank(i - f - 1, j), context_kind::keys, owner);
          if (b.pass() == context_pass::backward && k > 0) b.give_back(k + 1, here, next, context_kind::of_keys, owner);
        }
}

}  // namespace detail

/// The carriers of this library.
namespace carrier {

/// Keys and values go around the ranks; backward their gradients follow one hop behind. Towards lower ranks, so that
/// with a zigzag order and a causal mask a quarter of the rows need not travel.
/// Source: Liu et al. 2023, arXiv:2310.01889.
struct kv_ring {
  using kind = carrier_kind;
  static constexpr std::string_view name = "kv-ring";
  static constexpr void forward(context_builder& b, std::span<const int> ranks) { detail::ring_of_keys(b, ranks); }
  static constexpr void backward(context_builder& b, std::span<const int> ranks) { detail::ring_of_keys(b, ranks); }
};

/// Queries go around the ranks, partial results return to their owner at once: both directions of the links are busy.
/// Fewer bytes than `kv_ring` per direction where there are less than two query heads to a key head; the replies want
/// links from every rank to every other.
/// Source: Wang et al. 2024, arXiv:2412.20501; its backward pass is ours.
struct token_ring {
  using kind = carrier_kind;
  static constexpr std::string_view name = "token-ring";
  static constexpr void forward(context_builder& b, std::span<const int> ranks) {
    detail::ring_of_queries(b, ranks, true);
  }
  static constexpr void backward(context_builder& b, std::span<const int> ranks) {
    detail::ring_of_queries(b, ranks, true);
  }
};

/// Forward as `kv_ring`; backward queries go around with the gradient of the output and two numbers a head, and the
/// gradient of queries follows one hop behind: fewer bytes where there are less than 4/3 query heads to a key head.
/// Source: Sun et al. 2025, arXiv:2509.19836, section on backward communication.
struct burst {
  using kind = carrier_kind;
  static constexpr std::string_view name = "burst";
  static constexpr void forward(context_builder& b, std::span<const int> ranks) { detail::ring_of_keys(b, ranks); }
  static constexpr void backward(context_builder& b, std::span<const int> ranks) {
    detail::ring_of_queries(b, ranks, false);
  }
};

/// Every rank gets the keys and values that its queries see, in one round, and merges them once: the most accurate
/// carrier for numbers of 16 bits, and the one that takes most memory.
/// Source: Dubey et al. 2024, arXiv:2407.21783, section 3.3.2; of rows that are needed only, Sand AI's MagiAttention.
struct gather {
  using kind = carrier_kind;
  static constexpr std::string_view name = "gather";
  static constexpr void forward(context_builder& b, std::span<const int> ranks) { detail::gather_keys(b, ranks); }
  static constexpr void backward(context_builder& b, std::span<const int> ranks) { detail::gather_keys(b, ranks); }
};

/// Ranks exchange rows for heads: each attends all rows of the document with a part of the heads. On Ranks ranks, or a
/// divisor of it; heads must be divisible by Ranks, and key heads by Ranks or Ranks by them.
/// Source: Jacobs et al. 2023, arXiv:2309.14509.
template <int Ranks>
struct ulysses {
  static_assert(Ranks >= 1 && Ranks <= 64, "heddle: carrier::ulysses<Ranks>: name 1 to 64 ranks that share the heads");
  using kind = carrier_kind;
  static constexpr std::string_view name = "ulysses";
  static constexpr int parts = Ranks;
  static constexpr bool offers(int ranks) noexcept { return ranks > 0 && Ranks % ranks == 0; }
  static constexpr void forward(context_builder& b, std::span<const int> ranks) {
    heddle::detail::heads_and_ring(b, ranks, Ranks);
  }
  static constexpr void backward(context_builder& b, std::span<const int> ranks) {
    heddle::detail::heads_and_ring(b, ranks, Ranks);
  }
};

/// Groups of Ranks neighbours as `ulysses`, and a ring of keys over the groups. On multiples of Ranks, or divisors of
/// it.
/// Source: Fang and Zhao 2024, arXiv:2405.07719.
template <int Ranks>
struct usp {
  static_assert(Ranks >= 1 && Ranks <= 64, "heddle: carrier::usp<Ranks>: name 1 to 64 ranks that share the heads");
  using kind = carrier_kind;
  static constexpr std::string_view name = "usp";
  static constexpr int parts = Ranks;
  static constexpr bool offers(int ranks) noexcept { return ranks > 0 && (ranks % Ranks == 0 || Ranks % ranks == 0); }
  static constexpr void forward(context_builder& b, std::span<const int> ranks) {
    heddle::detail::heads_and_ring(b, ranks, Ranks);
  }
  static constexpr void backward(context_builder& b, std::span<const int> ranks) {
    heddle::detail::heads_and_ring(b, ranks, Ranks);
  }
};

/// Nodes of Local neighbours: keys go around a node while each rank sends those it began with to the next node. On at
/// most Local ranks, or a multiple of it.
/// Source: Gu et al. 2024, arXiv:2406.18485; Sun et al. 2025, arXiv:2509.19836.
template <int Local>
struct double_ring {
  static_assert(Local >= 1, "heddle: carrier::double_ring<Local>: name the ranks of a node");
  using kind = carrier_kind;
  static constexpr std::string_view name = "double-ring";
  static constexpr bool offers(int ranks) noexcept { return ranks > 0 && (ranks <= Local || ranks % Local == 0); }
  static constexpr void forward(context_builder& b, std::span<const int> ranks) {
    heddle::detail::ring_of_rings(b, ranks, Local);
  }
  static constexpr void backward(context_builder& b, std::span<const int> ranks) {
    heddle::detail::ring_of_rings(b, ranks, Local);
  }
};

}  // namespace carrier

/// A carrier as a value. `name`: another name than its own.
template <context_carrier_policy C>
constexpr context_carrier carrier_of(std::string_view name = C::name) noexcept {
  return {name, detail::carrier_parts<C>(), &detail::carrier_offers<C>, &C::forward, &C::backward};
}

namespace detail {
inline constexpr context_carrier known_context_carriers[] = {
    carrier_of<carrier::kv_ring>(),
    carrier_of<carrier::token_ring>(),
    carrier_of<carrier::burst>(),
    carrier_of<carrier::gather>(),
    carrier_of<carrier::ulysses<2>>("ulysses-2"),
    carrier_of<carrier::ulysses<4>>("ulysses-4"),
    carrier_of<carrier::ulysses<8>>("ulysses-8"),
    carrier_of<carrier::usp<2>>("usp-2"),
    carrier_of<carrier::usp<4>>("usp-4"),
    carrier_of<carrier::double_ring<2>>("double-ring-2"),
    carrier_of<carrier::double_ring<3>>("double-ring-3"),
    carrier_of<carrier::double_ring<4>>("double-ring-4"),
};
}  // namespace detail

/// The carriers that have a name.
constexpr std::span<const context_carrier> context_carriers() noexcept {
  return detail::known_context_carriers;
}

/// The carrier of that name.
/// Errors: `config_error` that lists the known ones.
HEDDLE_INLINE const context_carrier& named_context_carrier(std::string_view name);

/// The table of a carrier for documents that are cut, for one pass. `refine`: pieces are cut further where fewer rows
/// need to travel then.
/// Errors: `config_error` for a document on a number of ranks that the carrier does not offer.
constexpr context_table make_context_table(const context_carrier& carrier, context_cut cut, context_pass pass,
                                           bool refine = true) {
  if (refine) cut = refined(cut);
  context_builder b(static_cast<context_cut&&>(cut), pass, carrier.parts);
  const int documents = static_cast<int>(b.cut().documents.size());
  for (int d = 0; d < documents; ++d) {
    const std::vector<int> ranks = b.cut().documents[static_cast<std::size_t>(d)].ranks;
    if (b.cut().pieces_of(d).empty()) continue;
    if (!carrier.offers(static_cast<int>(ranks.size()))) {
      throw config_error(text_of({"heddle: the carrier ", carrier.name, " cannot spread document ", d, " over ",
                                  static_cast<int>(ranks.size()), " ranks"}));
    }
    b.begin_document(d);
    (pass == context_pass::forward ? carrier.forward : carrier.backward)(b, ranks);
    b.end_document();
  }
  return b.take();
}

/// The same for a carrier that is a type.
template <context_carrier_policy C>
constexpr context_table make_context_table(context_cut cut, context_pass pass, bool refine = true) {
  return make_context_table(carrier_of<C>(), static_cast<context_cut&&>(cut), pass, refine);
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/context/impl/carriers.hpp>
#endif
