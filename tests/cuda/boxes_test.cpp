// Boxes of CUDA memory by one kernel each time, over the stand-in for the CUDA runtime: the bodies are those that nvcc compiles.
#include "emulated_launcher.hpp"

#include "catch.hpp"
#include "tensor/box_trials.hpp"

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace {
namespace hd = heddle;
namespace dt = heddle::detail;
using memory = hd::cuda_memory;

unsigned fresh_seed() {
  return std::random_device{}();
}

// Packs `boxes` runs of every second element and puts them back; how many kernels that took.
int kernels_for(std::int64_t boxes, bool many_stretches) {
  memory::queue q;
  const std::int64_t n = 40 * boxes;
  std::vector<std::int32_t> in(static_cast<std::size_t>(n)), out(in.size(), -1), expected(in.size(), 0);
  std::iota(in.begin(), in.end(), 1);
  hd::buffer<std::int32_t, memory> source(q, n), packed(q, n / 2), target(q, n);
  q.copy(in, source);
  std::vector<dt::memory_overlap<2>> all;
  for (std::int64_t b = 0; b < boxes;
       ++b) {  // of a tensor [boxes, 40]: in row b every second element, or the first half
    dt::memory_overlap<2> o;
    o.along[0] = dt::stretch_list({b, b, 1});
    if (many_stretches)
      for (std::int64_t i = 0; i < 20; ++i) o.along[1].push_back({2 * i, 2 * i, 1});
    else
      o.along[1] = dt::stretch_list({0, 0, 20});
    for (const auto& s : o.along[1])
      for (std::int64_t i = 0; i < s.count; ++i)
        expected[static_cast<std::size_t>(40 * b + s.from + i)] = in[static_cast<std::size_t>(40 * b + s.from + i)];
    all.push_back(o);
  }
  const int before = cuda_double::launches();
  dt::box_copies<std::int32_t, memory, 2> pack(q, source.view(), packed.view()),
      unpack(q, packed.view(), target.view());
  for (std::size_t b = 0; b < all.size(); ++b) pack.pack(all[b], {boxes, 40}, static_cast<std::int64_t>(20 * b));
  pack.launch();
  const int kernels = cuda_double::launches() - before;
  for (std::size_t b = 0; b < all.size(); ++b) unpack.unpack(all[b], static_cast<std::int64_t>(20 * b), {boxes, 40});
  unpack.launch();
  CHECK(cuda_double::launches() - before == 2 * kernels);
  q.copy(target, out);
  q.wait();
  CHECK(out == expected);
  return kernels;
}
}  // namespace

TEMPLATE_TEST_CASE("boxes of CUDA memory are copied, folded and filled as the host's", "[cuda][tensor]", double, float,
                   std::int8_t, std::int16_t) {
  memory::queue q;
  CHECK(box_trials::first_wrong<memory, TestType>(q, fresh_seed(), 12) == "");
}

TEST_CASE("one kernel copies all boxes, whose table comes with its arguments or is written before", "[cuda][tensor]") {
  CHECK(kernels_for(1, false) == 1);
  CHECK(kernels_for(8, true) == 1);   // within 4 KiB
  CHECK(kernels_for(40, true) == 1);  // within 32 KiB
  CHECK(kernels_for(300, false) == 1);
  CHECK(kernels_for(200, true) == 5);  // 14200 words in four parts, then the kernel
}

TEST_CASE("a batch of boxes waits for nothing on the host", "[cuda][tensor]") {
  for (const std::int64_t boxes : {8, 300}) {
    memory::queue q;
    hd::buffer<float, memory> a(q, boxes * 40), b(q, boxes * 40);
    q.wait();
    cuda_double::reset();
    dt::box_copies<float, memory, 2> copies(q, a.view(), b.view());
    for (std::int64_t i = 0; i < boxes; ++i) {
      dt::memory_overlap<2> o;
      o.along[0] = dt::stretch_list({i, i, 1});
      for (std::int64_t j = 0; j < 20; ++j) o.along[1].push_back({2 * j, 2 * j, 1});
      copies.pack(o, {boxes, 40}, 20 * i);
    }
    copies.launch();
    const auto calls = cuda_double::calls();
    for (const char* const waits : {"cudaStreamSynchronize", "cudaMemcpyAsync", "cudaHostAlloc", "cudaFreeHost"})
      CHECK(calls.count(waits) == 0);
  }
}

TEST_CASE("places inside boxes are divided with 32 or with 64 bits", "[cuda][tensor]") {
  memory::queue q;
  dt::box_table table(false);
  dt::memory_overlap<3> o;
  o.along[0] = dt::stretch_list({1, 0, 3});
  for (std::int64_t i = 0; i < 4; ++i) o.along[1].push_back({2 * i, i, 1});
  o.along[2] = dt::stretch_list({2, 1, 5});
  table.add(o, {4, 8, 9}, 0, {3, 4, 7}, 0);
  std::vector<double> in(4 * 8 * 9);
  std::iota(in.begin(), in.end(), 1.0);
  hd::buffer<double, memory> source(q, 4 * 8 * 9), wide(q, 3 * 4 * 7), narrow(q, 3 * 4 * 7);
  q.copy(in, source);
  dt::launch_boxes<memory, std::int64_t>(q, table, dt::copy_element<double>{source.address(), wide.address()});
  dt::launch_boxes<memory, std::uint32_t>(q, table, dt::copy_element<double>{source.address(), narrow.address()});
  std::vector<double> a(3 * 4 * 7), b(a.size()), expected(a.size(), 0.0);
  dt::copy_overlap(o, in.data(), {4, 8, 9}, expected.data(), {3, 4, 7});
  q.copy(wide, a);
  q.copy(narrow, b);
  q.wait();
  CHECK(a == expected);
  CHECK(b == expected);
  // A box of more elements than 32 bits count is described as one.
  dt::box_table large(false);
  dt::memory_overlap<2> huge;
  huge.along[0] = dt::stretch_list({1, 0, 70'000});
  huge.along[1] = dt::stretch_list({5, 0, 80'000});
  large.add(huge, {70'001, 80'010}, 0, {70'000, 80'000}, 0);
  std::vector<std::int64_t> words(large.words());
  large.write_to(words.data());
  struct last_place {
    std::int64_t* out;
    void operator()(std::int64_t from, std::int64_t to) const {
      out[0] = from;
      out[1] = to;
    }
  };
  std::int64_t places[2] = {};
  CHECK(large.units() == std::int64_t{70'000} * 80'000);
  dt::each_box_element<dt::table_in_memory, std::int64_t, last_place>{{words.data()}, {places}}(large.units() - 1);
  CHECK(places[0] == std::int64_t{70'000} * 80'010 + 80'004);
  CHECK(places[1] == std::int64_t{70'000} * 80'000 - 1);
}
