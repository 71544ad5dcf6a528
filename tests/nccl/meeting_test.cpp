// tests/nccl/meeting_test.cpp: where torchrun's ranks meet is named, with the variable that names another place, when they cannot.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/nccl/start.hpp>

#include <chrono>
#include <cstdlib>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {
std::string meeting_error(int rank, const std::string& at) {
  heddle::process_place place;
  place.rank = rank;
  place.size = 2;
  place.launcher = "torchrun";
  place.meeting = "tcp://" + at;
  try {
    heddle::detail::make_rendezvous(place, std::chrono::milliseconds(300));
  } catch (const heddle::error& e) {
    return e.what();
  }
  return "";
}
}  // namespace

TEST_CASE("a port that is taken, and an address that nobody has, name HEDDLE_RENDEZVOUS", "[nccl][launcher]") {
  using Catch::Matchers::Contains;
  ::unsetenv("HEDDLE_RENDEZVOUS");
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(taken, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(taken, 1) == 0);
  REQUIRE(::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const auto names_another = Contains("HEDDLE_RENDEZVOUS=tcp://host:port names another place");
  CHECK_THAT(meeting_error(0, "127.0.0.1:" + port), names_another && Contains(port));
  CHECK_THAT(meeting_error(1, "nobody.invalid:29500"), names_another && Contains("nobody.invalid"));
  ::close(taken);
}
