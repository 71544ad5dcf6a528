// Context tables run by ranks that are threads and share a device, over the stand-in for CUDA: the host's results, and a host that waits for no stream.
#include "emulated_launcher.hpp"

#include "catch.hpp"
#include "context/device_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cuda/merge_partials.hpp>

namespace context_on_cuda {
namespace {

template <int Threads>
using emulated = heddle::compute::basic_cuda<cuda_double::emulated_launcher<Threads>>;
TEST_CASE("every carrier attends on CUDA as on the host", "[cuda][context][ranks]") {
  using device_trials::differences;
  for (const int ranks : {1, 2, 3, 4})
    CHECK(differences<double, emulated<1>>(ranks, {4, 2, 4, 6}, static_cast<unsigned>(ranks), 1e-11) == "");
  CHECK(differences<double, emulated<32>>(2, {2, 2, 4, 6}, 5, 1e-11) == "");
  CHECK(differences<float, emulated<2>>(3, {8, 1, 3, 5}, 6, 5e-6) == "");
}

TEST_CASE("between the first and the last kernel of attention over ranks no rank waits for its stream on the host",
          "[cuda][context][ranks]") {
  using namespace device_trials;
  using backend_type = emulated<1>;
  constexpr int ranks = 3;
  constexpr sizes z{4, 2, 4, 6};
  const hd::context_cut cut =
      hd::cut_documents<hd::split::zigzag>({{30, {0, 1, 2}, hd::masks::causal{}.slices(30)}}, ranks);
  std::vector<rows<double>> whole(1, rows<double>(30, z));
  hd::launch<hd::threads>(line{ranks}, [&](auto& world) {
    auto& group = world.template along<hd::cp>();
    const auto program = [&](context_pass pass) {
      return hd::lower_context(hd::make_context_table<hd::carrier::kv_ring>(cut, pass), group.rank());
    };
    const hd::context_program to = program(context_pass::forward), back = program(context_pass::backward);
    backend_type backend;
    hd::context_executor<double, backend_type, std::remove_reference_t<decltype(group)>> executor(backend, group);
    rows<double> own = rows_of(cut, group.rank(), whole, z);
    rows_there<double, backend_type> there(backend, own);
    there.attend(executor, to);
    there.attend_backward(executor, back);
    backend.queue().wait();
    group.barrier();
    if (group.rank() == 0) cuda_double::reset();
    group.barrier();
    there.attend(executor, to);
    there.attend_backward(executor, back);
    group.barrier();
    group.barrier();
  });
  auto calls = cuda_double::calls();
  for (const char* waiting : {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy"}) {
    INFO(waiting);
    CHECK(calls[waiting] == 0);
  }
  CHECK(calls["cudaStreamWaitEvent"] > 0);
}

}  // namespace
}  // namespace context_on_cuda
