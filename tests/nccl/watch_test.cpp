// Redistributions and steps by hand end with the error of a rank that has failed, where the host waits for its queue, over the stand-ins for CUDA
// and NCCL.
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/transfer.hpp>
#include <heddle/train/three_functions.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "../cuda/emulated_launcher.hpp"
#include "catch.hpp"
#include "double.hpp"

namespace {

namespace hd = heddle;
using hd::dp;
using line = hd::mesh<hd::axis<dp, 2>>;
using memory = hd::cuda_memory;
using emulated = hd::compute::basic_cuda<cuda_double::emulated_launcher<1>>;

template <class Body>
std::string error_of(const Body& body) {
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(60'000);
  try {
    hd::launch<hd::nccl>(line{}, options, body);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

struct model {
  static constexpr std::array parameters{hd::named_shape{"w/kernel", {4, 6}}};
};

}  // namespace

TEST_CASE("a redistribution over the stand-in for NCCL ends with the error of a rank that failed before it",
          "[nccl][cuda][tensor]") {
  using rows = hd::layout<line, hd::shard<0, dp>>;
  using whole = hd::layout<line, hd::replicate<dp>>;
  for (const int failing : {-1, 0, 1}) {
    CAPTURE(failing);
    nccl_double::reset();
    std::atomic<int> right = 0, ended = 0;
    const std::string error = error_of([&](auto& world) {
      world.all().native();
      memory::queue queue;
      const hd::shape shape{6, 5};
      hd::sharded<float, 2, rows> x(rows{}, shape, world.rank());
      for (std::size_t i = 0; i < x.elements().size(); ++i)
        x.elements()[i] = static_cast<float>(15 * world.rank()) + static_cast<float>(i);
      const auto there = hd::copy_to<memory>(queue, x);
      if (world.rank() == failing) throw hd::io_error("no such file");
      const auto moved = hd::redistribute<whole>(there, world, queue);
      try {
        queue.wait();
      } catch (const hd::error&) {
        ++ended;
        throw;
      }
      const auto back = hd::copy_to<hd::host_memory>(queue, moved);
      int wrong = 0;
      for (std::size_t i = 0; i < 30; ++i) wrong += back.elements()[i] != static_cast<float>(i);
      right += wrong == 0;
    });
    if (failing < 0) {
      CHECK(error == "");
      CHECK(right == 2);
    } else {
      CHECK_THAT(error, Catch::Contains("rank " + std::to_string(failing) + ": no such file"));
      CHECK(ended == 1);
    }
  }
  nccl_double::reset();
  cuda_double::reset();
}

TEST_CASE("a queue that outlives the world of a redistribution is waited for as before", "[nccl][cuda][tensor]") {
  using rows = hd::layout<line, hd::shard<0, dp>>;
  using whole = hd::layout<line, hd::replicate<dp>>;
  nccl_double::reset();
  const int before = nccl_double::open_resources();
  std::vector<memory::queue> queues(2);
  CHECK(error_of([&](auto& world) {
          memory::queue& queue = queues[static_cast<std::size_t>(world.rank())];
          const auto there =
              hd::copy_to<memory>(queue, hd::sharded<float, 2, rows>(rows{}, hd::shape{4, 4}, world.rank()));
          for (int i = 0; i < 3; ++i) static_cast<void>(hd::redistribute<whole>(there, world, queue));
          queue.wait();
        }) == "");
  CHECK(nccl_double::open_communicators() == 0);  // the queues keep none
  for (memory::queue& queue : queues) queue.wait();
  queues.clear();
  CHECK(nccl_double::open_resources() == before);
  nccl_double::reset();
}

TEST_CASE("a step of three functions by hand ends with the error of a rank that failed before it",
          "[nccl][cuda][train][three_functions]") {
  using strategy = hd::strategy<line, emulated, hd::zero<1>>;
  for (const int failing : {-1, 0, 1}) {
    CAPTURE(failing);
    nccl_double::reset();
    std::atomic<int> ended = 0;
    const std::string error = error_of([&](auto& world) {
      auto functions = hd::train::three_functions<strategy, model, double>(
          world, [](const std::vector<int>& x) { return x; },
          [](auto&, const std::vector<int>&) { return hd::train::token_loss{2.0, 1}; },
          [](auto&, const std::vector<int>& x) { return x; }, {.batch = 2, .per_rank = 1});
      const std::vector<int> examples{1, 2};
      for (int step = 0; step < 2; ++step) {
        const auto now = functions.loss_and_gradients(examples, {0, 1});
        if (step == 1 && world.rank() == failing) throw hd::io_error("no such file");
        try {
          static_cast<void>(functions.update(now, 1e-3));
        } catch (const hd::error&) {
          ++ended;
          throw;
        }
      }
    });
    if (failing < 0)
      CHECK(error == "");
    else
      CHECK_THAT(error, Catch::Contains("rank " + std::to_string(failing) + ": no such file"));
    CHECK(ended == (failing < 0 ? 0 : 1));
  }
  nccl_double::reset();
  cuda_double::reset();
}
