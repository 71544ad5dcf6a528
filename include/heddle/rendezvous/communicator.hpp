// heddle/rendezvous/communicator.hpp: a rendezvous over an existing communicator.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/rendezvous/rendezvous.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Meets over any communicator, whose messages with the tags `tag` and `tag + 1` it uses: over MPI, for example, to hand
/// round the unique id of NCCL communicators. Members that share several things do so in one order. Failures are the
/// communicator's to tell: `announce` stays on this rank. The communicator must outlive it.
template <communicator C>
class communicator_rendezvous final : public rendezvous {
 public:
  explicit communicator_rendezvous(C& over, int tag = 0x6e63)
      : over_(over), tag_(tag), incoming_(static_cast<std::size_t>(over.size())) {}
  ~communicator_rendezvous() override {
    if constexpr (requires(typename C::request& r) { r.cancel(); })
      for (auto& i : incoming_) i.request.cancel();
  }

  int rank() const noexcept override { return over_.rank(); }
  int size() const noexcept override { return over_.size(); }
  void share(const std::string&, std::span<const int> members, std::span<std::byte> bytes) override {
    if (members.size() < 2) return;
    if (members.front() != rank()) {
      over_.recv(bytes, members.front(), tag_);
      return;
    }
    for (const int to : members.subspan(1)) over_.send(std::span<const std::byte>(bytes), to, tag_);
  }
  void give(const std::string& key, int to, std::span<const std::byte> bytes) override {
    while (!given_.empty() && given_.front()->done()) given_.pop_front();
    auto m = std::make_unique<outgoing>();
    m->head = {hash_of(key), static_cast<std::int64_t>(bytes.size())};
    m->bytes.assign(bytes.begin(), bytes.end());
    m->head_request = over_.isend(std::span<const header>(&m->head, 1), to, tag_ + 1);
    if (!bytes.empty()) m->bytes_request = over_.isend(std::span<const std::byte>(m->bytes), to, tag_ + 1);
    given_.push_back(std::move(m));
  }
  bool take(const std::string& key, int from, std::vector<std::byte>& bytes,
            std::chrono::milliseconds patience) override {
    incoming& in = incoming_[static_cast<std::size_t>(from)];
    const std::uint64_t wanted = hash_of(key);
    const auto end = std::chrono::steady_clock::now() + patience;
    for (int turn = 0;; ++turn) {
      if (auto found = in.came.extract(wanted); !found.empty()) {
        bytes = std::move(found.mapped());
        return true;
      }
      if (!in.expected) in.request = over_.irecv(std::span<header>(in.head.get(), 1), from, tag_ + 1);
      in.expected = true;
      if (in.request.test()) {
        in.expected = false;
        std::vector<std::byte> body(static_cast<std::size_t>(in.head->bytes));
        if (!body.empty()) over_.recv(std::span<std::byte>(body), from, tag_ + 1);
        in.came.insert_or_assign(in.head->key, std::move(body));
        continue;
      }
      if (std::chrono::steady_clock::now() >= end) return false;
      if (turn < 64)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds((std::min)(1'000, turn - 63)));
    }
  }
  void announce(const std::string& text) noexcept override {
    try {
      if (failure_.empty()) failure_ = text;
    } catch (...) {  // no memory for the text
    }
  }
  std::string failure() override { return failure_; }

 private:
  struct header {
    std::uint64_t key = 0;
    std::int64_t bytes = 0;
  };
  struct outgoing {
    header head;
    std::vector<std::byte> bytes;
    typename C::request head_request{}, bytes_request{};  // they end before what they read
    bool done() { return head_request.test() && bytes_request.test(); }
  };
  struct incoming {  // of one rank: messages of several communicators come in the order in which they were given
    std::unique_ptr<header> head = std::make_unique<header>();
    typename C::request request{};
    bool expected = false;
    std::map<std::uint64_t, std::vector<std::byte>> came;
  };
  static std::uint64_t hash_of(const std::string& key) {
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const char c : key) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return h;
  }

  C& over_;
  int tag_;
  std::deque<std::unique_ptr<outgoing>> given_;
  std::vector<incoming> incoming_;
  std::string failure_;
};

}  // namespace heddle::inline v0
