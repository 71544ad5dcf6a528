// Ranks that are threads and share a device, over the stand-in for the CUDA runtime: a stream per rank, kernels that read the memory
// of all, nothing that waits for a stream on the host.
#include "emulated_launcher.hpp"

#include "catch.hpp"
#include "ranks_trials.hpp"
#include "tensor/box_trials.hpp"

#include <chrono>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace {
namespace hd = heddle;
using hd::dp;
using ranks_trials::line;
using ranks_trials::memory;

unsigned fresh_seed() {
  return std::random_device{}();
}

// What `body(world)` ends with, on so many ranks.
template <class Body>
std::string error_of(int ranks, const Body& body, hd::checking check = hd::checking::on) {
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(20'000);
  options.check = check;
  try {
    hd::launch<hd::threads>(line{ranks}, options, body);
  } catch (const hd::error& e) {
    return e.what();
  }
  return {};
}

// Kernels of a redistribution on four ranks, all together.
template <class To, class From>
int kernels_of(std::int64_t n) {
  using mesh = hd::mesh<hd::axis<dp, 4>>;
  std::vector<int> wrong(4, -1);
  int kernels = 0;
  hd::launch<hd::threads>(mesh{}, {}, [&](auto& world) {
    memory::queue q;
    const hd::shape whole{n, n + 3, n + 1};
    hd::sharded<float, 3, From> x(From{}, whole, world.rank());
    for (std::size_t i = 0; i < x.elements().size(); ++i)
      x.elements()[i] = static_cast<float>(1000 * world.rank()) + static_cast<float>(i);
    const auto there = hd::copy_to<memory>(q, x);
    world.all().barrier();
    if (world.rank() == 0) cuda_double::launches() = 0;
    world.all().barrier();
    const auto moved = hd::redistribute<To>(there, world, q);
    world.all().barrier();
    if (world.rank() == 0) kernels = cuda_double::launches();
    const auto back = hd::copy_to<hd::host_memory>(q, moved);
    const auto expected = hd::redistribute<To>(x, world);
    wrong[static_cast<std::size_t>(world.rank())] = static_cast<int>(!std::equal(
        back.elements().begin(), back.elements().end(), expected.elements().begin(), expected.elements().end()));
  });
  CHECK(wrong == std::vector<int>(4, 0));
  return kernels;
}
}  // namespace

TEST_CASE("calls of threads that share a device have the bits of those in the host's memory", "[cuda][comm][ranks]") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CHECK(ranks_trials::first_wrong<float>(ranks, fresh_seed()) == "");
    if (ranks < 4) CHECK(ranks_trials::first_wrong<double>(ranks, fresh_seed()) == "");
    if (ranks == 3) CHECK(ranks_trials::first_wrong<std::int8_t>(ranks, fresh_seed()) == "");
  }
  CHECK(ranks_trials::first_wrong<float>(12, fresh_seed()) == "");  // more copies than one kernel takes
}

TEMPLATE_TEST_CASE("redistributions of CUDA memory have the bits of the host's", "[cuda][tensor][ranks]", double, float,
                   std::int16_t, std::int8_t) {
  CHECK(box_trials::first_wrong_plan<memory, TestType>(fresh_seed(), 12) == "");
}

TEST_CASE("a step of a redistribution is one kernel to pack, one to move, one to unpack", "[cuda][tensor][ranks]") {
  using mesh = hd::mesh<hd::axis<dp, 4>>;
  using rows = hd::layout<mesh, hd::shard<0, dp>>;
  using columns = hd::layout<mesh, hd::shard<1, dp>>;
  using last = hd::layout<mesh, hd::shard<2, dp>>;
  using all = hd::layout<mesh, hd::replicate<>>;
  CHECK(kernels_of<columns, rows>(9) == 4 + 1);      // what comes lies in place
  CHECK(kernels_of<last, columns>(9) == 4 + 1 + 4);  // the exchange is one for all ranks
  CHECK(kernels_of<rows, columns>(9) == 1 + 4);
  CHECK(kernels_of<all, last>(9) == 1 + 4);
  CHECK(kernels_of<last, all>(9) == 4);
}

TEST_CASE("ranks that are threads on several devices read each other's memory, which is enabled once for each pair",
          "[cuda][comm][ranks]") {
  cuda_double::reset();
  CHECK(ranks_trials::first_wrong<float>(2, fresh_seed(), 2) == "");
  CHECK(cuda_double::calls()["cudaDeviceEnablePeerAccess"] == 2);  // 0 to 1, and where 1 receives a message
  CHECK(ranks_trials::first_wrong<double>(8, fresh_seed(), 4) == "");
  const auto calls = cuda_double::calls();
  CHECK(calls.at("cudaDeviceEnablePeerAccess") == 2 + 4);  // of 0 with 2 and 3, messages round the ranks
  for (const char* name : {"cudaDeviceCanAccessPeer", "cudaMemPoolSetAccess"})
    CHECK(calls.at(name) == calls.at("cudaDeviceEnablePeerAccess"));
  CHECK(cuda_double::unreachable_arguments() == 0);
  // The stand-in sees what is not enabled.
  memory::queue here(6), there(7);
  hd::buffer<float, memory> x(there, 8);
  const float* const argument = x.address();
  cuda_double::give_arguments(here.stream(), &argument, sizeof argument);
  CHECK(cuda_double::unreachable_arguments() == 1);
  CHECK(here.reaches(7));
  cuda_double::give_arguments(here.stream(), &argument, sizeof argument);
  CHECK(cuda_double::unreachable_arguments() == 1);
  cuda_double::fail_next("cudaMemPoolSetAccess", cudaErrorInvalidValue);
  CHECK_THROWS_WITH(there.reaches(6), "heddle: cudaMemPoolSetAccess on CUDA device 6: an error of the double");
  CHECK(there.reaches(6));
  CHECK(there.reaches(7));
}

TEST_CASE("a call among threads that share a device waits for no stream on the host", "[cuda][comm][ranks]") {
  hd::launch<hd::threads>(line{3}, {}, [&](auto& world) {
    memory::queue q;
    hd::buffer<float, memory> x(q, 300), y(q, 900);
    q.wait();
    world.all().barrier();
    if (world.rank() == 0) cuda_double::reset();
    world.all().barrier();
    hd::all_reduce(q, world.all(), x, hd::plus{});
    hd::all_gather(q, world.all(), x, y);
    if (world.rank() == 0) hd::send(q, world.all(), x, 1);
    if (world.rank() == 1) hd::recv(q, world.all(), x, 0);
    world.all().barrier();
    world.all().barrier();
  });
  auto calls = cuda_double::calls();
  // The ends of queues and buffers are in it, too: they wait for nothing either.
  CHECK(calls["cudaStreamSynchronize"] == 0);
  CHECK(calls["cudaMemcpyAsync"] == 0);
  CHECK(calls["cudaStreamWaitEvent"] == 2 * 2 * 2 + 2);
}

TEST_CASE("a rank that throws ends the others' calls on a device", "[cuda][comm][ranks]") {
  const auto text = error_of(4, [](auto& world) {
    memory::queue q;
    hd::buffer<float, memory> x(q, 100);
    for (int i = 0; i < 20; ++i) {
      if (world.rank() == 2 && i == 7) throw hd::config_error("rank 2 has had enough");
      hd::all_reduce(q, world.all(), x, hd::plus{});
    }
  });
  CHECK_THAT(text, Catch::Contains("rank 2 has had enough"));
  const auto alone = error_of(2, [](auto& world) {
    memory::queue q;
    hd::buffer<float, memory> x(q, 100);
    if (world.rank() == 0) hd::recv(q, world.all(), x, 1);
  });
  CHECK_THAT(alone, Catch::Contains("rank 0 waits in recv of 100 float in the memory of a device from rank 1") &&
                        Catch::Contains("whose body has returned"));
}

TEST_CASE("what CUDA refuses in a call among threads ends all of them", "[cuda][comm][ranks]") {
  for (const std::string function : {"cudaStreamWaitEvent", "cudaEventRecord"}) {
    CAPTURE(function);
    std::vector<std::string> texts(3);
    const auto text = error_of(3, [&](auto& world) {
      memory::queue q;
      hd::buffer<float, memory> x(q, 100);
      hd::all_reduce(q, world.all(), x, hd::plus{});
      world.all().barrier();
      cuda_double::fail_next(function, cudaErrorInvalidValue);  // of whoever makes the call
      try {
        for (int i = 0; i < 50; ++i) hd::all_reduce(q, world.all(), x, hd::plus{});
      } catch (const hd::error& e) {
        texts[static_cast<std::size_t>(world.rank())] = e.what();
        throw;
      }
    });
    cuda_double::reset();
    CHECK_THAT(text, Catch::Contains(function));
    for (const std::string& t : texts) CHECK_THAT(t, Catch::Contains(function));
  }
  const auto text = error_of(2, [](auto& world) {
    memory::queue q;
    hd::buffer<float, memory> x(q, 100);
    cuda_double::fail_next("cudaStreamWaitEvent", cudaErrorInvalidValue);
    if (world.rank() == 0)
      hd::send(q, world.all(), x, 1);
    else
      hd::recv(q, world.all(), x, 0);
  });
  cuda_double::reset();
  CHECK_THAT(text, Catch::Contains("cudaStreamWaitEvent"));
}

TEST_CASE("ranks that disagree about the memory of a call are told", "[cuda][comm][ranks]") {
  const auto mixed = [](auto& world) {
    memory::queue q;
    hd::buffer<float, memory> x(q, 8);
    std::vector<float> here(8);
    if (world.rank() == 1)
      world.all().all_reduce(here, hd::plus{});
    else
      hd::all_reduce(q, world.all(), x, hd::plus{});
  };
  CHECK_THAT(error_of(2, mixed), Catch::Contains("disagree about call 1") &&
                                     Catch::Contains("all_reduce of 8 float with plus in the memory of a device"));
  CHECK_THAT(error_of(2,
                      [](auto& world) {
                        memory::queue q;
                        hd::buffer<float, memory> x(q, 8);
                        std::vector<float> here(8);
                        if (world.rank() == 1)
                          world.all().recv(here, 0);
                        else
                          hd::send(q, world.all(), x, 1);
                      }),
             Catch::Contains("disagree about a message") && Catch::Contains("in the memory of a device"));
  cuda_double::cut(5, 6);
  CHECK_THAT(
      error_of(2,
               [](auto& world) {
                 memory::queue q(5 + world.rank());
                 hd::buffer<float, memory> x(q, 8);
                 hd::all_reduce(q, world.all(), x, hd::plus{});
               }),
      Catch::Contains("the queue of rank 0 is of device 5, whose kernels cannot use the memory of device 6, that "
                      "of rank 1"));
  CHECK_THAT(
      error_of(2,
               [](auto& world) {
                 memory::queue q(5 + world.rank());
                 hd::buffer<float, memory> x(q, 8);
                 if (world.rank() == 1)
                   hd::recv(q, world.all(), x, 0);
                 else
                   hd::send(q, world.all(), x, 1);
               }),
      Catch::Contains("the queue of rank 1 is of device 6, whose kernels cannot use the memory of device 5, that "
                      "of rank 0"));
  cuda_double::reset();
  CHECK_THAT(error_of(3,
                      [](auto& world) {
                        memory::queue q;
                        hd::buffer<float, memory> x(q, 6 + 3 * world.rank()), y(q, 9);
                        hd::all_gather(q, world.all(), x, y);
                      }),
             Catch::Contains("all_gather") && Catch::Contains("elements, expected"));
}

TEST_CASE("a tensor without dimensions is summed in a device's memory", "[cuda][ranks]") {
  CHECK(ranks_trials::sums_of_scalars() == std::vector<float>(4, 10.0f));
}

TEST_CASE("a device without memory for a redistribution: the error says for what, how much and how much is free",
          "[cuda][ranks]") {
  using mesh = hd::mesh<hd::axis<dp, 2>>;
  using rows = hd::layout<mesh, hd::shard<0, dp>>;
  using columns = hd::layout<mesh, hd::shard<1, dp>>;
  cuda_double::devices(1, 100'000);
  std::string text;
  try {
    hd::launch<hd::threads>(mesh{}, {}, [](auto& world) {
      memory::queue q;
      hd::sharded<float, 2, rows> x(rows{}, hd::shape{100, 100}, world.rank());  // 20000 bytes on each rank
      const auto there = hd::copy_to<memory>(q, x);
      std::vector<hd::sharded<float, 2, columns, memory>> kept;
      for (int i = 0; i < 8; ++i) kept.push_back(hd::redistribute<columns>(there, world, q));
    });
  } catch (const hd::error& e) {
    text = e.what();
  }
  cuda_double::reset();
  CAPTURE(text);
  CHECK(text.find("redistribution") != std::string::npos);
  CHECK(text.find(": 5000 elements of 4 bytes are 20000 bytes; 0 are free there") != std::string::npos);
}
