// Launch orders: the check against running the programs, plans against what they promise, and queues on real ranks.
#include <heddle/comm/launch_order.hpp>
#include <heddle/comm/threads.hpp>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "catch.hpp"

namespace {

namespace hd = heddle;
using op = hd::comm_operation;
using kind = hd::launch_fault::kind;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What happens if every call waits for all members of its group: whether all ranks get to their ends.
bool runs_to_the_end(const hd::launch_program& program) {
  std::vector<std::size_t> at(static_cast<std::size_t>(program.ranks()), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int g = 0; g < program.groups(); ++g) {
      bool all = true;
      for (const int r : program.members(g)) {
        const auto i = static_cast<std::size_t>(r);
        all = all && at[i] < program.calls(r).size() && program.calls(r)[at[i]].group == g;
      }
      if (!all) continue;
      for (const int r : program.members(g)) ++at[static_cast<std::size_t>(r)];
      moved = true;
    }
  }
  for (int r = 0; r < program.ranks(); ++r)
    if (at[static_cast<std::size_t>(r)] < program.calls(r).size()) return false;
  return true;
}

// Rows and columns of a square of four; rank `crosses` calls them the other way round, -1 for none.
constexpr hd::launch_program square(int crosses) {
  hd::launch_program program(4);
  const int groups[] = {program.group("row 0", {0, 1}), program.group("row 1", {2, 3}),
                        program.group("column 0", {0, 2}), program.group("column 1", {1, 3})};
  for (int r = 0; r < 4; ++r) {
    const int row = groups[r / 2], column = groups[2 + r % 2];
    program.call(r, r == crosses ? column : row, op::all_reduce);
    program.call(r, r == crosses ? row : column, op::all_reduce);
  }
  return program;
}

static_assert(hd::check_launch_order(square(-1)).ok());
static_assert(hd::plan_launch_order(square(-1)).ok());

// Two ranks that share two groups and disagree.
constexpr hd::launch_program crossed() {
  hd::launch_program program(2);
  const int dp = program.group("dp", {0, 1}), tp = program.group("tp", {0, 1});
  program.call(0, dp, op::all_reduce).call(0, tp, op::all_gather);
  program.call(1, tp, op::all_gather).call(1, dp, op::all_reduce);
  return program;
}
constexpr hd::launch_fault found = hd::check_launch_order(crossed());
static_assert(found.what == kind::circle && found.length == 2);
static_assert(hd::plan_launch_order(crossed()).ok());  // a plan may choose

hd::launch_program random_program(std::mt19937& random, bool shuffled) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int ranks = 2 + pick(5);
  hd::launch_program program(ranks);
  static const char* names[] = {"a", "b", "c", "d", "e"};
  const int groups = 1 + pick(5);
  for (int g = 0; g < groups; ++g) {
    std::vector<int> members;
    while (members.empty())
      for (int r = 0; r < ranks; ++r)
        if (pick(2) == 0) members.push_back(r);
    program.group(names[g], members);
  }
  std::vector<int> order;
  for (int i = 0; i < 1 + pick(8); ++i) order.push_back(pick(groups));
  for (int r = 0; r < ranks; ++r) {
    std::vector<int> mine = order;
    if (shuffled && pick(3) == 0) std::swap(mine[random() % mine.size()], mine[random() % mine.size()]);
    for (const int g : mine)
      for (const int m : program.members(g))
        if (m == r) program.call(r, g, op::all_reduce, pick(3), pick(4) == 0);
  }
  return program;
}

}  // namespace

TEST_CASE("orders that cross are named with their ranks and groups", "[comm][launch_order]") {
  CHECK(hd::to_string(found) ==
        "the launch orders cross: rank 0 calls dp (call 0) before tp (call 0), rank 1 calls tp (call 0) before dp "
        "(call 0)");
  CHECK(hd::to_string(hd::check_launch_order(square(-1))) == "the launch orders agree");
  // One rank of a square that turns round makes no circle yet; two opposite ones do.
  CHECK(hd::check_launch_order(square(0)).ok());
  hd::launch_program both(4);
  const int row0 = both.group("row 0", {0, 1}), row1 = both.group("row 1", {2, 3});
  const int column0 = both.group("column 0", {0, 2}), column1 = both.group("column 1", {1, 3});
  both.call(0, row0, op::all_reduce).call(0, column0, op::all_reduce);
  both.call(1, column1, op::all_reduce).call(1, row0, op::all_reduce);
  both.call(2, column0, op::all_reduce).call(2, row1, op::all_reduce);
  both.call(3, row1, op::all_reduce).call(3, column1, op::all_reduce);
  const auto fault = hd::check_launch_order(both);
  CHECK(fault.what == kind::circle);
  CHECK(fault.length == 4);
  CHECK(contains(hd::to_string(fault), "rank 3 calls row 1 (call 0) before column 1 (call 0)"));
}

TEST_CASE("members that make other calls than the others are named", "[comm][launch_order]") {
  hd::launch_program program(3);
  const int a = program.group("a", {0, 1}), b = program.group("b", {1, 2});
  program.call_all(a, op::all_reduce).call_all(b, op::all_gather).call(1, b, op::all_gather);
  CHECK(hd::to_string(hd::check_launch_order(program)) == "rank 1 makes 2 calls on b, rank 2 makes 1");
  program.call(2, b, op::all_reduce);
  CHECK(hd::to_string(hd::check_launch_order(program)) == "rank 1 and rank 2 make different calls on b: call 1");
  CHECK_THROWS_WITH(hd::launch_queue(program, hd::plan_launch_order(program), 0),
                    Catch::Matchers::Contains("heddle: rank 1 and rank 2 make different calls on b"));
  hd::launch_program other(3);
  other.call(2, other.group("a", {0, 1}), op::barrier);
  CHECK(hd::to_string(hd::check_launch_order(other)) == "rank 2 calls a, of which it is not a member");
}

TEST_CASE("the check says exactly which programs run to their end", "[comm][launch_order]") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int good = 0, circles = 0, counted = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto program = random_program(random, i % 4 != 0);
    const auto fault = hd::check_launch_order(program);
    counted += fault.what == kind::count;
    REQUIRE(fault.ok() == runs_to_the_end(program));
    if (i % 4 == 0) REQUIRE(fault.ok());
    good += fault.ok();
    circles += fault.what == kind::circle;
    if (fault.what != kind::circle) continue;
    // The circle is one: each call is the next rank's first, and each rank makes them in the order it says.
    for (int k = 0; k < fault.length && fault.length <= hd::launch_fault::most; ++k) {
      const auto& here = fault.crossings[static_cast<std::size_t>(k)];
      const auto& next = fault.crossings[static_cast<std::size_t>((k + 1) % fault.length)];
      REQUIRE((here.then.group == next.first.group && here.then.number == next.first.number));
      const auto calls = program.calls(here.rank);
      const auto first = std::find(calls.begin(), calls.end(), here.first);
      REQUIRE(std::find(first, calls.end(), here.then) != calls.end());
    }
  }
  CHECK(good > 300);
  CHECK(circles > 60);
  CHECK(counted == 0);  // swaps keep the calls
}

TEST_CASE("a plan is one order, whatever the programs", "[comm][launch_order]") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int planned = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto program = random_program(random, true);
    const auto plan = hd::plan_launch_order(program);
    if (!plan.ok()) {
      REQUIRE(plan.fault.what == kind::circle);  // of calls that need each other
      REQUIRE(!hd::check_launch_order(program).ok());
      continue;
    }
    ++planned;
    // The ranks' orders fit together: as a program they run to their end.
    hd::launch_program again(program.ranks());
    for (int g = 0; g < program.groups(); ++g) again.group(program.name(g), program.members(g));
    for (int r = 0; r < program.ranks(); ++r) {
      REQUIRE(plan.calls(r).size() == program.calls(r).size());
      for (const auto& c : plan.calls(r)) again.call(r, c.group, c.what);
      const auto place = [&](const hd::launch_call& c) {
        std::size_t k = 0;
        while (plan.calls(r)[k].group != c.group || plan.calls(r)[k].number != c.number) ++k;
        return k;
      };
      for (std::size_t k = 1; k < program.calls(r).size(); ++k)
        if (program.calls(r)[k].after_previous) REQUIRE(place(program.calls(r)[k - 1]) < place(program.calls(r)[k]));
    }
    REQUIRE(hd::check_launch_order(again).ok());
    REQUIRE(runs_to_the_end(again));
  }
  CHECK(planned > 1000);
}

TEST_CASE("calls of higher priority come first where nothing forbids it", "[comm][launch_order]") {
  hd::launch_program program(2);
  const int gradients = program.group("gradients", {0, 1}), tokens = program.group("tokens", {0, 1});
  program.call_all(gradients, op::all_reduce).call_all(gradients, op::all_reduce);
  program.call_all(tokens, op::all_to_all, 5).call_all(tokens, op::all_to_all, 5, true);
  program.call_all(gradients, op::all_reduce, 9);
  const auto plan = hd::plan_launch_order(program);
  REQUIRE(plan.ok());
  std::string text;
  for (const auto& c : plan.all) text += std::string(program.name(c.group)) + std::to_string(c.number) + " ";
  // The last gradients wait for the two before them, whatever their priority.
  CHECK(text == "tokens0 tokens1 gradients0 gradients1 gradients2 ");
}

TEST_CASE("a queue makes calls in the plan's order, in whatever order they come", "[comm][launch_order]") {
  const auto program = square(-1);
  const auto plan = hd::plan_launch_order(program);
  using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
  std::mutex mutex;
  int wrong = 0;
  for (unsigned round = 0; round < 20; ++round)
    hd::launch<hd::threads, mesh>([&](auto& world) {
      const int r = world.rank();
      hd::launch_queue queue(program, plan, r);
      int x = 1 + r, y = 10 * (1 + r), order = 0, row_at = -1, column_at = -1;
      const auto row = [&] {
        row_at = order++;
        world.template along<hd::tp>().all_reduce(std::span(&x, 1), hd::plus{});
      };
      const auto column = [&] {
        column_at = order++;
        world.template along<hd::dp>().all_reduce(std::span(&y, 1), hd::plus{});
      };
      // Submitted in another order on each rank: without the queue they would wait for each other.
      if ((round >> r) % 2 == 0) {
        queue.submit(r / 2, row);
        queue.submit(2 + r % 2, column);
      } else {
        queue.submit(2 + r % 2, column);
        queue.submit(r / 2, row);
      }
      queue.finish();
      const bool ok = queue.done() && queue.made() == 2 && x == (r < 2 ? 3 : 7) && y == (r % 2 == 0 ? 40 : 60) &&
                      (row_at < column_at) == (plan.calls(r)[0].group == r / 2);
      const std::lock_guard lock(mutex);
      wrong += !ok;
    });
  CHECK(wrong == 0);
}

TEST_CASE("orders that cross do hang, and the check knew", "[comm][launch_order]") {
  using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(200);
  CHECK_THROWS_AS((hd::launch<hd::threads, mesh>(options,
                                                 [](auto& world) {
                                                   int x = 1;
                                                   auto& first = world.rank() == 0 || world.rank() == 3
                                                                     ? world.template along<hd::tp>()
                                                                     : world.template along<hd::dp>();
                                                   first.all_reduce(std::span(&x, 1), hd::plus{});
                                                 })),
                  hd::comm_error);
}

TEST_CASE("a queue says which call is missing or one too many", "[comm][launch_order]") {
  hd::launch_program program(1);
  const int a = program.group("a", {0}), b = program.group("b", {0});
  program.call(0, a, op::barrier).call(0, b, op::barrier).call(0, b, op::barrier);
  const auto plan = hd::plan_launch_order(program);
  hd::launch_queue queue(program, plan, 0);
  std::string made;
  queue.submit(b, [&] { made += "b0 "; });
  queue.submit(b, [&] { made += "b1 "; });
  CHECK(queue.waiting() == 2);
  CHECK_THROWS_WITH(queue.finish(), Catch::Matchers::Contains(
                                        "rank 0: 2 submitted calls wait for call 0 on a, which was not submitted"));
  CHECK_THROWS_WITH(queue.submit(b, [] {}),
                    Catch::Matchers::Contains("rank 0 calls b more often than the plan says: call 2"));
  queue.submit(a, [&] {
    made += "a0 ";
    CHECK_THROWS_AS(queue.submit(a, [] {}), hd::comm_error);
  });
  CHECK(made == "a0 b0 b1 ");
  queue.finish();
}

TEST_CASE("a queue goes on after a call that threw", "[comm][launch_order]") {
  hd::launch_program program(1);
  const int a = program.group("a", {0}), b = program.group("b", {0});
  program.call(0, a, op::barrier).call(0, b, op::barrier).call(0, b, op::barrier).call(0, a, op::barrier);
  const auto plan = hd::plan_launch_order(program);
  hd::launch_queue queue(program, plan, 0);
  std::string made;
  const auto fails = [] { throw hd::comm_error("heddle: a call that fails"); };
  queue.submit(b, [&] { made += "b0 "; });
  CHECK_THROWS_WITH(queue.submit(a, fails), Catch::Matchers::Contains("a call that fails"));
  CHECK(made == "");
  queue.submit(a, [&] { made += "a1 "; });
  CHECK(made == "b0 ");
  CHECK_THROWS_WITH(queue.submit(b, fails), Catch::Matchers::Contains("a call that fails"));
  queue.finish();
  CHECK(made == "b0 a1 ");
}

TEST_CASE("a program has no groups of ranks that there are not", "[comm][launch_order]") {
  using Catch::Matchers::Contains;
  hd::launch_program program(2);
  CHECK_THROWS_WITH(program.group("x", {0, 2}), Contains("rank 2: there are 2"));
  CHECK_THROWS_WITH(program.group("x", {0, -1}), Contains("rank -1: there are 2"));
  CHECK_THROWS_WITH(program.group("x", {1, 0, 1}), Contains("rank 1 is twice in group 0"));
  CHECK_THROWS_WITH(program.call(0, 0, op::barrier), Contains("group 0: there are 0"));
  const int both = program.group("both", {0, 1});
  CHECK_THROWS_WITH(program.call(2, both, op::barrier), Contains("rank 2: there are 2"));
  CHECK_THROWS_WITH(program.call_all(1, op::barrier), Contains("group 1: there are 1"));
  const auto plan = hd::plan_launch_order(program.call_all(both, op::barrier));
  CHECK_THROWS_WITH(hd::launch_queue(program, plan, 2), Contains("rank 2: there are 2"));
  hd::launch_queue queue(program, plan, 0);
  CHECK_THROWS_WITH(queue.submit(1, [] {}), Contains("group 1: there are 1"));
}

TEST_CASE("a plan keeps what each rank says of its calls", "[comm][launch_order]") {
  hd::launch_program program(2);
  const int a = program.group("a", {0, 1}), b = program.group("b", {0, 1});
  program.call(0, a, op::all_reduce, 1).call(0, b, op::all_gather, 0, true);
  program.call(1, a, op::all_reduce, 4).call(1, b, op::all_gather);
  const auto plan = hd::plan_launch_order(program);
  REQUIRE(plan.ok());
  REQUIRE(plan.all.size() == 2);
  CHECK(plan.all[0].priority == 4);
  CHECK(plan.calls(0)[0] == program.calls(0)[0]);
  CHECK(plan.calls(0)[1] == program.calls(0)[1]);
  CHECK(plan.calls(1)[1] == program.calls(1)[1]);
}
