// Activations that are computed again: the bits of kept ones, the memory that the formula says, no work done twice.
#include "catch.hpp"
#include "gpt2_activations.hpp"
#include "support.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/train/activations/recompute.hpp>

using namespace model_test;
namespace act = heddle::activations;

namespace {

/// The host's kernels, counting the products.
struct counting_backend : hd::compute::host<> {
  using base = hd::compute::host<>;
  using base::base;
  int products = 0;
  template <std::derived_from<hd::compute::ops::product_operation> Op, class T, class... V>
    requires hd::compute::offered<Op, base, T>
  void run(const V&... v) {
    ++products;
    hd::compute::run<Op>(static_cast<base&>(*this), v...);
  }
};

template <class Policy>
using stage = md::gpt2_stage<double, alone_world, counting_backend, Policy>;
using chosen = act::recompute<act::none>;

constexpr md::gpt2_config tiny{.layers = 4, .heads = 2, .width = 16, .context = 8, .vocabulary = 24};
constexpr int samples = 2;

struct microbatch {
  std::vector<std::int32_t> tokens, targets;
  int samples;
  md::batch<double> batch() const { return {tokens, targets, samples, 1.0 / 16, 0}; }
};
std::vector<microbatch> some_microbatches(int n) {
  std::vector<microbatch> all;
  for (int i = 0; i < n; ++i) {
    const int rows = i % 2 == 0 ? samples : samples - 1;  // the ends of buffers hold older data
    const auto id = static_cast<std::uint64_t>(2 * i);
    all.push_back({random_ids(rows * tiny.context, tiny.vocabulary, id),
                   random_ids(rows * tiny.context, tiny.vocabulary, id + 1), rows});
  }
  return all;
}

enum class order { one_by_one, all_forwards_first, split, split_late, with_evaluation, ahead, split_ahead };
constexpr order orders[] = {order::one_by_one, order::all_forwards_first, order::split,
                            order::split_late, order::with_evaluation,    order::ahead,
                            order::split_ahead};

struct result {
  std::vector<double> gradients, losses;
  std::int64_t slot_bytes, deferred_bytes, workspace_bytes;
  int products;
};

/// Three microbatches through a whole model on one rank.
template <class Policy>
result run(order how, const typename Policy::template layers<double>::settings& saving = {}) {
  counting_backend backend{1};
  alone_world world;
  stage<Policy> s(tiny, world, backend, md::split_layers(tiny.layers, 0, 1), 3, samples, 3, nullptr, saving);
  s.initialize(3);
  for (double& w : s.weights()) w *= 8;  // norms and softmax far from their linear range
  const auto data = some_microbatches(3);
  std::vector<double> losses;
  const auto forward = [&](int i) {
    s.forward(i, data[static_cast<std::size_t>(i)].batch(), {}, {});
    losses.push_back(s.loss_sum(i));
  };
  const auto batch = [&](int i) { return data[static_cast<std::size_t>(i)].batch(); };
  backend.products = 0;
  for (int step = 0; step < 2; ++step) {  // memory is used again
    if (how == order::with_evaluation) {  // which uses the shared memory, too
      for (int i = 0; i < 3; ++i) forward(i), s.forward_only(batch(1 - i % 2), {}, {}), s.backward(i, batch(i), {}, {});
    } else if (how == order::one_by_one) {
      for (int i = 0; i < 3; ++i) forward(i), s.backward(i, batch(i), {}, {});
    } else if (how == order::split) {
      for (int i = 0; i < 3; ++i) forward(i), s.backward_input(i, batch(i), {}, {}), s.backward_weight(i, batch(i));
    } else {
      for (int i = 0; i < 3; ++i) forward(i);
      for (int i = 0; i < 3; ++i) {
        if (how == order::ahead || how == order::split_ahead) s.recompute(i);
        if (how == order::split_late || how == order::split_ahead)
          s.backward_input(i, batch(i), {}, {});
        else
          s.backward(i, batch(i), {}, {});
      }
      for (int i = 0; i < 3 && (how == order::split_late || how == order::split_ahead); ++i)
        s.backward_weight(i, batch(i));
    }
  }
  return {{s.gradients().begin(), s.gradients().end()},
          losses,
          s.saved_bytes_per_slot(),
          s.deferred_bytes(),
          s.workspace_bytes(),
          backend.products};
}

/// The order of the additions is that of the microbatches in all orders.
void check_same(const result& got, const result& kept) {
  CHECK(got.gradients == kept.gradients);
  CHECK(got.losses == kept.losses);
}

}  // namespace

TEST_CASE("recomputed activations give the gradients of kept ones, bit for bit", "[model][recompute]") {
  for (const order how : orders) {
    CAPTURE(static_cast<int>(how));
    const result kept = run<act::keep>(how);
    // Every set of names alone would be 512 runs: each name, each name left out, and some sets.
    std::vector<std::string> texts{"none", "full", "every 2", "every 3", "every 4", "full,head.logits,ln_f.out"};
    for (std::size_t i = 0; i < md::activation_names.size(); ++i) {
      std::string one(md::activation_names[i]), others;
      for (std::size_t k = 0; k < md::activation_names.size(); ++k)
        if (k != i) (others += others.empty() ? "" : ",") += md::activation_names[k];
      texts.push_back(one);
      texts.push_back(others);
      texts.push_back("every 2," + one);
    }
    const bool all = how == order::all_forwards_first || how == order::split_late;
    for (std::size_t i = 0; i < texts.size(); i += all ? 1 : 3) {
      const std::string& text = texts[i];
      CAPTURE(text);
      typename chosen::layers<double>::settings saving;
      saving.again = md::parse_recompute(text);
      CHECK(md::parse_recompute(md::to_string(saving.again)) == saving.again);
      check_same(run<chosen>(how, saving), kept);
    }
  }
}

TEST_CASE("every set of a block's activations can be computed again", "[model][recompute][slow]") {
  for (const order how : {order::all_forwards_first, order::split_late}) {
    const result kept = run<act::keep>(how);
    for (unsigned bits = 0; bits < 512; ++bits) {
      CAPTURE(static_cast<int>(how), bits);
      typename chosen::layers<double>::settings saving;
      saving.again.named = {bits};
      check_same(run<chosen>(how, saving), kept);
    }
  }
}

TEST_CASE("what is to be computed again is part of a type or read from text", "[model][recompute]") {
  using md::activation;
  using full = act::recompute<act::full>;
  STATIC_REQUIRE(full::again == md::recompute_plan{{}, 1});
  STATIC_REQUIRE(act::recompute<>::again == md::recompute_plan{});
  STATIC_REQUIRE(act::recompute<act::every<3>>::again.every == 3);
  using two = act::recompute<act::keep, act::named<"mlp.hidden", "attn.out">, act::every<2>>;
  STATIC_REQUIRE(two::again.of_block(0) == (md::activation_named("attn.out") | md::activation_named("mlp.hidden")));
  STATIC_REQUIRE(two::again.of_block(1) == md::block_activations);
  STATIC_REQUIRE(!two::again.of_end().any());
  STATIC_REQUIRE(std::is_same_v<two::kept, act::keep>);
  STATIC_REQUIRE(!stage<act::keep>::recomputes);
  STATIC_REQUIRE(stage<full>::recomputes);
  CHECK(md::to_string(two::again) == "every 2,attn.out,mlp.hidden");
  CHECK(md::to_string(md::recompute_plan{}) == "none");
  CHECK(md::parse_recompute("full").every == 1);
  CHECK_THROWS_WITH(md::parse_recompute("attention"), Catch::Matchers::Contains("heddle: recompute \"attention\"") &&
                                                          Catch::Matchers::Contains("attn.out, mid"));
  CHECK_THROWS_WITH(md::activation_named("mlp.hiden"),
                    Catch::Matchers::Contains("heddle: there is no activation \"mlp.hiden\"; there are ln_1.out") &&
                        Catch::Matchers::Contains("mlp.hidden"));
  CHECK_THROWS_WITH(md::parse_recompute("every 0"), Catch::Matchers::Contains("every how many blocks"));
  CHECK_THROWS_WITH(md::parse_recompute("every 2x"), Catch::Matchers::Contains("every how many blocks"));
  const md::recompute_plan first = md::parse_recompute("first 20,head.logits");
  CHECK(first.of_block(19) == md::block_activations);
  CHECK(first.of_block(20) == md::activation_set{});
  CHECK(first.of_end() == md::activation_named("head.logits"));
  CHECK(md::to_string(first) == "first 20,head.logits");
  CHECK(md::parse_recompute("first 3,every 2").all_of_block(3));
  CHECK(md::parse_recompute("first 2,keep-tail 1/2").keeps_tail(1));
  for (const char* text : {"first 0", "first -1", "first 2x", "first "})
    CHECK_THROWS_WITH(md::parse_recompute(text), Catch::Matchers::Contains("the first how many blocks"));
  CHECK(md::parse_recompute("full,keep-tail 1/2") == md::recompute_plan{{}, 1, {1, 2}});
  CHECK(md::to_string(md::parse_recompute("keep-tail 2/3,attn.out")) == "keep-tail 2/3,attn.out");
  for (const char* text :
       {"full,keep-tail 1", "full,keep-tail 0/2", "full,keep-tail 3/2", "full,keep-tail 1/2x", "full,keep-tail a/2"})
    CHECK_THROWS_WITH(md::parse_recompute(text), Catch::Matchers::Contains("which share of the rows is kept"));
  CHECK_THROWS_WITH(md::parse_recompute("keep-tail 1/2,mid"), Catch::Matchers::Contains("where it is dropped"));

  const result kept = run<act::keep>(order::split_late);
  check_same(run<full>(order::split_late), kept);
}

TEST_CASE("a slot holds what the formula says", "[model][recompute]") {
  constexpr std::int64_t rows = samples * tiny.context, line = 8;
  const model_test::block_extents e{tiny.width, tiny.heads, tiny.head_dim(), tiny.hidden()};
  const result kept = run<act::keep>(order::one_by_one);
  for (const std::string text : {"none", "full", "every 2", "mlp.hidden", "mlp.activated,ln_2.out", "attn.qkv,attn.out",
                                 "mid,ln_1.out", "full,head.logits", "ln_f.out"}) {
    CAPTURE(text);
    typename chosen::layers<double>::settings saving;
    saving.again = md::parse_recompute(text);
    const result got = run<chosen>(order::split_late, saving);
    std::int64_t saved = 0, waiting = 0;
    for (int l = 0; l < tiny.layers; ++l) {
      saved += model_test::kept_elements(e, saving.again.of_block(l));
      waiting += model_test::recomputed_for_weights(e, saving.again.of_block(l));
    }
    const bool normed = saving.again.named.has(md::activation::ln_f_out);
    const bool logits = saving.again.named.has(md::activation::head_logits);
    const std::int64_t of_normed = tiny.width + 2, of_logits = tiny.vocabulary;
    // The stream behind the last block; three numbers per token for the loss.
    saved += tiny.width + 3 + (normed ? 0 : of_normed) + (logits ? 0 : of_logits);
    waiting += (normed ? of_normed : 0) + (logits ? of_logits : 0);
    REQUIRE(rows % line == 0);  // no ends of cache lines
    CHECK(got.slot_bytes == saved * rows * 8);
    CHECK(got.deferred_bytes == kept.deferred_bytes + waiting * rows * 8);
    // Blocks share the memory of the passes without backward; only the end needs some.
    CHECK(got.workspace_bytes ==
          kept.workspace_bytes + ((normed ? of_normed : 0) + (logits ? of_logits : 0)) * rows * 8);
  }
  CHECK(model_test::kept_elements(e, {}) == 16 * tiny.width + 4 + tiny.heads);
  CHECK(model_test::kept_elements(e, md::block_activations) == tiny.width);
}

TEST_CASE("recompute needs a forward before it", "[model][recompute]") {
  counting_backend backend{1};
  alone_world world;
  stage<act::recompute<act::full>> s(tiny, world, backend, md::split_layers(tiny.layers, 0, 1), 1, samples);
  CHECK_THROWS_WITH(s.recompute(0), Catch::Matchers::Contains("heddle: recompute of slot 0 before its forward"));
  CHECK(s.recomputed() == md::recompute_plan{{}, 1});
}

TEST_CASE("everything is computed again once", "[model][recompute]") {
  typename chosen::layers<double>::settings full, products;
  full.again = md::parse_recompute("full");
  // A block's products: qkv, projection, hidden units; its last is never needed. The end's: the logits.
  const int microbatches = 2 * 3, blocks = tiny.layers;
  for (const order how : orders) {
    CAPTURE(static_cast<int>(how));
    const int kept = run<act::keep>(how).products;
    // A backward right behind its forward finds the last block and the end as the forward left them; an evaluation
    // between the two only the end.
    const bool behind = how == order::one_by_one || how == order::split;
    const int block_there = behind ? microbatches : 0;
    const int end_there = behind || how == order::with_evaluation ? microbatches : 0;
    CHECK(run<chosen>(how, full).products == kept + 3 * (microbatches * blocks - block_there));
    products.again = md::parse_recompute("head.logits");
    CHECK(run<chosen>(how, products).products == kept + microbatches - end_there);
    products.again = md::parse_recompute("mlp.activated,ln_1.out,ln_2.out,attn.out");
    CHECK(run<chosen>(how, products).products == kept);  // none of these is one
  }
}
