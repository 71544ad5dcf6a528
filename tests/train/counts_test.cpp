// tests/train/counts_test.cpp: counted messages, bytes and activations of real runs equal the formulas.
#include "runs.hpp"

#include "catch.hpp"

#include <heddle/core/split.hpp>

#include <algorithm>
#include <string>

using namespace train_test;

TEST_CASE("sends, bytes and peak live activations of a run equal the schedule's formulas", "[train][counts]") {
  for (const char* schedule : {"gpipe", "1f1b"})
    for (const int p : {1, 2, 3})
      for (const int m : {1, 2, 4}) {
        setup s;
        s.mesh = "pp=" + std::to_string(p);
        s.schedule = schedule;
        s.microbatches = m;
        s.batch = 8;
        s.steps = 1;
        const outcome run = train_f64(s);
        const std::int64_t boundary = s.batch * s.context * s.width * 8;  // of all microbatches together
        std::int64_t sends = 0;
        for (const rank_facts& r : run.ranks) {
          INFO(schedule << ", p = " << p << ", m = " << m << ", rank " << r.pp);
          const int neighbours = (r.pp > 0) + (r.pp < p - 1);
          CHECK(r.sends == neighbours * m);
          CHECK(r.bytes_sent == neighbours * boundary);
          // The pipeline's own communicator counted the same.
          CHECK(r.comm_messages == r.sends);
          CHECK(r.comm_bytes == r.bytes_sent);
          // Along pp the world's communicator carried the tied embedding's gradient between both ends, and nothing else.
          const bool ties = p > 1 && (r.pp == 0 || r.pp == p - 1);
          CHECK(r.tied_messages == (ties ? 1 : 0));
          CHECK(r.tied_bytes == (ties ? s.vocabulary * s.width * 8 : 0));
          const int live = std::string(schedule) == "gpipe" ? m : (std::min)(p - r.pp, m);
          CHECK(r.peak_live == live);
          CHECK(r.slots == live);
          CHECK(r.saved_bytes % live == 0);
          sends += r.sends;
        }
        CHECK(sends == 2 * (p - 1) * m);
      }
}

TEST_CASE("a rank keeps as many bytes of activations as its live microbatches need", "[train][counts]") {
  setup s;
  s.steps = 1;
  s.batch = 8;
  s.microbatches = 4;
  s.mesh = "pp=2";
  s.layers = 4;
  s.schedule = "gpipe";
  const outcome gpipe = train_f64(s);
  s.schedule = "1f1b";
  const outcome interleaved = train_f64(s);
  // Peak of GPipe m, of 1F1B min(p - r, m): 4 and 4 against 2 and 1.
  CHECK(gpipe.ranks[0].saved_bytes == 2 * interleaved.ranks[0].saved_bytes);
  CHECK(gpipe.ranks[1].saved_bytes == 4 * interleaved.ranks[1].saved_bytes);
}

TEST_CASE("the bytes that dp ranks exchange are those of a gradient reduction and a weight gathering",
          "[train][counts]") {
  for (const int d : {2, 3}) {
    setup s;
    s.mesh = "dp=" + std::to_string(d);
    s.steps = 1;
    const outcome sharded = train_f64(s);
    s.zero = 0;
    const outcome whole = train_f64(s);
    for (int r = 0; r < d; ++r) {
      const rank_facts& a = sharded.ranks[static_cast<std::size_t>(r)];
      const rank_facts& b = whole.ranks[static_cast<std::size_t>(r)];
      CHECK(a.dp_reduced == a.parameters * 8);  // input of the reduce-scatter
      CHECK(a.dp_gathered == heddle::balanced_split{a.parameters, d}.size(r) * 8);
      CHECK(b.dp_reduced == b.parameters * 8);
      CHECK(b.dp_gathered == 0);
    }
  }
}
