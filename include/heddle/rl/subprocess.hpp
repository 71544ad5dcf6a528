// heddle/rl/subprocess.hpp: rewards by a command that reads and prints lines of JSON.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/rl/line_process.hpp>
#include <heddle/rl/reward.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// What a judge says in a line: an object of JSON with a number "reward", and any other members; anything else is missing.
inline judgement judgement_of_line(std::string_view line) {
  try {
    const nlohmann::json said = io::parse_json(line, "the judge's line");
    const auto reward = said.is_object() ? said.find("reward") : said.end();
    if (reward == said.end() || !reward->is_number())
      return {0, "the judge's line should be an object with a number \"reward\", got " + shown_name(line)};
    return {reward->get<double>(), {}};
  } catch (const error& e) {
    return {0, std::string(without_prefix(e.what()))};
  }
}

/// A judge: runs a command for each answer, in a process of its own with limits (`run_lines`). It reads one line,
/// {"prompt": text, "answer": text, "prompt_tokens": [ids], "answer_tokens": [ids]}, with "facts" where the question
/// has some, and prints one, {"reward": number}. Bytes of texts that are no UTF-8 become U+FFFD. An answer whose judge
/// fails, hangs or prints anything else is missing, with the reason.
/// Errors: `config_error` for limits; `io_error` for facts that are no JSON.
class subprocess {
 public:
  explicit subprocess(process_limits limits) : limits_(std::move(limits)) { limits_.validate(); }

  std::vector<judgement> operator()(std::span<const question> questions) const {
    std::vector<std::string> lines;
    for (const question& q : questions) lines.push_back(line_of(q));
    std::vector<judgement> all;
    for (const process_line& l : run_lines(limits_, lines))
      all.push_back(l.failure.empty() ? judgement_of_line(l.text) : judgement{0, l.failure});
    return all;
  }

 private:
  static std::string line_of(const question& q) {
    nlohmann::json all = {
        {"prompt", q.prompt_text}, {"answer", q.answer_text}, {"prompt_tokens", q.prompt}, {"answer_tokens", q.answer}};
    if (!q.facts.empty()) all["facts"] = io::parse_json(q.facts, "rl::question.facts");
    return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  process_limits limits_;
};

}  // namespace heddle::inline v0::rl
