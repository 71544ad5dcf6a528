// Boxes of Kokkos memory by one kernel of the instance each time, and redistributions with them, against the host's.
#include "catch.hpp"
#include "space.hpp"
#include "tensor/box_trials.hpp"

#include <heddle/tensor/kokkos/memory.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
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

TEST_CASE("boxes of Kokkos memory that are more than one unit of work are copied whole", "[kokkos][tensor]") {
  using memory = hd::kokkos_memory<tested_space>;
  namespace dt = hd::detail;
  using extents = std::array<std::int64_t, 3>;
  const auto count = [](const extents& e) { return e[0] * e[1] * e[2]; };
  typename memory::queue q;
  for (const extents& box : {extents{3, 2, 60'000}, {3, 3000, 15}, {2, 5, 16'384}, {30, 1100, 16}, {1, 1, 40'000}})
    for (const int split : {-1, 0, 1, 2}) {  // the dimension with several stretches
      CAPTURE(box, split);
      dt::memory_overlap<3> o;
      extents from{}, to{};
      for (std::size_t d = 0; d < 3; ++d) {
        const bool here = static_cast<int>(d) == split;
        const std::int64_t step = here ? (box[d] + 3) / 4 : box[d];
        for (std::int64_t i = 0; i < box[d]; i += step)
          o.along[d].push_back({i + 1 + (here ? 2 * (i / step) : 0), i, (std::min)(step, box[d] - i)});
        from[d] = box[d] + 8;
        to[d] = box[d] + 1;
      }
      std::vector<float> in(static_cast<std::size_t>(count(from)));
      std::vector<float> out(static_cast<std::size_t>(count(to)), -1.0f), expected(out);
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 65'537);
      hd::buffer<float, memory> a(q, count(from)), b(q, count(to));
      q.copy(in, a);
      q.copy(out, b);
      dt::copy_box<float, memory>(q, o, a.view(), from, b.view(), to);
      q.copy(b, out);
      q.wait();
      dt::copy_overlap(o, in.data(), from, expected.data(), to);
      CHECK((out == expected));
    }
}

TEMPLATE_TEST_CASE("redistributions of Kokkos memory have the bits of the host's", "[kokkos][tensor][ranks]", double,
                   float, std::int8_t) {
  if (!ranks_can_be_threads) return;
  CHECK(box_trials::first_wrong_plan<hd::kokkos_memory<tested_space>, TestType>(std::random_device{}(), 24) == "");
}
