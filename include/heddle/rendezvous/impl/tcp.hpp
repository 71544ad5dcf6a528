// heddle/rendezvous/impl/tcp.hpp: bodies of heddle/rendezvous/tcp.hpp.
#pragma once

#include <heddle/rendezvous/tcp.hpp>
#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/rendezvous/tcp_socket.hpp>
#include <heddle/rendezvous/tcp_table.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
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

HEDDLE_INLINE tcp_rendezvous::tcp_rendezvous(const std::string& address, int rank, int size,
                                             std::chrono::milliseconds timeout, std::string job)
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

HEDDLE_INLINE tcp_rendezvous::~tcp_rendezvous() {
  if (table_ != nullptr) {
    table_->close(timeout_);
    return;
  }
  try {
    detail::has_left_tcp_rendezvous = true;
    detail::tcp_send(socket_, 'B', {}, {});
  } catch (...) {  // rank 0 is gone already
  }
}

HEDDLE_INLINE void tcp_rendezvous::put(const std::string& key, std::span<const std::byte> value) {
  if (value.size() > detail::tcp_longest) {
    throw comm_error(text_of(
        {"heddle: a rendezvous carries at most ", detail::tcp_longest, " bytes under a key, got ", value.size()}));
  }
  if (table_ != nullptr) return table_->put(key, value);
  const std::lock_guard lock(mutex_);
  detail::tcp_send(socket_, 'P', key, value);
}

HEDDLE_INLINE std::vector<std::byte> tcp_rendezvous::get(const std::string& key, int giver) {
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

HEDDLE_INLINE bool tcp_rendezvous::draw(const std::string& key, std::vector<std::byte>& value,
                                        std::chrono::milliseconds patience) {
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

HEDDLE_INLINE void tcp_rendezvous::announce(const std::string& text) noexcept {
  try {
    if (table_ != nullptr) return table_->fail(text);
    const std::lock_guard lock(mutex_);
    detail::tcp_send(socket_, 'F', text, {});
  } catch (...) {  // rank 0 is gone: the others notice that themselves
  }
}

HEDDLE_INLINE std::string tcp_rendezvous::failure() {
  if (table_ != nullptr) return table_->failure();
  const std::lock_guard lock(mutex_);
  try {
    detail::tcp_send(socket_, 'Q', {}, {});
    return receive(detail::deadline(std::chrono::milliseconds(0))).key;
  } catch (const comm_error& e) {
    return e.what();
  }
}

HEDDLE_INLINE detail::tcp_frame tcp_rendezvous::receive(const detail::deadline& until) {
  detail::tcp_frame frame;
  const detail::tcp_result how = detail::tcp_receive(socket_, frame, until);
  if (how == detail::tcp_result::done) return frame;
  if (how == detail::tcp_result::late) absent(rank_, until, place(), "welcome", 0);
  throw aborted_error(text_of({"heddle: rank 0, which keeps the rendezvous ", place(), ", is lost"}));
}

HEDDLE_INLINE void tcp_rendezvous::join(const detail::deadline& until, const std::string& job) {
  // Where processes launch several times, rank 0 may still be closing the rendezvous of the last launch.
  for (auto pause = std::chrono::milliseconds(5);; pause = (std::min)(2 * pause, std::chrono::milliseconds(200))) {
    socket_ = detail::tcp_connect(address_, until, rank_);
    const auto since = std::chrono::steady_clock::now();
    detail::tcp_frame answer;
    try {
      detail::tcp_send(socket_, 'H', detail::tcp_hello(rank_, size_, job), {});
      answer = receive(until);
    } catch (const comm_error&) {
      if (!detail::has_left_tcp_rendezvous || until.passed() ||
          std::chrono::steady_clock::now() - since > std::chrono::seconds(1))
        throw;
      answer.kind = 'A';
    }
    if (answer.kind == 'W') return;
    if (answer.kind != 'A') throw comm_error(answer.key);
    if (until.passed()) absent(rank_, until, place(), "welcome", 0);
    std::this_thread::sleep_for((std::max)(std::chrono::milliseconds(1), until.rest(pause)));
  }
}

}  // namespace heddle::inline v0
