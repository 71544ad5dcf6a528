// heddle/train/online/zmq/receiver.hpp: receives samples of simulations over ZeroMQ.
#pragma once

#if !__has_include(<zmq.hpp>)
#error "heddle/train/online/zmq/ needs zmq.hpp: link heddle::zmq (Debian: apt install libzmq3-dev cppzmq-dev)"
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
  std::int64_t samples = 0, again = 0, refused = 0, ended = 0;
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
    return {steps_.count(), steps_.again(), refused_, static_cast<std::int64_t>(ended_.size())};
  }
  /// What was wrong with the message that was refused last; empty: none was.
  std::string last_fault() const {
    const std::lock_guard lock(mutex_);
    return fault_;
  }
  /// Seconds since a simulation's last message; infinite if there was none.
  double silent(std::uint32_t simulation) const {
    const std::lock_guard lock(mutex_);
    const auto at = heard_.find(simulation);
    if (at == heard_.end()) return std::numeric_limits<double>::infinity();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - at->second).count();
  }
  /// A simulation counts as ended: it failed too often.
  void give_up(std::uint32_t simulation) { end(simulation); }

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
  void receive() {
    while (!ends_) {
      zmq::message_t message;
      try {
        if (!socket_.recv(message)) continue;
      } catch (const zmq::error_t& e) {
        if (e.num() == EINTR) continue;
        refuse(e.what());
        return buffer_->close();
      }
      const std::span bytes(static_cast<const std::byte*>(message.data()), message.size());
      online_header h;
      if (std::string fault = message_fault(bytes, options_.run, options_.inputs, options_.targets, h);
          !fault.empty()) {
        refuse(std::move(fault));
        continue;
      }
      bool first = false;
      {
        const std::lock_guard lock(mutex_);
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
  std::set<std::uint32_t> ended_{};
  std::map<std::uint32_t, std::chrono::steady_clock::time_point> heard_{};
  std::int64_t refused_ = 0;
  std::atomic<bool> ends_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace heddle::inline v0::train
