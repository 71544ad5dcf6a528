// Boxes of Kokkos memory by one kernel of the instance each time, and redistributions with them, against the host's.
#include "catch.hpp"
#include "space.hpp"
#include "tensor/box_trials.hpp"

#include <heddle/tensor/kokkos/memory.hpp>

#include <cstdint>
#include <random>
#include <vector>

namespace hd = heddle;

TEMPLATE_TEST_CASE("boxes of Kokkos memory are copied, folded and filled as the host's", "[kokkos][tensor]", double,
                   float, std::int8_t, std::int16_t) {
  using memory = hd::kokkos_memory<tested_space>;
  STATIC_REQUIRE(hd::launches_kernels<typename memory::queue>);
  typename memory::queue q;
  CHECK(box_trials::first_wrong<memory, TestType>(q, std::random_device{}(), 8) == "");
}

TEST_CASE("a row of Kokkos memory that is longer than one unit of work is copied whole", "[kokkos][tensor]") {
  using memory = hd::kokkos_memory<tested_space>;
  namespace dt = hd::detail;
  typename memory::queue q;
  dt::memory_overlap<2> o;
  o.along[0] = dt::stretch_list({0, 1, 2});
  for (std::int64_t i = 0; i < 4; ++i) o.along[1].push_back({i * 20'000, i * 15'000, 15'000});
  std::vector<float> in(3 * 80'000), out(4 * 61'000, -1.0f), expected(out);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  hd::buffer<float, memory> a(q, 3 * 80'000), b(q, 4 * 61'000);
  q.copy(in, a);
  q.copy(out, b);
  dt::copy_box<float, memory>(q, o, a.view(), {3, 80'000}, b.view(), {4, 61'000});
  q.copy(b, out);
  q.wait();
  dt::copy_overlap(o, in.data(), {3, 80'000}, expected.data(), {4, 61'000});
  CHECK(out == expected);
}

TEMPLATE_TEST_CASE("redistributions of Kokkos memory have the bits of the host's", "[kokkos][tensor][ranks]", double,
                   float, std::int8_t) {
  if (!ranks_can_be_threads) return;
  CHECK(box_trials::first_wrong_plan<hd::kokkos_memory<tested_space>, TestType>(std::random_device{}(), 24) == "");
}
