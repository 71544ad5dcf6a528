// examples/text_tokens.cpp: reads tokenizers and texts for all tools.
#include "text_tokens.hpp"

#include <heddle/core/error.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/tokenizer/folder.hpp>

#include <algorithm>
#include <optional>

heddle::io::tokenizer tokenizer_of(const std::string& model) {
  return heddle::io::load_model_tokenizer(model);
}

heddle::io::tokenizer byte_tokenizer() {
  return heddle::io::byte_tokenizer();
}

std::vector<std::int32_t> text_tokens(const std::string& model, const std::string& file, int vocabulary, bool bytes) {
  namespace io = heddle::io;
  const auto tokenizer = bytes ? std::nullopt : std::optional(tokenizer_of(model));
  const io::corpus text(file);
  std::vector<std::int32_t> ids(text.tokens().begin(), text.tokens().end());
  if (tokenizer) ids = tokenizer->encode(std::string(text.tokens().begin(), text.tokens().end()));
  const auto greatest = ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end());
  if (greatest >= vocabulary)
    throw heddle::config_error("heddle: '" + file + "' has the token " + std::to_string(greatest) +
                               ", the model a vocabulary of " + std::to_string(vocabulary));
  return ids;
}
