// Meeting places: what is shared arrives, whoever comes late, and everything that goes wrong is named.
#include <heddle/rendezvous/communicator.hpp>
#include <heddle/rendezvous/file.hpp>
#include <heddle/rendezvous/memory.hpp>
#include <heddle/rendezvous/tcp.hpp>

#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/support.hpp"

using namespace comm_test;
using std::chrono::milliseconds;

namespace {

// Runs `body(rank)` in a process per rank and gives the text each returned or threw.
template <class Body>
std::vector<std::string> in_processes(int ranks, Body body) {
  std::vector<std::string> texts;
  std::vector<int> pipes;
  std::vector<::pid_t> children;
  for (int r = 0; r < ranks; ++r) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const ::pid_t child = ::fork();
    if (child == 0) {
      std::string text;
      try {
        text = body(r);
      } catch (const std::exception& e) {
        text = kind_and_text(e);
      }
      std::size_t done = 0;
      while (done < text.size()) {
        const ::ssize_t n = ::write(ends[1], text.data() + done, text.size() - done);
        if (n <= 0) break;
        done += static_cast<std::size_t>(n);
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    pipes.push_back(ends[0]);
    children.push_back(child);
  }
  for (int r = 0; r < ranks; ++r) {
    std::string text;
    char part[512];
    for (::ssize_t n = 0; (n = ::read(pipes[static_cast<std::size_t>(r)], part, sizeof part)) > 0;)
      text.append(part, static_cast<std::size_t>(n));
    ::close(pipes[static_cast<std::size_t>(r)]);
    int status = 0;
    ::waitpid(children[static_cast<std::size_t>(r)], &status, 0);
    texts.push_back(text);
  }
  return texts;
}

std::string free_address() {
  const hd::detail::tcp_socket socket = hd::detail::tcp_listen("127.0.0.1:0");
  ::sockaddr_in at{};
  ::socklen_t size = sizeof at;
  REQUIRE(::getsockname(socket.file(), reinterpret_cast<::sockaddr*>(&at), &size) == 0);
  return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}

struct folder {
  std::filesystem::path path;
  folder() {
    static int number = 0;
    path = std::filesystem::temp_directory_path() /
           ("heddle-meeting-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
    std::filesystem::remove_all(path);
  }
  ~folder() { std::filesystem::remove_all(path); }
  int files() const {
    int n = 0;
    for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(path)) ++n;
    return n;
  }
};

// Every rank gives a text to all, then pairs share; the result is what this rank saw.
std::string share_all(hd::rendezvous& meeting) {
  std::string seen;
  std::vector<int> members(static_cast<std::size_t>(meeting.size()));
  for (int giver = 0; giver < meeting.size(); ++giver) {
    for (int i = 0; i < meeting.size(); ++i) members[static_cast<std::size_t>(i)] = (giver + i) % meeting.size();
    std::string text = meeting.rank() == giver ? "from " + std::to_string(giver) : std::string(6, ' ');
    meeting.share("all", members, std::as_writable_bytes(std::span(text)));
    seen += text + ";";
  }
  const int pair[2] = {meeting.rank() / 2 * 2, meeting.rank() / 2 * 2 + 1};
  if (pair[1] < meeting.size()) {
    int value = meeting.rank() == pair[0] ? 100 + meeting.rank() : 0;
    meeting.share("pair", pair, std::as_writable_bytes(std::span(&value, 1)));
    seen += std::to_string(value);
  }
  return seen;
}

std::string expected_all(int rank, int size) {
  std::string text;
  for (int giver = 0; giver < size; ++giver) text += "from " + std::to_string(giver) + ";";
  if (rank / 2 * 2 + 1 < size) text += std::to_string(100 + rank / 2 * 2);
  return text;
}

}  // namespace

TEST_CASE("processes that meet at a TCP port share what they have", "[comm][rendezvous]") {
  for (const int p : {1, 2, 5}) {
    const std::string at = free_address();
    const auto seen = in_processes(p, [&](int rank) {
      // Late on purpose, rank 0 last but one.
      std::this_thread::sleep_for(milliseconds(rank == 0 ? 60 : rank == p - 1 ? 90 : 10 * rank));
      hd::tcp_rendezvous meeting(at, rank, p, milliseconds(20'000), "test");
      return share_all(meeting);
    });
    for (int r = 0; r < p; ++r) CHECK(seen[static_cast<std::size_t>(r)] == expected_all(r, p));
  }
}

TEST_CASE("processes meet at one port again and again, though rank 0 is slow to leave it", "[comm][rendezvous]") {
  const std::string at = free_address();
  const auto seen = in_processes(3, [&](int rank) {
    std::string all;
    for (int launch = 0; launch < 4; ++launch) {
      hd::tcp_rendezvous meeting(at, rank, 3, milliseconds(20'000), "test");
      all = share_all(meeting);
      if (rank == 0) std::this_thread::sleep_for(milliseconds(40 * launch));
    }
    return all;
  });
  for (int r = 0; r < 3; ++r) CHECK(seen[static_cast<std::size_t>(r)] == expected_all(r, 3));
}

TEST_CASE("ranks that rank 0 leaves before all have met are told at once", "[comm][rendezvous]") {
  const std::string at = free_address();
  const auto seen = in_processes(3, [&](int rank) {
    if (rank == 2) return std::string("does not come");
    if (rank == 0) {
      std::thread([] {
        std::this_thread::sleep_for(milliseconds(300));
        std::_Exit(0);
      }).detach();
    }
    const auto since = std::chrono::steady_clock::now();
    std::string text;
    try {
      const hd::tcp_rendezvous meeting(at, rank, 3, milliseconds(60'000), "test");
    } catch (const hd::aborted_error& e) {
      text = e.what();
    }
    return std::chrono::steady_clock::now() - since < std::chrono::seconds(30) ? text : "late";
  });
  CHECK_THAT(seen[1], Catch::Contains("rank 0, which keeps the rendezvous") && Catch::Contains("is lost"));
}

TEST_CASE("processes that meet in a folder share what they have, whatever lies there", "[comm][rendezvous]") {
  const folder place;
  for (const int p : {1, 2, 5}) {
    // What a killed run of the same size leaves.
    std::filesystem::create_directories(place.path);
    for (int r = 1; r < p; ++r) {
      std::ofstream(place.path / ("hello." + std::to_string(r))) << "00000000000000ab " << (r == 1 ? 7 : p);
      std::ofstream(place.path / ("ack." + std::to_string(r))) << "00000000000000ab 00000000000000cd";
    }
    std::ofstream(place.path / "welcome") << "00000000000000cd\n00000000000000ab ok\n";
    const auto seen = in_processes(p, [&](int rank) {
      std::this_thread::sleep_for(milliseconds(rank == 0 ? 60 : rank == p - 1 ? 90 : 0));
      hd::file_rendezvous meeting(place.path.string(), rank, p, milliseconds(20'000));
      return share_all(meeting);
    });
    for (int r = 0; r < p; ++r) CHECK(seen[static_cast<std::size_t>(r)] == expected_all(r, p));
    CHECK(place.files() == 0);
  }
}

TEST_CASE("ranks that are threads meet in memory, and over a communicator", "[comm][rendezvous]") {
  const int p = 5;
  const auto shared = std::make_shared<hd::memory_meeting>();
  notes notes(p);
  hd::launch<hd::threads>(line{p}, options_ms(20'000), [&](auto& world) {
    hd::memory_rendezvous memory(shared, world.rank(), p, milliseconds(20'000));
    notes.expect(world.rank(), share_all(memory) == expected_all(world.rank(), p), "memory");
    hd::communicator_rendezvous over(world.all());
    notes.expect(world.rank(), share_all(over) == expected_all(world.rank(), p), "communicator");
  });
  notes.report();
}

TEST_CASE("a rank that does not come is named by those that wait", "[comm][rendezvous]") {
  const folder place;
  const std::string at = free_address();
  for (const bool tcp : {true, false}) {
    const auto seen = in_processes(2, [&](int rank) -> std::string {  // rank 2 of 3 never starts
      if (tcp)
        hd::tcp_rendezvous(at, rank, 3, milliseconds(300));
      else
        hd::file_rendezvous(place.path.string(), rank, 3, milliseconds(300)).get("x", 2);
      return "met";
    });
    INFO(seen[0] << "\n" << seen[1]);
    CHECK(contains(seen[0], "comm: heddle: rank 0 has waited 300 ms at the rendezvous"));
    CHECK(contains(seen[0], "for rank 2 of 3 ranks"));
    CHECK(!contains(seen[1], "met"));
  }
}

TEST_CASE("a rendezvous without rank 0 ends in time", "[comm][rendezvous]") {
  const folder place;
  const std::string at = free_address();
  CHECK_THROWS_WITH(hd::tcp_rendezvous(at, 1, 2, milliseconds(100)),
                    Catch::Matchers::Contains("rank 1 has tried for 100 ms to reach rank 0 at " + at));
  CHECK_THROWS_WITH(hd::file_rendezvous(place.path.string(), 1, 2, milliseconds(100)),
                    Catch::Matchers::Contains("rank 1 has waited 100 ms"));
}

TEST_CASE("ranks that were started for another number of ranks are told, and so are the others", "[comm][rendezvous]") {
  const folder place;
  const std::string at = free_address();
  for (const bool tcp : {true, false}) {
    const auto seen = in_processes(3, [&](int rank) -> std::string {
      const int size = rank == 2 ? 8 : 3;
      if (tcp) {
        hd::tcp_rendezvous(at, rank, size, milliseconds(10'000));
      } else {
        hd::file_rendezvous meeting(place.path.string(), rank, size, milliseconds(10'000));
        if (rank == 1) meeting.get("never given", 0);  // it may have been let in before rank 2 came
      }
      return "met";
    });
    INFO(tcp);
    for (const std::string& text : seen) CHECK(contains(text, "heddle: rank 2 was started for 8 ranks, rank 0 for 3"));
  }
}

TEST_CASE("two processes that claim one rank are noticed", "[comm][rendezvous]") {
  const folder place;
  const std::string at = free_address();
  for (const bool tcp : {true, false}) {
    const auto seen = in_processes(3, [&](int process) -> std::string {
      const int rank = process == 0 ? 0 : 1;  // 3 ranks, none of which is rank 2
      if (tcp)
        hd::tcp_rendezvous(at, rank, 3, milliseconds(400));
      else
        hd::file_rendezvous(place.path.string(), rank, 3, milliseconds(400)).get("never given", 0);
      return "met";
    });
    INFO(seen[0] << "\n" << seen[1] << "\n" << seen[2]);
    CHECK((contains(seen[1] + seen[2], "another process has come") || !tcp));
    CHECK(contains(seen[0], "rank 2"));
  }
}

TEST_CASE("strangers at the port are sent away and change nothing", "[comm][rendezvous]") {
  const std::string at = free_address();
  const auto seen = in_processes(4, [&](int process) -> std::string {
    if (process == 2) {
      const auto socket = hd::detail::tcp_connect(at, hd::detail::deadline(milliseconds(10'000)), 9);
      const char text[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
      [[maybe_unused]] const ::ssize_t n = ::send(socket.file(), text, sizeof text, MSG_NOSIGNAL);
      char byte = 0;
      return ::recv(socket.file(), &byte, 1, 0) <= 0 ? "sent away" : "answered";
    }
    if (process == 3) hd::tcp_rendezvous(at, 1, 2, milliseconds(10'000), "other");
    std::this_thread::sleep_for(milliseconds(process == 1 ? 150 : 0));
    hd::tcp_rendezvous meeting(at, process, 2, milliseconds(10'000), "mine");
    return share_all(meeting);
  });
  CHECK(seen[0] == expected_all(0, 2));
  CHECK(seen[1] == expected_all(1, 2));
  CHECK(seen[2] == "sent away");
  CHECK(contains(seen[3], "rank 1 of job \"other\" has come to the rendezvous of job \"mine\""));
}

TEST_CASE("the others learn of a failure, and of a process that was killed", "[comm][rendezvous]") {
  for (const bool killed : {false, true}) {
    const std::string at = free_address();
    const auto seen = in_processes(3, [&](int rank) -> std::string {
      hd::tcp_rendezvous meeting(at, rank, 3, milliseconds(10'000));
      if (rank == 1 && killed) ::raise(SIGKILL);
      if (rank == 1) meeting.announce("rank 1: no memory");
      if (rank != 1) meeting.get("never given", 1);
      return meeting.failure();
    });
    const std::string text = killed ? "rank 1 is lost: its connection to rank 0 has ended" : "rank 1: no memory";
    CHECK(contains(seen[0], text));
    CHECK(contains(seen[2], text));
  }
  // Rank 0 is the one who keeps the rendezvous.
  const std::string at = free_address();
  const auto seen = in_processes(2, [&](int rank) -> std::string {
    hd::tcp_rendezvous meeting(at, rank, 2, milliseconds(10'000));
    if (rank == 0) ::raise(SIGKILL);
    meeting.get("never given", 0);
    return "met";
  });
  INFO(seen[1]);
  CHECK(contains(seen[1], "aborted: heddle: "));
  const folder place;
  const auto told = in_processes(3, [&](int rank) -> std::string {
    hd::file_rendezvous meeting(place.path.string(), rank, 3, milliseconds(10'000));
    if (rank == 1) meeting.announce("rank 1: no memory");
    if (rank != 1) meeting.get("never given", 1);
    return meeting.failure();
  });
  CHECK(told[0] == "aborted: rank 1: no memory");
  CHECK(told[2] == "aborted: rank 1: no memory");
}

TEST_CASE("addresses that are none are refused", "[comm][rendezvous]") {
  CHECK_THROWS_AS(hd::tcp_rendezvous("localhost", 0, 1), hd::config_error);
  CHECK_THROWS_AS(hd::tcp_rendezvous("localhost:no-such-service", 0, 1), hd::config_error);
  CHECK_THROWS_AS(hd::tcp_rendezvous("127.0.0.1:0", 2, 2), hd::comm_error);
  CHECK_THROWS_AS(hd::file_rendezvous("/no/such/place", 0, 1), hd::io_error);
}

TEST_CASE("a welcome in a folder is whole and names the rank, or it is none", "[comm][rendezvous]") {
  const std::string mine = "00000000000000ab";
  const auto read = [&](const std::string& text) { return hd::detail::read_welcome(text, mine); };
  const auto good = read("00000000000000cd\n0000000000000001 ok\n00000000000000ab heddle: no\n");
  REQUIRE(good);
  CHECK(good->session == 0xcd);
  CHECK(good->verdict == "heddle: no");
  for (const char* text :
       {"", "\n00000000000000ab ok\n", "not a number\n00000000000000ab ok\n", "cd\n00000000000000ab ok\n",
        "-00000000000000d\n00000000000000ab ok\n", "0000000000000000\n00000000000000ab ok\n",
        "00000000000000cd\n00000000000000ab o", "00000000000000cd\n0000000000000001 ok\n"})
    CHECK_FALSE(read(text));
}

TEST_CASE("the longest timeout of a rendezvous has not passed", "[comm][rendezvous]") {
  const hd::detail::deadline until((milliseconds::max)());
  CHECK_FALSE(until.passed());
  CHECK(until.rest(milliseconds(5)) == milliseconds(5));
}

TEST_CASE("a rendezvous refuses what it cannot carry, and goes on", "[comm][rendezvous]") {
  const std::string at = free_address();
  const auto seen = in_processes(2, [&](int rank) -> std::string {
    hd::tcp_rendezvous meeting(at, rank, 2, milliseconds(20'000));
    std::string text;
    if (rank == 1) {
      const std::vector<std::byte> much((std::size_t{64} << 20) + 1);
      try {
        meeting.put("much", much);
      } catch (const hd::comm_error& e) {
        text = e.what();
      }
    }
    return share_all(meeting) + text;
  });
  CHECK(seen[0] == expected_all(0, 2));
  CHECK(seen[1] ==
        expected_all(1, 2) + "heddle: a rendezvous carries at most 67108864 bytes under a key, got 67108865");
}
