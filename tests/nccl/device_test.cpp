// The all-reduce over NCCL's device API: its kernel's body on threads of the host, and the algorithm over the stand-ins.
#include <heddle/nccl/device_all_reduce.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/nccl/windows.hpp>
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/train/registered_parameters.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "emulated_peers.hpp"

namespace device_test {
namespace {

namespace hd = heddle;
using hd::dp;
using line = hd::mesh<hd::axis<dp>>;

// x -> scale x + shift: to compose is associative, and not commutative.
struct affine {
  std::uint32_t scale = 1, shift = 0;
  friend bool operator==(const affine&, const affine&) = default;
};
struct compose {
  template <class T>
  static constexpr T identity() {
    return {};
  }
  affine operator()(const affine& f, const affine& g) const { return {f.scale * g.scale, f.scale * g.shift + f.shift}; }
};

template <class T>
T random_element(std::mt19937_64& random) {
  if constexpr (std::is_same_v<T, affine>)
    return {static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random())};
  else if constexpr (std::is_floating_point_v<T>)
    return std::uniform_real_distribution<T>(-1, 1)(random);
  else
    return static_cast<T>(random());
}

struct shape {
  int ranks, blocks;
  std::int64_t elements, offset;
  bool in_place;
};

// Runs the body as all blocks of all ranks would; what is wrong, or "".
template <class T, class Op>
std::string wrong_fold(const shape& s, std::uint64_t seed) {
  constexpr std::int64_t margin = 5;
  std::mt19937_64 random(seed);
  const std::int64_t room = s.elements + s.offset + margin;
  const auto memory = [&] {  // of a rank, at a multiple of 16 bytes
    return std::vector<T>(static_cast<std::size_t>(room));
  };
  std::vector<std::vector<T>> in, out;
  for (int r = 0; r < s.ranks; ++r) {
    in.push_back(memory());
    for (T& x : in.back()) x = random_element<T>(random);
    out.push_back(memory());
    for (T& x : out.back()) x = random_element<T>(random);
  }
  auto& to = s.in_place ? in : out;
  auto expected = to;
  for (std::int64_t i = s.offset; i < s.offset + s.elements; ++i) {
    const auto at = static_cast<std::size_t>(i);
    T folded = in[0][at];
    for (int r = 1; r < s.ranks; ++r) folded = static_cast<T>(Op{}(folded, in[static_cast<std::size_t>(r)][at]));
    for (auto& of_rank : expected) of_rank[at] = folded;
  }
  const auto before = in;

  std::vector<std::unique_ptr<std::barrier<>>> barriers;
  std::vector<std::atomic<int>> arrivals(static_cast<std::size_t>(s.blocks * s.ranks));
  for (int b = 0; b < s.blocks; ++b) barriers.push_back(std::make_unique<std::barrier<>>(s.ranks));
  const hd::detail::peer_fold<T, Op, int> body{{}, s.elements, 0, s.in_place ? 0 : 1};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < s.ranks; ++rank)
    ranks.emplace_back([&, rank] {
      nccl_double::run_blocks(
          rank, s.ranks, s.blocks, body,
          [&](int block) {
            ++arrivals[static_cast<std::size_t>(block * s.ranks + rank)];
            barriers[static_cast<std::size_t>(block)]->arrive_and_wait();
          },
          [&](int place, int r) -> void* {
            return (place == 0 ? in : out)[static_cast<std::size_t>(r)].data() + s.offset;
          });
    });
  for (std::thread& rank : ranks) rank.join();
  for (const auto& count : arrivals)
    if (count != 2) return "a block of a rank came to its barrier " + std::to_string(count) + " times";
  if (to != expected) return "another result than the serial one";
  if (!s.in_place && in != before) return "an input has changed";
  return "";
}

template <class T, class Op>
std::string first_wrong_fold(std::uint64_t seed) {
  for (const int ranks : {1, 2, 3, 6})
    for (const int blocks : {1, 3})
      for (const std::int64_t elements : {0, 1, 2, 15, 16, 17, 67, 500})
        for (const std::int64_t offset : {0, 1})
          for (const bool in_place : {true, false}) {
            const std::string wrong = wrong_fold<T, Op>({ranks, blocks, elements, offset, in_place}, seed);
            if (wrong != "")
              return std::to_string(ranks) + " ranks, " + std::to_string(blocks) + " blocks, " +
                     std::to_string(elements) + " elements from " + std::to_string(offset) + " on: " + wrong;
          }
  return "";
}

}  // namespace

TEST_CASE("shares of blocks cover the packs of a vector once, in order, and differ by one pack at most", "[nccl]") {
  for (const std::int64_t packs : {0, 1, 5, 64, 1000, 12'345'678})
    for (const int ranks : {1, 2, 3, 8})
      for (const int blocks : {1, 4, 7}) {
        std::int64_t next = 0;
        bool ordered = true, balanced = true;
        for (int part = 0; part < ranks * blocks; ++part) {
          const auto share = hd::detail::share_of_block(packs, part / blocks, ranks, part % blocks, blocks);
          ordered = ordered && share.begin == next;
          const std::int64_t least = packs / (ranks * blocks), has = share.end - share.begin;
          balanced = balanced && has >= least && has <= least + 1;
          next = share.end;
        }
        CAPTURE(packs, ranks, blocks);
        CHECK(ordered);
        CHECK(balanced);
        CHECK(next == packs);
      }
}

TEST_CASE("the kernel of the device API's all-reduce has the serial fold's bits, and each block two barriers",
          "[nccl]") {
  const std::uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  CHECK(first_wrong_fold<float, hd::plus>(seed) == "");
  CHECK(first_wrong_fold<double, hd::maximum>(seed) == "");
  CHECK(first_wrong_fold<std::int8_t, hd::minimum>(seed) == "");
  CHECK(first_wrong_fold<affine, compose>(seed) == "");
}

#if NCCL_VERSION_CODE >= 22800 && __has_include(<nccl_device.h>)

namespace {

struct outcome {
  std::string error;
  int kernels = 0, wrong = 0;
  std::map<std::string, int> calls;
  std::vector<nccl_double::barrier_use> barriers;
};

template <class Transport = hd::nccl, class Body>
outcome on_ranks(int ranks, const Body& body) {
  nccl_double::kernels() = 0;
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(20'000);
  outcome all;
  std::atomic<int> wrong = 0;
  try {
    hd::launch<Transport>(line{ranks}, options, [&](auto& world) { body(world.all(), wrong); });
  } catch (const std::exception& e) {
    all.error = e.what();
  }
  all.kernels = nccl_double::kernels();
  all.wrong = wrong;
  all.calls = nccl_double::calls();
  all.barriers = nccl_double::barrier_uses();
  CHECK(nccl_double::open_communicators() == 0);
  CHECK(nccl_double::open_resources() == 0);
  return all;
}

using by_kernel = hd::algo::nccl_device_all_reduce<3, 64>;

// `steps` sums in a window of n elements, in place and out of place.
template <class C>
int wrong_sums(C& c, hd::nccl_windows& windows, std::int64_t n, int steps) {
  const auto x = windows.take<float>(n + 4), y = windows.take<float>(n);
  int wrong = 0;
  for (int step = 0; step < steps; ++step) {
    const std::span<float> part = x.elements().subspan(4);
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(c.rank() + step) + static_cast<float>(i);
    hd::all_reduce<by_kernel>(c, std::span<const float>(part), y.elements(), hd::plus{});
    hd::all_reduce<by_kernel>(c, part, hd::plus{});
    c.wait();
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto p = static_cast<float>(c.size());
      const float expected = p * static_cast<float>(step) + p * (p - 1) / 2 + p * static_cast<float>(i);
      wrong += part[i] != expected || y.elements()[i] != expected;
    }
    c.barrier();
  }
  return wrong;
}

}  // namespace

TEST_CASE("an all-reduce in windows is a kernel over the device API with a barrier for each block", "[nccl]") {
  STATIC_REQUIRE(hd::nccl_has_device_api);
  CHECK(by_kernel::name == "nccl_device_all_reduce<3, 64>");
  nccl_double::reset();
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const outcome got = on_ranks(ranks, [](auto& c, auto& wrong) {
      hd::nccl_windows windows(c);
      wrong += wrong_sums(c, windows, 37, 3);
      wrong += wrong_sums(c, windows, 2, 1);  // fewer elements than ranks
      hd::all_reduce<by_kernel>(c, windows.take<float>(0).elements(), hd::plus{});
    });
    CHECK(got.error == "");
    CHECK(got.wrong == 0);
    CHECK(got.kernels == ranks * 8);
    CHECK(got.calls.count("ncclAllReduce") == 0);
    CHECK(got.calls.at("ncclDevCommCreate") == ranks);
    CHECK(got.calls.at("ncclDevCommDestroy") == ranks);
    REQUIRE(got.barriers.size() == 1);
    CHECK(got.barriers[0].without == 0);
    CHECK(got.barriers[0].arrivals == std::vector(3, std::vector<int>(static_cast<std::size_t>(ranks), 2 * 8)));
    nccl_double::reset();
  }
}

TEST_CASE("elements and operators that NCCL does not fold are folded by the device API's all-reduce, in rank order",
          "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks<hd::nccl_complete>(3, [](auto& c, auto& wrong) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<affine>(11);
    for (affine& f : x.elements()) f = {3u + static_cast<unsigned>(c.rank()), 7u};
    hd::all_reduce<by_kernel>(c, x.elements(), compose{});
    const affine expected = compose{}(compose{}({3, 7}, {4, 7}), {5, 7});
    wrong += std::count(x.elements().begin(), x.elements().end(), expected) != 11;
    wrong += c.counters()[hd::comm_operation::all_reduce].calls != 1;
    c.barrier();
  });
  CHECK(got.error == "");
  CHECK(got.wrong == 0);
  CHECK(got.kernels == 3);
  nccl_double::reset();
}

TEST_CASE("the device API's all-reduce is NCCL's own outside of windows, among several LSA teams and in a group",
          "[nccl]") {
  for (const bool has_windows : {true, false}) {
    CAPTURE(has_windows);
    nccl_double::reset();
    nccl_double::windows(has_windows);
    nccl_double::lsa_ranks(2);
    const outcome got = on_ranks(4, [](auto& c, auto& wrong) {
      hd::nccl_windows windows(c);
      wrong += wrong_sums(c, windows, 10, 1);  // two teams, or no windows
    });
    CHECK(got.error == "");
    CHECK(got.wrong == 0);
    CHECK(got.kernels == 0);
    CHECK(got.calls.at("ncclAllReduce") == 4 * 2);
    CHECK(got.calls.count("ncclDevCommCreate") == 0);
  }
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto& wrong) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(4);
    const auto other = windows.template take<float>(4);
    std::vector<float> outside(4, 1.0f);
    std::fill(x.elements().begin(), x.elements().end(), 1.0f);
    hd::all_reduce<by_kernel>(c, std::span<const float>(x.elements()), std::span<float>(outside), hd::plus{});
    const std::span<float> beyond(x.elements().data() + 1022, 4);  // two elements behind the window's end
    wrong += hd::detail::place_in_window(*c.channel(), beyond.data(), beyond.size_bytes()).has_value();
    hd::nccl_group together(c);
    hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
    together.launch();
    c.wait();
    wrong += outside[3] != 2.0f || x.elements()[3] != 2.0f;
  });
  CHECK(got.error == "");
  CHECK(got.wrong == 0);
  CHECK(got.kernels == 0);
  CHECK(got.calls.at("ncclAllReduce") == 2 * 2);
  nccl_double::reset();
  const outcome refused = on_ranks(2, [](auto& c, auto&) {
    std::vector<affine> outside(4);
    hd::all_reduce<by_kernel>(c, outside, compose{});
  });
  CHECK(refused.error.find("all_reduce by nccl_device_all_reduce<3, 64>: NCCL itself does not fold these elements with "
                           "this operator, and they are not in registered windows of the communicator") !=
        std::string::npos);
  nccl_double::reset();
}

TEST_CASE("memory that is registered with two communicators is a window of both", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(3, [](auto& c, auto& wrong) {
    auto others = c.split(0, -c.rank());  // in the other order
    const auto memory = c.registered_memory(c.stream(), 100 * sizeof(affine));
    memory->register_with(others.channel());
    memory->register_with(c.channel());  // is there already
    wrong += memory->bytes() != 4096;
    const std::span<affine> x(static_cast<affine*>(memory->memory()), 100);
    const auto fill = [&] { std::fill(x.begin(), x.end(), affine{3u + static_cast<unsigned>(c.rank()), 7u}); };
    fill();
    hd::all_reduce<by_kernel>(c, x, compose{});
    c.wait();
    wrong += std::count(x.begin(), x.end(), compose{}(compose{}({3, 7}, {4, 7}), {5, 7})) != 100;
    c.barrier();
    fill();
    hd::all_reduce<by_kernel>(others, x, compose{});
    others.wait();
    wrong += std::count(x.begin(), x.end(), compose{}(compose{}({5, 7}, {4, 7}), {3, 7})) != 100;
    c.barrier();
  });
  CHECK(got.error == "");
  CHECK(got.wrong == 0);
  CHECK(got.kernels == 6);
  CHECK(got.calls.at("ncclCommWindowRegister") == 6);
  CHECK(got.calls.at("ncclCommWindowDeregister") == 6);
  CHECK(got.calls.at("ncclMemAlloc") == 3);
  nccl_double::reset();
}

namespace {

// A stage of a rank, as far as its gradients go.
struct lent_stage {
  using scalar = float;
  using space = hd::cuda_memory;
  hd::cuda_memory::queue* order;
  std::int64_t elements;
  std::vector<hd::row_view<float, hd::cuda_memory>> lent{};
  void lend_gradients(hd::row_view<float, hd::cuda_memory> row) { lent.push_back(row); }
  std::int64_t flat_elements() const { return elements; }
  hd::cuda_memory::queue& queue() { return *order; }
};
struct optimizer_of_two_buckets {
  static constexpr int zero_stage = 1;
};
struct lent_stages {
  struct held {
    lent_stage stage;
    optimizer_of_two_buckets optimizer{};
  };
  using stage_type = lent_stage;
  using scalar = float;
  using space = hd::cuda_memory;
  std::vector<held> all;
  template <class F>
  void for_each(F&& f) {
    for (held& h : all) f(h);
  }
};
struct two_groups {
  hd::nccl_communicator *first, *second;
  template <int Bucket>
  hd::nccl_communicator& get() const {
    return Bucket == 0 ? *first : *second;
  }
};

}  // namespace
}  // namespace device_test

template <>
inline constexpr int heddle::train::detail::buckets_of_optimizer<device_test::optimizer_of_two_buckets> = 2;

namespace device_test {

TEST_CASE("gradients in several buckets are registered with each communicator that sums some of them",
          "[nccl][train]") {
  using in_windows = hd::basic_nccl<hd::nccl_settings{.windows = true}>;
  for (const bool alone : {false, true}) {  // whether a bucket is one rank's alone
    CAPTURE(alone);
    nccl_double::reset();
    const outcome got = on_ranks<in_windows>(4, [&](auto& c, auto& wrong) {
      auto part = c.split(alone ? c.rank() : c.rank() / 2, 0);
      hd::cuda_memory::queue queue;
      lent_stages stages{{{{&queue, 1000}}, {{&queue, 0}}, {{&queue, 7}}}};
      two_groups groups{&part, &c};
      {
        const hd::train::registered_parameters<lent_stages, two_groups> memory(stages, groups);
        wrong += memory.bytes() != 1007 * sizeof(float);
        wrong += !stages.all[1].stage.lent.empty();
        for (const std::size_t k : {std::size_t{0}, std::size_t{2}}) {
          const auto& lent = stages.all[k].stage.lent;
          wrong += lent.size() != 2 || lent[0].size() != 0 || lent[1].size() != stages.all[k].stage.elements;
          std::vector<float> zeros(static_cast<std::size_t>(lent[1].size()), 1.0f);
          queue.copy(lent[1], zeros);
          queue.wait();
          wrong += std::count(zeros.begin(), zeros.end(), 0.0f) != lent[1].size();
          const std::size_t bytes = zeros.size() * sizeof(float);
          wrong += c.channel()->window_of(lent[1].address(), bytes) == nullptr;
          wrong += (part.channel()->window_of(lent[1].address(), bytes) == nullptr) != alone;
        }
        c.barrier();
      }
      wrong += c.channel()->window_of(stages.all[0].stage.lent[1].address(), 4) != nullptr;
    });
    CHECK(got.error == "");
    CHECK(got.wrong == 0);
    CHECK(got.calls.at("ncclMemAlloc") == 4 * 2);
    CHECK(got.calls.at("ncclCommWindowRegister") == 4 * 2 * (alone ? 1 : 2));
    CHECK(got.calls.at("ncclCommWindowDeregister") == 4 * 2 * (alone ? 1 : 2));
  }
  nccl_double::reset();
}

TEST_CASE("kernels with the barriers of one device communicator run one after the other on two streams", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto& wrong) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(50);
    std::fill(x.elements().begin(), x.elements().end(), 1.0f);
    cudaStream_t stream = nullptr;
    static_cast<void>(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    {
      auto other = c.on(stream);
      if (c.rank() == 0)  // late on one rank
        cuda_double::enqueue(c.stream(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
      hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
      hd::all_reduce<by_kernel>(other, x.elements(), hd::plus{});
      hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
      c.wait();
      other.wait();
    }
    static_cast<void>(cudaStreamDestroy(stream));
    wrong += std::count(x.elements().begin(), x.elements().end(), 8.0f) != 50;
    c.barrier();
  });
  CHECK(got.error == "");
  CHECK(got.wrong == 0);
  CHECK(got.kernels == 6);
  CHECK(got.calls.at("ncclDevCommCreate") == 2);
  nccl_double::reset();
}

TEST_CASE("a kernel with barriers waits for the last one also on a stream whose handle comes again", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto& wrong) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(50);
    std::fill(x.elements().begin(), x.elements().end(), 1.0f);
    const auto waits = [] { return cuda_double::calls()["cudaStreamWaitEvent"]; };
    hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
    c.barrier();
    const int before = waits();
    c.barrier();
    hd::all_reduce<by_kernel>(c, x.elements(),
                              hd::plus{});  // of the same handle, for all the device communicator knows
    c.barrier();
    wrong += waits() != before + 2;
    wrong += x.elements()[49] != 4.0f;
  });
  CHECK(got.error == "");
  CHECK(got.wrong == 0);
  nccl_double::reset();
}

TEST_CASE("a device communicator needs one LSA team and a communicator that nothing has aborted", "[nccl]") {
  nccl_double::reset();
  nccl_double::lsa_ranks(2);
  const outcome apart = on_ranks(4, [](auto& c, auto&) { hd::nccl_device_comm<3> device(c); });
  CHECK(apart.error.find("nccl_device_comm: expected one LSA team of 4 ranks, GPUs that load and store each other's "
                         "memory, got one of 2") != std::string::npos);
  nccl_double::reset();
  // Where NCCL 2.28 has no symmetric memory, or the library is another than the header's, a sum is NCCL's own.
  for (const bool no_memory : {true, false}) {
    nccl_double::reset();
    nccl_double::symmetric_memory(!no_memory);
    if (!no_memory) nccl_double::version(NCCL_VERSION_CODE + 200);
    const outcome without = on_ranks(2, [](auto& c, auto& wrong) {
      hd::nccl_windows windows(c);
      const auto x = windows.template take<float>(8);
      for (int k = 0; k < 2; ++k) {
        std::fill(x.elements().begin(), x.elements().end(), 1.0f);
        hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
        c.wait();
        wrong += std::count(x.elements().begin(), x.elements().end(), 2.0f) != 8;
      }
      hd::nccl_device_comm<3> device(c);
    });
    CHECK(without.wrong == 0);
    CHECK(without.kernels == 0);
    CHECK(without.calls.at("ncclAllReduce") == 4);
    CHECK(without.error.find(
              no_memory ? "nccl_device_comm: NCCL has no symmetric memory here: expected GPUs that load and store each "
                          "other's memory"
                        : "nccl_device_comm: expected the library of the header that this program was compiled with") !=
          std::string::npos);
  }
  nccl_double::reset();
  const outcome late = on_ranks(2, [](auto& c, auto& wrong) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(8);
    const auto at = hd::detail::place_in_window(*c.channel(), x.elements().data(), 8 * sizeof(float));
    const hd::nccl_device_comm<3> device(c);
    c.barrier();
    hd::detail::nccl_channel::abort_all(c.channel()->site(), "heddle: a test has had enough");
    try {
      hd::launch_with_barriers(
          hd::nccl_grid<3, 64>{}, device, c.stream(),
          hd::detail::peer_fold<float, hd::plus, hd::detail::nccl_place>{{}, 8, at->place, at->place});
      ++wrong;
    } catch (const hd::aborted_error& e) {
      wrong += std::string(e.what()).find("a test has had enough") == std::string::npos;
    }
  });
  CHECK(late.wrong == 0);
  CHECK(late.kernels == 0);
  nccl_double::reset();
}

TEST_CASE("windows and kernels with barriers are on the device of a communicator that others have made", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto& wrong) {
    const int of_communicator = cuda_double::current_device();
    const int other = 1 - of_communicator;
    {
      auto same = hd::nccl_communicator::borrow(c.native(), c.stream());
      static_cast<void>(cudaSetDevice(other));
      hd::nccl_windows windows(same);
      const auto x = windows.template take<float>(5);
      wrong += nccl_double::device_of(x.elements().data()) != of_communicator;
      std::fill(x.elements().begin(), x.elements().end(), 1.0f);
      hd::all_reduce<by_kernel>(same, x.elements(), hd::plus{});
      same.wait();
      wrong += x.elements()[4] != 2.0f;
      wrong += cuda_double::current_device() != other;
      same.barrier();
    }
    static_cast<void>(cudaSetDevice(of_communicator));
    c.barrier();
  });
  CHECK(got.error == "");
  CHECK(got.wrong == 0);
  CHECK(got.kernels == 2);
  nccl_double::reset();
}

TEST_CASE("ranks that name different windows in one all-reduce are found at the next barrier", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto&) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(8), y = windows.template take<float>(8);
    hd::all_reduce<by_kernel>(c, (c.rank() == 0 ? x : y).elements(), hd::plus{});
    c.barrier();
  });
  CHECK(got.error.find("the ranks' collectives differ") != std::string::npos);
  nccl_double::reset();
}

TEST_CASE("a window that an exception ends does not wait for its stream", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto& wrong) {
    const auto told = std::make_shared<std::atomic<bool>>(false);
    struct teller {
      std::atomic<bool>& told;
      ~teller() { told = true; }
    } const at_end{*told};
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(50);
    if (c.rank() == 1) {
      cuda_double::enqueue(c.stream(), [told, &wrong] {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        while (!*told && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        wrong += !*told;
      });
      throw hd::config_error("heddle: rank one has had enough");
    }
    c.barrier();
  });
  CHECK(got.error.find("rank one has had enough") != std::string::npos);
  CHECK(got.wrong == 0);
  nccl_double::reset();
}

TEST_CASE("a rank that fails after the device API's all-reduce ends the others", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto&) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(50);
    hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
    c.wait();
    if (c.rank() == 1) throw hd::config_error("heddle: rank one has had enough");
    hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
    c.wait();
  });
  CHECK(got.error.find("rank one has had enough") != std::string::npos);
  nccl_double::reset();
}

TEST_CASE("a device communicator that NCCL cannot make is an error with its text", "[nccl]") {
  nccl_double::reset();
  const outcome got = on_ranks(2, [](auto& c, auto&) {
    hd::nccl_windows windows(c);
    const auto x = windows.template take<float>(50);
    nccl_double::fail_next("ncclDevCommCreate", ncclSystemError);
    hd::all_reduce<by_kernel>(c, x.elements(), hd::plus{});
  });
  CHECK(got.error.find("ncclDevCommCreate: unhandled system error") != std::string::npos);
  nccl_double::reset();
}

#endif

}  // namespace device_test
