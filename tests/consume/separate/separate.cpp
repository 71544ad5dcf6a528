// tests/consume/separate/separate.cpp: a program that needs bodies of three rooms, however they were compiled.
#include <heddle/compute/host/host.hpp>
#include <heddle/heddle.hpp>
#include <heddle/io/manifest.hpp>

#include <array>
#include <cstdio>
#include <span>

int main() {
  namespace hd = heddle;
  using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
  int sum = 0;
  std::array<float, 1> y{};
  hd::launch<hd::threads, mesh>([&](auto& world) {
    std::array<int, 1> one{world.rank() + 1};
    world.template along<hd::dp>().all_reduce(std::span(one), hd::plus{});
    if (world.rank() != 0) return;
    sum = one[0];
    const std::array<float, 1> x{1};
    hd::compute::host<> backend;
    hd::compute::run<hd::compute::ops::gelu>(backend, std::span<const float>(x), std::span<float>(y));
  });
  hd::io::manifest saved;
  saved.step = 7;
  const hd::io::manifest read = hd::io::parse_manifest(hd::io::to_text(saved), "text");
#if defined(HEDDLE_SEPARATE_COMPILATION)
  const char* const how = "compiled separately";
#else
  const char* const how = "header-only";
#endif
  std::printf("sum %d, gelu %.3f, step %d, %s\n", sum, static_cast<double>(y[0]), static_cast<int>(read.step), how);
}
