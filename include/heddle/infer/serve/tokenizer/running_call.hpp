// heddle/infer/serve/tokenizer/running_call.hpp: a call whose requests are in a queue: its text as it comes, its end, its cancellation.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/infer/serve/request_queue.hpp>
#include <heddle/infer/serve/tokenizer/answer_masks.hpp>
#include <heddle/infer/serve/tokenizer/answer_text.hpp>
#include <heddle/infer/serve/tokenizer/call.hpp>
#include <heddle/infer/serve/tokenizer/chat_format.hpp>
#include <heddle/infer/serve/tokenizer/response.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// The tokens of each prompt of a call. Errors: `api_error` (400) if there is no chat template, with the reason, or the text is too long for the tokenizer.
inline std::vector<std::vector<std::int32_t>> prompt_tokens(const completion_call& c, const io::tokenizer& t,
                                                            const chat_choice& chat) {
  std::vector<std::vector<std::int32_t>> out;
  try {
    if (c.chat) {
      if (!chat.format)
        throw api_error(400, "invalid_request_error", "conversations cannot be rendered: " + chat.about, "messages",
                        "no_chat_template");
      out.push_back(conversation_tokens(t, *chat.format, c.messages));
    }
    for (const call_prompt& p : c.prompts) {
      if (const auto* text = std::get_if<std::string>(&p))
        out.push_back(t.encode(*text, {.add_special_tokens = c.add_special_tokens}));
      else
        out.push_back(std::get<std::vector<std::int32_t>>(p));
    }
  } catch (const text_error& e) {
    throw invalid_param(c.chat ? "messages" : "prompt", std::string(heddle::v0::detail::without_prefix(e.what())));
  }
  return out;
}

/// A part of the answer to one choice.
struct choice_part {
  std::size_t choice = 0;
  answer_part what{};
};

/// Submits the requests of a call, and turns their events into text. What has not ended when it is destroyed is cancelled. One thread owns it.
class running_call {
 public:
  /// `masks`: for calls whose answers are constrained; none: they are refused. Errors: as of `prompt_tokens` and `request_queue::submit`;
  /// `api_error` (400) for tokens of `logit_bias` and `allowed_token_ids` that the model has not, for a schema or expression that cannot constrain answers, and for constraints where no token ends answers;
  /// `grammar_busy_error` as of `answer_masks::mask`.
  running_call(request_queue& queue, const completion_call& call, const io::tokenizer& t, const chat_choice& chat,
               const answer_masks* masks = nullptr)
      : queue_(&queue), per_prompt_(call.n) {
    queue.require_open();  // before the work of encoding
    const std::vector<std::int32_t> ends = queue.end_tokens();
    const auto require_token = [&](const char* member, std::int32_t token) {
      if (token >= queue.vocabulary())
        throw invalid_param(member, "should have ids of tokens below " + std::to_string(queue.vocabulary()) + ", got " +
                                        std::to_string(token));
    };
    for (const auto& [token, bias] : call.logit_bias) require_token("logit_bias", token);
    const auto is_end = [&](std::int32_t token) {
      return std::ranges::count(ends, token) + std::ranges::count(call.stop_tokens, token) > 0;
    };
    for (const std::int32_t token : call.allowed_tokens) require_token("allowed_token_ids", token);
    if (call.min_tokens > 0 && !call.allowed_tokens.empty() && std::ranges::all_of(call.allowed_tokens, is_end))
      throw invalid_param("allowed_token_ids", "should have a token that ends no answer beside 'min_tokens'");
    const auto prompts = prompt_tokens(call, t, chat);
    const std::int64_t context = queue.context();
    for (const auto& p : prompts) {  // before `n` copies are made of it
      if (std::ssize(p) >= context) throw context_error(std::ssize(p), context);
      usage_.prompt += std::ssize(p);
    }
    texts_.assign(prompts.size() * static_cast<std::size_t>(call.n), answer_text(t, call.stop));
    logits_mask grammar;
    if (call.json_object || call.json_schema || call.regex) {
      const std::string name = call.constraint.empty() ? "response_format" : call.constraint;
      if (masks == nullptr || ends.empty())
        throw invalid_param(name, "cannot constrain the answer: the model has no token that ends one",
                            "unsupported_parameter");
      try {
        grammar = masks->mask(call, ends);
      } catch (const grammar_error& e) {
        throw invalid_param(name, "is refused: " + std::string(heddle::v0::detail::without_prefix(e.what())),
                            "invalid_grammar");
      } catch (const grammar_busy_error&) {
        queue.statistics().refused();
        throw;
      }
    }
    // Last: nothing that throws leaves requests behind.
    channel_ = queue.submit(to_requests(call, prompts, context, call_mask(call, grammar, ends)));
    left_ = texts_.size();
  }
  running_call(const running_call&) = delete;
  running_call& operator=(const running_call&) = delete;
  ~running_call() { cancel(); }

  std::size_t choices() const noexcept { return texts_.size(); }
  /// Whether all choices ended.
  bool ended() const noexcept { return left_ == 0; }
  /// Replaces `to` with the parts that came, after waiting for some at most `most`.
  void take(std::vector<choice_part>& to, std::chrono::milliseconds most) {
    to.clear();
    if (ended() || !channel_->take(events_, most)) return;
    for (const choice_event& e : events_) {
      answer_text& text = texts_[e.choice];
      if (text.ended()) continue;
      answer_part part = text.push(e.what);
      if (text.ended()) --left_;
      if (text.stopped_by_text() && e.what.finish == finish_reason::none) queue_->finish(channel_, e.choice);
      if (!part.text.empty() || !part.tokens.empty() || text.ended()) to.push_back({e.choice, std::move(part)});
    }
  }
  void cancel() {
    if (ended()) return;
    left_ = 0;
    queue_->cancel(channel_);
  }
  call_usage usage() const {
    call_usage u = usage_;
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      u.answer += texts_[i].tokens();
      if (i % static_cast<std::size_t>(per_prompt_) == 0) u.cached += texts_[i].cached_prompt_tokens();
    }
    return u;
  }

 private:
  request_queue* queue_;
  std::shared_ptr<answer_channel> channel_{};
  std::vector<answer_text> texts_{};
  std::vector<choice_event> events_{};
  call_usage usage_{};
  std::int64_t per_prompt_ = 1;
  std::size_t left_ = 0;
};

}  // namespace heddle::inline v0::infer
