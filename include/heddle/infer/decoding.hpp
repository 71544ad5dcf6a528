// heddle/infer/decoding.hpp: decoding policies: one token a step, or several verified at once.
#pragma once

#include <heddle/core/policy.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/request.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

struct decoding_kind {};  ///< kind of policies that propose tokens before the model computes them

/// A sequence for which tokens may be proposed: those that may follow `text`, prompt and answer, at most `most`, go to `tokens`. The engine draws
/// the token at position p with `asked`, `seed` and p (`token_sampler`). Of a policy with trees, token i follows token parents[i] < i, or the text
/// at -1; siblings differ.
struct proposal {
  request_id id = 0;
  const request* asked = nullptr;
  std::uint64_t seed = 0;
  std::span<const std::int32_t> text{};
  std::int64_t most = 0;
  std::vector<std::int32_t> tokens{};
  std::vector<std::int64_t> parents{};  ///< of each token, or empty: each follows the one before
};

namespace detail {
template <class D>
concept proposes_trees = requires { requires D::trees; };
template <class D>
concept decodes_windows = requires { requires D::windows; };
template <class D>
concept reads_streams = requires { requires D::reads_streams; };
template <class D>
concept reads_all_streams = requires { requires D::reads_all_streams; };
template <class D>
concept accepts_by_threshold =
    requires(const D& d, std::span<const token_probability> p) { d.acceptance().threshold(p); };
}  // namespace detail

/// What a decoding policy decides. `most_proposed`: tokens that it proposes for a sequence and step. `lossless`: answers have the distribution that
/// they have without it. `needs`: capabilities of cache and runner. `propose(proposals)` fills `tokens` of each. The engine computes their
/// rows behind the last token's and keeps those that it draws itself. `ended(id)`: the request needs no more proposals.
/// Optional members: `trees`, true if proposals have `parents`; `reads_streams`, true if `verified(id, length, stream)` is to be called after
/// each step with the tokens of the text and the residual stream, before the final norm, of the row at which the last of them was drawn;
/// `reads_all_streams`, true if, too, `computed(id, position, streams)` is to be called with the streams of all rows of a text as they are
/// computed, those of tokens position, position + 1, ...; `acceptance()`, a rule with a `threshold` such as `typical_acceptance`.
/// `windows`, true if it plans the rows of a step itself and commits tokens in any order, as `diffusion`, whose members it then has.
template <class D>
concept decoding_policy = policy<D> && std::same_as<typename D::kind, decoding_kind> &&
                          requires(D& d, std::span<proposal> proposals, request_id id) {
                            typename D::needs;
                            { D::most_proposed } -> std::convertible_to<std::int64_t>;
                            { D::lossless } -> std::convertible_to<bool>;
                            d.propose(proposals);
                            d.ended(id);
                          };

/// One token for each sequence and step.
struct one_token {
  using kind = decoding_kind;
  using needs = capabilities<next_token>;
  static constexpr std::int64_t most_proposed = 0;
  static constexpr bool lossless = true;
  static void propose(std::span<proposal>) noexcept {}
  static void ended(request_id) noexcept {}
};

/// Proposes up to `Tokens` tokens that followed the last place in the text at which its last `Longest`, else fewer, down to `Shortest`, tokens stood
/// before. A proposal is kept while it is the token that is drawn at its place, so answers are the same, token for token, greedy or
/// sampled. Source: Saxena, "Prompt lookup decoding", 2023.
template <std::int64_t Tokens = 4, std::int64_t Longest = 3, std::int64_t Shortest = 1>
struct ngram_speculation {
  static_assert(Tokens > 0 && Shortest > 0 && Shortest <= Longest,
                "heddle: ngram_speculation<Tokens, Longest, Shortest> proposes at least one token after at least one "
                "token, and Shortest is at most Longest");
  using kind = decoding_kind;
  using needs = capabilities<truncate, next_token>;
  static constexpr std::int64_t most_proposed = Tokens;
  static constexpr bool lossless = true;
  static void propose(std::span<proposal> proposals) {
    for (proposal& p : proposals) propose_one(p);
  }
  static void ended(request_id) noexcept {}

 private:
  static void propose_one(proposal& p) {
    const std::span<const std::int32_t> text = p.text;
    std::vector<std::int32_t>& out = p.tokens;
    const auto length = static_cast<std::int64_t>(text.size());
    std::int64_t best = 0, after = 0;  // tokens that agree, and where the text goes on behind them
    for (std::int64_t end = length - 1; end > 0 && best < Longest; --end) {
      std::int64_t n = 0;
      while (n < (std::min)(Longest, end) &&
             text[static_cast<std::size_t>(end - 1 - n)] == text[static_cast<std::size_t>(length - 1 - n)])
        ++n;
      if (n > best && n >= Shortest) {
        best = n;
        after = end;
      }
    }
    if (best == 0) return;
    for (std::int64_t i = 0; i < (std::min)(p.most, Tokens);
         ++i)  // where the text ends, it goes on with what is proposed
      out.push_back(after + i < length ? text[static_cast<std::size_t>(after + i)]
                                       : out[out.size() - static_cast<std::size_t>(length - after)]);
  }
};

}  // namespace heddle::inline v0::infer
