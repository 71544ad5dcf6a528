// heddle/infer/rows_by_experts.hpp: orders rows by the ranks of their likeliest experts.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/co_clustering.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

namespace detail {
/// A placement for a model. Errors: `config_error` for one of other ranks, of another vocabulary, or that names a rank that it has not.
inline plan::expert_placement checked_placement(plan::expert_placement p, int ranks, std::int64_t vocabulary) {
  if (p.ranks != ranks || ranks < 1)
    throw config_error(
        text_of({"heddle: a placement of experts on ", ranks, " ranks is needed, got one on ", p.ranks}));
  if (std::ssize(p.rank_of_token) != vocabulary)
    throw config_error(text_of({"heddle: a placement of experts for ", vocabulary, " tokens is needed, got one for ",
                                p.rank_of_token.size()}));
  if (p.confidence.size() != p.rank_of_token.size())
    throw config_error(text_of({"heddle: a placement of experts has a confidence for each of ", vocabulary,
                                " tokens, got ", p.confidence.size()}));
  if (const auto wrong =
          std::find_if(p.rank_of_token.begin(), p.rank_of_token.end(),
                       [&](int r) { return r != plan::expert_placement::unseen && (r < 0 || r >= ranks); });
      wrong != p.rank_of_token.end())
    throw config_error(text_of({"heddle: a placement of experts on ", ranks, " ranks names rank ", *wrong,
                                " for token ", wrong - p.rank_of_token.begin()}));
  return p;
}
inline std::size_t token_of_placement(const plan::expert_placement& p, std::int32_t token) {
  if (token < 0 || static_cast<std::size_t>(token) >= p.rank_of_token.size())
    throw config_error(text_of(
        {"heddle: token ", token, " is not one of the ", p.rank_of_token.size(), " of a placement of experts"}));
  return static_cast<std::size_t>(token);
}
}  // namespace detail

/// Orders the rows of a step so that each rank's even part has the rows whose experts are probably on that rank (`row_shuffle`). Whatever
/// the table, only the place of a row depends on it: a wrong guess sends the row, as a router without a table does.
/// Source: arXiv:2503.04398 (Speculative MoE), section on token shuffling; parts stay even here instead of being padded.
class rows_by_experts {
 public:
  /// Errors: `config_error` for a placement on other ranks or of another vocabulary.
  rows_by_experts(plan::expert_placement placement, int ranks, std::int64_t vocabulary)
      : placement_(detail::checked_placement(std::move(placement), ranks, vocabulary)) {}

  int ranks() const noexcept { return placement_.ranks; }
  std::int64_t vocabulary() const noexcept { return std::ssize(placement_.rank_of_token); }
  int experts() const noexcept { return placement_.experts; }

  /// order[i]: the row at place i. Sure rows first take a place on their rank, if it has one left; all others take what is left, in order.
  /// The same on all ranks. Work: rows log rows. Errors: `config_error` for a token outside the vocabulary.
  std::vector<std::int32_t> operator()(std::span<const std::int32_t> tokens) const {
    const balanced_split parts{std::ssize(tokens), placement_.ranks};
    std::vector<std::int32_t> sure;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (placement_.rank_of_token[detail::token_of_placement(placement_, tokens[i])] != plan::expert_placement::unseen)
        sure.push_back(static_cast<std::int32_t>(i));
    const auto confidence = [&](std::int32_t row) {
      return placement_.confidence[static_cast<std::size_t>(tokens[static_cast<std::size_t>(row)])];
    };
    std::sort(sure.begin(), sure.end(), [&](std::int32_t a, std::int32_t b) {
      return confidence(a) != confidence(b) ? confidence(a) > confidence(b) : a < b;
    });
    std::vector<int> rank(tokens.size(), plan::expert_placement::unseen);
    std::vector<std::int64_t> taken(static_cast<std::size_t>(placement_.ranks), 0);
    for (const std::int32_t row : sure) {
      const int likely = placement_.rank_of_token[static_cast<std::size_t>(tokens[static_cast<std::size_t>(row)])];
      if (std::int64_t& n = taken[static_cast<std::size_t>(likely)]; n < parts.size(likely)) {
        rank[static_cast<std::size_t>(row)] = likely;
        ++n;
      }
    }
    int open = 0;
    for (int& r : rank) {
      if (r != plan::expert_placement::unseen) continue;
      while (taken[static_cast<std::size_t>(open)] == parts.size(open)) ++open;
      r = open;
      ++taken[static_cast<std::size_t>(open)];
    }
    // Rows of a rank stay in their order.
    std::vector<std::int64_t> next;
    for (int r = 0; r < placement_.ranks; ++r) next.push_back(parts.offset(r));
    std::vector<std::int32_t> order(tokens.size());
    for (std::size_t i = 0; i < rank.size(); ++i)
      order[static_cast<std::size_t>(next[static_cast<std::size_t>(rank[i])]++)] = static_cast<std::int32_t>(i);
    return order;
  }

 private:
  plan::expert_placement placement_;
};

}  // namespace heddle::inline v0::infer
