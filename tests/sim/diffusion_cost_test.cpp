// Costs of diffusion decoding and of long prompts give published speeds and times; rows are those of a walk over forwards.
#include "catch.hpp"

#include <heddle/sim/diffusion_cost.hpp>
#include <heddle/sim/long_prompt.hpp>

#include <cmath>
#include <initializer_list>

namespace sim = heddle::sim;

TEST_CASE("two measured rows of dInfer's table foretell the third", "[sim][published]") {
  // LLaDA-MoE, 1,024 tokens in blocks of 64: tokens a forward and a second without keys, with a vicinity of 16 and 16,
  // and of the distilled model.
  constexpr double none_tokens = 4.29, none_speed = 407.36, kept_tokens = 3.87, kept_speed = 680.71;
  for (const double prompt : {100.0, 200.0, 400.0}) {
    CAPTURE(prompt);
    sim::diffusion_answer none{
        .prompt = prompt, .answer = 1024, .block = 64, .window = prompt + 1024, .tokens_a_forward = none_tokens};
    sim::diffusion_answer kept{
        .prompt = prompt, .answer = 1024, .block = 64, .window = 96, .warm = 4, .tokens_a_forward = kept_tokens};
    CHECK(none.rows() == Approx(prompt + 1024));
    const auto time =
        sim::fit_forward_time(none.rows(), none_tokens / none_speed, kept.rows(), kept_tokens / kept_speed);
    CHECK(time.fixed > 0);
    CHECK(time.row > 0);
    CHECK(sim::diffusion_tokens_per_second(kept, time) / sim::diffusion_tokens_per_second(none, time) ==
          Approx(1.67).epsilon(0.01));
    sim::diffusion_answer distilled = kept;
    distilled.tokens_a_forward = 5.67;
    const double speed = sim::diffusion_tokens_per_second(distilled, time);
    CHECK(speed > 850);
    CHECK(speed < 1000);
    CHECK(std::abs(speed / 847.22 - 1) < 0.15);
  }
}

TEST_CASE("rows of diffusion's forwards in the mean are those of a walk over them", "[sim][law]") {
  for (const double block : {8.0, 32.0})
    for (const double a_forward : {1.0, 2.0, 4.0})
      for (const double warm : {0.0, 3.0}) {
        const sim::diffusion_answer a{.prompt = 40,
                                      .answer = 128,
                                      .block = block,
                                      .window = block + 10,
                                      .warm = warm,
                                      .tokens_a_forward = a_forward};
        double rows = 0, forwards = 0, left = warm;
        for (double at = 0; at < a.answer; at += block)
          for (double in = 0; in < block; in += a_forward, ++forwards) {
            const bool refresh = in == 0 || left > 0;
            if (in > 0 && left > 0) --left;
            rows += refresh ? a.prompt + a.answer : a.window;
          }
        CHECK(a.forwards() == Approx(forwards));
        CHECK(a.rows() == Approx(rows / forwards));
      }
}

TEST_CASE("times of long prompts are foretold from the shortest one of SpikingBrain's table", "[sim][published]") {
  // Tokens in 1,024 and GPUs, and the published seconds of SpikingBrain-7B; Qwen2.5-7B took 7.419, 14.398 and 27.929.
  const sim::measured_prompt all{256, 8, 7.419}, states{256, 8, 1.015};
  // 14 layers whose states of 28 heads are in float, in four pieces over links of 25 GB/s.
  const sim::passed_states passed{
      .layers = 14, .bytes = 28 * 128 * 128 * 4, .blocks = 4, .bytes_per_second = 25e9, .latency = 5e-6};
  CHECK(passed.layers * passed.bytes == Approx(25.7e6).epsilon(0.001));
  CHECK(sim::seconds_of_attention(all, 512, 16) == Approx(14.398).epsilon(0.04));
  const double of_attention = sim::seconds_of_attention(all, 1024, 32);
  CHECK(of_attention == Approx(29.676));
  CHECK(of_attention == Approx(27.929).epsilon(0.07));
  CHECK(of_attention / sim::seconds_of_states(states, passed, 1024, 32) == Approx(26.5).epsilon(0.1));
  constexpr double published[] = {1.015, 1.037, 1.054, 1.070, 1.073};
  for (int i = 0; i < 5; ++i) {
    CAPTURE(i);
    CHECK(sim::seconds_of_states(states, passed, 256 << i, 8 << i) == Approx(published[i]).epsilon(0.04));
  }
  CHECK(sim::seconds_of_states(states, passed, 4096, 128) < 1.06 * 1.015);
}
