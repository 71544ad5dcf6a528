// heddle/infer/serve/answer/masks.hpp: masks of JSON, JSON schema, regular expressions.
#pragma once

#include <heddle/infer/dfa_mask.hpp>
#include <heddle/infer/json_automaton.hpp>
#include <heddle/infer/regex.hpp>
#include <heddle/infer/schema_grammar.hpp>
#include <heddle/infer/serve/openai/call.hpp>
#include <heddle/infer/token_mask.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <algorithm>
#include <bitset>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// What schemas and expressions of constrained answers may take, all together.
struct answer_mask_limits {
  std::size_t set_bytes = token_set_cache::default_bytes;  ///< of sets of tokens, which are found again where they went
  /// Of compiled schemas and expressions: those of answers that run or wait, and those that are kept for others. It should be 9 MiB at least, or large ones are refused.
  std::size_t table_bytes = std::size_t{64} << 20;
  std::size_t most_kept = 32;                    ///< of those that no answer uses, when another is compiled
  int most_compiling = 2;                        ///< at once; what else is to be compiled waits
  std::chrono::milliseconds compile_wait{5000};  ///< for others that compile
};

/// Masks of constrained answers, of the tokens of one tokenizer. Special tokens and ids without a token are in no such
/// answer. The tree of tokens is made for the first mask. A schema or expression is compiled once for
/// all calls that come while an answer uses it, or while it is among the last ones. Law: what they hold is bounded by `answer_mask_limits`, whatever is asked for. Any thread may ask.
class answer_masks {
 public:
  /// Errors: `config_error` for `most_compiling` or `table_bytes` below 1.
  explicit answer_masks(io::tokenizer t, answer_mask_limits limits = {})
      : tokenizer_(std::move(t)), limits_(limits), sets_(std::make_shared<token_set_cache>(limits.set_bytes)) {
    if (limits_.most_compiling < 1 || limits_.table_bytes < 1)
      throw config_error("heddle: answer_mask_limits need most_compiling and table_bytes of at least 1, got " +
                         std::to_string(limits_.most_compiling) + " and " + std::to_string(limits_.table_bytes));
  }

  /// The mask that a call asks for, or none. An answer ends with one of `end_tokens` where the text is complete. It may wait for `compile_wait`, and for its own schema or expression to compile.
  /// Errors: `grammar_error` for what cannot constrain answers; `grammar_busy_error` if answers that run or wait leave no memory for it, or if too many others compile.
  logits_mask mask(const completion_call& call, std::vector<std::int32_t> end_tokens) const {
    if (!call.json_object && !call.json_schema && !call.regex) return {};
    std::call_once(made_, [&] {
      tokens_ = std::make_shared<const vocabulary_trie>(tokenizer_.vocabulary(), [&](std::int32_t t) {
        return tokenizer_.has(t) && !tokenizer_.is_special(t) ? tokenizer_.token_bytes(t) : std::string_view{};
      });
    });
    if (call.json_object) return mask_by(json_automaton(true, true), tokens_, std::move(end_tokens));
    const auto wanted = std::make_shared<grammar>(
        call.json_schema.has_value(), call.json_schema ? *call.json_schema : *call.regex, std::move(end_tokens));
    if (const auto known = find_or_add(wanted)) return known->masks->mask();
    return compile_added(wanted)->mask();
  }

  /// Memory of compiled schemas and expressions, at most `table_bytes`; of sets of tokens, at most `set_bytes`.
  std::size_t table_bytes() const {
    const std::scoped_lock lock(mutex_);
    return bytes_;
  }
  std::size_t set_bytes() const { return sets_->bytes(); }
  /// Schemas and expressions that were compiled, well or not.
  std::int64_t compiled() const {
    const std::scoped_lock lock(mutex_);
    return compiled_;
  }

 private:
  using clock = std::chrono::steady_clock;
  // A schema or expression: to be compiled by the call that added it, then with masks, or an error for those who waited.
  struct grammar {
    grammar(bool is_schema, std::string of, std::vector<std::int32_t> end_tokens)
        : schema(is_schema), text(std::move(of)), ends(std::move(end_tokens)) {}
    bool schema;
    std::string text;
    std::vector<std::int32_t> ends;
    bool done = false;
    std::string wrong{}, busy{};
    std::size_t bytes = 0;
    std::shared_ptr<dfa_masks> masks{};
  };
  using grammars = std::list<std::shared_ptr<grammar>>;

  // One that is compiled; or none: `wanted` has been added, and the caller is to compile it.
  std::shared_ptr<grammar> find_or_add(const std::shared_ptr<grammar>& wanted) const {
    constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);  // what a clock can add
    const auto until = clock::now() + (std::min)(limits_.compile_wait, longest);
    grammars gone;  // freed behind the lock
    std::unique_lock lock(mutex_);
    while (true) {
      if (const std::shared_ptr<grammar> known = find(*wanted)) {
        if (!changed_.wait_until(lock, until, [&] { return known->done; }))
          throw grammar_busy_error("heddle: a schema or expression is still being compiled for another answer");
        if (known->masks) return known;
        if (!known->wrong.empty()) throw grammar_error(known->wrong);
        if (!known->busy.empty()) throw grammar_busy_error(known->busy);
      } else if (compiling_ < limits_.most_compiling) {
        break;
      } else if (!changed_.wait_until(lock, until,
                                      [&] { return compiling_ < limits_.most_compiling || find(*wanted); })) {
        throw grammar_busy_error("heddle: " + std::to_string(compiling_) +
                                 " schemas and expressions are being compiled, at most " +
                                 std::to_string(limits_.most_compiling) + " may at once");
      }
    }
    if (bytes_ >= limits_.table_bytes) make_room(1, gone);
    all_.push_back(wanted);
    ++compiling_;
    return nullptr;
  }
  std::shared_ptr<dfa_masks> compile_added(const std::shared_ptr<grammar>& added) const {
    grammars gone;
    std::shared_ptr<dfa_masks> out;
    std::exception_ptr failed;
    std::string wrong, busy;
    std::size_t bytes = 0;
    try {
      const std::shared_ptr<const byte_dfa> dfa = compile(*added);
      bytes = dfa->bytes() + sizeof(grammar) + added->text.size() + sizeof(dfa_masks);
      if (bytes > limits_.table_bytes)
        throw grammar_error("heddle: a grammar is too large: it takes " + std::to_string(bytes) +
                            " bytes, all together have at most " + std::to_string(limits_.table_bytes));
      out = std::make_shared<dfa_masks>(dfa, tokens_, added->ends, sets_);
    } catch (const grammar_error& e) {
      failed = std::current_exception();
      text_of(e, wrong);
    } catch (...) {
      failed = std::current_exception();
    }
    {
      const std::scoped_lock lock(mutex_);
      --compiling_;
      ++compiled_;
      try {
        if (!failed) make_room(bytes, gone);
      } catch (const grammar_busy_error& e) {
        failed = std::current_exception();
        text_of(e, busy);
      } catch (...) {
        failed = std::current_exception();
      }
      added->done = true;
      if (failed) {
        added->wrong = std::move(wrong);
        added->busy = std::move(busy);
        std::erase(all_, added);
      } else {
        added->masks = out;
        bytes_ += added->bytes = bytes;
      }
    }
    changed_.notify_all();
    if (failed) std::rethrow_exception(failed);
    return out;
  }
  // Empty where there is no memory for it: then who waited compiles the grammar once more.
  static void text_of(const error& e, std::string& to) noexcept {
    try {
      to = e.what();
    } catch (...) {
    }
  }
  std::shared_ptr<const byte_dfa> compile(const grammar& g) const {
    const std::bitset<256> bytes = tokens_->single_bytes();
    if (!g.schema) return compile_regex(g.text, bytes);
    if (g.text.size() > most_schema_bytes)
      throw grammar_error("heddle: a JSON schema has at most " + std::to_string(most_schema_bytes) + " bytes, got " +
                          std::to_string(g.text.size()));
    try {
      io::parse_json(g.text, "a JSON schema");  // bounds its levels
    } catch (const io_error& e) {
      throw grammar_error(e.what());
    }
    return compile_schema(ordered_schema::parse(g.text), bytes);
  }

  // Under the lock, as what follows. One that is found is the last to go.
  std::shared_ptr<grammar> find(const grammar& wanted) const {
    for (auto at = all_.begin(); at != all_.end(); ++at)
      if ((*at)->schema == wanted.schema && (*at)->text == wanted.text && (*at)->ends == wanted.ends) {
        all_.splice(all_.end(), all_, at);
        return all_.back();
      }
    return nullptr;
  }
  // Drops those that no answer uses, the longest unused first, until there is room for one more of so many bytes, and it is one of `most_kept`. Those of answers would not be freed, and stay to be found.
  // Where they leave no room, nothing is dropped.
  void make_room(std::size_t more, grammars& gone) const {
    const auto idle = [](const std::shared_ptr<grammar>& g) {
      return g.use_count() == 1 && g->masks && g->masks.use_count() == 1;
    };
    std::size_t kept = 0, kept_bytes = 0;
    for (const std::shared_ptr<grammar>& g : all_)
      if (idle(g)) ++kept, kept_bytes += g->bytes;
    const auto full = [&](std::size_t used) {
      return grammar_busy_error("heddle: the schemas and expressions of answers that run or wait take " +
                                std::to_string(used) + " bytes, all together have at most " +
                                std::to_string(limits_.table_bytes));
    };
    if (bytes_ - kept_bytes + more > limits_.table_bytes) throw full(bytes_ - kept_bytes);
    const auto too_many = [&] { return kept > 0 && kept >= limits_.most_kept; };
    for (auto at = all_.begin(); at != all_.end() && (too_many() || bytes_ + more > limits_.table_bytes);) {
      if (!idle(*at)) {
        ++at;
        continue;
      }
      bytes_ -= (*at)->bytes;
      gone.splice(gone.end(), all_, at++);
      if (kept > 0) --kept;  // else it became idle just now
    }
    if (bytes_ + more > limits_.table_bytes) throw full(bytes_);
  }

  io::tokenizer tokenizer_;
  answer_mask_limits limits_;
  std::shared_ptr<token_set_cache> sets_;
  mutable std::once_flag made_{};
  mutable std::shared_ptr<const vocabulary_trie> tokens_{};
  mutable std::mutex mutex_{};
  mutable std::condition_variable changed_{};
  mutable grammars all_{};  // the longest unused first, and those that are being compiled
  mutable std::size_t bytes_ = 0;
  mutable std::int64_t compiled_ = 0;
  mutable int compiling_ = 0;
};

}  // namespace heddle::inline v0::infer
