#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/context/check.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/testing/slow_links.hpp>

#include "catch.hpp"
#include "context/context_cases.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>

namespace hd = heddle;
namespace hc = heddle::compute;
using hd::context_pass;
using namespace context_cases;

namespace {

using line = hd::mesh<hd::axis<hd::cp>>;

constexpr std::array<sizes, 3> all_heads{sizes{4, 4, 4, 6}, sizes{8, 2, 4, 4}, sizes{8, 1, 3, 5}};

struct outcome {
  double difference = 0;
  bool bytes_as_said = true, messages_as_said = true;
};

// Both passes of a batch on so many ranks.
template <class T>
outcome spread(const hd::context_carrier& carrier, const hd::context_cut& cut, std::vector<rows<T>>& documents,
               const sizes& z) {
  const hd::context_table forward = make_context_table(carrier, cut, context_pass::forward);
  const hd::context_table backward = make_context_table(carrier, cut, context_pass::backward);
  REQUIRE(to_string(check_context(forward)) == "the table is right");
  REQUIRE(to_string(check_context(backward)) == "the table is right");
  std::vector<outcome> all(static_cast<std::size_t>(cut.ranks));
  hd::launch<hd::threads>(line{cut.ranks}, [&](auto& world) {
    auto& ranks = world.template along<hd::cp>();
    const int me = ranks.rank();
    outcome& mine = all[static_cast<std::size_t>(me)];
    hc::host<> backend(1);
    rows<T> own = rows_of(cut, me, documents, z);
    hd::context_executor<T, hc::host<>, std::remove_reference_t<decltype(ranks)>> executor(backend, ranks);
    attend(executor, hd::lower_context(forward, me), own);
    const std::int64_t bytes = ranks.counters().bytes_sent(), messages = ranks.counters().messages_sent();
    mine.bytes_as_said = bytes == bytes_sent(forward, shape_of<T>(z), me).total();
    mine.messages_as_said = messages == messages_sent(forward.rounds.view(), me);
    attend_backward(executor, hd::lower_context(backward, me), own);
    mine.bytes_as_said &= ranks.counters().bytes_sent() - bytes == bytes_sent(backward, shape_of<T>(z), me).total();
    mine.messages_as_said &= ranks.counters().messages_sent() - messages == messages_sent(backward.rounds.view(), me);
    mine.difference = difference(cut, me, own, documents);
  });
  outcome worst;
  for (const outcome& o : all) {
    worst.difference = (std::max)(worst.difference, o.difference);
    worst.bytes_as_said &= o.bytes_as_said;
    worst.messages_as_said &= o.messages_as_said;
  }
  return worst;
}

}  // namespace

TEST_CASE("every carrier attends as one rank does, with every order, mask and number of ranks",
          "[context][exhaustive]") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const sizes& z : all_heads) {
      const auto seed = static_cast<unsigned>(ranks * 100 + z.query_heads * 10 + z.key_heads);
      std::mt19937 random(seed);
      batch<double> b(z, random);
      for (const hd::context_order& order : hd::context_orders())
        for (const hd::context_carrier& carrier : hd::context_carriers()) {
          INFO("carrier " << carrier.name << ", order " << order.name << ", " << ranks << " ranks, heads "
                          << z.query_heads << ":" << z.key_heads << ", seed " << seed);
          const hd::context_cut cut = b.cut(carrier, order, ranks, random);
          if (z.query_heads % carrier.parts != 0) {
            CHECK_THROWS_AS(spread(carrier, cut, b.whole, z), hd::config_error);
            continue;
          }
          const outcome o = spread(carrier, cut, b.whole, z);
          CHECK(o.difference < 1e-11);
          CHECK(o.bytes_as_said);
          CHECK(o.messages_as_said);
        }
    }
}

TEST_CASE("numbers of 32 bits attend within their rounding", "[context]") {
  constexpr sizes z{8, 2, 16, 16};
  for (const int ranks : {2, 3, 8}) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    batch<float> b(z, random);
    for (const hd::context_carrier& carrier : hd::context_carriers()) {
      INFO(carrier.name << " on " << ranks << " ranks, seed " << ranks);
      const outcome o = spread(carrier, b.cut(carrier, hd::named_context_order("zigzag"), ranks, random), b.whole, z);
      CHECK(o.difference < 5e-6);
      CHECK(o.bytes_as_said);
    }
  }
}

TEST_CASE("numbers of 16 bits are summed in 32: partial results do not lose what their rounding allows", "[context]") {
  constexpr sizes z{4, 2, 8, 8};
  constexpr int ranks = 4;
  constexpr std::int64_t length = 50;
  std::mt19937 random(5);
  hd::context_document document{length, {0, 1, 2, 3}, hd::masks::causal{}.slices(length)};
  std::vector<rows<hd::bf16>> whole;
  randomise(whole.emplace_back(length, z), random);
  std::vector<rows<float>> in_float;
  rows<float>& exact = in_float.emplace_back(length, z);
  const auto widen = [](const std::vector<hd::bf16>& from, std::vector<float>& to) {
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[i];
  };
  widen(whole[0].q, exact.q);
  widen(whole[0].k, exact.k);
  widen(whole[0].v, exact.v);
  widen(whole[0].dout, exact.dout);
  attend_alone(exact, document.mask);
  for (const char* name : {"kv-ring", "token-ring", "burst", "gather", "usp-2"}) {
    const hd::context_carrier& carrier = hd::named_context_carrier(name);
    const hd::context_cut cut = hd::cut_documents<hd::split::zigzag>({document}, ranks);
    const hd::context_table forward = make_context_table(carrier, cut, context_pass::forward);
    const hd::context_table backward = make_context_table(carrier, cut, context_pass::backward);
    std::vector<double> errors(ranks, 0);
    std::vector<char> bytes(ranks, 1);
    hd::launch<hd::threads>(line{ranks}, [&](auto& world) {
      auto& group = world.template along<hd::cp>();
      const int me = group.rank();
      hc::host<> backend(1);
      rows<hd::bf16> own = rows_of(cut, me, whole, z);
      hd::context_executor<hd::bf16, hc::host<>, std::remove_reference_t<decltype(group)>> executor(backend, group);
      attend(executor, hd::lower_context(forward, me), own);
      attend_backward(executor, hd::lower_context(backward, me), own);
      bytes[static_cast<std::size_t>(me)] =
          group.counters().bytes_sent() == bytes_sent(forward, shape_of<hd::bf16>(z), me).total() +
                                               bytes_sent(backward, shape_of<hd::bf16>(z), me).total();
      rows<float> shown(own.count, z);
      shown.lse = own.lse;
      widen(own.out, shown.out);
      widen(own.dq, shown.dq);
      widen(own.dk, shown.dk);
      widen(own.dv, shown.dv);
      errors[static_cast<std::size_t>(me)] = difference(cut, me, shown, in_float);
    });
    INFO(name);
    CHECK(*std::max_element(errors.begin(), errors.end()) < 0.02);
    CHECK(*std::min_element(bytes.begin(), bytes.end()) == 1);
  }
}

// ---- golden data ----
namespace {

struct golden_case {
  std::string mask;
  std::int64_t length = 0, parameter = 0;
  std::vector<std::int64_t> lengths;
  sizes z{};
  std::int64_t at = 0;
};

std::vector<golden_case> golden_cases() {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/context_golden.txt");
  std::vector<golden_case> all;
  for (std::string text; std::getline(in, text);) {
    std::istringstream words(text);
    std::string kind, inner;
    golden_case c;
    words >> kind >> c.mask >> c.length >> c.parameter >> inner;
    if (kind != "attention") continue;
    std::istringstream numbers(inner == "-" ? "" : inner);
    for (std::string n; std::getline(numbers, n, ',');) c.lengths.push_back(std::stoll(n));
    words >> c.z.query_heads >> c.z.key_heads >> c.z.head_dim >> c.at;
    c.z.value_dim = c.z.head_dim;
    all.push_back(c);
  }
  return all;
}

std::vector<hc::attention_slice> golden_mask(const golden_case& c) {
  if (c.mask == "full") return hd::masks::full{}.slices(c.length);
  if (c.mask == "causal") return hd::masks::causal{}.slices(c.length);
  if (c.mask == "window") return hd::masks::window<>{c.parameter}.slices(c.length);
  if (c.mask == "prefix") return hd::masks::prefix<>{c.parameter}.slices(c.length);
  if (c.mask == "causal-documents") return hd::masks::documents<>{c.lengths}.slices(c.length);
  if (c.mask == "share-question") return hd::masks::share_question{c.lengths}.slices(c.length);
  if (c.mask == "block-causal") return hd::masks::block_causal<>{c.parameter, c.lengths}.slices(c.length);
  FAIL("unknown mask " << c.mask);
  return {};
}

}  // namespace

TEST_CASE("every carrier attends as PyTorch does under a boolean mask", "[context][golden]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/context_golden.bin", std::ios::binary);
  std::vector<double> numbers;
  for (double x = 0; in.read(reinterpret_cast<char*>(&x), sizeof(x));) numbers.push_back(x);
  const std::vector<golden_case> cases = golden_cases();
  REQUIRE(cases.size() == 9);
  int turn = 0;
  for (const golden_case& c : cases) {
    std::vector<rows<double>> whole;
    rows<double>& x = whole.emplace_back(c.length, c.z);
    const auto fill = [](std::vector<double>& t, double phase) {
      for (std::size_t i = 0; i < t.size(); ++i) t[i] = 1.5 * std::sin(0.37 * (static_cast<double>(i) + 1) + phase);
    };
    fill(x.q, 0.1);
    fill(x.k, 1.3);
    fill(x.v, 2.7);
    fill(x.dout, 4.1);
    attend_alone(x, golden_mask(c));  // for lse, which PyTorch does not give
    auto from = numbers.begin() + c.at;
    x.each_result(x, [&](std::vector<double>& t, std::vector<double>&, std::int64_t) {
      std::copy_n(from, t.size(), t.begin());
      from += static_cast<std::ptrdiff_t>(t.size());
    });
    for (const hd::context_carrier& carrier : hd::context_carriers()) {
      if (c.z.query_heads % carrier.parts != 0) continue;
      for (const int ranks : {1, 2, 4, 8}) {
        if (!carrier.offers(ranks)) continue;
        hd::context_document document{c.length, {}, golden_mask(c)};
        for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
        const hd::context_order& order = hd::context_orders()[static_cast<std::size_t>(turn++) % 3];
        INFO(c.mask << ", heads " << c.z.query_heads << ":" << c.z.key_heads << ", " << carrier.name << ", "
                    << order.name << ", " << ranks << " ranks");
        CHECK(spread(carrier, order.cut({document}, ranks), whole, c.z).difference < 1e-11);
      }
    }
  }
}

// ---- arrival ----
namespace {

// Takes its time before it attends.
struct slow_backend : hc::host<> {
  std::mt19937 random{};
  int most_us = 0;
  void sleep() {
    const int us = static_cast<int>(random() % static_cast<unsigned>(most_us + 1));
    if (us > most_us / 2) std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  template <class Op, class T, class... Arguments>
    requires hc::offered<Op, hc::host<>, T>
  void run(const Arguments&... x) {
    if constexpr (std::derived_from<Op, hc::ops::attention_operation>) sleep();
    hc::run<Op>(static_cast<hc::host<>&>(*this), x...);
  }
};

}  // namespace

TEST_CASE("results are the same bits whatever the order in which messages arrive", "[context]") {
  constexpr sizes z{4, 2, 4, 4};
  constexpr unsigned seed = 11;
  int runs = 0;
  for (const hd::context_carrier& carrier : hd::context_carriers()) {
    if (z.query_heads % carrier.parts != 0) continue;
    const int ranks = 2 + static_cast<int>(carrier.name.size()) % 5;
    std::mt19937 random(seed);
    batch<double> b(z, random, 2);
    const hd::context_cut cut = b.cut(carrier, hd::named_context_order("zigzag"), ranks, random);
    const hd::context_table forward = make_context_table(carrier, cut, context_pass::forward);
    const hd::context_table backward = make_context_table(carrier, cut, context_pass::backward);
    std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
    constexpr int repeats = 112;
    runs += repeats;
    hd::launch<hd::threads>(line{ranks}, [&](auto& world) {
      auto& group = world.template along<hd::cp>();
      const int me = group.rank();
      const auto to = hd::lower_context(forward, me), back = hd::lower_context(backward, me);
      slow_backend backend;
      backend.random.seed(seed + static_cast<unsigned>(me));
      hd::context_executor<double, slow_backend, std::remove_reference_t<decltype(group)>> executor(backend, group);
      rows<double> first(0, z);
      for (int i = 0; i < repeats; ++i) {
        backend.most_us = i == 0 ? 0 : 100;
        rows<double> own = rows_of(cut, me, b.whole, z);
        attend(executor, to, own);
        attend_backward(executor, back, own);
        if (i == 0) {
          first = own;
          continue;
        }
        own.each_result(first, [&](auto& x, auto& y, std::int64_t) { wrong[static_cast<std::size_t>(me)] += x != y; });
        wrong[static_cast<std::size_t>(me)] += own.lse != first.lse;
      }
    });
    INFO(carrier.name << " on " << ranks << " ranks, seed " << seed);
    CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
  }
  CHECK(runs >= 1000);
}

TEST_CASE("results are the same bits whatever the threads of a rank", "[context]") {
  constexpr sizes z{8, 4, 32, 16};
  constexpr int ranks = 2;
  constexpr std::int64_t length = 260;
  std::mt19937 random(41);
  std::vector<rows<double>> whole(1, rows<double>(length, z));
  randomise(whole[0], random);
  const hd::context_cut cut =
      hd::cut_documents<hd::split::zigzag>({{length, {0, 1}, hd::masks::causal{}.slices(length)}}, ranks);
  attend_alone(whole[0], cut.documents[0].mask);
  for (const std::string_view name : {"kv-ring", "burst", "gather", "ulysses-2"}) {
    INFO(name);
    const hd::context_carrier& carrier = hd::named_context_carrier(name);
    std::vector<int> wrong(ranks, 0);
    hd::launch<hd::threads>(line{ranks}, [&](auto& world) {
      auto& group = world.template along<hd::cp>();
      const auto to = hd::lower_context(make_context_table(carrier, cut, context_pass::forward), group.rank());
      const auto back = hd::lower_context(make_context_table(carrier, cut, context_pass::backward), group.rank());
      const auto with = [&](int threads) {
        hc::host<> backend(threads);
        rows<double> own = rows_of(cut, group.rank(), whole, z);
        hd::context_executor<double, hc::host<>, std::remove_reference_t<decltype(group)>> executor(backend, group);
        attend(executor, to, own);
        attend_backward(executor, back, own);
        return own;
      };
      rows<double> one = with(1), three = with(3);
      int& mine = wrong[static_cast<std::size_t>(group.rank())];
      mine += difference(cut, group.rank(), three, whole) > 1e-11;
      one.each_result(three, [&](auto& x, auto& y, std::int64_t) { mine += x != y; });
      mine += one.lse != three.lse;
    });
    CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
  }
}

// ---- overlap ----
namespace {

// Attends a pair of pieces of one size in a given time, by sleeping.
struct sleeping_backend : hc::host<> {
  std::chrono::milliseconds each{};
  template <class Op, class T, class... Arguments>
    requires hc::offered<Op, hc::host<>, T>
  void run(const Arguments&... x) {
    const auto until = std::chrono::steady_clock::now() + each;
    hc::run<Op>(static_cast<hc::host<>&>(*this), x...);
    if constexpr (std::is_same_v<Op, hc::ops::attention>) std::this_thread::sleep_until(until);
  }
};

constexpr sizes slow_heads{2, 2, 4, 4};
constexpr double call_seconds = 0.030;

// Slow links that somebody watches.
template <class Links>
struct watched : Links {
  hd::observe::recorder* recorder;
  watched(Links links, hd::observe::recorder* r) : Links(links), recorder(r) {}
  void record(hd::event e) {
    e.rank = this->rank();
    if (recorder != nullptr) recorder->record(e);
  }
};

// Seconds of a forward pass of one document with a full mask, four tokens a rank.
double seconds_on(hd::testing::slow_network& network, std::string_view carrier, int ranks,
                  hd::observe::recorder* recorder = nullptr) {
  const std::int64_t length = 4 * ranks;
  hd::context_document document{length, {}, hd::masks::full{}.slices(length)};
  for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
  const hd::context_cut cut = hd::cut_documents<hd::split::balanced>({document}, ranks);
  const hd::context_table t = make_context_table(hd::named_context_carrier(carrier), cut, context_pass::forward);
  std::vector<double> seconds(static_cast<std::size_t>(ranks), 0);
  hd::launch<hd::threads>(line{ranks}, [&](auto& world) {
    auto& group = world.template along<hd::cp>();
    const int me = group.rank();
    using links = watched<hd::testing::slow_links<std::remove_reference_t<decltype(group)>>>;
    links slow({group, network}, recorder);
    sleeping_backend backend;
    backend.each = std::chrono::milliseconds(30);
    rows<double> own(cut.rows[static_cast<std::size_t>(me)], slow_heads);
    hd::context_executor<double, sleeping_backend, links> executor(backend, slow);
    const hd::context_program program = hd::lower_context(t, me);
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    attend(executor, program, own);
    seconds[static_cast<std::size_t>(me)] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

// The bandwidth at which the keys of a rank, or its queries, take so many times a call.
double bandwidth(double calls, hd::context_kind what = hd::context_kind::keys) {
  return 4 * static_cast<double>(shape_of<double>(slow_heads).row_bytes(what, context_pass::forward)) /
         (calls * call_seconds);
}

// Of each rank: the receives, in the order in which they were started, and the calls of the kernel.
struct trace {
  std::vector<hd::event> receives{}, calls{};
};
std::vector<trace> traces_of(hd::testing::slow_network&& network, std::string_view carrier, int ranks) {
  hd::observe::recorder recorder(ranks);
  seconds_on(network, carrier, ranks, &recorder);
  std::vector<trace> all(static_cast<std::size_t>(ranks));
  for (const hd::event& e : recorder.events()) {
    trace& own = all[static_cast<std::size_t>(e.rank)];
    if (e.kind == hd::activity::recv) own.receives.push_back(e);
    if (e.kind == hd::activity::other) own.calls.push_back(e);
  }
  return all;
}

}  // namespace

TEST_CASE("messages travel while ranks compute", "[context]") {
  using hd::testing::slow_network;
  // Four calls, three messages: each is on its way from before a call begins until it has ended. How long it all takes is measured by
  // benchmarks/context_bench.
  for (const double calls : {1.0, 2.0})
    for (const trace& own : traces_of(slow_network(bandwidth(calls)), "kv-ring", 4)) {
      REQUIRE(own.calls.size() == 4);
      REQUIRE(own.receives.size() == 3);
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(own.receives[i].begin_ns <= own.calls[i].begin_ns);
        CHECK(own.receives[i].end_ns >= own.calls[i].end_ns);
        CHECK(own.receives[i].end_ns <= own.calls[i + 1].begin_ns);
      }
    }
  // Two nodes of four ranks. What goes from node to node is needed in the fifth round, and is sent before the first.
  for (const trace& own : traces_of(slow_network(bandwidth(0.5), 4, bandwidth(3)), "double-ring-4", 8)) {
    REQUIRE(own.calls.size() == 8);
    int between = 0;
    for (const hd::event& e : own.receives) {
      if (e.rank / 4 == e.peer / 4) continue;
      ++between;
      CHECK(e.begin_ns <= own.calls[0].begin_ns);
      CHECK(e.end_ns >= own.calls[0].end_ns);
      CHECK(e.end_ns <= own.calls[4].begin_ns);
    }
    CHECK(between == 1);
  }
  slow_network nodes(bandwidth(0.5), 4, bandwidth(3));
  CHECK(seconds_on(nodes, "kv-ring", 8) >= 12 * call_seconds);
}

TEST_CASE("TokenRing keeps both directions of a link busy", "[context]") {
  hd::testing::slow_network network(bandwidth(1, hd::context_kind::queries));
  hd::observe::recorder recorder(4);
  seconds_on(network, "token-ring", 4, &recorder);
  double both = 0;
  const auto travels = network.travels();
  for (const auto& a : travels)
    for (const auto& b : travels)
      if (a.from == b.to && a.to == b.from && a.from < a.to)
        both += (std::max)(0.0, (std::min)(a.end, b.end) - (std::max)(a.start, b.start));
  CHECK(travels.size() == 2 * 4 * 3);
  CHECK(both >= call_seconds);

  // So the trace says: messages of both directions between two ranks, each joined with its receive, and as many bytes as travelled.
  const std::vector<hd::event> events = recorder.events();
  std::map<std::uint64_t, std::vector<hd::event>> flows;
  std::int64_t bytes = 0, travelled = 0, attended = 0;
  double both_traced = 0;
  for (const hd::event& e : events) {
    if (e.kind == hd::activity::send || e.kind == hd::activity::recv) flows[e.flow].push_back(e);
    attended += e.kind == hd::activity::other;
    if (e.kind != hd::activity::send) continue;
    bytes += e.bytes;
    for (const hd::event& back : events)
      if (back.kind == hd::activity::send && back.rank == e.peer && back.peer == e.rank && e.rank < e.peer)
        both_traced +=
            1e-9 * static_cast<double>((std::max)(
                       std::int64_t{0}, (std::min)(e.end_ns, back.end_ns) - (std::max)(e.begin_ns, back.begin_ns)));
  }
  for (const auto& t : travels) travelled += static_cast<std::int64_t>(t.bytes);
  CHECK(bytes == travelled);
  CHECK(attended == 4 * 4);
  CHECK(both_traced >= call_seconds);
  CHECK(flows.size() == travels.size());
  for (const auto& [flow, ends] : flows) {
    REQUIRE(ends.size() == 2);
    CHECK(ends[0].kind != ends[1].kind);
    CHECK((ends[0].rank == ends[1].peer && ends[1].rank == ends[0].peer && ends[0].bytes == ends[1].bytes));
  }
}

TEST_CASE("what does not fit a program is refused before anything is sent", "[context]") {
  const hd::context_cut cut = hd::cut_documents<hd::split::zigzag>({{12, {0, 1}, hd::masks::causal{}.slices(12)}}, 2);
  const auto forward = hd::make_context_table<hd::carrier::usp<2>>(cut, context_pass::forward);
  struct seen {
    std::string odd_heads, few_rows, other_pass, other_rank;
    std::int64_t messages_before = -1, messages_after = -1;
  };
  std::vector<seen> all(2);
  hd::launch<hd::threads>(line{2}, [&](auto& world) {  // assertions of Catch2 are for one thread
    auto& group = world.template along<hd::cp>();
    const int me = group.rank();
    seen& mine = all[static_cast<std::size_t>(me)];
    hc::host<> backend(1);
    hd::context_executor<double, hc::host<>, std::remove_reference_t<decltype(group)>> executor(backend, group);
    const hd::context_program program = hd::lower_context(forward, me), other = hd::lower_context(forward, 1 - me);
    rows<double> odd(6, {3, 3, 4, 4}), few(5, {4, 2, 4, 4}), right(6, {4, 2, 4, 4});
    const auto error_of = [](auto call) {
      try {
        call();
      } catch (const hd::error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    mine.odd_heads = error_of([&] { attend(executor, program, odd); });
    mine.few_rows = error_of([&] { attend(executor, program, few); });
    mine.other_pass = error_of([&] { attend_backward(executor, program, right); });
    mine.other_rank = error_of([&] { attend(executor, other, right); });
    mine.messages_before = group.counters().messages_sent();
    attend(executor, program, right);
    mine.messages_after = group.counters().messages_sent();
  });
  for (int r = 0; r < 2; ++r) {
    const seen& s = all[static_cast<std::size_t>(r)];
    CHECK(s.odd_heads ==
          "heddle: 3 query heads and 3 key heads cannot be cut into 2 parts: the parts should divide the query heads, "
          "and the key heads or a multiple of them");
    CHECK(s.few_rows == "heddle: context_executor: rows of a tensor should be 6, got 5");
    CHECK(s.other_pass == "heddle: context_executor: the program is for the forward pass, not the backward one");
    CHECK(s.other_rank ==
          "heddle: context_executor: the rank should be " + std::to_string(1 - r) + ", got " + std::to_string(r));
    CHECK(s.messages_before == 0);
    CHECK(s.messages_after == messages_sent(forward.rounds.view(), r));
  }
}
