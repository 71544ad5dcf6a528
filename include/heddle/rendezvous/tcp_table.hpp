// heddle/rendezvous/tcp_table.hpp: rank 0's side of a TCP rendezvous: members and values.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/rendezvous/tcp_socket.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

/// Answers the other ranks in a thread, and rank 0 directly.
class tcp_table {
 public:
  tcp_table(tcp_socket listener, int size, std::string job, std::string place);
  tcp_table(const tcp_table&) = delete;
  tcp_table& operator=(const tcp_table&) = delete;
  ~tcp_table();

  void wait_for_all(const deadline& until);
  void put(const std::string& key, std::span<const std::byte> value);
  /// Takes a value out. False when `patience` is over.
  bool draw(const std::string& key, std::chrono::milliseconds patience, std::vector<std::byte>& value);
  /// False when time is out.
  bool get(const std::string& key, const deadline& until, std::vector<std::byte>& value);
  void fail(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = text;
    changed_.notify_all();
  }
  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  /// Waits until the others have gone: shortly, where something has failed.
  void close(std::chrono::milliseconds timeout);

 private:
  enum presence : char { absent, present, gone, lost };
  struct guest {
    tcp_socket socket;
    int rank = -1;
    std::vector<unsigned char> heard;  // what has come of frames that are not complete
    bool ended = false;
    std::string stays_for{};  // the key of a value that it waits for
    std::chrono::steady_clock::time_point until{};
  };

  void ring() {
    const char byte = 1;
    [[maybe_unused]] const ::ssize_t n = ::write(bell_in_.file(), &byte, 1);  // full: it rings already
  }
  void wait_until(std::unique_lock<std::mutex>& lock, const deadline& until) {
    // The system clock, in short steps: ThreadSanitizer of g++ 12 does not know waits on the steady clock.
    changed_.wait_until(lock, std::chrono::system_clock::now() + until.rest(std::chrono::milliseconds(100)));
  }
  // Tells those who are there; lingering, also those who come within a second.
  void give_up(std::unique_lock<std::mutex>& lock, const std::string& text, bool linger);

  void serve();
  void listen(guest& g);
  void take(guest& g, char kind, const std::string& key, std::span<const std::byte> value);
  // Once all that has come is known: a value that is there goes out, and one that does not come is given up in time.
  void answer_draw(guest& g);
  void welcome(guest& g, const std::string& hello);
  void lose(guest& g);
  void answer(guest& g, char kind, const std::string& key, std::span<const std::byte> value);

  tcp_socket listener_;
  int size_;
  std::string job_;
  std::string place_;
  tcp_socket bell_out_, bell_in_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> state_;  // a presence per rank
  std::vector<char> seen_;
  std::map<std::string, std::vector<std::byte>> values_;
  std::string failure_;
  std::string refused_;
  bool all_met_ = false;
  bool told_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rendezvous/impl/tcp_table.hpp>
#endif
