// examples/text_tokens.hpp: the tokens of a text file, by a folder's tokenizer.json or as bytes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// The text of `file` as tokens of the tokenizer.json of `model`, or as bytes where there is none.
/// Errors: `config_error` for a token that a vocabulary of so many lacks, and what reading the files throws.
inline std::vector<std::int32_t> text_tokens(const std::string& model, const std::string& file, int vocabulary) {
  const heddle::io::corpus text(file);
  std::vector<std::int32_t> ids(text.tokens().begin(), text.tokens().end());
  if (const auto path = std::filesystem::path(model) / "tokenizer.json"; std::filesystem::exists(path)) {
    const auto found = heddle::io::load_tokenizer(path).encode(std::string(text.tokens().begin(), text.tokens().end()));
    ids.assign(found.begin(), found.end());
  }
  const auto greatest = ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end());
  if (greatest >= vocabulary)
    throw heddle::config_error("heddle: '" + file + "' has the token " + std::to_string(greatest) +
                               ", the model a vocabulary of " + std::to_string(vocabulary));
  return ids;
}
