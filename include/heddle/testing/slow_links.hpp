// heddle/testing/slow_links.hpp: messages between threads as slow as on slow links.
#pragma once

#include <heddle/comm/communicator.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::testing {

/// Links from every rank to every other, which the ranks of a process share. A message sets off when both its ends have
/// started it and the one before it on its link is over, and takes its bytes over the bandwidth.
class slow_network {
 public:
  using clock = std::chrono::steady_clock;
  /// A message on its way. Units: seconds since the network was made.
  struct travel {
    int from = 0, to = 0;
    std::size_t bytes = 0;
    double start = 0, end = 0;
  };

  explicit slow_network(double bytes_per_second) : bytes_per_second_(bytes_per_second), between_(bytes_per_second) {}
  /// Nodes of so many ranks, with slower links between them.
  slow_network(double bytes_per_second, int ranks_per_node, double between_nodes)
      : bytes_per_second_(bytes_per_second), between_(between_nodes), ranks_per_node_(ranks_per_node) {}

  /// All messages that have set off.
  std::vector<travel> travels() const {
    const std::lock_guard lock(mutex_);
    std::vector<travel> all;
    for (const auto& [end, messages] : links_)
      for (const message& m : messages)
        if (m.ends == 2) all.push_back(m.way);
    return all;
  }

  /// One end of the next message from a rank to another with a tag is started; returns the message's number.
  std::size_t started(int from, int to, int tag, std::size_t bytes, bool sends) {
    const double now = std::chrono::duration<double>(clock::now() - begin_).count();
    const std::lock_guard lock(mutex_);
    std::size_t& count = counts_[{from, to, tag, sends}];
    std::vector<message>& messages = links_[{from, to, tag}];
    if (messages.size() <= count) messages.resize(count + 1);
    message& m = messages[count];
    m.way.start = (std::max)(m.way.start, now);
    if (++m.ends == 2) {
      double& free = busy_until_[{from, to}];
      const double start = (std::max)(m.way.start, free);
      const bool inside = ranks_per_node_ <= 0 || from / ranks_per_node_ == to / ranks_per_node_;
      free = start + static_cast<double>(bytes) / (inside ? bytes_per_second_ : between_);
      m.way = {from, to, bytes, start, free};
    }
    return count++;
  }
  /// When a message is there; far in the future while one of its ends has not started it.
  clock::time_point arrival(int from, int to, int tag, std::size_t number) const {
    const std::lock_guard lock(mutex_);
    const message& m = links_.at({from, to, tag})[number];
    if (m.ends < 2) return (clock::time_point::max)();
    return begin_ + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(m.way.end));
  }

 private:
  struct message {
    int ends = 0;
    travel way{};
  };
  double bytes_per_second_, between_;
  int ranks_per_node_ = 0;
  clock::time_point begin_ = clock::now();
  mutable std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::vector<message>> links_{};
  std::map<std::tuple<int, int, int, bool>, std::size_t> counts_{};
  std::map<std::pair<int, int>, double> busy_until_{};
};

/// The messages of a communicator between threads, slowed down: `isend` and `irecv` alone. A request is done when its
/// message has come and its time is over.
template <class Communicator>
class slow_links {
 public:
  slow_links(Communicator& ranks, slow_network& network) : ranks_(ranks), network_(network) {}

  /// A started message: see `comm_request`.
  class request {
   public:
    request(typename Communicator::request inner, const slow_network& network, int from, int to, int tag,
            std::size_t number)
        : inner_(std::move(inner)), network_(&network), from_(from), to_(to), tag_(tag), number_(number) {}
    void wait() {
      inner_.wait();  // both ends have started it
      std::this_thread::sleep_until(network_->arrival(from_, to_, tag_, number_));
    }
    bool test() { return inner_.test() && network_->arrival(from_, to_, tag_, number_) <= slow_network::clock::now(); }

   private:
    typename Communicator::request inner_;
    const slow_network* network_;
    int from_, to_, tag_;
    std::size_t number_;
  };

  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  request isend(std::span<const std::byte> bytes, int to, int tag) {
    const std::size_t number = network_.started(rank(), to, tag, bytes.size(), true);
    return {ranks_.isend(bytes, to, tag), network_, rank(), to, tag, number};
  }
  request irecv(std::span<std::byte> bytes, int from, int tag) {
    const std::size_t number = network_.started(from, rank(), tag, bytes.size(), false);
    return {ranks_.irecv(bytes, from, tag), network_, from, rank(), tag, number};
  }

 private:
  Communicator& ranks_;
  slow_network& network_;
};

}  // namespace heddle::inline v0::testing
