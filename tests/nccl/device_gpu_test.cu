// The all-reduce over NCCL's device API with a rank per GPU: against the serial sum, and an operator that NCCL does not fold. Exits 77 without a GPU.
#include <heddle/nccl/device_all_reduce.hpp>
#include <heddle/nccl/nccl.hpp>
#include <heddle/nccl/windows.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;

// x -> scale x + shift: to compose is associative, and not commutative.
struct affine {
  std::uint32_t scale, shift;
  HEDDLE_HD friend bool operator==(const affine& a, const affine& b) {
    return a.scale == b.scale && a.shift == b.shift;
  }
};
struct compose {
  template <class T>
  static T identity() {
    return {1, 0};
  }
  HEDDLE_HD affine operator()(const affine& f, const affine& g) const {
    return {f.scale * g.scale, f.scale * g.shift + f.shift};
  }
};

// Whole numbers, whose sums are exact.
template <class T>
T value_of(int rank, std::int64_t i) {
  if constexpr (std::is_same_v<T, affine>)
    return {static_cast<std::uint32_t>(rank + 2), static_cast<std::uint32_t>(i)};
  else
    return T(static_cast<float>((rank * 7 + i * 3) % 16));
}

// In the order of the communicator's stream, and waited for there: other waits may be for the kernels of other ranks of the process, which wait for
// calls that this thread has yet to make.
bool copied(hd::nccl_communicator& c, void* to, const void* from, std::size_t bytes, cudaMemcpyKind way) {
  c.wait();  // a copy of memory that is not pinned may wait for the stream, and looks out for nobody
  if (cudaMemcpyAsync(to, from, bytes, way, c.stream()) != cudaSuccess) return false;
  c.wait();
  return true;
}

template <class T, class Op>
bool right(hd::nccl_communicator& c, hd::nccl_windows& windows, std::int64_t n, std::int64_t offset) {
  const auto window = windows.take<T>(n + offset);
  const std::span<T> x = window.elements().subspan(static_cast<std::size_t>(offset));
  std::vector<T> host(static_cast<std::size_t>(n)), expected(host.size());
  for (std::int64_t i = 0; i < n; ++i) {
    host[static_cast<std::size_t>(i)] = value_of<T>(c.rank(), i);
    T folded = value_of<T>(0, i);
    for (int r = 1; r < c.size(); ++r) folded = static_cast<T>(Op{}(folded, value_of<T>(r, i)));
    expected[static_cast<std::size_t>(i)] = folded;
  }
  if (!copied(c, x.data(), host.data(), x.size_bytes(), cudaMemcpyHostToDevice)) return false;
  hd::all_reduce<hd::algo::nccl_device_all_reduce<16>>(c, x, Op{});
  if (!copied(c, host.data(), x.data(), x.size_bytes(), cudaMemcpyDeviceToHost)) return false;
  bool same = true;
  for (std::size_t i = 0; i < host.size(); ++i) same = same && host[i] == expected[i];
  return same;
}

}  // namespace

int main() {
  int gpus = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&gpus); result != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU here (%s)\n", cudaGetErrorString(result));
    return 77;
  }
  std::atomic<int> wrong{0}, by_kernel{0};
  try {
    hd::launch<hd::nccl>(hd::mesh<hd::axis<hd::dp>>{gpus}, hd::launch_options{}, [&](auto& world) {
      auto& c = world.all();
      hd::nccl_windows windows(c);
      const auto first = windows.template take<float>(1);
      const bool kernels = first.registered() && hd::nccl_one_lsa_team(c);
      by_kernel += kernels;
      for (const std::int64_t n : {1, 15, 1000, 1'000'003})
        for (const std::int64_t offset : {0, 1}) {
          wrong += !right<float, hd::plus>(c, windows, n, offset);
          wrong += !right<__nv_bfloat16, hd::maximum>(c, windows, n, offset);
          if (kernels) wrong += !right<affine, compose>(c, windows, n, offset);
        }
      c.barrier();
    });
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
  std::printf(
      "%d GPUs: %d wrong; %s\n", gpus, wrong.load(),
      by_kernel > 0 ? "by kernels over the device API" : "by NCCL's own call: no windows, or several LSA teams");
  return wrong == 0 ? 0 : 1;
}
