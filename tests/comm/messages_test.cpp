// Sends and receives: order, tags, requests, and what happens to a request that nobody waits for.
#include "support.hpp"

#include <deque>
#include <memory>
#include <stdexcept>
#include <thread>

using namespace comm_test;

static_assert(std::movable<world_request> && !std::copyable<world_request>);
static_assert(hd::communicator<transport_test::transport::communicator>);

TEST_CASE("a ring of blocking sends and receives passes everything on", "[comm][messages]") {
  for (const int p : rank_counts(9)) {
    if (p < 2) continue;
    std::vector<int> sums(static_cast<std::size_t>(p));
    launch(line{p}, [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank(), next = (r + 1) % p, last = (r + p - 1) % p;
      int token = r, sum = 0;
      for (int k = 0; k < p; ++k) {
        sum += token;
        int incoming = -1;
        if (r % 2 == 0 && !(p % 2 == 1 && r == p - 1)) {  // evens send first, but never all of them
          c.send(std::span(&token, 1), next);
          c.recv(std::span(&incoming, 1), last);
        } else {
          c.recv(std::span(&incoming, 1), last);
          c.send(std::span(&token, 1), next);
        }
        token = incoming;
      }
      sums[static_cast<std::size_t>(r)] = sum;
    });
    share(sums);
    for (const int sum : sums) CHECK(sum == p * (p - 1) / 2);
  }
}

TEST_CASE("messages of one tag keep their order, tags select", "[comm][messages]") {
  if (most_ranks() < 2) return;
  for (const bool receiver_first : {false, true}) {
    std::vector<int> got(20), tagged(2);
    launch(line{2}, [&](auto& world) {
      auto& c = world.all();
      if (c.rank() == 0) {
        if (receiver_first) c.recv(std::span<int>{}, 1, 99);
        std::vector<int> values(20);
        std::iota(values.begin(), values.end(), 0);
        const std::vector<int> special{70, 80};
        std::vector<world_request> requests;
        for (std::size_t i = 0; i < 20; ++i) {
          requests.push_back(c.isend(std::span(values).subspan(i, 1), 1, 5));
          if (i == 3) requests.push_back(c.isend(std::span(special).first(1), 1, 7));
          if (i == 9) requests.push_back(c.isend(std::span(special).last(1), 1, 8));
        }
        if (!receiver_first) c.send(std::span<int>{}, 1, 99);
        hd::wait_all(requests);
      } else {
        if (!receiver_first) c.recv(std::span<int>{}, 0, 99);  // all sends have been posted
        std::vector<world_request> requests;
        requests.push_back(c.irecv(std::span(tagged).last(1), 0, 8));
        for (std::size_t i = 0; i < 20; ++i) requests.push_back(c.irecv(std::span(got).subspan(i, 1), 0, 5));
        requests.push_back(c.irecv(std::span(tagged).first(1), 0, 7));
        if (receiver_first) c.send(std::span<int>{}, 0, 99);  // all receives have been posted
        hd::wait_all(requests);
      }
    });
    tell(got, 1);
    tell(tagged, 1);
    for (int i = 0; i < 20; ++i) CHECK(got[static_cast<std::size_t>(i)] == i);
    CHECK(tagged == std::vector<int>{70, 80});
  }
}

TEST_CASE("a rank sends to itself when one side is posted first", "[comm][messages][threads]") {
  std::vector<double> got(2);
  launch(line{1}, [&](auto& world) {
    auto& c = world.all();
    const double x = 1.5, y = 2.5;
    auto r = c.irecv(std::span(got).first(1), 0);
    c.send(std::span(&x, 1), 0);
    r.wait();
    auto s = c.isend(std::span(&y, 1), 0, 4);
    CHECK_FALSE(s.test());
    c.recv(std::span(got).last(1), 0, 4);
    CHECK(s.test());
    CHECK(s.test());  // an empty request is done
    CHECK_THROWS_WITH(c.send(std::span(&x, 1), 0),
                      Catch::Matchers::Contains("a rank cannot wait for itself") && Catch::Matchers::Contains("irecv"));
    CHECK_THROWS_AS(c.recv(std::span(got), 0), hd::comm_error);
  });
  CHECK(got == std::vector<double>{1.5, 2.5});
}

TEST_CASE("test says when a message is done", "[comm][messages]") {
  if (most_ranks() < 2) return;
  bool early = true, late = false;
  int got = 0;
  launch(line{2}, [&](auto& world) {
    auto& c = world.all();
    if (c.rank() == 0) {
      auto r = c.irecv(std::span(&got, 1), 1);
      early = r.test();
      c.barrier();
      c.barrier();
      late = r.test();
    } else {
      const int x = 42;
      c.barrier();
      c.send(std::span(&x, 1), 0);
      c.barrier();
    }
  });
  tell(early, 0);
  tell(late, 0);
  tell(got, 0);
  CHECK_FALSE(early);
  CHECK(late);
  CHECK(got == 42);
}

TEST_CASE("large messages arrive whole, in both orders of arrival", "[comm][messages]") {
  if (most_ranks() < 2) return;
  notes notes(2);
  launch(line{2}, [&](auto& world) {
    auto& c = world.all();
    const auto x = buffer<double>(c.rank(), 300'000);
    std::vector<double> y(x.size());
    const int other = 1 - c.rank();
    for (int k = 0; k < 4; ++k) {
      auto r = k % 2 == 0 ? c.irecv(y, other) : c.isend(x, other);
      if (k % 2 == 0)
        c.send(x, other);
      else
        c.recv(y, other);
      r.wait();
      notes.expect(c.rank(), y == buffer<double>(other, 300'000), "message " + std::to_string(k));
      std::fill(y.begin(), y.end(), 0.0);
    }
  });
  notes.report();
}

TEST_CASE("a request that is not waited for is waited for by its destructor", "[comm][messages]") {
  if (most_ranks() < 2) return;
  int got = 0;
  launch(line{2}, [&](auto& world) {
    auto& c = world.all();
    if (c.rank() == 0) {
      const auto x = std::make_unique<int>(7);
      {
        const auto r = c.isend(std::span(x.get(), 1), 1);
      }  // x may be freed after this
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      c.recv(std::span(&got, 1), 0);
    }
  });
  tell(got, 1);
  CHECK(got == 7);
}

TEST_CASE("an error met by a destructor is thrown by the next call", "[comm][messages][threads]") {
  std::vector<std::string> texts(2);
  launch(line{2}, options_ms(400), [&](auto& world) {
    auto& c = world.all();
    if (c.rank() == 0) {
      const int x = 7;
      {
        const auto r = c.isend(std::span(&x, 1), 1, 3);
      }  // nobody receives it: times out
      try {
        c.send(std::span(&x, 1), 1, 4);
      } catch (const hd::comm_error& e) {
        texts[0] = e.what();
      }
      c.send(std::span(&x, 1), 1, 5);
    } else {
      int got = 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(550));
      c.recv(std::span(&got, 1), 0, 5);
    }
  });
  CHECK_THAT(texts[0], Catch::Matchers::Contains("rank 0 has waited 400 ms in send of 1 int to rank 1 (tag 3)"));

  // ... or at the end of the body.
  const auto end = run_to_the_end(2, options_ms(100), [&](auto& world) {
    const int x = 7;
    if (world.rank() == 0)
      const auto r = world.all().isend(std::span(&x, 1), 1, 3);
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
  });
  CHECK_THAT(end.thrown, Catch::Matchers::Contains("comm: rank 0: heddle: rank 0 has waited 100 ms"));
}

TEST_CASE("while an exception unwinds, messages are taken back", "[comm][messages][threads]") {
  bool peer_saw_nothing = false;
  launch(line{2}, options_ms(5000), [&](auto& world) {
    auto& c = world.all();
    if (c.rank() == 0) {
      try {
        std::vector<int> x(1000);
        auto r = c.irecv(x, 1, 9);
        auto s = c.isend(x, 1, 9);
        throw std::runtime_error("stop");
      } catch (const std::runtime_error&) {
      }
      c.barrier();
    } else {
      c.barrier();
      std::vector<int> y(1000);
      auto r = c.irecv(y, 0, 9);
      peer_saw_nothing = !r.test();
      auto s = c.isend(y, 1, 9);  // to itself: another sender, not a match
      peer_saw_nothing = peer_saw_nothing && !r.test() && !s.test();
      std::vector<int> z(1000);
      c.recv(z, 1, 9);
      try {
        auto t = std::move(r);
        throw std::runtime_error("stop");
      } catch (const std::runtime_error&) {
      }
      s.wait();
    }
  });
  CHECK(peer_saw_nothing);
}

TEST_CASE("sides that disagree about a message are both told", "[comm][messages][threads]") {
  for (const bool send_first : {false, true}) {
    const auto end = run_to_the_end(2, options_ms(5000), [&](auto& world) {
      auto& c = world.all();
      std::vector<float> x(8);
      std::vector<double> y(4);
      const bool sends = c.rank() == 0;
      if (sends != send_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (sends)
        c.send(x, 1, 3);
      else
        c.recv(y, 0, 3);
    });
    for (const auto& text : end.ranks) {
      CHECK_THAT(text, Catch::Matchers::StartsWith("comm: heddle: "));
      CHECK_THAT(text, Catch::Matchers::Contains("rank 0 entered send of 8 float to rank 1 (tag 3)"));
      CHECK_THAT(text, Catch::Matchers::Contains("rank 1 entered recv of 4 double from rank 0 (tag 3)"));
    }
    CHECK_THAT(end.thrown, Catch::Matchers::StartsWith("comm: rank "));
  }
  // Unchecked, a wrong size is still an error: nothing is written past an end.
  const auto end = run_to_the_end(2, options_ms(5000, hd::checking::off), [&](auto& world) {
    std::vector<float> x(8), y(7);
    if (world.rank() == 0)
      world.all().send(x, 1);
    else
      world.all().recv(y, 0);
  });
  for (const auto& text : end.ranks) CHECK_THAT(text, Catch::Matchers::Contains("entered recv of 7 float from rank 0 (tag 0)"));
}

TEST_CASE("peers outside the group are refused", "[comm][messages][threads]") {
  launch(line{1}, [](auto& world) {
    int x = 0;
    CHECK_THROWS_WITH(world.all().send(std::span(&x, 1), 1),
                      Catch::Matchers::Contains("send to rank 1, which is not one of 1 ranks"));
    CHECK_THROWS_AS(world.all().recv(std::span(&x, 1), -1), hd::comm_error);
    CHECK_THROWS_WITH(world.all().broadcast(std::span(&x, 1), 3), Catch::Matchers::Contains("root 3 is not one of 1 ranks"));
  });
}
