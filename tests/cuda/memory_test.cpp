// Memory of CUDA devices: over a stand-in for the runtime (CUDA_DOUBLE), and on a GPU where there is one.
#include <heddle/tensor/cuda/memory.hpp>
#include <heddle/tensor/expected_memory.hpp>

#include "tensor/memory_laws.hpp"

#ifdef CUDA_DOUBLE
#include "double.hpp"
#endif

#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {
namespace hd = heddle;
using device = hd::cuda_memory;
using pinned = hd::cuda_pinned_memory;
}  // namespace

TEST_CASE("memory of a device and pinned memory are spaces of their own", "[cuda][law]") {
  memory_laws::is_a_space_of_its_own<device>();
  memory_laws::is_a_space_of_its_own<pinned>();
  STATIC_REQUIRE_FALSE(hd::host_accessible_space<device>);
  STATIC_REQUIRE(hd::host_accessible_space<pinned>);
  STATIC_REQUIRE_FALSE(hd::runs_host_code<device::queue>);
  STATIC_REQUIRE(hd::runs_host_code<pinned::queue>);
  STATIC_REQUIRE(hd::concurrent_queue<device::queue>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<hd::matrix_view<float, pinned>, hd::matrix_view<float, device>>);
}

TEST_CASE("a queue of a device keeps pinned memory for copies of messages, which grows", "[cuda]") {
  device::queue queue;
  void* const first = queue.staging(0, 100);
  CHECK(queue.staging(0, 50) == first);
  CHECK(queue.staging(1, 100) != first);
  auto* const grown = static_cast<char*>(queue.staging(0, 1 << 20));
  grown[(1 << 20) - 1] = 7;
  device::queue moved = std::move(queue);
  CHECK(moved.staging(0, 1 << 20) == grown);
}

TEST_CASE("what goes into memory that CUDA gives comes out of it", "[cuda]") {
  device::queue queue;
  pinned::queue same(queue), own;
  memory_laws::what_goes_in_comes_out<device>(queue);
  memory_laws::what_goes_in_comes_out<pinned>(same);
  memory_laws::what_goes_in_comes_out<pinned>(own);
  memory_laws::outlives_its_queue<device>();
  memory_laws::outlives_its_queue<pinned>();
  memory_laws::errors_name_the_numbers<device>(queue);
  memory_laws::errors_name_the_numbers<pinned>(same);
  memory_laws::sharded_parts_come_back<device>(queue);
  CHECK(same.stream() == queue.stream());
  CHECK(own.stream() != queue.stream());
}

TEST_CASE("events put queues of CUDA streams in order", "[cuda]") {
  memory_laws::events_order_queues<device>();
  memory_laws::events_order_queues<pinned>();
}

TEST_CASE("pinned memory and a device's exchange elements in the order of one stream", "[cuda]") {
  device::queue queue;
  pinned::queue staging(queue);
  hd::buffer<int, pinned> in(staging, 1000), out(staging, 1000);
  hd::buffer<int, device> there(queue, 1000);
  for (int round = 1; round < 5; ++round) {
    std::iota(in.begin(), in.end(), round);
    queue.copy(in, there);
    queue.copy(there, out);
    queue.zero(there);
    queue.wait();
    CHECK(std::vector<int>(out.begin(), out.end()) == std::vector<int>(in.begin(), in.end()));
    int sum = 0;
    staging.run([&](auto x) { sum = std::accumulate(x.elements().begin(), x.elements().end(), 0); }, out.view());
    CHECK(sum == 1000 * round + 999 * 500);
  }
}

TEST_CASE("a device that is not there is named", "[cuda]") {
  CHECK_THROWS_WITH(device::queue(1000), Catch::Contains("no CUDA device 1000: this process has"));
  CHECK_THROWS_AS(pinned::queue(-1), hd::config_error);
}

#ifdef CUDA_DOUBLE
TEST_CASE("copies from and to pinned memory do not make the host wait", "[cuda]") {
  device::queue queue;
  pinned::queue staging(queue);
  hd::buffer<int, pinned> in(staging, 10), out(staging, 10);
  hd::buffer<int, device> there(queue, 10);
  std::iota(in.begin(), in.end(), 1);
  std::atomic<bool> go{false};
  cuda_double::enqueue(queue.stream(), [&] { go.wait(false); });
  queue.copy(in, there);  // would never return if it waited
  queue.copy(there, out);
  CHECK(out[9] == 0);
  go = true;
  go.notify_all();
  queue.wait();
  CHECK(out[9] == 10);
}

TEST_CASE("memory is given back in the order of its stream, streams when nothing of them is left", "[cuda]") {
  cuda_double::reset();
  const int before = cuda_double::open_resources();
  std::vector<int> out(10, -1);
  {
    device::queue queue;
    std::atomic<bool> go{false};
    cuda_double::enqueue(queue.stream(), [&] { go.wait(false); });
    hd::buffer<int, device> a(queue, 10), b(queue, 10);
    {
      const hd::buffer<int, device> brief(queue, 10);  // zeroes, which are copied after its end
      queue.copy(brief, b);
    }
    CHECK(cuda_double::calls()["cudaFreeAsync"] == 1);
    CHECK(cuda_double::open_resources() == before + 4);  // the stream, and three memories: nothing was done yet
    go = true;
    go.notify_all();
    queue.copy(b, out);
    CHECK(cuda_double::open_resources() == before + 3);
    const auto event = queue.record();
    CHECK(cuda_double::open_resources() == before + 4);
  }
  CHECK(out == std::vector<int>(10, 0));
  CHECK(cuda_double::open_resources() == before);
  CHECK(cuda_double::calls()["cudaMalloc"] + cuda_double::calls()["cudaFree"] == 0);  // those wait for the whole device
}

TEST_CASE("queues work on their device, whatever the thread's is", "[cuda]") {
  cuda_double::reset();
  device::queue third(3);
  const auto event = third.record();  // CUDA refuses that where the thread's device is another
  auto beside = third.beside();
  beside.after(event);
  CHECK(beside.device() == 3);
  CHECK(cuda_double::current_device() == 0);
  CHECK_THROWS_WITH(device::queue(2, third.stream()), "heddle: a queue of CUDA device 2 got a stream of device 3");
  CHECK(device::queue(3, third.stream()).device() == 3);
  CHECK(cudaSetDevice(5) == cudaSuccess);
  CHECK(device::queue().device() == 5);  // the thread's
  CHECK(cudaSetDevice(0) == cudaSuccess);
  cuda_double::devices(4, 1000);
  CHECK_THROWS_WITH((hd::buffer<double, device>(third, 200, "the weights")),
                    "heddle: no memory for the weights: 200 elements of 8 bytes are 1600 bytes; 1000 are free there");
  const hd::buffer<double, device> fits(third, 100);
  CHECK(third.free_bytes() == 200);
  const hd::expected_memory predicted([] { return "the strategy predicted 900 bytes on this rank"; });
  CHECK_THROWS_WITH(
      (hd::buffer<double, device>(third, 26, "moments")),
      "heddle: no memory for moments: 26 elements of 8 bytes are 208 bytes; 200 are free there; the strategy "
      "predicted 900 bytes on this rank");
  third.wait();
  cuda_double::reset();
}

TEST_CASE("a device's pool keeps what is given back to it until it is told not to", "[cuda]") {
  cuda_double::reset();
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetMemPool(&pool, 6) == cudaSuccess);
  std::uint64_t threshold = 4096;
  REQUIRE(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
  device::queue other(6);  // the first of this device, whose program has a threshold of its own
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
  CHECK(threshold == 4096);
  device::queue queue(7);
  REQUIRE(cudaDeviceGetMemPool(&pool, 7) == cudaSuccess);
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
  CHECK(threshold == (std::numeric_limits<std::uint64_t>::max)());
  const auto free_for_others = [] {
    std::size_t free = 0, all = 0;
    CHECK(cudaSetDevice(7) == cudaSuccess);
    CHECK(cudaMemGetInfo(&free, &all) == cudaSuccess);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    return free;
  };
  queue.release_kept();
  const std::size_t before = free_for_others(), mine = queue.free_bytes();
  CHECK(before == mine);
  {
    const hd::buffer<double, device> x(queue, 1000);
  }
  queue.wait();
  CHECK(free_for_others() == before - 8000);
  CHECK(queue.free_bytes() == mine);  // those bytes are still to be had here
  queue.release_kept();
  CHECK(free_for_others() == before);
  for (const char* call : {"cudaDeviceGetMemPool", "cudaMemPoolTrimTo", "cudaDeviceGraphMemTrim"}) {
    cuda_double::fail_next(call, cudaErrorIllegalAddress);
    CHECK_THROWS_WITH(queue.release_kept(),
                      std::string("heddle: ") + call + " on CUDA device 7: an error of the double");
  }
}

TEST_CASE("what CUDA refuses names the call and the device", "[cuda]") {
  cuda_double::reset();
  device::queue queue(2);
  hd::buffer<int, device> a(queue, 4);
  std::vector<int> four(4);
  for (const char* call :
       {"cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaEventCreateWithFlags", "cudaEventRecord"}) {
    CAPTURE(call);
    cuda_double::fail_next(call, cudaErrorIllegalAddress);
    const auto all = [&] {
      queue.copy(four, a);
      queue.zero(a);
      queue.wait();
      queue.after(queue.record());
    };
    CHECK_THROWS_WITH(all(), std::string("heddle: ") + call + " on CUDA device 2: an error of the double");
    CHECK(cudaGetLastError() == cudaSuccess);
    all();
  }
  cuda_double::fail_next("cudaMallocAsync", cudaErrorIllegalAddress);
  CHECK_THROWS_AS((hd::buffer<int, device>(queue, 4)), hd::cuda_error);
  cuda_double::devices(0);
  CHECK_THROWS_WITH(device::queue(),
                    "heddle: there is no CUDA device 0: this process has 0 (no CUDA-capable device is detected)");
  cuda_double::reset();
  queue.wait();
}
#endif
