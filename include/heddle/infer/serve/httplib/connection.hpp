// heddle/infer/serve/httplib/connection.hpp: a connection of an HTTP server with deadlines, and the threads that connections run on.
#pragma once

#if !__has_include(<httplib.h>)
#error "heddle/infer/serve/httplib/ needs cpp-httplib: link heddle::httplib (Debian: apt install libcpp-httplib-dev)"
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
#include <functional>
#include <list>
#include <mutex>
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

// What httplib reads a request from and writes its answer to. Reads end at a deadline, however slowly bytes come, and after a number of
// bytes, as httplib 0.11 bounds neither lines of a header nor chunked bodies; a write ends when the client takes nothing for as long as
// the time-out says; both end when the server closes.
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
  // Whether the client is still there.
  bool alive() const {
    if (*closing_) return false;
    pollfd p{.fd = socket_, .events = POLLRDHUP, .revents = 0};
    const int n = ::poll(&p, 1, 0);
    return n == 0 || (n < 0 && errno == EINTR);
  }
  void close_after_answer() noexcept { last_ = true; }
  bool closes() const noexcept { return last_; }

  bool is_readable() const override { return begin_ < end_ || poll_for(POLLIN, std::chrono::milliseconds(0)); }
  bool is_writable() const override { return poll_for(POLLOUT, write_timeout_) && alive(); }
  using httplib::Stream::write;
  ssize_t read(char* to, std::size_t size) override {
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
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, std::size_t size) override {
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
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

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
  bool timed_out_ = false;
  bool too_long_ = false;
  bool wrote_ = false;
  bool last_ = false;
};

// Threads for connections: one more for each that comes while all are in use, up to a limit; further ones wait.
class connection_threads final : public httplib::TaskQueue {
 public:
  explicit connection_threads(std::size_t most) : most_(most) {}
  void enqueue(std::function<void()> job) override {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    waiting_ = jobs_.size();
    if (jobs_.size() > idle_ && threads_.size() < most_) try {
        threads_.emplace_back([this] { work(); });
        return;
      } catch (
          const std::system_error&) {  // the system gives no more threads: one of those there takes it, or a later one
      }
    came_.notify_one();
  }
  void shutdown() override {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    came_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  // Whether connections wait for a thread, so that idle ones should end.
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
      waiting_ = jobs_.size();
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
