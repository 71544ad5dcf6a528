// examples/text_tokens.hpp: the tokens of a text file, by the tokenizer of a model's folder or as bytes.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/tokenizer/folder.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What `--bytes` means in these programs.
inline constexpr const char* bytes_help = "tokens are the bytes of the text, whatever tokenizer the folder has";

/// The text of `file` as tokens of the tokenizer of `model`, or, with `bytes`, as bytes.
/// Errors: `config_error` for a token that a vocabulary of so many lacks, and what reading the files throws: a folder without a tokenizer that can
/// be read is an error, too.
inline std::vector<std::int32_t> text_tokens(const std::string& model, const std::string& file, int vocabulary,
                                             bool bytes) {
  namespace io = heddle::io;
  const auto tokenizer = bytes ? std::nullopt : std::optional(io::load_model_tokenizer(model));
  const io::corpus text(file);
  std::vector<std::int32_t> ids(text.tokens().begin(), text.tokens().end());
  if (tokenizer) ids = tokenizer->encode(std::string(text.tokens().begin(), text.tokens().end()));
  const auto greatest = ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end());
  if (greatest >= vocabulary)
    throw heddle::config_error("heddle: '" + file + "' has the token " + std::to_string(greatest) +
                               ", the model a vocabulary of " + std::to_string(vocabulary));
  return ids;
}
