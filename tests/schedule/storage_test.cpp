#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/check/validate_storage.hpp>

#include "catch.hpp"
#include "emulator.hpp"
#include "pairs.hpp"
#include "schedules.hpp"

#include <map>
#include <random>
#include <string>
#include <string_view>

namespace sc = heddle::schedule;
using heddle::microbatches;
using sc::problem;

TEST_CASE("assigned storage is never used again while it is needed", "[schedule][law][property]") {
  const auto seed = GENERATE(5u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const std::string_view name : sc::named::names)
    for (const int p : {1, 2, 3, 4, 6})
      for (const int m : {1, 2, p, 2 * p, 2 * p + 1}) {
        const sc::named when(name, m);
        if (!when.fits(p)) continue;
        for (const bool pairs : {false, true})
          for (const int in_flight : {0, 1, 3}) {
            const auto table = sc::make_table(when, p);
            sc::plan made{sc::lower(pairs ? schedules::with_pairs(table, random, 0.3) : table), {}};
            made.memory = sc::assign_storage(made.table, in_flight);
            CAPTURE(name, p, m, in_flight, sc::to_string(sc::check_storage(made.table, made.memory)));
            REQUIRE(sc::check_storage(made.table, made.memory).ok());
          }
      }
}

TEST_CASE("a report names the slot or buffer that is used too early", "[schedule]") {
  const auto good = sc::make_plan(sc::make_table(sc::one_f_one_b<>{4}, 2));
  const auto complaint = [](const sc::plan& p) { return sc::to_string(sc::check_storage(p.table, p.memory)); };
  REQUIRE(sc::to_text(good.table) ==
          "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0F3 0SEND_F3 0RECV_B2 0B2 0RECV_B3 0B3 "
          "0REDUCE_GRAD\n"
          "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1RECV_F2 1B1 1SEND_B1 1F2 1RECV_F3 1B2 1SEND_B2 1F3 1B3 1SEND_B3 "
          "1REDUCE_GRAD\n");
  CHECK(complaint(good) == "the schedule is valid");
  auto bad = good;
  bad.memory.actions[2].saved = 0;
  CHECK(complaint(bad) ==
        "heddle: rank 0, position 2 (0F1): it saves its activations in slot 0 of stage 0, where those of 0F0 are still "
        "needed");
  bad = good;
  bad.memory.actions[5].saved = 1;
  CHECK(complaint(bad) == "heddle: rank 0, position 5 (0B0): slot 1 does not hold what it reads, but what 0F1 left");
  bad = good;
  bad.memory.actions[2].output = good.memory.actions[0].output;
  CHECK(complaint(bad) ==
        "heddle: rank 0, position 2 (0F1): it writes buffer 0, where the tensor of 0F0 is still needed");
  bad.memory.in_flight = 0;  // then the send has ended
  CHECK(sc::check_storage(bad.table, bad.memory).position != 2);
  bad = good;
  bad.memory.actions[1].output = 1;
  CHECK(complaint(bad) == "heddle: rank 0, position 1 (0SEND_F0): buffer 1 does not hold what it reads, but nothing");
  bad = good;
  bad.memory.actions[0].output = -1;
  CHECK(complaint(bad) ==
        "heddle: rank 0, position 0 (0F0): its slot or buffers are not those it needs: one is missing, too many, or "
        "does not exist");
  bad = good;
  bad.memory.actions[0].saved = 7;
  CHECK(sc::check_storage(bad.table, bad.memory).what == problem::storage_misfit);
  bad = good;
  bad.memory.actions[16].saved = 0;  // REDUCE_GRAD has none
  CHECK(sc::check_storage(bad.table, bad.memory).position == 16);
  bad = good;
  bad.memory.actions.pop_back();
  CHECK(complaint(bad) == "heddle: the storage is not of this table; assign it with schedule::assign_storage");
  // The parts of a pair end together: what one frees the other must not take.
  auto pair = sc::make_plan(sc::parse("0F0 (0B0;0F1)OVERLAP_B_F 0B1"));
  REQUIRE(complaint(pair) == "the schedule is valid");
  pair.memory.actions[2].saved = pair.memory.actions[3].saved = 0;
  CHECK(complaint(pair) ==
        "heddle: rank 0, position 2 (0F1): it saves its activations in slot 0 of stage 0, where those of 0F0 are still "
        "needed");
  STATIC_REQUIRE(sc::check_storage(sc::lowered_of<sc::one_f_one_b<microbatches<8>>, 4>,
                                   sc::storage_of<sc::one_f_one_b<microbatches<8>>, 4>)
                     .ok());
}

TEST_CASE("storage changed at random is rejected or computes the same", "[schedule][property]") {
  const auto seed = GENERATE(3u, Catch::Generators::take(1, Catch::Generators::random(0u, 4000000000u)));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::map<problem, int> rejections;
  int accepted = 0;
  for (int trial = 0; trial < 3000;) {
    const int p = 1 + below(3);
    const int m = 1 + below(2 * p + 1);
    const sc::named when(sc::named::names[static_cast<std::size_t>(below(static_cast<int>(sc::named::names.size())))],
                         m);
    if (!when.fits(p)) continue;
    ++trial;
    auto table = sc::make_table(when, p);
    if (below(2) == 0) table = schedules::with_pairs(table, random, 0.3);
    sc::plan made{sc::lower(table), {}};
    made.memory = sc::assign_storage(made.table, below(3));
    auto& places = made.memory.actions;
    for (int changes = 1 + below(2); changes > 0; --changes) {
      sc::action_storage& a = places[static_cast<std::size_t>(below(static_cast<int>(places.size())))];
      const sc::action_storage& b = places[static_cast<std::size_t>(below(static_cast<int>(places.size())))];
      switch (below(6)) {
        case 0:
          a.saved = b.saved;
          break;
        case 1:
          a.input = b.input;
          break;
        case 2:
          a.output = b.output;
          break;
        case 3:
          made.memory.in_flight = below(4);
          break;
        case 4: {  // two slots or buffers everywhere as one
          int sc::action_storage::* const which[] = {&sc::action_storage::saved, &sc::action_storage::input,
                                                     &sc::action_storage::output};
          int sc::action_storage::* const one = which[below(3)];
          const int from = a.*one, to = b.*one;
          for (sc::action_storage& x : places)
            if (x.*one == from) x.*one = to;
          break;
        }
        case 5:
          std::swap(a.input, places[static_cast<std::size_t>(below(static_cast<int>(places.size())))].input);
          break;
      }
    }
    const auto report = sc::check_storage(made.table, made.memory);
    CAPTURE(trial, when.name(), p, m, sc::to_text(made.table), sc::to_string(report));
    if (!report.ok()) {
      ++rejections[report.what];
      continue;
    }
    ++accepted;
    const auto result = emulator::run(made.view());
    REQUIRE(result.has_value());
    REQUIRE(*result == emulator::serial(made.table));
  }
  CHECK(accepted > 100);
  for (const problem what : {problem::storage_misfit, problem::slot_overwritten, problem::slot_content,
                             problem::buffer_overwritten, problem::buffer_content})
    CHECK(rejections[what] > 0);
}
