// Rounds of messages: what is right passes, and each way of being wrong is found and named.
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/rounds_check.hpp>
#include <heddle/collective/rounds_text.hpp>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>

#include "catch.hpp"

namespace {
namespace hd = heddle;
using Catch::Matchers::Contains;
using hd::arrival, hd::comm_operation, hd::fold_order, hd::round_problem;

static_assert(hd::check_rounds<hd::algo::ring, comm_operation::all_reduce>(8).ok());
static_assert(hd::check_rounds<hd::algo::ring, comm_operation::reduce_scatter>(7).ok());
static_assert(hd::check_rounds<hd::algo::ring, comm_operation::all_gather>(5).ok());

// x0 op x1 at both ranks, then at rank 2, then back: right for all_reduce on three ranks.
hd::round_builder chain() {
  hd::round_builder rounds(comm_operation::all_reduce, 3, 0, 1, 1);
  rounds.send(0, 0, 1, arrival::fold_before).block(0);
  rounds.send(1, 1, 2, arrival::fold_before).block(0);
  rounds.send(2, 2, 0).block(0);
  rounds.send(2, 2, 1).block(0);
  return rounds;
}
}  // namespace

TEST_CASE("the ring keeps its promises, and no order", "[comm][rounds]") {
  for (int p = 1; p <= 40; ++p) {
    CHECK(to_string(hd::check_rounds<hd::algo::ring, comm_operation::all_reduce>(p)) ==
          "the rounds do what the collective promises");
    CHECK(hd::check_rounds<hd::algo::ring, comm_operation::reduce_scatter>(p).ok());
    CHECK(hd::check_rounds<hd::algo::ring, comm_operation::all_gather>(p).ok());
  }
  const auto rotated = hd::check_rounds(hd::algo::ring::rounds<comm_operation::all_reduce>(4, 0), fold_order::rank);
  CHECK(rotated.what == round_problem::out_of_order);
  CHECK_THAT(to_string(rotated), Contains("heddle: all_reduce on 4 ranks, round ") && Contains("fold_order::any"));
  CHECK(hd::check_rounds(hd::algo::ring::rounds<comm_operation::all_reduce>(128, 0), fold_order::any).ok());
}

TEST_CASE("each fault of a table is found and named", "[comm][rounds]") {
  const auto of = [](hd::round_builder rounds, fold_order claimed = fold_order::dyadic) {
    return hd::check_rounds(rounds.take(), claimed);
  };
  const auto with = [](auto change) {
    auto rounds = chain();
    change(rounds);
    return rounds;
  };
  CHECK(of(chain()).ok());

  const auto twice = of(with([](auto& r) { r.send(3, 0, 1, arrival::fold_after).block(0); }));
  CHECK(twice.what == round_problem::twice);
  CHECK(twice.contribution == 0);
  CHECK(to_string(twice) ==
        "heddle: all_reduce on 3 ranks, round 3, rank 0 to rank 1, item 0: the contribution of rank 0 is folded in a "
        "second time, and rank 1 ends with the result");

  hd::round_builder lacks(comm_operation::all_reduce, 3, 0, 1, 1);
  lacks.send(0, 0, 1, arrival::fold_before).block(0).send(0, 1, 0, arrival::fold_after).block(0);
  const auto incomplete = of(lacks, fold_order::any);
  CHECK(incomplete.what == round_problem::incomplete);
  CHECK(to_string(incomplete) ==
        "heddle: all_reduce on 3 ranks, item 0: rank 0 ends without the contribution of rank 2");

  hd::round_builder swapped(comm_operation::reduce, 2, 0, 1, 1);
  swapped.send(0, 1, 0, arrival::fold_before).block(0);
  CHECK(of(swapped, fold_order::any).ok());
  CHECK(of(swapped, fold_order::rank).what == round_problem::out_of_order);
  CHECK(of(swapped, fold_order::none).what == round_problem::folds);

  hd::round_builder chained(comm_operation::reduce, 4, 0, 1, 1);  // x0 (x1 (x2 x3)): in order, not the tree
  for (int k = 0; k < 3; ++k) chained.send(k, 3 - k, 2 - k, arrival::fold_after).block(0);
  CHECK(of(chained, fold_order::rank).ok());
  const auto grouped = of(chained, fold_order::dyadic);
  CHECK(grouped.what == round_problem::not_dyadic);
  CHECK(grouped.round == 1);
  CHECK_THAT(to_string(grouped), Contains("not as the aligned binary tree"));

  hd::round_builder both(comm_operation::all_reduce, 2, 0, 1, 1);  // x0 op x1 here, x1 op x0 there
  both.send(0, 0, 1, arrival::fold_after).block(0).send(0, 1, 0, arrival::fold_after).block(0);
  const auto differs = of(both, fold_order::any);
  CHECK(differs.what == round_problem::differs);
  CHECK_THAT(to_string(differs), Contains("rank 1 ends with a result that is folded otherwise"));

  hd::round_builder gap(comm_operation::broadcast, 3, 1, 2, 1);
  gap.send(0, 1, 0).blocks(0, 2).send(0, 1, 2).block(0);
  const auto missing = of(gap, fold_order::none);
  CHECK(missing.what == round_problem::missing);
  CHECK(to_string(missing) == "heddle: broadcast on 3 ranks, item 1: rank 2 ends without the item");

  hd::round_builder early(comm_operation::all_gather, 3, 0, 3, 1);
  early.send(0, 0, 1).block(0).send(0, 1, 2).block(0);  // in one round rank 1 cannot pass on what comes
  const auto absent = of(early, fold_order::none);
  CHECK(absent.what == round_problem::not_held);
  CHECK(to_string(absent) ==
        "heddle: all_gather on 3 ranks, round 0, rank 1 to rank 2, item 0: the sender does not have the item when the "
        "round begins");

  hd::round_builder more(comm_operation::scan, 2, 0, 1, 1);
  more.send(0, 0, 1, arrival::fold_before).block(0).send(0, 1, 0, arrival::fold_after).block(0);
  const auto unwanted = of(more, fold_order::rank);
  CHECK(unwanted.what == round_problem::unwanted);
  CHECK(unwanted.contribution == 1);

  const auto changed = [&](auto change) {
    auto rounds = chain();
    auto table = rounds.take();
    change(table);
    return hd::check_rounds(table, fold_order::any).what;
  };
  CHECK(changed([](auto& t) { t.transfers[0].to = 0; }) == round_problem::bad_rank);
  CHECK(changed([](auto& t) { t.transfers[1].from = 3; }) == round_problem::bad_rank);
  CHECK(changed([](auto& t) { t.transfers[1].round = -1; }) == round_problem::unsorted);
  CHECK(changed([](auto& t) { t.transfers[1].round = 4; }) == round_problem::unsorted);
  CHECK(changed([](auto& t) { t.items[2] = 1; }) == round_problem::bad_item);
  CHECK(changed([](auto& t) { t.transfers[3].items = 2; }) == round_problem::bad_item);
  CHECK(changed([](auto& t) { t.transfers[2].items = 2; }) == round_problem::repeated);
  CHECK(changed([](auto& t) { t.root = 3; }) == round_problem::malformed);
  CHECK(changed([](auto& t) { t.what = comm_operation::reduce_scatter; }) == round_problem::malformed);
  CHECK(changed([](auto& t) { t.what = comm_operation::barrier; }) == round_problem::no_rounds);
}

TEST_CASE("a message that is lost, turned round or sent elsewhere is noticed", "[comm][rounds][property]") {
  const unsigned seed = 20;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const int p = 2 + static_cast<int>(random() % 9);
    auto table = hd::algo::ring::rounds<comm_operation::all_reduce>(p, 0);
    const auto victim = static_cast<std::size_t>(random() % table.transfers.size());
    hd::round_transfer& t = table.transfers[victim];
    switch (random() % 3) {
      case 0:
        table.transfers.erase(table.transfers.begin() + static_cast<std::ptrdiff_t>(victim));
        break;
      case 1:
        std::swap(t.from, t.to);
        break;
      default:
        t.how = t.how == arrival::store ? arrival::fold_before : arrival::store;
    }
    INFO("p = " << p << ", transfer " << victim);
    CHECK_FALSE(hd::check_rounds(table, fold_order::any).ok());
  }
}

TEST_CASE("the aligned tree over any number of ranks is recognised", "[comm][rounds]") {
  for (int p = 1; p <= 70; ++p) {
    hd::round_builder rounds(comm_operation::reduce, p, 0, 1, 1);
    for (int k = 0, step = 1; step < p; ++k, step *= 2)
      for (int r = 0; r + step < p; r += 2 * step) rounds.send(k, r + step, r, arrival::fold_after).block(0);
    CHECK(to_string(hd::check_rounds(rounds.take(), fold_order::dyadic)) ==
          "the rounds do what the collective promises");
  }
}

TEST_CASE("rounds are printed block by block", "[comm][rounds]") {
  CHECK(hd::to_string(hd::algo::ring::rounds<comm_operation::all_reduce>(2, 0)) ==
        "all_reduce on 2 ranks: 2 blocks, 2 rounds, 4 messages\n"
        "round 0\n"
        "  0 -> 1  received op own  1\n"
        "  1 -> 0  received op own  0\n"
        "round 1\n"
        "  0 -> 1  0\n"
        "  1 -> 0  1\n");
  hd::round_builder rounds(comm_operation::broadcast, 3, 2, 6, 2);
  rounds.send(0, 2, 0).blocks(1, 3).block(5).send(0, 2, 1).item(0).item(2).item(3).item(5).item(6);
  rounds.send(2, 2, 1).block(0);
  CHECK(hd::to_string(rounds.take()) ==
        "broadcast on 3 ranks with root 2: 6 blocks of 2 parts, 3 rounds, 3 messages\n"
        "round 0\n"
        "  2 -> 0  1-3, 5\n"
        "  2 -> 1  0.0, 1, 2.1-3.0\n"
        "round 2\n"
        "  2 -> 1  0\n");
  CHECK(hd::to_string(hd::algo::ring::rounds<comm_operation::all_gather>(1, 0)) ==
        "all_gather on 1 rank: 1 block, 0 rounds, 0 messages\n");
}

TEST_CASE("messages, bytes and seconds of a table", "[comm][rounds][cost]") {
  const auto p = 4;
  const auto table = hd::algo::ring::rounds<comm_operation::all_reduce>(p, 0);
  for (int r = 0; r < p; ++r) {
    CHECK(hd::messages_sent(table, r) == 6);
    CHECK(hd::items_sent(table, r) == 6);
    CHECK(hd::bytes_sent(table, r, 16, 4) == 6 * 16);
  }
  CHECK(hd::total_bytes(table, 16, 4) == 4 * 6 * 16);
  // Ten elements are cut 3, 3, 2, 2: every block is sent six times, whoever sends it.
  CHECK(hd::total_bytes(table, 10, 1) == 60);
  CHECK(hd::busiest_sender(table, 0, 10, 8) == hd::round_maxima{1, 24, 24});
  CHECK(hd::extent_of(table, 2, 10) == hd::item_extent{6, 2});

  const hd::hockney net{1e-6, 1e-9, 1e-10};
  const double m = 16 * 4;
  CHECK(hd::seconds(table, net, 16, 4) ==
        Approx(6 * net.alpha + 1.5 * m * net.beta + 0.75 * m * net.gamma).epsilon(1e-12));

  // One rank sends two messages in a round: one after the other, or both at once over two ports.
  hd::round_builder rounds(comm_operation::broadcast, 3, 0, 1, 1);
  rounds.send(0, 0, 1).block(0).send(0, 0, 2).block(0);
  const auto star = rounds.take();
  CHECK(hd::seconds(star, {1, 1, 0}, 5, 1) == 12);
  CHECK(hd::seconds(star, {1, 1, 0, 2}, 5, 1) == 6);
  CHECK(hd::busiest_sender(star, 0, 5, 2) == hd::round_maxima{2, 20, 10});
  // Two messages to one rank: its port takes them one by one.
  hd::round_builder meeting(comm_operation::gather, 3, 0, 3, 1);
  meeting.send(0, 1, 0).block(1).send(0, 2, 0).block(2);
  const auto gather = meeting.take();
  CHECK(hd::seconds(gather, {1, 1, 0}, 15, 1) == 12);
  CHECK(hd::seconds(gather, {1, 1, 0, 2}, 15, 1) == 6);
  // A rank that is done early goes on: the chain 0 -> 1, then 0 -> 2 and 1 -> 3 together.
  hd::round_builder tree(comm_operation::broadcast, 4, 0, 1, 1);
  tree.send(0, 0, 1).block(0).send(1, 0, 2).block(0).send(1, 1, 3).block(0);
  CHECK(hd::seconds(tree.take(), {1, 1, 0}, 5, 1) == 12);
  STATIC_REQUIRE(
      hd::seconds(hd::static_rounds<hd::algo::ring, comm_operation::all_gather, 4>::view(), {1, 1, 0}, 8, 1) == 9);
}

TEST_CASE("a vector is cut into items without gap or overlap", "[comm][rounds][cost]") {
  for (const std::int64_t n : {0, 1, 7, 8, 30, 1001})
    for (int blocks = 1; blocks <= 7; ++blocks)
      for (int parts = 1; parts <= 4; ++parts) {
        const hd::round_view view{comm_operation::all_reduce, 4, 0, blocks, parts, {}, {}};
        std::int64_t at = 0;
        for (int i = 0; i < view.items(); ++i) {
          CHECK(hd::extent_of(view, i, n).offset == at);
          at += hd::extent_of(view, i, n).size;
        }
        CHECK(at == n);
      }
  const hd::round_view view{comm_operation::all_to_all, 3, 0, 9, 1, {}, {}};
  for (int s = 0; s < 3; ++s) {
    CHECK(hd::extent_of(view, s * 3 + 0, 12) == hd::item_extent{0, 4});
    CHECK(hd::extent_of(view, s * 3 + 2, 12) == hd::item_extent{8, 4});
  }
}

TEST_CASE("where ranks are many a check follows a bounded part of the items", "[comm][rounds]") {
  const auto stride = [](comm_operation what, int ranks, int blocks) {
    return hd::detail::bounded_stride({what, ranks, 0, blocks, 1, {}, {}});
  };
  CHECK(stride(comm_operation::all_reduce, 1024, 1024) == 1);
  CHECK(stride(comm_operation::all_to_all, 256, 256 * 256) == 1);
  for (const int ranks : {300, 512, 720, 1024}) {
    const std::int64_t every = stride(comm_operation::all_to_all, ranks, ranks * ranks);
    CHECK(every > 1);
    CHECK(std::int64_t{ranks} * ranks * ranks / every <= std::int64_t{1} << 24);
    CHECK(std::gcd(every, ranks) == 1);
  }
  // Whatever the stride, what is right passes; a fault is found if its item is followed.
  hd::round_builder direct(comm_operation::all_gather, 6, 0, 6, 1);
  for (int r = 0; r < 6; ++r)
    for (int to = 0; to < 6; ++to)
      if (r != to && !(r == 4 && to == 1)) direct.send(0, r, to).block(r);
  const auto table = direct.take();
  const auto ring = hd::algo::ring::rounds<comm_operation::all_reduce>(9, 0);
  for (int every = 1; every < 12; ++every) {
    CAPTURE(every);
    CHECK(hd::detail::round_checker(ring, fold_order::any, every).run().ok());
    const auto fault = hd::detail::round_checker(table, fold_order::none, every).run();
    CHECK(fault.ok() == (4 % every != 0));
    if (!fault.ok()) CHECK((fault.what == round_problem::missing && fault.item == 4 && fault.rank == 1));
  }
}
