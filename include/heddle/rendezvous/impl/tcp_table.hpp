// heddle/rendezvous/impl/tcp_table.hpp: bodies of heddle/rendezvous/tcp_table.hpp.
#pragma once

#include <heddle/rendezvous/tcp_table.hpp>
#include <heddle/rendezvous/tcp_socket.hpp>

#include <fcntl.h>
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

HEDDLE_INLINE tcp_table::tcp_table(tcp_socket listener, int size, std::string job, std::string place)
    : listener_(std::move(listener)),
      size_(size),
      job_(std::move(job)),
      place_(std::move(place)),
      state_(static_cast<std::size_t>(size), absent),
      seen_(state_.size(), 0) {
  state_[0] = present;
  seen_[0] = 1;
  all_met_ = size_ == 1;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw comm_error("heddle: cannot make a pipe");
  bell_out_ = tcp_socket(ends[0]);
  bell_in_ = tcp_socket(ends[1]);
  thread_ = std::thread([this] { serve(); });
}

HEDDLE_INLINE tcp_table::~tcp_table() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ring();
  thread_.join();
}

HEDDLE_INLINE void tcp_table::wait_for_all(const deadline& until) {
  std::unique_lock lock(mutex_);
  while (!all_met_) {
    if (!refused_.empty()) {
      give_up(lock, refused_, true);
      throw comm_error(refused_);
    }
    if (until.passed()) {
      std::vector<int> missing, left;  // those that came may have run out of time a moment earlier
      for (int r = 0; r < size_; ++r) {
        if (!seen_[static_cast<std::size_t>(r)]) missing.push_back(r);
        if (state_[static_cast<std::size_t>(r)] == absent) left.push_back(r);
      }
      std::string text = "heddle: rank 0 has waited ";
      text += until.text();
      text += " at the rendezvous ";
      text += place_;
      text += " for ";
      text += absent_ranks(missing.empty() ? left : missing);
      text += " of ";
      text += std::to_string(size_);
      text += " ranks";
      give_up(lock, text, false);
      throw comm_error(text);
    }
    wait_until(lock, until);
  }
}

HEDDLE_INLINE void tcp_table::put(const std::string& key, std::span<const std::byte> value) {
  const std::lock_guard lock(mutex_);
  values_[key].assign(value.begin(), value.end());
  changed_.notify_all();
  ring();  // another rank may stay for it
}

HEDDLE_INLINE bool tcp_table::draw(const std::string& key, std::chrono::milliseconds patience,
                                   std::vector<std::byte>& value) {
  const deadline until(patience);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (auto found = values_.extract(key); !found.empty()) {
      value = std::move(found.mapped());
      return true;
    }
    if (!failure_.empty()) throw aborted_error(failure_);
    if (patience.count() <= 0 || until.passed()) return false;
    wait_until(lock, until);
  }
}

HEDDLE_INLINE bool tcp_table::get(const std::string& key, const deadline& until, std::vector<std::byte>& value) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const auto found = values_.find(key); found != values_.end()) {
      value = found->second;
      return true;
    }
    if (!failure_.empty()) throw aborted_error(failure_);
    if (until.passed()) return false;
    wait_until(lock, until);
  }
}

HEDDLE_INLINE void tcp_table::close(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const std::chrono::milliseconds shortly(1'000);
  const deadline until(timeout);
  deadline soon(shortly);
  bool failed = !failure_.empty();
  while (!(failed ? soon : until).passed() && std::find(state_.begin(), state_.end(), present) != state_.end() &&
         std::count(state_.begin(), state_.end(), present) > 1) {
    wait_until(lock, until);
    if (!failed && !failure_.empty()) {
      failed = true;
      soon = deadline(shortly);
    }
  }
}

HEDDLE_INLINE void tcp_table::give_up(std::unique_lock<std::mutex>& lock, const std::string& text, bool linger) {
  if (refused_.empty()) refused_ = std::string(text);
  if (failure_.empty()) failure_ = text;
  lock.unlock();
  ring();
  lock.lock();
  const deadline until(std::chrono::milliseconds(1'000));
  while (!(told_ && (!linger || std::count(seen_.begin(), seen_.end(), 0) == 0)) && !until.passed())
    wait_until(lock, until);
}

HEDDLE_INLINE void tcp_table::serve() {
  std::vector<guest> guests;
  std::vector<::pollfd> waits;
  for (;;) {
    waits.assign({{listener_.file(), POLLIN, 0}, {bell_out_.file(), POLLIN, 0}});
    for (const guest& g : guests) waits.push_back({g.socket.file(), POLLIN, 0});
    const bool any_stays =
        std::any_of(guests.begin(), guests.end(), [](const guest& g) { return !g.stays_for.empty(); });
    ::poll(waits.data(), waits.size(), any_stays ? 50 : 1'000);
    char rings[64];
    while (::read(bell_out_.file(), rings, sizeof rings) > 0) {
    }
    if (waits[0].revents & POLLIN) {
      tcp_socket socket(::accept4(listener_.file(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.file() >= 0) {
        tcp_prepare(socket.file());
        guests.push_back({std::move(socket), -1, {}, false, {}, {}});
      }
    }
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 2; i < waits.size(); ++i)
      if (waits[i].revents != 0) listen(guests[i - 2]);
    for (guest& g : guests)
      if (!g.stays_for.empty() && !g.ended) answer_draw(g);
    if (!refused_.empty() && !told_) {
      for (guest& g : guests)
        if (g.rank > 0 && !g.ended) answer(g, 'E', refused_, {});
      told_ = true;
      changed_.notify_all();
    }
    if (!all_met_ && refused_.empty() && std::find(state_.begin(), state_.end(), absent) == state_.end()) {
      all_met_ = true;
      for (guest& g : guests)
        if (g.rank > 0) answer(g, 'W', {}, {});
      changed_.notify_all();
    }
    guests.erase(std::remove_if(guests.begin(), guests.end(), [](const guest& g) { return g.ended; }), guests.end());
    if (stop_) return;
  }
}

HEDDLE_INLINE void tcp_table::listen(guest& g) {
  unsigned char part[4096];
  const ::ssize_t n = ::recv(g.socket.file(), part, sizeof part, MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    lose(g);
    return;
  }
  g.heard.insert(g.heard.end(), part, part + n);
  while (!g.ended && g.heard.size() >= tcp_header) {
    const std::size_t key = tcp_number(&g.heard[1]), value = tcp_number(&g.heard[5]);
    if (key > tcp_longest || value > tcp_longest || (g.rank < 0 && (g.heard[0] != 'H' || key > 4096 || value > 0))) {
      lose(g);  // not one of ours
      return;
    }
    const std::size_t whole = tcp_header + key + value;
    if (g.heard.size() < whole) return;
    const auto* text = reinterpret_cast<const char*>(g.heard.data()) + tcp_header;
    const auto* bytes = reinterpret_cast<const std::byte*>(text + key);
    take(g, static_cast<char>(g.heard[0]), std::string(text, key), {bytes, value});
    g.heard.erase(g.heard.begin(), g.heard.begin() + static_cast<std::ptrdiff_t>(whole));
  }
}

HEDDLE_INLINE void tcp_table::take(guest& g, char kind, const std::string& key, std::span<const std::byte> value) {
  if (g.rank < 0) {
    welcome(g, key);
  } else if (kind == 'P') {
    values_[key].assign(value.begin(), value.end());
    changed_.notify_all();
  } else if (kind == 'G') {
    if (const auto found = values_.find(key); found != values_.end())
      answer(g, 'V', {}, found->second);
    else if (!failure_.empty())
      answer(g, 'X', failure_, {});
    else
      answer(g, 'N', {}, {});
  } else if (kind == 'D') {
    g.stays_for = key;
    g.until = std::chrono::steady_clock::now();
    if (!value.empty() && value[0] != std::byte{0}) g.until += std::chrono::milliseconds(100);
  } else if (kind == 'Q') {
    answer(g, 'T', failure_, {});
  } else if (kind == 'F') {
    if (failure_.empty()) failure_ = key;
    changed_.notify_all();
  } else if (kind == 'B') {
    state_[static_cast<std::size_t>(g.rank)] = gone;
    g.ended = true;
    changed_.notify_all();
  }
}

HEDDLE_INLINE void tcp_table::answer_draw(guest& g) {
  if (auto found = values_.extract(g.stays_for); !found.empty())
    answer(g, 'V', {}, found.mapped());
  else if (!failure_.empty())
    answer(g, 'X', failure_, {});
  else if (std::chrono::steady_clock::now() >= g.until)
    answer(g, 'N', {}, {});
  else
    return;
  g.stays_for.clear();
}

HEDDLE_INLINE void tcp_table::welcome(guest& g, const std::string& hello) {
  int rank = -1, size = 0, job_at = -1;
  if (std::sscanf(hello.c_str(), "heddle 1 %d %d %n", &rank, &size, &job_at) != 2 || job_at < 0 || rank < 0) {
    g.ended = true;
    return;
  }
  if (rank < size_) seen_[static_cast<std::size_t>(rank)] = 1;
  std::string who = "heddle: rank ";
  who += std::to_string(rank);
  std::string text;
  if (const std::string job = hello.substr(static_cast<std::size_t>(job_at)); job != job_) {
    text = who;
    text += " of job \"";
    text += job;
    text += "\" has come to the rendezvous of job \"";
    text += job_;
    text += "\" ";
    text += place_;
  } else if (size != size_ || rank >= size_) {
    text = who;
    text += " was started for ";
    text += std::to_string(size);
    text += " ranks, rank 0 for ";
    text += std::to_string(size_);
    if (!all_met_) refused_ = text;
  } else if (!refused_.empty()) {
    text = refused_;
  } else if (all_met_ &&
             state_[static_cast<std::size_t>(rank)] == gone) {  // its next launch; rank 0 is in the last one
    answer(g, 'A', {}, {});
    g.ended = true;
    return;
  } else if (state_[static_cast<std::size_t>(rank)] != absent) {
    text = "heddle: another process has come to the rendezvous ";
    text += place_;
    text += " as rank ";
    text += std::to_string(rank);
  }
  if (!text.empty()) {
    answer(g, 'E', text, {});
    g.ended = true;
    changed_.notify_all();
    return;
  }
  g.rank = rank;
  state_[static_cast<std::size_t>(rank)] = present;
}

HEDDLE_INLINE void tcp_table::lose(guest& g) {
  g.ended = true;
  if (g.rank < 0) return;
  state_[static_cast<std::size_t>(g.rank)] = all_met_ ? lost : absent;
  if (all_met_ && failure_.empty()) {
    failure_ = "heddle: rank ";
    failure_ += std::to_string(g.rank);
    failure_ += " is lost: its connection to rank 0 has ended";
  }
  changed_.notify_all();
}

HEDDLE_INLINE void tcp_table::answer(guest& g, char kind, const std::string& key, std::span<const std::byte> value) {
  try {
    tcp_send(g.socket, kind, key, value);
  } catch (const comm_error&) {
    lose(g);
  }
}

}  // namespace heddle::inline v0::detail
