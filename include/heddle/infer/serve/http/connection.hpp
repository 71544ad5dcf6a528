// heddle/infer/serve/http/connection.hpp: HTTP connections with deadlines and threads.
#pragma once

#if !__has_include(<httplib.h>)
#error "heddle/infer/serve/http/ needs cpp-httplib: link heddle::httplib (Debian: apt install libcpp-httplib-dev)"
#endif

#include <heddle/core/error.hpp>

#include <httplib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <ctime>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace heddle::inline v0::infer::detail {

// What the state of a connection says of its client.
enum class client_state : unsigned char { there, half_closed, gone };

// What httplib reads a request from and writes its answer to. Reads end at a deadline, however slowly bytes come, and after a number of
// bytes, as httplib 0.11 bounds neither lines of a header nor chunked bodies; a write ends when the client takes nothing for as long as
// the time-out says; both end when the server closes.
// httplib's names of a stream's functions differ between 0.11 and the newest: all of them are here, and none says `override`.
class connection final : public httplib::Stream {
 public:
  using clock = std::chrono::steady_clock;
  connection(int socket, std::chrono::milliseconds write_timeout, const std::atomic<bool>& closing)
      : socket_(socket), write_timeout_(write_timeout), closing_(&closing) {}

  // Waits for the first byte of a request. False if none came, or the client or the server is closing.
  bool wait_for_request(std::chrono::milliseconds most, const std::function<bool()>& needed_elsewhere) {
    if (begin_ < end_) return true;
    const auto since = clock::now();
    while (!*closing_ && clock::now() - since < most) {
      if (poll_for(POLLIN, slice)) return fill() > 0;
      if (clock::now() - since > std::chrono::seconds(1) && needed_elsewhere()) return false;
    }
    return false;
  }
  // A request begins, whose header is kept as it comes.
  void begin_request() {
    header_.clear();
    header_ended_ = false;
  }
  // The value of a header as the client sent it: httplib 0.11 decodes %xx in values. Nothing if there is none or are several.
  std::optional<std::string> header_as_sent(std::string_view name) const {
    std::optional<std::string> found;
    std::string_view rest = header_;
    for (std::size_t end = 0; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      const std::string_view line = rest.substr(0, end);
      if (!line.ends_with('\r') || line.size() <= name.size() || line[name.size()] != ':') continue;
      const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
      if (!std::ranges::equal(line.substr(0, name.size()), name, {}, lower, lower)) continue;
      if (found) return std::nullopt;
      std::string_view value = line.substr(name.size() + 1, line.size() - name.size() - 2);
      const std::size_t first = value.find_first_not_of(" \t");
      value = first == std::string_view::npos ? "" : value.substr(first, value.find_last_not_of(" \t") - first + 1);
      found = std::string(value);
    }
    return found;
  }
  // At most `most` bytes, and not after `deadline`.
  void read_until(clock::time_point deadline, std::size_t most) {
    deadline_ = deadline;
    left_ = most;
    timed_out_ = too_long_ = false;
    wrote_ = false;
  }
  bool timed_out() const noexcept { return timed_out_; }
  bool too_long() const noexcept { return too_long_; }
  // Whether anything was written since the deadline was set.
  bool wrote() const noexcept { return wrote_; }
  // What is known of the client. `half_closed`: it sends no more; whether it still reads is seen only when something is sent to it, which
  // makes the connection `gone` if it does not.
  client_state client() const {
    if (*closing_) return client_state::gone;
    pollfd p{.fd = socket_, .events = POLLRDHUP, .revents = 0};
    const int n = ::poll(&p, 1, 0);
    if (n == 0 || (n < 0 && errno == EINTR)) return client_state::there;
    return n > 0 && (p.revents & (POLLERR | POLLHUP | POLLNVAL)) == 0 ? client_state::half_closed : client_state::gone;
  }
  void close_after_answer() noexcept { last_ = true; }
  bool closes() const noexcept { return last_; }

  bool is_readable() const { return begin_ < end_ || poll_for(POLLIN, std::chrono::milliseconds(0)); }
  bool is_writable() const { return wait_writable(); }
  bool wait_readable() const { return begin_ < end_ || poll_for(POLLIN, std::chrono::milliseconds(0)); }
  bool wait_writable() const { return poll_for(POLLOUT, write_timeout_) && client() != client_state::gone; }
  bool is_peer_alive() const { return client() != client_state::gone; }
  std::time_t duration() const {
    return static_cast<std::time_t>(std::chrono::duration_cast<std::chrono::seconds>(clock::now() - since_).count());
  }
  using httplib::Stream::write;
  ssize_t read(char* to, std::size_t size) {
    if (left_ == 0) {
      too_long_ = true;
      return -1;
    }
    while (begin_ == end_) {
      if (*closing_) return -1;
      if (clock::now() >= deadline_) {
        timed_out_ = true;
        return -1;
      }
      if (!poll_for(POLLIN, slice)) continue;
      if (const ssize_t n = fill(); n <= 0) return n;
    }
    const std::size_t n = (std::min)({size, end_ - begin_, left_});
    std::copy_n(buffer_.data() + begin_, n, to);
    begin_ += n;
    left_ -= n;
    keep_header(to, n);
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, std::size_t size) {
    wrote_ = true;
    const auto until = clock::now() + write_timeout_;
    while (!*closing_ && clock::now() < until) {
      if (!poll_for(POLLOUT, slice)) continue;
      const ssize_t n = ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n >= 0) return n;
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return -1;
    }
    return -1;
  }
  void get_remote_ip_and_port(std::string&, int&) const {}
  void get_local_ip_and_port(std::string&, int&) const {}
  socket_t socket() const { return socket_; }

  // Ends the connection so that the client gets the whole answer, also where it still sends what nobody reads.
  void close() {
    ::shutdown(socket_, SHUT_WR);
    const auto until = clock::now() + std::chrono::milliseconds(500);
    while (last_ && !*closing_ && clock::now() < until)
      if (poll_for(POLLIN, slice) && fill() <= 0) break;
    ::close(socket_);
  }

 private:
  static constexpr std::chrono::milliseconds slice{50};

  bool poll_for(short what, std::chrono::milliseconds most) const {
    pollfd p{.fd = socket_, .events = what, .revents = 0};
    return ::poll(&p, 1, static_cast<int>(most.count())) > 0;
  }
  void keep_header(const char* bytes, std::size_t n) {
    if (header_ended_) return;
    const std::size_t from = header_.size() < 3 ? 0 : header_.size() - 3;
    header_.append(bytes, n);
    header_ended_ = header_.find("\r\n\r\n", from) != std::string::npos;
  }
  ssize_t fill() {
    const ssize_t n = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 1;  // asked again
    begin_ = 0;
    end_ = n > 0 ? static_cast<std::size_t>(n) : 0;
    return n;
  }

  int socket_;
  std::chrono::milliseconds write_timeout_;
  const std::atomic<bool>* closing_;
  clock::time_point deadline_ = (clock::time_point::max)();
  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t left_ = 0;  // bytes that may still be read
  std::string header_{};
  bool header_ended_ = true;
  clock::time_point since_ = clock::now();
  bool timed_out_ = false;
  bool too_long_ = false;
  bool wrote_ = false;
  bool last_ = false;
};

// Threads for connections: one more for each that comes while all are in use, up to a limit; further ones wait.
class connection_threads {
 public:
  explicit connection_threads(std::size_t most) : most_(most) {}
  connection_threads(const connection_threads&) = delete;
  connection_threads& operator=(const connection_threads&) = delete;
  ~connection_threads() { shutdown(); }
  void enqueue(std::function<void()> job) {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    if (jobs_.size() > idle_ && threads_.size() < most_) try {
        threads_.emplace_back([this] { work(); });
        return;
      } catch (const std::exception&) {  // no more threads, or no memory: one of those there takes it, or a later one
      }
    waiting_ = jobs_.size() > idle_ ? jobs_.size() - idle_ : 0;
    came_.notify_one();
  }
  // Runs what waits, and returns when all threads have ended.
  void shutdown() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    came_.notify_all();
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }
  // Whether connections wait for a thread that has another one, so that idle ones should end. One that has just begun, or has not woken yet, is none to wait for:
  // a client of an idle connection may be about to use it.
  bool short_of_threads() const noexcept { return waiting_ > 0; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      came_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
      --idle_;
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      waiting_ = (std::min)(waiting_.load(), jobs_.size());
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::size_t most_;
  std::mutex mutex_{};
  std::condition_variable came_{};
  std::list<std::function<void()>> jobs_{};
  std::vector<std::thread> threads_{};
  std::size_t idle_ = 0;
  std::atomic<std::size_t> waiting_{0};
  bool ends_ = false;
};

}  // namespace heddle::inline v0::infer::detail
