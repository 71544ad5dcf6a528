// heddle/infer/serve/tokenizer/answer_masks.hpp: the masks of calls whose answers are constrained: to JSON objects, to a JSON schema, to a regular expression.
#pragma once

#include <heddle/infer/dfa_mask.hpp>
#include <heddle/infer/json/schema_grammar.hpp>
#include <heddle/infer/json_automaton.hpp>
#include <heddle/infer/regex.hpp>
#include <heddle/infer/serve/tokenizer/call.hpp>
#include <heddle/infer/token_mask.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Masks of constrained answers, of the tokens of one tokenizer. Special tokens and ids without a token are in no such answer. The tree of tokens is made for the first mask; the last `most_kept`
/// schemas and expressions are kept, with the tokens of their states. Any thread may ask.
class answer_masks {
 public:
  static constexpr std::size_t most_kept = 32;

  explicit answer_masks(io::tokenizer t) : tokenizer_(std::move(t)) {}

  /// The mask that a call asks for, or none. An answer ends with one of `end_tokens` where the text is complete. Errors: `grammar_error`.
  logits_mask mask(const completion_call& call, std::vector<std::int32_t> end_tokens) const {
    if (!call.json_object && !call.json_schema && !call.regex) return {};
    std::call_once(made_, [&] {
      tokens_ = std::make_shared<const vocabulary_trie>(tokenizer_.vocabulary(), [&](std::int32_t t) {
        return tokenizer_.has(t) && !tokenizer_.is_special(t) ? tokenizer_.token_bytes(t) : std::string_view{};
      });
    });
    if (call.json_object) return mask_by(json_automaton(), tokens_, std::move(end_tokens));
    kept wanted{.schema = call.json_schema.has_value(),
                .text = call.json_schema ? *call.json_schema : *call.regex,
                .ends = std::move(end_tokens)};
    if (auto known = find(wanted)) return known->mask();
    const std::bitset<256> bytes = tokens_->single_bytes();
    const auto dfa =
        wanted.schema ? compile_schema(ordered_schema::parse(wanted.text), bytes) : compile_regex(wanted.text, bytes);
    wanted.masks = std::make_shared<dfa_masks>(dfa, tokens_, wanted.ends);
    logits_mask out = wanted.masks->mask();
    const std::scoped_lock lock(mutex_);
    kept_.push_back(std::move(wanted));
    if (kept_.size() > most_kept) kept_.pop_front();
    return out;
  }

 private:
  struct kept {
    bool schema = false;
    std::string text{};
    std::vector<std::int32_t> ends{};
    std::shared_ptr<dfa_masks> masks{};
  };
  std::shared_ptr<dfa_masks> find(const kept& wanted) const {
    const std::scoped_lock lock(mutex_);
    for (const kept& k : kept_)
      if (k.schema == wanted.schema && k.text == wanted.text && k.ends == wanted.ends) return k.masks;
    return nullptr;
  }

  io::tokenizer tokenizer_;
  mutable std::once_flag made_{};
  mutable std::shared_ptr<const vocabulary_trie> tokens_{};
  mutable std::mutex mutex_{};
  mutable std::deque<kept> kept_{};
};

}  // namespace heddle::inline v0::infer
