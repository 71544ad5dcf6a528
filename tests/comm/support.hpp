// What the tests of comm share: worlds of any size, results collected per rank, and witnesses of order.
#pragma once

#include <heddle/comm/threads.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "transport.hpp"

namespace comm_test {

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using line = hd::mesh<hd::axis<dp>>;
using transport_test::launch, transport_test::share, transport_test::tell, transport_test::rank_counts;
using transport_test::on_threads, transport_test::most_ranks, transport_test::world_request;

inline hd::launch_options options_ms(int timeout_ms, hd::checking check = hd::checking::on) {
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  options.check = check;
  return options;
}

// Catch2's assertions are for one thread: ranks note what is wrong, the main thread reports it.
class notes {
 public:
  explicit notes(int ranks) : by_rank_(static_cast<std::size_t>(ranks)) {}
  void expect(int rank, bool ok, const std::string& what) {
    if (!ok && by_rank_[static_cast<std::size_t>(rank)].size() < 5)
      by_rank_[static_cast<std::size_t>(rank)].push_back(what);
  }
  void report() {
    share(by_rank_);
    for (std::size_t r = 0; r < by_rank_.size(); ++r)
      for (const auto& note : by_rank_[r]) {
        INFO("rank " << r << ": " << note);
        CHECK(false);
      }
    CHECK(true);
  }

 private:
  std::vector<std::vector<std::string>> by_rank_;
};

// Runs the body and says how it ended on each rank: "" or the kind and text of its exception. The rank then leaves with
// that exception, as a program would. `thrown` is what launch threw.
struct ending {
  std::vector<std::string> ranks;
  std::string thrown;
  double seconds = 0;
};

inline std::string kind_and_text(const std::exception& e) {
  std::string kind = "other";
  if (dynamic_cast<const hd::aborted_error*>(&e))
    kind = "aborted";
  else if (dynamic_cast<const hd::comm_error*>(&e))
    kind = "comm";
  else if (dynamic_cast<const hd::error*>(&e))
    kind = "heddle";
  return kind + ": " + e.what();
}

template <class Body>
ending run_to_the_end(int ranks, const hd::launch_options& options, Body body) {
  ending end;
  end.ranks.resize(static_cast<std::size_t>(ranks));
  const auto start = std::chrono::steady_clock::now();
  try {
    hd::launch<hd::threads>(line{ranks}, options, [&](auto& world) {
      try {
        body(world);
      } catch (const std::exception& e) {
        end.ranks[static_cast<std::size_t>(world.rank())] = kind_and_text(e);
        throw;
      }
    });
  } catch (const std::exception& e) {
    end.thrown = kind_and_text(e);
  }
  end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return end;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- witnesses: operators that are associative and notice a change of order ---

// A text of at most 31 characters; the operator joins.
struct word {
  char text[31] = {};
  std::uint8_t length = 0;
  friend bool operator==(const word& a, const word& b) {
    return a.length == b.length && std::memcmp(a.text, b.text, a.length) == 0;
  }
};
struct join {
  template <class T>
  static T identity() {
    return {};
  }
  word operator()(const word& a, const word& b) const {
    word c = a;
    for (int i = 0; i < b.length && c.length < 31; ++i) c.text[c.length++] = b.text[i];
    return c;
  }
};

// 2x2 matrices modulo a prime.
struct matrix2 {
  std::int64_t a = 1, b = 0, c = 0, d = 1;
  friend bool operator==(const matrix2&, const matrix2&) = default;
};
struct product2 {
  static constexpr std::int64_t prime = 1'000'000'007;
  template <class T>
  static T identity() {
    return {};
  }
  matrix2 operator()(const matrix2& x, const matrix2& y) const {
    return {(x.a * y.a + x.b * y.c) % prime, (x.a * y.b + x.b * y.d) % prime, (x.c * y.a + x.d * y.c) % prime,
            (x.c * y.b + x.d * y.d) % prime};
  }
};

// Takes the right operand: order at its most visible, on a builtin type.
struct right {
  template <class T>
  static T identity() {
    return T{};
  }
  template <class T>
  T operator()(const T&, const T& b) const {
    return b;
  }
};

// Element `index` of the buffer of `rank`.
template <class T>
T value(int rank, std::int64_t index) {
  if constexpr (std::is_same_v<T, word>) {
    word w;
    w.text[0] = static_cast<char>('a' + (rank * 7 + index) % 26);
    w.text[1] = static_cast<char>('0' + rank % 10);
    w.length = static_cast<std::uint8_t>(1 + (rank + index) % 2);
    return w;
  } else if constexpr (std::is_same_v<T, matrix2>) {
    return {rank + 2, index + 1, 3 * rank + index, 5};
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(0.1) * static_cast<T>(rank + 1) + static_cast<T>(index % 97) / static_cast<T>(3);
  } else {
    return static_cast<T>(rank * 31 + index * 7 + 1);
  }
}

template <class T>
std::vector<T> buffer(int rank, std::int64_t count) {
  std::vector<T> x(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) x[static_cast<std::size_t>(i)] = value<T>(rank, i);
  return x;
}

// The definition of a reduction: fold the ranks' elements at `index` from left to right.
template <class T, class Op>
T folded(int ranks, std::int64_t index, const Op& op) {
  T result = value<T>(0, index);
  for (int r = 1; r < ranks; ++r) result = op(result, value<T>(r, index));
  return result;
}

// Threads fold in rank order; MPI groups the operands as it likes, and so rounds as it likes.
template <class T>
bool same(const std::vector<T>& x, const std::vector<T>& expected) {
  if constexpr (std::is_floating_point_v<T> && !on_threads)
    return std::equal(x.begin(), x.end(), expected.begin(), expected.end(), [](T a, T b) {
      return (a < b ? b - a : a - b) <= 32 * std::numeric_limits<T>::epsilon() * (b < T(0) ? -b : b);
    });
  else
    return x == expected;
}

template <class T>
std::vector<T> part(const std::vector<T>& x, std::int64_t begin, std::int64_t count) {
  return {x.begin() + begin, x.begin() + begin + count};
}

// Arguments that do not fit, on a communicator of one rank: refused in the same words by all transports.
template <class C>
void refuses_arguments(C& c) {
  using Catch::Matchers::Contains;
  using counts = std::vector<std::int64_t>;
  const hd::plus sum;
  std::vector<int> x(4), y(5);
  const std::span<int> first = std::span(y).first(4), last = std::span(y).last(4);
  const std::string in_place = "in and out overlap other than in place";
  CHECK_THROWS_WITH(c.all_reduce(x, y, sum), Contains("rank " + std::to_string(c.world_rank(0)) + " on communicator (" +
                                                      c.name() + "): all_reduce: out has 5 elements, expected 4"));
  CHECK_THROWS_WITH(c.all_reduce(first, last, sum), Contains("all_reduce: " + in_place));
  CHECK_THROWS_WITH(c.reduce(x, y, sum, 0), Contains("reduce: out has 5 elements, expected 4"));
  CHECK_THROWS_WITH(c.reduce(first, last, sum, 0), Contains("reduce: " + in_place));
  CHECK_THROWS_WITH(c.reduce(x, x, sum, 1), Contains("root 1 is not one of 1 ranks"));
  CHECK_THROWS_WITH(c.broadcast(x, -1), Contains("root -1 is not one of 1 ranks"));
  CHECK_THROWS_WITH(c.reduce_scatter(x, y, sum), Contains("reduce_scatter: in has 4 elements, expected 5"));
  CHECK_THROWS_WITH(c.reduce_scatter(first, last, sum), Contains("reduce_scatter: " + in_place));
  CHECK_THROWS_WITH(c.reduce_scatter_v(x, y, counts{4}, sum), Contains("reduce_scatter_v: out has 5"));
  CHECK_THROWS_WITH(c.reduce_scatter_v(first, last, counts{4}, sum), Contains("reduce_scatter_v: " + in_place));
  CHECK_THROWS_WITH(c.all_gather(x, y), Contains("all_gather: out has 5 elements, expected 4"));
  CHECK_THROWS_WITH(c.all_gather(first, last), Contains("all_gather: " + in_place));
  CHECK_THROWS_WITH(c.all_gather_v(x, x, counts{}), Contains("all_gather_v: 0 counts for 1 ranks"));
  CHECK_THROWS_WITH(c.all_gather_v(x, x, counts{-1}), Contains("all_gather_v: a count of -1"));
  CHECK_THROWS_WITH(c.all_gather_v(x, y, counts{5}), Contains("all_gather_v: in has 4 elements, expected 5"));
  CHECK_THROWS_WITH(c.all_gather_v(first, last, counts{4}), Contains("all_gather_v: " + in_place));
  CHECK_THROWS_WITH(c.all_to_all(x, y), Contains("all_to_all: out has 5 elements, expected 4"));
  CHECK_THROWS_WITH(c.all_to_all(x, x), Contains("all_to_all: in and out overlap"));
  CHECK_THROWS_WITH(c.all_to_all_v(x, counts{5}, y, counts{5}), Contains("all_to_all_v: in has 4"));
  CHECK_THROWS_WITH(c.all_to_all_v(x, counts{4}, y, counts{5}),
                    Contains("all_to_all_v: the own block has 4 elements, expected 5"));
  CHECK_THROWS_WITH(c.all_to_all_v(x, counts{4}, x, counts{4}), Contains("all_to_all_v: in and out overlap"));
  CHECK_THROWS_WITH(c.gather(x, y, 0), Contains("gather: out has 5 elements, expected 4"));
  CHECK_THROWS_WITH(c.gather(first, last, 0), Contains("gather: " + in_place));
  CHECK_THROWS_WITH(c.gather_v(x, y, counts{5}, 0), Contains("gather_v: in has 4 elements, expected 5"));
  CHECK_THROWS_WITH(c.gather_v(first, last, counts{4}, 0), Contains("gather_v: " + in_place));
  CHECK_THROWS_WITH(c.scatter(x, y, 0), Contains("scatter: in has 4 elements, expected 5"));
  CHECK_THROWS_WITH(c.scatter(first, last, 0), Contains("scatter: " + in_place));
  CHECK_THROWS_WITH(c.scatter_v(x, counts{4}, y, 0), Contains("scatter_v: out has 5 elements, expected 4"));
  CHECK_THROWS_WITH(c.scatter_v(first, counts{4}, last, 0), Contains("scatter_v: " + in_place));
  CHECK_THROWS_WITH(c.send(x, 1), Contains("send to rank 1, which is not one of 1 ranks"));
  CHECK_THROWS_WITH(c.recv(x, -1), Contains("recv from rank -1, which is not one of 1 ranks"));
  CHECK_THROWS_WITH(c.isend(x, 1).wait(), Contains("send to rank 1, which is not one of 1 ranks"));
  CHECK_THROWS_WITH(c.irecv(x, -1).wait(), Contains("recv from rank -1, which is not one of 1 ranks"));
  CHECK_THROWS_WITH(c.start_all_reduce(first, last, sum).wait(), Contains("start_all_reduce: " + in_place));
  CHECK_THROWS_WITH(c.start_all_gather(x, y).wait(), Contains("start_all_gather: out has 5 elements, expected 4"));
  CHECK_THROWS_WITH(c.start_reduce_scatter(x, y, sum).wait(), Contains("start_reduce_scatter: in has 4"));
}

}  // namespace comm_test
