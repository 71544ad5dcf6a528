// Learns to learn: MAML finds weights from which one step of gradient descent fits any sine wave, beside a network trained on all of them.
// run: --tasks 20000 --ranks 2
// prints: MAML's loss is below half of it: yes
#include "meta_learning/maml.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <string>

int main(int argc, char** argv) try {
  std::map<std::string, double> given{{"--order", 2}, {"--inner-steps", 1}, {"--inner-rate", 0.01},
                                      {"--ranks", 1}, {"--tasks", 20'000},  {"--seed", 1}};
  for (int i = 1; i < argc; i += 2) {
    const auto found = given.find(argv[i]);
    if (found == given.end() || i + 1 == argc) {
      std::fprintf(stderr,
                   "meta_learning: expected --order 1|2, --inner-steps, --inner-rate, --ranks, --tasks or --seed "
                   "and a number, got %s\n",
                   argv[i]);
      return 2;
    }
    found->second = std::stod(argv[i + 1]);
  }
  const int ranks = static_cast<int>(given["--ranks"]);
  const auto tasks = static_cast<std::int64_t>(given["--tasks"]);
  const auto seed = static_cast<std::uint64_t>(given["--seed"]);
  const maml::settings how{static_cast<int>(given["--order"]), static_cast<int>(given["--inner-steps"]),
                           given["--inner-rate"]};
  const auto [before, behind] = maml::train(ranks, tasks, seed, how);
  const auto [plain, plain_behind] = maml::train(ranks, tasks, seed, {.inner_steps = 0, .inner_rate = how.inner_rate});
  std::printf("loss of 600 new sines        before  behind one inner step\n");
  std::printf("MAML, %lld tasks, order %d   %7.3f  %7.3f\n", static_cast<long long>(tasks), how.order, before, behind);
  std::printf("trained on all sines         %7.3f  %7.3f\n", plain, plain_behind);
  std::printf("MAML's loss is below half of it: %s\n", behind < plain_behind / 2 ? "yes" : "no");
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
