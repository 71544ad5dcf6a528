// Each facet of the CUDA backend against the host's backend, on the same numbers: its bodies on threads of the host, in groups
// of several sizes, in the order of streams of the stand-in for CUDA.
#include "compute/backend_trials.hpp"
#include "emulated_launcher.hpp"
#include "float8_trials.hpp"
#include "group_of_threads.hpp"

#include <heddle/compute/bf16_products.hpp>
#include <heddle/compute/cuda/column_sums.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/float8_products.hpp>
#include <heddle/compute/growing_room.hpp>
#include <heddle/tensor/cuda/graph.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace {
using namespace backend_trials;
template <int Threads>
using emulated = co::basic_cuda<cuda_double::emulated_launcher<Threads>>;

}  // namespace

TEST_CASE("the CUDA backend offers what a GPT-2 needs", "[cuda][law]") {
  using tested = emulated<2>;
  STATIC_REQUIRE(co::backend_queue<tested>);
  STATIC_REQUIRE(co::offered<co::product_facet, tested, float>);
  STATIC_REQUIRE(co::offers<tested, double, co::elementwise_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::layer_norm_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::rms_norm_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::norm_onto_facet>);
  STATIC_REQUIRE(co::offers<tested, hd::bf16, co::norm_onto_facet>);
  STATIC_REQUIRE_FALSE(co::offers<co::host<>, float, co::norm_onto_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::rotary_facet>);
  STATIC_REQUIRE(co::offers<tested, double, co::gated_facet<co::relu>>);
  STATIC_REQUIRE(co::offers<tested, double, co::gated_facet<co::clamped_swiglu>>);
  STATIC_REQUIRE(co::offers<tested, float, co::embedding_facet>);
  STATIC_REQUIRE(co::offers<tested, double, co::cache_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::cross_entropy_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::weighted_cross_entropy_facet>);
  STATIC_REQUIRE(co::offers<tested, double, co::chunked_cross_entropy_facet>);
  STATIC_REQUIRE(co::offered<co::fused_product_facet, tested, double>);
  STATIC_REQUIRE(co::offered<co::fused_product_facet, tested, hd::bf16>);
  STATIC_REQUIRE(co::offered<co::fused_product_facet, co::bf16_products<tested>, float>);
  STATIC_REQUIRE_FALSE(co::offered<co::fused_product_facet, co::host<>, float>);
  STATIC_REQUIRE(co::offers<tested, double, co::reversible_optimizer_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::reduction_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::cast_facet<hd::bf16>>);
  STATIC_REQUIRE(co::offered<co::half_product_facet, tested, hd::bf16>);
  STATIC_REQUIRE(co::offered<co::half_product_facet, tested, hd::f16>);
  STATIC_REQUIRE(co::offers<tested, float, co::stochastic_cast_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::ops::stochastic_adamw<float>>);
  STATIC_REQUIRE(co::offers<tested, double, co::squared_error_facet>);
  STATIC_REQUIRE(co::attention_facet::offered<tested, float>);
  STATIC_REQUIRE(co::sliced_attention_facet::offered<tested, double>);
  STATIC_REQUIRE(co::capped_attention_facet::offered<tested, double>);
  STATIC_REQUIRE(co::offers<tested, hd::bf16, co::attention_sinks_facet>);
  STATIC_REQUIRE(co::offers<tested, hd::bf16, co::soft_cap_facet, co::capped_cross_entropy_facet>);
  STATIC_REQUIRE(co::kernel_set<tested, float>);
  STATIC_REQUIRE(co::offered<co::scaled_product_facet, tested, float>);
  STATIC_REQUIRE_FALSE(co::offered<co::scaled_product_facet, co::host<>, float>);
}

TEST_CASE("sums over the rows of a matrix have as many parts as its sizes say", "[cuda][law]") {
  using co::detail::on_cuda::parts_of_columns;
  STATIC_REQUIRE(parts_of_columns(200, 3) == 3);        // none has fewer than 64 rows
  STATIC_REQUIRE(parts_of_columns(16384, 768) == 85);   // about 2048 groups of 32 columns
  STATIC_REQUIRE(parts_of_columns(16384, 65536) == 1);  // the columns are enough
  STATIC_REQUIRE(parts_of_columns(63, 0) == 1 && parts_of_columns(0, 7) == 1);
}

TEST_CASE("the CUDA backend offers what mixtures of experts, latent attention and images need", "[cuda][law]") {
  using tested = emulated<2>;
  STATIC_REQUIRE(co::offers<tested, float, co::routing_facet, co::expert_balance_facet, co::choice_limit_facet,
                            co::grouped_product_facet, co::expert_choice_facet, co::head_part_facet, co::image_facet>);
  STATIC_REQUIRE(co::offers<tested, double, co::routing_facet, co::expert_balance_facet, co::choice_limit_facet,
                            co::grouped_product_facet, co::expert_choice_facet, co::head_part_facet, co::image_facet>);
  STATIC_REQUIRE(co::offered<co::grouped_product_facet, co::bf16_products<tested>, float>);
}

TEST_CASE("experts, parts of heads and images of the CUDA backend are the host's", "[cuda]") {
  compare_experts_and_rows_with_host<emulated<1>, double>(1e-10);
  compare_experts_and_rows_with_host<emulated<1>, float>(1e-4);
  compare_experts_and_rows_with_host<emulated<3>, double>(1e-10);
}

TEST_CASE("threads of a group wait for all others", "[cuda]") {
  for (const int size : {1, 2, 5}) {
    cuda_double::group_of_threads threads(size);
    std::vector<int> written(static_cast<std::size_t>(size), -1), seen(static_cast<std::size_t>(size), 0);
    threads.run([&](int rank) {
      for (int round = 0; round < 20; ++round) {
        written[static_cast<std::size_t>(rank)] = round;
        threads.sync();
        for (const int w : written) seen[static_cast<std::size_t>(rank)] += w == round;
        threads.sync();
      }
    });
    CHECK(seen == std::vector<int>(static_cast<std::size_t>(size), 20 * size));
  }
}
#ifndef CUDA_DOUBLE_THREADS  // threads of the system's would wait for ever
TEST_CASE("threads of a group that do not wait equally often are found", "[cuda]") {
  for (const int other : {0, 2}) {
    cuda_double::group_of_threads threads(3);
    CHECK_THROWS_WITH(
        threads.run([&](int rank) {
          if (rank != other) threads.sync();
        }),
        other == 0 ? "threads of a group call sync 0 and 1 times" : "threads of a group call sync 1 and 0 times");
  }
}
#endif

TEST_CASE("bodies of the CUDA backend compute what the host's kernels do, in groups of one", "[cuda]") {
  compare_with_host<emulated<1>, double>(1e-10, 1e-10);
  compare_with_host<emulated<1>, float>(1e-4, 1e-4);
}
TEST_CASE("bodies of the CUDA backend compute what the host's kernels do, in groups of four", "[cuda]") {
  compare_with_host<emulated<4>, double>(1e-10, 1e-10);
  compare_with_host<emulated<4>, float>(1e-4, 1e-4);
}

TEST_CASE("kernels of bf16 compute in float and round once", "[cuda][bf16]") {
  compare_bf16_with_host_and_double<emulated<4>>();
}

TEST_CASE("grouped products of bf16 go by matrix instructions where the device has them", "[cuda][bf16]") {
  cuda_double::matrix_kernels() = 0;
  backend_trials::compare_grouped_products_of_bf16<emulated<1>>();
  CHECK(cuda_double::matrix_kernels() == 3 * 6);
  cuda_double::has_matrix_instructions() = false;
  backend_trials::compare_grouped_products_of_bf16<emulated<4>>();
  cuda_double::has_matrix_instructions() = true;
  CHECK(cuda_double::matrix_kernels() == 3 * 6);
}
// Vectors of 16 bytes: where arrays begin elsewhere, kernels read element by element, in the same order.
TEMPLATE_TEST_CASE("kernels have the same bits wherever their arrays begin", "[cuda]", float, double) {
  using T = TestType;
  using tested = emulated<4>;
  const double tolerance = std::is_same_v<T, double> ? 1e-10 : 1e-4;
  const auto all_of = []<class B>(B*, std::int64_t rows, std::int64_t columns) {
    auto all = elementwise<B, T>(rows, columns);
    for (auto& other : {norms<B, T>(rows, columns), cross_entropy<B, T>(rows, columns),
                        sums_and_steps<B, T>(rows, columns), stochastic_rounding<B>(rows * columns)})
      all.insert(all.end(), other.begin(), other.end());
    return all;
  };
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 2}, {7, 13}, {5, 64}, {2, 700}}) {
    CAPTURE(rows, columns);
    const std::size_t count = (columns >= 12 ? 29u : 25u) + 15 + 7 + 16 + 3;
    const auto expected = all_of(static_cast<tested*>(nullptr), rows, columns);
    check(expected, all_of(static_cast<co::host<>*>(nullptr), rows, columns), tolerance, count);
    for (const std::int64_t starts : {2, 3, 4, 5}) {
      CAPTURE(starts);
      starts_of_arrays() = starts;
      const auto got = all_of(static_cast<tested*>(nullptr), rows, columns);
      starts_of_arrays() = 1;
      check(got, expected, 0, count);
    }
  }
}

namespace {
struct one_of {
  int rank_of, size_of;
  int rank() const { return rank_of; }
  int size() const { return size_of; }
};
template <class To>
To of(std::int64_t i) {
  return To(static_cast<float>(i % 251));
}
// Whether every element is visited by one thread, whatever begins where: b = a + its index + b, c = a.
template <class A, class B, class C>
std::int64_t wrong_visits(std::int64_t n, std::int64_t first_a, std::int64_t first_b, std::int64_t first_c,
                          int threads) {
  namespace groups = co::detail::in_groups;
  const auto room = [n](std::int64_t first) { return static_cast<std::size_t>(n + first + 1); };
  std::vector<A> a(room(first_a));
  std::vector<B> b(room(first_b), B(2.0f));
  std::vector<C> c(room(first_c), C(3.0f));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = of<A>(static_cast<std::int64_t>(i));
  const auto body = [](std::int64_t i, A in, B& both, C& out) {
    both = B(static_cast<float>(in) + static_cast<float>(i % 3) + static_cast<float>(both));
    out = C(static_cast<float>(in));
  };
  const A* const from = a.data() + first_a;
  if (threads == 0) {
    const int width = groups::pack_width<const A*, B*, groups::overwritten<C>>();
    for (std::int64_t k = 0; k < groups::packs_of(n, width); ++k)
      groups::for_pack(k, n, body, from, b.data() + first_b, groups::overwritten(c.data() + first_c));
  }
  for (int rank = 0; rank < threads; ++rank) {
    one_of group{rank, threads};
    groups::for_packs(group, n, body, from, b.data() + first_b, groups::overwritten(c.data() + first_c));
  }
  std::int64_t wrong = 0;
  const auto differ = [&](auto got, float expected) {
    wrong += static_cast<float>(got) != static_cast<float>(decltype(got)(expected));
  };
  for (std::int64_t i = -first_b; i <= n; ++i)
    differ(b[static_cast<std::size_t>(i + first_b)],
           i < 0 || i == n ? 2.0f : static_cast<float>(from[i]) + static_cast<float>(i % 3) + 2.0f);
  for (std::int64_t i = -first_c; i <= n; ++i)
    differ(c[static_cast<std::size_t>(i + first_c)], i < 0 || i == n ? 3.0f : static_cast<float>(from[i]));
  return wrong;
}
}  // namespace

TEST_CASE("packs of 16 bytes have every element of arrays of any types, starts and sizes once", "[cuda]") {
  namespace groups = co::detail::in_groups;
  STATIC_REQUIRE(groups::pack_width<const float*, float*>() == 4);
  STATIC_REQUIRE(groups::pack_width<const hd::bf16*, groups::overwritten<hd::f16>>() == 8);
  STATIC_REQUIRE(groups::pack_width<const hd::bf16*, groups::overwritten<double>>() == 2);
  STATIC_REQUIRE(sizeof(groups::pack<float, 4>) == 16);
  for (const std::int64_t n : {0, 1, 3, 4, 7, 8, 16, 37})
    for (const std::int64_t start : {0, 1, 2, 3, 8})
      for (const std::int64_t other : {0, 1, 4})
        for (const int threads : {0, 1, 3, 8}) {
          CAPTURE(n, start, other, threads);
          CHECK(wrong_visits<float, float, float>(n, start, other, start, threads) == 0);
          CHECK(wrong_visits<hd::bf16, hd::f16, hd::bf16>(n, start, other, start, threads) == 0);
          CHECK(wrong_visits<hd::bf16, float, hd::f16>(n, start, start, other, threads) == 0);
          CHECK(wrong_visits<float, double, hd::bf16>(n, other, start, start, threads) == 0);
        }
}

TEST_CASE("a cross-entropy in chunks of words is that of all words, on the CUDA backend and on the host", "[cuda]") {
  compare_chunks_with_host<emulated<4>, double>(1e-12);
  compare_chunks_with_host<emulated<4>, float>(1e-5);
  compare_chunks_with_host<co::host<>, double>(1e-12);
}

TEST_CASE("products with what is behind them are those of steps, by epilogues of the library and without", "[cuda]") {
  using tested = emulated<1>;
  auto& made = cuda_double::ended_products();
  for (const bool has : {true, false}) {
    CAPTURE(has);
    cuda_double::has_epilogues() = has;
    for (auto& count : made) count = 0;
    compare_ends_with_host<tested, double>(1e-10);
    compare_ends_with_host<tested, float>(1e-4);
    for (const auto& count : made) CHECK((count > 0) == has);
    for (auto& count : made) count = 0;
    compare_ends_with_host<tested, hd::bf16>(0x1p-6);
    for (const auto& count : made) CHECK((count > 0) == has);
    // Operands rounded to bf16, as in the steps of the same backend.
    using rounding = co::bf16_products<tested>;
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{7, 13}, {33, 100}}) {
      CAPTURE(rows, columns);
      check(products_with_ends<rounding, float>(rows, columns),
            products_with_ends<rounding, float, false>(rows, columns), 1e-5, 12);
    }
  }
  cuda_double::has_epilogues() = true;
  trial<tested, float> t;
  auto c = t.some(3, 4), a = t.some(3, 5), b = t.some(5, 4), z = t.some(4, 4);
  const auto bias = t.some(3), whole = t.some(4);
  CHECK_THROWS_WITH(co::run<co::ops::matmul_add_bias<>>(t.backend, a, b, bias, c),
                    Catch::Matchers::Contains("elements of the bias") && Catch::Contains("4") && Catch::Contains("3"));
  CHECK_THROWS_WITH(co::run<co::ops::matmul_add_bias_gelu<>>(t.backend, a, b, whole, z, c),
                    Catch::Matchers::Contains("before GELU"));
  CHECK_THROWS_WITH(co::run<co::ops::matmul_add_bias<>>(t.backend, c, b, whole, c),
                    Catch::Matchers::Contains("rows of op(b)"));
}

TEST_CASE("products of 16-bit operands and stochastic rounding of the CUDA backend are the host's", "[cuda]") {
  compare_halves_with_host<emulated<1>>();
}

TEST_CASE("tiles of attention that end inside of sequences are the host's", "[cuda]") {
  for (const std::int64_t sequence : {1, 7, 8, 9, 37}) {
    CAPTURE(sequence);
    check(attention<emulated<2>, double>(sequence), attention<co::host<>, double>(sequence), 1e-10, 4);
  }
}

TEST_CASE("tiles of attention fit into what a device offers a block", "[cuda]") {
  namespace gpu = co::detail::on_cuda;
  namespace groups = co::detail::in_groups;
  using mask = groups::causal_batch;
  struct device : gpu::launcher_base {
    std::int64_t offered;
    explicit device(std::int64_t kib) : offered(kib * 1024) {}
    std::int64_t tile_bytes() const { return groups::tile_bytes_of(offered); }
  };
  // Of sm_90, sm_80, sm_86, sm_75, of a device that offers no more than all do, and of none.
  for (const int kib : {227, 163, 99, 64, 48, 0})
    for (std::int64_t width = 1; width <= 300; ++width) {
      const device d(kib);
      CAPTURE(kib, width);
      const auto fits = [&]<class Body, class T>(Body*, T*) {
        const std::int64_t edge = groups::edge_of_tiles<Body, T>(d, width, width);
        const auto bytes = [&](std::int64_t e) {
          return Body::elements(e, width, width) * static_cast<std::int64_t>(sizeof(T));
        };
        if (edge != 0) CHECK(bytes(edge) <= d.offered);
        if (edge != 64) CHECK(bytes(edge == 0 ? 8 : edge * 2) > (std::min)(d.offered, std::int64_t{112} * 1024));
      };
      fits(static_cast<groups::attention_tile<float, mask>*>(nullptr), static_cast<float*>(nullptr));
      fits(static_cast<groups::attention_tile<double, mask>*>(nullptr), static_cast<double*>(nullptr));
      fits(static_cast<groups::attention_backward_query_tile<float, mask>*>(nullptr), static_cast<float*>(nullptr));
      fits(static_cast<groups::attention_backward_key_tile<float, mask>*>(nullptr), static_cast<float*>(nullptr));
    }
  // Heads of 128 floats, whose gradients of 32 keys take 105 KiB: on sm_86 there are 16.
  using keys = groups::attention_backward_key_tile<float, mask>;
  CHECK(groups::edge_of_tiles<keys, float>(device(227), 128, 128) == 32);
  CHECK(groups::edge_of_tiles<keys, float>(device(99), 128, 128) == 16);
}

TEST_CASE("attention of the CUDA backend is the host's with tiles of every size", "[cuda]") {
  const std::int64_t sequence = 70;  // ends inside of tiles of each size
  const auto expected = attention<co::host<>, double>(sequence);
  for (const auto& [offered, edge] : {std::pair{99 * 1024, 64}, {30'000, 32}, {10'000, 16}, {3'000, 8}, {1'000, 0}}) {
    CAPTURE(offered, edge);
    cuda_double::last_edge() = 0;
    cuda_double::offered_to_groups() = offered;
    const auto got = attention<emulated<1>, double>(sequence);
    cuda_double::offered_to_groups() = 0;
    check(got, expected, 1e-10, 4);
    CHECK(cuda_double::last_edge() == edge);
  }
}

TEST_CASE("attention in parts of the keys is the host's for few queries over pages", "[cuda][infer]") {
  struct restored {
    ~restored() { cuda_double::offered_to_groups() = 0; }
  } at_the_end;
  cuda_double::last_edge() = 0;
  compare_few_queries_with_host<emulated<1>, double>(1e-10);
  CHECK(cuda_double::last_edge() == co::detail::in_groups::split_keys);
  cuda_double::offered_to_groups() = 112 << 10;
  compare_few_queries_with_host<emulated<3>, double>(1e-10);
  compare_few_queries_with_host<emulated<1>, float>(1e-5);
  cuda_double::offered_to_groups() = 4 << 10;  // room for tiles of queries alone
  compare_few_queries_with_host<emulated<1>, double>(1e-10);
  CHECK(cuda_double::last_edge() < co::detail::in_groups::split_keys);
}

TEST_CASE("masks, pages and what is not finite go through the CUDA backend as on the host", "[cuda]") {
  compare_corners_with_host<emulated<1>>();
  compare_corners_with_host<emulated<3>>();
}

TEST_CASE("arguments that do not fit a kernel of the CUDA backend are refused with both numbers", "[cuda]") {
  trial<emulated<1>, float> t;
  auto c = t.some(3, 4), a = t.some(3, 5), b = t.some(6, 4);
  CHECK_THROWS_WITH(co::matmul(t.backend, a, b, c),
                    Catch::Matchers::Contains("rows of op(b)") && Catch::Contains("5") && Catch::Contains("6"));
  auto bias = t.some(3);
  CHECK_THROWS_AS(co::run<co::ops::add_bias>(t.backend, c, bias), hd::layout_error);
  CHECK_THROWS_WITH(
      co::run<co::ops::undo_adamw>(t.backend, bias, bias, bias, bias, co::adamw_step{.lr = 0.5, .weight_decay = 2}),
      Catch::Matchers::Contains("got learning rate 0.5") && Catch::Contains("weight decay 2"));
}

TEST_CASE("products of scaled operands of 8 bits are the host's, with scales on the device", "[cuda][float8]") {
  using cuda_double::float8_way;
  for (const float8_way way : {float8_way::library, float8_way::as_bf16}) {
    CAPTURE(static_cast<int>(way));
    cuda_double::float8_of_library() = way;
    cuda_double::float8_products() = 0;
    CHECK(float8_trials::worst_float8_difference<emulated<1>, float>() < 2e-5);
    CHECK(float8_trials::worst_float8_difference<emulated<4>, float>() < 2e-5);
    CHECK(float8_trials::worst_float8_difference<emulated<1>, hd::bf16>() < 0.1);
    CHECK((cuda_double::float8_products() > 0) == (way == float8_way::library));
    for (const bool by_rows : {true, false}) {  // by the library, or by a kernel behind its product
      CAPTURE(by_rows);
      cuda_double::float8_rows_of_library() = by_rows;
      CHECK(float8_trials::worst_float8_difference<emulated<1>, float, true>() < 2e-5);
      CHECK(float8_trials::worst_float8_difference<emulated<4>, float, true>() < 2e-5);
      CHECK(float8_trials::worst_float8_difference<emulated<1>, hd::bf16, true>() < 0.1);
    }
    cuda_double::float8_rows_of_library() = true;
  }
  cuda_double::float8_of_library() = float8_way::none;
  CHECK_THROWS_WITH((float8_trials::float8_difference<emulated<1>, float, transpose::no, transpose::no>(2, 2, 2, 0.0f)),
                    Catch::Matchers::Contains("CUDA device 0 has 8.0") &&
                        Catch::Matchers::Contains("leave products_in<float8> or products_in<float8_rows> out"));
  cuda_double::float8_of_library() = float8_way::library;
}

TEST_CASE("a captured product keeps its memory when a later product needs more", "[cuda][graph][float8]") {
  using memory = hd::cuda_memory;
  const auto replayed = []<class Backend>(Backend& backend, const auto& multiply) {
    auto& queue = backend.queue();
    const std::int64_t large = 64 * 64;
    hd::buffer<float, memory> a(queue, large), b(queue, large), c(queue, large), d(queue, large);
    queue.copy(numbers<float>(large, 1), a);
    queue.copy(numbers<float>(large, 2), b);
    const auto of = [](auto& x, std::int64_t n) { return hd::matrix_view<float, memory>(x.address(), {n, n}); };
    multiply(backend, of(a, 4), of(b, 4), of(c, 4));  // takes its memory
    std::vector<float> expected(16), got(16);
    queue.copy(hd::row_at<memory>(c.address(), 16), expected);
    queue.wait();
    auto graph = hd::cuda_graph::capture(queue, [&] { multiply(backend, of(a, 4), of(b, 4), of(c, 4)); });
    multiply(backend, of(a, 64), of(b, 64), of(d, 64));
    const hd::buffer<float, memory> where_it_was(queue, 16);  // would be written by the graph
    queue.zero(c);
    graph.launch(queue);
    std::vector<float> untouched(16);
    queue.copy(hd::row_at<memory>(c.address(), 16), got);
    queue.copy(where_it_was, untouched);
    queue.wait();
    return got == expected && untouched == std::vector<float>(16);
  };
  co::bf16_products<emulated<1>> halves;
  CHECK(replayed(halves, [](auto& backend, auto a, auto b, auto c) { co::matmul(backend, a, b, c); }));
  co::float8_products<emulated<1>, hd::float8_rows> by_rows;
  CHECK(replayed(by_rows, [](auto& backend, auto a, auto b, auto c) {
    const auto most = backend.template greatest_of<transpose::no, transpose::no>(a, b);
    backend.template scaled_matmul<transpose::no, transpose::no, co::float8_operand::value, co::float8_operand::value>(
        a, b, c, most);
  }));
}
TEST_CASE("room that grows keeps what was too small on a device, and is below three times the last", "[cuda]") {
  hd::cuda_memory::queue queue;
  co::detail::growing_room<float, hd::cuda_memory> room;
  const float* const first = room.of(queue, 10, "a test");
  CHECK(room.of(queue, 7, "a test") == first);
  const int before = cuda_double::open_resources();
  CHECK(room.of(queue, 11, "a test") != first);
  CHECK(cuda_double::open_resources() == before + 1);
  const float* const second = room.of(queue, 15, "a test");  // half as many more were taken
  CHECK(room.of(queue, 12, "a test") == second);
  CHECK(cuda_double::open_resources() == before + 1);
}
