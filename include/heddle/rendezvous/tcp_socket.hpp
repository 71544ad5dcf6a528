// heddle/rendezvous/tcp_socket.hpp: connections and frames of a TCP rendezvous.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/file_descriptor.hpp>
#include <heddle/rendezvous/rendezvous.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace heddle::inline v0::detail {

using tcp_socket = file_descriptor;

/// What travels: a kind, a text and a value.
struct tcp_frame {
  char kind = 0;
  std::string key;
  std::vector<std::byte> value;
};

enum class tcp_result { done, closed, late };

inline constexpr std::size_t tcp_header = 9;             // kind, length of the text, length of the value
inline constexpr std::uint32_t tcp_longest = 64u << 20;  // more is not one of ours

inline void tcp_put_number(unsigned char* at, std::uint32_t n) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<unsigned char>(n >> (8 * i));
}
inline std::uint32_t tcp_number(const unsigned char* at) {
  std::uint32_t n = 0;
  for (int i = 0; i < 4; ++i) n |= static_cast<std::uint32_t>(at[i]) << (8 * i);
  return n;
}

HEDDLE_INLINE void tcp_send(const tcp_socket& socket, char kind, const std::string& key,
                            std::span<const std::byte> value);

HEDDLE_INLINE tcp_result tcp_receive_bytes(const tcp_socket& socket, void* to, std::size_t count,
                                           const deadline& until);

HEDDLE_INLINE tcp_result tcp_receive(const tcp_socket& socket, tcp_frame& frame, const deadline& until);

/// "heddle 1 <rank> <size> <job>"
HEDDLE_INLINE std::string tcp_hello(int rank, int size, const std::string& job);

[[noreturn]] HEDDLE_INLINE void tcp_refuse(const std::string& address, const char* what);

/// The addresses behind "host:port".
HEDDLE_INLINE std::unique_ptr<::addrinfo, decltype(&::freeaddrinfo)> tcp_resolve(const std::string& address);

inline void tcp_prepare(int file) {
  const int on = 1;
  ::setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/// Listens at an address of this machine.
HEDDLE_INLINE tcp_socket tcp_listen(const std::string& address);

/// Where nobody listens yet, a connection to a port of this machine can happen to begin at that very port.
HEDDLE_INLINE bool tcp_meets_itself(const tcp_socket& socket);

/// Connects; as long as nobody listens there, tries again.
HEDDLE_INLINE tcp_socket tcp_connect(const std::string& address, const deadline& until, int rank);

}  // namespace heddle::inline v0::detail

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rendezvous/impl/tcp_socket.hpp>
#endif
