// examples/text_tokens.hpp: the tokens of a text file, by the tokenizer of a model's folder or as bytes. Tokenizers are read in text_tokens.cpp, which is compiled
// once for all tools.
#pragma once

#include <heddle/io/choice_tasks.hpp>
#include <heddle/io/token_targets.hpp>
#include <heddle/io/tokenizer/tokenizer.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// What `--bytes` means in these programs.
inline constexpr const char* bytes_help = "tokens are the bytes of the text, whatever tokenizer the folder has";

/// The text of `file` as tokens of the tokenizer of `model`, or, with `bytes`, as bytes.
/// Errors: `config_error` for a token that a vocabulary of so many lacks, and what reading the files throws: a folder without a tokenizer that can
/// be read is an error, too.
std::vector<std::int32_t> text_tokens(const std::string& model, const std::string& file, int vocabulary, bool bytes);

/// The tokenizer of `model`'s folder. Errors: those of reading; an error, too, for a folder without a tokenizer that can be read.
heddle::io::tokenizer tokenizer_of(const std::string& model);
/// That of bytes.
heddle::io::tokenizer byte_tokenizer();

/// Questions of a file, and, of each choice in turn, what the model is given to find how likely it is.
struct asked_choices {
  std::vector<heddle::io::choice_task> tasks;
  std::vector<heddle::io::token_targets> samples;
};
/// `delimiter`: between a context and a choice. `context`: the model's. Errors: as of `read_choice_tasks` and `choice_tokens`, with the question's number.
asked_choices ask_choices(const std::string& model, const std::string& file, const std::string& delimiter, int context,
                          bool bytes);

/// Conversations of a file of JSON lines as samples of `context` tokens, of which the assistant's turns are targets.
struct chat_targets {
  heddle::io::token_targets rows;
  std::string about;  ///< how many, in words
};
/// Rendered by the chat template of `model`'s folder. Errors: as of `read_chat_samples`; `config_error` for a folder without a template, and for tokens
/// that the vocabulary lacks.
chat_targets chat_targets_of(const std::string& model, const std::string& file, std::int64_t context, int vocabulary);

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)  // a program that is compiled as one file
#include "text_tokens.cpp"
#endif
