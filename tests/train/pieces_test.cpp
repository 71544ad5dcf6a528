// tests/train/pieces_test.cpp: learning rate, options, drawing tokens, progress lines.
#include "catch.hpp"

#include <heddle/core/error.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/train/glancing_distillation.hpp>
#include <heddle/train/learning_rate.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/sampling.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace heddle::train;
using Catch::Matchers::Contains;

TEST_CASE("the learning rate warms up in a line and then follows a cosine", "[train][learning_rate]") {
  const warmup_cosine rate{.peak = 1.0, .minimum = 0.1, .warmup_steps = 4, .total_steps = 14};
  for (int t = 0; t < 4; ++t) CHECK(rate(t) == Approx((t + 1) / 4.0));
  CHECK(rate(4) == Approx(1.0));
  CHECK(rate(9) == Approx(0.55));  // half-way down
  CHECK(rate(14) == 0.1);
  CHECK(rate(1000) == 0.1);
  for (int t = 4; t < 14; ++t) CHECK(rate(t + 1) < rate(t));
  CHECK(warmup_cosine{.peak = 2.0, .warmup_steps = 0, .total_steps = 1}(0) == 2.0);
}

TEST_CASE("settings of sampling and distillation that cannot work are refused by name", "[train][options]") {
  const double no_number = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const auto refused = [](const auto& o, const char* text) {
    CHECK_THROWS_AS(o.validate(), heddle::config_error);
    CHECK_THROWS_WITH(o.validate(), Contains(text));
  };
  CHECK_NOTHROW(sampling_options{.tokens = 0, .temperature = 0}.validate());
  refused(sampling_options{.tokens = -1}, "tokens must be at least 0, got -1");
  refused(sampling_options{.temperature = -0.5}, "temperature must be at least 0, got -0.5");
  refused(sampling_options{.temperature = no_number}, "temperature must be at least 0, got nan");

  using o = distillation_options;
  CHECK_NOTHROW(o{.clip_norm = infinite, .glance = 1, .noise = 0, .divergence_weight = 0}.validate());
  refused(o{.epochs = 0}, "epochs must be at least 1, got 0");
  refused(o{.batch = 0}, "batch must be at least 1, got 0");
  refused(o{.learning_rate = {.peak = -1}}, "the learning rate must be a finite number >= 0");
  refused(o{.beta1 = 1}, "beta1 must be in [0, 1), got 1");
  refused(o{.beta2 = no_number}, "beta2 must be in [0, 1), got nan");
  refused(o{.clip_norm = 0}, "clip_norm must be positive");
  refused(o{.weight_decay = -1}, "weight_decay must be at least 0 and finite");
  refused(o{.glance = 1.5}, "glance must be from 0 to 1, got 1.5");
  refused(o{.noise = infinite}, "noise must be at least 0 and finite, got inf");
  refused(o{.head_weight = -1}, "head_weight must be at least 0 and finite, got -1");
  refused(o{.divergence_weight = no_number}, "divergence_weight must be from 0 to 1, got nan");
}

TEST_CASE("settings that cannot work are refused by name", "[train][options]") {
  using options_type = options<heddle::model::gpt2_config>;
  const auto refused = [](auto change, const char* text) {
    options_type o;
    change(o);
    CHECK_THROWS_AS(o.validate(), heddle::config_error);
    CHECK_THROWS_WITH(o.validate(), Contains(text));
  };
  CHECK_NOTHROW(options_type{}.validate());
  refused([](auto& o) { o.batch = 0; }, "batch must be 1 to 1048576, got 0");
  refused([](auto& o) { o.batch = std::int64_t{1} << 62; }, "batch must be 1 to 1048576, got 4611686018427387904");
  refused([](auto& o) { o.steps = std::int64_t{1} << 62; }, "steps must be 0 to 1000000000000, got");
  refused([](auto& o) { o.microbatches = -1; }, "microbatches must be");
  refused([](auto& o) { o.steps = -1; }, "steps must be 0 to 1000000000000, got -1");
  refused([](auto& o) { o.clip_norm = 0; }, "clip_norm must be positive");
  refused([](auto& o) { o.clip_norm = std::nan(""); }, "clip_norm must be positive");
  refused([](auto& o) { o.adamw.beta1 = 1; }, "beta1 must be in [0, 1)");
  refused([](auto& o) { o.adamw.beta2 = -0.1; }, "beta2 must be in [0, 1)");
  refused([](auto& o) { o.adamw.epsilon = 0; }, "epsilon must be positive");
  refused([](auto& o) { o.adamw.weight_decay = -1; }, "weight_decay must be at least 0");
  refused([](auto& o) { o.adamw.rates = {{"wte", -2}}; },
          "rates must be at least 0 and finite, got -2 for 'wte'");
  const double infinite = std::numeric_limits<double>::infinity();
  refused([&](auto& o) { o.adamw.epsilon = infinite; }, "epsilon must be positive and finite, got inf");
  refused([&](auto& o) { o.adamw.weight_decay = infinite; }, "weight_decay must be at least 0 and finite, got inf");
  refused([&](auto& o) { o.learning_rate.peak = infinite; }, "learning rate must be a finite number");
  refused([&](auto& o) { o.model.epsilon = infinite; }, "epsilon must be positive and finite");
  refused([&](auto& o) { o.model.initial_deviation = infinite; }, "initial_deviation must be a finite number >= 0");
  refused([](auto& o) { o.threads_per_rank = -1; }, "threads_per_rank must be at least 0");
  refused([](auto& o) { o.validate_every = -1; }, "validate_every must be at least 0");
  refused([](auto& o) { o.learning_rate.peak = -1; }, "learning rate must be a finite number");
  refused([](auto& o) { o.learning_rate.minimum = 1; }, "minimum learning rate must be in [0, peak");
  refused([](auto& o) { o.learning_rate.warmup_steps = -1; }, "warm-up and total steps");
  refused([](auto& o) { o.model.heads = 5; }, "heads");
  options_type unlimited;
  unlimited.clip_norm = infinite;
  CHECK_NOTHROW(unlimited.validate());
}

TEST_CASE("the words of options tell all settings that change a run apart", "[train][options]") {
  using options_type = options<heddle::model::gpt2_config>;
  const auto text_of = [](auto change) {
    options_type o;
    change(o);
    return to_string(o);
  };
  std::vector<std::string> texts{to_string(options_type{})};
  for (const double x : {1e-8, 1.0000001e-8, 2e-7}) texts.push_back(text_of([&](auto& o) { o.model.epsilon = x; }));
  for (const double x : {0.0, 0.1, 0.1000000001})
    texts.push_back(text_of([&](auto& o) { o.model.initial_deviation = x; }));
  texts.push_back(text_of([](auto& o) { o.adamw.epsilon = 1e-9; }));
  texts.push_back(text_of([](auto& o) { o.layers_per_stage = {1, 2}; }));
  for (std::size_t i = 0; i < texts.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) CHECK(texts[i] != texts[j]);
  CHECK_THAT(texts[1], Contains("epsilon=1e-08"));
}

TEST_CASE("tokens are drawn with the probabilities of the softmax", "[train][sampling]") {
  const std::array<double, 4> logits{std::log(0.1), std::log(0.2), std::log(0.3), std::log(0.4)};
  std::array<int, 4> hits{};
  constexpr int n = 10000;
  for (int i = 0; i < n; ++i)
    ++hits[static_cast<std::size_t>(draw_token(std::span<const double>(logits), 1.0, (i + 0.5) / n))];
  CHECK(hits == std::array<int, 4>{1000, 2000, 3000, 4000});
  CHECK(draw_token(std::span<const double>(logits), 0.0, 0.0) == 3);
  CHECK(draw_token(std::span<const double>(logits), 1e-3, 0.5) == 3);  // cold: nearly always the likeliest
  const std::array<float, 3> huge{1e30f, -1e30f, 0.0f};
  CHECK(draw_token(std::span<const float>(huge), 1.0, 0.999999) == 0);  // no overflow
}

TEST_CASE("a progress line says step, losses, norm, speed and time left", "[train][report]") {
  step_report r;
  r.step = 9;
  r.steps = 200;
  r.loss = 2.5;
  r.validation_loss = 2.75;
  r.gradient_norm = 1.25;
  r.learning_rate = 3e-4;
  r.tokens_per_second = 12345;
  r.seconds_left = 3723;
  const std::string line = to_string(r);
  for (const char* part : {"10/200", "loss 2.5000", "val 2.7500", "1.2500", "3.00e-04", "12345 tok/s", "1:02:03"})
    CHECK_THAT(line, Contains(part));
  CHECK(clock_text(61.2) == "1:01");
  CHECK(clock_text(59.6) == "1:00");
}

TEST_CASE("numbers of a progress line are rounded, and right for any size", "[train][report]") {
  const auto line = [](double x) {
    step_report r;
    r.loss = r.gradient_norm = r.tokens_per_second = r.seconds_left = x;
    r.validation_loss = x;
    return to_string(r);
  };
  CHECK_THAT(line(5.17575519046642), Contains("loss 5.1758  val 5.1758  grad norm  5.1758"));
  CHECK_THAT(line(5.17728531756510), Contains("val 5.1773"));
  CHECK_THAT(line(1234567.8), Contains("val 1234567.8000") && Contains("1234568 tok/s") && Contains("ETA 342:56:08"));
  CHECK_THAT(line(99999.99), Contains("val 99999.9900"));
  CHECK_THAT(line(1e20), Contains("loss 1.0000e+20  val 1.0000e+20") && Contains("ETA unknown"));
  CHECK_THAT(line(1.7976931348623157e308), Contains("val 1.7977e+308") && Contains("ETA unknown"));
  CHECK_THAT(line(0.00004), Contains("val 0.0000"));
  CHECK_THAT(line(std::numeric_limits<double>::quiet_NaN()), Contains("val nan") && Contains("ETA unknown"));
  CHECK_THAT(line(std::numeric_limits<double>::infinity()), Contains("val inf"));
}
