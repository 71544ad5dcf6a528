#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/capability.hpp>
#include <heddle/infer/step.hpp>
#include <heddle/infer/step_message.hpp>
#include <heddle/infer/step_rows.hpp>
#include <heddle/model/layers/cached_traits.hpp>
#include <heddle/model/reach.hpp>

#include "catch.hpp"

#include <algorithm>
#include <concepts>
#include <span>
#include <string>
#include <vector>

namespace inf = heddle::infer;

namespace {
constexpr inf::step_limits limits{.vocabulary = 10, .context = 8, .block_rows = 4, .blocks = 3, .max_rows = 6};

// Five rows of a prompt behind a sequence that decodes.
inf::step two_sequences() {
  return {.tokens = {1, 2, 3, 4, 5, 6},
          .sequences = {{.first_row = 0, .rows = 1, .position = 3, .first_block = 0, .blocks = 1},
                        {.first_row = 1, .rows = 5, .position = 0, .first_block = 1, .blocks = 2}},
          .blocks = {2, 0, 1},
          .wanted = {0, 5}};
}

template <class Change>
std::string refusal(Change&& change) {
  inf::step s = two_sequences();
  change(s);
  try {
    inf::require_step(s, limits);
  } catch (const heddle::config_error& e) {
    return e.what();
  }
  return "accepted";
}

struct counting_runner {
  using scalar = float;
  int calls = 0;
  inf::step_limits limits() const { return {.vocabulary = 3, .context = 5}; }
  void run(const inf::step& s, std::span<float> logits) {
    ++calls;
    for (float& x : logits) x = static_cast<float>(s.rows());
  }
};
struct runner_without_limits {
  using scalar = float;
  void run(const inf::step&, std::span<float>) {}
};
static_assert(inf::step_runner<counting_runner> && !inf::step_runner<runner_without_limits>);

// A runner that sees both ways is no `any_runner`, whose engine would decode token by token.
struct both_ways_runner : counting_runner {
  using capabilities = inf::capabilities<inf::window_rows>;
};
static_assert(std::constructible_from<inf::any_runner<float>, counting_runner&>);
static_assert(!std::constructible_from<inf::any_runner<float>, both_ways_runner&>);
static_assert(std::constructible_from<inf::any_runner<float, inf::capabilities<inf::window_rows>>, both_ways_runner&>);

namespace reaches {
struct plain {};
struct masked {
  using reach = heddle::model::everything;
};
struct masked_with_more {
  using base = masked;
};
struct block_wise {
  using reach = heddle::model::blocks<32>;
};
static_assert(std::same_as<heddle::model::reach_of<plain>, heddle::model::earlier>);
static_assert(std::same_as<heddle::model::reach_of<masked_with_more>, heddle::model::everything>);
static_assert(std::same_as<heddle::model::reach_of<block_wise>, heddle::model::blocks<32>>);
}  // namespace reaches

namespace kept {
namespace layers = heddle::model::layers;
using columns = heddle::model::dims<heddle::dim::width>;
struct keys_of {};
template <bool Keeps, bool Window, bool State, class... Children>
struct layer {
  static constexpr const char* name = "";
  static constexpr bool has_window = Window;
  layers::list<Children...> inner;
  static constexpr layers::list<> parameters() { return {}; }
  static constexpr layers::list<> activations() { return {}; }
  constexpr auto children() const { return inner; }
  constexpr auto cached_tensors() const
    requires Keeps
  {
    return layers::list(layers::cached<keys_of, columns>{{4}});
  }
  constexpr auto state_tensors() const
    requires State
  {
    return layers::list(1);
  }
};
using plain_layer = layer<false, false, false>;
using all = layers::cached_traits<layer<true, false, false>>;
using window = layers::cached_traits<layer<true, true, false>>;
using both = layers::cached_traits<layer<false, false, false, layer<true, true, false>, layer<false, false, true>>>;
static_assert(!layers::cached_traits<plain_layer>::sees_all && !layers::cached_traits<plain_layer>::has_states);
static_assert(all::sees_all && !all::windows && !all::has_states);
static_assert(window::windows && !window::sees_all && !window::has_states);
static_assert(both::windows && both::has_states && !both::sees_all);
}  // namespace kept
}  // namespace

TEST_CASE("a step within its limits is accepted", "[infer]") {
  CHECK_NOTHROW(inf::require_step(two_sequences(), limits));
  CHECK_NOTHROW(inf::require_step(inf::step{}, limits));
}

TEST_CASE("rows of a step everywhere see the keys of their sequence, and entries of a block those up to its end",
          "[infer]") {
  inf::step s = two_sequences();
  s.everywhere = true;
  s.sequences[0].keys = 4;
  s.sequences[1].keys = 7;
  CHECK_NOTHROW(inf::require_step(s, limits));
  inf::step_rows rows;
  rows.prepare(s, limits.block_rows);
  using heddle::compute::slice_mask;
  REQUIRE(rows.slices().size() == 2);
  CHECK((rows.slices()[0].k_begin == 0 && rows.slices()[0].k_end == 4));
  CHECK((rows.slices()[1].k_begin == 4 && rows.slices()[1].k_end == 11));
  for (const heddle::compute::attention_slice& a : rows.slices()) CHECK(a.mask == slice_mask::full);

  s = {.tokens = {1, 2, 3, 4},  // one prompt in entries of two rows
       .sequences = {{.first_row = 0, .rows = 2, .position = 0, .first_block = 0, .blocks = 1},
                     {.first_row = 2, .rows = 2, .position = 2, .first_block = 0, .blocks = 1}},
       .blocks = {2},
       .wanted = {3},
       .everywhere = true};
  CHECK_NOTHROW(inf::require_step(s, limits));
  rows.prepare(s, limits.block_rows);
  CHECK((rows.slices()[0].k_end == 2 && rows.slices()[1].k_end == 4));
}

TEST_CASE("a step's message holds all of it", "[infer]") {
  inf::step s = two_sequences();
  s.everywhere = true;
  s.sequences[0].keys = 4;
  s.sequences[1].state = 2;
  s.state_copies = {{2, 0}, {1, 2}};
  for (const bool streams : {false, true}) {
    s.streams = streams;
    inf::step_message sent, got;
    sent.write(s);
    std::ranges::copy(sent.head(), got.head().begin());
    got.make_room();
    REQUIRE(got.body().size() == sent.body().size());
    std::ranges::copy(sent.body(), got.body().begin());
    inf::step read;
    got.read(read);
    CHECK(read == s);
  }
}

TEST_CASE("a runner without its type is the runner", "[infer]") {
  counting_runner runner;
  inf::any_runner any(runner);
  static_assert(std::same_as<decltype(any), inf::any_runner<float>> && inf::step_runner<decltype(any)>);
  CHECK(any.limits() == runner.limits());
  std::vector<float> logits(3);
  any.run(two_sequences(), logits);
  inf::any_runner copy = any;  // of the reference
  copy.run(two_sequences(), {});
  CHECK(runner.calls == 2);
  CHECK(logits == std::vector<float>{6, 6, 6});
}

TEST_CASE("a step that breaks a limit is refused with expected and got", "[infer][error]") {
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal([](inf::step& s) { s.tokens.push_back(1); }), Contains("it has 7 rows, at most 6"));
  CHECK_THAT(refusal([](inf::step& s) { s.tokens.pop_back(); }),
             Contains("its sequences have 6 rows, it has 5 tokens"));
  CHECK_THAT(refusal([](inf::step& s) { s.tokens[0] = 10; }), Contains("token 10 is not in the vocabulary of 10"));
  CHECK_THAT(refusal([](inf::step& s) { s.tokens[0] = -1; }), Contains("token -1"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[1].first_row = 2; }),
             Contains("from row 1 on, got 5 rows from row 2 on"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[0].rows = 0; }), Contains("got 0 rows from row 0 on"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[1].position = 4; }),
             Contains("5 rows at position 4, the context has 8"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[0].position = -1; }), Contains("at position -1"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[0].position = 4; }),
             Contains("sequence 0 needs 2 blocks of the cache, got 1"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[1].first_block = 2; }), Contains("got 2 from entry 2 of 3 on"));
  CHECK_THAT(refusal([](inf::step& s) { s.blocks[1] = 3; }), Contains("block 3 is not one of the cache's 3"));
  CHECK_THAT(refusal([](inf::step& s) { s.copies = {{0, 3}}; }), Contains("block 0 cannot be copied to block 3"));
  CHECK_THAT(refusal([](inf::step& s) { s.wanted = {5, 5}; }), Contains("got 5 after 5"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[0].keys = 5; }), Contains("or in a step everywhere 4 to 8, got 5"));
  CHECK_THAT(refusal([](inf::step& s) {
               s.everywhere = true;
               s.sequences[0].keys = 9;
             }),
             Contains("got 9"));
  CHECK_THAT(refusal([](inf::step& s) {
               s.everywhere = true;
               s.sequences[0].keys = 5;
             }),
             Contains("sequence 0 needs 2 blocks of the cache, got 1"));
  CHECK_THAT(refusal([](inf::step& s) {
               s.everywhere = true;
               s.parents = {-1, -1, 0, 1, 2, 3};
             }),
             Contains("it should not be everywhere"));
  CHECK_THAT(refusal([](inf::step& s) { s.sequences[1].state = 0; }), Contains("one of the 0 states, which is none"));
  inf::step_limits kept{.vocabulary = 9, .context = 8, .block_rows = 4, .blocks = 3, .max_rows = 8, .states = 2};
  inf::step two;
  two.tokens = {1, 2};
  two.sequences = {{.first_row = 0, .rows = 1, .blocks = 1, .state = 1},
                   {.first_row = 1, .rows = 1, .first_block = 1, .blocks = 1, .state = 1}};
  two.blocks = {0, 1};
  CHECK_THROWS_WITH(inf::require_step(two, kept), Contains("a state of its own, got state 1 twice"));
  two.sequences[1].state = 0;
  inf::require_step(two, kept);
  kept.trees = false;
  two.parents = {-1, -1};
  CHECK_THROWS_WITH(inf::require_step(two, kept), Contains("do not form trees, so it should have no parents"));
  CHECK_THAT(refusal([](inf::step& s) { s.wanted = {6}; }), Contains("should ascend below 6, got 6"));
}
