// tests/train/gpt2_memory_test.cpp: the formula of GPT-2's activations against what a trainer counts.
#include "catch.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/language_memory.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace sc = heddle::schedule;
namespace tr = heddle::train;
namespace act = heddle::activations;
using hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
template <class Model, class Activations, class World>
using trainer_of = tr::trainer<Model, hd::strategy<mesh_type, sc::tabled, hd::zero<1>, Activations>, World>;

constexpr md::gpt2_config settings{.layers = 5, .heads = 4, .width = 20, .context = 7, .vocabulary = 33};
template <int Stages, int Tp = 1>
struct shape {
  static constexpr md::gpt2_config config = settings;
  static constexpr int stages = Stages;
  static constexpr int tp = Tp;
  static constexpr std::int64_t samples = 3;
};

using tokens = train_test::random_tokens<settings.context, settings.vocabulary, 0>;

struct counted {
  tr::activation_bytes bytes;
  std::int64_t saved = 0, waiting = 0, scratch = 0;  // by the formula
  std::int64_t stored = 0, stored_formula = 0;
  std::int64_t peak = 0;  // of one stage: slots that were in use in the run
};
template <class Policy, class Formula, class Model = md::gpt2<double>>
std::vector<counted> run(const std::string& mesh_text, const std::string& schedule, int m, const std::string& again) {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  tr::options<md::gpt2_config> o;
  o.model = settings;
  o.batch = 3 * m * mesh.template extent<dp>();
  o.microbatches = m;
  o.steps = 1;
  o.threads_per_rank = 1;
  o.recompute = again;
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), m));
  std::vector<counted> all(static_cast<std::size_t>(mesh.size()));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    counted& c = all[static_cast<std::size_t>(world.rank())];
    trainer_of<Model, Policy, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    trainer.step(tokens{});
    c.bytes = trainer.activation_bytes();
    const Formula formula;
    const auto plan = trainer.plan();
    for (int k = 0; k < trainer.stages(); ++k) {
      const int s = trainer.held(k).index;
      c.saved += plan.storage.slots(s) * formula.activation_bytes(s);
      c.waiting += tr::detail::most_deferred(plan.table.list(trainer.pipeline_group().rank()), s) * formula.deferred_bytes(s);
      c.scratch += formula.resident_bytes(s);
      c.peak += formula.activation_bytes(s);
      if constexpr (requires { trainer.stage(k).saved_layers().report(); })
        c.stored += trainer.stage(k).saved_layers().report().tensors.bytes_stored;
      for (const sc::action& a : plan.table.list(trainer.pipeline_group().rank()))
        if (a.kind == sc::action_kind::forward && a.stage == s) c.stored_formula += formula.offload_bytes(s);
    }
    c.peak *= trainer.counters().peak_live;
  });
  return all;
}

// What a trainer told at start-up counts, and the formula of the policy that says the same.
template <int Stages, int Tp, class Model, class... Whats>
void check_model(const std::string& mesh, const std::string& schedule, int m, const std::string& again) {
  INFO("\"" << again << "\" on " << mesh << ", " << schedule);
  using formula = tr::language_memory<Model, shape<Stages, Tp>, act::recompute<Whats...>>;
  const std::vector<counted> all = run<act::recompute<act::none>, formula, Model>(mesh, schedule, m, again);
  for (std::size_t r = 0; r < all.size(); r += Tp) {  // the first along tp has the most
    const counted& c = all[r];
    CHECK(c.bytes.saved == c.saved);
    CHECK(c.bytes.waiting == c.waiting);
    CHECK(c.bytes.scratch == c.scratch);
    if (schedule == "1f1b") CHECK(c.bytes.saved == c.peak);  // and as many were in use
  }
}

template <int Stages, int Tp, class... Whats>
void check(const std::string& mesh, const std::string& schedule, int m, const std::string& again) {
  check_model<Stages, Tp, md::gpt2<double>, Whats...>(mesh, schedule, m, again);
}

// GPT-2 of 774 million parameters on four ranks, one sample of 1,024 tokens in a microbatch.
struct large_on_four {
  static constexpr md::gpt2_config config = md::gpt2_774m();
  static constexpr int stages = 4;
  static constexpr std::int64_t samples = 1;
};
template <class... Whats>
using recomputing = tr::gpt2_memory<float, large_on_four, act::recompute<Whats...>>;
using keeping = tr::gpt2_memory<float, large_on_four>;
using storing =
    tr::gpt2_memory<float, large_on_four,
                    act::offload<act::memory_store, act::amount::all, act::prefetch::ahead<1>, act::min_bytes<0>>>;
using four = hd::mesh<hd::axis<pp, 4>>;
using when = sc::one_f_one_b<hd::microbatches<8>>;

}  // namespace

TEST_CASE("a trainer counts the bytes of the formula, whatever is computed again", "[train][memory]") {
  check<2, 1>("pp=2", "1f1b", 4, "none");
  check<2, 1, act::full>("pp=2", "1f1b", 4, "full");
  check<2, 1, act::every<2>>("dp=2,pp=2", "1f1b", 4, "every 2");
  check<2, 1, act::named<"attn.out", "mlp.hidden", "mlp.activated">>("pp=2", "zb-h1", 4,
                                                                     "attn.out,mlp.hidden,mlp.activated");
  check<4, 1, act::full, act::named<"ln_f.out", "head.logits">>("pp=2", "zb-v", 4, "full,ln_f.out,head.logits");
  check<4, 1, act::named<"ln_1.out", "attn.qkv", "mid", "ln_2.out">>("pp=2", "interleaved:2", 4,
                                                                     "ln_1.out,attn.qkv,mid,ln_2.out");
  check<1, 1, act::every<3>>("", "1f1b", 2, "every 3");
  check<2, 2, act::named<"attn.qkv", "head.logits">>("pp=2,tp=2", "1f1b", 4, "attn.qkv,head.logits");
  check<7, 1>("pp=7", "1f1b", 8, "none");  // stages without blocks
}

TEST_CASE("a trainer counts the bytes of the formula where logits are made some words at a time", "[train][memory]") {
  using chunked = md::with_chunked_loss<md::gpt2<double>, 5>;
  check_model<2, 2, chunked>("pp=2,tp=2", "1f1b", 4, "none");
  check_model<4, 1, chunked, act::full, act::named<"ln_f.out", "head.logits">>("pp=2", "zb-v", 4,
                                                                               "full,ln_f.out,head.logits");
  // What the head keeps of a microbatch: the logits of all rows less.
  using whole = tr::gpt2_memory<float, large_on_four>;
  using some = tr::language_memory<md::with_chunked_loss<md::gpt2<float>, 4096>, large_on_four>;
  constexpr std::int64_t rows = large_on_four::config.context, words = large_on_four::config.vocabulary;
  const std::int64_t less = whole{}.activation_bytes(3) - some{}.activation_bytes(3);
  CHECK(less == rows * words * 4 + rows * 4);  // and the logit of the target
  // And of validation, sample by sample.
  CHECK(whole{}.resident_bytes(3) - some{}.resident_bytes(3) > rows * (words - 2 * 4096) * 4);
}

TEST_CASE("a trainer counts the bytes of the formula, what is stored elsewhere, too", "[train][memory]") {
  using policy = act::offload<act::memory_store, act::amount::first<2>, act::prefetch::ahead<1>, act::min_bytes<0>>;
  using formula = tr::gpt2_memory<double, shape<2>, policy>;
  for (const counted& c : run<policy, formula>("pp=2", "gpipe", 4, "")) {
    CHECK(c.bytes.saved == c.saved);
    CHECK(c.stored == c.stored_formula);
    CHECK(c.stored > 0);
  }
}

TEST_CASE("whether GPT-2 fits is known to the compiler", "[train][memory]") {
  constexpr std::int64_t needed = sc::memory_of<when, 4, keeping>.bytes;
  STATIC_REQUIRE(sc::fits<when, four, keeping, needed>);
  STATIC_REQUIRE_FALSE(sc::fits<when, four, keeping, needed - 1>);
  // The first rank holds four microbatches of nine blocks, and more.
  STATIC_REQUIRE(needed > 4 * keeping{}.activation_bytes(0));
  // Recomputation leaves the inputs of the blocks.
  constexpr std::int64_t less = sc::memory_of<when, 4, recomputing<act::full, act::named<"head.logits">>>.bytes;
  STATIC_REQUIRE(needed - less > 2 * keeping{}.activation_bytes(0));
  STATIC_REQUIRE(sc::fits<when, four, recomputing<act::full, act::named<"head.logits">>, less>);
  STATIC_REQUIRE_FALSE(sc::fits<when, four, recomputing<act::every<2>>, less>);
  // Offloading leaves those of about four microbatches: computed, on their way there and back, used.
  using all_first = sc::gpipe<hd::microbatches<8>>;
  using sc::passes::merge_backward, sc::passes::offload;
  constexpr std::int64_t all = sc::memory_of<all_first, 4, keeping>.bytes;
  constexpr std::int64_t stored = sc::memory_of<all_first, 4, storing, merge_backward, offload<>>.bytes;
  STATIC_REQUIRE(all - stored > 3 * keeping{}.activation_bytes(0));
  STATIC_REQUIRE(sc::fits<all_first, four, storing, stored, merge_backward, offload<>>);
  STATIC_REQUIRE_FALSE(sc::fits<all_first, four, storing, stored>);  // nothing is stored where the table has no OFFLOAD
  // An amount that is decided in the run is no promise.
  using adapting = tr::gpt2_memory<float, large_on_four, act::offload<act::memory_store>>;
  STATIC_REQUIRE(adapting{}.offload_bytes(0) == 0);
  STATIC_REQUIRE(storing{}.offload_bytes(1) == storing{}.activation_bytes(1));
}
