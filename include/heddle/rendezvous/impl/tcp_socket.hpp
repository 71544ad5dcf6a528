// heddle/rendezvous/impl/tcp_socket.hpp: bodies of heddle/rendezvous/tcp_socket.hpp.
#pragma once

#include <heddle/rendezvous/tcp_socket.hpp>
#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/core/text.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

HEDDLE_INLINE void tcp_send(const tcp_socket& socket, char kind, const std::string& key,
                            std::span<const std::byte> value) {
  std::vector<unsigned char> bytes(tcp_header + key.size() + value.size());
  bytes[0] = static_cast<unsigned char>(kind);
  tcp_put_number(&bytes[1], static_cast<std::uint32_t>(key.size()));
  tcp_put_number(&bytes[5], static_cast<std::uint32_t>(value.size()));
  if (!key.empty()) std::memcpy(bytes.data() + tcp_header, key.data(), key.size());
  if (!value.empty()) std::memcpy(bytes.data() + tcp_header + key.size(), value.data(), value.size());
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ::ssize_t n = ::send(socket.file(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      std::string text = "heddle: the connection of the rendezvous has ended: ";
      text += std::strerror(errno);
      throw aborted_error(text);
    }
    done += static_cast<std::size_t>(n);
  }
}

HEDDLE_INLINE tcp_result tcp_receive_bytes(const tcp_socket& socket, void* to, std::size_t count,
                                           const deadline& until) {
  std::size_t done = 0;
  while (done < count) {
    ::pollfd wait{socket.file(), POLLIN, 0};
    const int slice = static_cast<int>(until.rest(std::chrono::milliseconds(1'000)).count());
    if (::poll(&wait, 1, slice) <= 0) {
      if (until.passed()) return tcp_result::late;
      continue;
    }
    const ::ssize_t n = ::recv(socket.file(), static_cast<unsigned char*>(to) + done, count - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tcp_result::closed;
    done += static_cast<std::size_t>(n);
  }
  return tcp_result::done;
}

HEDDLE_INLINE tcp_result tcp_receive(const tcp_socket& socket, tcp_frame& frame, const deadline& until) {
  unsigned char header[tcp_header];
  if (const auto how = tcp_receive_bytes(socket, header, sizeof header, until); how != tcp_result::done) return how;
  const std::uint32_t key = tcp_number(header + 1), value = tcp_number(header + 5);
  if (key > tcp_longest || value > tcp_longest) return tcp_result::closed;
  frame.kind = static_cast<char>(header[0]);
  frame.key.resize(key);
  frame.value.resize(value);
  if (const auto how = tcp_receive_bytes(socket, frame.key.data(), key, until); how != tcp_result::done) return how;
  return tcp_receive_bytes(socket, frame.value.data(), value, until);
}

HEDDLE_INLINE std::string tcp_hello(int rank, int size, const std::string& job) {
  return text_of({"heddle 1 ", rank, ' ', size, ' ', job});
}

HEDDLE_INLINE void tcp_refuse(const std::string& address, const char* what) {
  throw config_error(text_of({"heddle: the address of a rendezvous is host:port, got \"", address, "\": ", what}));
}

HEDDLE_INLINE std::unique_ptr<::addrinfo, decltype(&::freeaddrinfo)> tcp_resolve(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) tcp_refuse(address, "no port");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  ::addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  ::addrinfo* found = nullptr;
  if (const int rc = ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found); rc != 0)
    tcp_refuse(address, ::gai_strerror(rc));
  return {found, &::freeaddrinfo};
}

HEDDLE_INLINE tcp_socket tcp_listen(const std::string& address) {
  const auto found = tcp_resolve(address);
  int problem = 0;
  for (const ::addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    tcp_socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.file() < 0) continue;
    const int on = 1;
    ::setsockopt(socket.file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket.file(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.file(), 1024) == 0) return socket;
    problem = errno;
  }
  throw comm_error(text_of({"heddle: rank 0 cannot listen at ", address, ": ", std::strerror(problem)}));
}

HEDDLE_INLINE bool tcp_meets_itself(const tcp_socket& socket) {
  ::sockaddr_storage here{}, there{};
  ::socklen_t n = sizeof here, m = sizeof there;
  return ::getsockname(socket.file(), reinterpret_cast<::sockaddr*>(&here), &n) == 0 &&
         ::getpeername(socket.file(), reinterpret_cast<::sockaddr*>(&there), &m) == 0 && n == m &&
         std::memcmp(&here, &there, n) == 0;
}

HEDDLE_INLINE tcp_socket tcp_connect(const std::string& address, const deadline& until, int rank) {
  const auto found = tcp_resolve(address);
  for (;;) {
    int problem = 0;
    for (const ::addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
      tcp_socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (socket.file() < 0) continue;
      if (::connect(socket.file(), at->ai_addr, at->ai_addrlen) == 0) {
        if (tcp_meets_itself(socket)) continue;
        tcp_prepare(socket.file());
        return socket;
      }
      problem = errno;
    }
    if (until.passed()) {
      throw comm_error(text_of({"heddle: rank ", rank, " has tried for ", until.text(), " to reach rank 0 at ", address,
                                ": ", std::strerror(problem)}));
    }
    std::this_thread::sleep_for((std::max)(std::chrono::milliseconds(1), until.rest(std::chrono::milliseconds(20))));
  }
}

}  // namespace heddle::inline v0::detail
