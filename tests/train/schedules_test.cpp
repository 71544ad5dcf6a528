// tests/train/schedules_test.cpp: a GPT-2 under any schedule: several stages per rank, V maps, waves, replicas.
#include "runs.hpp"

#include "catch.hpp"

#include <cmath>
#include <string>
#include <vector>

using namespace train_test;

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

setup small() {
  setup s;
  s.layers = 5;
  s.width = 16;
  s.heads = 4;
  s.context = 6;
  s.vocabulary = 37;
  s.batch = 16;
  s.microbatches = 4;
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

const std::vector<std::string> schedules_of_one_chain{"gpipe",           "1f1b", "zb_h1",   "interleaved v=2",
                                                      "interleaved v=3", "zb_v", "v shape", "two waves"};

}  // namespace

TEST_CASE("the gradients of a GPT-2 under every schedule equal the serial ones", "[train][schedules][ranks]") {
  setup s = small();
  const outcome serial = serial_run(s);
  std::vector<std::string> all = schedules_of_one_chain;
  all.insert(all.end(), {"bidirectional", "bidirectional, split"});
  for (const char* mesh : {"pp=2", "dp=2,pp=2"})
    for (const std::string& schedule : all) {
      if (!fits(mesh)) continue;
      s.mesh = mesh;
      s.schedule = schedule;
      s.zero = schedule.size() % 2;
      INFO(schedule << " on " << mesh << ", zero " << s.zero);
      compare(train_f64(s), serial);
    }
}
