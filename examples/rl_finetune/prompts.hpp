// examples/rl_finetune/prompts.hpp: prompts from a file of JSON lines, {"prompt": text} and what a judge is to know of
// each.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/lines.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

struct prompt {
  std::vector<std::int32_t> tokens;
  std::string text, facts;  // the line, as JSON
};

/// All prompts of the file, at least one; empty lines are none. Errors: `io_error` for a file that cannot be read;
/// `config_error` that names the line for one that is no object of JSON with a text "prompt", or that the model cannot
/// read.
inline std::vector<prompt> read_prompts(const std::filesystem::path& file, const heddle::io::tokenizer& tokenizer,
                                        std::int64_t vocabulary) {
  std::vector<prompt> all;
  heddle::io::read_json_lines(file, [&](const nlohmann::json& said, const std::string&, const std::string& where) {
    const auto text = said.find("prompt");
    if (text == said.end() || !text->is_string())
      throw heddle::config_error("heddle: " + where + " should be an object with a text \"prompt\"");
    prompt& p = all.emplace_back(prompt{{}, text->get<std::string>(), said.dump()});
    p.tokens = tokenizer.encode(p.text);
    if (p.tokens.empty()) throw heddle::config_error("heddle: " + where + " has a prompt of no tokens");
    if (const auto most = *std::max_element(p.tokens.begin(), p.tokens.end()); most >= vocabulary)
      throw heddle::config_error("heddle: " + where + " has the token " + std::to_string(most) +
                                 ", the model a vocabulary of " + std::to_string(vocabulary));
  });
  if (all.empty()) throw heddle::config_error("heddle: '" + file.string() + "' has no prompts");
  return all;
}
