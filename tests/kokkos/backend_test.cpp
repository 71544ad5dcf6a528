// Each facet of the backend on Kokkos against the host's backend, on the same numbers. A second program is made of this file
// with AS_A_DEVICE: the host then runs what devices run, element by element, instead of the host's loops, with products and attention by
// teams that have room for tiles of eight rows.
#include "catch.hpp"
#include "compute/backend_gradients.hpp"
#include "compute/backend_trials.hpp"
#include "space.hpp"

#include <heddle/compute/facets.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(AS_A_DEVICE)
template <>
inline constexpr bool heddle::compute::detail::on_kokkos::runs_on_host<tested_space> = false;
#endif

namespace {

namespace hd = heddle;
namespace co = heddle::compute;
using host = co::host<>;
#if defined(AS_A_DEVICE)
using tested = co::kokkos<tested_space, co::teams<3072, 2>>;
constexpr double of_products = 1;
#else
using tested = co::kokkos<tested_space>;
constexpr double of_products = 0;  // the host's, bit for bit
#endif
using co::transpose;

using namespace backend_trials;

}  // namespace

TEST_CASE("the backend on Kokkos offers what a GPT-2 needs", "[kokkos][law]") {
  STATIC_REQUIRE(co::backend_queue<tested>);
  STATIC_REQUIRE(std::is_same_v<tested::space, hd::kokkos_memory<tested_space>>);
  STATIC_REQUIRE(co::kernel_set<tested, float>);
  STATIC_REQUIRE(co::kernel_set<tested, double>);
  STATIC_REQUIRE(co::offers<tested, float, co::reduction_facet>);
  STATIC_REQUIRE(co::offers<tested, double, co::reversible_optimizer_facet>);
  STATIC_REQUIRE(co::offers<tested, float, co::master_optimizer_facet<hd::bf16, hd::bf16>>);
  STATIC_REQUIRE(co::offers<tested, float, co::cast_facet<hd::bf16>>);
  STATIC_REQUIRE(co::offered<co::half_product_facet, tested, hd::bf16>);
  STATIC_REQUIRE(co::offers<tested, float, co::rms_norm_facet>);
  STATIC_REQUIRE(co::offers<tested, double, co::gated_facet<co::relu>>);
  STATIC_REQUIRE(co::offers<tested, double, co::gated_facet<co::clamped_swiglu>>);
  STATIC_REQUIRE(co::offers<tested, float, co::rotary_facet>);
  STATIC_REQUIRE(co::sliced_attention_facet::offered<tested, float>);
  STATIC_REQUIRE(co::offers<tested, double, co::squared_error_facet>);
}

TEST_CASE("kernels on Kokkos compute what the host's do", "[kokkos]") {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{{0, 5}, {1, 1}, {4, 0}, {7, 13}, {33, 100}};
  compare_with_host<tested, double>(1e-10, 1e-10 * of_products, sizes, {0, 1, 7, 8, 9, 37});
  compare_with_host<tested, float>(1e-4, 1e-4 * of_products, sizes, {0, 1, 7});
}

#if defined(AS_A_DEVICE)
namespace {
// The names that tools are told while f() runs.
template <class F>
std::vector<std::string> kernels_of(const F& f) {
  static std::vector<std::string> begun;
  begun.clear();
  Kokkos::Tools::Experimental::set_begin_parallel_for_callback(
      [](const char* name, std::uint32_t, std::uint64_t*) { begun.push_back(name); });
  f();
  Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
  return begun;
}
// Products over several tiles, and attention whose sequences end inside of one.
template <class Teams>
void compare_tiles_with_host() {
  using by_teams = co::kokkos<tested_space, Teams>;
  check(products<by_teams, double>(70, 133), products<host, double>(70, 133), 1e-10, 5);
  check(products<by_teams, float>(67, 200), products<host, float>(67, 200), 1e-4, 5);
  check(attention<by_teams, double>(70), attention<host, double>(70), 1e-10, 4);
  compare_corners_with_host<by_teams>();
}
}  // namespace
TEST_CASE("products and attention of teams are the host's with tiles of every size", "[kokkos]") {
  compare_tiles_with_host<co::teams<>>();           // of 64 or 32 rows, in what Kokkos offers
  compare_tiles_with_host<co::teams<10'000, 2>>();  // 16
  compare_tiles_with_host<co::teams<2048, 2>>();    // 8; too little for gradients of attention, which go key by key
  compare_halves_with_host<tested>();

  const auto names = kernels_of([] {
    products<tested, float>(3, 5);
    attention<tested, float>(3);
  });
  for (const char* name : {"heddle::matmul", "heddle::attention", "heddle::attention_backward"})
    CHECK(std::count(names.begin(), names.end(), name) > 0);
  CHECK(std::string(tested().gemm_name()) == "team kernels of Kokkos");
}
TEST_CASE("ranks that are threads have teams at the same time", "[kokkos]") {
  const auto expected = attention<host, double>(37);
  std::vector<double> wrong(ranks_can_be_threads ? 4 : 1, 1.0);
  const auto rank = [&expected](double& most) {
    most = 0;
    for (int round = 0; round < 3; ++round) {
      const auto got = attention<tested, double>(37);
      for (std::size_t k = 0; k < got.size(); ++k) most = std::max(most, difference(got[k].second, expected[k].second));
    }
  };
  std::vector<std::thread> ranks;
  for (std::size_t r = 1; r < wrong.size(); ++r) ranks.emplace_back([&, r] { rank(wrong[r]); });
  rank(wrong[0]);
  for (std::thread& t : ranks) t.join();
  for (const double most : wrong) CHECK(most <= 1e-10);
}
#endif

TEST_CASE("masks, pages and what is not finite go through the backend on Kokkos as on the host", "[kokkos]") {
  compare_corners_with_host<tested>();
}

namespace {
// The facets of the host's backend.
using facets_of_elements =
    std::tuple<co::product_facet, co::elementwise_facet, co::layer_norm_facet, co::rms_norm_facet, co::rotary_facet,
               co::attention_facet, co::sliced_attention_facet, co::capped_attention_facet, co::attention_sinks_facet,
               co::capped_cross_entropy_facet, co::soft_cap_facet, co::embedding_facet, co::cache_facet,
               co::cross_entropy_facet, co::weighted_cross_entropy_facet, co::loss_facet, co::squared_error_facet,
               co::image_facet, co::reduction_facet, co::optimizer_facet, co::reversible_optimizer_facet,
               co::routing_facet, co::expert_balance_facet, co::choice_limit_facet, co::expert_choice_facet,
               co::head_part_facet, co::grouped_product_facet, co::gated_facet<co::silu>,
               co::gated_facet<co::gelu_tanh>, co::gated_facet<co::relu>, co::gated_facet<co::clamped_swiglu>,
               co::cast_facet<hd::bf16>, co::cast_facet<hd::f16>, co::stochastic_cast_facet,
               co::master_optimizer_facet<hd::bf16, hd::bf16>>;
}  // namespace
TEST_CASE("the backend on Kokkos has the facets of the host's backend", "[kokkos][law]") {
  const auto all = []<class T, class... F>(std::type_identity<T>, std::tuple<F...>*) {
    STATIC_REQUIRE((F::template offered<host, T> && ...));
    STATIC_REQUIRE((F::template offered<tested, T> && ...));
  };
  all(std::type_identity<float>{}, static_cast<facets_of_elements*>(nullptr));
  all(std::type_identity<double>{}, static_cast<facets_of_elements*>(nullptr));
  STATIC_REQUIRE(co::half_product_facet::offered<tested, hd::bf16>);
  STATIC_REQUIRE(co::half_product_facet::offered<tested, hd::f16>);
  STATIC_REQUIRE(co::offers<tested, float, co::ops::stochastic_adamw<float>>);
}

TEST_CASE("experts, caches, images and stochastic rounding on Kokkos compute what the host's do", "[kokkos]") {
  compare_experts_and_rows_with_host<tested, double>(1e-10);
  compare_experts_and_rows_with_host<tested, float>(1e-4);
  for (const std::int64_t n : {0, 1, 7, 5000}) {
    CAPTURE(n);
    check(stochastic_rounding<tested>(n), stochastic_rounding<host>(n), 1e-6, 3);
  }
}

// Kernels with so few elements that they are the calling thread's own, and with more, by one thread and by all.
TEST_CASE("small kernels and large ones compute the same, and tools are told of each", "[kokkos]") {
  static std::vector<std::string> begun;
  static int ended = 0;
  begun.clear();
  ended = 0;
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_begin_parallel_for_callback([](const char* name, std::uint32_t, std::uint64_t* id) {
    begun.push_back(name);
    *id = begun.size();
  });
  tools::set_end_parallel_for_callback([](std::uint64_t id) { ended += id == begun.size(); });
  std::vector<double> wrong;
  for (const std::int64_t n : {1, 4096, 4097, 32767, 32768, 40001}) {
    trial<tested, double> t;
    const auto x = t.some(n), y = t.some(n), z = t.some(n);
    std::vector<double> a(static_cast<std::size_t>(n)), b(a), c(a);
    auto& queue = t.backend.queue();
    queue.copy(x, a);
    queue.copy(y, b);
    co::run<co::ops::add>(t.backend, x, y, z);
    queue.copy(z, c);
    queue.wait();
    double most = 0;
    for (std::size_t i = 0; i < c.size(); ++i) most = std::max(most, std::abs(c[i] - (a[i] + b[i])));
    wrong.push_back(most);
  }
  tools::set_begin_parallel_for_callback(nullptr);
  tools::set_end_parallel_for_callback(nullptr);
  CHECK(wrong == std::vector<double>(6, 0.0));
  CHECK(std::count(begun.begin(), begun.end(), "heddle::add") == 6);
  CHECK(ended == static_cast<int>(begun.size()));

  namespace on_kokkos = co::detail::on_kokkos;
  if constexpr (on_kokkos::forks_and_joins<tested_space>) {  // the small ones on the thread that launches them
    hd::kokkos_memory<tested_space>::queue queue;
    const tested_space& instance = queue.instance();
    on_kokkos::kept_rooms<tested_space> rooms;
    const on_kokkos::on<tested_space> exec{instance, queue, rooms};
    std::vector<std::thread::id> who(2);
    on_kokkos::each(exec, "heddle::who", 2, 32767, on_kokkos::who_body{who.data()});
    CHECK(who == std::vector<std::thread::id>(2, std::this_thread::get_id()));
    on_kokkos::each(exec, "heddle::who", 2, 32768, on_kokkos::who_body{who.data()});
    if (instance.concurrency() > 1) CHECK(who[0] != who[1]);
  }
}

#if !defined(AS_A_DEVICE)
TEST_CASE("products are made by threads of the instance where it has as many as are asked for", "[kokkos]") {
  namespace on_kokkos = co::detail::on_kokkos;
  const int has = static_cast<int>(tested_space().concurrency());
  const auto told_of = [](int threads) {
    static int parts;
    parts = 0;
    tested backend(threads);
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback([](const char* name, std::uint32_t, std::uint64_t*) {
      parts += std::string(name) == "heddle::parts of a host kernel";
    });
    auto& queue = backend.queue();
    hd::buffer<float, tested::space> x(queue, 200 * 200, "x"), y(queue, 200 * 200, "y");
    std::vector<float> ones(x.size(), 1.0f), got(x.size());
    queue.copy(ones, x);
    const auto matrix = [](auto& of) {
      return hd::matrix_view<float, tested::space>(of.address(), hd::dynamic_shape<2>(200, 200));
    };
    co::matmul<transpose::no, transpose::no>(backend, matrix(x), matrix(x), matrix(y), 0.0f);
    queue.copy(y, got);
    queue.wait();
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
    CHECK(got == std::vector<float>(got.size(), 200.0f));
    CHECK(backend.threads() == threads);
    return parts;
  };
  CHECK(told_of(1) == 0);
  CHECK(told_of(has + 1) == 0);
  if (on_kokkos::forks_and_joins<tested_space> && has > 1) CHECK(told_of(has) == 1);
  if (hd::detail::kokkos_launches_from_one_thread<tested_space>) return;
  // On another thread OpenMP before 3.7 has that thread only: products then have threads of their own.
  std::thread([&] {
    const bool lent = on_kokkos::threads_of(tested_space(), 2).run != nullptr;
    CHECK(told_of(2) == (lent ? 1 : 0));
  }).join();
}
#endif

TEST_CASE("gradients of facets on Kokkos are central differences of their forward kernels", "[kokkos][gradient]") {
  backend_gradients::check_gradients_of_rows<tested>();
  backend_gradients::check_gradients_of_losses<tested>();
  backend_gradients::check_gradients_of_products<tested>();
  backend_gradients::check_gradients_of_experts<tested>();
}

TEST_CASE("arguments that do not fit are refused with the host's text", "[kokkos]") {
  const auto text_of = [](auto call) -> std::string {
    try {
      call();
    } catch (const hd::error& e) {
      return e.what();
    }
    return "no error";
  };
  const auto run = [&]<class B>(B*) {
    trial<B, float> t;
    auto five = t.some(5), six = t.some(6);
    auto m = t.some(2, 5), other = t.some(3, 5);
    std::vector<std::string> texts;
    texts.push_back(text_of([&] { co::run<co::ops::add>(t.backend, five, six, five); }));
    texts.push_back(text_of([&] { co::run<co::ops::add_bias>(t.backend, m, six); }));
    texts.push_back(text_of([&] { co::run<co::ops::layer_norm>(t.backend, m, five, five, 1e-5f, other, five, five); }));
    texts.push_back(text_of([&] { co::matmul<transpose::no, transpose::no>(t.backend, m, other, m, 0.0f); }));
    texts.push_back(
        text_of([&] { co::run<co::ops::adamw>(t.backend, five, five, five, five, co::adamw_step{.step = 0}); }));
    texts.push_back(text_of([&] { co::run<co::ops::add_positions>(t.backend, m, other, 5); }));
    const auto narrow = t.some(1, 1), tables = t.some(1, 2);
    const auto ids = t.ids(2, 3);
    const auto heads = co::heads_of(m, 1, 5);
#if !defined(AS_A_DEVICE)  // which cannot look at positions
    texts.push_back(text_of(
        [&] { co::run<co::ops::rotary<co::rotary_pairs::halves>>(t.backend, heads, ids, narrow, narrow, heads); }));
#endif
    texts.push_back(text_of(
        [&] { co::run<co::ops::rotary<co::rotary_pairs::halves>>(t.backend, heads, ids, tables, narrow, heads); }));
    std::int32_t* const at = t.keep(std::vector<std::int32_t>(4));
    const hd::matrix_view<std::int32_t, typename B::space> chosen(at, hd::dynamic_shape<2>(2, 2));
    const auto choose = [&](auto bias, const co::grouped_choice& rule) {
      return text_of([&] {
        co::run<co::ops::choose_experts<co::sigmoid_scores>>(t.backend, t.some(2, 6), bias, rule, chosen, t.some(2, 2));
      });
    };
    texts.push_back(choose(five, {}));
    texts.push_back(choose(six, {.groups = 4}));
    texts.push_back(choose(six, {.groups = 6, .kept = 1}));
    texts.push_back(text_of([&] { co::run<co::ops::copy_heads>(t.backend, heads, 6, heads); }));
    texts.push_back(text_of([&] { co::run<co::ops::sum_heads>(t.backend, heads, 1, co::heads_of(other, 1, 5)); }));
    return texts;
  };
  const auto got = run(static_cast<tested*>(nullptr)), expected = run(static_cast<host*>(nullptr));
  CHECK(got == expected);
  for (const std::string& text : expected) CHECK(text.rfind("heddle: ", 0) == 0);
  CHECK_THROWS_AS(tested(0), hd::config_error);
}
