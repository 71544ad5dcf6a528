#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/step.hpp>

#include "catch.hpp"

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
}  // namespace

TEST_CASE("a step within its limits is accepted", "[infer]") {
  CHECK_NOTHROW(inf::require_step(two_sequences(), limits));
  CHECK_NOTHROW(inf::require_step(inf::step{}, limits));
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
  CHECK_THAT(refusal([](inf::step& s) { s.wanted = {6}; }), Contains("should ascend below 6, got 6"));
}
