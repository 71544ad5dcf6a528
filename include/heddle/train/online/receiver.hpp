// heddle/train/online/receiver.hpp: receives samples of simulations over ZeroMQ.
#pragma once

#if !__has_include(<zmq.hpp>)
#error "heddle/train/online/receiver.hpp needs zmq.hpp: link heddle::zmq (Debian: apt install libzmq3-dev cppzmq-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/train/online/message.hpp>
#include <heddle/train/online/received_steps.hpp>
#include <heddle/train/online/reservoir.hpp>

#include <zmq.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace heddle::inline v0::train {

/// What a receiver listens to and expects.
struct receiver_options {
  std::string endpoint = "tcp://127.0.0.1:*";  ///< "tcp://*:5600": from other machines, port 5600; `*`: any free port
  std::uint32_t run = 0;                       ///< messages of other runs are refused
  std::int64_t inputs = 0, targets = 0;        ///< numbers of a sample
  std::int64_t simulations = 0;                ///< when so many have ended, the buffer is closed
  int high_water_mark = 100;                   ///< messages that wait here, of each simulation; then its `send` waits
};

/// What has arrived.
struct receiver_counters {
  std::int64_t samples = 0, again = 0, refused = 0;
  std::int64_t ended = 0;   ///< simulations that said so, were given up or had gone
  std::int64_t unsaid = 0;  ///< of those: had gone, and never said so
};

/// Receives on a thread of its own. Samples that a simulation sends a second time, since it was started anew, are
/// dropped. When the buffer is full, the thread waits, then messages do, then the simulations' `send`: memory is the
/// buffer and `high_water_mark` messages for each simulation on either side. The buffer must outlive it.
template <class Buffer>
class zmq_receiver {
 public:
  /// Errors: `config_error` for sizes below 1; `comm_error` with ZeroMQ's text if it cannot listen there.
  zmq_receiver(Buffer& buffer, receiver_options options) : buffer_(&buffer), options_(std::move(options)) {
    if (options_.inputs < 1 || options_.targets < 1 || options_.simulations < 1 || options_.high_water_mark < 1)
      throw config_error("heddle: zmq_receiver: inputs, targets, simulations and high_water_mark are 1 or more, not " +
                         std::to_string(options_.inputs) + ", " + std::to_string(options_.targets) + ", " +
                         std::to_string(options_.simulations) + " and " + std::to_string(options_.high_water_mark));
    try {
      socket_ = zmq::socket_t(context_, zmq::socket_type::pull);
      socket_.set(zmq::sockopt::rcvhwm, options_.high_water_mark);
      socket_.set(zmq::sockopt::linger, 0);
      socket_.set(zmq::sockopt::rcvtimeo, 100);
      socket_.bind(options_.endpoint);
      endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& e) {
      throw comm_error("heddle: cannot receive at '" + options_.endpoint + "': " + e.what());
    }
    thread_ = std::thread([this] { receive(); });
  }
  zmq_receiver(const zmq_receiver&) = delete;
  zmq_receiver& operator=(const zmq_receiver&) = delete;
  /// Closes the buffer.
  ~zmq_receiver() {
    ends_ = true;
    buffer_->close();
    thread_.join();
  }

  /// Where simulations connect to.
  const std::string& endpoint() const noexcept { return endpoint_; }
  receiver_counters counters() const {
    const std::lock_guard lock(mutex_);
    return {steps_.count(), steps_.again(), refused_, static_cast<std::int64_t>(ended_.size()), unsaid_};
  }
  /// What was wrong with the message that was refused last; empty: none was.
  std::string last_fault() const {
    const std::lock_guard lock(mutex_);
    return fault_;
  }
  /// Seconds since a simulation's last message; infinite if there was none. 0 while messages wait to be taken, as they
  /// do behind a full buffer: one of this simulation may be among them.
  double silent(std::uint32_t simulation) const {
    const std::lock_guard lock(mutex_);
    if (behind_) return 0;
    const auto at = heard_.find(simulation);
    if (at == heard_.end()) return std::numeric_limits<double>::infinity();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - at->second).count();
  }
  /// A simulation counts as ended: it failed too often.
  void give_up(std::uint32_t simulation) { end(simulation); }
  /// A simulation's process is gone, and will not be started again. If it never says that it ended, it counts as ended
  /// once nothing has arrived here for a second from now on: what it has sent is in the buffer then.
  void gone(std::uint32_t simulation) {
    const std::lock_guard lock(mutex_);
    gone_.insert(simulation);
    quiet_ = 0;
  }

 private:
  void end(std::uint32_t simulation) {
    bool all = false;
    {
      const std::lock_guard lock(mutex_);
      ended_.insert(simulation);
      all = std::ssize(ended_) >= options_.simulations;
    }
    if (all) buffer_->close();
  }
  // After each tenth of a second without a message.
  void end_those_gone() {
    std::set<std::uint32_t> now;
    {
      const std::lock_guard lock(mutex_);
      if (++quiet_ < 10) return;
      for (const std::uint32_t s : gone_)
        if (!ended_.contains(s)) now.insert(s);
      gone_.clear();
      unsaid_ += std::ssize(now);
    }
    for (const std::uint32_t s : now) end(s);
  }
  // Nothing more waits here. A millisecond, since after a long wait the socket has to fetch what waits in the system.
  bool up_to_date() {
    zmq::pollitem_t item{socket_.handle(), 0, ZMQ_POLLIN, 0};
    return zmq::poll(&item, 1, std::chrono::milliseconds(1)) == 0;
  }
  void receive() {
    bool behind = false;
    while (!ends_) {
      zmq::message_t message;
      try {
        if (behind && up_to_date()) {
          behind = false;
          const std::lock_guard lock(mutex_);
          behind_ = false;
        }
        if (!socket_.recv(message)) {
          end_those_gone();
          continue;
        }
      } catch (const zmq::error_t& e) {
        if (e.num() == EINTR) continue;
        refuse(e.what());
        return buffer_->close();
      }
      const std::span bytes(static_cast<const std::byte*>(message.data()), message.size());
      online_header h;
      if (std::string fault =
              message_fault(bytes, options_.run, options_.inputs, options_.targets, h, options_.simulations);
          !fault.empty()) {
        refuse(std::move(fault));
        continue;
      }
      bool first = false;
      behind = true;
      {
        const std::lock_guard lock(mutex_);
        behind_ = true;
        quiet_ = 0;
        heard_[h.simulation] = std::chrono::steady_clock::now();
        first = h.step != end_of_simulation && steps_.insert(h.simulation, h.step);
      }
      if (h.step == end_of_simulation)
        end(h.simulation);
      else if (first)
        buffer_->put(sample_of(bytes, h));
    }
  }
  void refuse(std::string fault) {
    const std::lock_guard lock(mutex_);
    ++refused_;
    fault_ = std::move(fault);
  }

  Buffer* buffer_;
  receiver_options options_;
  zmq::context_t context_{};
  zmq::socket_t socket_{};
  std::string endpoint_, fault_{};
  mutable std::mutex mutex_{};
  received_steps steps_{};
  std::set<std::uint32_t> ended_{}, gone_{};
  std::map<std::uint32_t, std::chrono::steady_clock::time_point> heard_{};
  std::int64_t refused_ = 0, unsaid_ = 0;
  int quiet_ = 0;        // tenths of a second without a message
  bool behind_ = false;  // messages may wait to be taken
  std::atomic<bool> ends_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace heddle::inline v0::train
