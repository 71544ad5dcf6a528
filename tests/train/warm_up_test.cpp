// tests/train/warm_up_test.cpp: forwards that begin a step, run with weights that turn out wrong, and done again.
#include "catch.hpp"
#include "small_model.hpp"

#include <heddle/schedule/named.hpp>
#include <heddle/schedule/generate/warm_up.hpp>

#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;
using small_model::serial, small_model::gradient_of, small_model::difference, small_model::doubting_hooks;

namespace {

void check(const std::string& name, sc::table_view table, bool wrong, bool blocks) {
  INFO(name << ", p = " << table.ranks() << ", m = " << table.microbatches() << (wrong ? ", done again" : "")
            << (blocks ? ", blocking" : ""));
  const auto expected = serial(table.parts(), table.microbatches());
  const auto hooked = [&](small_model::rank_result& r, std::vector<small_model::stage>& here) {
    return doubting_hooks(r, here, wrong);
  };
  const auto all = small_model::batches(table.microbatches());
  const auto result =
      blocks ? small_model::run_on(
                   table, 0, false, all,
                   [](auto& pipe) {
                     return small_model::blocking<std::remove_cvref_t<decltype(pipe)>>(pipe.split(0, pipe.rank()));
                   },
                   hooked)
             : small_model::run_on(table, 1, true, all, [](auto& pipe) -> auto& { return pipe; }, hooked);
  for (int k = 0; k < table.parts(); ++k)
    CHECK(difference(gradient_of(table, result, k), expected.gradients[static_cast<std::size_t>(k)]) <= 1e-12);
  CHECK(small_model::total_loss(result) == Approx(expected.loss).epsilon(1e-12));
  const sc::action_table lowered = sc::lower(table);
  for (int r = 0; r < table.ranks(); ++r) {
    std::int64_t sends = 0;
    for (const sc::action& a : lowered.view().list(r)) sends += sc::is_send(a.kind) ? 1 : 0;
    CHECK(result[static_cast<std::size_t>(r)].sends == sends);
    CHECK(result[static_cast<std::size_t>(r)].peak_live == sc::peak_live(table, r));
  }
}

}  // namespace

TEST_CASE("forwards that began a step are done again under every schedule",
          "[train][executor][post_validation][ranks]") {
  for (const int p : transport_test::rank_counts({1, 2, 4}))
    for (const auto name : sc::named::names) {
      const sc::named when(name, 2 * p);
      if (!when.fits(p) || (!transport_test::on_threads && p < 4)) continue;
      const sc::action_table table = sc::make_table(when, p);
      for (const bool wrong : {false, true}) check(std::string(name), table, wrong, false);
      check(std::string(name), table, true, true);
    }
}

TEST_CASE("forwards that began a step are done again, on more ranks",
          "[train][executor][post_validation][ranks][slow]") {
  for (const int p : transport_test::rank_counts({3, 6, 8}))
    for (const int m : {p, 2 * p, 3 * p + 1})
      for (const auto name : sc::named::names) {
        const sc::named when(name, m);
        if (!when.fits(p)) continue;
        const sc::action_table table = sc::make_table(when, p);
        for (const bool blocks : {false, true}) check(std::string(name), table, true, blocks);
      }
}
