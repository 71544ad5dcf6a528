// tests/train/nonfinite_test.cpp: a NaN or an infinity stops all ranks, and the error names step and layer.
#include "runs.hpp"

#include "catch.hpp"

#include <heddle/core/error.hpp>

#include <limits>
#include <string>

using namespace train_test;
using Catch::Matchers::Contains;

TEST_CASE("a weight that is not finite is named, with the step", "[train][nonfinite][ranks]") {
  for (const char* mesh : {"", "dp=2,pp=2,tp=2", "pp=3"}) {
    if (!fits(mesh)) continue;
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

TEST_CASE("the layer is found when the last microbatch is empty, and over pp", "[train][nonfinite]") {
  setup s;
  s.layers = 4;
  s.batch = 2;
  s.microbatches = 4;
  s.poison = "h.2.ln_1.weight";
  s.poison_value = 1e30;
  for (const char* mesh : {"", "pp=2"}) {
    INFO("mesh '" << mesh << "'");
    s.mesh = mesh;
    CHECK_THROWS_WITH(train_f32(s), Contains("first in the activations of h.2"));
  }
}

TEST_CASE("where only gradients overflow, the last layer that does is named, on every mesh", "[train][nonfinite]") {
  setup s;
  s.layers = 4;
  // Activations after the head are finite; their product with these weights on the way back is not.
  s.poison = "ln_f.weight";
  s.poison_value = 1e38;
  std::string first;
  for (const char* mesh : {"", "pp=2", "pp=4,tp=2"}) {
    INFO("mesh '" << mesh << "'");
    s.mesh = mesh;
    std::string text;
    try {
      train_f32(s);
    } catch (const heddle::numeric_error& e) {
      text = e.what();
    }
    CHECK_THAT(text, Contains("step 1 stopped") && Contains("first in the "));
    const std::string cause = text.substr(text.find("first in the"), text.rfind(", rank") - text.find("first in the"));
    if (first.empty()) first = cause;
    CHECK(cause == first);
  }
}

TEST_CASE("copies of a weight that differ are named with tensor and rank", "[train][nonfinite][ranks]") {
  struct copies {
    const char* mesh;
    const char* name;
    int rank, zero;
    const char* text;  // "": nobody has a copy
  };
  for (const copies& c : {copies{"dp=3", "h.1.mlp.c_fc.weight", 2, 0, "on rank 2 than on ranks 0, 1"},
                          {"dp=3", "h.1.mlp.c_fc.weight", 0, 1, "on rank 0 than on ranks 1, 2"},
                          {"dp=2", "h.1.mlp.c_fc.weight", 1, 1, "on rank 1 than on rank 0"},
                          {"tp=2", "h.1.ln_1.weight", 1, 1, "on rank 1 than on rank 0"},
                          {"tp=2", "h.1.mlp.c_fc.weight", 1, 1, ""},
                          {"dp=2,pp=2,tp=2", "h.2.ln_1.weight", 6, 1, "on rank 6 than on ranks 2, 3, 7"},
                          {"dp=2,pp=2,tp=2", "h.2.mlp.c_fc.weight", 7, 1, "on rank 7 than on rank 3"}}) {
    if (!fits(c.mesh)) continue;
    INFO("mesh " << c.mesh << ", " << c.name << " on rank " << c.rank);
    setup s;
    s.mesh = c.mesh;
    s.zero = c.zero;
    s.spoilt = c.name;
    s.spoilt_rank = c.rank;
    if (*c.text == '\0')
      CHECK_NOTHROW(train_f64(s));
    else
      CHECK_THROWS_WITH(train_f64(s), Contains("heddle: after 1 steps weight " + std::string(c.name) +
                                               " has other elements " + c.text + ", which should hold copies"));
  }
}

TEST_CASE("validation without held-out samples is refused", "[train]") {
  setup s;
  s.validate_every = 1;
  s.held_out = 0;
  CHECK_THROWS_WITH(train_f64(s), Contains("validation needs held-out samples"));
}

TEST_CASE("a rank that was given other options than the rest ends the run with both", "[train][ranks]") {
  setup s;
  s.mesh = "dp=2,pp=2";
  s.odd_rank = 2;
  CHECK_THROWS_AS(train_f64(s), heddle::config_error);
  CHECK_THROWS_WITH(train_f64(s),
                    Contains("rank 2 has other options than rank 0") && Contains("seed=99") && Contains("seed=1"));
}

TEST_CASE("a step without any target is refused", "[train][nonfinite]") {
  setup s;
  s.ignore_every = 1;
  CHECK_THROWS_AS(train_f64(s), heddle::config_error);
  CHECK_THROWS_WITH(train_f64(s), Contains("step 1 has no target to learn from"));
}
