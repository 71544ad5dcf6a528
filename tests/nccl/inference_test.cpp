// Inference over the stand-ins for NCCL and CUDA: steps over pp and tp, and a rank that fails.
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/nccl/nccl.hpp>

#include "cuda/emulated_launcher.hpp"

#include "catch.hpp"
#include "double.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

namespace {
namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using backend = hd::compute::basic_cuda<cuda_double::emulated_launcher<1>>;

// The logits of two steps on the leader, or the text of the error; rank 1's next call of `failing` fails.
struct outcome {
  std::vector<double> logits;
  std::string error;
};
outcome two_steps(const char* mesh, const char* failing) {
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(5000);
  constexpr hd::model::gpt2_config config{
      .layers = 2, .heads = 2, .width = 8, .context = 16, .vocabulary = 20, .initial_deviation = 0.3};
  outcome out;
  try {
    hd::launch<hd::nccl>(hd::parse_mesh<mesh_type>(mesh), options, [&](auto& world) {
      backend kernels;
      hd::infer::model_runner<hd::model::gpt2<double>, std::remove_reference_t<decltype(world)>, backend> runner(
          config, world, kernels, {12, 3}, 9);
      runner.stage().initialize(4);
      if (!runner.leads()) {
        if (failing != nullptr) cuda_double::fail_next(failing, cudaErrorIllegalAddress);
        runner.follow();
        return;
      }
      std::vector<double> logits(20);
      for (int step = 0; step < 2; ++step) {
        runner.run({.tokens = {1 + step}, .sequences = {{0, 1, step, 0, 1}}, .blocks = {2}, .wanted = {0}}, logits);
        out.logits.insert(out.logits.end(), logits.begin(), logits.end());
      }
      runner.finish();
    });
  } catch (const std::exception& e) {
    out.error = e.what();
  }
  return out;
}
}  // namespace

TEST_CASE("steps of inference over nccl, and a rank that fails while the leader waits for logits", "[nccl][infer]") {
  nccl_double::reset();
  const outcome expected = two_steps("", nullptr);
  REQUIRE(expected.error == "");
  REQUIRE(expected.logits.size() == 40);
  for (const char* mesh : {"pp=2", "tp=2"}) {
    CAPTURE(mesh);
    const outcome got = two_steps(mesh, nullptr);
    CHECK(got.error == "");
    REQUIRE(got.logits.size() == expected.logits.size());
    double worst = 0;
    for (std::size_t i = 0; i < got.logits.size(); ++i)
      worst = (std::max)(worst, std::abs(got.logits[i] - expected.logits[i]));
    CHECK(worst < 1e-10);
    const outcome failed = two_steps(mesh, "cudaMemcpyAsync");
    CHECK(failed.error.find("rank 1: heddle: cudaMemcpyAsync") != std::string::npos);
  }
  nccl_double::reset();
}
