// heddle/infer/serve/openai/running_call.hpp: a running call: its text, end, cancel.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/infer/serve/answer/chat_format.hpp>
#include <heddle/infer/serve/answer/masks.hpp>
#include <heddle/infer/serve/answer/text.hpp>
#include <heddle/infer/serve/openai/call.hpp>
#include <heddle/infer/serve/openai/response.hpp>
#include <heddle/infer/serve/request_queue.hpp>

#include <algorithm>
#include <atomic>
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

namespace detail {
inline std::vector<std::int32_t> rendered_tokens(const completion_call& c, const io::tokenizer& t,
                                                 const rendered_template& r, bool& thinks) {
  nlohmann::ordered_json conversation = c.conversation;
  if (conversation.is_null()) {
    conversation = {{"messages", nlohmann::ordered_json::array()}, {"add_generation_prompt", true}};
    for (const io::chat_message& m : c.messages)
      conversation["messages"].push_back({{"role", m.role}, {"content", m.content}});
  }
  try {
    rendered_conversation out = render_conversation(t, r, std::move(conversation));
    thinks = out.thinks;
    return std::move(out.tokens);
  } catch (const io::template_error& e) {
    throw api_error(400, "invalid_request_error", std::string(without_prefix(e.what())), "messages",
                    "chat_template_error");
  }
}
// Tokens of a conversation, and whether the answer begins with thoughts.
inline std::vector<std::int32_t> chat_tokens(const completion_call& c, const io::tokenizer& t, const chat_choice& chat,
                                             bool& thinks) {
  if (!chat.renders())
    throw api_error(400, "invalid_request_error", "conversations cannot be rendered: " + chat.about, "messages",
                    "no_chat_template");
  if (chat.rendered && (!chat.format || !c.needs_template.empty()))
    return rendered_tokens(c, t, *chat.rendered, thinks);
  if (!c.needs_template.empty())
    throw invalid_param(c.needs_template, "is only for a model whose folder has a chat template",
                        "unsupported_parameter");
  const std::vector<io::chat_part> parts =
      std::visit([&](const auto& f) { return f(std::span<const io::chat_message>(c.messages), true); }, *chat.format);
  thinks = std::string_view(io::detail::stripped(io::to_text(parts))).ends_with("<think>");
  return io::encode_chat(t, parts);
}
}  // namespace detail

/// The tokens of each prompt of a call. `thinks`: set to whether the answer begins with thoughts. Errors: `api_error` (400) if there is no chat template, with the reason, or the text is too long for the tokenizer.
inline std::vector<std::vector<std::int32_t>> prompt_tokens(const completion_call& c, const io::tokenizer& t,
                                                            const chat_choice& chat, bool* thinks = nullptr) {
  std::vector<std::vector<std::int32_t>> out;
  bool begins = false;
  try {
    if (c.chat) out.push_back(detail::chat_tokens(c, t, chat, begins));
    for (const call_prompt& p : c.prompts) {
      if (const auto* text = std::get_if<std::string>(&p))
        out.push_back(t.encode(*text, {.add_special_tokens = c.add_special_tokens}));
      else
        out.push_back(std::get<std::vector<std::int32_t>>(p));
    }
  } catch (const text_error& e) {
    throw invalid_param(c.chat ? "messages" : "prompt", std::string(without_prefix(e.what())));
  }
  if (thinks != nullptr) *thinks = begins;
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
    bool thinks = false;
    const auto prompts = prompt_tokens(call, t, chat, &thinks);
    const std::int64_t context = queue.context();
    for (const auto& p : prompts) {  // before `n` copies are made of it
      if (std::ssize(p) >= context) throw context_error(std::ssize(p), context);
      usage_.prompt += std::ssize(p);
    }
    const bool reasoning = call.chat && chat.rendered && chat.rendered->reasoning && call.constraint.empty();
    const tool_call_format calls = call.calls_tools && chat.rendered ? chat.rendered->calls : tool_call_format::none;
    std::vector<io::token_id> kept;
    for (const io::added_token& a : t.added_tokens())
      for (const std::string_view mark : answer_sections::marks(calls, reasoning))
        if (a.content == mark) kept.push_back(a.id);
    texts_.assign(prompts.size() * static_cast<std::size_t>(call.n), answer_text(t, call.stop, kept));
    if (reasoning || calls != tool_call_format::none)
      sections_.assign(texts_.size(), answer_sections(calls, reasoning, thinks));
    called_.assign(texts_.size(), 0);
    logits_mask grammar;
    if (call.json_object || call.json_schema || call.regex) {
      const std::string name = call.constraint.empty() ? "response_format" : call.constraint;
      if (masks == nullptr || ends.empty())
        throw invalid_param(name, "cannot constrain the answer: the model has no token that ends one",
                            "unsupported_parameter");
      try {
        grammar = masks->mask(call, ends);
      } catch (const grammar_error& e) {
        throw invalid_param(name, "is refused: " + std::string(without_prefix(e.what())), "invalid_grammar");
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
      if (!sections_.empty()) cut(part, e.choice);
      if (!part.text.empty() || !part.tokens.empty() || !part.reasoning.empty() || !part.calls.empty() || text.ended())
        to.push_back({e.choice, std::move(part)});
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
  void cut(answer_part& part, std::size_t choice) {
    answer_section s = sections_[choice].push(part.text, part.finish != finish_reason::none);
    part.text = std::move(s.content);
    part.reasoning = std::move(s.reasoning);
    part.calls = std::move(s.calls);
    for (tool_call& c : part.calls) {
      ++called_[choice];
      if (c.id.empty()) c.id = new_id();
    }
    part.called = called_[choice] > 0;
  }
  // Nine characters, which is what Mistral's templates take.
  static std::string new_id() {
    static std::atomic<std::uint64_t> last{
        static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
    std::uint64_t n = (last += 1) * 0x9e3779b97f4a7c15u;  // each number of 64 bits once
    std::string out;
    for (int i = 0; i < 9; ++i, n /= 36) out += "0123456789abcdefghijklmnopqrstuvwxyz"[n % 36];
    return out;
  }

  request_queue* queue_;
  std::shared_ptr<answer_channel> channel_{};
  std::vector<answer_text> texts_{};
  std::vector<answer_sections> sections_{};  // where answers have thoughts or calls
  std::vector<int> called_{};
  std::vector<choice_event> events_{};
  call_usage usage_{};
  std::int64_t per_prompt_ = 1;
  std::size_t left_ = 0;
};

}  // namespace heddle::inline v0::infer
