// What cuDNN itself says of the graphs of attention, for devices that are described and need not be there: no kernel is run.
#include "catch.hpp"

#include <heddle/compute/cudnn/attention_graphs.hpp>

#include <cstdint>
#include <string>

namespace {
namespace dn = heddle::compute::detail::on_cudnn;

// As cuDNN writes the properties of a device.
std::string described(int version, int processors, int shared_memory) {
  return R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":)" +
         std::to_string(processors) +
         R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)" +
         std::to_string(shared_memory) +
         R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
         R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1500000,)"
         R"("memClockRateKHz":2000000,"l2CacheSize":50000000,"deviceName":"a device","deviceVer":)" +
         std::to_string(version) + R"(,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":80000000000})";
}
dn::attention_problem problem(std::int64_t batch, std::int64_t sequence, std::int64_t heads, std::int64_t kv_heads,
                              std::int64_t width, bool causal, bool backward) {
  dn::attention_problem p{batch, heads, kv_heads, sequence, sequence, width, width, causal, backward};
  const std::int64_t row = (heads + 2 * kv_heads) * width;  // q, k and v are packed
  p.q = p.k = p.v = p.dq = p.dk = p.dv = {sequence * row, width, row};
  p.out = p.dout = {sequence * heads * width, width, heads * width};
  if (backward)
    p.lse = {heads * sequence, sequence, 1};
  else
    p.lse = {sequence, batch * sequence, 1};
  return p;
}
std::size_t engines(const dn::attention_problem& p, const dn::descriptor& device) {
  return (p.backward ? dn::attention_backward_graph(p, 0) : dn::attention_forward_graph(p, 0)).advised(device).size();
}
}  // namespace

TEST_CASE("cuDNN has engines for the graphs of attention", "[cuda][cudnn]") {
  for (const auto& [version, processors, shared_memory] :
       {std::array{800, 108, 166912}, std::array{900, 132, 232448}, std::array{1000, 148, 232448}}) {
    const dn::descriptor device = dn::device_properties(described(version, processors, shared_memory));
    for (const bool backward : {false, true}) {
      CAPTURE(version, backward);
      CHECK(engines(problem(8, 1024, 12, 12, 64, true, backward), device) > 0);
      CHECK(engines(problem(2, 1000, 4, 4, 128, false, backward), device) > 0);
      CHECK(engines(problem(1, 77, 8, 2, 80, true, backward), device) > 0);
      auto halves = problem(2, 128, 4, 4, 64, true, backward);
      halves.type = CUDNN_DATA_HALF;
      CHECK(engines(halves, device) > 0);
    }
  }
}

TEST_CASE("cuDNN has no engine for heads of 12 elements", "[cuda][cudnn]") {
  const dn::descriptor device = dn::device_properties(described(900, 132, 232448));
  CHECK(engines(problem(1, 64, 2, 2, 12, true, false), device) == 0);
}
