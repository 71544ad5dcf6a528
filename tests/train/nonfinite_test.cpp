// tests/train/nonfinite_test.cpp: a NaN or an infinity stops all ranks, and the error names step and layer.
#include "runs.hpp"

#include "catch.hpp"

#include <heddle/core/error.hpp>

#include <limits>
#include <string>

using namespace train_test;
using Catch::Matchers::Contains;

TEST_CASE("a weight that is not finite is named, with the step", "[train][nonfinite]") {
  for (const char* mesh : {"", "dp=2,pp=2,tp=2", "pp=3"}) {
    INFO("mesh '" << mesh << "'");
    setup s;
    s.mesh = mesh;
    s.poison = "h.1.mlp.c_fc.weight";
    s.poison_value = std::numeric_limits<double>::quiet_NaN();
    CHECK_THROWS_AS(train_f64(s), heddle::numeric_error);
    CHECK_THROWS_WITH(train_f64(s), Contains("step 1 stopped") &&
                                        Contains("the weight h.1.mlp.c_fc.weight was not finite before the step"));
  }
}

TEST_CASE("a layer whose output overflows is named", "[train][nonfinite]") {
  for (const char* mesh : {"", "dp=2,pp=2,tp=2"}) {
    INFO("mesh '" << mesh << "'");
    setup s;
    s.mesh = mesh;
    s.layers = 4;
    s.poison = "h.2.ln_1.weight";
    s.poison_value = 1e30;  // finite; the product of a query and a key is not
    CHECK_THROWS_WITH(train_f32(s), Contains("step 1 stopped") && Contains("first in the activations of h.2"));
  }
}

TEST_CASE("a step without any target is refused", "[train][nonfinite]") {
  setup s;
  s.ignore_every = 1;
  CHECK_THROWS_AS(train_f64(s), heddle::config_error);
  CHECK_THROWS_WITH(train_f64(s), Contains("step 1 has no target to learn from"));
}
