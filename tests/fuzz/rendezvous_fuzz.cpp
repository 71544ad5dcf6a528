// Messages of a rendezvous: frames that are sent arrive as they were, rank 0's table sends strangers away and goes on
// serving, and a welcome file that is damaged is not one.
#include <heddle/rendezvous/file.hpp>
#include <heddle/rendezvous/tcp.hpp>

#include "fuzz.hpp"

#include <cerrno>
#include <chrono>
#include <thread>

#include <netinet/in.h>
#include <sys/socket.h>

namespace {

namespace hd = heddle;

void frames(std::string_view text) {
  int ends[2];
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair works");
  const hd::detail::tcp_socket in(ends[0]);
  {
    const hd::detail::tcp_socket out(ends[1]);
    fuzz::require(::send(out.file(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<::ssize_t>(text.size()),
                  "a socket takes an input");
  }
  const hd::detail::deadline until(std::chrono::milliseconds(5'000));
  for (hd::detail::tcp_frame f; hd::detail::tcp_receive(in, f, until) == hd::detail::tcp_result::done;) {
    int again[2];
    fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, again) == 0, "socketpair works");
    const hd::detail::tcp_socket here(again[0]), there(again[1]);
    hd::detail::tcp_send(here, f.kind, f.key, f.value);
    hd::detail::tcp_frame back;
    fuzz::require(hd::detail::tcp_receive(there, back, until) == hd::detail::tcp_result::done && back.kind == f.kind &&
                      back.key == f.key && back.value == f.value,
                  "a frame arrives as it was sent");
  }
}

void strangers(std::string_view text) {
  hd::detail::tcp_socket listener = hd::detail::tcp_listen("127.0.0.1:0");
  sockaddr_in place{};
  socklen_t length = sizeof place;
  fuzz::require(::getsockname(listener.file(), reinterpret_cast<sockaddr*>(&place), &length) == 0, "it has a port");
  hd::detail::tcp_table table(std::move(listener), 3, "job", "here");
  const hd::detail::tcp_socket guest(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  fuzz::require(::connect(guest.file(), reinterpret_cast<const sockaddr*>(&place), length) == 0, "a guest may come");
  const timeval most{5, 0};
  ::setsockopt(guest.file(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  [[maybe_unused]] const ::ssize_t n = ::send(guest.file(), text.data(), text.size(), MSG_NOSIGNAL);
  ::shutdown(guest.file(), SHUT_WR);
  char answer[512];
  ::ssize_t got = 0;
  do got = ::recv(guest.file(), answer, sizeof answer, 0);
  while (got > 0 || (got < 0 && errno == EINTR));  // libFuzzer's clock interrupts
  fuzz::require(got == 0 || (got < 0 && errno == ECONNRESET), "the table ends a connection that has ended");
  table.put("key", {});
  std::vector<std::byte> value;
  const hd::detail::deadline until(std::chrono::milliseconds(100));
  fuzz::require(table.get("key", until, value) && value.empty(), "and serves the others");
}

}  // namespace

HEDDLE_FUZZ_TARGET(rendezvous) {
  fuzz::bytes in(data, size);
  const unsigned how = in.byte();
  fuzz::accepted([&] {
    if (how % 16 == 0) {
      strangers(in.rest());
    } else if (how % 16 < 8) {
      frames(in.rest());
    } else if (const auto welcome = hd::detail::read_welcome(in.rest(), "00000000000000ab")) {
      fuzz::require(welcome->session != 0, "rank 0 has a number");
      fuzz::require(in.rest().find("\n00000000000000ab " + welcome->verdict) != std::string_view::npos,
                    "its verdict is there");
    }
  });
}
