// Collectives with an algorithm as template argument: their calls, operators with state, plans, errors, and what they cost
// beside a loop written by hand.
#include <heddle/collective/collectives.hpp>

#include <cstdlib>
#include <new>

#include "comm/support.hpp"

using namespace comm_test;
using hd::comm_operation;
using hd::algo::ring;

// Counts what each thread allocates outside of the transport, which keeps queues that grow as messages happen to meet.
namespace {
thread_local std::int64_t allocations = 0;
struct in_transport {
  std::int64_t before = allocations;
  in_transport() = default;
  in_transport(const in_transport&) = delete;
  ~in_transport() { allocations = before; }
};
}  // namespace
// Sanitizers bring their own operators, all of them or none: with them nothing is counted.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEDDLE_TEST_COUNTS_NOTHING
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEDDLE_TEST_COUNTS_NOTHING
#endif
#if defined(__CUDACC__) && !defined(HEDDLE_TEST_COUNTS_NOTHING)
#define HEDDLE_TEST_COUNTS_NOTHING  // operators would be for the device as well, which cannot throw
#endif
#if !defined(HEDDLE_TEST_COUNTS_NOTHING)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes != 0 ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t a) {
  ++allocations;
  const auto alignment = static_cast<std::size_t>(a);
  if (void* p = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
#endif

namespace {

using own_communicator = transport_test::transport::communicator;

// A communicator that counts the calls of each kind.
class counted : public own_communicator {
 public:
  using base = own_communicator;
  explicit counted(base&& c) : base(std::move(c)) {}
  std::int64_t started = 0, blocking = 0;

  class request {
   public:
    request(base::request&& r) : r_(std::move(r)) {}
    void wait() {
      const in_transport uncounted;
      r_.wait();
    }
    bool test() {
      const in_transport uncounted;
      return r_.test();
    }

   private:
    base::request r_;
  };

  template <class In>
  request isend(In&& in, int to, int tag = 0) {
    ++started;
    const in_transport uncounted;
    return base::isend(in, to, tag);
  }
  template <class Out>
  request irecv(Out&& out, int from, int tag = 0) {
    ++started;
    const in_transport uncounted;
    return base::irecv(out, from, tag);
  }
  template <class In>
  void send(In&& in, int to, int tag = 0) {
    ++blocking;
    const in_transport uncounted;
    base::send(in, to, tag);
  }
  template <class Out>
  void recv(Out&& out, int from, int tag = 0) {
    ++blocking;
    const in_transport uncounted;
    base::recv(out, from, tag);
  }
  counted split(int color, int key) { return counted(base::split(color, key)); }
};
static_assert(hd::communicator<counted>);

// A communicator that keeps plans.
class planning : public own_communicator {
 public:
  explicit planning(own_communicator&& c) : own_communicator(std::move(c)) {}
  hd::collective_plans& plans() { return plans_; }
  planning split(int color, int key) { return planning(own_communicator::split(color, key)); }

 private:
  hd::collective_plans plans_;
};

// A communicator whose own collectives have no advantage.
class plain : public own_communicator {
 public:
  static constexpr bool collectives_in_place = false;
  explicit plain(own_communicator&& c) : own_communicator(std::move(c)) {}
  plain split(int color, int key) { return plain(own_communicator::split(color, key)); }
};

// Neither associative nor with an identity: the shape of the fold shows.
struct nest {
  static constexpr bool associative = false;
  double operator()(double a, double b) const { return a + 0.5 * b; }
};
// The fold of [begin, begin + width) in the aligned binary tree over p ranks.
double nested(int begin, int width, int p) {
  if (width == 1) return begin + 1.0;
  const int half = width / 2;
  return begin + half < p ? nest{}(nested(begin, half, p), nested(begin + half, half, p)) : nested(begin, half, p);
}

// Folds vectors, not elements: cyclic convolution.
struct convolution {
  static constexpr bool commutative = true;
  static constexpr bool elementwise = false;
  void operator()(std::span<const int> a, std::span<const int> b, std::span<int> result) const {
    const std::size_t n = a.size();
    for (std::size_t i = 0; i < n; ++i) {
      result[i] = 0;
      for (std::size_t j = 0; j < n; ++j) result[i] = (result[i] + a[j] * b[(i + n - j) % n]) % 10'007;
    }
  }
};

// Works on elements as well, but then means something else.
struct either_way : convolution {
  using convolution::operator();
  template <class T>
  static constexpr T identity() {
    return T{};
  }
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a + b;
  }
};

// Sums modulo a number that is known at run time.
struct modular {
  static constexpr bool commutative = true;
  int modulus;
  int operator()(int a, int b) const { return (a + b) % modulus; }
};

// What a program costs beside its messages.
struct totals {
  std::int64_t copied = 0, scratch = 0;
  friend bool operator==(const totals&, const totals&) = default;
};

// The ring on four ranks only; for errors.
struct only_four {
  static constexpr std::string_view name = "only_four";
  template <comm_operation What>
  static constexpr hd::fold_order order = ring::order<What>;
  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return ranks == 4 && ring::offers<What>(ranks);
  }
  template <comm_operation What>
  static constexpr hd::round_table rounds(int ranks, int root) {
    return ring::rounds<What>(ranks, root);
  }
};

}  // namespace

TEST_CASE("calls with an algorithm give what the communicator's own give", "[comm][rounds]") {
  for (const int p : rank_counts(6)) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      const auto ranks = static_cast<std::size_t>(p), mine = static_cast<std::size_t>(r);
      const auto x = buffer<int>(r, 6 * p);
      std::vector<int> y(x.size()), z(x.size());

      c.all_reduce(x, y, hd::plus{});
      hd::all_reduce<ring>(c, x, z, hd::plus{});
      found.expect(r, y == z, "all_reduce");
      z = x;
      hd::all_reduce<ring>(c, z, hd::plus{});
      found.expect(r, y == z, "all_reduce in place");
      z = x;
      hd::all_reduce(c, z, hd::plus{});
      found.expect(r, y == z, "all_reduce without an algorithm");

      std::vector<int> u(6), v(6);
      c.reduce_scatter(x, u, hd::maximum{});
      hd::reduce_scatter<ring>(c, x, v, hd::maximum{});
      found.expect(r, u == v, "reduce_scatter");

      std::vector<std::int64_t> counts(ranks);
      for (std::size_t q = 0; q < ranks; ++q) counts[q] = static_cast<std::int64_t>(q * 2 % 5);
      const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      const auto head = part(x, 0, total);
      u.resize(static_cast<std::size_t>(counts[mine]));
      v.resize(u.size());
      c.reduce_scatter_v(head, u, counts, hd::plus{});
      hd::reduce_scatter_v<ring>(c, head, v, counts, hd::plus{});
      found.expect(r, u == v, "reduce_scatter_v");
      auto w = head;
      std::int64_t own = 0;
      for (int q = 0; q < r; ++q) own += counts[static_cast<std::size_t>(q)];
      hd::reduce_scatter_v<ring>(c, std::span<const int>(w),
                                 std::span(w).subspan(static_cast<std::size_t>(own), u.size()), counts, hd::plus{});
      found.expect(r, part(w, own, counts[mine]) == u, "reduce_scatter_v in place");

      y.resize(static_cast<std::size_t>(total));
      z.assign(y.size(), -1);
      c.all_gather_v(u, y, counts);
      hd::all_gather_v<ring>(c, u, z, counts);
      found.expect(r, y == z, "all_gather_v");
      y.resize(ranks);
      z.assign(ranks, -1);
      c.all_gather(std::span(&r, 1), y);
      hd::all_gather<ring>(c, std::span(&r, 1), z);
      found.expect(r, y == z, "all_gather");
    });
    found.report();
  }
}

TEST_CASE("operators may hold state, and lambdas are operators", "[comm][rounds]") {
  for (const int p : rank_counts({2, 3})) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const std::vector<int> expected(7, p == 2 ? 1 : 8);
      std::vector<int> x(7, 5 + c.rank()), y = x;
      hd::all_reduce<ring>(c, x, modular{10});
      found.expect(c.rank(), x == expected, "modular sum");
      const int modulus = 10;
      hd::all_reduce<hd::algo::recursive_doubling>(c, y, [=](int a, int b) { return (a + b) % modulus; });
      found.expect(c.rank(), y == expected, "modular sum by a lambda");
    });
    found.report();
  }
}

TEST_CASE("a number of ranks without rounds is an error that names the algorithms with them",
          "[comm][rounds][threads]") {
  const ending end = run_to_the_end(3, options_ms(5'000), [](auto& world) {
    std::vector<int> x(4);
    hd::all_reduce<only_four>(world.all(), x, hd::plus{});
  });
  const ending exactly = run_to_the_end(3, options_ms(5'000), [](auto& world) {
    std::vector<int> x(4);
    hd::all_reduce<hd::algo::for_ranks<ring, 4>>(world.all(), x, hd::plus{});
  });
  CHECK(contains(exactly.thrown,
                 "algo::for_ranks<ring, 4> has no rounds for this number of ranks; these have: algo::ring"));
  for (const std::string& rank : end.ranks) {
    CHECK(contains(rank,
                   "comm: heddle: all_reduce on 3 ranks: algo::only_four has no rounds for this number of ranks; "
                   "these have: "));
    CHECK(contains(rank, "algo::ring"));
  }
}

TEST_CASE("arguments that do not fit are errors", "[comm][rounds]") {
  launch(line{1}, options_ms(5'000), [](auto& world) {
    auto& c = world.all();
    std::vector<int> x(4), y(3);
    const std::vector<std::int64_t> two{1, 2};
    CHECK_THROWS_AS(hd::all_reduce<ring>(c, x, y, hd::plus{}), hd::comm_error);
    CHECK_THROWS_AS(hd::all_gather<ring>(c, x, y), hd::comm_error);
    CHECK_THROWS_AS(hd::all_gather_v<ring>(c, x, y, two), hd::comm_error);
    CHECK_THROWS_AS(hd::reduce_scatter<ring>(c, x, y, hd::plus{}), hd::comm_error);
    CHECK_THROWS_AS(hd::all_reduce<ring>(c, std::span(x).first(3), std::span(x).last(3), hd::plus{}), hd::comm_error);
    CHECK_THROWS_WITH(hd::all_reduce<ring>(c, x, y, hd::plus{}),
                      Catch::Matchers::Contains("out has 3 elements, expected 4"));
  });
}

TEST_CASE("a variable is reduced, and counts that add up to too much are refused", "[comm][rounds]") {
  for (const int p : rank_counts({2, 3})) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      double most = 0.5 * c.rank();
      hd::all_reduce(c, most, hd::maximum{});
      std::int64_t sum = c.rank();
      hd::all_reduce<hd::algo::recursive_doubling>(c, sum, hd::plus{});
      found.expect(c.rank(), most == 0.5 * (p - 1) && sum == p * (p - 1) / 2, "a variable");
      std::vector<char> x, y;
      std::vector<std::int64_t> much(static_cast<std::size_t>(p), 0);
      much[0] = much[1] = std::int64_t{1} << 62;
      std::string text;
      try {
        hd::all_gather_v<ring>(c, x, y, much);
      } catch (const hd::comm_error& e) {
        text = e.what();
      }
      found.expect(c.rank(), text.find("all_gather_v: the counts add up to more than") != text.npos, text);
      c.barrier();
    });
    found.report();
  }
}

TEST_CASE("a round table that sends what a rank does not hold is an error", "[comm][rounds]") {
  hd::round_builder rounds(comm_operation::broadcast, 2, 0, 1, 1);
  rounds.send(0, 1, 0).block(0);
  const hd::round_table table = rounds.take();
  CHECK_THROWS_WITH(hd::round_program(table, 1, false),
                    Catch::Matchers::Contains("sends item 0 from rank 1, which does not hold it in round 0"));
}

TEST_CASE("plans are made once, kept by the caller or by the communicator", "[comm][rounds]") {
  if (most_ranks() < 4) return;
  notes found(4);
  launch(line{4}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const int r = c.rank();
    hd::collective_plans plans;
    std::vector<int> x(10, r), y(10);
    for (int i = 0; i < 3; ++i) hd::all_reduce<ring>(c, x, y, hd::plus{}, plans);
    found.expect(r, plans.programs() == 1 && y == std::vector<int>(10, 6), "one program");
    for (std::size_t n = 0; n < 10; ++n) hd::all_reduce<ring>(c, std::span(x).first(n), hd::plus{}, plans);
    found.expect(r, plans.programs() == 2, "one more in place, for all sizes");
    plans.clear();
    found.expect(r, plans.programs() == 0, "cleared");

    planning keeps(c.split(0, 0));
    x.assign(10, r);
    hd::all_reduce<ring>(keeps, x, y, hd::plus{});
    hd::all_reduce<ring>(keeps, x, y, hd::plus{});
    found.expect(r, keeps.plans().programs() == 1 && y == std::vector<int>(10, 6), "kept by the communicator");
    hd::all_reduce<hd::algo::for_ranks<ring, 4>>(c, x, y, hd::plus{});
    found.expect(r, y == std::vector<int>(10, 6), "rounds in read-only data");
  });
  found.report();
}

TEST_CASE("a ring from its table calls and allocates what a loop written by hand does", "[comm][rounds]") {
  for (const int p : rank_counts({2, 3, 5})) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      counted c(world.all().split(0, 0));
      const int r = c.rank(), next = (r + 1) % p, previous = (r + p - 1) % p;
      const std::size_t n = 240, each = n / static_cast<std::size_t>(p);  // p divides 240
      std::vector<float> x(n, 1.0f), y(n, 1.0f), scratch(each);
      const auto chunk = [&](int k) {
        return std::span(y).subspan(static_cast<std::size_t>((k + 2 * p) % p) * each, each);
      };
      const auto by_hand = [&] {
        for (int k = 0; k < p - 1; ++k) {
          auto in = c.irecv(std::span(scratch), previous, 1);
          auto out = c.isend(chunk(r - k - 1), next, 1);
          in.wait();
          const auto own = chunk(r - k - 2);
          for (std::size_t i = 0; i < each; ++i) own[i] = scratch[i] + own[i];
          out.wait();
        }
        for (int k = 0; k < p - 1; ++k) {
          auto in = c.irecv(chunk(r - k - 1), previous, 1);
          c.send(chunk(r - k), next, 1);
          in.wait();
        }
      };
      hd::collective_plans plans;
      const auto by_table = [&] { hd::all_reduce<ring>(c, x, hd::plus{}, plans); };
      const auto cost = [&](const auto& work) {
        work();  // makes plans
        c.barrier();
        const std::int64_t before[] = {c.started, c.blocking, allocations};
        work();
        return std::array<std::int64_t, 3>{c.started - before[0], c.blocking - before[1], allocations - before[2]};
      };
      const auto hand = cost(by_hand), table = cost(by_table);
      found.expect(r, x == y, "the values");
      found.expect(r, hand[0] == table[0] && hand[1] == table[1],
                   "calls: " + std::to_string(table[0]) + "+" + std::to_string(table[1]) + " by table, " +
                       std::to_string(hand[0]) + "+" + std::to_string(hand[1]) + " by hand");
      found.expect(r, table[2] == 0 && hand[2] == 0,
                   "allocations: " + std::to_string(table[2]) + " by table, " + std::to_string(hand[2]) + " by hand");
    });
    found.report();
  }
}

TEST_CASE("programs copy and keep no more than they must", "[comm][rounds]") {
  const auto of = [](hd::round_view view, int rank, bool in_place, const hd::block_sizes& sizes) {
    const hd::bound_rounds bound = hd::round_program(view, rank, in_place).bind(sizes);
    totals t{0, bound.scratch};
    for (const hd::round_step& s : bound.steps)
      if (s.what == hd::round_action::copy) t.copied += s.count;
    return t;
  };
  using enum comm_operation;
  for (int r = 0; r < 8; ++r) {
    INFO("rank " << r);
    // In place only the chunk that arrives is kept; out of place partial sums are in the output as well.
    CHECK(of(ring::rounds<all_reduce>(8, 0), r, true, hd::block_sizes::vector(800)) == totals{0, 100});
    CHECK(of(ring::rounds<all_reduce>(8, 0), r, false, hd::block_sizes::vector(800)) == totals{0, 100});
    // One chunk arrives while the one before leaves; the input is not touched.
    CHECK(of(ring::rounds<reduce_scatter>(8, 0), r, false, hd::block_sizes::equal(100)) == totals{0, 200});
    CHECK(of(ring::rounds<all_gather>(8, 0), r, false, hd::block_sizes::equal(100)) == totals{100, 0});
    CHECK(of(hd::algo::recursive_doubling::rounds<all_reduce>(8, 0), r, false, hd::block_sizes::vector(800)) ==
          totals{0, 800});
    // Blocks that pass through a rank arrive where they leave: only its own is copied.
    const bool leaf = r % 2 == 1;
    CHECK(of(hd::algo::binomial::rounds<gather>(8, 0), r, false, hd::block_sizes::equal(100)).copied ==
          (leaf ? 0 : 100));
    CHECK(of(hd::algo::binomial::rounds<broadcast>(8, 3), r, true, hd::block_sizes::vector(800)) == totals{0, 0});
    CHECK(of(hd::algo::binomial::rounds<scatter>(8, 0), r, false, hd::block_sizes::equal(100)).copied ==
          (leaf ? 0 : 100));
  }
}

TEST_CASE("without an algorithm one is chosen that keeps what the operator needs", "[comm][rounds]") {
  for (const int p : rank_counts({1, 3, 4, 6, 9})) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& own = world.all();
      plain c(own.split(0, 0));
      const int r = c.rank();
      hd::collective_plans plans;
      for (const std::int64_t n : {1, 20'000}) {
        const std::string at = " n=" + std::to_string(n);
        const auto x = buffer<int>(r, n);
        std::vector<int> y(x.size()), z(x.size());
        own.all_reduce(x, y, hd::plus{});
        hd::all_reduce(c, x, z, hd::plus{}, plans);
        found.expect(r, y == z, "sum" + at);
        own.all_reduce(x, y, right{});
        hd::all_reduce(c, x, z, right{}, plans);
        found.expect(r, y == z, "the last rank's" + at);
        z = x;
        own.broadcast(y, p / 2);
        hd::broadcast(c, z, p / 2, plans);
        found.expect(r, p < 2 || z == buffer<int>(p / 2, n), "broadcast" + at);

        const auto b = buffer<int>(r, n / 10 * p);
        std::vector<int> u(static_cast<std::size_t>(n / 10)), v(u.size()), g(b.size()), h(b.size());
        own.reduce_scatter(b, u, right{});
        hd::reduce_scatter(c, b, v, right{}, plans);
        found.expect(r, u == v, "reduce_scatter" + at);
        own.all_to_all(b, g);
        hd::all_to_all(c, b, h, plans);
        found.expect(r, g == h, "all_to_all" + at);
        own.all_gather(u, g);
        hd::all_gather(c, v, h, plans);
        found.expect(r, g == h, "all_gather" + at);
        hd::scan(c, x, z, hd::plus{}, plans);
        for (std::size_t i = 0; i < z.size(); i += 7) {
          int sum = 0;
          for (int q = 0; q <= r; ++q) sum += value<int>(q, static_cast<std::int64_t>(i));
          if (sum != z[i]) found.expect(r, false, "scan" + at);
        }
      }
      const double mine = r + 1.0;
      double all = 0;
      hd::all_reduce(c, std::span(&mine, 1), std::span(&all, 1), nest{}, plans);
      int width = 1;
      while (width < p) width *= 2;
      found.expect(r, all == nested(0, width, p), "an operator that is not associative");

      std::vector<int> x{r + 1, 2, 3, r}, expected{1, 2, 3, 0}, next(4);
      for (int q = 1; q < p; ++q) {
        convolution{}(expected, std::vector<int>{q + 1, 2, 3, q}, next);
        expected = next;
      }
      std::vector<int> again = x, on_own = x;
      hd::all_reduce(c, x, convolution{}, plans);
      found.expect(r, x == expected, "an operator on vectors");
      hd::all_reduce(c, again, either_way{}, plans);
      found.expect(r, again == expected, "an operator on vectors, which could be called on elements too");
      hd::all_reduce(own, on_own, either_way{}, plans);
      found.expect(r, on_own == expected, "the same on a communicator whose own call is preferred");
    });
    found.report();
  }
}

TEST_CASE("decisions that plans hold choose, the communicator's own call too", "[comm][rounds]") {
  if (most_ranks() < 4) return;
  notes found(4);
  launch(line{4}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const int r = c.rank();
    hd::collective_plans plans;
    std::vector<int> x(10, 1);
    hd::all_reduce(c, x, hd::plus{}, plans);
    const std::size_t before = plans.programs();
    found.expect(r, (before == 0) == on_threads, "threads take their own call");
    hd::measured_decisions decisions;
    decisions.add({comm_operation::all_reduce, 4, true, 0, hd::algorithm_name::built_in});
    decisions.add({comm_operation::all_reduce, 4, true, 100, hd::algorithm_name::ring});
    plans.decide_by(decisions);
    hd::all_reduce(c, x, hd::plus{}, plans);
    found.expect(r, plans.programs() == before && x == std::vector<int>(10, 16), "the own call below 100 bytes");
    x.assign(30, 1);
    hd::all_reduce(c, x, hd::plus{}, plans);
    found.expect(r, plans.programs() == before + 1 && x == std::vector<int>(30, 4), "the ring from there on");
    // What they do not know is done as if there were none.
    std::vector<int> all(4);
    hd::all_gather(c, std::span(&r, 1), all, plans);
    auto pair = c.split(r / 2, r);
    hd::all_reduce(pair, x, hd::plus{}, plans);
    found.expect(r, (plans.programs() == before + 1) == on_threads,
                 "collectives and numbers of ranks that none is for");
    found.expect(r, all == std::vector<int>{0, 1, 2, 3} && x == std::vector<int>(30, 8), "their results");
    plans.decide_by(hd::measured_decisions(hd::decision_table{}));
    hd::all_gather(c, std::span(&r, 1), all, plans);
    found.expect(r, plans.programs() > before + 1, "thresholds of one's own are asked");
  });
  found.report();
}

TEST_CASE("blocks of any lengths go from all to all by every algorithm", "[comm][rounds]") {
  for (const int p : rank_counts(9)) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      // Rank a sends (a + 2 b) % 5 elements to rank b; element k is value(a, 1000 b + k).
      std::vector<std::int64_t> sent, received;
      std::vector<int> in, expected;
      for (int q = 0; q < p; ++q) {
        sent.push_back((r + 2 * q) % 5);
        received.push_back((q + 2 * r) % 5);
        for (int k = 0; k < sent.back(); ++k) in.push_back(value<int>(r, 1000 * q + k));
        for (int k = 0; k < received.back(); ++k) expected.push_back(value<int>(q, 1000 * r + k));
      }
      const auto check = [&]<class A>(hd::type_list<A>) {
        if constexpr (hd::detail::offers_anywhere<A, comm_operation::all_to_all>()) {
          if (!A::template offers<comm_operation::all_to_all>(p)) return;
          std::vector<int> out(expected.size(), -1);
          hd::all_to_all_v<A>(c, in, sent, out, received);
          found.expect(r, out == expected, std::string(std::string_view(A::name)));
        }
      };
      [&]<class... As>(hd::type_list<As...>) { (check(hd::type_list<As>{}), ...); }(hd::known_algorithms{});
    });
    found.report();
  }
}

TEST_CASE("collectives compose: one by rounds after another by other rounds", "[comm][rounds][law]") {
  using namespace hd::algo;
  for (const int p : rank_counts({1, 2, 4, 8})) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank(), root = p / 2;
      const std::int64_t n = 3;
      const auto x = buffer<int>(r, n * p);
      std::vector<int> block(static_cast<std::size_t>(n)), y(x.size()), z(x.size());

      hd::reduce_scatter<recursive_halving>(c, x, block, hd::plus{});
      hd::all_gather<ring>(c, block, y);
      hd::all_reduce<recursive_doubling>(c, x, z, hd::plus{});
      found.expect(r, y == z, "all_gather of reduce_scatter is all_reduce");
      hd::reduce<binomial>(c, x, y, hd::plus{}, root);
      hd::broadcast<double_tree<>>(c, y, root);
      found.expect(r, y == z, "broadcast of reduce is all_reduce");

      hd::scatter<binomial>(c, x, block, root);
      hd::all_gather<bruck>(c, block, y);
      z = x;
      hd::broadcast<binomial>(c, z, root);
      found.expect(r, y == z, "all_gather of scatter is broadcast");
      hd::gather<binomial>(c, block, z, root);
      found.expect(r, r != root || z == x, "gather of scatter is what the root had");

      hd::all_to_all<bruck>(c, x, y);
      hd::all_to_all<pairwise>(c, y, z);
      found.expect(r, z == x, "all_to_all twice is nothing");

      hd::scan<dissemination>(c, x, y, hd::plus{});
      hd::exclusive_scan<dissemination>(c, x, z, hd::plus{});
      bool same = true;
      for (std::size_t i = 0; i < x.size(); ++i) same = same && y[i] == z[i] + x[i];
      found.expect(r, same, "scan is exclusive_scan and one's own");

      // A permutation of the ranks changes no sum.
      auto moved = c.split(0, (r * 5 + 3) % 8);
      hd::all_reduce<rabenseifner>(moved, x, y, hd::plus{});
      hd::all_reduce<ring>(c, x, z, hd::plus{});
      found.expect(r, y == z, "a sum over permuted ranks");
    });
    found.report();
  }
}
