// Pools of prompts and of answers: tokens are those of one engine whatever comes, ends and fails, and no block is lost.
#include "catch.hpp"
#include "fake_runner.hpp"

#include <heddle/infer/pools.hpp>
#include <heddle/infer/serve/run_engine.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
using Catch::Matchers::Contains;

namespace {

// Carries rows in any order and at any pace; what it was told to end it does not touch again.
class pools_slow_link {
 public:
  pools_slow_link(fake::runner& from, fake::runner& to, std::mt19937& random)
      : from_(&from), to_(&to), random_(&random) {}
  void begin(const inf::row_transfer& t) {
    if (t.from.size() != t.to.size()) throw hd::error("a transfer has rows without places");
    transfers_[t.id] = {t, 0};
    for (const std::int64_t r : t.to) to_->cached()[static_cast<std::size_t>(r)] = 77;  // what comes must be seen
  }
  inf::row_progress progress(inf::request_id id) {
    auto& [t, done] = transfers_.at(id);
    const std::size_t n = stuck ? 0 : static_cast<std::size_t>(fake::between(*random_, 0, 9));
    for (std::size_t i = 0; i < n && done < t.from.size(); ++i, ++done)
      to_->cached()[static_cast<std::size_t>(t.to[done])] = from_->cached()[static_cast<std::size_t>(t.from[done])];
    const bool all = done == t.from.size();
    return {.all = all, .layer = 2, .arrived = std::int64_t(done), .announced = std::ssize(t.from)};
  }
  void end(inf::request_id id) { transfers_.erase(id); }
  std::size_t under_way() const { return transfers_.size(); }

  bool stuck = false;

 private:
  fake::runner *from_, *to_;
  std::mt19937* random_;
  std::map<inf::request_id, std::pair<inf::row_transfer, std::size_t>> transfers_{};
};

// Joins the thread of a lane whatever happens.
template <class Lane>
struct pools_ended {
  Lane& lane;
  std::thread& other;
  ~pools_ended() {
    if constexpr (std::is_same_v<Lane, inf::engine_lane>) lane.finish();
    if (other.joinable()) other.join();
  }
};

template <class Engine>
void pools_take(Engine& e, std::map<inf::request_id, fake::answer>& all) {
  for (const inf::event& x : e.step()) {
    fake::answer& a = all[x.id];
    if (a.finish != inf::finish_reason::none) throw hd::error("an event came behind the last one");
    if (x.token) a.tokens.push_back(*x.token);
    if (x.log_probability) a.log_probabilities.push_back(*x.log_probability);
    if (x.index != std::ssize(a.tokens) - (x.token ? 1 : 0)) throw hd::error("an event has another index");
    a.finish = x.finish;
  }
}

inf::step_limits pools_limits(std::mt19937& random) {
  inf::step_limits l = fake::small_limits;
  l.block_rows = fake::between(random, 1, 6);
  l.blocks = (l.context + l.block_rows - 1) / l.block_rows + fake::between(random, 0, 8);
  l.max_rows = fake::between(random, 3, 16);
  return l;
}

// Some requests in any order with cancellations, steps that fail and rows that do not come. `Lane`: of steps of prompts.
template <class Prefill, class Decode, class Lane = inf::in_turn>
void pools_round(std::mt19937& random, bool never, std::int64_t& preempted, std::int64_t& late, std::int64_t& failed) {
  constexpr bool apart = std::is_same_v<Lane, inf::engine_lane>;
  const fake::language of{.habit = 2, .broken_after = fake::between(random, 0, 3) == 0 ? 5 : -1};
  const inf::step_limits l = pools_limits(random), m = pools_limits(random);
  fake::runner from(l, of), to(m, of);
  const inf::engine_options options{.max_running = fake::between(random, 1, 5), .end_tokens = {3}};
  inf::engine<fake::runner, Prefill> prefill(from, options);
  inf::engine<fake::runner, Decode> decode(to, options);
  pools_slow_link link(from, to, random);
  Lane lane;
  std::thread other;
  if constexpr (apart) other = std::thread([&] { lane.serve(); });
  pools_ended<Lane> end{lane, other};
  inf::pools<decltype(prefill), decltype(decode), pools_slow_link, Lane> pools(
      prefill, decode, link, lane, {.arrival_timeout = std::chrono::milliseconds(never ? 0 : 100'000)});
  std::map<inf::request_id, inf::request> asked;
  std::map<inf::request_id, fake::answer> got;
  std::vector<inf::request_id> gone;
  const std::int64_t requests = fake::between(random, 1, 12);
  for (std::int64_t steps = 0; std::ssize(asked) < requests || !pools.idle(); ++steps) {
    if (steps > 3000) throw hd::error("the pools do not come to an end");
    while (std::ssize(asked) < requests && fake::between(random, 0, 2) > 0) {
      const inf::request r = fake::any_request(random, 28);
      asked[pools.submit(r)] = r;
    }
    if (!asked.empty() && fake::between(random, 0, 5) == 0) {
      const auto id = static_cast<inf::request_id>(fake::between(random, 1, std::ssize(asked)));
      const bool had_ended = got[id].finish != inf::finish_reason::none;
      const bool ends = pools.cancel(id);
      if (ends) gone.push_back(id);
      if (ends && had_ended) throw hd::error("a request ended twice");
    }
    if (fake::between(random, 0, 9) == 0) {
      if (fake::between(random, 0, 1) == 0)
        to.fail_next = true;
      else if (!lane.busy())
        from.fail_next = true;
    }
    if (fake::between(random, 0, 9) == 0)
      pools.weights_changed(fake::between(random, 0, 1) == 0 ? inf::kv::keep : inf::kv::recompute);
    link.stuck = never && fake::between(random, 0, 1) == 0;
    try {
      pools_take(pools, got);
    } catch (const std::runtime_error& e) {
      if (std::string(e.what()) != "the runner failed") throw;
      ++failed;
    }
  }
  for (const auto& [id, r] : asked) {
    const fake::answer whole = fake::alone(r, of, l.context, {3});
    fake::answer& a = got[id];
    const bool cut = a.finish == inf::finish_reason::cancelled || (a.finish == inf::finish_reason::error && a != whole);
    CAPTURE(id, a.tokens, whole.tokens, a.finish);
    if (cut) {  // all that came is right
      CHECK((never || std::ranges::count(gone, id) == 1));
      late += a.finish == inf::finish_reason::error;
      REQUIRE(a.tokens.size() <= whole.tokens.size());
      CHECK(std::equal(a.tokens.begin(), a.tokens.end(), whole.tokens.begin()));
    } else {
      CHECK(a.finish == whole.finish);
      CHECK(a.tokens == whole.tokens);
      CHECK(a.log_probabilities == whole.log_probabilities);
    }
  }
  CHECK(prefill.counts().cache.used == 0);
  CHECK(decode.counts().cache.used == 0);
  CHECK(link.under_way() == 0);
  CHECK(pools.counts().running == 0);
  CHECK(pools.counts().ended == pools.counts().submitted);
  preempted += pools.counts().preemptions;
}

void pools_rounds(int rounds, std::uint32_t seed) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::int64_t preempted = 0, late = 0, failed = 0;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    if (round % 3 == 2)
      pools_round<inf::prefix_shared, inf::paged, inf::engine_lane>(random, round % 4 == 0, preempted, late, failed);
    else if (round % 2 == 0)
      pools_round<inf::paged, inf::paged>(random, round % 4 == 0, preempted, late, failed);
    else
      pools_round<inf::prefix_shared, inf::paged>(random, round % 3 == 0, preempted, late, failed);
  }
  CHECK(preempted > 0);
  CHECK(late > 0);
  CHECK(failed > 0);
}

inf::request pools_request(std::int64_t prompt, std::int64_t tokens) {
  inf::request r{.max_tokens = tokens, .sampling = {.temperature = 0}};
  for (std::int64_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<std::int32_t>(i * 5 % 13));
  return r;
}

}  // namespace

TEST_CASE("pools give the tokens of one engine and free every block, whatever comes, ends and fails", "[infer][law]") {
  pools_rounds(400, 44'100);
}

TEST_CASE("ten thousand orders of requests in pools", "[infer][slow]") {
  pools_rounds(10'000, 44'101);
}

TEST_CASE("answers go on while prompts are computed: no step of answers waits for one of prompts", "[infer]") {
  fake::runner from, to;
  inf::engine<fake::runner, inf::prefix_shared> prefill(from);
  inf::engine<fake::runner, inf::paged> decode(to);
  std::mt19937 random(9);
  pools_slow_link link(from, to, random);
  inf::engine_lane lane;
  std::thread other([&] { lane.serve(); });
  pools_ended<inf::engine_lane> end{lane, other};
  inf::pools pools(prefill, decode, link, lane);
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t answered = 0;
  bool late = false, hurry = false;
  to.on_step = [&] {
    const std::lock_guard lock(mutex);
    ++answered;
    changed.notify_all();
  };
  std::map<inf::request_id, fake::answer> got;
  const inf::request talks = pools_request(5, 40), long_prompt = pools_request(40, 3);
  const inf::request_id first = pools.submit(talks);
  while (got[first].tokens.size() < 2) pools_take(pools, got);
  from.on_step = [&] {  // each step of prompts takes as long as 10 of answers
    std::unique_lock lock(mutex);
    const std::int64_t then = answered + 10;
    late = !changed.wait_for(lock, std::chrono::seconds(20), [&] { return hurry || answered >= then; }) || late;
  };
  const inf::request_id second = pools.submit(long_prompt);
  std::int64_t calls = 0, most = 0;  // of `step` for a token of the first
  while (got[first].finish == inf::finish_reason::none) {
    const std::size_t before = got[first].tokens.size();
    pools_take(pools, got);
    calls = got[first].tokens.size() > before ? 0 : calls + 1;
    most = (std::max)(most, calls);
  }
  {
    const std::lock_guard lock(mutex);
    hurry = true;
    changed.notify_all();
  }
  while (!pools.idle()) pools_take(pools, got);
  CHECK(!late);
  CHECK(most == 0);
  CHECK(got[first] == fake::alone(talks, {}, 48));
  CHECK(got[second] == fake::alone(long_prompt, {}, 48));
  CHECK(pools.counts().cache.used == 0);
}

TEST_CASE("what a lane's work throws its owner gets, and a lane that nobody serves is said to be one", "[infer]") {
  inf::engine_lane none(std::chrono::milliseconds(1));
  none.start([] {});
  CHECK(none.busy());
  CHECK_THROWS_WITH(none.start([] {}), Contains("one piece of work at a time"));
  CHECK_THROWS_WITH(none.wait(), Contains("a thread should call serve within 1 ms; none has"));
  CHECK(!none.busy());
  CHECK_NOTHROW(none.wait());
  int done = 0;
  none.start([&] { done += 10; });  // which is never done: its owner gives up
  CHECK_THROWS_WITH(none.wait(), Contains("none has"));
  none.finish();
  none.serve();
  CHECK(done == 0);
  inf::engine_lane lane;
  std::thread other([&] { lane.serve(); });
  lane.start([] { throw std::runtime_error("of the work"); });
  CHECK_THROWS_WITH(lane.wait(), Contains("of the work"));
  lane.start([&] { ++done; });
  lane.wait();
  CHECK(done == 1);
  lane.finish();
  other.join();
  CHECK_THROWS_WITH(lane.start([] {}), Contains("should not follow finish"));
}

namespace {
struct pools_end {
  bool fails = false;
  int interrupts = 0;
  void interrupt() {
    if (fails) throw std::runtime_error("the runner of answers failed");
    ++interrupts;
  }
};
struct pools_mover {
  void lead(std::span<const std::int64_t>, std::span<const std::int64_t>, std::int64_t, std::int64_t) {}
  void follow() {}
};
}  // namespace

TEST_CASE("a lane moves no rows where the runner of answers cannot be interrupted", "[infer]") {
  pools_end from, to{.fails = true};
  pools_mover here, there;
  inf::engine_lane lane;
  inf::mover_link link(from, to, here, there, lane);
  link.begin({.id = 1, .from = {4}, .to = {5}});
  CHECK_THROWS_WITH(link.progress(1), Contains("the runner of answers failed"));
  CHECK(!lane.busy());
  to.fails = false;
  std::thread other([&] { lane.serve(); });
  pools_ended<inf::engine_lane> end{lane, other};
  CHECK(link.progress(1).all);
  CHECK(from.interrupts == 1);
}

TEST_CASE("rows that never arrive end their request with what is missing", "[infer]") {
  std::mt19937 random(1);
  fake::runner from, to;
  inf::engine<fake::runner> prefill(from), decode(to);
  pools_slow_link link(from, to, random);
  link.stuck = true;
  inf::pools pools(prefill, decode, link, {.arrival_timeout = std::chrono::milliseconds(1)});
  const inf::request_id id = pools.submit(pools_request(11, 5));
  std::vector<inf::event> events;
  while (!pools.idle())
    for (const inf::event& e : pools.step()) events.push_back(e);
  REQUIRE(events.size() == 2);
  CHECK(events[0].token);
  CHECK(events[1].id == id);
  CHECK(events[1].index == 1);
  CHECK(events[1].finish == inf::finish_reason::error);
  CHECK(events[1].message == "heddle: request 1: 0 of 11 rows of layer 2 have come to the pool of answers within 1 ms");
  CHECK(prefill.counts().cache.used == 0);
  CHECK(decode.counts().cache.used == 0);
}

TEST_CASE("pools of other models and other settings are refused", "[infer]") {
  std::mt19937 random(1);
  inf::step_limits other = fake::small_limits;
  other.vocabulary = 14;
  fake::runner from, words(other),
      few({.vocabulary = 13, .context = 40, .block_rows = 4, .blocks = 60, .max_rows = 24});
  inf::engine<fake::runner> prefill(from), of_words(words), of_few(few), ends(from, {.end_tokens = {2}});
  pools_slow_link link(from, from, random);
  CHECK_THROWS_WITH(inf::pools(prefill, of_words, link),
                    Contains("the vocabulary of prompts is 13, that of answers 14"));
  CHECK_THROWS_WITH(inf::pools(prefill, of_few, link), Contains("the context of prompts is 48, that of answers 40"));
  CHECK_THROWS_AS(inf::pools(prefill, ends, link), hd::config_error);
}

TEST_CASE("pools are served as an engine is", "[infer]") {
  const fake::language of{};
  std::mt19937 random(5);
  fake::runner from(fake::small_limits, of), to(fake::small_limits, of);
  inf::engine<fake::runner> prefill(from), decode(to);
  pools_slow_link link(from, to, random);
  inf::pools pools(prefill, decode, link);
  inf::request_queue queue;
  std::thread engine([&] { inf::run_engine(pools, pools.limits().vocabulary, queue); });
  while (queue.state() == inf::queue_state::loading) std::this_thread::yield();
  const std::vector<inf::request> requests{pools_request(9, 6), pools_request(30, 4)};
  const auto channel = queue.submit(requests);
  std::vector<std::vector<std::int32_t>> got(2);
  std::vector<inf::choice_event> events;
  for (int ended = 0; ended < 2 && channel->take(events, std::chrono::seconds(30));)
    for (const inf::choice_event& e : events) {
      if (e.what.token) got[e.choice].push_back(*e.what.token);
      ended += e.what.finish != inf::finish_reason::none;
    }
  queue.drain();
  engine.join();
  for (std::size_t i = 0; i < 2; ++i) CHECK(got[i] == fake::alone(requests[i], of, 48).tokens);
  CHECK(pools.counts().cache.used == 0);
}

TEST_CASE("an engine keeps the blocks of a request that left until they were read", "[infer]") {
  fake::runner from, to;
  inf::engine<fake::runner> a(from), b(to);
  const inf::request_id id = a.submit(pools_request(9, 4));
  CHECK(!a.hand_over(id));  // its prompt is not computed
  static_cast<void>(a.step());
  const auto handed = a.hand_over(id);
  REQUIRE(handed);
  CHECK(handed->computed == 9);
  CHECK(handed->tokens.size() == 10);
  CHECK(!a.cancel(id));
  CHECK(a.idle());
  CHECK(a.counts().cache.used == 3);
  const auto adopted = b.adopt(*handed);
  REQUIRE(adopted);
  CHECK(b.step().empty());  // nothing runs on rows that have not arrived
  CHECK(to.steps == 0);
  CHECK(b.cancel(adopted->id));
  CHECK(!b.cancel(adopted->id));
  CHECK(b.step().front().finish == inf::finish_reason::cancelled);
  CHECK(b.counts().cache.used == 3);  // somebody may still write them
  CHECK(!b.arrived(adopted->id));
  a.handed(id);
  CHECK(a.counts().cache.used == 0);
  CHECK(b.counts().cache.used == 0);
}
