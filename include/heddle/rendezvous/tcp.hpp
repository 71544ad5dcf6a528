// heddle/rendezvous/tcp.hpp: a rendezvous of processes at a TCP port of rank 0.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/rendezvous/tcp_socket.hpp>
#include <heddle/rendezvous/tcp_table.hpp>

#include <atomic>
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

namespace detail {
// Whether this process has left a meeting: rank 0 may still be in that one when this process comes to the next.
inline std::atomic<bool> has_left_tcp_rendezvous{false};
}  // namespace detail

/// Processes that meet at `host:port`, an address of rank 0's machine; rank 0 listens there in a thread of its own. The
/// constructor returns when all ranks are there, in whatever order they come; rank 0's destructor waits until the
/// others have gone, and processes that have left a meeting wait for that before the next. `job` keeps programs apart
/// that come to the wrong port. A rank whose connection ends without a goodbye counts as lost, which the others are
/// told. Not encrypted and not authenticated: for networks one trusts.
///
/// Units: milliseconds; zero waits for ever.
/// Errors: `comm_error` when ranks do not come in time (naming them), were started for another number of ranks, or two
/// have the same number; `aborted_error` when a rank has failed or is lost.
class tcp_rendezvous final : public detail::keyed_rendezvous {
 public:
  tcp_rendezvous(const std::string& address, int rank, int size,
                 std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000), std::string job = {});
  ~tcp_rendezvous() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void put(const std::string& key, std::span<const std::byte> value) override;
  std::vector<std::byte> get(const std::string& key, int giver) override;
  bool draw(const std::string& key, std::vector<std::byte>& value, std::chrono::milliseconds patience) override;
  void announce(const std::string& text) noexcept override;
  std::string failure() override;

 private:
  std::string place() const {
    std::string text = "at ";
    text += address_;
    return text;
  }
  detail::tcp_frame receive(const detail::deadline& until);
  void join(const detail::deadline& until, const std::string& job);

  std::string address_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  detail::tcp_socket socket_;
  std::unique_ptr<detail::tcp_table> table_;
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rendezvous/impl/tcp.hpp>
#endif
