// heddle/io/choice_lines.hpp: multiple-choice questions from a file of JSON lines.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/choice_tasks.hpp>
#include <heddle/io/json/lines.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// The questions of a file, a line each: {"context": text, "choices": [text, ...], "answer": number of the right one from 0 on, or its text}.
/// Errors: as of `read_json_lines`; `config_error` that names the line for one that is no such object, and for a file without any.
inline std::vector<choice_task> read_choice_tasks(const std::filesystem::path& file) {
  std::vector<choice_task> all;
  read_json_lines(file, [&](const nlohmann::json& said, const std::string&, const std::string& where) {
    const auto member = [&](const char* name, bool fits, const char* expected) {
      if (!fits) throw config_error("heddle: " + where + ": '" + name + "' should be " + expected);
    };
    const nlohmann::json context = said.value("context", nlohmann::json()),
                         choices = said.value("choices", nlohmann::json()),
                         answer = said.value("answer", nlohmann::json());
    member("context", context.is_string(), "a text");
    member("choices", choices.is_array() && !choices.empty(), "a list of texts");
    choice_task task{.context = context.get<std::string>()};
    for (const nlohmann::json& one : choices) {
      member("choices", one.is_string() && !one.get_ref<const std::string&>().empty(),
             "a list of texts, none of them empty");
      task.choices.push_back(one.get<std::string>());
    }
    const std::string expected =
        "the number of the right choice, from 0 to " + std::to_string(choices.size() - 1) + ", or its text";
    if (answer.is_string())
      task.answer =
          static_cast<std::size_t>(std::ranges::find(task.choices, answer.get<std::string>()) - task.choices.begin());
    else if (answer.is_number_integer() && answer >= 0)
      task.answer = answer.get<std::size_t>();
    else
      task.answer = task.choices.size();
    member("answer", task.answer < task.choices.size(), expected.c_str());
    all.push_back(std::move(task));
  });
  if (all.empty()) throw config_error("heddle: '" + file.string() + "' has no questions");
  return all;
}

}  // namespace heddle::inline v0::io
