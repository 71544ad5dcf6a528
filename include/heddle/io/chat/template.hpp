// heddle/io/chat/template.hpp: renders the chat templates of published models from their source.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/chat/jinja_parse.hpp>
#include <heddle/io/chat/jinja_run.hpp>
#include <heddle/io/chat/jinja_value.hpp>
#include <heddle/io/tokenizer/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A rendered conversation, and of each statement `generation` begin and end, in bytes, of what it made: what the assistant wrote.
struct generated_text {
  std::string text{};
  std::vector<std::pair<std::size_t, std::size_t>> generated{};
};

namespace detail {
inline bool has_generation(const jinja_node& n) {
  return n.op == jinja_op::scoped || std::ranges::any_of(n.parts, has_generation);
}
}  // namespace detail

/// A chat template: the part of Jinja that templates of published models use, with the settings of transformers' `apply_chat_template`.
/// Statements if, for, set, macro, call, filter, with, generation, break, continue, raw; filters, tests and methods of str, list
/// and dict as Python has them. A template reaches what it is given and nothing else: no file, no attribute beyond data, no clock but
/// `strftime_now`. Source: the template documentation of Jinja 3.1, and `transformers/utils/chat_template_utils.py` of 5.24.
class chat_template {
 public:
  /// Errors: `template_error` for a source that is no template, of more than 1 MiB, or nested in more than 120 levels.
  explicit chat_template(std::string_view source);

  /// The text that the template makes of the members of an object: `messages`, `tools`, `add_generation_prompt`, `bos_token` and so on.
  /// `now`: what `strftime_now` writes, in the zone of this machine, in seconds since 1970.
  /// Errors: `template_error` where it uses what is not there, raises an exception, or takes more than `limits`; `config_error`
  /// if `data` is no object.
  std::string render(const nlohmann::ordered_json& data, std::time_t now = std::time(nullptr),
                     const chat_template_limits& limits = {}) const;

  /// The same, and which parts of it the template marks as the assistant's. Errors: as of `render`, and for marks within a macro, a set or a filter.
  generated_text render_generated(const nlohmann::ordered_json& data, std::time_t now = std::time(nullptr),
                                  const chat_template_limits& limits = {}) const;
  /// Whether the template has statements `generation`.
  bool marks_generated() const { return detail::has_generation(*root_); }

  const std::string& source() const noexcept { return source_; }

 private:
  std::string text_of(const nlohmann::ordered_json& data, std::time_t now, const chat_template_limits& limits,
                      std::vector<std::pair<std::size_t, std::size_t>>* generated) const;

  std::string source_;
  std::shared_ptr<const detail::jinja_node> root_{};
};

inline chat_template::chat_template(std::string_view source) : source_(source) {
  constexpr std::size_t most = std::size_t{1} << 20;
  if (source.size() > most)
    throw template_error(
        1, "a source should have at most " + std::to_string(most) + " bytes, got " + std::to_string(source.size()));
  if (const std::size_t valid = detail::valid_prefix(source); valid != source.size())
    throw template_error(static_cast<int>(1 + std::ranges::count(source.substr(0, valid), '\n')),
                         "byte " + std::to_string(valid) + " is no UTF-8");
  root_ = std::make_shared<const detail::jinja_node>(detail::jinja_parser(source).parse());
}

inline std::string chat_template::render(const nlohmann::ordered_json& data, std::time_t now,
                                         const chat_template_limits& limits) const {
  return text_of(data, now, limits, nullptr);
}

inline generated_text chat_template::render_generated(const nlohmann::ordered_json& data, std::time_t now,
                                                      const chat_template_limits& limits) const {
  generated_text out;
  out.text = text_of(data, now, limits, &out.generated);
  return out;
}

inline std::string chat_template::text_of(const nlohmann::ordered_json& data, std::time_t now,
                                          const chat_template_limits& limits,
                                          std::vector<std::pair<std::size_t, std::size_t>>* generated) const {
  if (!data.is_object())
    throw config_error("heddle: a chat template is given an object, got " + std::string(data.type_name()));
  return detail::jinja_run(now, limits).text_of(*root_, data, generated);
}

}  // namespace heddle::inline v0::io
