// What holds for every memory space, whoever's it is: each law is a function that a test of the space calls.
#pragma once

#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace memory_laws {

namespace hd = heddle;

template <class Space>
void is_a_space_of_its_own() {
  using matrix = hd::matrix_view<float, Space>;
  STATIC_REQUIRE(hd::memory_space<Space>);
  STATIC_REQUIRE(std::is_same_v<hd::space_of<const matrix&>, Space>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<hd::buffer<float, Space>>);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<typename Space::queue>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<matrix, hd::matrix_view<float>>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<hd::matrix_view<float>, matrix>);
}

/// From the host, from one memory of the space to another, and back; fresh memory is zero.
template <class Space>
void what_goes_in_comes_out(typename Space::queue& queue) {
  for (const std::int64_t n : {0, 1, 7, 1023, 1024, 50'001}) {
    CAPTURE(n);
    hd::buffer<float, Space> a(queue, n, "a"), b(queue, n, "b");
    if (n > 0) CHECK(reinterpret_cast<std::uintptr_t>(a.address()) % 64 == 0);
    std::vector<float> in(static_cast<std::size_t>(n)), out(in.size(), -1.0f);
    std::iota(in.begin(), in.end(), 1.0f);
    queue.copy(b, out);
    queue.wait();
    CHECK(out == std::vector<float>(in.size(), 0.0f));
    queue.copy(in, a);
    queue.copy(a, b);
    queue.zero(a);
    queue.copy(b.view(), out);
    queue.wait();
    CHECK(out == in);
    queue.copy(a, out);
    queue.wait();
    CHECK(out == std::vector<float>(in.size(), 0.0f));
  }
  // Elements that are no whole words, and a part of a memory.
  hd::buffer<char, Space> text(queue, 13);
  const std::string words = "memory spaces";
  std::string back(13, '?');
  queue.copy(words, text);
  queue.zero(hd::vector_view<char, Space>(text.address() + 3, {7}));
  queue.copy(text, back);
  queue.wait();
  CHECK(back == std::string("mem\0\0\0\0\0\0\0ces", 13));
}

/// Memory outlives the queue that gave it, moves, and is aligned as its type asks.
template <class Space>
void outlives_its_queue() {
  struct alignas(512) wide {
    double x[64];
  };
  hd::buffer<wide, Space> kept;
  std::vector<wide> in(3), out(3);
  in[2].x[63] = 5;
  {
    typename Space::queue queue;
    hd::buffer<wide, Space> made(queue, 3);
    queue.copy(in, made);
    queue.wait();
    kept = std::move(made);
  }
  CHECK(reinterpret_cast<std::uintptr_t>(kept.address()) % 512 == 0);
  typename Space::queue other;
  other.copy(kept, out);
  other.wait();
  CHECK(out[2].x[63] == 5);
}

template <class Space>
void errors_name_the_numbers(typename Space::queue& queue) {
  hd::buffer<double, Space> a(queue, 4);
  std::vector<double> five(5);
  CHECK_THROWS_WITH(queue.copy(five, a), Catch::Contains("5 elements do not fit a memory of 4"));
  CHECK_THROWS_AS((hd::buffer<double, Space>(queue, std::int64_t{1} << 47, "all")), hd::memory_error);
  queue.wait();
}

/// What one queue did is there for another that waits for its event.
template <class Space>
  requires hd::concurrent_queue<typename Space::queue>
void events_order_queues() {
  typename Space::queue first;
  auto second = first.beside();
  const std::int64_t n = 100'000;
  hd::buffer<int, Space> a(first, n), b(first, n), c(first, n);
  std::vector<int> in(static_cast<std::size_t>(n)), out(in.size());
  std::iota(in.begin(), in.end(), 0);
  for (int round = 0; round < 20; ++round) {
    in[0] = round;
    first.copy(in, a);
    first.copy(a, b);
    const auto written = first.record();
    second.after(written);
    second.copy(b, c);
    first.after(second.record());  // before the next round writes
    second.copy(c, out);
    second.wait();
    CHECK(out == in);
  }
  first.wait();
}

/// A sharded tensor's part comes back to the host as it was.
template <class Space>
void sharded_parts_come_back(typename Space::queue& queue) {
  using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 3>>;
  using layout = hd::layout<mesh, hd::shard<0, hd::dp>, hd::shard<1, hd::tp>>;
  for (int rank = 0; rank < 6; ++rank) {
    hd::sharded<double, 2, layout> here(layout{}, hd::shape{5, 7}, rank);
    std::iota(here.elements().begin(), here.elements().end(), 100.0 * rank);
    const auto there = hd::copy_to<Space>(queue, here);
    const auto back = hd::copy_to<hd::host_memory>(queue, there);
    CHECK(std::vector<double>(back.elements().begin(), back.elements().end()) ==
          std::vector<double>(here.elements().begin(), here.elements().end()));
  }
}

}  // namespace memory_laws
