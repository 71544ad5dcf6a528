// examples/rl_finetune/prompts.hpp: prompts from a file of JSON lines, {"prompt": text} and what a judge is to know of
// each.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
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
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file))
    throw heddle::io_error("heddle: '" + file.string() + "' cannot be read; --prompts is a file of JSON lines");
  std::vector<prompt> all;
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = "'" + file.string() + "' line " + std::to_string(number);
    const nlohmann::json said = heddle::io::parse_json(line, where);
    const auto text = said.is_object() ? said.find("prompt") : said.end();
    if (text == said.end() || !text->is_string())
      throw heddle::config_error("heddle: " + where + " should be an object with a text \"prompt\"");
    prompt& p = all.emplace_back(prompt{{}, text->get<std::string>(), said.dump()});
    p.tokens = tokenizer.encode(p.text);
    if (p.tokens.empty()) throw heddle::config_error("heddle: " + where + " has a prompt of no tokens");
    if (const auto most = *std::max_element(p.tokens.begin(), p.tokens.end()); most >= vocabulary)
      throw heddle::config_error("heddle: " + where + " has the token " + std::to_string(most) +
                                 ", the model a vocabulary of " + std::to_string(vocabulary));
  }
  if (in.bad()) throw heddle::io_error("heddle: '" + file.string() + "' cannot be read to its end");
  if (all.empty()) throw heddle::config_error("heddle: '" + file.string() + "' has no prompts");
  return all;
}
