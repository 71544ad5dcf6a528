// heddle/train/online/sender.hpp: sends samples of a simulation over ZeroMQ.
#pragma once

#if !__has_include(<zmq.hpp>)
#error "heddle/train/online/sender.hpp needs zmq.hpp: link heddle::zmq (Debian: apt install libzmq3-dev cppzmq-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/train/online/message.hpp>

#include <zmq.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// How a simulation sends.
struct sender_options {
  std::uint32_t run = 0;
  int high_water_mark = 100;   ///< messages to one rank that wait here; then `send` waits
  int patience_seconds = 600;  ///< of a `send`, and at the end for what was sent: then the training is taken for dead
};

/// For solvers: connects to the receivers of all ranks. Step t of simulation s goes to rank (s + t) modulo ranks, so
/// that every rank gets an equal share of every simulation.
class zmq_sender {
 public:
  /// Errors: `config_error` for no endpoint; `comm_error` with ZeroMQ's text.
  explicit zmq_sender(const std::vector<std::string>& endpoints, sender_options options = {}) : options_(options) {
    if (endpoints.empty()) throw config_error("heddle: zmq_sender: no endpoint to send to");
    for (const std::string& endpoint : endpoints) try {
        zmq::socket_t& to = ranks_.emplace_back(context_, zmq::socket_type::push);
        to.set(zmq::sockopt::sndhwm, options_.high_water_mark);
        to.set(zmq::sockopt::sndtimeo, 1000 * options_.patience_seconds);
        to.set(zmq::sockopt::linger, 1000 * options_.patience_seconds);
        to.connect(endpoint);
      } catch (const zmq::error_t& e) {
        throw comm_error("heddle: cannot send to '" + endpoint + "': " + e.what());
      }
  }

  /// A sample. Waits while the rank's buffer and the messages to it are full. Errors: `comm_error` when patience ends.
  void send(std::uint32_t simulation, std::uint32_t step, std::span<const float> inputs,
            std::span<const float> targets) {
    give((static_cast<std::size_t>(simulation) + step) % ranks_.size(),
         message_of({.run = options_.run, .simulation = simulation, .step = step}, inputs, targets));
  }
  /// The simulation has no more samples.
  void finish(std::uint32_t simulation) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      give(rank, message_of({.run = options_.run, .simulation = simulation, .step = end_of_simulation}, {}, {}));
  }

 private:
  void give(std::size_t rank, const std::vector<std::byte>& bytes) {
    for (;;) try {
        if (ranks_[rank].send(zmq::const_buffer(bytes.data(), bytes.size()), zmq::send_flags::none)) return;
        throw comm_error("heddle: rank " + std::to_string(rank) + " has taken no sample for " +
                         std::to_string(options_.patience_seconds) + " s");
      } catch (const zmq::error_t& e) {
        if (e.num() != EINTR) throw comm_error(std::string("heddle: cannot send a sample: ") + e.what());
      }
  }

  sender_options options_;
  zmq::context_t context_{};
  std::vector<zmq::socket_t> ranks_{};
};

}  // namespace heddle::inline v0::train
