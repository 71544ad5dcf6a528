// heddle/nccl/request.hpp: a started send, receive or collective (not run on a GPU).
#pragma once

#include <heddle/nccl/channel.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace heddle::inline v0 {

/// A started send, receive or collective. A collective is launched when it is started. Messages that a rank starts one after the other are launched together, as one group of
/// NCCL calls, when the first of them is waited for or tested, or when the communicator is used for something else.
///
/// `wait` returns when the message is launched: what follows on the stream sees its effect. With
/// `nccl_settings::complete` it returns when the stream has done it. Destroying a request that has not been waited for
/// launches the message; while an exception unwinds the stack it is taken back where that is still possible.
class [[nodiscard("heddle: a message that was started must be waited for")]] nccl_request {
 public:
  nccl_request() = default;
  nccl_request(std::shared_ptr<detail::nccl_channel> channel, std::int64_t batch, cudaStream_t stream)
      : channel_(std::move(channel)), batch_(batch), stream_(stream), exceptions_(std::uncaught_exceptions()) {}
  nccl_request(nccl_request&& other) noexcept
      : channel_(std::move(other.channel_)),
        batch_(other.batch_),
        stream_(other.stream_),
        exceptions_(other.exceptions_) {}
  nccl_request& operator=(nccl_request&& other) noexcept {
    if (this != &other) {
      end();
      channel_ = std::move(other.channel_);
      batch_ = other.batch_;
      stream_ = other.stream_;
      exceptions_ = other.exceptions_;
    }
    return *this;
  }
  ~nccl_request() { end(); }

  /// Launches the message; at once for an empty request. The request is empty afterwards in any case.
  void wait() {
    if (channel_ == nullptr) return;
    const auto channel = std::move(channel_);
    if (!channel->launched(batch_)) channel->flush();
    if (channel->site().settings.complete && !channel->grouped()) channel->wait(stream_);
  }
  /// Whether the stream has done all it was given; launches the message, never waits.
  bool test() {
    if (channel_ == nullptr) return true;
    const auto channel = channel_;
    if (!channel->launched(batch_)) channel->flush();
    if (!channel->done(stream_)) return false;
    channel_ = nullptr;
    return true;
  }

 private:
  void end() noexcept {
    if (channel_ == nullptr) return;
    const auto channel = std::move(channel_);
    if (std::uncaught_exceptions() > exceptions_) {
      channel->drop(batch_);
      return;
    }
    try {
      if (!channel->launched(batch_)) channel->flush();
      if (channel->site().settings.complete && !channel->grouped()) channel->wait(stream_);
    } catch (const std::exception& e) {
      channel->late(e.what());  // the next call throws it
    }
  }

  std::shared_ptr<detail::nccl_channel> channel_;
  std::int64_t batch_ = 0;
  cudaStream_t stream_ = nullptr;
  int exceptions_ = 0;
};

}  // namespace heddle::inline v0
