#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/observe/kokkos/regions.hpp>
#include <heddle/tensor/kokkos/short_waits.hpp>

#include "catch.hpp"
#include "space.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
using memory = hd::kokkos_memory<tested_space>;

TEST_CASE("Kokkos memory is a space of its own, with host code in its queue", "[kokkos][law]") {
  using matrix = hd::matrix_view<float, memory>;
  STATIC_REQUIRE(hd::memory_space<memory>);
  STATIC_REQUIRE(hd::host_accessible_space<memory>);
  STATIC_REQUIRE(hd::runs_host_code<memory::queue>);
  STATIC_REQUIRE(std::is_same_v<hd::space_of<const matrix&>, memory>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<hd::buffer<float, memory>>);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<memory::queue>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<matrix, hd::matrix_view<float>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<hd::matrix_view<float>, matrix>);
}

TEST_CASE("what goes into Kokkos memory comes out of it", "[kokkos]") {
  memory::queue queue;
  for (const std::int64_t n : {0, 1, 7, 1023, 1024, 50'001, 200'003}) {
    CAPTURE(n);
    hd::buffer<float, memory> a(queue, n, "a"), b(queue, n, "b");
    if (n > 0) CHECK(reinterpret_cast<std::uintptr_t>(a.address()) % 64 == 0);
    std::vector<float> in(static_cast<std::size_t>(n)), out(in.size(), -1.0f);
    std::iota(in.begin(), in.end(), 1.0f);
    queue.copy(b, out);  // fresh memory is zero
    queue.wait();
    CHECK(out == std::vector<float>(in.size(), 0.0f));
    queue.copy(in, a);
    queue.run(
        [](auto x) {
          STATIC_REQUIRE(std::is_same_v<decltype(x), hd::vector_view<float>>);
          for (float& e : x.elements()) e *= 2;
        },
        a.view());
    queue.copy(a, b);
    queue.zero(a);
    queue.copy(b.view(), out);
    queue.wait();
    for (float& e : in) e *= 2;
    CHECK(out == in);
    queue.copy(a, out);
    queue.wait();
    CHECK(out == std::vector<float>(in.size(), 0.0f));
  }
  // Elements that are no whole words.
  hd::buffer<char, memory> text(queue, 13);
  queue.copy(std::string("memory spaces"), text);
  queue.zero(hd::vector_view<char, memory>(text.address() + 3, {7}));
  queue.wait();
  CHECK(std::string(text.begin(), text.end()) == std::string("mem\0\0\0\0\0\0\0ces", 13));
}

TEST_CASE("memory outlives its queue, moves, and is aligned as its type asks", "[kokkos]") {
  struct alignas(256) wide {
    double x[32];
  };
  hd::buffer<wide, memory> kept;
  {
    memory::queue queue(tested_space{});
    hd::buffer<wide, memory> made(queue, 3);
    made[2].x[31] = 5;
    kept = std::move(made);
  }
  CHECK(reinterpret_cast<std::uintptr_t>(kept.address()) % 256 == 0);
  CHECK(kept[2].x[31] == 5);
}

TEST_CASE("errors of a queue name the numbers, and what queued work throws comes out of the call", "[kokkos]") {
  memory::queue queue;
  hd::buffer<double, memory> a(queue, 4);
  std::vector<double> five(5);
  CHECK_THROWS_AS(queue.copy(five, a), hd::layout_error);
  CHECK_THROWS_WITH(queue.run([](auto) { throw hd::numeric_error("in its turn"); }, a.view()), "in its turn");
  CHECK_THROWS_AS((hd::buffer<double, memory>(queue, std::int64_t{1} << 58)), hd::memory_error);
  queue.wait();
}

TEST_CASE("copies that overlap are refused, and what Kokkos throws has a name", "[kokkos]") {
  memory::queue queue;
  hd::buffer<float, memory> a(queue, 100);
  const hd::vector_view<float, memory> first(a.address(), {60}), second(a.address() + 50, {60}),
      last(a.address() + 60, {40});
  CHECK_THROWS_AS(queue.copy(first, second), hd::layout_error);
  CHECK_THROWS_WITH(queue.copy(second, first), Catch::Matchers::Contains("240 bytes each, 200 apart"));
  queue.copy(hd::vector_view<float, memory>(a.address(), {40}), last);
  queue.copy(first, first);
  CHECK_THROWS_AS(hd::detail::kokkos_call("copy", [] { throw std::runtime_error("no such stream"); }),
                  hd::kokkos_error);
  CHECK_THROWS_WITH(hd::detail::kokkos_call("copy", [] { throw std::runtime_error("no such stream"); }),
                    "heddle: copy: Kokkos says: no such stream");
  CHECK_THROWS_AS(hd::detail::kokkos_call("copy", [] { throw hd::io_error("heddle: a file"); }), hd::io_error);
}

TEST_CASE("instances for several ranks, and no more than threads", "[kokkos]") {
  constexpr bool shares_threads = hd::detail::kokkos_shares_threads<tested_space>;
  CHECK_THROWS_AS(hd::kokkos_instances<tested_space>(0), hd::kokkos_instance_error);
#if defined(KOKKOS_ENABLE_SERIAL)
  CHECK(hd::kokkos_instances<Kokkos::Serial>(8).size() == 8);
#endif
  const auto one = hd::kokkos_instances<tested_space>(1);
  memory::queue queue(one[0]);
  hd::buffer<float, memory> a(queue, 10);
  queue.wait();
  const int threads = static_cast<int>(tested_space().concurrency());
  if (!ranks_can_be_threads) {
    CHECK_THROWS_WITH(hd::kokkos_instances<tested_space>(2), Catch::Matchers::Contains("Threads has one instance"));
  } else if (shares_threads) {
    CHECK(static_cast<int>(hd::kokkos_instances<tested_space>(threads).size()) == threads);
    CHECK_THROWS_WITH(
        hd::kokkos_instances<tested_space>(threads + 1),
        Catch::Matchers::Contains("need at least as many threads, Kokkos has " + std::to_string(threads)));
  }
}

TEST_CASE("no rank fences all of Kokkos: it waits for its own instance", "[kokkos]") {
#if KOKKOS_VERSION >= 30600
  static std::atomic<int> of_all{0}, of_one{0};
  of_all = of_one = 0;
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_begin_fence_callback([](const char*, std::uint32_t id, std::uint64_t*) {
    const std::uint32_t instance = id & 0xffffffu;  // behind the number of the kind of device
    const bool all = instance == tools::int_for_synchronization_reason(tools::GlobalDeviceSynchronization) ||
                     instance == tools::int_for_synchronization_reason(tools::DeepCopyResourceSynchronization);
    ++(all ? of_all : of_one);
  });
  {
    memory::queue queue;
    for (int k = 0; k < 10; ++k) {
      hd::buffer<float, memory> a(queue, 1000 + k, "a"), b(queue, 1000 + k, "b");
      queue.copy(a, b);
      queue.zero(a);
    }
    queue.wait();
  }
  tools::set_begin_fence_callback(nullptr);
  CHECK(of_all == 0);
  CHECK(of_one > 0);
#endif
  // Before 3.6 Kokkos tells no tool about fences, so the text of the headers is looked at.
  int headers = 0, instance_fences = 0;
  for (const char* room : {"tensor", "compute"})
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(HEDDLE_SOURCE_DIR) + "/include/heddle/" + room + "/kokkos")) {
      ++headers;
      std::ifstream file(entry.path());
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      CAPTURE(entry.path().string());
      CHECK(text.find("Kokkos::fence(") == std::string::npos);
      CHECK(text.find("static_fence") == std::string::npos);
      if (text.find("fence()") != std::string::npos) ++instance_fences;
    }
  CHECK(headers > 1);
  CHECK(instance_fences > 0);
}

TEST_CASE("observed work is regions of Kokkos Tools, nested and ended by errors", "[kokkos]") {
  static std::vector<std::string> told;
  told.clear();
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_push_region_callback([](const char* name) { told.push_back(name); });
  tools::set_pop_region_callback([] { told.push_back("end"); });
  tools::set_begin_parallel_for_callback(
      [](const char* name, std::uint32_t, std::uint64_t*) { told.push_back("kernel " + std::string(name)); });
  hd::kokkos_regions regions;
  static_assert(hd::observer<hd::kokkos_regions>);
  const auto named = [](const char* name) {
    hd::event e;
    e.name = name;
    return e;
  };
  const int got = hd::observed(regions, named("outer"), [&] {
    try {
      hd::observed(regions, named("inner"), [&] {
        Kokkos::parallel_for("mine", Kokkos::RangePolicy<tested_space>(0, 1), KOKKOS_LAMBDA(int){});
        throw hd::error("heddle: an error in a region");
      });
    } catch (const hd::error&) {
      told.push_back("caught");
    }
    return 7;
  });
  tools::set_push_region_callback(nullptr);
  tools::set_pop_region_callback(nullptr);
  tools::set_begin_parallel_for_callback(nullptr);
  CHECK(got == 7);
  CHECK(told == std::vector<std::string>{"outer", "inner", "kernel mine", "end", "caught", "end"});
}

namespace {
hd::event rank_event(int rank, const char* name) {
  hd::event e;
  e.rank = rank;
  e.name = name;
  return e;
}
// What a tool is told, by whom; its functions may be called by several threads.
struct told_tool {
  std::mutex mutex;
  std::vector<std::string> names;  // of sections, by number
  std::vector<int> running;        // how often each has been started and not stopped
  std::vector<std::thread::id> makers;
  int started = 0, mixed = 0, pushed = 0, popped = 0, destroyed = 0;
};
told_tool* told_now = nullptr;
void listen(told_tool* tool) {
  namespace tools = Kokkos::Tools::Experimental;
  told_now = tool;
  if (tool == nullptr) {
    tools::set_create_profile_section_callback(nullptr);
    tools::set_start_profile_section_callback(nullptr);
    tools::set_stop_profile_section_callback(nullptr);
    tools::set_destroy_profile_section_callback(nullptr);
    tools::set_push_region_callback(nullptr);
    tools::set_pop_region_callback(nullptr);
    return;
  }
  tools::set_create_profile_section_callback([](const char* name, std::uint32_t* id) {
    const std::scoped_lock lock(told_now->mutex);
    *id = static_cast<std::uint32_t>(told_now->names.size());
    told_now->names.emplace_back(name);
    told_now->running.push_back(0);
    told_now->makers.push_back(std::this_thread::get_id());
  });
  tools::set_start_profile_section_callback([](std::uint32_t id) {
    const std::scoped_lock lock(told_now->mutex);
    ++told_now->started;
    told_now->mixed += ++told_now->running.at(id) != 1 || told_now->makers.at(id) != std::this_thread::get_id();
  });
  tools::set_stop_profile_section_callback([](std::uint32_t id) {
    const std::scoped_lock lock(told_now->mutex);
    told_now->mixed += --told_now->running.at(id) != 0 || told_now->makers.at(id) != std::this_thread::get_id();
  });
  tools::set_destroy_profile_section_callback([](std::uint32_t) {
    const std::scoped_lock lock(told_now->mutex);
    ++told_now->destroyed;
  });
  tools::set_push_region_callback([](const char*) {
    const std::scoped_lock lock(told_now->mutex);
    ++told_now->pushed;
  });
  tools::set_pop_region_callback([] {
    const std::scoped_lock lock(told_now->mutex);
    ++told_now->popped;
  });
}
}  // namespace

TEST_CASE("observed work of ranks that are threads is sections of each rank, which do not mix", "[kokkos][ranks]") {
  told_tool tool;
  listen(&tool);
  bool without_rank = false;
  // On a thread of its own, whose sections end with it, as those of the ranks' threads do.
  std::thread([&] {
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp, 4>>{}, {}, [](auto& world) {
      hd::kokkos_sections sections;
      static_assert(hd::observer<hd::kokkos_sections>);
      const int rank = world.rank();
      for (int step = 0; step < 20; ++step)
        hd::observed(sections, rank_event(rank, "step"), [&] {
          hd::observed(sections, rank_event(rank, "forward"), [&] {
            world.control().barrier();  // all ranks are inside
            try {
              hd::observed(sections, rank_event(rank, "forward"),
                           [] { throw hd::error("heddle: an error in a section"); });
            } catch (const hd::error&) {
            }
          });
        });
    });
    hd::kokkos_sections sections;
    without_rank = hd::observed(sections, rank_event(-1, "alone"), [] { return true; });
  }).join();
  listen(nullptr);
  CHECK(without_rank);
  std::vector<std::string> expected{"alone"};
  for (int rank = 0; rank < 4; ++rank)
    for (const char* name : {"step", "forward", "forward"})  // one for the action inside another of its name
      expected.push_back("rank " + std::to_string(rank) + ": " + name);
  std::sort(expected.begin(), expected.end());
  std::sort(tool.names.begin(), tool.names.end());
  CHECK(tool.names == expected);
  CHECK(tool.started == 4 * 20 * 3 + 1);
  CHECK(tool.mixed == 0);
  CHECK(tool.destroyed == 4 * 3 + 1);
  for (const int left : tool.running) CHECK(left == 0);
  CHECK(tool.pushed == 0);
}

TEST_CASE("regions of two ranks of one process are refused where there is a tool", "[kokkos][ranks]") {
  const auto region_of = [](int rank) {
    std::string text;
    std::thread([&] {
      hd::kokkos_regions regions;
      try {
        hd::observed(regions, rank_event(rank, "forward"), [] {});
      } catch (const hd::kokkos_regions_error& e) {
        text = e.what();
      }
    }).join();
    return text;
  };
  CHECK(region_of(7) == "");
  told_tool tool;
  listen(&tool);
  hd::kokkos_regions regions;
  hd::observed(regions, rank_event(0, "whole"), [] {});
  CHECK(region_of(0) == "");  // the same rank on another thread, between its regions
  hd::observed(regions, rank_event(0, "whole"), [&] {
    CHECK_THAT(region_of(0), Catch::Matchers::Contains("rank 0 begins the region 'forward'"));
    CHECK_THAT(region_of(1), Catch::Matchers::Contains("rank 1 begins the region 'forward'"));
  });
  const std::string text = region_of(1);
  CHECK_THAT(text, Catch::Matchers::Contains("where rank 0 has given regions from another thread"));
  CHECK_THAT(text, Catch::Matchers::Contains("take hd::kokkos_sections"));
  listen(nullptr);
  CHECK(region_of(1) == "");  // nobody listens
  CHECK(tool.pushed == 3);
  CHECK(tool.popped == 3);
}

TEST_CASE("sharded tensors in Kokkos memory are redistributed over more ranks than cores", "[kokkos][ranks]") {
  using mesh = hd::mesh<hd::axis<hd::dp, 4>, hd::axis<hd::tp, 2>>;
  using rows = hd::layout<mesh, hd::shard<0, hd::dp>, hd::shard<1, hd::tp>>;
  using columns = hd::layout<mesh, hd::shard<1, hd::dp>>;
  if (!ranks_can_be_threads) {
    CHECK_THROWS_WITH(hd::launch<hd::threads>(mesh{}, {}, [](auto&) { memory::queue queue; }),
                      Catch::Matchers::Contains("works only on the thread that called Kokkos::initialize"));
    return;
  }
  std::vector<int> wrong(8, -1);
  hd::launch<hd::threads>(mesh{}, {}, [&](auto& world) {
    memory::queue queue;  // an instance for each rank
    hd::sharded<double, 2, rows, memory> x(queue, rows{}, hd::shape{11, 9}, world.rank());
    const auto first = x.local_offset(), size = x.valid_shape().extents();
    for (std::int64_t i = 0; i < size[0]; ++i)
      for (std::int64_t j = 0; j < size[1]; ++j)
        x.local()(i, j) = static_cast<double>(100 * (first[0] + i) + first[1] + j);
    const auto y = hd::redistribute<columns>(x, world, queue);
    queue.wait();
    int bad = 0;
    const auto at = y.local_offset(), count = y.valid_shape().extents();
    for (std::int64_t i = 0; i < count[0]; ++i)
      for (std::int64_t j = 0; j < count[1]; ++j)
        bad += y.local()(i, j) != static_cast<double>(100 * (at[0] + i) + at[1] + j);
    wrong[static_cast<std::size_t>(world.rank())] = count[0] * count[1] > 0 ? bad : -2;
  });
  CHECK(wrong == std::vector<int>(8, 0));
}

TEST_CASE("a queue keeps memory of the host for copies of messages, which grows", "[kokkos]") {
  memory::queue queue;
  void* const first = queue.staging(0, 100);
  CHECK(queue.staging(0, 50) == first);
  CHECK(queue.staging(1, 100) != first);
  auto* const grown = static_cast<std::byte*>(queue.staging(0, 1 << 20));
  grown[(1 << 20) - 1] = std::byte{7};
  memory::queue moved = std::move(queue);
  CHECK(moved.staging(0, 1 << 20) == grown);
  CHECK(grown[(1 << 20) - 1] == std::byte{7});
}

TEST_CASE("threads of OpenMP sleep soon where they wait, if nothing else is said", "[kokkos]") {
  const char* const names[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"};
  std::vector<std::pair<std::string, std::string>> said;
  for (const char* name : names)
    if (const char* value = std::getenv(name)) said.emplace_back(name, value);
  for (const char* name : names) unsetenv(name);
  const std::filesystem::path tasks("/proc/self/task");  // not there in every container
  const auto threads = [&tasks] {
    const std::filesystem::directory_iterator all(tasks);
    return std::distance(begin(all), end(all));
  };
  const bool counted = std::filesystem::exists(tasks);
  const auto before = counted ? threads() : 0;
  {
    const hd::kokkos_short_waits waits;
#if defined(KOKKOS_ENABLE_OPENMP) && !defined(__clang__)
    CHECK(waits.active());
    if (counted) CHECK(threads() - before > static_cast<std::ptrdiff_t>(omp_get_num_procs()));
#else
    CHECK_FALSE(waits.active());
    if (counted) CHECK(threads() == before);
#endif
    memory::queue queue;
    std::vector<int> seen(3000);
    Kokkos::parallel_for(Kokkos::RangePolicy<tested_space>(queue.instance(), 0, 3000),
                         [&](int i) { ++seen[static_cast<std::size_t>(i)]; });
    queue.wait();
    CHECK(seen == std::vector<int>(3000, 1));
  }
  setenv("OMP_WAIT_POLICY", "passive", 1);
  CHECK_FALSE(hd::kokkos_short_waits().active());
  unsetenv("OMP_WAIT_POLICY");
  for (const auto& [name, value] : said) setenv(name.c_str(), value.c_str(), 1);
}
