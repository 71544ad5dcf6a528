// examples/tool.hpp: what the command lines of all tools share: options, help, version, exit statuses, and progress on a terminal. CLI11
// reads them in tool.cpp, which is compiled once for all tools.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

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
  bool required_ = false, many_ = false, flag_ = false, open_ = false;
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
  bool parse(int argc, const char* const* argv);
  /// The name of an option that begins as `text` does, or that is few letters away from it; none where all are far.
  std::string nearest(const std::string& text) const;
  std::string help(const std::string& name) const;
  static std::string version(const std::string& name);

 private:
  struct parser;  // CLI11, which one unit includes
  std::size_t place_of(const option* o) const;

  std::string about_, statuses_;
  std::deque<option> options_;  // which stay where they are
};

/// A tool's `main`: reads the command line, calls `work()`, which returns a status, and says what went wrong. What was printed and
/// could not be written is an error, too.
int run_tool(command_line& line, int argc, char** argv, const std::function<int()>& work);
/// The same; `work` may return nothing.
template <class Work>
int run(command_line& line, int argc, char** argv, Work&& work) {
  return run_tool(line, argc, argv, [&work] {
    if constexpr (std::is_void_v<std::invoke_result_t<Work&>>)
      return work(), 0;
    else
      return work();
  });
}

/// One sentence of all tools for a folder that is none, or no model's. Errors: `config_error`.
void require_model(const std::filesystem::path& folder, const std::string& name = "--model");

/// How far long work is, and after 5 s how long it will take, as a line on standard error that goes away at the end; nothing where that is no terminal. Any thread may add.
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
  static bool is_shown();
  void draw();
  void erase() const {
    if (shown_) std::fputs("\r\033[K", stderr), std::fflush(stderr);
  }

  std::string what_, units_;
  std::int64_t total_, done_ = 0;
  bool shown_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_{};
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

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)  // a program that is compiled as one file
#include "tool.cpp"
#endif
