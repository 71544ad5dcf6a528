// tests/model/context_rows_test.cpp: outputs of attention that a stage keeps where it drops the others.
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/context/carriers.hpp>
#include <heddle/context/kept_tail.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/model/context_batch.hpp>

#include "catch.hpp"
#include "context/context_cases.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace hc = heddle::compute;
namespace md = heddle::model;
using hd::context_pass;
using namespace context_cases;

namespace {

struct counting_backend : hc::host<> {
  counting_backend() : hc::host<>(1) {}
  std::int64_t pairs = 0;
  template <class Op, class T, class... Arguments>
    requires hc::offered<Op, hc::host<>, T>
  void run(const Arguments&... x) {
    if constexpr (std::is_same_v<Op, hc::ops::attention>)
      for (const hc::attention_slice& s : std::get<3>(std::tie(x...))) pairs += s.area();
    hc::run<Op>(static_cast<hc::host<>&>(*this), x...);
  }
};

// A block's outputs are made, lost but for what is kept, and made again. Elements have 64 or 32 bits.
template <class T>
void check_kept(const hd::context_order& order, const hd::context_carrier& carrier, std::int64_t part,
                std::int64_t of) {
  constexpr sizes z{4, 2, 4, 6};
  constexpr int ranks = 4;
  const auto seed = static_cast<unsigned>(10 * of + part);
  INFO(carrier.name << ", " << order.name << ", " << part << "/" << of << " kept, seed " << seed);
  std::mt19937 random(seed);
  std::vector<hd::context_document> documents;
  std::vector<rows<T>> whole;
  for (const std::int64_t length : {61, 16, 0, 1}) {
    documents.push_back({length, {0, 1, 2, 3}, hd::masks::causal{}.slices(length)});
    std::shuffle(documents.back().ranks.begin(), documents.back().ranks.end(), random);
    whole.emplace_back(length, z);
    randomise(whole.back(), random);
  }
  const hd::context_cut cut = order.cut(documents, ranks);
  const hd::context_table all = make_context_table(carrier, cut, context_pass::forward);
  const hd::context_table again = make_context_table(carrier, without_tail(cut, part, of), context_pass::forward);
  std::vector<std::int64_t> first(ranks), second(ranks), different(ranks);
  std::vector<char> within(ranks, 1);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::cp>>{ranks}, [&](auto& world) {
    auto& group = world.template along<hd::cp>();
    const auto me = static_cast<std::size_t>(group.rank());
    counting_backend backend;
    using executor_type = hd::context_executor<T, counting_backend, std::remove_reference_t<decltype(group)>>;
    executor_type executor(backend, group);
    rows<T> own = rows_of(cut, group.rank(), whole, z);
    const md::context_programs programs{
        hd::lower_context(all, group.rank()), {}, hd::lower_context(again, group.rank()), own.count * part / of};
    // As a stage places it: the outputs of the rows that are kept, and behind them their numbers, each in whole cache lines.
    const auto lines = [](std::int64_t n) {
      constexpr auto line = static_cast<std::int64_t>(64 / sizeof(T));
      return (n + line - 1) / line * line;
    };
    const std::int64_t size = lines(programs.kept * z.query_heads * z.value_dim) + lines(programs.kept * z.query_heads);
    std::vector<T> kept(static_cast<std::size_t>(size) + 1, T(77));
    const auto attend = [&](bool once_more) {
      md::context_rows<T, executor_type> layer{&executor, &programs, kept.data()};
      layer.attend(once_more, own.queries(own.q), own.keys(own.k), own.values(own.v), own.scale(), own.outputs(own.out),
                   own.lse);
      within[me] &= layer.tail == kept.data() + size && kept.back() == T(77);
    };
    attend(false);
    first[me] = std::exchange(backend.pairs, 0);
    const rows<T> made = own;
    std::fill(own.out.begin(), own.out.end(), T(5));
    std::fill(own.lse.begin(), own.lse.end(), T(5));
    attend(true);
    second[me] = backend.pairs;
    for (std::size_t i = 0; i < own.out.size(); ++i) different[me] += std::abs(own.out[i] - made.out[i]) > T(1e-6);
    for (std::size_t i = 0; i < own.lse.size(); ++i)
      different[me] += !(own.lse[i] == made.lse[i] || std::abs(own.lse[i] - made.lse[i]) <= T(1e-6));
  });
  const auto sum = [](const std::vector<std::int64_t>& x) {
    return std::accumulate(x.begin(), x.end(), std::int64_t{0});
  };
  CHECK(sum(different) == 0);
  CHECK(std::count(within.begin(), within.end(), 0) == 0);
  CHECK(sum(first) == balance_of(all).all);
  CHECK(sum(second) == balance_of(again).all);
}

}  // namespace

TEST_CASE("outputs of late rows come from memory, those of the others are attended again", "[context]") {
  for (const hd::context_order& order : hd::context_orders())
    for (const std::string_view carrier : {"kv-ring", "token-ring", "gather", "usp-2"})
      for (const auto& [part, of] : {std::pair{1, 2}, std::pair{2, 3}, std::pair{1, 1}}) {
        check_kept<double>(order, hd::named_context_carrier(carrier), part, of);
        check_kept<float>(order, hd::named_context_carrier(carrier), part, of);
      }
}
