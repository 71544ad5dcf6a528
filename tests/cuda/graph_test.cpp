// CUDA graphs: over a stand-in for the runtime (CUDA_DOUBLE), and on a GPU where there is one.
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/graph.hpp>

#include "catch.hpp"

#ifdef CUDA_DOUBLE
#include "double.hpp"
#endif

#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {
namespace hd = heddle;
using device = hd::cuda_memory;
using pinned = hd::cuda_pinned_memory;

std::vector<int> here(device::queue& queue, const hd::buffer<int, device>& x) {
  std::vector<int> out(x.size());
  queue.copy(x, out);
  queue.wait();
  return out;
}
std::vector<int> counted_from(int first) {
  std::vector<int> out(100);
  std::iota(out.begin(), out.end(), first);
  return out;
}
}  // namespace

TEST_CASE("a graph does what was captured at each launch, and nothing before", "[cuda][graph]") {
  device::queue queue;
  pinned::queue staging(queue);
  hd::buffer<int, pinned> in(staging, 100), out(staging, 100);
  hd::buffer<int, device> a(queue, 100), b(queue, 100);
  queue.wait();
  auto graph = hd::cuda_graph::capture(queue, [&] {
    queue.copy(in, a);
    const hd::buffer<int, device> brief(queue, 100);  // of the graph: zeros
    queue.copy(a, b);
    queue.copy(brief, a);
    queue.copy(b, out);
  });
  CHECK(graph.operations() >= 5);
  for (int step = 1; step < 4; ++step) {
    std::iota(in.begin(), in.end(), step);  // the graph reads it when it runs
    queue.wait();
    if (step == 1) CHECK(out[7] == 0);
    graph.launch(queue);
    queue.wait();
    CHECK(std::vector<int>(out.begin(), out.end()) == counted_from(step));
    CHECK(here(queue, a) == std::vector<int>(100));
  }
}

TEST_CASE("a graph copies from and to memory of the host that is pinned, however it is named", "[cuda][graph]") {
  device::queue queue;
  pinned::queue staging(queue);
  hd::buffer<int, pinned> in(staging, 100), out(staging, 100);
  hd::buffer<int, device> a(queue, 100);
  queue.wait();
  const std::span<int> from(in), to(out);
  auto graph = hd::cuda_graph::capture(queue, [&] {
    queue.copy(from.subspan(50), hd::row_at<device>(a.address(), 50));
    queue.copy(a, to);
  });
  std::iota(in.begin(), in.end(), 1);
  graph.launch(queue);
  queue.wait();
  CHECK(out[0] == 51);
  CHECK(out[49] == 100);
}

TEST_CASE("side queues of a capture begin with it and end in it, and events order them", "[cuda][graph]") {
  device::queue queue;
  device::queue left = queue.beside(), right = queue.beside();
  hd::buffer<int, device> a(queue, 100), b(queue, 100), c(queue, 100), d(queue, 100);
  queue.copy(counted_from(5), a);
  queue.wait();
  auto graph = hd::cuda_graph::capture(
      queue,
      [&] {
        left.copy(a, b);
        const auto is_there = left.record();
        right.after(is_there);
        right.copy(b, c);
        queue.after(is_there);
        queue.copy(b, d);
      },
      left, right);
  queue.zero(b);
  graph.launch(queue);
  CHECK(here(queue, c) == counted_from(5));
  CHECK(here(queue, d) == counted_from(5));
  left.zero(a);  // as before: none is captured any more
  left.wait();
  graph.launch(queue);
  CHECK(here(queue, d) == std::vector<int>(100));
}

TEST_CASE("an update changes addresses and values, or makes the graph anew", "[cuda][graph]") {
  device::queue queue;
  hd::buffer<int, device> a(queue, 100), b(queue, 100), c(queue, 100);
  queue.copy(counted_from(1), a);
  queue.copy(counted_from(2), b);
  queue.wait();
  hd::cuda_graph graph;
  CHECK_THROWS_WITH(graph.launch(queue), "heddle: a CUDA graph is launched that was not captured");
  CHECK_FALSE(graph.update(queue, [&] { queue.copy(a, c); }));
  graph.launch(queue);
  CHECK(here(queue, c) == counted_from(1));
  CHECK(graph.update(queue, [&] { queue.copy(b, c); }));
  graph.launch(queue);
  CHECK(here(queue, c) == counted_from(2));
  CHECK_FALSE(graph.update(queue, [&] {
    queue.zero(b);
    queue.copy(b, c);
  }));
  graph.launch(queue);
  CHECK(here(queue, c) == std::vector<int>(100));
  CHECK_THROWS_AS(graph.update(queue, [&] { queue.wait(); }), hd::cuda_capture_error);
  graph.launch(queue);  // as before
  CHECK(here(queue, b) == std::vector<int>(100));
}

TEST_CASE("what may not be part of a graph is named, and the queues are as before", "[cuda][graph]") {
  device::queue queue, other;
  device::queue side = queue.beside();
  std::vector<int> host(100);
  hd::buffer<int, device> a(queue, 100), b(queue, 100);
  queue.wait();
  const auto outside = other.record();
  const auto still_works = [&] {
    queue.copy(counted_from(3), a);
    queue.copy(a, b);
    CHECK(here(queue, b) == counted_from(3));
    queue.zero(b);
    side.wait();
    CHECK(hd::cuda_graph::capture(queue, [&] { queue.zero(b); }, side).operations() == 1);
  };
  const auto refused = [&](const char* text, auto body) {
    CAPTURE(text);
    CHECK_THROWS_AS(hd::cuda_graph::capture(queue, body), hd::cuda_capture_error);
    CHECK_THROWS_WITH(hd::cuda_graph::capture(queue, body), Catch::Contains(text));
    still_works();
  };
  refused(
      "cudaStreamSynchronize on CUDA device 0: may not be part of a graph: nothing that is captured waits on the host",
      [&] { queue.wait(); });
  refused("a copy from or to the host's memory on CUDA device 0: may not be part of a graph",
          [&] { queue.copy(host, a); });
  refused("a copy from or to the host's memory", [&] { queue.copy(a, host); });
  refused("cannot wait for an event from outside the capture", [&] { queue.after(outside); });
  refused("a queue took part in the capture that the captured one does not wait for", [&] {
    side.after(queue.record());
    side.zero(a);
  });
  {
    std::vector<hd::buffer<int, device>> before;  // one for each try
    before.emplace_back(queue, 100);
    before.emplace_back(queue, 100);
    queue.wait();
    refused("memory was released that was taken before the capture", [&] {
      queue.copy(a, before.back());
      before.pop_back();
    });
    CHECK(before.empty());
  }
  hd::buffer<int, device> kept;
  CHECK_THROWS_WITH(hd::cuda_graph::capture(queue, [&] { kept = hd::buffer<int, device>(queue, 100); }),
                    Catch::Contains("it takes memory 1 times and gives it back 0 times"));
  kept = {};
  still_works();
  struct mine {};
  CHECK_THROWS_AS(hd::cuda_graph::capture(queue, [&] { throw mine{}; }), mine);
  still_works();
}

namespace {
// On a thread of its own, which has ended when this returns; what it has thrown.
template <class Body>
std::string on_a_thread(const Body& body) {
  std::string text;
  std::thread([&] {
    try {
      body();
    } catch (const hd::cuda_error& e) {
      text = e.what();
    }
  }).join();
  return text;
}
}  // namespace

TEST_CASE("queues of several threads are captured as one graph", "[cuda][graph]") {
  device::queue queue, other, third;
  hd::buffer<int, device> a(queue, 100), b(other, 100), c(third, 100);
  for (device::queue* const q : {&queue, &other, &third}) q->wait();
  hd::cuda_graph graph;
  {
    hd::cuda_graph::joint_capture capture(queue);
    queue.copy(a, b);
    const auto copied = queue.record();
    CHECK(on_a_thread([&] {
            capture.join(other);
            capture.join(third);
            const hd::buffer<int, device> brief(other, 100);
            third.after(copied);
            third.copy(b, c);
            const auto read = third.record();
            other.after(read);
            other.copy(brief, b);
          }) == "");
    graph = capture.end();
  }
  queue.copy(counted_from(7), a);
  for (int launch = 0; launch < 2; ++launch) {
    graph.launch(queue);
    CHECK(here(queue, c) == counted_from(7));
    CHECK(here(queue, b) == std::vector<int>(100));
  }
  third.zero(c);  // as before
  third.wait();

  // One that ends on another thread, that is given up, or in which memory from before is released.
  {
    hd::cuda_graph::joint_capture capture(queue);
    CHECK(on_a_thread([&] { static_cast<void>(capture.end()); }) ==
          "heddle: the end of a capture (cudaStreamEndCapture) on CUDA device 0: a capture ends on the thread on which "
          "it began");
  }
  std::string text;
  try {
    hd::cuda_graph::joint_capture capture(queue);
    CHECK(on_a_thread([&] {
            capture.join(other);
            b = {};
          }) == "");
    static_cast<void>(capture.end());
  } catch (const hd::cuda_capture_error& e) {
    text = e.what();
  }
  CHECK_THAT(text, Catch::Contains("memory was released that was taken before the capture"));
  for (device::queue* const q : {&queue, &other, &third}) {
    q->zero(a);
    q->wait();
  }
}

#ifdef CUDA_DOUBLE
TEST_CASE("the stand-in knows which threads take part in a capture", "[cuda][graph]") {
  device::queue queue, other;
  hd::buffer<int, device> a(other, 10);
  other.wait();
  {
    hd::cuda_graph::joint_capture capture(queue);
    CHECK(on_a_thread([&] { capture.join(other); }) == "");
    {
      const auto call = cuda_double::call_in_capture(queue.stream());
      static_cast<void>(on_a_thread([&] { other.zero(a); }));
    }
    CHECK_THROWS_WITH(capture.end(),
                      "heddle: the end of a capture (cudaStreamEndCapture) on CUDA device 0: an error of the double");
  }
  // What CUDA would not see ends a capture of the same thread, and of no other.
  void* memory = nullptr;
  CHECK_THROWS_AS(hd::cuda_graph::capture(queue, [&] { static_cast<void>(cudaMalloc(&memory, 8)); }),
                  hd::cuda_capture_error);
  CHECK(memory == nullptr);
  CHECK(hd::cuda_graph::capture(queue, [&] {
          CHECK(on_a_thread([&] { static_cast<void>(cudaMalloc(&memory, 8)); }) == "");
        }).operations() == 0);
  CHECK(cudaFree(memory) == cudaSuccess);
  for (device::queue* const q : {&queue, &other}) {
    q->zero(a);
    q->wait();
  }
}

TEST_CASE("the stand-in refuses a read that does not wait for its write", "[cuda][graph]") {
  device::queue queue;
  device::queue side = queue.beside();
  hd::buffer<int, device> a(queue, 100), b(queue, 100), c(queue, 100);
  queue.wait();
  CHECK_THROWS_WITH(hd::cuda_graph::capture(
                        queue,
                        [&] {
                          queue.copy(a, b);
                          side.copy(b, c);  // waits for the begin alone
                        },
                        side),
                    "heddle: the end of a capture (cudaStreamEndCapture) on CUDA device 0: an error of the double");
  // Jobs whose memory the stand-in does not know run in an order as far from the capture's as events allow.
  std::vector<int> order;
  auto graph = hd::cuda_graph::capture(
      queue,
      [&] {
        cuda_double::enqueue(queue.stream(), [&] { order.push_back(1); });
        cuda_double::enqueue(side.stream(), [&] { order.push_back(2); });
      },
      side);
  graph.launch(queue);
  queue.wait();
  CHECK(order == std::vector<int>{2, 1});
}

TEST_CASE("graphs give back what they took", "[cuda][graph]") {
  cuda_double::reset();
  const int before = cuda_double::open_resources();
  {
    device::queue queue;
    hd::buffer<int, device> a(queue, 100);
    queue.wait();
    const auto body = [&] {
      const hd::buffer<int, device> brief(queue, 100);
      queue.copy(brief, a);
    };
    auto graph = hd::cuda_graph::capture(queue, body);
    CHECK(graph.update(queue, body));
    graph.launch(queue);
    CHECK_THROWS_AS(hd::cuda_graph::capture(queue, [&] { queue.wait(); }), hd::cuda_capture_error);
    for (const char* call : {"cudaStreamBeginCapture", "cudaGraphInstantiate"}) {
      cuda_double::fail_next(call, cudaErrorIllegalAddress);
      CHECK_THROWS_WITH(hd::cuda_graph::capture(queue, body),
                        std::string("heddle: ") + call + " on CUDA device 0: an error of the double");
    }
    cuda_double::fail_next("cudaGraphLaunch", cudaErrorIllegalAddress);
    CHECK_THROWS_AS(graph.launch(queue), hd::cuda_error);
    device::queue third(3);
    CHECK_THROWS_WITH(graph.launch(third), "heddle: a CUDA graph of device 0 is launched on a queue of device 3");
    queue.wait();
  }
  CHECK(cuda_double::open_resources() == before);
}

TEST_CASE("a graph that CUDA has no memory for is an error of memory", "[cuda][graph]") {
  device::queue queue;
  hd::buffer<int, device> a(queue, 100), b(queue, 100);
  const auto body = [&] { queue.copy(a, b); };
  cuda_double::fail_next("cudaGraphInstantiate", cudaErrorMemoryAllocation);
  CHECK_THROWS_AS(hd::cuda_graph::capture(queue, body), hd::memory_error);
  auto graph = hd::cuda_graph::capture(queue, body);
  cuda_double::fail_next("cudaGraphLaunch", cudaErrorMemoryAllocation);
  std::string text;
  try {
    graph.launch(queue);
  } catch (const hd::memory_error& e) {
    text = e.what();
  }
  CHECK_THAT(text, Catch::Contains("no memory left for what a graph takes (cudaGraphLaunch)") &&
                       Catch::Contains(std::to_string(queue.free_bytes()) + " bytes are free"));
  graph.launch(queue);
  queue.wait();
}

TEST_CASE("memory that graphs leave behind is counted as free, and released", "[cuda][graph]") {
  cuda_double::reset();
  cuda_double::devices(8, 10'000);
  {
    device::queue queue(5);
    hd::buffer<int, device> a(queue, 1000);
    queue.wait();
    const auto of_bytes = [&](std::int64_t n) {
      return hd::cuda_graph::capture(queue, [&, n] { const hd::buffer<std::byte, device> brief(queue, n); });
    };
    CHECK(queue.free_bytes() == 6000);
    {
      const auto graph = of_bytes(4000);
      CHECK(queue.free_bytes() == 2000);
      queue.release_kept();
      CHECK(queue.free_bytes() == 2000);  // that of a graph that is there stays
    }
    const auto free_for_others = [] {
      std::size_t free = 0, all = 0;
      CHECK(cudaSetDevice(5) == cudaSuccess);
      CHECK(cudaMemGetInfo(&free, &all) == cudaSuccess);
      CHECK(cudaSetDevice(0) == cudaSuccess);
      return free;
    };
    CHECK(free_for_others() == 2000);
    CHECK(queue.free_bytes() == 6000);  // 4000 of them are the next graph's
    CHECK(of_bytes(6000));
    CHECK(free_for_others() == 0);
    CHECK_THROWS_AS((hd::buffer<std::byte, device>(queue, 5000)), hd::memory_error);
    queue.release_kept();
    CHECK(free_for_others() == 6000);
    const hd::buffer<std::byte, device> now(queue, 5000);
    CHECK(queue.free_bytes() == 1000);
    for (const char* call : {"cudaMemGetInfo", "cudaMemPoolGetAttribute", "cudaDeviceGetGraphMemAttribute"}) {
      cuda_double::fail_next(call, cudaErrorIllegalAddress);
      CHECK_THROWS_WITH(queue.free_bytes(),
                        std::string("heddle: ") + call + " on CUDA device 5: an error of the double");
    }
  }
  cuda_double::reset();
}
#endif
