// Learns to learn: MAML finds weights from which one step of gradient descent fits any sine wave, beside a network trained on all of them.
// run: --tasks 20000 --ranks 2
// prints: MAML's loss is below half of it: yes
#include <heddle/comm/threads.hpp>
#include <heddle/train.hpp>
#include <heddle/train/three_functions.hpp>

#include "meta_learning/maml.hpp"

#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp>>;

// The mean loss of new tasks before an inner step and behind one.
std::pair<double, double> train(int ranks, std::int64_t tasks, std::uint64_t seed, const maml::settings& how) {
  std::pair<double, double> result;
  hd::launch<hd::threads>(mesh(ranks), [&](auto& world) {
    const auto collate = [](const std::vector<maml::task>& some) { return some; };
    hd::train::three_functions_options options{.batch = 20, .per_rank = 20 / ranks, .seed = seed};
    options.learning_rate = {.peak = 5e-3, .minimum = 5e-4};
    options.optimizer = hd::train::adamw_options{.weight_decay = 0};
    maml::settings evaluated{.inner_steps = 1, .inner_rate = how.inner_rate};
    // How many inner steps are judged by changes between calls.
    const auto predict = [&](auto& c, const std::vector<maml::task>& some) {
      return maml::predict_function{evaluated}(c, some);
    };
    auto pipeline = hd::train::three_functions<maml::network<40>, double>(world, collate, maml::loss_function{how},
                                                                         predict, options);
    pipeline.run(maml::sines(tasks, seed), [](const hd::train::step_report&) {});
    const auto mean_of_new = [&](int steps) {
      evaluated.inner_steps = steps;
      const auto all = pipeline.predict(maml::sines(600, 1'000'000 + seed));
      return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
    };
    const std::pair both(mean_of_new(0), mean_of_new(1));
    if (world.rank() == 0) result = both;
  });
  return result;
}

int main(int argc, char** argv) try {
  std::map<std::string, double> given{{"--order", 2},  {"--inner-steps", 1}, {"--inner-rate", 0.01},
                                      {"--ranks", 1}, {"--tasks", 20'000},  {"--seed", 1}};
  for (int i = 1; i < argc; i += 2) {
    const auto found = given.find(argv[i]);
    if (found == given.end() || i + 1 == argc) {
      std::fprintf(stderr, "meta_learning: expected --order 1|2, --inner-steps, --inner-rate, --ranks, --tasks or --seed "
                           "and a number, got %s\n", argv[i]);
      return 2;
    }
    found->second = std::stod(argv[i + 1]);
  }
  const int ranks = static_cast<int>(given["--ranks"]);
  const auto tasks = static_cast<std::int64_t>(given["--tasks"]);
  const auto seed = static_cast<std::uint64_t>(given["--seed"]);
  const maml::settings how{static_cast<int>(given["--order"]), static_cast<int>(given["--inner-steps"]),
                           given["--inner-rate"]};
  const auto [before, behind] = train(ranks, tasks, seed, how);
  const auto [plain, plain_behind] = train(ranks, tasks, seed, {.inner_steps = 0, .inner_rate = how.inner_rate});
  std::printf("loss of 600 new sines        before  behind one inner step\n");
  std::printf("MAML, %lld tasks, order %d   %7.3f  %7.3f\n", static_cast<long long>(tasks), how.order, before, behind);
  std::printf("trained on all sines         %7.3f  %7.3f\n", plain, plain_behind);
  std::printf("MAML's loss is below half of it: %s\n", behind < plain_behind / 2 ? "yes" : "no");
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
