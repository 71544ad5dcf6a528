// Times that the device gives actions: over a stand-in for the runtime (CUDA_DOUBLE), and on a GPU where there is one.
#include <heddle/core/observers.hpp>
#include <heddle/observe/chrome_trace.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/device_times.hpp>
#include <heddle/tensor/cuda/graph.hpp>

#include "catch.hpp"

#ifdef CUDA_DOUBLE
#include "double.hpp"
#endif

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace {
namespace hd = heddle;
using device = hd::cuda_memory;
using hd::activity;

hd::event named(const char* name, activity kind, int step) {
  hd::event e;
  e.kind = kind;
  e.name = name;
  e.rank = 1;
  e.step = step;
  return e;
}
}  // namespace

TEST_CASE("actions have the device's times beside the host's, read without waiting for the stream", "[cuda][observe]") {
  hd::observe::recorder host(2), on_device(2);
  {
    hd::cuda_device_times times(on_device, 2);
    hd::observers watch(host, times);
    device::queue queue;
    hd::buffer<int, device> x(queue, 1 << 16), y(queue, 1 << 16);
    watch.follow(1, queue);
    watch.follow(1, queue);  // as before
#ifdef CUDA_DOUBLE
    cuda_double::reset();
#endif
    for (int step = 0; step < 20; ++step) {
      hd::observed(watch, named("forward", activity::forward, step), [&] {
        queue.copy(x, y);
        hd::observed(watch, named("all_reduce", activity::collective, step), [&] {
#ifdef CUDA_DOUBLE
          cuda_double::enqueue(queue.stream(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
#endif
          queue.copy(y, x);
        });
      });
      hd::observed(watch, named("send forward", activity::send, step), [] {});
      if (step % 5 != 4) continue;
      const auto graph = hd::cuda_graph::capture(queue, [&] {  // not of the stream
        hd::observed(watch, named("optimizer", activity::optimizer, step), [&] { queue.copy(x, y); });
      });
#ifdef CUDA_DOUBLE
      auto calls = cuda_double::calls();
      CHECK(calls["cudaEventSynchronize"] == 0);
      CHECK(calls["cudaStreamSynchronize"] == step / 5);  // the test's own
#endif
      queue.wait();
      times.collect(1);
      CHECK(on_device.events(1).size() == static_cast<std::size_t>(2 * step + 2));
    }
    times.finish();
    CHECK(times.dropped() == 0);
    CHECK(times.events_made() <= 5 + 4 * 5);  // of five steps at once, and those of the first comparison of clocks
  }
  const auto told = on_device.events();
  REQUIRE(told.size() == 40);
  CHECK(host.events().size() == 64);
  for (std::size_t i = 0; i < told.size(); i += 2) {
    const hd::event &outer = told[i], &inner = told[i + 1];
    CHECK(std::string(outer.name) == "forward");
    CHECK(inner.kind == activity::collective);
    CHECK(outer.step == static_cast<int>(i / 2));
    CHECK(outer.begin_ns <= inner.begin_ns);
    CHECK(inner.end_ns <= outer.end_ns);
    if (i > 0) CHECK(told[i - 2].end_ns <= outer.begin_ns);
#ifdef CUDA_DOUBLE
    CHECK(inner.end_ns - inner.begin_ns > 1'900'000);
#endif
  }
  hd::observe::trace_metadata about;
  about.device = told;
  const std::string trace = hd::observe::chrome_trace(host.events(), about);
  CHECK(trace.find("{\"name\":\"rank 1\"}") != std::string::npos);
  CHECK(trace.find("{\"name\":\"rank 1, device\"}") != std::string::npos);
  CHECK(trace.find("overlapping") == std::string::npos);
}

TEST_CASE("messages between stages and launches of graphs have the device's times on streams of their own",
          "[cuda][observe]") {
  hd::observe::recorder host(2), on_device(2);
  constexpr int steps = 3;
  {
    hd::cuda_device_times times(on_device, 2);
    hd::observers watch(host, times);
    device::queue queue;
    hd::buffer<int, device> x(queue, 1 << 10), y(queue, 1 << 10), sent(queue, 1 << 10), got(queue, 1 << 10);
    queue.wait();
    device::queue up = queue.beside(), down = queue.beside(), another = queue.beside();
    watch.follow(1, queue);
    watch.follow_messages(1, 0, up);
    watch.follow_messages(1, 1, down);
    watch.follow_messages(1, 1, down);  // as before
    auto graph = hd::cuda_graph::capture(queue, [&] {
      queue.copy(x, y);
      queue.copy(y, x);
    });
    const auto message = [&](device::queue& q, activity kind, int step, hd::buffer<int, device>& of) {
      hd::event e = named(kind == activity::send ? "send forward" : "recv backward", kind, step);
      e.flow = static_cast<std::uint64_t>(step) + 1;
      watch.begin_message(e, q);
#ifdef CUDA_DOUBLE
      cuda_double::enqueue(q.stream(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
#endif
      q.zero(of);
      watch.end_message(e, q);
    };
    for (int step = 0; step < steps; ++step) {
      graph.launch(queue, watch, 1, step);
      message(up, activity::send, step, sent);
      message(down, activity::recv, step, got);
      message(another, activity::send, step, sent);  // nobody follows that
      another.wait();
      up.wait();
    }
    for (device::queue* const q : {&queue, &up, &down}) q->wait();
    times.collect(1);
    CHECK(times.dropped() == 0);
    CHECK(on_device.events(1).size() == 3 * steps);
    CHECK_THROWS_AS(times.follow_messages(2, 0, up), hd::config_error);
    CHECK_THROWS_AS(times.follow_messages(1, 2, up), hd::config_error);
  }
  CHECK(host.events().size() == steps);  // the host's side of messages is the executor's to tell
  int graphs = 0, sends = 0, receives = 0;
  for (const hd::event& e : on_device.events()) {
    graphs += std::string(e.name) == "graph" && e.kind == activity::other ? 1 : 0;
    sends += e.kind == activity::send ? 1 : 0;
    receives += e.kind == activity::recv ? 1 : 0;
    CHECK(e.end_ns >= e.begin_ns);
#ifdef CUDA_DOUBLE
    if (e.kind == activity::send) CHECK(e.end_ns - e.begin_ns > 1'900'000);
#endif
  }
  CHECK(graphs == steps);
  CHECK(sends == steps);
  CHECK(receives == steps);
  hd::observe::trace_metadata about;
  about.device = on_device.events();
  const std::string trace = hd::observe::chrome_trace(host.events(), about);
  for (const char* track : {"rank 1", "rank 1, device", "rank 1, device messages"})
    CHECK(trace.find("{\"name\":\"" + std::string(track) + "\"}") != std::string::npos);
  std::size_t arrows = 0;
  for (std::size_t at = trace.find("\"ph\":\"s\""); at != std::string::npos; at = trace.find("\"ph\":\"s\"", at + 1))
    ++arrows;
  CHECK(arrows == steps);
}

TEST_CASE("times of a stream are read while its thread captures another, and the capture goes on",
          "[cuda][observe][graph]") {
  hd::observe::recorder on_device(2);
  {
    hd::cuda_device_times times(on_device, 2);
    device::queue queue, captured;
    hd::buffer<int, device> x(queue, 1 << 10), y(queue, 1 << 10);
    times.follow(1, queue);
    const auto act = [&](int step) {
      hd::observed(times, named("forward", activity::forward, step), [&] { queue.copy(x, y); });
    };
    act(0);
    queue.wait();
    const auto graph = hd::cuda_graph::capture(captured, [&] {
      captured.copy(x, y);
      times.collect(1);  // asks for an event
      CHECK(on_device.events(1).size() == 1);
      act(1);
      times.finish();  // and waits for one
      captured.copy(y, x);
    });
    CHECK(graph.operations() == 2);
    CHECK(times.dropped() == 0);
  }
  CHECK(on_device.events(1).size() == 2);
}

#ifdef CUDA_DOUBLE
TEST_CASE("a thread that captures a stream may not ask what another has done, unless it is relaxed", "[cuda][graph]") {
  device::queue queue, captured;
  const auto recorded = queue.record();
  queue.wait();
  const auto asks = [&] { static_cast<void>(cudaEventQuery(recorded.get())); };
  CHECK_THROWS_AS(hd::cuda_graph::capture(captured, asks), hd::cuda_capture_error);
  CHECK_THROWS_AS(hd::cuda_graph::capture(captured, [&] { queue.wait(); }), hd::cuda_capture_error);
  CHECK_NOTHROW(hd::cuda_graph::capture(captured, [&] {
    const hd::detail::relaxed_in_capture relaxed;
    asks();
  }));
  CHECK_THROWS_AS(hd::cuda_graph::capture(captured, asks), hd::cuda_capture_error);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("an action whose events CUDA refuses is counted, and ends no training", "[cuda][observe]") {
  cuda_double::reset();
  const int before = cuda_double::open_resources();
  {
    hd::observe::recorder on_device(2);
    hd::cuda_device_times times(on_device, 2);
    device::queue queue;
    times.follow(1, queue);
    const auto act = [&] { return hd::observed(times, named("forward", activity::forward, 0), [] { return 1; }); };
    cuda_double::fail_next("cudaEventRecord", cudaErrorLaunchFailure);
    CHECK(act() == 1);
    CHECK(times.dropped() == 1);
    CHECK(act() == 1);
    cuda_double::fail_next("cudaEventElapsedTime", cudaErrorInvalidResourceHandle);
    times.finish();
    CHECK(times.dropped() == 2);
    CHECK(act() == 1);
    times.finish();
    CHECK(on_device.events().size() == 1);
    CHECK(times.dropped() == 2);
    CHECK(hd::observed(times, hd::event{.name = "of no rank"}, [] { return 3; }) == 3);
    CHECK_THROWS_AS(times.follow(2, queue), hd::config_error);
    CHECK_THROWS_AS(hd::cuda_device_times(on_device, 0), hd::config_error);
  }
  CHECK(cuda_double::open_resources() == before);
}

TEST_CASE("device times stay with the host's clock beyond a second, though CUDA's are floats",
          "[cuda][observe][slow]") {
  hd::observe::recorder on_device(2);
  hd::cuda_device_times times(on_device, 2);
  device::queue queue;
  times.follow(1, queue);
  std::int64_t latest = 0;
  for (int i = 0; i < 4; ++i) {
    hd::observed(times, named("forward", activity::forward, i), [&] {
      cuda_double::enqueue(queue.stream(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(700)); });
    });
    queue.wait();
    latest = hd::now_ns();
    times.collect(1);
  }
  const auto told = on_device.events();
  REQUIRE(told.size() == 4);
  CHECK(told.back().end_ns < latest + 1'000'000);
  CHECK(told.back().end_ns > latest - 500'000'000);  // less than an action takes; the host may come late
  for (std::size_t i = 1; i < 4; ++i) CHECK(told[i].begin_ns >= told[i - 1].end_ns);
}
#endif
