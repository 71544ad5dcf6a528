// heddle/infer/serve/tokenizer/json_answers.hpp: the mask of calls whose answers are to be JSON objects.
#pragma once

#include <heddle/infer/json_automaton.hpp>
#include <heddle/infer/token_mask.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Masks that let answers be JSON objects, of the tokens of one tokenizer. Special tokens and ids without a token are in no such answer. The tree of
/// tokens is made for the first mask. Any thread may ask.
class json_answers {
 public:
  explicit json_answers(io::tokenizer t) : tokenizer_(std::move(t)) {}

  /// An answer ends with one of `end_tokens` where the object does.
  logits_mask mask(std::vector<std::int32_t> end_tokens) const {
    std::call_once(made_, [&] {
      tokens_ = std::make_shared<const vocabulary_trie>(tokenizer_.vocabulary(), [&](std::int32_t t) {
        return tokenizer_.has(t) && !tokenizer_.is_special(t) ? tokenizer_.token_bytes(t) : std::string_view{};
      });
    });
    return mask_by(json_automaton(), tokens_, std::move(end_tokens));
  }

 private:
  io::tokenizer tokenizer_;
  mutable std::once_flag made_{};
  mutable std::shared_ptr<const vocabulary_trie> tokens_{};
};

}  // namespace heddle::inline v0::infer
