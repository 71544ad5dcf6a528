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
#include <thread>
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
      // By what the queue takes for so many elements, and by a kernel.
      std::vector<float> got(out.size());
      const auto check = [&](const auto& any, const auto& act, const auto& overlap, const extents& there) {
        for (const bool kernel : {false, true}) {
          q.copy(out, b);
          kernel ? dt::launch_box<memory>(q, overlap, there, to, act) : any();
          q.copy(b, got);
          q.wait();
          CHECK((got == expected));
        }
      };
      dt::copy_overlap(o, in.data(), from, expected.data(), to);
      check([&] { dt::copy_box<float, memory>(q, o, a.view(), from, b.view(), to); },
            dt::copy_element<float>{a.address(), b.address()}, o, from);
      const auto packed = dt::with_packed<&dt::stretch::to>(o);
      expected = out;
      dt::for_each_run(packed, o.extents(), to, [&](std::int64_t s, std::int64_t t, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i)
          expected[static_cast<std::size_t>(t + i)] += in[static_cast<std::size_t>(s + i)];
      });
      check([&] { dt::combine_box<hd::plus, float, memory>(q, o, a.view(), b.view(), to); },
            dt::combine_element<float, hd::plus>{a.address(), b.address()}, packed, o.extents());
      // Twice the same elements, and all around.
      dt::for_each_run(packed, o.extents(), to, [&](std::int64_t s, std::int64_t t, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i)
          expected[static_cast<std::size_t>(t + i)] += in[static_cast<std::size_t>(s + i)];
      });
      q.copy(out, b);
      dt::box_folds<hd::plus, float, memory, 3> folds(q, a.view(), b.view());
      for (int times = 0; times < 2; ++times) folds.fold(o, 0, to);
      folds.launch();
      q.copy(b, got);
      q.wait();
      CHECK((got == expected));
      expected.assign(expected.size(), 5.0f);
      dt::copy_overlap(o, in.data(), from, expected.data(), to);
      dt::copy_box_and_fill<float, memory>(q, o, a.view(), from, b.view(), to, 5.0f);
      q.copy(b, got);
      q.wait();
      CHECK((got == expected));
    }
}

TEST_CASE("few elements of Kokkos memory are copied on the thread that asks, after the kernels before",
          "[kokkos][tensor]") {
  using memory = hd::kokkos_memory<tested_space>;
  namespace dt = hd::detail;
  namespace tools = Kokkos::Tools::Experimental;
  typename memory::queue q;
  const bool alone = q.instance().concurrency() == 1;
  CHECK(memory::queue::has_one_thread == dt::kokkos_is_serial<tested_space>);
  CHECK(dt::batches_boxes<typename memory::queue>() == !dt::kokkos_is_serial<tested_space>);
  CHECK(dt::is_for_this_thread(q, 32'767));
  CHECK(dt::is_for_this_thread(q, 32'768) == alone);
  static int kernels;
  std::thread::id who{};
  for (const bool watched : {false, true}) {
    kernels = 0;
    hd::buffer<float, memory> a(q, 100), b(q, 100);
    launch_each(q, 100, dt::fill_each<float>{a.address(), 3.0f});  // the copy below reads what this writes
    if (watched) tools::set_begin_parallel_for_callback([](const char*, std::uint32_t, std::uint64_t*) { ++kernels; });
    dt::memory_overlap<1> o;
    o.along[0].push_back({10, 20, 50});
    dt::copy_box<float, memory>(q, o, a.view(), {100}, b.view(), {100});
    tools::set_begin_parallel_for_callback(nullptr);
    CHECK(kernels == (watched ? 1 : 0));
    std::vector<float> expected(100, 0.0f);
    std::fill_n(expected.begin() + 20, 50, 3.0f);
    CHECK((std::equal(expected.begin(), expected.end(), b.begin())));  // without a wait: it is done
    if (!watched) q.on_this_thread([&] { who = std::this_thread::get_id(); });
  }
  CHECK((who == std::this_thread::get_id()));
}

TEMPLATE_TEST_CASE("redistributions of Kokkos memory have the bits of the host's", "[kokkos][tensor][ranks]", double,
                   float, std::int8_t) {
  if (!ranks_can_be_threads) return;
  CHECK(box_trials::first_wrong_plan<hd::kokkos_memory<tested_space>, TestType>(std::random_device{}(), 24) == "");
}
