// heddle/rl/impl/line_process.hpp: bodies of heddle/rl/line_process.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/file_descriptor.hpp>
#include <heddle/core/text.hpp>
#include <heddle/rl/line_process.hpp>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

extern char** environ;

namespace heddle::inline v0::rl {
namespace detail {

// One run. Its standard input is a socket, as writing to a pipe that nobody reads would end this program by a signal.
class line_process {
 public:
  using clock = std::chrono::steady_clock;

  line_process(const process_limits& limits, std::string_view line)
      : limits_(limits), in_(std::string(line) + "\n"), until_(clock::now() + seconds(limits.wall_seconds)) {
    start();
  }
  line_process(const line_process&) = delete;
  line_process& operator=(const line_process&) = delete;
  ~line_process() { end(); }

  bool over() const noexcept { return over_; }
  process_line result() const { return {text_, failure_}; }
  clock::time_point until() const noexcept { return until_; }
  // What `poll` waits for.
  void add_to(std::vector<pollfd>& all) const {
    if (input_.file() >= 0) all.push_back({input_.file(), POLLOUT, 0});
    if (output_.file() >= 0) all.push_back({output_.file(), POLLIN, 0});
    if (errors_.file() >= 0) all.push_back({errors_.file(), POLLIN, 0});
  }
  // Whether it has closed its output, so that only its end is waited for.
  bool closed() const noexcept { return !over_ && output_.file() < 0; }

  // Does what can be done without waiting.
  void proceed() {
    if (over_) return;
    send_some();
    take_errors();
    take_output();
    if (over_) return;
    if (output_.file() < 0 && has_ended()) return fail(how_it_ended());
    if (clock::now() >= until_) fail("the judge took more than " + number_text(limits_.wall_seconds) + " s", false);
  }

 private:
  static clock::duration seconds(double s) {
    return std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(s));
  }

  void start() {
    int in[2], out[2], err[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, in) != 0) return not_started(errno);
    input_ = file_descriptor(in[0]);
    const file_descriptor its_input(in[1]);
    ::fcntl(in[1], F_SETFL, 0);  // the judge's end waits
    if (::pipe2(out, O_CLOEXEC) != 0) return not_started(errno);
    output_ = file_descriptor(out[0]);
    const file_descriptor its_output(out[1]);
    if (::pipe2(err, O_CLOEXEC) != 0) return not_started(errno);
    errors_ = file_descriptor(err[0]);
    const file_descriptor its_errors(err[1]);
    for (const int f : {out[0], err[0]}) ::fcntl(f, F_SETFL, O_NONBLOCK);

    const std::string script = "ulimit -c 0 && ulimit -t " + std::to_string(limits_.cpu_seconds) + " && ulimit -v " +
                               std::to_string((limits_.memory_bytes + 1023) / 1024) + " && exec \"$@\"";
    std::vector<std::string> words{"/bin/sh", "-c", script, "sh"};
    words.insert(words.end(), limits_.command.begin(), limits_.command.end());
    std::vector<char*> arguments;
    for (std::string& w : words) arguments.push_back(w.data());
    arguments.push_back(nullptr);

    posix_spawn_file_actions_t files;
    posix_spawnattr_t settings;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&settings);
    ::posix_spawn_file_actions_adddup2(&files, in[1], 0);
    ::posix_spawn_file_actions_adddup2(&files, out[1], 1);
    ::posix_spawn_file_actions_adddup2(&files, err[1], 2);
    ::posix_spawnattr_setflags(&settings, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    ::posix_spawnattr_setpgroup(&settings, 0);
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    for (const int s : {SIGPIPE, SIGINT, SIGTERM, SIGCHLD}) sigaddset(&usual, s);
    ::posix_spawnattr_setsigmask(&settings, &none);
    ::posix_spawnattr_setsigdefault(&settings, &usual);
    const int fault = ::posix_spawn(&process_, "/bin/sh", &files, &settings, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&settings);
    if (fault != 0) {
      process_ = -1;
      not_started(fault);
    }
  }
  void not_started(int fault) { fail("the judge could not be started: " + std::string(std::strerror(fault)), false); }

  void send_some() {
    while (input_.file() >= 0) {
      const ssize_t n = ::send(input_.file(), in_.data() + sent_, in_.size() - sent_, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n > 0) sent_ += static_cast<std::size_t>(n);
      if (n < 0 || sent_ == in_.size()) input_ = file_descriptor();  // it reads no more, or has all
    }
  }
  // Calls `f(text)` for what is there; closes the file at its end.
  template <class F>
  static void take(file_descriptor& from, F&& f) {
    char bytes[4096];
    while (from.file() >= 0) {
      const ssize_t n = ::read(from.file(), bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n <= 0) {
        from = file_descriptor();
        return;
      }
      if (!f(std::string_view(bytes, static_cast<std::size_t>(n)))) return;
    }
  }
  void take_errors() {
    int blocks = 64;  // then others have their turn: some print for ever
    take(errors_, [&](std::string_view some) {
      constexpr std::size_t most = 200;
      said_ += some;
      if (said_.size() > most) said_.erase(0, said_.size() - most);  // the last words
      return --blocks > 0;
    });
  }
  void take_output() {
    take(output_, [&](std::string_view some) {
      const std::size_t end = some.find('\n');
      text_ += some.substr(0, end);
      if (std::ssize(text_) > limits_.output_bytes) {
        fail("the judge printed more than " + std::to_string(limits_.output_bytes) + " bytes in a line", false);
        return false;
      }
      if (end == std::string_view::npos) return true;
      done();
      return false;
    });
    if (!over_ && output_.file() < 0 && !text_.empty()) done();  // a line without an end
  }

  // Not taken off the system's list, so that no other group can have its number before that of the judge is killed.
  bool has_ended() {
    siginfo_t how{};
    return ::waitid(P_PID, static_cast<id_t>(process_), &how, WEXITED | WNOHANG | WNOWAIT) == 0 && how.si_pid != 0;
  }
  std::string how_it_ended() {
    take_errors();
    const int status = end();
    if (WIFSIGNALED(status)) {
      const int s = WTERMSIG(status);
      return "the judge was ended by signal " + std::to_string(s) + " (" + ::strsignal(s) + ")" +
             (s == SIGKILL || s == SIGXCPU
                  ? ", perhaps at its limit of " + std::to_string(limits_.cpu_seconds) + " s of CPU"
                  : std::string());
    }
    return "the judge ended with status " + std::to_string(WEXITSTATUS(status)) + " and printed no line";
  }
  void done() {
    over_ = true;
    end();
  }
  void fail(std::string why, bool with_words = true) {
    text_.clear();
    failure_ = std::move(why);
    if (with_words && !said_.empty()) {
      for (char& c : said_)
        if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = ' ';
      said_.erase(said_.find_last_not_of(' ') + 1);
      failure_ += ": " + said_;
    }
    done();
  }
  int end() {
    input_ = file_descriptor();
    output_ = file_descriptor();
    errors_ = file_descriptor();
    int status = 0;
    if (process_ > 0) {
      ::kill(-process_, SIGKILL);
      while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
      }
      process_ = -1;
    }
    return status;
  }

  const process_limits& limits_;
  std::string in_;
  std::size_t sent_ = 0;
  clock::time_point until_;
  pid_t process_ = -1;
  file_descriptor input_{}, output_{}, errors_{};
  std::string text_{}, said_{}, failure_{};
  bool over_ = false;
};

}  // namespace detail

HEDDLE_INLINE void process_limits::validate() const {
  if (command.empty()) throw config_error("heddle: a judge is a command, got no words");
  if (cpu_seconds < 1 || memory_bytes < 1024 || !(wall_seconds > 0 && wall_seconds < 1e6) || output_bytes < 1 ||
      at_once < 1)
    throw config_error(
        "heddle: a judge has at least 1 s of CPU, 1024 bytes of memory, some time, 1 byte of output and 1 run at once; "
        "got " +
        std::to_string(cpu_seconds) + " s, " + std::to_string(memory_bytes) + ", " + number_text(wall_seconds) +
        " s, " + std::to_string(output_bytes) + " and " + std::to_string(at_once));
}

HEDDLE_INLINE std::vector<process_line> run_lines(const process_limits& limits, std::span<const std::string> lines) {
  limits.validate();
  using clock = detail::line_process::clock;
  std::vector<process_line> all(lines.size());
  std::vector<std::pair<std::size_t, std::unique_ptr<detail::line_process>>> running;
  std::size_t next = 0;
  while (next < lines.size() || !running.empty()) {
    for (; next < lines.size() && std::ssize(running) < limits.at_once; ++next)
      running.emplace_back(next, std::make_unique<detail::line_process>(limits, lines[next]));
    std::vector<pollfd> files;
    auto until = (clock::time_point::max)();
    bool closed = false, over = false;
    for (const auto& [i, p] : running) {
      p->add_to(files);
      until = (std::min)(until, p->until());
      closed = closed || p->closed();
      over = over || p->over();
    }
    // The end of a process is no event of a file: it is looked for often, which is short after its output has closed.
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count() + 1;
    const auto wait = over ? 0 : std::clamp<long long>(left, 0, closed ? 2 : 60'000);
    ::poll(files.data(), static_cast<nfds_t>(files.size()), static_cast<int>(wait));
    for (auto& [i, p] : running) {
      p->proceed();
      if (p->over()) all[i] = p->result();
    }
    std::erase_if(running, [](const auto& r) { return r.second->over(); });
  }
  return all;
}

}  // namespace heddle::inline v0::rl
