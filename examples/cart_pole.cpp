// Balances a pole on a cart by PPO: an actor and a critic, two pipelines of three functions, on environments that are split over ranks.
// run: --ranks 2 --steps 4096
// prints: after 4096 steps the last 20 episodes lasted
#include <heddle/comm/threads.hpp>

#include "cart_pole/ppo.hpp"
#include "number_given.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <string>

int main(int argc, char** argv) try {
  namespace hd = heddle;
  std::map<std::string, int> given{{"--ranks", 1}, {"--seed", 1}, {"--steps", 200'000}};
  for (int i = 1; i < argc; i += 2) {
    const auto found = given.find(argv[i]);
    if (found == given.end() || i + 1 == argc) {
      std::fprintf(stderr, "cart_pole: expected --ranks, --seed or --steps and a number, got %s\n", argv[i]);
      return 2;
    }
    // More ranks than environments have nothing to play.
    const int least = found->first == "--seed" ? 0 : 1;
    const int most = found->first == "--ranks" ? cart_pole::settings{}.environments : (std::numeric_limits<int>::max)();
    if (!number_given("cart_pole", argv[i], argv[i + 1], least, most, found->second)) return 2;
  }
  using mesh = hd::mesh<hd::axis<hd::dp>>;
  hd::launch<hd::threads>(mesh(given["--ranks"]), [&](auto& world) {
    const auto r =
        cart_pole::train(world, {.seed = static_cast<std::uint64_t>(given["--seed"]), .most_steps = given["--steps"]});
    if (world.rank() == 0)
      std::printf("after %lld steps the last 20 episodes lasted %.1f of 500 steps\nsolved: %s\n",
                  static_cast<long long>(r.steps), r.mean, r.solved ? "yes" : "no");
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
