// examples/tool.hpp: what the command lines of all tools share: options, help, version, exit statuses, and progress on a terminal.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/version.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

namespace tool {

/// Exit statuses beside 0. A program that a signal has ended has 128 and the signal's number, as shells have it; 3: no CUDA device.
inline constexpr int failed = 1;
inline constexpr int wrong_options = 2;
inline constexpr int steps_left =
    75;  ///< windows have ended before the last step: start it again (EX_TEMPFAIL of sysexits.h)

/// A command line that is wrong: `run` ends with `wrong_options`.
struct usage_error : heddle::config_error {
  using config_error::config_error;
};

/// One option of a `command_line`. Functions that say more about it return it.
class option {
 public:
  option* required() { return required_ = true, this; }
  /// All words that follow, and all of several such options, are kept; for vectors.
  option* take_all() { return many_ = true, this; }
  /// A word is cut here into several values; for vectors.
  option* delimiter(char at) { return delimiter_ = at, this; }
  /// Numbers from `least` to `most`, both included.
  template <class N>
  option* range(N least, N most) {
    if constexpr (std::is_integral_v<N>) whole_ = {std::to_string(least), std::to_string(most)};
    return least_ = static_cast<double>(least), most_ = static_cast<double>(most), this;
  }
  option* at_least(double least) { return least_ = least, this; }
  option* more_than(double least) { return open_ = true, at_least(least); }
  option* one_of(std::vector<std::string> words) { return words_ = std::move(words), this; }
  option* excludes(const option* other) { return excluded_.push_back(other), this; }
  option* needs(const option* other) { return needed_.push_back(other), this; }
  /// What help says is taken where the option is left out, in place of the variable's value.
  option* otherwise(std::string text) { return default_ = std::move(text), this; }

 private:
  friend class command_line;

  template <class T>
  std::string store(const std::string& word, T& to) const {
    if constexpr (requires { to.push_back(typename T::value_type{}); } && !std::is_same_v<T, std::string>) {
      for (std::size_t at = 0; at <= word.size();) {
        const std::size_t end = delimiter_ == '\0' ? word.size() : (std::min)(word.find(delimiter_, at), word.size());
        typename T::value_type one{};
        if (std::string wrong = store(word.substr(at, end - at), one); !wrong.empty()) return wrong;
        to.push_back(std::move(one));
        at = end + 1;
      }
    } else if constexpr (requires {
                           to.emplace();
                           *to;
                         }) {
      return store(word, to.emplace());
    } else if constexpr (std::is_arithmetic_v<T>) {
      const char* const end = word.data() + word.size();
      T value{};
      const auto [last, problem] = std::from_chars(word.data(), end, value);
      const auto real = static_cast<double>(value);
      if (problem != std::errc{} || last != end || !(open_ ? real > least_ : real >= least_) || !(real <= most_))
        return "must be " + expected<T>() + ", got " + word;
      to = value;
    } else {
      if (!words_.empty() && std::find(words_.begin(), words_.end(), word) == words_.end())
        return "must be " + listed(words_, " or ") + ", got " + word;
      to = word;
    }
    return {};
  }

  template <class T>
  std::string expected() const {
    const auto text = [](double x) {
      char digits[32];
      return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
    };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if constexpr (std::is_integral_v<T>) {
      const std::string least = !whole_.first.empty() ? whole_.first
                                : least_ != -infinity ? text(open_ ? least_ + 1 : least_)
                                                      : std::to_string((std::numeric_limits<T>::min)());
      return "a whole number from " + least + " to " +
             (whole_.second.empty() ? std::to_string((std::numeric_limits<T>::max)()) : whole_.second);
    }
    if (least_ == -infinity) return "a number";
    if (most_ == infinity) return (open_ ? "more than " : "at least ") + text(least_);
    return "a number from " + text(least_) + " to " + text(most_);
  }

  template <class T>
  static std::string default_of(const T& value) {
    if constexpr (requires {
                    value.has_value();
                    *value;
                  })
      return value ? default_of(*value) : std::string();
    else if constexpr (std::is_arithmetic_v<T>) {
      char digits[64];
      return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
    } else if constexpr (requires { std::string(value); })
      return value;
    else if constexpr (requires { value.string(); })
      return value.string();
    else
      return {};
  }

  // What stands for a value in the help.
  template <class T>
  static const char* value_of() {
    if constexpr (std::is_same_v<T, std::filesystem::path>) return "PATH";
    if constexpr (requires { typename T::value_type; } && !std::is_same_v<T, std::string> &&
                  !std::is_same_v<T, std::filesystem::path>)
      return value_of<typename T::value_type>();
    return std::is_integral_v<T> ? "N" : std::is_floating_point_v<T> ? "X" : "TEXT";
  }

  static std::string listed(const std::vector<std::string>& words, const char* last) {
    std::string all;
    for (std::size_t i = 0; i < words.size(); ++i)
      all += (i == 0 ? "" : i + 1 == words.size() ? last : ", ") + words[i];
    return all;
  }

  std::string name_, sentence_, value_, default_;
  std::function<std::string(const option&, const std::string&)> take_;  // stores a word, or says what is wrong with it
  std::function<void()> clear_;
  bool required_ = false, many_ = false, flag_ = false, given_ = false, open_ = false;
  char delimiter_ = '\0';
  double least_ = -std::numeric_limits<double>::infinity(), most_ = std::numeric_limits<double>::infinity();
  std::pair<std::string, std::string> whole_;
  std::vector<std::string> words_;
  std::vector<const option*> excluded_, needed_;
};

/// The options of a tool, each a line with name, variable and sentence. Given twice, an option has its last value, unless it takes all.
class command_line {
 public:
  /// `about`: what the tool does. `statuses`: what its exit statuses beyond those of all tools mean.
  explicit command_line(std::string about, std::string statuses = {})
      : about_(std::move(about)), statuses_(std::move(statuses)) {}

  template <class T>
  option* add_option(std::string name, T& to, std::string sentence) {
    option& o = options_.emplace_back();
    o.name_ = std::move(name);
    o.sentence_ = std::move(sentence);
    o.value_ = option::value_of<T>();
    o.default_ = option::default_of(to);
    o.take_ = [&to](const option& self, const std::string& word) { return self.store(word, to); };
    if constexpr (requires {
                    to.push_back(typename T::value_type{});
                    to.clear();
                  })
      o.clear_ = [&to] { to.clear(); };
    return &o;
  }
  option* add_flag(std::string name, bool& to, std::string sentence) {
    option& o = options_.emplace_back();
    o.name_ = std::move(name);
    o.sentence_ = std::move(sentence);
    o.flag_ = true;
    o.take_ = [&to](const option&, const std::string&) { return to = true, std::string(); };
    return &o;
  }

  /// Fills the variables. Returns whether there is work: not after --help and --version, whose text is printed. Errors: `usage_error`.
  bool parse(int argc, const char* const* argv) {
    std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
    const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : std::string("heddle");
    const auto asked = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
    if (asked("--help") || (!words.empty() && words.front() == "-h"))
      return std::fputs(help(name).c_str(), stdout), false;
    if (asked("--version")) return std::fputs(version(name).c_str(), stdout), false;
    read(words);
    for (const option& o : options_) {
      if (o.required_ && !o.given_) throw usage_error("heddle: " + o.name_ + " is required; --help lists all options");
      if (!o.given_) continue;
      for (const option* other : o.excluded_)
        if (other->given_) throw usage_error("heddle: " + o.name_ + " excludes " + other->name_);
      for (const option* other : o.needed_)
        if (!other->given_) throw usage_error("heddle: " + o.name_ + " requires " + other->name_);
    }
    return true;
  }

  /// The name of an option that begins as `text` does, or that is few letters away from it; none where all are far.
  std::string nearest(const std::string& text) const {
    std::string found;
    std::size_t least =
        (std::max)(std::size_t{3}, text.size() / 2);  // of letters that are other, more or fewer, or swapped
    for (const std::string& name : names()) {
      const std::size_t away = text.size() > 3 && name.rfind(text, 0) == 0 ? 0 : distance(text, name);
      if (away < least) least = away, found = name;
    }
    return found;
  }

  std::string help(const std::string& name) const {
    std::string text = about_ + "\n\nUsage: " + name;
    for (const option& o : options_)
      if (o.required_) text += " " + left_of(o);
    text += " [options]\n\nOptions:\n";
    const auto line = [&](const std::string& left, const std::string& right) {
      constexpr std::size_t column = 30, width = 110;
      std::string row = "  " + left;
      row.resize((std::max)(row.size() + 2, column), ' ');
      for (std::size_t at = 0; at < right.size();) {
        std::size_t end = (std::min)(right.find(' ', at), right.size());
        if (row.size() + (end - at) > width && row.size() > column) {
          text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
          row.assign(column, ' ');
        }
        row += right.substr(at, end - at) + " ";
        at = end + 1;
      }
      text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
    };
    for (const option& o : options_) {
      const std::string more = o.required_ ? "required" : o.default_.empty() ? "" : "default: " + o.default_;
      line(left_of(o), o.sentence_ + (more.empty() ? "" : " (" + more + ")") + (o.many_ ? "; may be given often" : ""));
    }
    line("--help", "print this text");
    line("--version", "print the version of heddle");
    return text + "\nExit status: 0 done, 1 an error, 2 wrong options" + (statuses_.empty() ? "" : ", " + statuses_) +
           ".\n";
  }

  static std::string version(const std::string& name) {
    return name + " of heddle " + std::to_string(HEDDLE_VERSION_MAJOR) + "." + std::to_string(HEDDLE_VERSION_MINOR) +
           "." + std::to_string(HEDDLE_VERSION_PATCH) + "\n";
  }

 private:
  static bool names_option(const std::string& word) { return word.size() > 2 && word.rfind("--", 0) == 0; }

  void read(const std::vector<std::string>& words) {
    for (std::size_t i = 0; i < words.size();) {
      const std::string& word = words[i++];
      const std::string name = word.substr(0, word.find('='));
      const auto at = std::find_if(options_.begin(), options_.end(), [&](const option& o) { return o.name_ == name; });
      if (at == options_.end()) {
        if (word.rfind('-', 0) != 0)
          throw usage_error("heddle: '" + word + "' is the value of no option; --help lists all options");
        const std::string near = nearest("--" + name.substr((std::min)(name.find_first_not_of('-'), name.size())));
        throw usage_error("heddle: there is no option " + name + (near.empty() ? "" : ", the nearest is " + near) +
                          "; --help lists all options");
      }
      const auto take = [&](const std::string& value) {
        if (const std::string wrong = at->take_(*at, value); !wrong.empty())
          throw usage_error("heddle: " + name + ": " + wrong);
      };
      if (at->flag_ && word.size() > name.size()) throw usage_error("heddle: " + name + " takes no value, got " + word);
      if (at->clear_ && !(at->many_ && at->given_)) at->clear_();
      at->given_ = true;
      if (at->flag_) {
        take({});
      } else if (word.size() > name.size()) {
        take(word.substr(name.size() + 1));
      } else if (i == words.size() || names_option(words[i])) {
        throw usage_error("heddle: " + name + " needs a value" +
                          (i == words.size() ? "" : "; one that begins with -- is given as " + name + "=" + words[i]));
      } else {
        take(words[i++]);
        while (at->many_ && i < words.size() && !names_option(words[i])) take(words[i++]);
      }
    }
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all{"--help", "--version"};
    for (const option& o : options_) all.push_back(o.name_);
    return all;
  }
  static std::string left_of(const option& o) {
    if (o.flag_) return o.name_;
    std::string value = o.value_;
    if (!o.words_.empty()) {
      value.clear();
      for (const std::string& w : o.words_) value += (value.empty() ? "" : "|") + w;
    }
    return o.name_ + " " + value;
  }
  // Letters that are other, more or fewer; two neighbours that are swapped count once. Source: Damerau 1964, doi:10.1145/363958.363994.
  static std::size_t distance(const std::string& a, const std::string& b) {
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

  std::string about_, statuses_;
  std::deque<option> options_;  // which stay where they are
};

/// A tool's `main`: reads the command line, calls `work()`, which may return a status, and says what went wrong. What was printed and
/// could not be written is an error, too.
template <class Work>
int run(command_line& line, int argc, char** argv, Work&& work) {
  int status = 0;
  std::string problem;
  try {
    if (line.parse(argc, argv)) {
      if constexpr (std::is_void_v<std::invoke_result_t<Work&>>)
        work();
      else
        status = work();
    }
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

/// One sentence of all tools for a folder that is none, or no model's. Errors: `config_error`.
inline void require_model(const std::filesystem::path& folder, const std::string& name = "--model") {
  namespace fs = std::filesystem;
  const std::string where = "heddle: " + name + " '" + folder.string() + "'";
  if (!fs::exists(folder)) throw heddle::config_error(where + ": there is no such folder");
  if (!fs::is_directory(folder))
    throw heddle::config_error(where + " is a file; give the folder that holds config.json and the weights");
  if (!fs::exists(folder / "config.json") && !fs::exists(folder / "adapter_config.json"))
    throw heddle::config_error(where + " has no config.json; give the folder that holds it and the weights");
}

/// How far long work is, as a line on standard error that goes away at the end; nothing where that is no terminal. Any thread may add.
class progress {
 public:
  /// Prints `what` and the count of `total` of these `units`.
  progress(std::string what, std::int64_t total, std::string units)
      : what_(std::move(what)), units_(std::move(units)), total_(total), shown_(is_shown()) {
    draw();
  }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { erase(); }

  void add(std::int64_t more = 1) {
    const std::lock_guard lock(mutex_);
    done_ = (std::min)(done_ + more, total_);
    if (std::chrono::steady_clock::now() - last_ > std::chrono::milliseconds(100)) draw();
  }
  /// Calls `print`, which writes lines, above the line of progress.
  template <class Print>
  void above(Print&& print) {
    const std::lock_guard lock(mutex_);
    erase();
    print();
    if (!shown_) return;
    std::fflush(stdout);
    draw();
  }

 private:
  static bool is_shown() {
    const char* const kind = std::getenv("TERM");
    return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
  }
  void draw() {
    if (!shown_) return;
    last_ = std::chrono::steady_clock::now();
    std::fprintf(stderr, "\r\033[K%s: %lld of %lld %s", what_.c_str(), static_cast<long long>(done_),
                 static_cast<long long>(total_), units_.c_str());
    std::fflush(stderr);
  }
  void erase() const {
    if (shown_) std::fputs("\r\033[K", stderr), std::fflush(stderr);
  }

  std::string what_, units_;
  std::int64_t total_, done_ = 0;
  bool shown_;
  std::chrono::steady_clock::time_point last_{};
  std::mutex mutex_;
};

/// `names`, of tensors that are read or written in turn, each of which is progress where `counts`.
template <class Names>
auto counted(const Names& names, progress& of, bool counts = true) {
  return [&names, &of, counts](std::string_view name) {
    if (counts) of.add();
    return names(name);
  };
}

}  // namespace tool
