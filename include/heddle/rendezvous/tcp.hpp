// heddle/rendezvous/tcp.hpp: a rendezvous of processes at a TCP port of rank 0.
#pragma once

#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/rendezvous/tcp_socket.hpp>
#include <heddle/rendezvous/tcp_table.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Processes that meet at `host:port`, an address of rank 0's machine; rank 0 listens there in a thread of its own. The
/// constructor returns when all ranks are there, in whatever order they come; rank 0's destructor waits until the
/// others have gone. `job` keeps programs apart that come to the wrong port. A rank whose connection ends without a
/// goodbye counts as lost, which the others are told. Not encrypted and not authenticated: for networks one trusts.
///
/// Units: milliseconds; zero waits for ever.
/// Errors: `comm_error` when ranks do not come in time (naming them), were started for another number of ranks, or two
/// have the same number; `aborted_error` when a rank has failed or is lost.
class tcp_rendezvous final : public detail::keyed_rendezvous {
 public:
  tcp_rendezvous(const std::string& address, int rank, int size,
                 std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000), std::string job = {})
      : address_(address), rank_(rank), size_(size), timeout_(timeout) {
    detail::require_rank_of("tcp_rendezvous", rank, size);
    const detail::deadline until(timeout_);
    if (rank_ == 0) {
      table_ = std::make_unique<detail::tcp_table>(detail::tcp_listen(address_), size_, std::move(job), place());
      table_->wait_for_all(until);
    } else {
      join(until, job);
    }
  }
  ~tcp_rendezvous() override {
    if (table_ != nullptr) {
      table_->close(timeout_);
      return;
    }
    try {
      detail::tcp_send(socket_, 'B', {}, {});
    } catch (...) {  // rank 0 is gone already
    }
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void put(const std::string& key, std::span<const std::byte> value) override {
    if (value.size() > detail::tcp_longest) {
      std::string text = "heddle: a rendezvous carries at most ";
      text += std::to_string(detail::tcp_longest);
      text += " bytes under a key, got ";
      text += std::to_string(value.size());
      throw comm_error(text);
    }
    if (table_ != nullptr) return table_->put(key, value);
    const std::lock_guard lock(mutex_);
    detail::tcp_send(socket_, 'P', key, value);
  }
  std::vector<std::byte> get(const std::string& key, int giver) override {
    const detail::deadline until(timeout_);
    if (table_ != nullptr) {
      std::vector<std::byte> value;
      if (!table_->get(key, until, value)) absent(rank_, until, place(), key, giver);
      return value;
    }
    const std::lock_guard lock(mutex_);
    for (;;) {  // asked again and again: the answers to questions stay in step, and a lost rank is noticed meanwhile
      detail::tcp_send(socket_, 'G', key, {});
      detail::tcp_frame answer = receive(detail::deadline(std::chrono::milliseconds(0)));
      if (answer.kind == 'V') return std::move(answer.value);
      if (answer.kind == 'X') throw aborted_error(answer.key);
      if (until.passed()) absent(rank_, until, place(), key, giver);
      std::this_thread::sleep_for((std::max)(std::chrono::milliseconds(1), until.rest(std::chrono::milliseconds(5))));
    }
  }
  bool draw(const std::string& key, std::vector<std::byte>& value, std::chrono::milliseconds patience) override {
    if (table_ != nullptr) return table_->draw(key, patience, value);
    const std::lock_guard lock(mutex_);
    const auto end = std::chrono::steady_clock::now() + patience;
    for (;;) {  // rank 0 answers when the value is there, or after a while
      const bool stays = std::chrono::steady_clock::now() < end;
      const std::byte how{static_cast<unsigned char>(stays ? 1 : 0)};
      detail::tcp_send(socket_, 'D', key, {&how, 1});
      detail::tcp_frame answer = receive(detail::deadline(std::chrono::milliseconds(0)));
      if (answer.kind == 'V') {
        value = std::move(answer.value);
        return true;
      }
      if (answer.kind == 'X') throw aborted_error(answer.key);
      if (!stays) return false;
    }
  }
  void announce(const std::string& text) noexcept override {
    try {
      if (table_ != nullptr) return table_->fail(text);
      const std::lock_guard lock(mutex_);
      detail::tcp_send(socket_, 'F', text, {});
    } catch (...) {  // rank 0 is gone: the others notice that themselves
    }
  }
  std::string failure() override {
    if (table_ != nullptr) return table_->failure();
    const std::lock_guard lock(mutex_);
    try {
      detail::tcp_send(socket_, 'Q', {}, {});
      return receive(detail::deadline(std::chrono::milliseconds(0))).key;
    } catch (const comm_error& e) {
      return e.what();
    }
  }

 private:
  std::string place() const {
    std::string text = "at ";
    text += address_;
    return text;
  }
  detail::tcp_frame receive(const detail::deadline& until) {
    detail::tcp_frame frame;
    const detail::tcp_result how = detail::tcp_receive(socket_, frame, until);
    if (how == detail::tcp_result::done) return frame;
    if (how == detail::tcp_result::late) absent(rank_, until, place(), "welcome", 0);
    std::string text = "heddle: rank 0, which keeps the rendezvous ";
    text += place();
    text += ", is lost";
    throw aborted_error(text);
  }
  void join(const detail::deadline& until, const std::string& job) {
    socket_ = detail::tcp_connect(address_, until, rank_);
    detail::tcp_send(socket_, 'H', detail::tcp_hello(rank_, size_, job), {});
    const detail::tcp_frame answer = receive(until);
    if (answer.kind != 'W') throw comm_error(answer.key);
  }

  std::string address_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  detail::tcp_socket socket_;
  std::unique_ptr<detail::tcp_table> table_;
};

}  // namespace heddle::inline v0
