// heddle/io/choice_tasks.hpp: multiple-choice tasks, counted as lm-evaluation-harness does.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/chat/chat.hpp>
#include <heddle/io/token_targets.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A question: the model's answer is the choice that is likeliest behind the context.
struct choice_task {
  std::string context{};
  std::vector<std::string> choices{};
  std::size_t answer = 0;  ///< the right one
};

/// How questions become tokens.
struct choice_encoding {
  std::optional<token_id>
      prefix{};  ///< what the model is given where a context is empty: its token of beginning or, without one, of end
  std::int64_t context = 0;  ///< at most so many tokens are given, the last ones
};

/// What a model is given to find how likely `continuation` is behind `context`; its tokens are the targets. Spaces at the context's end belong
/// to the continuation, whose tokens are those that the whole text has more than the context alone.
/// Errors: `config_error` for a context of nothing but spaces, an empty one without a prefix, and a continuation that has no token of its own, or more than fit.
/// Source: `TemplateLM._encode_pair` and `loglikelihood` of lm-evaluation-harness 0.4.13, `HFLM.tok_encode` and `_loglikelihood_tokens`.
inline token_targets choice_tokens(const tokenizer& t, std::string context, std::string continuation,
                                   const choice_encoding& how) {
  const auto encode = [&](const std::string& text) {
    const bool begun = how.prefix && text.starts_with(t.token_bytes(*how.prefix));
    return t.encode(text, {.add_special_tokens = !begun});
  };
  std::vector<token_id> ids;
  std::size_t given = 1;
  if (context.empty()) {
    ids = t.encode(continuation, {.add_special_tokens = false});
    if (!how.prefix)
      throw config_error(
          "heddle: a question without a context needs a token before its choices, and the tokenizer's files name "
          "neither bos_token nor eos_token");
    if (ids.empty() || ids[0] != *how.prefix) ids.insert(ids.begin(), *how.prefix);
  } else {
    const std::size_t end = detail::stripped("x" + context).size() - 1;  // of this side only
    if (end == 0) throw config_error("heddle: a question's context is of spaces only; it may be empty");
    continuation.insert(0, context, end);
    context.resize(end);
    ids = encode(context + continuation);
    given = encode(context).size();
  }
  const auto most = static_cast<std::size_t>(how.context);
  if (ids.size() <= given || ids.size() - given > most)
    throw config_error("heddle: the choice '" + continuation.substr(0, 60) + "' has " +
                       std::to_string(ids.size() - (std::min)(given, ids.size())) +
                       " tokens behind its context; expected 1 to " + std::to_string(most) + ", the model's context");
  std::vector<bool> counts(ids.size());
  std::fill(counts.begin() + static_cast<std::ptrdiff_t>(given), counts.end(), true);
  const std::size_t cut = ids.size() - (std::min)(ids.size(), most + 1);
  counts.erase(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(cut));
  return targets_of(std::span<const token_id>(ids).subspan(cut), counts);
}

/// How many questions were answered as they should be.
struct choice_counts {
  std::int64_t tasks = 0;
  std::int64_t right = 0;            ///< by the choices' log-likelihoods: the harness' acc
  std::int64_t right_by_length = 0;  ///< by those divided by characters of the choice: acc_norm
  std::int64_t right_by_bytes = 0;   ///< by those divided by bytes: acc_bytes

  double accuracy(std::int64_t of) const noexcept { return static_cast<double>(of) / static_cast<double>(tasks); }
  /// The standard error of an accuracy. Source: `mean_stderr` of lm-evaluation-harness.
  double error(std::int64_t of) const noexcept {
    const double p = accuracy(of);
    return tasks < 2 ? 0.0 : std::sqrt(p * (1 - p) / static_cast<double>(tasks - 1));
  }
};

/// `log_likelihoods`: of each task's choices, one task behind the other. Of equal ones the first is the answer.
/// Errors: `config_error` where these are not as many. Source: `ConfigurableTask.process_results` of lm-evaluation-harness 0.4.13.
inline choice_counts count_right(std::span<const choice_task> tasks, std::span<const double> log_likelihoods) {
  choice_counts out{.tasks = static_cast<std::int64_t>(tasks.size())};
  std::size_t at = 0;
  for (const choice_task& task : tasks) {
    const std::size_t n = task.choices.size();
    if (n > log_likelihoods.size() - at)
      throw config_error("heddle: " + std::to_string(log_likelihoods.size()) +
                         " log-likelihoods are fewer than the choices");
    const auto is_right = [&](auto&& length) {
      std::size_t best = 0;
      const auto score = [&](std::size_t i) {
        return log_likelihoods[at + i] / static_cast<double>(length(task.choices[i]));
      };
      for (std::size_t i = 1; i < n; ++i)
        if (score(i) > score(best)) best = i;
      return best == task.answer ? 1 : 0;
    };
    out.right += is_right([](const std::string&) { return 1; });
    out.right_by_length += is_right([](const std::string& s) {
      return std::ranges::count_if(s, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
    });
    out.right_by_bytes += is_right([](const std::string& s) { return s.size(); });
    at += n;
  }
  if (at != log_likelihoods.size())
    throw config_error("heddle: there are " + std::to_string(log_likelihoods.size()) + " log-likelihoods of " +
                       std::to_string(at) + " choices");
  return out;
}

}  // namespace heddle::inline v0::io
