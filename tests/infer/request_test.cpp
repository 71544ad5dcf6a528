#include <heddle/infer/event.hpp>
#include <heddle/infer/request.hpp>

#include "catch.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace inf = heddle::infer;

namespace {
// Field and text of the error of a request that `change` made.
template <class Change>
std::pair<std::string, std::string> refused(Change&& change) {
  inf::request r{.prompt = {1, 2, 3}};
  change(r);
  try {
    inf::require_request(r, 10, 8);
  } catch (const inf::request_error& e) {
    return {e.field(), e.what()};
  }
  return {"", "accepted"};
}
using pair = std::pair<std::string, std::string>;
}  // namespace

TEST_CASE("a request within its ranges is accepted", "[infer][request]") {
  CHECK(refused([](inf::request&) {}).second == "accepted");
  CHECK(refused([](inf::request& r) {
          r.prompt.assign(7, 9);
          r.sampling = {.temperature = 0, .top_k = 100, .top_p = 0.01, .min_p = 1, .frequency_penalty = -2};
          r.log_probabilities = 10;
          r.stop_tokens = {0, 9};
        }).second == "accepted");
}

TEST_CASE("a prompt that leaves no room names its tokens and the context", "[infer][request][error]") {
  try {
    inf::require_request({.prompt = std::vector<std::int32_t>(8, 1)}, 10, 8);
    FAIL("accepted");
  } catch (const inf::context_error& e) {
    CHECK(e.prompt_tokens() == 8);
    CHECK(e.context() == 8);
    CHECK(e.field() == "prompt");
  }
}

TEST_CASE("values out of range are named with what was expected and got", "[infer][request][error]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused([](inf::request& r) { r.prompt = {}; }) ==
        pair{"prompt", "heddle: a request's prompt: it should have at least one token, got none"});
  CHECK(refused([](inf::request& r) { r.prompt[1] = 10; }) ==
        pair{"prompt", "heddle: a request's prompt: token 10 is not in the vocabulary of 10"});
  CHECK(refused([](inf::request& r) { r.stop_tokens = {-1}; }).first == "stop_tokens");
  CHECK(refused([](inf::request& r) { r.max_tokens = 0; }) ==
        pair{"max_tokens", "heddle: a request's max_tokens: should be at least 1, got 0"});
  CHECK(refused([](inf::request& r) { r.log_probabilities = 11; }).first == "log_probabilities");
  CHECK(refused([](inf::request& r) { r.sampling.temperature = -0.5; }) ==
        pair{"temperature", "heddle: a request's temperature: should be a finite number of at least 0, got -0.5"});
  CHECK(refused([&](inf::request& r) { r.sampling.temperature = nan; }).first == "temperature");
  CHECK(refused([](inf::request& r) { r.sampling.top_k = -1; }).first == "top_k");
  CHECK(refused([](inf::request& r) { r.sampling.top_p = 0; }).first == "top_p");
  CHECK(refused([&](inf::request& r) { r.sampling.top_p = nan; }).first == "top_p");
  CHECK(refused([](inf::request& r) { r.sampling.min_p = 1.5; }).first == "min_p");
  CHECK(refused([](inf::request& r) { r.sampling.repetition_penalty = 0; }).first == "repetition_penalty");
  CHECK(refused([&](inf::request& r) { r.sampling.frequency_penalty = nan; }).first == "frequency_penalty");
  CHECK(refused([&](inf::request& r) { r.sampling.presence_penalty = nan; }).first == "presence_penalty");
}

TEST_CASE("every reason for an end has a name, and what is none has that of none", "[infer]") {
  STATIC_REQUIRE(inf::to_string(inf::finish_reason::error) == "error");
  STATIC_REQUIRE(inf::to_string(static_cast<inf::finish_reason>(9)) == "none");
  STATIC_REQUIRE(inf::to_string(static_cast<inf::finish_reason>(-1)) == "none");
}
