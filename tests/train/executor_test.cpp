// tests/train/executor_test.cpp: the executor runs any valid table: several stages per rank, split backwards, any order.
#include "catch.hpp"
#include "transport.hpp"

#include <heddle/model/pipeline/executor.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;

namespace {

struct batch {
  int samples = 0;
  double value = 0;  // what the first stage makes its tensor of
};

// y = weight * x, one element per sample: enough to see every value that travels. Checks the verbs' order itself.
struct toy_stage {
  using scalar = double;
  int index, last;
  double weight, gradient = 0;
  std::vector<double> saved_x, saved_dy;
  std::vector<int> state;  // of each slot: 0 free, 1 forward done, 2 backward_input done

  toy_stage(int i, int n, int slots)
      : index(i),
        last(n - 1),
        weight(1.0 + 0.5 * i),
        saved_x(static_cast<std::size_t>(slots)),
        saved_dy(saved_x),
        state(saved_x.size()) {}
  std::int64_t boundary_elements(std::int64_t samples) const { return samples; }
  void enter(int slot, int from, int to) {
    if (state.at(static_cast<std::size_t>(slot)) != from)
      throw hd::schedule_error("toy stage: slot in the wrong state");
    state[static_cast<std::size_t>(slot)] = to;
  }
  void forward(int slot, const batch& b, std::span<const double> in, std::span<double> out) {
    enter(slot, 0, 1);
    const double x = index == 0 ? b.value : in.front();
    for (const double v : in)
      if (v != x) throw hd::error("toy stage: the message is not the one expected");
    saved_x[static_cast<std::size_t>(slot)] = x;
    for (double& y : out) y = weight * x;
  }
  void backward_input(int slot, const batch&, std::span<const double> dout, std::span<double> din) {
    enter(slot, 1, 2);
    const double dy = index == last ? 1.0 : dout.front();
    saved_dy[static_cast<std::size_t>(slot)] = dy;
    for (double& d : din) d = weight * dy;
  }
  void backward_weight(int slot, const batch&) {
    enter(slot, 2, 0);
    gradient += saved_x[static_cast<std::size_t>(slot)] * saved_dy[static_cast<std::size_t>(slot)];
  }
  void backward(int slot, const batch& b, std::span<const double> dout, std::span<double> din) {
    backward_input(slot, b, dout, din);
    backward_weight(slot, b);
  }
};

struct hooks {
  std::vector<int>& reduced;
  int forwards = 0;
  void forward_done(int, int, int) { ++forwards; }
  void reduce_gradient(int stage) { reduced.push_back(stage); }
};

// A communicator whose messages are never over before they are waited for.
template <class Communicator>
class late : public Communicator {
 public:
  class request {
   public:
    explicit request(typename Communicator::request&& r) : inner_(std::move(r)) {}
    void wait() { inner_.wait(); }
    bool test() { return false; }

   private:
    typename Communicator::request inner_;
  };
  explicit late(Communicator&& c) : Communicator(std::move(c)) {}
  template <class In>
  request isend(In&& in, int to, int tag = 0) {
    return request(Communicator::isend(in, to, tag));
  }
  template <class Out>
  request irecv(Out&& out, int from, int tag = 0) {
    return request(Communicator::irecv(out, from, tag));
  }
  late split(int color, int key) { return late(Communicator::split(color, key)); }
};
struct as_it_is {
  template <class Communicator>
  Communicator& operator()(Communicator& c) const {
    return c;
  }
};
struct delayed {
  template <class Communicator>
  late<Communicator> operator()(Communicator& c) const {
    return late<Communicator>(c.split(0, c.rank()));
  }
};

// Runs a table on threads and returns the gradients of all stages.
template <class Messages = as_it_is>
std::vector<double> run(sc::table_view table, int sends_in_flight, std::vector<hd::event>* events = nullptr,
                        Messages messages = {}) {
  const sc::plan plan = sc::make_plan(table, sends_in_flight);
  const sc::plan_view view = plan;
  const int m = table.microbatches();
  std::vector<batch> batches;
  for (int i = 0; i < m; ++i) batches.push_back({1 + i % 3, 1.0 + i});  // sizes differ
  std::vector<double> gradients(static_cast<std::size_t>(table.stages()));
  std::vector<int> reductions(gradients.size());
  std::mutex guard;
  hd::observe::recorder recorder(table.ranks());
  transport_test::launch(hd::mesh<hd::axis<hd::pp>>(table.ranks()), [&](auto& world) {
    auto&& pipe = messages(world.template along<hd::pp>());
    std::vector<toy_stage> mine;
    mine.reserve(gradients.size());
    std::vector<toy_stage*> held(gradients.size(), nullptr);
    for (int s = 0; s < table.stages(); ++s)
      if (table.rank_of(s) == pipe.rank()) {
        mine.emplace_back(s, table.stages(), view.storage.slots(s));
        held[static_cast<std::size_t>(s)] = &mine.back();
      }
    using communicator = std::remove_reference_t<decltype(pipe)>;
    hd::model::executor<toy_stage, communicator, hd::observe::recorder> executor(view, held, pipe, 3, recorder);
    std::vector<int> reduced;
    hooks h{reduced};
    for (int step = 0; step < 2; ++step) executor.run(std::span<const batch>(batches), step, h);  // buffers serve again
    const std::lock_guard lock(guard);
    for (const toy_stage& s : mine) gradients[static_cast<std::size_t>(s.index)] = s.gradient / 2;
    for (const int s : reduced) ++reductions[static_cast<std::size_t>(s)];
    if (h.forwards != 2 * m * static_cast<int>(mine.size())) throw hd::error("hooks missed a forward");
  });
  const auto add = [](auto& all, const auto& other) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += other[i];
  };
  transport_test::merge(gradients, add);
  transport_test::merge(reductions, add);
  for (const int n : reductions) CHECK(n == 2);
  if (events != nullptr) {
    *events = recorder.events();
    transport_test::merge(*events);
  }
  return gradients;
}

// dL/dw_s = sum_i value_i * product of the other weights.
std::vector<double> expected(int stages, int microbatches) {
  std::vector<double> g(static_cast<std::size_t>(stages));
  for (int s = 0; s < stages; ++s)
    for (int i = 0; i < microbatches; ++i) {
      double term = 1.0 + i;
      for (int other = 0; other < stages; ++other) term *= other == s ? 1.0 : 1.0 + 0.5 * other;
      g[static_cast<std::size_t>(s)] += term;
    }
  return g;
}

}  // namespace

TEST_CASE("every schedule on every pipeline gives the gradients of the chain rule", "[train][executor][ranks]") {
  for (const int p : transport_test::rank_counts({1, 2, 3, 5}))
    for (const int m : {1, 2, 5, 8})
      for (const int in_flight : {0, 1, 3}) {
        if (!transport_test::on_threads && (p * m + in_flight) % 5 != 0) continue;  // processes take longer
        INFO("p = " << p << ", m = " << m << ", " << in_flight << " sends in flight");
        CHECK(run(sc::make_table(sc::gpipe<>{m}, p), in_flight) == expected(p, m));
        CHECK(run(sc::make_table(sc::one_f_one_b<>{m}, p), in_flight) == expected(p, m));
      }
}

TEST_CASE("tables written by hand run too: split backwards, several stages per rank, V maps",
          "[train][executor][ranks]") {
  const struct {
    const char* what;
    const char* text;
    int stages, microbatches;
  } tables[] = {
      {"zero bubble H1", "F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 | F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3", 2, 4},
      {"two chunks, looped", "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1 | 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1", 4, 2},
      {"two chunks, V", "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1 | 1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1", 4, 2},
      {"two chunks, V, split", "0F0 0F1 3F0 3I0 3F1 3I1 3W1 3W0 0I0 0B1 0W0 | 1F0 2F0 1F1 2F1 2I0 1I0 2B1 1B1 1W0 2W0",
       4, 2},
      {"everything on one rank", "0F0 1F0 2F0 0F1 2B0 1B0 0B0 1F1 2F1 2B1 1B1 0B1", 3, 2},
      {"backwards in reverse", "F0 F1 F2 B2 B1 B0 | F0 F1 F2 B2 B1 B0", 2, 3},
  };
  for (const auto& t : tables)
    for (const int in_flight : {0, 1, 2}) {
      if (!transport_test::on_threads && in_flight == 1) continue;
      INFO(t.what << ", " << in_flight << " sends in flight");
      CHECK(run(sc::parse(t.text), in_flight) == expected(t.stages, t.microbatches));
    }
}

TEST_CASE("a send and its receive carry the same flow number, different from all others", "[train][executor][ranks]") {
  std::vector<hd::event> events;
  run(sc::make_table(sc::one_f_one_b<>{4}, 3), 1, &events);
  std::map<std::uint64_t, std::pair<int, int>> flows;
  for (const hd::event& e : events) {
    if (e.kind == hd::activity::send && e.flow != 0) ++flows[e.flow].first;  // 0: waits for it
    if (e.kind == hd::activity::recv) ++flows[e.flow].second;
    if (e.kind == hd::activity::forward) CHECK(e.flow == 0);
  }
  CHECK(flows.size() == 2u * 2 * 2 * 4);  // steps, directions, links, microbatches
  for (const auto& [flow, ends] : flows) CHECK(ends == std::pair<int, int>(1, 1));
}

TEST_CASE("flow numbers differ however many microbatches there are", "[train][executor]") {
  if (!transport_test::on_threads) return;
  std::vector<hd::event> events;
  run(sc::make_table(sc::gpipe<>{4097}, 3), 1, &events);
  std::map<std::uint64_t, int> sent;
  for (const hd::event& e : events)
    if (e.kind == hd::activity::send && e.flow != 0) ++sent[e.flow];
  CHECK(sent.size() == 2u * 2 * 2 * 4097);
}

TEST_CASE("a send that has to be waited for is recorded as such", "[train][executor][ranks]") {
  constexpr int p = 3, m = 4;
  for (const int in_flight : {0, 2}) {
    std::vector<hd::event> events;
    CHECK(run(sc::make_table(sc::gpipe<>{m}, p), in_flight, &events, delayed{}) == expected(p, m));
    int up = 0, down = 0;
    for (const hd::event& e : events) {
      if (e.kind != hd::activity::send || e.flow != 0) continue;
      ++(e.peer > e.rank ? up : down);
      CHECK(e.peer == e.rank + (e.peer > e.rank ? 1 : -1));
      CHECK((e.stage == e.rank && e.microbatch >= 0 && e.microbatch < m && (e.step == 0 || e.step == 1)));
      CHECK(e.end_ns >= e.begin_ns);
      if (transport_test::on_threads)  // another process's name is not here
        CHECK(std::string(e.name) == (e.peer > e.rank ? "wait for send forward" : "wait for send backward"));
    }
    CHECK(up == 2 * (p - 1) * m);  // steps, links, microbatches
    CHECK(down == 2 * (p - 1) * m);
  }
}

TEST_CASE("a rank computes on while its messages are on their way", "[train][executor][ranks]") {
  constexpr int p = 3, m = 5;
  for (const int in_flight : {0, 1, 2}) {
    std::vector<hd::event> events;
    run(sc::make_table(sc::gpipe<>{m}, p), in_flight, &events, delayed{});
    for (const hd::event& wait : events) {
      if (wait.kind != hd::activity::send || wait.flow != 0 || wait.peer < wait.rank) continue;
      int computed = 0;  // forwards of this rank that were over when it began to wait
      for (const hd::event& e : events)
        computed +=
            e.kind == hd::activity::forward && e.rank == wait.rank && e.step == wait.step && e.end_ns <= wait.begin_ns;
      CHECK(computed == std::min(wait.microbatch + 1 + in_flight, m));
    }
  }
}

TEST_CASE("an executor refuses plans that are none", "[train][executor]") {
  const auto make = [](sc::plan_view plan) {
    hd::launch<hd::threads>(hd::mesh<hd::axis<hd::pp, 2>>{}, [&](auto& world) {
      auto& pipe = world.template along<hd::pp>();
      toy_stage stage(0, 2, 2);
      hd::null_observer off;
      hd::model::executor<toy_stage, std::remove_reference_t<decltype(pipe)>> executor(plan, {&stage, &stage}, pipe, 1,
                                                                                       off);
    });
  };
  const auto computations = sc::make_table(sc::gpipe<>{2}, 2);
  const auto storage = sc::assign_storage(computations);
  const sc::plan good = sc::make_plan(computations);
  CHECK_NOTHROW(make(good));
  CHECK_THROWS_WITH(make({computations, storage}),
                    Catch::Matchers::Contains("has no sends and receives, but stages on several ranks; lower it"));
  CHECK_THROWS_WITH(make({good.table, storage}), Catch::Matchers::Contains("the plan's storage is not of its table"));
}

TEST_CASE("an executor refuses a table that is not its pipeline's", "[train][executor][ranks]") {
  const sc::plan plan = sc::make_plan(sc::make_table(sc::gpipe<>{2}, 2));
  CHECK_THROWS_WITH(transport_test::launch(hd::mesh<hd::axis<hd::pp>>(3),
                                           [&](auto& world) {
                                             auto& pipe = world.template along<hd::pp>();
                                             using communicator = std::remove_reference_t<decltype(pipe)>;
                                             hd::null_observer off;
                                             hd::model::executor<toy_stage, communicator> executor(plan, {}, pipe, 1,
                                                                                                   off);
                                           }),
                    Catch::Matchers::Contains("table is for 2 pipeline ranks, the pipeline has 3"));
  CHECK_THROWS_WITH(transport_test::launch(hd::mesh<hd::axis<hd::pp>>(2),
                                           [&](auto& world) {
                                             auto& pipe = world.template along<hd::pp>();
                                             using communicator = std::remove_reference_t<decltype(pipe)>;
                                             hd::null_observer off;
                                             hd::model::executor<toy_stage, communicator> executor(
                                                 plan, {nullptr, nullptr}, pipe, 1, off);
                                           }),
                    Catch::Matchers::Contains("which it does not hold"));
}
