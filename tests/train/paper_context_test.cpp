// tests/train/paper_context_test.cpp: a step on paper whose ranks share documents sends, holds and computes what one that runs does.
#include "catch.hpp"
#include "paper_comparison.hpp"
#include "random_tokens.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/context.hpp>
#include <heddle/train/paper_rank.hpp>

#include <algorithm>
#include <cstdint>

namespace {
namespace paper_context_test {

namespace hd = heddle;
namespace md = heddle::model;
using hd::cp, hd::dp, hd::pp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<cp>>;
using model = md::llama<float, md::megatron_context<>>;
using strategy = hd::strategy<mesh_type, hd::zero<1>, hd::schedule::named, hd::activations::recompute<>>;
constexpr int context = 24, words = 61;

TEST_CASE("a step on paper sends and computes what one whose ranks share documents does", "[train][paper][ranks]") {
  const md::llama_config c{
      .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 20, .context = context, .vocabulary = words};
  const auto compare = [&](const paper_comparison::strategy_text& s) {
    INFO(s.context);
    paper_comparison::compare<model, strategy>(
        s, c, train_test::random_tokens<context, words>{},
        hd::type_list<hd::type_list<dp>, hd::type_list<pp>, hd::type_list<cp>, hd::type_list<dp, cp>>{});
  };
  compare({"cp=2", "1f1b", 2, "none", 4, true, "kv-ring,zigzag,whole"});
  compare({"cp=4", "1f1b", 2, "none", 4, true, "gather,contiguous,whole"});
  compare({"dp=2,cp=2", "1f1b", 2, "full", 7, true, "kv-ring,contiguous,hybrid"});
  compare({"pp=2,cp=2", "zb-h1", 4, "none", 5, true, "burst,zigzag,flex"});
  compare({"cp=3", "gpipe", 3, "attn.out,keep-tail 1/2", 4, true, "token-ring,striped,whole"});
  compare({"pp=2,cp=2", "interleaved:1", 2, "none", 6, true, "ulysses-2,contiguous,whole"});
  compare({"dp=2", "1f1b", 2, "none", 4, true, ""});
}

TEST_CASE("keys that ranks send each other are counted on paper: by hand", "[train][paper]") {
  hd::train::options<md::llama_config> o;
  o.model = {.layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 20, .context = context, .vocabulary = words};
  o.batch = 2;
  o.microbatches = 2;
  o.schedule = "1f1b";
  o.recompute = "none";
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 0, .total_steps = 0};
  const auto mesh = hd::parse_mesh<mesh_type>("cp=4");
  // 6 rows of 2 heads of 4 elements of keys and of values, in each of 2 blocks: to and from how many ranks.
  const auto forward = [&](const char* how, int rank, int to, int from) {
    INFO(how << ", rank " << rank);
    o.context = how;
    const auto found = hd::train::paper_step<model, strategy>(o, mesh).rank(rank);
    const auto w = std::find_if(found.work.begin(), found.work.end(),
                                [](const auto& a) { return a.kind == hd::schedule::action_kind::forward; });
    REQUIRE(w != found.work.end());
    CHECK(w->samples == 6);
    hd::comm_counters all;
    for (const md::axis_traffic& t : w->traffic) {
      CHECK(t.axes == "cp");
      all = t.counters;
    }
    CHECK(all[hd::comm_operation::send].calls == 2 * to);
    CHECK(all[hd::comm_operation::send].bytes == 2 * to * 6 * 2 * 8 * 4);
    CHECK(all[hd::comm_operation::recv].calls == 2 * from);
    CHECK(all[hd::comm_operation::recv].bytes == 2 * from * 6 * 2 * 8 * 4);
  };
  for (int r = 0; r < 4; ++r) forward("gather,contiguous,whole", r, 3 - r, r);  // later tokens are not seen
  o.microbatches = 1;
  o.rows_per_rank = 6;
  CHECK_THROWS_WITH((hd::train::paper_step<model, strategy>(o, mesh).rank(0)),
                    Catch::Matchers::Contains("need 2 microbatches of 6 rows on each of 4 ranks"));
  o.context = "around";
  CHECK_THROWS_AS((hd::train::paper_step<model, strategy>(o, mesh).rank(0)), hd::config_error);
}

}  // namespace paper_context_test
}  // namespace
