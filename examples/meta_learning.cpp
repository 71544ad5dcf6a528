// Learns to learn: MAML finds weights from which one step of gradient descent fits any sine wave, beside a network trained on all of them.
// run: --tasks 2000 --ranks 2
// prints: MAML, 2000 tasks, order 2
#include "meta_learning/maml.hpp"
#include "number_given.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <string>

int main(int argc, char** argv) try {
  constexpr std::int64_t any = (std::numeric_limits<int>::max)();
  struct number {
    std::int64_t value, least, most;
  };
  std::map<std::string, number> given{{"--order", {2, 1, 2}},
                                      {"--inner-steps", {1, 0, any}},
                                      {"--ranks", {1, 1, maml::tasks_of_a_step}},
                                      {"--tasks", {20'000, maml::tasks_of_a_step, any}},
                                      {"--seed", {1, 0, any}}};
  double inner_rate = 0.01;
  for (int i = 1; i < argc; i += 2) {
    const auto found = given.find(argv[i]);
    const bool is_rate = std::string("--inner-rate") == argv[i];
    if ((found == given.end() && !is_rate) || i + 1 == argc) {
      std::fprintf(stderr,
                   "meta_learning: expected --order 1|2, --inner-steps, --inner-rate, --ranks, --tasks or --seed "
                   "and a number, got %s\n",
                   argv[i]);
      return 2;
    }
    const auto read = [&](auto least, auto most, auto& to) {
      return number_given("meta_learning", argv[i], argv[i + 1], least, most, to);
    };
    if (is_rate ? !read(1e-12, 1e12, inner_rate) : !read(found->second.least, found->second.most, found->second.value))
      return 2;
  }
  const auto whole = [&](const char* name) { return static_cast<int>(given.at(name).value); };
  const int ranks = whole("--ranks");
  const std::int64_t tasks = given["--tasks"].value;
  const auto seed = static_cast<std::uint64_t>(given["--seed"].value);
  const maml::settings how{whole("--order"), whole("--inner-steps"), inner_rate};
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
