// examples/text_tokens.cpp: reads tokenizers and texts for all tools.
#include "text_tokens.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/chat/folder.hpp>
#include <heddle/io/chat/samples.hpp>
#include <heddle/io/choice_lines.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/tokenizer/folder.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

heddle::io::tokenizer tokenizer_of(const std::string& model) {
  return heddle::io::load_model_tokenizer(model);
}

heddle::io::tokenizer byte_tokenizer() {
  return heddle::io::byte_tokenizer();
}

static void require_tokens(const std::string& file, const std::vector<std::int32_t>& ids, int vocabulary) {
  const auto greatest = ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end());
  if (greatest >= vocabulary)
    throw heddle::config_error("heddle: '" + file + "' has the token " + std::to_string(greatest) +
                               ", the model a vocabulary of " + std::to_string(vocabulary));
}

std::vector<std::int32_t> text_tokens(const std::string& model, const std::string& file, int vocabulary, bool bytes) {
  namespace io = heddle::io;
  const auto tokenizer = bytes ? std::nullopt : std::optional(tokenizer_of(model));
  const io::corpus text(file);
  std::vector<std::int32_t> ids(text.tokens().begin(), text.tokens().end());
  if (tokenizer) ids = tokenizer->encode(std::string(text.tokens().begin(), text.tokens().end()));
  require_tokens(file, ids, vocabulary);
  return ids;
}

asked_choices ask_choices(const std::string& model, const std::string& file, const std::string& delimiter, int context,
                          bool bytes) {
  namespace io = heddle::io;
  asked_choices out{.tasks = io::read_choice_tasks(file), .samples = {}};
  const io::tokenizer tokenizer = bytes ? byte_tokenizer() : tokenizer_of(model);
  io::choice_encoding how{.context = context};
  const auto marks = bytes ? nlohmann::ordered_json() : io::template_tokens(model);
  for (const char* name : {"eos_token", "bos_token"})
    if (marks.contains(name))
      if (const auto id = tokenizer.find(marks[name].get<std::string>())) how.prefix = id;
  for (std::size_t i = 0; i < out.tasks.size(); ++i)
    for (const std::string& choice : out.tasks[i].choices) try {
        out.samples.push_back(io::choice_tokens(tokenizer, out.tasks[i].context, delimiter + choice, how));
      } catch (const heddle::config_error& e) {
        throw heddle::config_error("heddle: '" + file + "', question " + std::to_string(i + 1) + ": " +
                                   std::string(heddle::without_prefix(e.what())));
      }
  return out;
}

chat_targets chat_targets_of(const std::string& model, const std::string& file, std::int64_t context, int vocabulary) {
  namespace io = heddle::io;
  const auto source = io::read_chat_template(model);
  if (!source || source->text.empty())
    throw heddle::config_error("heddle: '" + model + "' has no chat template, which --chat needs: expected " +
                               "chat_template.jinja, or 'chat_template' in tokenizer_config.json");
  const io::chat_template chat(source->text);
  io::chat_samples of = io::read_chat_samples(file, tokenizer_of(model), chat, io::template_tokens(model), context);
  require_tokens(file, of.rows.tokens, vocabulary);
  require_tokens(file, of.rows.targets, vocabulary);
  std::string about = std::to_string(of.conversations) + " conversations, " + std::to_string(of.samples) +
                      " samples of " + std::to_string(context) + " tokens, " + std::to_string(of.learned) +
                      " of the assistant's are learned, " +
                      (chat.marks_generated() ? "as the template marks them" : "by what each turn adds");
  if (of.cut > 0) about += "; " + std::to_string(of.cut) + " are longer and are cut";
  if (of.empty > 0) about += "; " + std::to_string(of.empty) + " have none and are left out";
  return {.rows = std::move(of.rows), .about = std::move(about)};
}
