// examples/tool.cpp: command lines of all tools, read by CLI11; compiled once, or within a program's one unit (HEDDLE_EXAMPLE_ONE_UNIT).
#include "tool.hpp"

#include <heddle/io/safetensors/other_weights.hpp>
#include <heddle/version.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include <unistd.h>

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)
#define HEDDLE_TOOL_INLINE inline
#else
#define HEDDLE_TOOL_INLINE
#endif

namespace tool {

namespace detail {
// Letters that are other, more or fewer; two neighbours that are swapped count once. Source: Damerau 1964, doi:10.1145/363958.363994.
inline std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = (std::min)({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = (std::min)(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}
}  // namespace detail

// The same options as CLI11 has them. Words are stored by ours, which say what was expected.
struct command_line::parser {
  CLI::App app;
  std::vector<CLI::Option*> made;  // one for each of the line's options

  parser(const command_line& line, const std::string& name) : app(line.about_, name) {
    app.set_help_flag("--help", "print this text");
    app.set_version_flag("--version", version(name), "print the version of heddle");
    app.allow_extras();  // which are named with the nearest option
    app.get_formatter()->column_width(34);
    app.footer("\nExit status: 0 done, 1 an error, 2 wrong options" +
               (line.statuses_.empty() ? "" : ", " + line.statuses_) + ".");
    for (const option& o : line.options_) {
      const std::string more = o.required_ || o.default_.empty() ? "" : " (default: " + o.default_ + ")";
      const std::string text = o.sentence_ + more + (o.many_ ? "; may be given often" : "");
      if (o.flag_) {
        made.push_back(app.add_flag(o.name_, text)->disable_flag_override());
        continue;
      }
      CLI::Option* const one = made.emplace_back(app.add_option(o.name_, CLI::callback_t(), text));
      std::string words;
      for (const std::string& w : o.words_) words += (words.empty() ? "" : "|") + w;
      one->type_name(words.empty() ? o.value_ : words)->type_size(1)->required(o.required_);
      if (o.many_)
        one->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args()->take_all();
      else
        one->expected(1)->take_last();
    }
    for (std::size_t i = 0; i < made.size(); ++i) {
      for (const option* other : line.options_[i].excluded_) made[i]->excludes(made[line.place_of(other)]);
      for (const option* other : line.options_[i].needed_) made[i]->needs(made[line.place_of(other)]);
    }
  }
};

HEDDLE_TOOL_INLINE std::size_t command_line::place_of(const option* o) const {
  std::size_t at = 0;
  while (&options_[at] != o) ++at;
  return at;
}

HEDDLE_TOOL_INLINE bool command_line::parse(int argc, const char* const* argv) {
  const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : std::string("heddle");
  parser by(*this, name);
  // The last word first, as CLI11 takes them. It would take the next word for what is not behind an equals sign.
  std::vector<std::string> words;
  for (int i = argc; --i > 0;) {
    const std::string word = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
    for (const option& o : options_)  // which CLI11 would take for its value
      if (o.name_ == word && !o.flag_ && next.size() > 2 && next.rfind("--", 0) == 0)
        throw usage_error("heddle: " + word + " needs a value; one that begins with -- is given as " + word + "=" +
                          next);
    const bool ends = word.size() > 3 && word.rfind("--", 0) == 0 && word.find('=') == word.size() - 1;
    if (ends) words.emplace_back();
    words.push_back(ends ? word.substr(0, word.size() - 1) : word);
  }
  std::string problem;
  try {
    by.app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return std::fputs(help(name).c_str(), stdout), false;
  } catch (const CLI::CallForVersion&) {
    return std::fputs(version(name).c_str(), stdout), false;
  } catch (const CLI::ParseError& e) {
    problem = std::string("heddle: ") + e.what() + "; --help lists all options";
  }
  if (const std::vector<std::string> unknown = by.app.remaining(); !unknown.empty()) {
    const std::string& word = unknown.front();
    if (word.rfind('-', 0) != 0)
      throw usage_error("heddle: '" + word + "' is the value of no option; --help lists all options");
    const std::string wrong = word.substr(0, word.find('='));
    const std::string near = nearest("--" + wrong.substr((std::min)(wrong.find_first_not_of('-'), wrong.size())));
    throw usage_error("heddle: there is no option " + wrong + (near.empty() ? "" : ", the nearest is " + near) +
                      "; --help lists all options");
  }
  if (!problem.empty()) throw usage_error(problem);
  for (std::size_t i = 0; i < by.made.size(); ++i) {
    option& o = options_[i];
    const std::vector<std::string>& given = by.made[i]->results();
    if (given.empty()) continue;
    if (o.clear_) o.clear_();
    for (const std::string& word : o.many_ || o.flag_ ? given : std::vector<std::string>{given.back()})
      if (const std::string wrong = o.take_(o, word); !wrong.empty())
        throw usage_error("heddle: " + o.name_ + ": " + wrong);
  }
  return true;
}

HEDDLE_TOOL_INLINE std::string command_line::nearest(const std::string& text) const {
  std::vector<std::string> names{"--help", "--version"};
  for (const option& o : options_) names.push_back(o.name_);
  std::string found;
  std::size_t least =
      (std::max)(std::size_t{3}, text.size() / 2);  // of letters that are other, more or fewer, or swapped
  for (const std::string& name : names) {
    const std::size_t away = text.size() > 3 && name.rfind(text, 0) == 0 ? 0 : detail::distance(text, name);
    if (away < least) least = away, found = name;
  }
  return found;
}

HEDDLE_TOOL_INLINE std::string command_line::help(const std::string& name) const {
  return parser(*this, name).app.help();
}

HEDDLE_TOOL_INLINE std::string command_line::version(const std::string& name) {
  return name + " of heddle " + std::to_string(HEDDLE_VERSION_MAJOR) + "." + std::to_string(HEDDLE_VERSION_MINOR) +
         "." + std::to_string(HEDDLE_VERSION_PATCH) + "\n";
}

HEDDLE_TOOL_INLINE int run_tool(command_line& line, int argc, char** argv, const std::function<int()>& work) {
  int status = 0;
  std::string problem;
  try {
    if (line.parse(argc, argv)) status = work();
  } catch (const usage_error& e) {
    status = wrong_options;
    problem = e.what();
  } catch (const std::bad_alloc&) {
    status = failed;
    problem = "heddle: no memory is left";
  } catch (const std::exception& e) {
    status = failed;
    problem = e.what();
  }
  errno = 0;
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) &&
      problem.empty()) {  // before the problem: in a file it stands behind
    status = failed;
    problem = "heddle: the output cannot be written" +
              (errno == 0 ? std::string() : ": " + std::generic_category().message(errno));
  }
  if (!problem.empty()) std::fprintf(stderr, "%s\n", problem.c_str());
  return status;
}

// Continues a sentence with what to do with a GGUF in a folder, if there is one.
HEDDLE_TOOL_INLINE std::string gguf_in(const std::filesystem::path& folder) {
  const std::string other = heddle::io::detail::other_weights(folder);
  return other.find(".gguf'") != std::string::npos ? other : "";
}

HEDDLE_TOOL_INLINE void require_model(const std::filesystem::path& folder, const std::string& name) {
  namespace fs = std::filesystem;
  const std::string where = "heddle: " + name + " '" + folder.string() + "'";
  if (!fs::exists(folder)) throw heddle::config_error(where + ": there is no such folder");
  if (!fs::is_directory(folder))
    throw heddle::config_error(where + " is a file; give the folder that holds config.json and the weights" +
                               gguf_in(folder.extension() == ".gguf" ? folder.parent_path() : fs::path()));
  if (!fs::exists(folder / "config.json") && !fs::exists(folder / "adapter_config.json"))
    throw heddle::config_error(where + " has no config.json; give the folder that holds it and the weights" +
                               gguf_in(folder));
}

HEDDLE_TOOL_INLINE bool progress::is_shown() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}
HEDDLE_TOOL_INLINE void progress::draw() {
  if (!shown_) return;
  last_ = std::chrono::steady_clock::now();
  std::fprintf(stderr, "\r\033[K%s: %lld of %lld %s", what_.c_str(), static_cast<long long>(done_),
               static_cast<long long>(total_), units_.c_str());
  const double seconds = std::chrono::duration<double>(last_ - begin_).count();
  if (const double left = seconds / static_cast<double>(done_) * static_cast<double>(total_ - done_);
      seconds > 5 && done_ > 0 && left >= 1)
    std::fprintf(stderr, "  left %lld:%02lld", static_cast<long long>(left) / 60, static_cast<long long>(left) % 60);
  std::fflush(stderr);
}

}  // namespace tool
