// The nccl transport over the stand-in for NCCL and CUDA: no GPU takes part.
#include <heddle/comm/threads.hpp>
#include <heddle/comm/transport_by_network.hpp>
#include <heddle/nccl/cccl.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/nccl/windows.hpp>
#include <heddle/tensor/cuda/graph.hpp>

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "double.hpp"

namespace {

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using line = hd::mesh<hd::axis<dp>>;
using std::int64_t;

hd::launch_options options_ms(int timeout_ms) {
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

// Ranks note what is wrong; the main thread reports it.
struct notes {
  std::mutex mutex;
  std::vector<std::string> texts;
  void expect(int rank, bool ok, const std::string& what) {
    const std::lock_guard lock(mutex);
    if (!ok && texts.size() < 8) texts.push_back("rank " + std::to_string(rank) + ": " + what);
  }
  ~notes() {
    for (const auto& text : texts) {
      INFO(text);
      CHECK(false);
    }
  }
};

// Everything is given back, whatever happened.
struct clean {
  clean() { nccl_double::reset(); }
  ~clean() {
    CHECK(nccl_double::open_communicators() == 0);
    CHECK(nccl_double::open_resources() == 0);
    nccl_double::reset();
  }
};

// Runs the body on p ranks, gives the text of what launch threw.
template <class Transport = hd::nccl_complete, class Body>
std::string on_ranks(int p, const hd::launch_options& options, Body body) {
  try {
    hd::launch<Transport>(line{p}, options, body);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct point {
  float x, y;
  std::int32_t id;
  friend bool operator==(const point&, const point&) = default;
};

// Small whole numbers: every type folds them exactly, in any order.
template <class T>
T value(int rank, int64_t i) {
  if constexpr (std::is_same_v<T, point>)
    return {static_cast<float>(rank), static_cast<float>(i), static_cast<std::int32_t>(rank * 1000 + i)};
  else
    return static_cast<T>(static_cast<float>((rank + static_cast<int>(i)) % 2 + (rank == i ? 1 : 0)));
}
template <class T>
std::vector<T> buffer(int rank, int64_t n) {
  std::vector<T> x(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = value<T>(rank, i);
  return x;
}
template <class T>
bool same(const std::vector<T>& x, const std::vector<T>& y) {
  if constexpr (std::is_same_v<T, point>) {
    return x == y;
  } else {
    if (x.size() != y.size()) return false;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (static_cast<float>(x[i]) != static_cast<float>(y[i])) return false;
    return true;
  }
}
template <class T, class Op>
std::vector<T> folded(int p, int64_t n, int64_t first, Op) {
  std::vector<T> x(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    float sum = static_cast<float>(value<T>(0, first + i));
    for (int r = 1; r < p; ++r) sum = Op{}(sum, static_cast<float>(value<T>(r, first + i)));
    x[static_cast<std::size_t>(i)] = static_cast<T>(sum);
  }
  return x;
}

template <class T, class Op>
void reductions(auto& c, int64_t n, Op op, notes& notes) {
  const int p = c.size(), r = c.rank();
  const std::string at = " p=" + std::to_string(p) + " n=" + std::to_string(n) + " " + std::string(hd::type_name<T>());
  const auto head = folded<T>(p, n, 0, op);
  auto x = buffer<T>(r, n);
  std::vector<T> y(x.size());
  c.all_reduce(std::span<const T>(x), y, op);
  c.wait();
  notes.expect(r, same(y, head), "all_reduce" + at);
  c.all_reduce(x, op);
  c.wait();
  notes.expect(r, same(x, head), "all_reduce in place" + at);
  const int root = static_cast<int>(n) % p;
  x = buffer<T>(r, n);
  y.assign(r == root ? x.size() : 0, T{});
  c.reduce(x, y, op, root);
  c.wait();
  if (r == root) notes.expect(r, same(y, head), "reduce" + at);
  x = buffer<T>(r, n * p);
  y.assign(static_cast<std::size_t>(n), T{});
  c.reduce_scatter(x, y, op);
  c.wait();
  notes.expect(r, same(y, folded<T>(p, n, r * n, op)), "reduce_scatter" + at);
  c.reduce_scatter(std::span<const T>(x),
                   std::span(x).subspan(static_cast<std::size_t>(r * n), static_cast<std::size_t>(n)), op);
  c.wait();
  notes.expect(r, same({x.begin() + r * n, x.begin() + r * n + n}, y), "reduce_scatter in place" + at);
  std::vector<int64_t> counts;
  int64_t offset = 0, total = 0;
  for (int q = 0; q < p; ++q) {
    counts.push_back((std::max)(int64_t{0}, n + q - 1));
    if (q < r) offset += counts.back();
    total += counts.back();
  }
  x = buffer<T>(r, total);
  y.assign(static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]), T{});
  c.reduce_scatter_v(x, y, counts, op);
  c.wait();
  notes.expect(r, same(y, folded<T>(p, static_cast<int64_t>(y.size()), offset, op)), "reduce_scatter_v" + at);
  x = buffer<T>(r, n * p);
  y.assign(static_cast<std::size_t>(n), T{});
  c.reduce_scatter_v(x, y, std::vector<int64_t>(static_cast<std::size_t>(p), n), op);
  c.wait();
  notes.expect(r, same(y, folded<T>(p, n, r * n, op)), "reduce_scatter_v of equal blocks" + at);
}

template <class T>
void moves(auto& c, int64_t n, notes& notes) {
  const int p = c.size(), r = c.rank(), root = static_cast<int>(n + 1) % p;
  const auto own = static_cast<std::size_t>(r);
  const std::string at = " p=" + std::to_string(p) + " n=" + std::to_string(n) + " " + std::string(hd::type_name<T>());
  std::vector<T> all, mine = buffer<T>(r, n);
  for (int q = 0; q < p; ++q)
    for (int64_t i = 0; i < n; ++i) all.push_back(value<T>(q, i));

  auto x = buffer<T>(r, n);
  c.broadcast(x, root);
  c.wait();
  notes.expect(r, same(x, buffer<T>(root, n)), "broadcast" + at);
  std::vector<T> y(all.size());
  c.all_gather(mine, y);
  c.wait();
  notes.expect(r, same(y, all), "all_gather" + at);
  y.assign(all.size(), T{});
  std::copy(mine.begin(), mine.end(), y.begin() + r * n);
  c.all_gather(std::span(y).subspan(own * static_cast<std::size_t>(n), static_cast<std::size_t>(n)), y);
  c.wait();
  notes.expect(r, same(y, all), "all_gather in place" + at);
  y.assign(r == root ? all.size() : 0, T{});
  c.gather(mine, y, root);
  c.wait();
  if (r == root) notes.expect(r, same(y, all), "gather" + at);
  if (r == root) std::copy(mine.begin(), mine.end(), y.begin() + r * n);
  if (r == root)
    c.gather(std::span(y).subspan(own * static_cast<std::size_t>(n), static_cast<std::size_t>(n)), y, root);
  else
    c.gather(mine, y, root);
  c.wait();
  if (r == root) notes.expect(r, same(y, all), "gather in place" + at);
  y.assign(mine.size(), T{});
  const std::vector<T> none;  // buffers must outlive the stream's use of them
  c.scatter(r == root ? std::span(std::as_const(all)) : std::span(none), y, root);
  c.wait();
  notes.expect(r, same(y, mine), "scatter" + at);

  // Rank s sends rank d the elements d * n ... of its buffer.
  x = buffer<T>(r, n * p);
  y.assign(x.size(), T{});
  c.all_to_all(x, y);
  c.wait();
  std::vector<T> expected;
  for (int s = 0; s < p; ++s)
    for (int64_t i = 0; i < n; ++i) expected.push_back(value<T>(s, r * n + i));
  notes.expect(r, same(y, expected), "all_to_all" + at);

  // Uneven: s sends d (s + d) % 3 + n - 1 elements, at least none.
  const auto count = [&](int s, int d) { return (std::max)(int64_t{0}, (s + d) % 3 + n - 1); };
  std::vector<int64_t> sends, recvs, counts;
  int64_t sent = 0;
  expected.clear();
  std::vector<T> gathered;
  for (int q = 0; q < p; ++q) {
    sends.push_back(count(r, q));
    recvs.push_back(count(q, r));
    counts.push_back(count(q, q));
    sent += sends.back();
    int64_t before = 0;
    for (int d = 0; d < r; ++d) before += count(q, d);
    for (int64_t i = 0; i < recvs.back(); ++i) expected.push_back(value<T>(q, before + i));
    for (int64_t i = 0; i < counts.back(); ++i) gathered.push_back(value<T>(q, i));
  }
  x = buffer<T>(r, sent);
  y.assign(expected.size(), T{});
  c.all_to_all_v(x, sends, y, recvs);
  c.wait();
  notes.expect(r, same(y, expected), "all_to_all_v" + at);
  x = buffer<T>(r, counts[own]);
  y.assign(gathered.size(), T{});
  c.all_gather_v(x, y, counts);
  c.wait();
  notes.expect(r, same(y, gathered), "all_gather_v" + at);
  std::vector<T> equal(all.size());
  c.all_gather_v(mine, equal, std::vector<int64_t>(static_cast<std::size_t>(p), n));
  c.wait();
  notes.expect(r, same(equal, all), "all_gather_v of equal blocks" + at);
  y.assign(r == root ? gathered.size() : 0, T{});
  c.gather_v(x, y, counts, root);
  c.wait();
  if (r == root) notes.expect(r, same(y, gathered), "gather_v" + at);
  y.assign(x.size(), T{});
  c.scatter_v(r == root ? std::span(std::as_const(gathered)) : std::span(none), counts, y, root);
  c.wait();
  notes.expect(r, same(y, x), "scatter_v" + at);
}

}  // namespace

TEMPLATE_TEST_CASE("collectives over the stand-in equal their definitions", "[nccl]", hd::nccl, hd::nccl_complete) {
  const clean clean;
  notes notes;
  for (int p = 1; p <= 8; ++p) {
    const std::string error = on_ranks<TestType>(p, options_ms(60'000), [&](auto& world) {
      auto& c = world.all();
      for (const int64_t n : {0, 1, p, 7}) {
        reductions<std::int32_t>(c, n, hd::plus{}, notes);
        reductions<float>(c, n, hd::maximum{}, notes);
        moves<double>(c, n, notes);
        moves<point>(c, n, notes);
      }
      c.barrier();
    });
    CHECK(error == "");
  }
}

TEMPLATE_TEST_CASE("collectives that are started over the stand-in equal their definitions", "[nccl][started]",
                   hd::nccl, hd::nccl_complete) {
  const clean clean;
  static_assert(hd::starting_communicator<hd::nccl_communicator>);
  for (const int p : {1, 2, 3}) {
    notes notes;
    const std::string thrown = on_ranks<TestType>(p, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      const auto own = static_cast<std::size_t>(r);
      for (const int64_t n : {1, 5}) {
        const auto size = static_cast<std::size_t>(n);
        std::vector<int64_t> counts;
        int64_t total = 0, offset = 0;
        for (int q = 0; q < p; ++q) {
          if (q < r) offset += n + q;
          counts.push_back(n + q);
          total += n + q;
        }
        const auto x = buffer<float>(r, n), wide = buffer<float>(r, n * p), uneven = buffer<float>(r, total);
        const auto mine = buffer<float>(r, counts[own]);
        auto in_place = x, told = x;
        std::vector<float> sum(size), block(size), blocks(size * static_cast<std::size_t>(p)), some(mine.size()),
            pieces(static_cast<std::size_t>(total));
        auto a = c.start_all_reduce(x, sum, hd::plus{});
        auto b = c.start_all_reduce(in_place, hd::maximum{});
        auto d = c.start_broadcast(told, p - 1);
        auto e = c.start_reduce_scatter(wide, block, hd::plus{});
        auto f = c.start_reduce_scatter_v(uneven, some, counts, hd::plus{});
        auto g = c.start_all_gather(x, blocks);
        auto h = c.start_all_gather_v(mine, pieces, counts);
        while (!h.test()) std::this_thread::yield();  // the stream has done all of them
        for (auto* request : {&a, &b, &d, &e, &f, &g, &h}) request->wait();
        notes.expect(r, same(sum, folded<float>(p, n, 0, hd::plus{})), "all_reduce");
        notes.expect(r, same(in_place, folded<float>(p, n, 0, hd::maximum{})), "all_reduce in place");
        notes.expect(r, same(told, buffer<float>(p - 1, n)), "broadcast");
        notes.expect(r, same(block, folded<float>(p, n, r * n, hd::plus{})), "reduce_scatter");
        notes.expect(r, same(some, folded<float>(p, counts[own], offset, hd::plus{})), "reduce_scatter_v");
        std::vector<float> all, some_of_all;
        for (int q = 0; q < p; ++q) {
          for (const float v : buffer<float>(q, n)) all.push_back(v);
          for (const float v : buffer<float>(q, n + q)) some_of_all.push_back(v);
        }
        notes.expect(r, same(blocks, all), "all_gather");
        notes.expect(r, same(pieces, some_of_all), "all_gather_v");
      }
    });
    CHECK(thrown == "");
  }
}

TEST_CASE("every element type and operator that NCCL knows is folded", "[nccl]") {
  const clean clean;
  notes notes;
  CHECK(on_ranks(3, options_ms(60'000), [&](auto& world) {
          auto& c = world.all();
          reductions<std::int8_t>(c, 5, hd::plus{}, notes);
          reductions<std::uint8_t>(c, 5, hd::multiplies{}, notes);
          reductions<std::uint32_t>(c, 5, hd::minimum{}, notes);
          reductions<long>(c, 5, hd::plus{}, notes);
          reductions<unsigned long long>(c, 5, hd::maximum{}, notes);
          reductions<double>(c, 5, hd::multiplies{}, notes);
          reductions<__half>(c, 5, hd::plus{}, notes);
          reductions<__nv_bfloat16>(c, 5, hd::plus{}, notes);
          reductions<hd::bf16>(c, 5, hd::plus{}, notes);
          reductions<hd::f16>(c, 5, hd::maximum{}, notes);
          reductions<__nv_fp8_e4m3>(c, 5, hd::maximum{}, notes);
          reductions<__nv_fp8_e5m2>(c, 5, hd::plus{}, notes);
          moves<__nv_bfloat16>(c, 5, notes);
          moves<hd::f16>(c, 5, notes);
          moves<char>(c, 5, notes);
        }) == "");
  STATIC_REQUIRE(hd::nccl_type<__nv_bfloat16> == ncclBfloat16);
  STATIC_REQUIRE(hd::nccl_type<hd::bf16> == ncclBfloat16);
  STATIC_REQUIRE(hd::nccl_type<hd::f16> == ncclFloat16);
  STATIC_REQUIRE(hd::nccl_type<__nv_fp8_e4m3> == ncclFloat8e4m3);
  STATIC_REQUIRE(hd::nccl_type<point> == ncclNumTypes);
  STATIC_REQUIRE(hd::nccl_type<bool> == ncclNumTypes);
  STATIC_REQUIRE(hd::detail::nccl_moved<point>(5).count == 60);
  STATIC_REQUIRE(hd::transport<hd::nccl>);
}

TEST_CASE("a collective is one call of NCCL, or one group", "[nccl]") {
  const clean clean;
  const int p = 4;
  CHECK(on_ranks<hd::nccl>(p, options_ms(60'000), [&](auto& world) {
          auto& c = world.all();
          std::vector<float> x(4), y(4), z(16);
          const std::vector<int64_t> counts(4, 1), uneven{0, 1, 2, 1};
          const auto own = std::span(x).first(static_cast<std::size_t>(uneven[static_cast<std::size_t>(c.rank())]));
          for (int i = 0; i < 3; ++i) c.all_reduce(x, hd::plus{});
          c.all_gather(x, z);
          c.all_to_all(x, y);
          c.reduce_scatter(z, x, hd::plus{});
          c.wait();
          c.reduce_scatter_v(y, std::span(x).first(1), counts, hd::plus{});
          c.all_gather_v(std::span(x).first(1), y, counts);
          c.reduce_scatter_v(y, own, uneven, hd::plus{});
          c.all_gather_v(own, y, uneven);
          c.gather(x, z, 1);
          c.wait();
          const auto seen = c.counters();
          if (seen[hd::comm_operation::all_reduce].calls != 3 || seen[hd::comm_operation::all_reduce].bytes != 48 ||
              seen[hd::comm_operation::reduce_scatter].bytes != 64 || seen.collectives() != 11)
            throw hd::error("counters");
        }) == "");
  auto calls = nccl_double::calls();
  CHECK(calls["ncclCommInitRankConfig"] == p);
  CHECK(calls["ncclAllReduce"] == 3 * p);
  CHECK(calls["ncclAllGather"] == 2 * p);  // one of them with counts, which are equal
  CHECK(calls["ncclAlltoAll"] == p);
  CHECK(calls["ncclReduceScatter"] == 2 * p);    // likewise
  CHECK(calls["ncclReduce"] == p * (p - 1));     // the block of each rank that has one, in one group
  CHECK(calls["ncclBroadcast"] == p * (p - 1));  // likewise
  CHECK(calls["ncclSend"] == p - 1);
  CHECK(calls["ncclRecv"] == p - 1);
  CHECK(calls["ncclGroupStart"] == 3 * p);
  CHECK(calls["ncclGroupEnd"] == 3 * p);
  CHECK(calls["ncclCommFinalize"] == p);
  CHECK(calls["ncclCommDestroy"] == p);
  CHECK(calls["ncclCommAbort"] == 0);
}

TEST_CASE("messages that are started together are launched as one group", "[nccl]") {
  const clean clean;
  notes notes;
  CHECK(on_ranks(5, options_ms(60'000), [&](auto& world) {
          auto& c = world.all();
          const int p = c.size(), r = c.rank();
          // Everybody sends before it receives: ungrouped, the GPUs would wait for each other.
          std::vector<int> out(3, r), in(3, -1), self(2, 10 + r), back(2, -1), none;
          auto a = c.isend(out, (r + 1) % p);
          auto b = c.irecv(in, (r + p - 1) % p);
          auto d = c.isend(self, r, 7);
          auto e = c.irecv(back, r, 7);
          auto f = c.isend(none, (r + 1) % p);
          auto g = c.irecv(none, (r + p - 1) % p);
          a.wait();
          b.wait();
          while (!d.test()) std::this_thread::yield();
          e.wait();
          f.wait();
          g.wait();
          notes.expect(r, in == std::vector<int>(3, (r + p - 1) % p), "ring");
          notes.expect(r, back == self, "self");
          // Blocking, along a line; in order.
          int first = 0, second = 0;
          if (r > 0) c.recv(std::span(&first, 1), r - 1);
          if (r > 0) c.recv(std::span(&second, 1), r - 1);
          first += 1;
          second += 10;
          if (r + 1 < p) c.send(std::span(&first, 1), r + 1);
          if (r + 1 < p) c.send(std::span(&second, 1), r + 1);
          notes.expect(r, first == r + 1 && second == 10 * (r + 1), "line");
          notes.expect(r, c.counters().messages_sent() == (r + 1 < p ? 5 : 3), "messages sent");
          notes.expect(r, c.counters().bytes_received() == 4 * (5 + (r > 0 ? 2 : 0)), "bytes received");
          // A request that is forgotten is launched all the same.
          {
            auto lost = c.isend(out, (r + 1) % p);
            auto found = c.irecv(in, (r + p - 1) % p);
          }
          c.barrier();
        }) == "");
  auto calls = nccl_double::calls();
  CHECK(calls["ncclSend"] == 5 * 2 + 4 * 2 + 5);  // empty messages are not sent
  CHECK(calls["ncclGroupStart"] == 5 + 4 * 2 * 2 + 5);
}

TEST_CASE("a group launches calls on several communicators and streams together", "[nccl]") {
  const clean clean;
  notes notes;
  using square = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  hd::launch<hd::nccl>(square{}, options_ms(60'000), [&](auto& world) {
    auto& rows = world.template along<dp>();
    auto& columns = world.template along<tp>();
    int x = 1 + world.rank(), y = 10 * (1 + world.rank());
    {
      hd::nccl_group together(rows, columns);
      if (world.rank() % 3 == 0) {  // in another order on half of the ranks
        rows.all_reduce(std::span(&x, 1), hd::plus{});
        columns.all_reduce(std::span(&y, 1), hd::plus{});
      } else {
        columns.all_reduce(std::span(&y, 1), hd::plus{});
        rows.all_reduce(std::span(&x, 1), hd::plus{});
      }
      together.launch();
    }
    rows.wait();
    columns.wait();
    notes.expect(world.rank(), x == (world.rank() % 2 == 0 ? 4 : 6), "rows");
    notes.expect(world.rank(), y == (world.rank() < 2 ? 30 : 70), "columns");
    cudaStream_t other = nullptr;
    notes.expect(world.rank(), cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess, "stream");
    auto elsewhere = rows.on(other);
    elsewhere.all_reduce(std::span(&x, 1), hd::plus{});
    elsewhere.wait();
    notes.expect(world.rank(), x == (world.rank() % 2 == 0 ? 8 : 12), "another stream");
    notes.expect(world.rank(), cudaStreamDestroy(other) == cudaSuccess, "stream");
    rows.barrier();
  });
}

TEST_CASE("ranks split by color, ordered by key", "[nccl]") {
  const clean clean;
  notes notes;
  CHECK(on_ranks(7, options_ms(60'000), [&](auto& world) {
          auto& c = world.all();
          const int r = c.rank();
          auto part = c.split(r % 3, -r);
          const int size = (7 - r % 3 + 2) / 3;
          notes.expect(r, part.size() == size && part.rank() == size - 1 - r / 3, "place");
          for (int i = 0; i < size; ++i)
            notes.expect(r, part.world_rank(i) == r % 3 + 3 * (size - 1 - i), "world rank");
          int sum = r;
          part.all_reduce(std::span(&sum, 1), hd::plus{});
          int expected = 0;
          for (int q = r % 3; q < 7; q += 3) expected += q;
          notes.expect(r, sum == expected, "sum");
          auto again = part.split(0, 0);
          again.barrier();
        }) == "");
  CHECK(contains(on_ranks(2, options_ms(60'000), [](auto& world) { static_cast<void>(world.all().split(-1, 0)); }),
                 "split: a color of -1; NCCL takes 0 and above"));
}

TEST_CASE("a communicator beside another has a stream and an order of its own, and ends with it", "[nccl]") {
  const clean clean;
  notes notes;
  CHECK(on_ranks(3, options_ms(60'000), [&](auto& world) {
          auto& c = world.all();
          auto other = c.beside();
          const int r = c.rank(), to = (r + 1) % 3, from = (r + 2) % 3;
          notes.expect(r, other.size() == 3 && other.rank() == r && other.world_rank(to) == to, "members");
          notes.expect(r, other.stream() != c.stream() && other.native() != c.native(), "its own");
          int sum = r, out = 10 + r, in = -1;
          auto sent = other.isend(std::span<const int>(&out, 1), to);
          auto came = other.irecv(std::span(&in, 1), from);
          c.all_reduce(std::span(&sum, 1), hd::plus{});
          notes.expect(r, sum == 3 && in == -1, "no message waits for nothing");
          sent.wait();
          came.wait();
          notes.expect(r, in == 10 + from, "messages");
          auto moved = std::move(other);
          moved.barrier();
        }) == "");
  // Rank 0 waits in vain for a message, with which both of its communicators end.
  const std::string error = on_ranks(2, options_ms(500), [&](auto& world) {
    auto& c = world.all();
    auto other = c.beside();
    int x = 0;
    if (c.rank() == 0)
      other.recv(std::span(&x, 1), 1);
    else  // so that it is rank 0's time that is over
      std::this_thread::sleep_for(std::chrono::milliseconds(1'000));
    c.barrier();
  });
  CHECK(contains(error, "rank 0 in recv"));
  CHECK(contains(error, "has waited 500 ms"));
}

TEST_CASE(
    "communicators whose calls stand behind each other's are all aborted, and those of graphs when these have ended",
    "[nccl][cuda][failure]") {
  const clean clean;
  using square = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  // Calls that stand on streams may still write when a rank's body has ended with an error.
  std::array<std::array<int, 3>, 4> numbers{};
  const auto failed = [](const auto& body) {
    try {
      hd::launch<hd::nccl>(square{}, options_ms(20'000), body);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  // On the stream of each rank a sum over tp that never ends stands before one over dp, and on another a message that never comes.
  const std::string eager = failed([&](auto& world) {
    auto& rows = world.template along<dp>();
    auto& columns = world.template along<tp>();
    auto other = world.all().beside();
    auto& [x, y, z] = numbers[static_cast<std::size_t>(world.rank())] = {1, 1, 1};
    columns.barrier();
    rows.barrier();
    if (world.rank() == 0) throw std::runtime_error("heddle: rank 0 has had enough");
    columns.all_reduce(std::span(&x, 1), hd::plus{});
    rows.all_reduce(std::span(&y, 1), hd::plus{});
    if (world.rank() == 3) {
      auto message = other.irecv(std::span(&z, 1), 0);
      message.wait();
    }
    rows.wait();
  });
  INFO(eager);
  CHECK(contains(eager, "rank 0: heddle: rank 0 has had enough"));
  const std::string captured = failed([&](auto& world) {
    auto& c = world.all();
    int& x = numbers[static_cast<std::size_t>(world.rank())][0];
    c.barrier();
    hd::cuda_memory::queue queue(world.rank(), c.stream());
    auto graph = hd::cuda_graph::capture(queue, [&] { c.all_reduce(std::span(&x, 1), hd::plus{}); });
    if (world.rank() == 0) throw std::runtime_error("heddle: rank 0 has had enough");
    graph.launch(queue);
    c.wait();
  });
  INFO(captured);
  CHECK(contains(captured, "rank 0: heddle: rank 0 has had enough"));
}

TEST_CASE("an error of NCCL ends all ranks with NCCL's text", "[nccl][failure]") {
  const clean clean;
  for (const char* function :
       {"ncclAllReduce", "ncclCommInitRankConfig", "ncclGetUniqueId", "ncclGroupStart", "ncclGroupEnd", "ncclSend"}) {
    const std::string error = on_ranks(3, options_ms(20'000), [&](auto& world) {
      int x = 1;
      if (world.rank() == 0) nccl_double::fail_next(function, ncclSystemError);
      for (int i = 0; i < 3; ++i) {
        world.all().all_reduce(std::span(&x, 1), hd::plus{});
        const int out = 1;
        int in = 0;
        auto a = world.all().isend(std::span(&out, 1), (world.rank() + 1) % 3);
        auto b = world.all().irecv(std::span(&in, 1), (world.rank() + 2) % 3);
        a.wait();
        b.wait();
      }
    });
    INFO(function << ": " << error);
    CHECK(contains(error, "rank 0: heddle: rank 0 in "));
    CHECK(contains(error, std::string(function) + ": unhandled system error (what the double said last)"));
    CHECK(nccl_double::open_communicators() == 0);
  }
}

TEST_CASE("a failure in a group of calls ends the group before it aborts", "[nccl][failure]") {
  const clean clean;
  const std::string error = on_ranks<hd::nccl>(2, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    c.barrier();
    int x = 1, y = 2;
    if (world.rank() == 0) nccl_double::fail_next("ncclAllReduce", ncclSystemError);
    hd::nccl_group together(c);
    c.all_reduce(std::span(&x, 1), hd::plus{});
    c.all_reduce(std::span(&y, 1), hd::plus{});
    together.launch();
    c.wait();
  });
  INFO(error);
  CHECK(contains(error, "rank 0: heddle: rank 0 in all_reduce, call 2 on communicator (dp): ncclAllReduce: unhandled"));
  auto calls = nccl_double::calls();
  CHECK(calls["ncclCommAbort in a group"] == 0);
  CHECK(calls["ncclCommAbort"] == 2);
  CHECK(calls["ncclGroupStart"] == calls["ncclGroupEnd"]);
}

TEST_CASE("a barrier behind a call that never ends has its timeout", "[nccl][failure]") {
  const clean clean;
  const std::string error = on_ranks<hd::nccl>(2, options_ms(300), [&](auto& world) {
    auto& c = world.all();
    c.barrier();
    int x = 1;
    if (world.rank() == 0) {
      c.all_reduce(std::span(&x, 1), hd::plus{});  // rank 1 never makes this call
      c.barrier();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
    }
  });
  INFO(error);
  CHECK(contains(error, "has waited 300 ms for the stream"));
}

TEST_CASE("what is not launched is not waited for, and strangers to a group are refused", "[nccl]") {
  const clean clean;
  notes notes;
  using square = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  hd::launch<hd::nccl>(square{}, options_ms(20'000), [&](auto& world) {
    auto& rows = world.template along<dp>();
    auto& columns = world.template along<tp>();
    const int to = 1 - rows.rank();
    int x = 1, out = world.rank(), in = -1, last = -1;
    hd::nccl_group together(rows);
    auto sent = rows.isend(std::span(&out, 1), to);
    auto got = rows.irecv(std::span(&in, 1), to);
    notes.expect(world.rank(), !sent.test() && !got.test(), "a message of an open group is under way");
    const auto refused = [&](const char* text, auto call) {
      try {
        call();
        notes.expect(world.rank(), false, text);
      } catch (const hd::comm_error& e) {
        notes.expect(world.rank(), contains(e.what(), text), e.what());
      }
    };
    refused("is not one of the open group of calls", [&] { columns.all_reduce(std::span(&x, 1), hd::plus{}); });
    refused("wait: a group of calls is open", [&] { rows.wait(); });
    auto sent_last = rows.isend(std::span(&out, 1), to);
    auto got_last = rows.irecv(std::span(&last, 1), to);
    together.launch();  // with the messages that were started in the group
    rows.wait();
    notes.expect(world.rank(), in == last && in == world.rank() + (world.rank() < 2 ? 2 : -2), "messages of a group");
    sent.wait();
    got.wait();
    sent_last.wait();
    got_last.wait();
    columns.barrier();
  });
  CHECK(nccl_double::calls()["ncclGroupEnd"] == 4 * 3);  // the group's own, and one around each pair of messages
}

TEST_CASE("an error that NCCL reports later is found while waiting", "[nccl][failure]") {
  const clean clean;
  std::array<std::string, 3> ends;
  const std::string error = on_ranks(3, options_ms(20'000), [&](auto& world) {
    int x = 1;
    world.all().barrier();
    if (world.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      nccl_double::break_device(1, ncclRemoteError);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    try {
      world.all().all_reduce(std::span(&x, 1), hd::plus{});
    } catch (const std::exception& e) {
      ends[static_cast<std::size_t>(world.rank())] = e.what();
      throw;
    }
  });
  INFO(error << "\n" << ends[0] << "\n" << ends[1] << "\n" << ends[2]);
  CHECK(contains(error, "rank 1: heddle: rank 1 in all_reduce, call 2 on communicator (dp)"));
  CHECK(contains(error, "remote process exited or there was a network error"));
  CHECK(contains(ends[0],
                 "heddle: rank 0 stopped in all_reduce, call 2 on communicator (dp); another rank failed "
                 "first: heddle: rank 1 in all_reduce"));
  CHECK(nccl_double::calls()["ncclCommAbort"] == 3);
}

TEST_CASE("a rank that does not come is noticed when the time is over", "[nccl][failure]") {
  const clean clean;
  const auto start = std::chrono::steady_clock::now();
  for (const bool connected : {true, false}) {
    const std::string error = on_ranks(3, options_ms(300), [&](auto& world) {
      int x = 1;
      if (connected) world.all().barrier();
      if (world.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(500));
      if (world.rank() != 2) world.all().all_reduce(std::span(&x, 1), hd::plus{});
    });
    INFO(error);
    CHECK(contains(error, "has waited 300 ms for"));
    CHECK(
        contains(error, connected ? "in all_reduce, call 2 on communicator (dp)" : "in connect on communicator (dp)"));
  }
  // Different counts hang on GPUs, too.
  CHECK(contains(on_ranks(2, options_ms(300),
                          [&](auto& world) {
                            std::vector<int> x(static_cast<std::size_t>(3 + world.rank()));
                            world.all().all_reduce(x, hd::plus{});
                          }),
                 "has waited 300 ms for the stream"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("an exception in a body ends the other ranks", "[nccl][failure]") {
  const clean clean;
  CHECK_THROWS_AS(hd::launch<hd::nccl_complete>(line{3}, options_ms(20'000),
                                                [](auto& world) {
                                                  world.all().barrier();
                                                  if (world.rank() == 1) throw hd::layout_error("heddle: no");
                                                  world.all().barrier();
                                                }),
                  hd::layout_error);
  CHECK(on_ranks(3, options_ms(20'000), [](auto& world) {
          world.all().barrier();
          int x = 0;
          if (world.rank() == 1) {
            auto never = world.all().isend(std::span(&x, 1), 0);
            throw 5;
          }
          world.all().recv(std::span(&x, 1), 1);
        }) == "rank 1: an exception that is not a std::exception");
}

TEST_CASE("a barrier tells which ranks have called something else", "[nccl][failure]") {
  const clean clean;
  const auto differ = [](auto& world) {
    std::vector<int> x;
    std::vector<float> y;
    if (world.rank() == 1)
      world.all().all_reduce(x, hd::plus{});
    else
      world.all().all_reduce(y, hd::maximum{});
    world.all().barrier();
  };
  CHECK(contains(on_ranks(3, options_ms(20'000), differ),
                 "barrier: the ranks' collectives differ: this rank has made 2 calls, rank "));
  auto options = options_ms(20'000);
  options.check = hd::checking::off;
  CHECK(on_ranks(3, options, differ) == "");
}

TEST_CASE("what the caller can know is refused before NCCL is asked", "[nccl]") {
  const clean clean;
  CHECK(on_ranks(2, options_ms(20'000), [&](auto& world) {
          auto& c = world.all();
          std::vector<int> x(4), y(3);
          const std::vector<int64_t> bad{1, 2, 3}, counts{2, 2};
          int caught = 0;
          const auto expect = [&](auto call) {
            try {
              call();
            } catch (const hd::comm_error&) {
              ++caught;
            }
          };
          expect([&] { c.all_reduce(x, y, hd::plus{}); });
          expect([&] { c.all_reduce(std::span(x).first(3), std::span(x).last(3), hd::plus{}); });
          expect([&] { c.broadcast(x, 2); });
          expect([&] { c.send(x, -1); });
          expect([&] { c.send(x, c.rank()); });
          expect([&] { c.recv(x, c.rank()); });
          expect([&] { c.all_to_all(y, y); });
          expect([&] { c.all_gather_v(x, x, bad); });
          expect([&] { c.all_gather(x, x); });
          expect([&] { c.reduce_scatter_v(x, y, counts, hd::plus{}); });
          expect([&] { c.gather(x, y, c.rank()); });
          if (caught != 11) throw hd::error("caught " + std::to_string(caught));
          c.barrier();
        }) == "");
}

TEST_CASE("a variable is reduced, and counts that add up to too much are refused", "[nccl]") {
  const clean clean;
  notes notes;
  hd::launch<hd::nccl_complete>(line{2}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    int sum = c.rank() + 1;
    c.all_reduce(sum, hd::plus{});
    notes.expect(c.rank(), sum == 3, "a variable");
    std::vector<char> x(2), y(2);
    const std::vector<int64_t> much(2, int64_t{1} << 62);
    std::string text;
    try {
      c.all_gather_v(x, y, much);
    } catch (const hd::comm_error& e) {
      text = e.what();
    }
    notes.expect(c.rank(), contains(text, "all_gather_v: the counts add up to more than"), text);
    c.barrier();
  });
}

TEST_CASE("launch with arguments gives a status", "[nccl][failure]") {
  const clean clean;
  const auto status = [](const auto& body) {
    return hd::launch<hd::nccl_complete>(0, nullptr, line{2}, options_ms(20'000), body);
  };
  CHECK(status([](auto& world) { world.all().barrier(); }) == 0);
  CHECK(status([](auto& world) {
          if (world.rank() == 1) throw hd::config_error("heddle: a status is tested, this line is meant");
          world.all().barrier();
        }) == 1);
}

TEST_CASE("a launch needs GPUs and a library as new as its header", "[nccl]") {
  const clean clean;
  const auto nothing = [](auto&) {};
  nccl_double::devices(3);
  CHECK(on_ranks(3, options_ms(1'000), nothing) == "");
  CHECK(contains(on_ranks(4, options_ms(1'000), nothing),
                 "heddle: nccl: 4 GPUs are needed, this process sees 3; start a process per GPU"));
  nccl_double::devices(0);
  CHECK(contains(on_ranks(1, options_ms(1'000), nothing), "1 GPU is needed, this process sees 0 (no CUDA-capable"));
  nccl_double::devices(8);
  nccl_double::version(21805);
  CHECK(contains(on_ranks(1, options_ms(1'000), nothing), "the NCCL library is version 2.18.5, older than the header"));
  CHECK(hd::detail::nccl_version_text(2708) == "2.7.8");
}

TEST_CASE("the environment says which rank a process is", "[nccl]") {
  const clean clean;
  const auto set = [](const char* name, const char* value) {
    if (value == nullptr)
      ::unsetenv(name);
    else
      ::setenv(name, value, 1);
  };
  const auto read = [] { return hd::detail::place_from_environment(); };
  CHECK(read().rank == -1);
  set("HEDDLE_RANK", "0");
  CHECK_THROWS_WITH(read(), Catch::Matchers::Contains("HEDDLE_RANK is set, but HEDDLE_RANKS is not"));
  set("HEDDLE_RANKS", "1");
  int ran = 0;
  const auto one = [&](auto& world) {
    int x = 3;
    world.all().all_reduce(std::span(&x, 1), hd::plus{});
    ran += x;
  };
  CHECK(on_ranks(1, options_ms(5'000), one) == "");
  CHECK(ran == 3);
  CHECK(contains(on_ranks(2, options_ms(5'000), one), "2"));  // the mesh has another number of ranks
  set("HEDDLE_RANKS", "2");
  CHECK_THROWS_WITH(read(), Catch::Matchers::Contains("set HEDDLE_RENDEZVOUS to tcp://host:port"));
  set("HEDDLE_RENDEZVOUS", "somewhere");
  CHECK(contains(on_ranks(2, options_ms(5'000), one), "should be tcp://host:port or file:///folder"));
  set("HEDDLE_RANK", "zero");
  CHECK_THROWS_WITH(read(), Catch::Matchers::Contains("HEDDLE_RANK should be a number from 0 to 16777215, it is \"zero\""));
  set("HEDDLE_RANK", nullptr);
  set("HEDDLE_RANKS", nullptr);
  set("SLURM_PROCID", "3");
  set("SLURM_STEP_NUM_TASKS", "8");
  set("SLURM_LOCALID", "1");
  CHECK((read().rank == 3 && read().size == 8 && read().local_rank == 1));
  set("HEDDLE_RENDEZVOUS", nullptr);
  CHECK(
      contains(on_ranks(8, options_ms(5'000), one), "started as process 3 of 8 by srun, but not where the ranks meet"));
  set("HEDDLE_ALONE", "1");
  CHECK(read().rank == -1);
  for (const char* name : {"HEDDLE_ALONE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}) set(name, nullptr);
}

TEST_CASE("a world of another transport hands round what NCCL needs", "[nccl]") {
  const clean clean;
  notes notes;
  hd::launch<hd::threads>(line{4}, options_ms(20'000), [&](auto& outer) {
    using square = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
    hd::nccl_complete::run_over(outer.all(), square{}, options_ms(20'000), outer.rank(), [&](auto& world) {
      int x = 1 + world.rank();
      world.template along<tp>().all_reduce(std::span(&x, 1), hd::plus{});
      world.template along<dp>().all_reduce(std::span(&x, 1), hd::plus{});
      notes.expect(outer.rank(), x == 10, "sum");
    });
  });
}

namespace {
struct either {
  template <class T>
  static T identity() {
    return {};
  }
  bool operator()(bool a, bool b) const { return a || b; }
};

// Sums, strings and verdicts of the host, along all axes, while the stream has work.
template <class World>
void use_control(World& world, notes& notes) {
  static_assert(hd::communicator<typename World::control_communicator>);
  const int r = world.rank(), p = world.size();
  std::vector<float> tensor{1, 2};
  world.all().all_reduce(tensor, hd::plus{});
  std::array<double, 2> sums{0.5 * r, 1};
  world.control().all_reduce(sums, hd::plus{});
  notes.expect(r, sums[0] == 0.25 * p * (p - 1) && sums[1] == p, "sums");
  std::string word = r == p - 1 ? "agreed" : "      ";
  world.template control_along<dp>().broadcast(std::span<char>(word), p - 1);
  notes.expect(r, word == "agreed", "string");
  bool verdict = r == 1 || p == 1;  // a type that NCCL does not fold
  world.control().all_reduce(verdict, either{});
  notes.expect(r, verdict, "verdict");
  world.all().wait();
  notes.expect(r, tensor == std::vector<float>{1.0f * static_cast<float>(p), 2.0f * static_cast<float>(p)}, "tensor");
}
}  // namespace

TEST_CASE("the control plane of GPUs is in the host's memory and calls nothing of NCCL's", "[nccl][control]") {
  const clean clean;
  for (const int p : {1, 2, 3}) {
    notes notes;
    nccl_double::reset();
    CHECK(on_ranks(p, options_ms(10'000), [&](auto& world) { use_control(world, notes); }) == "");
    const auto calls = nccl_double::calls();
    CHECK(calls.at("ncclAllReduce") == p);  // the tensor's
    CHECK(calls.count("ncclAllGather") + calls.count("ncclBroadcast") + calls.count("ncclSend") == 0);
    CHECK(calls.count("cudaMemcpyAsync") == 0);
  }
  notes notes;
  hd::launch<hd::threads>(line{3}, options_ms(10'000), [&](auto& threads) {
    hd::nccl_complete::run_over(threads.all(), line{3}, options_ms(10'000), threads.rank(),
                                [&](auto& world) { use_control(world, notes); });
  });
}

TEST_CASE("a rank that fails ends those that wait on the control plane", "[nccl][control][failure]") {
  const clean clean;
  const std::string text = on_ranks(3, options_ms(60'000), [](auto& world) {
    if (world.rank() == 2) throw hd::config_error("heddle: not today");
    world.control().barrier();
  });
  INFO(text);
  CHECK(contains(text, "rank 2: heddle: not today"));
}

TEST_CASE("communicators that others have made are used, and given back or not", "[nccl]") {
  const clean clean;
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  notes notes;
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 1;
      ncclComm_t comm = nullptr;
      cudaStream_t stream = nullptr;
      notes.expect(r, cudaSetDevice(r) == cudaSuccess, "device");
      notes.expect(r, cudaStreamCreateWithFlags(&stream, 0) == cudaSuccess, "stream");
      notes.expect(r, ncclCommInitRankConfig(&comm, 2, id, r, &config) == ncclSuccess, "comm");
      int x = 5;
      {
        auto c = hd::nccl_communicator::borrow(comm, stream);
        c.all_reduce(std::span(&x, 1), hd::plus{});
        c.wait();
        notes.expect(r, c.native() == comm && c.size() == 2 && c.rank() == r && x == 10, "borrowed");
      }
      {
        auto c = hd::nccl_communicator::adopt(comm, stream);
        c.barrier();
      }
      notes.expect(r, cudaStreamDestroy(stream) == cudaSuccess, "stream");
    });
  for (auto& rank : ranks) rank.join();
}

namespace {
// Two clusters of four ranks, whose cards share no RDMA; the pipeline crosses.
using machines = hd::cluster<hd::ranks_with<4, hd::link_kind::infiniband>, hd::ranks_with<4, hd::link_kind::roce>>;
using stages = hd::mesh<hd::axis<pp, 2>, hd::axis<dp, 2>, hd::axis<tp, 2>>;
template <class Expected, class Reference>
constexpr bool is = std::is_same_v<Expected&, Reference>;
int sum_along(auto& group, int x) {
  group.all_reduce(std::span(&x, 1), hd::plus{});
  return x;
}
// The sum over the mesh ranks that share rank's place along the other axes.
template <class... Tags>
int expected(int rank) {
  int sum = 0;
  for (const int r : hd::group<Tags...>(stages{}, rank)) sum += r;
  return sum;
}
}  // namespace

TEST_CASE("each axis has the transport of its network: RDMA inside clusters, another across", "[nccl][holmes]") {
  const clean clean;
  notes notes;
  using mixed = hd::by_network<machines, hd::nccl_complete, hd::threads>;
  hd::launch<mixed, stages>(options_ms(20'000), [&](auto& world) {
    const int r = world.rank();
    static_assert(is<hd::nccl_communicator, decltype(world.template along<tp>())>);
    static_assert(is<hd::nccl_communicator, decltype(world.template along<dp>())>);
    static_assert(is<hd::nccl_communicator, decltype(world.template along<dp, tp>())>);
    static_assert(is<hd::threads_communicator, decltype(world.template along<pp>())>);
    static_assert(is<hd::threads_communicator, decltype(world.template along<pp, tp>())>);
    static_assert(is<hd::threads_communicator, decltype(world.all())>);
    notes.expect(r, sum_along(world.template along<tp>(), r) == expected<tp>(r), "tp");
    notes.expect(r, sum_along(world.template along<dp, tp>(), r) == expected<dp, tp>(r), "dp, tp");
    notes.expect(r, sum_along(world.template along<pp>(), r) == expected<pp>(r), "pp");
    notes.expect(r, sum_along(world.all(), r) == 28, "all");
    notes.expect(r, sum_along(world.template along_if<hd::cp, tp>(), r) == expected<tp>(r), "along_if");
    notes.expect(r, world.template along_if<hd::cp>().size() == 1, "alone");
    // A stage lies in one cluster: all of it has RDMA. A replica does not.
    auto stage = world.template sub<dp, tp>();
    static_assert(is<hd::nccl_communicator, decltype(stage.all())>);
    notes.expect(r, stage.size() == 4 && sum_along(stage.all(), r) == expected<dp, tp>(r), "stage");
    auto replica = world.template sub<pp, tp>();
    static_assert(is<hd::threads_communicator, decltype(replica.all())>);
    static_assert(is<hd::nccl_communicator, decltype(replica.template along<tp>())>);
    notes.expect(r, sum_along(replica.all(), r) == expected<pp, tp>(r), "replica");
    // Every rank at the other end: tp groups stay pairs of neighbours.
    auto turned = world.renumbered(std::array{7, 6, 5, 4, 3, 2, 1, 0});
    notes.expect(r, turned.rank() == 7 - r && sum_along(turned.template along<tp>(), 7 - r) == expected<tp>(7 - r),
                 "renumbered");
    notes.expect(r, world.template coordinate<pp>() == r / 4 && world.size() == 8, "place");
  });
  CHECK(nccl_double::networks()["Socket"] == 0);
}

TEST_CASE("NCCL on every axis: over the network cards where a group has one kind, over sockets else",
          "[nccl][holmes]") {
  const clean clean;
  notes notes;
  using rdma = hd::basic_nccl<hd::nccl_settings{.complete = true, .network = hd::nccl_network::rdma}>;
  using sockets = hd::basic_nccl<hd::nccl_settings{.complete = true, .network = hd::nccl_network::sockets}>;
  hd::launch<hd::by_network<machines, rdma, sockets, hd::threads>, stages>(options_ms(20'000), [&](auto& world) {
    const int r = world.rank();
    notes.expect(r, sum_along(world.template along<tp>(), r) == expected<tp>(r), "tp");
    notes.expect(r, sum_along(world.template along<dp>(), r) == expected<dp>(r), "dp");
    notes.expect(r, sum_along(world.template along<pp>(), r) == expected<pp>(r), "pp");
  });
  CHECK(nccl_double::networks() == std::map<std::string, int>{{"IB", 16}, {"Socket", 8}});
}

TEST_CASE("a rank that fails ends a world of two transports with its error", "[nccl][holmes][error]") {
  const clean clean;
  std::string text;
  try {
    hd::launch<hd::by_network<machines, hd::nccl_complete, hd::threads>, stages>(options_ms(2'000), [](auto& world) {
      if (world.rank() == 5) throw hd::config_error("heddle: rank five has had enough");
      int x = 1;
      world.template along<pp>().all_reduce(std::span(&x, 1), hd::plus{});
      world.template along<tp>().all_reduce(std::span(&x, 1), hd::plus{});
    });
  } catch (const hd::config_error& e) {
    text = e.what();
  }
  CHECK(contains(text, "rank five has had enough"));
  CHECK(contains(text, "rank 5: "));
}

TEST_CASE("windows are registered once for collectives that come again, or are plain memory where NCCL has none",
          "[nccl]") {
  STATIC_REQUIRE(hd::nccl_has_windows);
  for (const bool has : {true, false}) {
    CAPTURE(has);
    const clean all;
    nccl_double::windows(has);
    notes n;
    CHECK(on_ranks(3, options_ms(20'000), [&](auto& world) {
            auto& c = world.all();
            hd::nccl_windows windows(c);
            for (int step = 0; step < 4; ++step) {
              auto x = windows.template take<float>(1500);
              auto y = windows.template take<double>(step);
              n.expect(c.rank(), x.registered() == has, "registered");
              n.expect(c.rank(), y.elements().size() == static_cast<std::size_t>(step), "as many elements as wanted");
              for (float& e : x.elements()) e = static_cast<float>(c.rank() + step);
              c.all_reduce(x.elements(), hd::plus{});
              for (const float e : x.elements()) n.expect(c.rank(), e == static_cast<float>(3 + 3 * step), "the sum");
            }
          }) == "");
    auto calls = nccl_double::calls();
    CHECK(calls["ncclCommWindowRegister"] == 3 * 2);
    CHECK(calls["ncclCommWindowDeregister"] == (has ? 3 * 2 : 0));
  }
}

TEST_CASE("a window for which there is no memory ends all ranks and says how much it was", "[nccl]") {
  const clean all;
  const std::string text = on_ranks(2, options_ms(20'000), [&](auto& world) {
    hd::nccl_windows windows(world.all());
    if (world.rank() == 1) nccl_double::fail_next("ncclMemAlloc", ncclUnhandledCudaError);
    auto x = windows.template take<float>(1000);
    world.all().barrier();
  });
  CAPTURE(text);
  CHECK(contains(text, "ncclMemAlloc of a window of 4096 bytes, of which "));
}

// A program's own operators: those of the standard library.
template <class T>
struct hd::operator_of_cccl<std::plus<T>> : std::type_identity<hd::plus> {};
template <class T>
struct hd::operator_of_cccl<std::multiplies<T>> : std::type_identity<hd::multiplies> {};

namespace {
// What CCCL 3.6's communicator concept asks for, with a stream type that holds one, as cuda::stream_ref does.
struct stream_holder {
  cudaStream_t stream;
  cudaStream_t get() const { return stream; }
};
template <class C>
concept like_cccls = requires(C& c, typename C::group_guard_type& guard, void* bytes, int* x, std::size_t n,
                              std::int32_t peer, stream_holder stream) {
  { c.native_handle() } noexcept -> std::same_as<typename C::native_handle_type>;
  { c.rank() } -> std::convertible_to<std::int32_t>;
  { c.size() } -> std::convertible_to<std::int32_t>;
  { c.group_guard() } -> std::same_as<typename C::group_guard_type>;
  { c.send(guard, bytes, n, peer, stream) } -> std::same_as<void>;
  { c.recv(guard, bytes, n, peer, stream) } -> std::same_as<void>;
  { c.reduce(guard, x, x, n, std::plus<>(), peer, stream) } -> std::same_as<void>;
  { c.all_reduce(guard, x, x, n, std::plus<>(), stream) } -> std::same_as<void>;
  { c.gather(guard, x, x, n, peer, stream) } -> std::same_as<void>;
  { c.all_gather(guard, x, x, n, stream) } -> std::same_as<void>;
  { c.broadcast(guard, x, x, n, peer, stream) } -> std::same_as<void>;
  { c.all_to_all(guard, x, x, n, stream) } -> std::same_as<void>;
  { c.gather_v(guard, x, n, x, &n, &n, peer, stream) } -> std::same_as<void>;
  { c.all_gather_v(guard, x, n, x, &n, &n, stream) } -> std::same_as<void>;
  { c.all_to_all_v(guard, x, &n, &n, x, &n, &n, stream) } -> std::same_as<void>;
};
static_assert(like_cccls<hd::cccl_communicator> && hd::cccl_communicator_over_nccl<hd::cccl_communicator>);
template <class C, class T, class Op>
concept folds = requires(C& c, typename C::group_guard_type& guard, T* x, Op op, stream_holder stream) {
  c.all_reduce(guard, x, x, 1, op, stream);
};
static_assert(folds<hd::cccl_communicator, float, std::multiplies<float>> &&
              !folds<hd::cccl_communicator, float, std::minus<>> && !folds<hd::cccl_communicator, point, std::plus<>>);
// One that says more ranks than its handle has.
struct liar {
  using group_guard_type = int;
  ncclComm_t handle;
  ncclComm_t native_handle() const { return handle; }
  static int rank() { return 0; }
  static int size() { return 17; }
};
}  // namespace

TEST_CASE("nccl: a communicator as CCCL asks for one, and one of CCCL's taken") {
  const clean clean;
  notes notes;
  const std::string failure = on_ranks<hd::nccl>(3, {}, [&](auto& world) {
    auto& ours = world.all();
    const hd::cccl_communicator c(ours);
    const int r = c.rank(), p = c.size();
    const auto at = [](int i) { return static_cast<std::size_t>(i); };
    const stream_holder stream{ours.stream()};
    point there = value<point>(r, 7), here{};
    {
      auto guard = c.group_guard();
      c.send(guard, &there, 1, (r + 1) % p, stream);
      c.recv(guard, &here, 1, (r + p - 1) % p, stream);
    }
    ours.wait();
    notes.expect(r, here == value<point>((r + p - 1) % p, 7), "a ring of messages in one group");
    void* const bytes = &here;
    {
      auto guard = c.group_guard();
      if (r == 0) c.send(guard, static_cast<const void*>(&there), sizeof there, 2, stream.stream);
      if (r == 2) c.recv(guard, bytes, sizeof here, 0, stream.stream);
    }
    ours.wait();
    if (r == 2) notes.expect(r, here == value<point>(0, 7), "bytes");

    const auto x = buffer<float>(r, 4);
    const auto sums = folded<float>(p, 4, 0, hd::plus{});
    std::vector<float> y(4), root(4), all(at(4 * p)), swapped(at(4 * p)), mine(at(4 * p)), gathered(at(4 * p));
    for (int i = 0; i < 4 * p; ++i) mine[at(i)] = static_cast<float>(100 * r + i);
    std::vector<float> told{static_cast<float>(r), 5}, told_to(2);
    {
      auto guard = c.group_guard();
      c.all_reduce(guard, x.data(), y.data(), 4, std::plus<>(), stream);
      c.reduce(guard, x.data(), root.data(), 4, hd::plus{}, 1, stream);
    }
    {
      auto guard = c.group_guard();
      c.all_gather(guard, x.data(), all.data(), 4, stream);
      c.all_to_all(guard, mine.data(), swapped.data(), 4, stream);
    }
    {
      auto guard = c.group_guard();
      c.broadcast(guard, told.data(), told_to.data(), 2, 2, stream);
      c.gather(guard, x.data(), gathered.data(), 4, 0, stream);
    }
    // Rank r has r + 1 elements, which lie one apart, in the order of the ranks turned round.
    const std::vector<std::size_t> counts{1, 2, 3}, places{7, 4, 0}, own(3, at(r + 1)), starts{1, 0, 2};
    std::vector<float> gathered_v(8, -1), all_v(8, -1), swapped_v(8, -1);
    {
      auto guard = c.group_guard();
      c.gather_v(guard, x.data(), at(r + 1), gathered_v.data(), counts.data(), places.data(), 1, stream);
      c.all_gather_v(guard, x.data(), at(r + 1), all_v.data(), counts.data(), places.data(), stream);
      c.all_to_all_v(guard, mine.data(), own.data(), starts.data(), swapped_v.data(), counts.data(), places.data(),
                     stream);
    }
    ours.wait();
    for (int from = 0; from < p; ++from)
      for (int i = 0; i <= from; ++i) {
        const std::size_t place = places[at(from)] + at(i);
        notes.expect(r, all_v[place] == value<float>(from, i), "all_gather_v");
        notes.expect(r, gathered_v[place] == (r == 1 ? value<float>(from, i) : -1), "gather_v");
        notes.expect(r, swapped_v[place] == static_cast<float>(100 * from + i) + static_cast<float>(starts[at(r)]),
                     "all_to_all_v");
      }
    notes.expect(r, all_v[3] == -1 && all_v[6] == -1, "all_gather_v between the parts");
    notes.expect(r, same(y, sums), "all_reduce");
    if (r == 1) notes.expect(r, same(root, sums), "reduce");
    notes.expect(r, told_to == std::vector<float>{2, 5}, "broadcast from other memory");
    bool gathers = true, swaps = true;
    for (int from = 0; from < p; ++from)
      for (int i = 0; i < 4; ++i) {
        gathers = gathers && all[at(4 * from + i)] == value<float>(from, i) &&
                  (r != 0 || gathered[at(4 * from + i)] == value<float>(from, i));
        swaps = swaps && swapped[at(4 * from + i)] == static_cast<float>(100 * from + 4 * r + i);
      }
    notes.expect(r, gathers, "all_gather and gather");
    notes.expect(r, swaps, "all_to_all");

    auto taken = hd::borrow_cccl(c, ours.stream());
    int one = r + 1;
    taken.all_reduce(std::span(&one, 1), hd::plus{});
    taken.wait();
    notes.expect(r, one == p * (p + 1) / 2, "a communicator of CCCL's");
    const liar wrong{c.native_handle()};
    try {
      static_cast<void>(hd::borrow_cccl(wrong, ours.stream()));
      notes.expect(r, false, "another size is an error");
    } catch (const hd::comm_error& e) {
      notes.expect(r, contains(e.what(), "a communicator that says rank 0 of 17 has an NCCL handle of rank"), e.what());
    }
    try {
      auto guard = c.group_guard();
      c.send(guard, &there, 1, p, stream);
      notes.expect(r, false, "no such peer is an error");
    } catch (const hd::comm_error& e) {
      notes.expect(r, contains(e.what(), "rank 3 of a communicator of 3"), e.what());
    }
  });
  CHECK(failure == "");
}
