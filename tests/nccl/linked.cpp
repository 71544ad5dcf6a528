// The nccl transport linked with NCCL and CUDA themselves. With a GPU one rank runs on it; without one the launch must
// say so. Prints which it was.
#include <heddle/nccl/nccl.hpp>

#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;

struct pair_of_floats {
  float x, y;
};

template <class T>
std::span<T> on_device(const std::vector<T>& values) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, values.size() * sizeof(T)) != cudaSuccess ||
      cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) != cudaSuccess)
    throw hd::error("cudaMalloc or cudaMemcpy");
  return {static_cast<T*>(memory), values.size()};
}
template <class T>
std::vector<T> on_host(std::span<T> values) {
  std::vector<T> copy(values.size());
  if (cudaMemcpy(copy.data(), values.data(), values.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess)
    throw hd::error("cudaMemcpy");
  return copy;
}
inline void expect(bool ok, const char* what) {
  if (!ok) throw hd::error(what);
}

int main() {
  using one = hd::mesh<hd::axis<hd::dp, 1>>;
  int devices = 0;
  const bool gpu = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    hd::launch<hd::nccl, one>([](auto& world) {
      auto& c = world.all();
      const std::vector<float> values{1, 2, 3, 4};
      const auto x = on_device(values), y = on_device(std::vector<float>(4));
      const auto wide = on_device(std::vector<__nv_bfloat16>(8)), other = on_device(std::vector<__nv_bfloat16>(8));
      const auto points = on_device(std::vector<pair_of_floats>(3)), copies = on_device(std::vector<pair_of_floats>(3));
      const std::vector<std::int64_t> counts{4};
      c.all_reduce(std::span<const float>(x), y, hd::plus{});
      c.all_reduce(wide, hd::maximum{});
      c.wait();
      expect(on_host(y) == values, "all_reduce");
      c.reduce(x, y, hd::plus{}, 0);
      c.reduce_scatter(x, y, hd::plus{});
      c.reduce_scatter_v(x, y, counts, hd::minimum{});
      c.all_gather_v(x, y, counts);
      c.all_to_all(wide, other);
      c.all_to_all_v(x, counts, y, counts);
      c.gather(x, y, 0);
      c.gather_v(x, y, counts, 0);
      c.scatter(x, y, 0);
      c.scatter_v(x, counts, y, 0);
      c.all_gather(points, copies);
      c.broadcast(points, 0);
      auto a = c.isend(x, 0);
      auto b = c.irecv(y, 0);
      a.wait();
      b.wait();
      c.wait();
      expect(on_host(y) == values, "a message to itself");
      auto part = c.split(0, 0);
      hd::nccl_group together(c, part);
      c.all_reduce(x, hd::plus{});
      part.all_reduce(y, hd::plus{});
      together.launch();
      part.barrier();
      c.barrier();
      expect(on_host(y) == values, "a group of calls");
    });
  } catch (const hd::comm_error& e) {
    const std::string text = e.what();
    if (gpu || text.find("1 GPU is needed, this process sees 0") == std::string::npos) {
      std::printf("%s\n", e.what());
      return 1;
    }
    std::printf("linked; no GPU: %s\n", e.what());
    return 0;
  }
  std::printf("linked; one rank ran on a GPU\n");
  return gpu ? 0 : 1;
}
