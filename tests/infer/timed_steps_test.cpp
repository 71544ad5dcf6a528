// Steps of pools are recorded with their rows, and drawn beside each other.
#include "catch.hpp"
#include "svg.hpp"

#include <heddle/infer/engine.hpp>
#include <heddle/infer/pools.hpp>
#include <heddle/infer/timed_steps.hpp>
#include <heddle/sim/served_chart.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {
namespace inf = heddle::infer;
namespace sim = heddle::sim;

struct drawn_runner {
  using scalar = float;
  std::chrono::milliseconds time{2};
  inf::step_limits limits() const {
    return {.vocabulary = 4, .context = 64, .block_rows = 4, .blocks = 64, .max_rows = 8};
  }
  void run(const inf::step&, std::span<float> logits) const {
    std::fill(logits.begin(), logits.end(), 0.0f);
    std::this_thread::sleep_for(time);
  }
};
struct drawn_link {
  void begin(const inf::row_transfer&) {}
  inf::row_progress progress(inf::request_id) { return {.all = true}; }
  void end(inf::request_id) {}
};
}  // namespace

TEST_CASE("steps of pools are recorded with their rows and drawn", "[infer]") {
  drawn_runner of_prompts, of_answers;
  const auto origin = std::chrono::steady_clock::now();
  inf::timed_steps prompts(of_prompts, 2, 1, origin), answers(of_answers, 0, 2, origin);
  inf::engine<inf::timed_steps<drawn_runner>> prefill(prompts), decode(answers);
  drawn_link link;
  inf::pools pools(prefill, decode, link);
  for (int i = 0; i < 2; ++i)
    pools.submit({.prompt = std::vector<std::int32_t>(20, 1), .max_tokens = 3, .ignore_end_tokens = true});
  std::int64_t tokens = 0;
  while (!pools.idle())
    for (const inf::event& e : pools.step()) tokens += e.token ? 1 : 0;
  CHECK(tokens == 6);

  std::vector<sim::served_span> all(prompts.spans().begin(), prompts.spans().end());
  std::int64_t rows = 0;
  for (const sim::served_span& s : all) rows += s.prompt_rows + s.answer_rows;
  CHECK(rows == 40);  // both prompts, in steps of at most 8 rows
  CHECK(all.size() == 5);
  rows = 0;
  for (const sim::served_span& s : answers.spans()) {
    rows += s.answer_rows;
    CHECK(s.prompt_rows == 0);
    CHECK(s.end - s.begin >= 0.002);
    all.push_back(s);
  }
  CHECK(rows == 4);  // first tokens are the prompts' pool's

  const heddle::gantt_chart chart =
      sim::served_chart(all, {"answers 0", "answers 1", "prompts"}, "pools, milliseconds", 1000);
  CHECK(svg_test::well_formed(heddle::gantt_svg(chart)));
  const auto boxes = [&](int row, int style) {
    return std::count_if(chart.boxes.begin(), chart.boxes.end(),
                         [&](const heddle::gantt_box& b) { return b.row == row && b.style == style; });
  };
  CHECK(boxes(2, 1) >= 1);
  CHECK(boxes(0, 0) >= 1);
  CHECK(boxes(0, 0) == boxes(1, 0));
  CHECK(boxes(0, 1) + boxes(2, 0) == 0);
}
