// heddle/infer/serve/http/listener.hpp: accepts connections and answers by handlers.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/serve/answer/chat_format.hpp>
#include <heddle/infer/serve/answer/masks.hpp>
#include <heddle/infer/serve/http/connection.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace heddle::inline v0::infer {

/// Settings of a `server`. Units: as named; bytes.
struct server_options {
  std::string host = "127.0.0.1";
  int port = 8080;  ///< 0: one that is free
  std::string model = "heddle";
  chat_choice chat{};  ///< how conversations are rendered, such as `choose_chat_format` finds; none: they get 400
  sampling_options sampling{};      ///< of calls, where they do not say otherwise
  std::vector<std::string> keys{};  ///< any of them is accepted as a bearer token; none: no token is needed
  std::size_t most_body_bytes = std::size_t{4} << 20;
  std::optional<std::int64_t>
      most_answer_tokens{};            ///< of a choice, whatever the call asks for; none: the context's room
  std::size_t most_connections = 256;  ///< that are served at once; each has a thread
  std::chrono::milliseconds header_timeout{10000};  ///< for the header of a request, from its first byte on
  std::chrono::milliseconds body_timeout{30000};
  std::chrono::milliseconds write_timeout{10000};  ///< for which a client may take nothing
  std::chrono::milliseconds idle_timeout{30000};   ///< between requests of a connection
  std::chrono::milliseconds drain_timeout{30000};  ///< for what runs at `stop`
  int retry_after_s = 1;                           ///< what clients are told with 429 and 503
  answer_mask_limits masks{};                      ///< memory and work of constrained answers
};

namespace detail {

// Requests that are being answered.
class answer_counter {
 public:
  class guard {
   public:
    explicit guard(answer_counter& c) : counter_(&c) { c.add(1); }
    guard(const guard&) = delete;
    guard& operator=(const guard&) = delete;
    ~guard() { counter_->add(-1); }

   private:
    answer_counter* counter_;
  };
  bool wait_for_none(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return none_.wait_for(lock, most, [&] { return answers_ == 0; });
  }

 private:
  void add(int n) {
    const std::scoped_lock lock(mutex_);
    answers_ += n;
    if (answers_ == 0) none_.notify_all();
  }
  std::mutex mutex_{};
  std::condition_variable none_{};
  int answers_ = 0;
};

// httplib's server, of which the handlers and the reading of requests are used; connections are accepted and served here.
class http_listener final : public httplib::Server {
 public:
  explicit http_listener(const server_options& options) : options_(options), threads_(options.most_connections) {
    set_payload_max_length(options.most_body_bytes);
    set_keep_alive_max_count(1000);  // what answers say
    set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(options.idle_timeout).count());
    set_socket_options([](socket_t s) {  // httplib's own let several servers share a port
      const int on = 1;
      ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
  }
  int bind() {
    const int port = options_.port == 0                           ? bind_to_any_port(options_.host)
                     : bind_to_port(options_.host, options_.port) ? options_.port
                                                                  : -1;
    if (port < 0)
      throw comm_error("heddle: cannot listen on " + options_.host + ", port " + std::to_string(options_.port) +
                       ": it is in use, or no address of this machine");
    ::listen(svr_sock_, 511);  // httplib's queue has 5 places
    return port;
  }
  // Accepts connections until `closing`. Errors of one connection and those that pass, such as too many open
  // files, are tried again. Returns the text of an error that stays, and nothing else.
  std::string accept_until_closing() {
    std::string failure;
    while (!closing_ && failure.empty()) {
      pollfd p{.fd = svr_sock_, .events = POLLIN, .revents = 0};
      if (::poll(&p, 1, 50) <= 0) continue;  // also where a signal came: accept4 would wait
      const int socket = ::accept4(svr_sock_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket >= 0)
        start(socket);
      else if (is_shortage(errno))
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      else if (!is_of_one_connection(errno))
        failure = std::string("cannot accept connections: ") + std::strerror(errno);
    }
    ::close(svr_sock_.exchange(INVALID_SOCKET));
    return failure;
  }
  // The connection that this thread serves: handlers get none, and run on its thread.
  connection& current() {
    const std::scoped_lock lock(mutex_);
    return *connections_.at(std::this_thread::get_id());
  }
  std::atomic<bool>& closing() noexcept { return closing_; }
  answer_counter& answers() noexcept { return answers_; }
  // Returns when all connections have ended.
  void join() { threads_.shutdown(); }

 private:
  static bool is_shortage(int e) { return e == EMFILE || e == ENFILE || e == ENOBUFS || e == ENOMEM; }
  // accept(2) hands on what went wrong on the way of the connection that it would have returned.
  static bool is_of_one_connection(int e) {
    for (const int one : {EINTR, EAGAIN, EWOULDBLOCK, ECONNABORTED, EPROTO, EPERM, ENETDOWN, ENETUNREACH, EHOSTDOWN,
                          EHOSTUNREACH, ENONET, ENOPROTOOPT})
      if (e == one) return true;
    return false;
  }
  void start(int socket) {
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    try {
      threads_.enqueue([this, socket] { serve(socket); });
    } catch (...) {  // no memory: this connection ends, others go on
      ::close(socket);
    }
  }
  void serve(int socket) {
    connection c(socket, options_.write_timeout, closing_);
    const auto needed = [this] { return threads_.short_of_threads(); };
    try {
      serves(&c);
      while (c.wait_for_request(options_.idle_timeout, needed) && answer(c)) {
      }
    } catch (...) {  // no memory, say: this connection ends, others go on
    }
    serves(nullptr);
    c.close();
  }
  // Answers a request; whether the connection stays.
  bool answer(connection& c) {
    c.begin_request();
    c.read_until(connection::clock::now() + options_.header_timeout, most_header_bytes);
    const answer_counter::guard counted(answers_);  // until all is written
    bool closed = false;
    const bool answered = process(*this, c, closed, [&](httplib::Request& r) {
      // Chunks have lines of their own; `complete` looks at the body itself.
      c.read_until(connection::clock::now() + options_.body_timeout, 2 * options_.most_body_bytes + 4096);
      for (const char* name : {"Accept-Encoding", "Range"})
        r.headers.erase(name);  // streams are not to wait for others
      r.ranges.clear();
    });
    if (c.timed_out() && !c.wrote())
      c.write(std::string("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"));
    return answered && !closed && !c.closes();
  }
  // httplib takes the addresses of both ends from 0.16 on; nobody asks for them here.
  template <class Self, class Setup>
  static bool process(Self& self, connection& c, bool& closed, const Setup& setup) {
    if constexpr (requires { self.process_request(c, false, closed, setup); })
      return self.process_request(c, false, closed, setup);
    else
      return self.process_request(c, "", 0, "", 0, false, closed, setup);
  }
  void serves(connection* c) {
    const std::scoped_lock lock(mutex_);
    if (c != nullptr)
      connections_[std::this_thread::get_id()] = c;
    else
      connections_.erase(std::this_thread::get_id());
  }

  static constexpr std::size_t most_header_bytes = std::size_t{1} << 16;
  const server_options& options_;
  std::atomic<bool> closing_{false};
  answer_counter answers_{};
  std::mutex mutex_{};
  std::map<std::thread::id, connection*> connections_{};
  connection_threads threads_;  // the last: they use what is above
};

}  // namespace detail

}  // namespace heddle::inline v0::infer
