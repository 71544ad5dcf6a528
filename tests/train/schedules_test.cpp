// tests/train/schedules_test.cpp: a GPT-2 under any schedule: several stages per rank, V maps, waves, replicas.
#include "runs.hpp"
#include "tables.hpp"

#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

using namespace train_test;
namespace fs = std::filesystem;

namespace {

double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (std::isnan(error) || error > worst) worst = error;
  }
  return worst;
}

// Five layers are uneven over every number of stages but one and five; 37 x 12 weights of the embedding end within a
// line of memory, so that parts of the flat buffers are padded.
setup small() {
  setup s;
  s.layers = 5;
  s.width = 12;
  s.heads = 4;
  s.context = 6;
  s.vocabulary = 37;
  s.batch = 16;
  s.microbatches = 8;
  s.validate_every = 1;
  return s;
}
outcome serial_run(setup s) {
  s.mesh = "";
  s.microbatches = 1;
  s.schedule = "gpipe";
  s.zero = 0;
  return train_f64(s);
}

void compare(const outcome& parallel, const outcome& serial) {
  CHECK(largest_relative(parallel.losses, serial.losses) <= 1e-10);
  CHECK(largest_relative(parallel.norms, serial.norms) <= 1e-10);
  CHECK(largest_relative(parallel.validation, serial.validation) <= 1e-10);
  CHECK(largest_error(parallel.gradients, serial.gradients) <= 1e-10);
  CHECK(largest_error(parallel.weights, serial.weights) <= 1e-10);
}

// With processes each run takes longer: one schedule of each map, and one with pairs.
const std::vector<std::string> one_chain =
    transport_test::on_threads
        ? std::vector<std::string>{"gpipe",         "1f1b",      "interleaved:2", "interleaved:3", "breadth-first:2",
                                   "breadth-first", "zb-h1",     "zb-h1:2",       "zb-h2",         "zb-v",
                                   "v-half",        "v-min",     "dual-pipe-v",   "hanayo:1",      "hanayo:2",
                                   "v shape",       "two waves", "planned V",     "searched V"}
        : std::vector<std::string>{"interleaved:2", "zb-h1", "dual-pipe-v", "two waves"};
const std::vector<std::string> two_chains =
    transport_test::on_threads
        ? std::vector<std::string>{"dual-pipe", "chimera", "bidirectional", "bidirectional, split", "one rank apart"}
        : std::vector<std::string>{"dual-pipe"};

int pipeline_of(const std::string& mesh) {
  const auto at = mesh.find("pp=");
  return at == std::string::npos ? 1 : std::stoi(mesh.substr(at + 3));
}

void all_schedules_on(const std::string& mesh, int microbatches) {
  if (!fits(mesh)) return;
  setup s = small();
  const outcome serial = serial_run(s);
  s.mesh = mesh;
  s.microbatches = microbatches;
  int compared = 0;
  for (const auto* names : {&one_chain, &two_chains})
    for (const std::string& schedule : *names) {
      if (!has_table(schedule, pipeline_of(mesh), microbatches)) continue;
      s.schedule = schedule;
      s.zero = compared % 2;
      INFO(schedule << " on " << mesh << ", " << microbatches << " microbatches, zero " << s.zero);
      compare(train_f64(s), serial);
      ++compared;
    }
  CHECK(compared >= (transport_test::on_threads ? 18 : 4));
}

}  // namespace

TEST_CASE("gradients under every schedule equal the serial ones: 2 ranks", "[train][schedules][ranks]") {
  all_schedules_on("pp=2", 4);
}
TEST_CASE("gradients under every schedule equal the serial ones: 4 ranks", "[train][schedules][ranks]") {
  all_schedules_on("pp=4", 8);
}
TEST_CASE("gradients under every schedule equal the serial ones: 2 x 2 ranks of dp and pp",
          "[train][schedules][ranks]") {
  all_schedules_on("dp=2,pp=2", 4);
}
TEST_CASE("gradients under every schedule equal the serial ones: 2 x 2 ranks of pp and tp",
          "[train][schedules][ranks]") {
  all_schedules_on("pp=2,tp=2", 4);
}
TEST_CASE("gradients under every schedule equal the serial ones: 8 ranks of dp, pp and tp", "[train][schedules]") {
  all_schedules_on("dp=2,pp=2,tp=2", 4);
}
TEST_CASE("gradients under every schedule equal the serial ones: 4 x 2 ranks of pp and dp", "[train][schedules]") {
  all_schedules_on("dp=2,pp=4", 8);
}
TEST_CASE("gradients under every schedule equal the serial ones: a pipeline of 8 ranks", "[train][schedules]") {
  all_schedules_on("pp=8", 16);
}

TEST_CASE("for one order of the weight gradients all schedules give the same bits", "[train][schedules][ranks]") {
  setup s = small();
  s.steps = 1;
  s.mesh = "pp=2";
  s.schedule = "1f1b";
  const outcome first = train_f64(s);
  for (const char* mesh : {"pp=2", "pp=4"})
    for (const std::string& schedule : one_chain) {
      if (schedule == "searched V") continue;  // a search may do weight gradients in another order
      if (!fits(mesh) || !has_table(schedule, pipeline_of(mesh), s.microbatches)) continue;
      INFO(schedule << " on " << mesh);
      s.mesh = mesh;
      s.schedule = schedule;
      const outcome other = train_f64(s);
      CHECK(other.losses == first.losses);
      CHECK(other.gradients == first.gradients);
    }
}

TEST_CASE("a run saved under one schedule goes on under any other", "[train][schedules][save][ranks]") {
  int id = ::getpid();
  transport_test::tell(id, 0);
  const fs::path saves = fs::temp_directory_path() / ("heddle-train-schedules-" + std::to_string(id));
  setup s = small();
  s.validate_every = 0;
  s.steps = 4;
  s.mesh = "dp=2,pp=2";
  s.schedule = "1f1b";
  s.microbatches = 4;
  const outcome whole = train_f64(s);
  for (const char* before : {"chimera", "1f1b", "zb-v"}) {
    if (!transport_test::on_threads && before[0] != 'c') continue;
    setup head = s;
    head.steps = 2;
    head.schedule = before;
    head.save_to = (saves / before).string();
    train_f64(head);
    for (const char* after : {"interleaved:2", "zb-v", "dual-pipe", "1f1b"}) {
      INFO("saved under " << before << ", gone on with under " << after);
      setup rest = s;
      rest.schedule = after;
      rest.zero = std::string(after).size() % 2;
      rest.resume_from = head.save_to;
      const outcome resumed = train_f64(rest);
      CHECK(resumed.first_step == 2);
      CHECK(largest_relative(resumed.losses, {whole.losses.begin() + 2, whole.losses.end()}) <= 1e-10);
      CHECK(largest_error(resumed.weights, whole.weights) <= 1e-10);
    }
  }
  transport_test::tell(id, 0);
  if (transport_test::process() == 0) fs::remove_all(saves);
}

TEST_CASE("messages and live activations of real runs are those of the table", "[train][schedules][counts]") {
  setup s = small();
  s.steps = 1;
  s.validate_every = 0;
  for (const char* mesh : {"pp=2", "pp=4"})
    for (const auto* names : {&one_chain, &two_chains})
      for (const std::string& schedule : *names) {
        const int p = pipeline_of(mesh);
        if (!has_table(schedule, p, s.microbatches)) continue;
        s.mesh = mesh;
        s.schedule = schedule;
        const auto table = table_named(schedule, p, s.microbatches);
        const outcome run = train_f64(s);
        std::int64_t sends = 0, bytes = 0;
        for (const rank_facts& r : run.ranks) {
          INFO(schedule << ", " << mesh << ", rank " << r.pp);
          CHECK(r.peak_live == sc::peak_live(table, r.pp));
          int slots = 0;
          for (int stage = 0; stage < table.view().stages(); ++stage)
            if (table.view().rank_of(stage) == r.pp) slots += sc::peak_live(table, r.pp, stage);
          CHECK(r.slots == slots);
          int pairs = 0;
          for (const sc::action& a : table.view().list(r.pp)) pairs += a.overlaps_next ? 1 : 0;
          CHECK(r.overlapped == pairs);
          CHECK(r.comm_messages == r.sends);
          CHECK(r.comm_bytes == r.bytes_sent);
          sends += r.sends;
          bytes += r.bytes_sent;
        }
        CHECK(sends == sc::sends(table));
        CHECK(bytes == sends * s.batch / s.microbatches * s.context * s.width * 8);
      }
}

TEST_CASE("an embedding that is tied on one rank is there once, and nothing is sent for it",
          "[train][schedules][counts]") {
  setup s = small();
  s.width = 16;  // without padding
  s.steps = 1;
  s.mesh = "pp=2";
  const auto parameters = [](const outcome& run) {
    std::int64_t n = 0;
    for (const rank_facts& r : run.ranks) n += r.parameters;
    return n;
  };
  s.schedule = "1f1b";
  const outcome apart = train_f64(s);
  const std::int64_t embedding = s.vocabulary * s.width;
  CHECK(apart.ranks[0].tied_bytes == embedding * 8);
  for (const char* schedule : {"zb-v", "v shape", "hanayo:1"}) {
    INFO(schedule);
    s.schedule = schedule;
    const outcome together = train_f64(s);
    CHECK(parameters(together) == parameters(apart) - embedding);
    for (const rank_facts& r : together.ranks) CHECK(r.tied_messages == 0);
  }
  // Two replicas: everything twice, and each rank sends its share of all gradients to the other.
  s.schedule = "chimera";
  const outcome twice = train_f64(s);
  CHECK(parameters(twice) == 2 * (parameters(apart) - embedding));
  for (const rank_facts& r : twice.ranks) CHECK(r.tied_bytes == r.parameters * 8);
}

TEST_CASE("stages may have any number of layers, or none", "[train][schedules][ranks]") {
  setup s = small();
  s.layers = 4;
  const outcome serial = serial_run(s);
  s.mesh = "pp=2";
  s.schedule = "interleaved:2";
  for (const std::vector<int>& layers : {std::vector<int>{0, 2, 2, 0}, {4, 0, 0, 0}, {0, 0, 0, 4}, {1, 0, 3, 0}}) {
    INFO("layers " << layers[0] << ' ' << layers[1] << ' ' << layers[2] << ' ' << layers[3]);
    s.layers_per_stage = layers;
    compare(train_f64(s), serial);
  }
  s.layers_per_stage = {};
  s.layers = 1;  // one layer over four stages
  compare(train_f64(s), serial_run(s));
  s.layers_per_stage = {1, 0};
  CHECK_THROWS_WITH(train_f64(s), Catch::Matchers::Contains("layers_per_stage has 2 numbers, the schedule cuts the "
                                                            "model into 4 stages"));
  s.layers_per_stage = {1, 0, 1, 0};
  CHECK_THROWS_WITH(train_f64(s), Catch::Matchers::Contains("are given 2 layers, the model has 1"));
  s.layers_per_stage = {2, -1, 0, 0};
  CHECK_THROWS_AS(train_f64(s), heddle::config_error);
}
