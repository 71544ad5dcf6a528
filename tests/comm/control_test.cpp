// The control plane: the collectives' definitions again, on every carrier of it, and what happens when something fails.
#include "definitions.hpp"

#include <heddle/rendezvous/communicator.hpp>
#include <heddle/rendezvous/control.hpp>
#include <heddle/rendezvous/file.hpp>
#include <heddle/rendezvous/memory.hpp>
#include <heddle/rendezvous/tcp.hpp>
#include <heddle/testing/counting_world.hpp>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

using namespace comm_test;

namespace {

using cube = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 3>, hd::axis<tp, 2>>;

void all_definitions(auto& c, notes& notes) {
  for (const std::int64_t n : {0, 1, 5}) {
    everything<double>(c, n, hd::plus{}, notes);
    everything<word>(c, n, join{}, notes);
  }
  everything<std::int64_t>(c, 3, right{}, notes);
  auto odd = c.split(c.rank() % 2, -c.rank());  // in reverse order
  std::vector<int> ranks(static_cast<std::size_t>(odd.size()));
  const int mine = c.rank();
  odd.all_gather(std::span(&mine, 1), ranks);
  std::vector<int> expected;
  for (int r = c.size() - 1; r >= 0; --r)
    if (r % 2 == mine % 2) expected.push_back(r);
  notes.expect(mine, ranks == expected, "split");
}

// A token goes round the ring; messages of two tags are taken in the other order.
void all_messages(auto& c, notes& notes) {
  const int p = c.size(), r = c.rank(), next = (r + 1) % p, last = (r + p - 1) % p;
  if (p == 1) return;
  const std::vector<int> a{r, 10 * r}, b{r + 100};
  int x[2] = {}, y = 0;
  auto in = c.irecv(std::span(x), last, 1);
  auto out_a = c.isend(a, next, 1);
  auto out_b = c.isend(b, next, 2);
  c.recv(std::span(&y, 1), last, 2);
  in.wait();
  out_b.wait();
  while (!out_a.test()) std::this_thread::yield();
  notes.expect(r, x[0] == last && x[1] == 10 * last && y == last + 100, "messages");
}

// One thread per rank, each with what `make(rank)` gives; texts of what they threw, by rank.
std::vector<std::string> over_rendezvous(int p, const hd::launch_options& options,
                                         const std::function<std::shared_ptr<hd::rendezvous>(int)>& make,
                                         const std::function<void(hd::rendezvous_control&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(p));
  std::vector<std::thread> ranks;
  for (int r = 0; r < p; ++r)
    ranks.emplace_back([&, r] {
      std::shared_ptr<hd::rendezvous> meeting;
      try {
        meeting = make(r);
        std::vector<int> members(static_cast<std::size_t>(p));
        std::iota(members.begin(), members.end(), 0);
        hd::rendezvous_control c(std::make_shared<hd::detail::control_state>(meeting, "control", members, r, options));
        body(c);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = kind_and_text(e);
        if (meeting != nullptr) meeting->announce("rank " + std::to_string(r) + ": " + e.what());
      }
    });
  for (auto& t : ranks) t.join();
  return errors;
}
auto in_memory(int p, int timeout_ms = 10'000) {
  return [shared = std::make_shared<hd::memory_meeting>(), p, timeout_ms](int r) -> std::shared_ptr<hd::rendezvous> {
    return std::make_shared<hd::memory_rendezvous>(shared, r, p, std::chrono::milliseconds(timeout_ms));
  };
}

}  // namespace

TEST_CASE("the control plane of a world has every collective and message", "[comm][control]") {
  for (const int p : rank_counts({1, 2, 3, 5, 8})) {
    CAPTURE(p);
    notes notes(p);
    launch(line{p}, [&](auto& world) {
      static_assert(hd::communicator<std::remove_reference_t<decltype(world.control())>>);
      all_definitions(world.control(), notes);
      all_messages(world.control(), notes);
    });
    notes.report();
  }
}

TEST_CASE("control planes run along axes and in sub-worlds", "[comm][control]") {
  if (most_ranks() < 12) return;
  notes notes(12);
  launch(cube{}, [&](auto& world) {
    const int r = world.rank();
    const auto check = [&](auto& c, const std::vector<int>& expected, const std::string& name) {
      std::vector<int> ranks(static_cast<std::size_t>(c.size()));
      c.all_gather(std::span(&r, 1), ranks);
      notes.expect(r, ranks == expected, "members of " + name);
      notes.expect(r, c.name() == name, "name of " + name);
    };
    check(world.control(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "control");
    check(world.template control_along<tp>(), hd::group<tp>(world.mesh(), r), "control tp");
    check(world.template control_along<tp, dp>(), hd::group<tp, dp>(world.mesh(), r), "control tp,dp");
    check(world.template control_along_if<hd::cp, pp>(), hd::group<pp>(world.mesh(), r), "control pp");
    check(world.template control_along_if<hd::cp>(), {r}, "control self");
    auto plane = world.template sub<pp, tp>();
    check(plane.control(), hd::group<pp, tp>(world.mesh(), r), "control");
    check(plane.template control_along<pp>(), hd::group<pp>(world.mesh(), r), "control pp");
    notes.expect(r, &world.control() == &world.control(), "one control plane per world");
  });
  notes.report();
}

TEST_CASE("messages and collectives of the two planes never meet", "[comm][control]") {
  if (most_ranks() < 2) return;
  notes notes(2);
  launch(line{2}, [&](auto& world) {
    auto &data = world.all(), &control = world.control();
    const int r = world.rank(), other = 1 - r;
    const auto before = data.counters().collectives();
    std::vector<double> sent{1.5, 2.5}, told{7.0, 8.0}, x(2), y(2);
    auto a = data.isend(sent, other);  // the same tag, peer, type and length on both
    auto b = control.isend(told, other);
    if (r == 0) {
      control.recv(y, other);
      data.recv(x, other);
    } else {
      data.recv(x, other);
      control.recv(y, other);
    }
    a.wait();
    b.wait();
    notes.expect(r, x == sent && y == told, "each message on its plane");
    double sum = r + 1;
    control.all_reduce(sum, hd::plus{});
    notes.expect(r, sum == 3, "sum");
    notes.expect(r, data.counters().collectives() == before, "the data plane counts none of it");
    notes.expect(r, control.counters()[hd::comm_operation::all_reduce].calls == 1, "the control plane counts it");
  });
  notes.report();
}

TEST_CASE("a counting world has a control plane with an order of its own", "[comm][control][threads]") {
  notes notes(4);
  using square = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  hd::testing::counting::run(square{}, [&](auto& world) {
    const int r = world.rank();
    int x = r, y = 10 * r;
    world.control().all_reduce(x, hd::plus{});
    world.template control_along<tp>().all_reduce(y, hd::plus{});
    notes.expect(r, x == 6 && y == (r < 2 ? 10 : 50), "sums");
  });
  notes.report();
}

TEST_CASE("a rendezvous carries a control plane: in memory, over TCP and in a folder", "[comm][control][threads]") {
  for (const int p : {1, 2, 3, 5}) {
    CAPTURE(p);
    notes notes(p);
    const auto errors = over_rendezvous(p, options_ms(10'000), in_memory(p), [&](auto& c) {
      all_definitions(c, notes);
      all_messages(c, notes);
    });
    for (const auto& e : errors) CHECK(e == "");
    notes.report();
  }
  const auto some = [](notes& notes) {
    return [&notes](auto& c) {
      everything<double>(c, 3, hd::plus{}, notes);
      all_messages(c, notes);
    };
  };
  notes tcp(3), folder(3);
  const std::string port = "127.0.0.1:" + std::to_string(20'000 + ::getpid() % 20'000);
  for (const auto& e : over_rendezvous(
           3, options_ms(10'000),
           [&](int r) { return std::make_shared<hd::tcp_rendezvous>(port, r, 3, std::chrono::milliseconds(10'000)); },
           some(tcp)))
    CHECK(e == "");
  const auto place = std::filesystem::temp_directory_path() / ("heddle_control_" + std::to_string(::getpid()));
  for (const auto& e : over_rendezvous(
           3, options_ms(10'000),
           [&](int r) {
             return std::make_shared<hd::file_rendezvous>(place.string(), r, 3, std::chrono::milliseconds(10'000));
           },
           some(folder)))
    CHECK(e == "");
  std::filesystem::remove_all(place);
  tcp.report();
  folder.report();
}

TEST_CASE("a communicator that is there carries several control planes side by side", "[comm][control]") {
  const int p = (std::min)(3, most_ranks());
  notes notes(p);
  launch(line{p}, [&](auto& world) {
    const int r = world.rank();
    auto over = world.all().split(0, r);
    const auto meeting = std::make_shared<hd::communicator_rendezvous<decltype(over)>>(over);
    std::vector<int> members(static_cast<std::size_t>(p));
    std::iota(members.begin(), members.end(), 0);
    const auto make = [&](const char* label) {
      return hd::rendezvous_control(
          std::make_shared<hd::detail::control_state>(meeting, label, members, r, options_ms(10'000)));
    };
    auto a = make("a"), b = make("b");
    all_definitions(a, notes);
    all_messages(b, notes);
    const int next = (r + 1) % p, last = (r + p - 1) % p;
    int x = r, y = 10 * r;
    a.send(std::span(&x, 1), next);  // sent first on a, taken first on b
    b.send(std::span(&y, 1), next);
    b.recv(std::span(&y, 1), last);
    a.recv(std::span(&x, 1), last);
    notes.expect(r, x == last && y == 10 * last, "two planes");
  });
  notes.report();
}

TEST_CASE("failures on a control plane are named and end all ranks", "[comm][control][threads]") {
  const auto has = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(contains(text, part));
  };
  SECTION("arguments that do not fit") {
    const auto errors = over_rendezvous(1, options_ms(5'000), in_memory(1), [](auto& c) { refuses_arguments(c); });
    CHECK(errors[0] == "");
  }
  SECTION("a rank that does not come") {
    const auto errors = over_rendezvous(2, options_ms(200), in_memory(2, 200), [](auto& c) {
      if (c.rank() == 1) return;
      double x = 1;
      c.all_reduce(x, hd::plus{});
    });
    has(errors[0],
        "comm: heddle: rank 0 has waited 200 ms in all_reduce of 1 double with plus, call 1 on communicator "
        "(control) for rank 1");
    CHECK(errors[1] == "");
  }
  SECTION("ranks that call something else") {
    const auto errors = over_rendezvous(3, options_ms(5'000), in_memory(3), [](auto& c) {
      std::vector<float> x(c.rank() == 1 ? 3 : 2);
      c.all_reduce(std::span(x), hd::plus{});
    });
    // A rank may hear of another's error before it has compared itself.
    int found = 0;
    for (const auto& e : errors) {
      found += e.rfind("comm: heddle: ranks disagree", 0) == 0;
      has(e,
          "heddle: ranks disagree about call 1 on communicator (control): rank 1 entered all_reduce of 3 float "
          "with plus; rank 0 entered all_reduce of 2 float with plus");
    }
    CHECK(found > 0);
  }
  SECTION("a message of another length") {
    const auto errors = over_rendezvous(2, options_ms(5'000), in_memory(2), [](auto& c) {
      std::vector<int> x(3);
      if (c.rank() == 0)
        c.send(x, 1);
      else
        c.recv(std::span(x).first(2), 0);
    });
    CHECK(errors[0] == "");
    has(errors[1],
        "disagree about a message on communicator (control): rank 1 entered recv of 2 int from rank 0 (tag 0), "
        "the message has 12 bytes");
  }
  SECTION("another rank's exception") {
    const auto errors = over_rendezvous(3, options_ms(60'000), in_memory(3), [](auto& c) {
      if (c.rank() == 1) throw hd::config_error("heddle: not today");
      c.barrier();
    });
    for (const int r : {0, 2}) {
      has(errors[static_cast<std::size_t>(r)], "aborted: heddle: rank ");
      has(errors[static_cast<std::size_t>(r)], "stopped in barrier, call 1 on communicator (control)");
      has(errors[static_cast<std::size_t>(r)], "heddle: not today");
    }
  }
  SECTION("a request that nobody waits for") {
    const auto errors = over_rendezvous(2, options_ms(100), in_memory(2, 100), [](auto& c) {
      if (c.rank() == 1) return;
      int x = 0;
      {
        [[maybe_unused]] auto dropped = c.irecv(std::span(&x, 1), 1);
      }
      c.send(std::span(&x, 1), 1);
    });
    has(errors[0],
        "rank 0 has waited 100 ms in recv of 1 int from rank 1 (tag 0) on communicator (control) for rank 1");
  }
  SECTION("a rank of a world of threads") {
    const ending end = run_to_the_end(3, options_ms(60'000), [](auto& world) {
      if (world.rank() == 1) throw hd::config_error("heddle: not today");
      world.control().barrier();
    });
    has(end.ranks[0], "aborted: heddle: rank 1 failed while rank 0 was in barrier");
    has(end.ranks[0], "on communicator (control)");
  }
}
