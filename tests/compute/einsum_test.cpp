// Products of sharded tensors: every formula against the sum over all letters, on meshes of up to four ranks.
#include "catch.hpp"
#include "transport.hpp"

#include <heddle/compute/einsum.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/testing/checked_backend.hpp>

#include <array>
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using copied = hd::layout<mesh>;
using checked = hd::testing::checked_backend<hd::compute::host<>>;
using hd::testing::checked_memory;

template <class Shape>
hd::buffer<double> numbers(const Shape& s, std::uint64_t stream) {
  hd::buffer<double> b(s.size());
  const hd::counter_random random(7, stream);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = random.uniform(i) - 0.5;
  return b;
}

// The definition: for each assignment of all letters, one product is added to its place in the result.
std::vector<double> by_definition(const std::string& formula, const std::vector<const double*>& data,
                                  const std::map<char, std::int64_t>& size) {
  std::vector<std::string> terms(1);
  std::string output;
  const auto arrow = formula.find("->");
  for (const char c : formula.substr(0, arrow)) c == ',' ? terms.emplace_back() : terms.back() += c;
  output = formula.substr(arrow + 2);
  const auto place = [&](const std::string& letters, const std::map<char, std::int64_t>& at) {
    std::int64_t p = 0;
    for (const char c : letters) p = p * size.at(c) + at.at(c);
    return static_cast<std::size_t>(p);
  };
  std::int64_t all = 1, out = 1;
  for (const auto& [c, n] : size) all *= n;
  for (const char c : output) out *= size.at(c);
  std::vector<double> result(static_cast<std::size_t>(out), 0.0);
  for (std::int64_t i = 0; i < all; ++i) {
    std::map<char, std::int64_t> at;
    std::int64_t rest = i;
    for (const auto& [c, n] : size) {
      at[c] = rest % n;
      rest /= n;
    }
    double product = 1;
    for (std::size_t o = 0; o < terms.size(); ++o) product *= data[o][place(terms[o], at)];
    result[place(output, at)] += product;
  }
  return result;
}

template <class Shape>
void read_sizes(std::map<char, std::int64_t>& size, std::string letters, const Shape& s) {
  for (std::size_t d = 0; d < Shape::rank(); ++d) size[letters[d]] = s.extent(d);
}

template <class T, std::size_t Rank, class L>
bool same_bits(const hd::sharded<T, Rank, L>& a, const hd::sharded<T, Rank, L>& b) {
  return a.shape() == b.shape() &&
         std::equal(a.elements().begin(), a.elements().end(), b.elements().begin(), b.elements().end());
}

// The largest difference between the assembled result of all four ranks and the definition.
template <hd::fixed_string Formula, class LA, class LB, class SA, class SB>
double two_operands(const SA& sa, const SB& sb) {
  constexpr std::size_t ra = SA::rank(), rb = SB::rank();
  using out_layout = hd::propagate<Formula, LA, LB>;
  using result = decltype(hd::compute::einsum<Formula>(
      std::declval<hd::compute::host<>&>(), std::declval<hd::world<transport_test::transport, mesh>&>(),
      std::declval<const hd::sharded<double, ra, LA>&>(), std::declval<const hd::sharded<double, rb, LB>&>()));
  STATIC_REQUIRE(std::same_as<typename result::layout_type, out_layout>);
  const auto a = numbers(sa, 1), b = numbers(sb, 2);
  std::vector<hd::buffer<double>> elements(4);
  std::vector<std::int64_t> calls(4), equal(4);
  transport_test::launch<mesh>([&](auto& world) {
    hd::compute::host<> backend;
    const auto x = hd::shard_of(hd::view<const double, SA>(a.data(), sa), LA{}, world.rank());
    const auto y = hd::shard_of(hd::view<const double, SB>(b.data(), sb), LB{}, world.rank());
    auto z = hd::compute::einsum<Formula>(backend, world, x, y);
    calls[static_cast<std::size_t>(world.rank())] = world.all().counters().collectives();
    checked there;
    auto& queue = there.queue();
    const auto far = hd::compute::einsum<Formula>(there, world, hd::copy_to<checked_memory>(queue, x),
                                                  hd::copy_to<checked_memory>(queue, y));
    equal[static_cast<std::size_t>(world.rank())] = same_bits(hd::copy_to<hd::host_memory>(queue, far), z) ? 1 : 0;
    elements[static_cast<std::size_t>(world.rank())] = std::move(z).release();
  });
  transport_test::share(calls);
  transport_test::share(elements);
  CHECK(calls == std::vector<std::int64_t>(4, 0));
  transport_test::share(equal);
  CHECK(equal == std::vector<std::int64_t>(4, 1));
  std::map<char, std::int64_t> size;
  const std::string text(Formula.view());
  const auto comma = text.find(',');
  read_sizes(size, text.substr(0, comma), sa);
  read_sizes(size, text.substr(comma + 1), sb);
  std::array<std::int64_t, result::dimensions> extents{};
  for (std::size_t d = 0; d < extents.size(); ++d) extents[d] = size[text[text.find("->") + 2 + d]];
  std::vector<result> parts;
  for (int r = 0; r < 4; ++r)
    parts.emplace_back(out_layout{}, hd::make_shape(extents), r, std::move(elements[static_cast<std::size_t>(r)]));
  const auto whole = hd::assemble<double, result::dimensions, out_layout>(parts);
  const auto wanted = by_definition(text, {a.data(), b.data()}, size);
  REQUIRE(whole.size() == wanted.size());
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) worst = (std::max)(worst, std::abs(whole[i] - wanted[i]));
  return worst;
}

using rows = hd::layout<mesh, hd::shard<0, dp>>;
using column = hd::layout<mesh, hd::shard<1, tp>>;
using row = hd::layout<mesh, hd::shard<0, tp>>;
using both = hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, tp>>;

}  // namespace

TEST_CASE("products of parts are the parts of the product", "[compute][einsum][ranks]") {
  using hd::shape;
  CHECK(two_operands<"bi,io->bo", rows, column>(shape{5, 3}, shape{3, 7}) < 1e-14);
  CHECK(two_operands<"bi,io->bo", both, row>(shape{5, 3}, shape{3, 7}) < 1e-14);
  CHECK(two_operands<"bi,io->bo", both, row>(shape{1, 1}, shape{1, 7}) < 1e-14);     // ranks without elements
  CHECK(two_operands<"bi,io->ob", rows, column>(shape{5, 3}, shape{3, 7}) < 1e-14);  // the operands trade places
  CHECK(two_operands<"bo,io->bi", both, column>(shape{5, 4}, shape{3, 4}) < 1e-14);
  CHECK(two_operands<"bi,bo->io", rows, both>(shape{6, 3}, shape{6, 4}) < 1e-14);
  CHECK(two_operands<"bti,io->bto", rows, column>(shape{3, 2, 4}, shape{4, 5}) < 1e-14);
  CHECK(two_operands<"bthd,bshd->bhts", hd::layout<mesh, hd::shard<0, dp>, hd::shard<2, tp>>,
                     hd::layout<mesh, hd::shard<0, dp>, hd::shard<2, tp>>>(shape{2, 3, 4, 2}, shape{2, 5, 4, 2}) <
        1e-14);
  CHECK(two_operands<"bi,bi->", both, both>(shape{5, 3}, shape{5, 3}) < 1e-14);
  CHECK(two_operands<"bi,bi->bi", both, both>(shape{5, 3}, shape{5, 3}) < 1e-14);
  CHECK(two_operands<"bi,i->bi", both, row>(shape{5, 3}, shape{3}) < 1e-14);
  CHECK(two_operands<"bij,k->bk", rows, row>(shape{4, 3, 2}, shape{5}) < 1e-14);  // i and j are summed alone
  CHECK(two_operands<"i,o->io", hd::layout<mesh, hd::shard<0, dp>>, row>(shape{3}, shape{4}) < 1e-14);
  CHECK(two_operands<"kab,bkc->cak", copied, copied>(shape{2, 3, 4}, shape{4, 2, 5}) < 1e-14);
  CHECK(two_operands<"bi,io->bo", hd::layout<mesh, hd::partial<hd::plus, tp>>, hd::layout<mesh, hd::shard<1, dp>>>(
            shape{5, 3}, shape{3, 4}) < 1e-14);
  CHECK(two_operands<"bi,io->bo", hd::layout<mesh, hd::shard<1, tp, dp>>, hd::layout<mesh, hd::shard<0, tp, dp>>>(
            shape{2, 9}, shape{9, 2}) < 1e-14);
}

TEST_CASE("one operand is permuted and summed", "[compute][einsum][ranks]") {
  std::mutex lock;
  double worst = 0;
  transport_test::launch<mesh>([&](auto& world) {
    hd::compute::host<> backend;
    const auto whole = numbers(hd::shape{3, 4, 5}, 3);
    const auto x = hd::shard_of(hd::view<const double, hd::dynamic_shape<3>>(whole.data(), {3, 4, 5}),
                                hd::layout<mesh, hd::shard<1, tp>>{}, world.rank());
    const auto y = hd::compute::einsum<"abc->cb">(backend, world, x);
    static_assert(std::same_as<typename decltype(y)::layout_type, column>);
    double far = 0;
    const auto local = y.local_shape();
    for (std::int64_t c = 0; c < local.extent(0); ++c)
      for (std::int64_t b = 0; b < local.extent(1); ++b) {
        double sum = 0;
        for (std::int64_t a = 0; a < 3; ++a)
          sum += whole[static_cast<std::size_t>((a * 4 + b + y.local_offset()[1]) * 5 + c)];
        far = (std::max)(far, std::abs(sum - y.local()(c, b)));
      }
    const std::lock_guard hold(lock);
    worst = (std::max)(worst, far);
  });
  transport_test::merge_largest(worst);
  CHECK(worst < 1e-14);
}

TEST_CASE("gradients of a column and a row product come out as duals of their operands", "[compute][einsum][ranks]") {
  std::mutex lock;
  double worst = 0;
  transport_test::launch<mesh>([&](auto& world) {
    hd::compute::host<> backend;
    const auto whole_x = numbers(hd::shape{4, 6}, 1), whole_w = numbers(hd::shape{6, 8}, 2),
               whole_dy = numbers(hd::shape{4, 8}, 3);
    const auto x = hd::shard_of(hd::matrix_view<const double>(whole_x.data(), {4, 6}), rows{}, world.rank());
    const auto w = hd::shard_of(hd::matrix_view<const double>(whole_w.data(), {6, 8}), column{}, world.rank());
    const auto dy = hd::shard_of(hd::matrix_view<const double>(whole_dy.data(), {4, 8}), both{}, world.rank());
    const auto dx = hd::compute::einsum_gradient<"bi,io->bo", 0>(backend, world, dy, x, w);
    const auto dw = hd::compute::einsum_gradient<"bi,io->bo", 1>(backend, world, dy, x, w);
    static_assert(std::same_as<typename decltype(dx)::layout_type,
                               hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>>);
    static_assert(std::same_as<typename decltype(dw)::layout_type,
                               hd::layout<mesh, hd::shard<1, tp>, hd::partial<hd::plus, dp>>>);
    // <dy, x v> == <dw, v> for the direction v = w, on the parts: both are contributions to the same sum.
    const auto y = hd::compute::einsum<"bi,io->bo">(backend, world, x, w);
    double with_y = 0, with_w = 0;
    for (std::size_t i = 0; i < y.elements().size(); ++i) with_y += y.elements()[i] * dy.elements()[i];
    for (std::size_t i = 0; i < dw.elements().size(); ++i) with_w += dw.elements()[i] * w.elements()[i];
    const std::lock_guard hold(lock);
    worst = (std::max)(worst, std::abs(with_y - with_w));
  });
  transport_test::merge_largest(worst);
  CHECK(worst < 1e-13);
}

TEST_CASE("operands that do not fit are redistributed if asked for", "[compute][einsum][ranks]") {
  std::mutex lock;
  double worst = 0;
  std::vector<std::int64_t> when_fitting, when_not;
  transport_test::launch<mesh>([&](auto& world) {
    hd::compute::host<> backend;
    const auto whole_x = numbers(hd::shape{4, 6}, 1), whole_w = numbers(hd::shape{6, 8}, 2);
    const hd::matrix_view<const double> all_x(whole_x.data(), {4, 6}), all_w(whole_w.data(), {6, 8});
    const auto x = hd::shard_of(all_x, both{}, world.rank());
    const auto fitting = hd::shard_of(all_x, rows{}, world.rank());
    const auto w = hd::shard_of(all_w, column{}, world.rank());
    const auto start = world.template along<tp>().counters().collectives();
    const auto z = hd::compute::einsum<"bi,io->bo">(backend, world, hd::auto_redistribute{}, fitting, w);
    const auto middle = world.template along<tp>().counters().collectives();
    const auto y = hd::compute::einsum<"bi,io->bo">(backend, world, hd::auto_redistribute{}, x, w);
    const auto end = world.template along<tp>().counters().collectives();
    using repair = hd::repaired<hd::op::einsum<"bi,io->bo">, both, column>;
    static_assert(std::same_as<typename decltype(y)::layout_type, typename repair::result>);
    const auto a = hd::redistribute<hd::layout<mesh>>(hd::redistribute<rows>(y, world), world);
    const auto b = hd::redistribute<hd::layout<mesh>>(z, world);
    double far = 0;
    for (std::size_t i = 0; i < a.elements().size(); ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < 6; ++k) sum += whole_x[i / 8 * 6 + k] * whole_w[k * 8 + i % 8];
      far = (std::max)({far, std::abs(a.elements()[i] - sum), std::abs(b.elements()[i] - sum)});
    }
    const std::lock_guard hold(lock);
    worst = (std::max)(worst, far);
    when_fitting.push_back(middle - start);
    when_not.push_back(end - middle);
  });
  transport_test::merge_largest(worst);
  CHECK(worst < 1e-14);
  transport_test::merge(when_fitting);
  transport_test::merge(when_not);
  CHECK(when_fitting == std::vector<std::int64_t>(4, 0));
  CHECK(when_not == std::vector<std::int64_t>(4, 1));
}

TEST_CASE("an einsum of parts that do not fit says so", "[compute][einsum][ranks]") {
  using one = hd::mesh<hd::axis<tp, 1>>;
  transport_test::launch<one>([&](auto& world) {
    hd::compute::host<> backend;
    const hd::sharded<double, 2, hd::layout<one>> x({}, hd::shape{2, 3}, 0), w({}, hd::shape{4, 5}, 0);
    CHECK_THROWS_WITH((hd::compute::einsum<"bi,io->bo">(backend, world, x, w)),
                      Catch::Matchers::Contains("the letter i is 3"));
  });
}

TEST_CASE("what is in padding takes no part in a product", "[compute][einsum][ranks]") {
  using one = hd::mesh<hd::axis<tp, 2>>;
  using hd::split::padded;
  using columns = hd::layout<one, hd::shard<1, padded<>, tp>>;
  using padded_rows = hd::layout<one, hd::shard<0, padded<>, tp>>;
  std::mutex lock;
  std::vector<double> sums, products, turned, padding, alone;
  transport_test::launch<one>([&](auto& world) {
    hd::compute::host<> backend;
    const auto ones = [&]<class L>(L, std::int64_t r, std::int64_t c) {
      hd::sharded<double, 2, L> x(L{}, hd::shape{r, c}, world.rank());
      for (double& e : x.elements()) e = 1;  // the padding of the second rank too
      return x;
    };
    const auto everywhere = [&](auto&& y) { return hd::redistribute<hd::layout<one>>(std::move(y), world); };
    const auto inner =
        everywhere(hd::compute::einsum<"bi,io->bo">(backend, world, ones(columns{}, 2, 5), ones(padded_rows{}, 5, 3)));
    auto outer_part =
        hd::compute::einsum<"bi,io->bo">(backend, world, ones(padded_rows{}, 5, 2), ones(hd::layout<one>{}, 2, 3));
    const double pad = world.rank() == 1 ? outer_part.elements()[6] : 0;
    const auto outer = everywhere(std::move(outer_part));
    const auto other = everywhere(
        hd::compute::einsum<"bi,io->ob">(backend, world, ones(padded_rows{}, 5, 2), ones(hd::layout<one>{}, 2, 3)));
    const auto sum = everywhere(hd::compute::einsum<"bi->b">(backend, world, ones(columns{}, 2, 5)));
    const std::lock_guard hold(lock);
    const auto keep = [](std::vector<double>& all, const auto& x) {
      all.insert(all.end(), x.elements().begin(), x.elements().end());
    };
    keep(sums, inner), keep(products, outer), keep(turned, other), keep(alone, sum);
    padding.push_back(pad);
  });
  for (auto* all : {&sums, &products, &turned, &padding, &alone}) transport_test::merge(*all);
  CHECK(sums == std::vector<double>(2 * 2 * 3, 5));
  CHECK(products == std::vector<double>(2 * 5 * 3, 2));
  CHECK(turned == std::vector<double>(2 * 5 * 3, 2));
  CHECK(alone == std::vector<double>(2 * 2, 5));
  CHECK(padding == std::vector<double>(2, 0));
}

TEST_CASE("sums of floats lose no small terms to a large one", "[compute][einsum]") {
  using one = hd::mesh<hd::axis<tp, 1>>;
  using whole = hd::layout<one, hd::identical<tp>>;
  transport_test::launch<one>([&](auto& world) {
    hd::compute::host<> backend;
    // Ones, but each sum begins with 2^24, which a float plus one still is. 300 and 11 are no multiples of a block's sizes.
    const auto check = [&]<hd::fixed_string Formula>(auto shape, auto begins_sum) {
      hd::sharded<float, 3, whole> x({}, shape, 0);
      const auto n0 = shape.extent(0), n1 = shape.extent(1), n2 = shape.extent(2);
      std::size_t at = 0;
      for (std::int64_t i = 0; i < n0; ++i)
        for (std::int64_t j = 0; j < n1; ++j)
          for (std::int64_t k = 0; k < n2; ++k) x.elements()[at++] = begins_sum(i, j, k) ? 0x1p24f : 1.0f;
      const auto y = hd::compute::einsum<Formula>(backend, world, x);
      const auto terms = static_cast<double>(x.elements().size() / y.elements().size());
      CAPTURE(Formula.view(), terms);
      CHECK(std::all_of(y.elements().begin(), y.elements().end(),
                        [&](float sum) { return sum == static_cast<float>(0x1p24 + (terms - 1)); }));
    };
    check.template operator()<"abc->">(hd::shape{11, 5, 300}, [](auto i, auto j, auto k) { return i + j + k == 0; });
    check.template operator()<"abc->c">(hd::shape{11, 5, 300}, [](auto i, auto j, auto) { return i + j == 0; });
    check.template operator()<"abc->ca">(hd::shape{11, 5, 300}, [](auto, auto j, auto) { return j == 0; });
    check.template operator()<"abc->ba">(hd::shape{11, 5, 300}, [](auto, auto, auto k) { return k == 0; });
    check.template operator()<"abc->b">(hd::shape{300, 5, 11}, [](auto i, auto, auto k) { return i + k == 0; });
  });
}

TEST_CASE("a gradient of another shape and operands moved away are refused", "[compute][einsum][ranks]") {
  using one = hd::mesh<hd::axis<tp, 1>>;
  using whole = hd::layout<one, hd::identical<tp>>;
  transport_test::launch<one>([&](auto& world) {
    hd::compute::host<> backend;
    hd::sharded<double, 2, whole> x({}, hd::shape{8, 3}, 0);
    const hd::sharded<double, 2, whole> w({}, hd::shape{3, 5}, 0), dy({}, hd::shape{4, 5}, 0),
        fits({}, hd::shape{8, 5}, 0);
    CHECK_THROWS_WITH((hd::compute::einsum_gradient<"bi,io->bo", 0>(backend, world, dy, x, w)),
                      Catch::Matchers::Contains("einsum_gradient: the result is of shape"));
    CHECK(hd::compute::einsum_gradient<"bi,io->bo", 0>(backend, world, fits, x, w).shape() == x.shape());
    const auto moved = std::move(x);
    CHECK_THROWS_WITH((hd::compute::einsum<"bi,io->bo">(backend, world, x, w)),
                      Catch::Matchers::Contains("moved away or released"));
    CHECK_THROWS_AS((hd::compute::einsum<"bi->b">(backend, world, x)), hd::layout_error);
    CHECK_THROWS_AS((hd::compute::einsum_gradient<"bi,io->bo", 0>(backend, world, fits, x, w)), hd::layout_error);
    CHECK(moved.elements().size() == 24);
  });
}

TEST_CASE("operands in other memory are permuted, summed and redistributed there", "[compute][einsum][ranks]") {
  std::mutex lock;
  std::vector<int> equal;
  transport_test::launch<mesh>([&](auto& world) {
    hd::compute::host<> backend;
    checked there;
    auto& queue = there.queue();
    const auto whole = numbers(hd::shape{3, 4, 5}, 3), whole_x = numbers(hd::shape{4, 6}, 1),
               whole_w = numbers(hd::shape{6, 8}, 2);
    const auto x = hd::shard_of(hd::view<const double, hd::dynamic_shape<3>>(whole.data(), {3, 4, 5}),
                                hd::layout<mesh, hd::shard<1, tp>>{}, world.rank());
    const auto a = hd::shard_of(hd::matrix_view<const double>(whole_x.data(), {4, 6}), both{}, world.rank());
    const auto w = hd::shard_of(hd::matrix_view<const double>(whole_w.data(), {6, 8}), column{}, world.rank());
    const auto far = [&](const auto& t) { return hd::copy_to<checked_memory>(queue, t); };
    const auto near = [&](const auto& t) { return hd::copy_to<hd::host_memory>(queue, t); };
    const bool summed = same_bits(hd::compute::einsum<"abc->cb">(backend, world, x),
                                  near(hd::compute::einsum<"abc->cb">(there, world, far(x))));
    const bool repaired =
        same_bits(hd::compute::einsum<"bi,io->bo">(backend, world, hd::auto_redistribute{}, a, w),
                  near(hd::compute::einsum<"bi,io->bo">(there, world, hd::auto_redistribute{}, far(a), far(w))));
    const std::lock_guard hold(lock);
    equal.push_back(summed && repaired ? 1 : 0);
  });
  transport_test::merge(equal);
  CHECK(equal == std::vector<int>(4, 1));
}

TEST_CASE("a kernel of one element arranges as the loops of the host", "[compute][einsum]") {
  namespace d = hd::compute::detail;
  const auto letters = [](std::string_view text) {
    d::letter_list list;
    for (const char c : text) list.add(c);
    return list;
  };
  const auto check = [&]<class T>(T, std::string_view from, std::string_view to, std::int64_t padding) {
    CAPTURE(from, to, padding);
    d::letter_sizes sizes, stored;
    const std::map<char, std::int64_t> extents{{'a', 3}, {'b', 2}, {'c', 5}, {'d', 1}};
    for (const auto& [c, n] : extents) {
      sizes.extent[static_cast<std::size_t>(c)] = n;
      stored.extent[static_cast<std::size_t>(c)] = n + padding;
    }
    const d::letter_places source(letters(from), stored), target(letters(to), stored);
    const auto room = static_cast<std::size_t>(stored.of(letters(to)));
    std::vector<T> in(static_cast<std::size_t>(stored.of(letters(from)))), by_loops(room), by_kernel(room);
    const hd::counter_random random(11, 4);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<T>(random.uniform(i) - 0.5);
    d::arrange(in.data(), source, by_loops.data(), target, sizes);
    const d::arrange_each<T> kernel(in.data(), source, by_kernel.data(), target, sizes);
    for (std::int64_t i = 0; i < sizes.of(letters(to)); ++i) kernel(i);
    for (std::size_t i = 0; i < room; ++i) CHECK(by_kernel[i] == Approx(by_loops[i]).margin(1e-6));
  };
  for (const std::int64_t padding : {0, 2})
    for (const auto& [from, to] : {std::pair{"abc", "cab"}, {"abc", "b"}, {"abc", ""}, {"abcd", "dca"}, {"", ""}}) {
      check(float{}, from, to, padding);
      check(double{}, from, to, padding);
    }
}
