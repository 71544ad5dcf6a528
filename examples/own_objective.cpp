// own_objective: a policy learns to count, trained by an objective of five lines; docs/tutorial/objectives.md begins with it.
// run:
// prints: step  0  reward 0.
// prints: step 79  reward
// varies: step +[0-9]+  reward .*
#include <heddle/heddle.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/rl.hpp>
#include <heddle/train.hpp>
#include <heddle/train/sampling.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;

struct half_blame {  // REINFORCE in which bad answers count less than good ones
  double blame = 0.5;
  rl::term operator()(double log_probability, const rl::token& t) const {
    const double a = t.advantage > 0 ? t.advantage : blame * t.advantage;
    return {-a * log_probability, -a};  // the loss of one token, and its derivative
  }
  friend std::string to_string(const half_blame& o) { return "half_blame " + hd::number_text(o.blame); }
};
using policy = rl::policy<hd::model::gpt2<float>, half_blame>;

int main() {
  // A digit n and a separator are to be answered by n times `a` and the end: the share of right tokens is the reward.
  constexpr std::int32_t separator = 5, end = 6, a = 7;
  constexpr int groups = 12, of_group = 8, steps = 80;
  hd::train::options<policy::config> options{
      .batch = groups * of_group, .steps = steps, .learning_rate = {.peak = 1e-2, .warmup_steps = 0}};
  static_cast<hd::model::gpt2_config&>(options.model) = {
      .layers = 1, .heads = 2, .width = 16, .context = 7, .vocabulary = 8, .initial_deviation = 0.1};
  hd::launch<hd::threads, mesh>([&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<mesh, hd::zero<1>>>(policy{}, world, options);
    const hd::counter_random asked(1, 2);
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::vector<rl::sample> samples(groups * of_group);
      std::vector<double> rewards;
      for (std::uint64_t i = 0; i < samples.size(); ++i) {
        const auto digit = 1 + static_cast<std::int32_t>(asked.integer(step * groups + i / of_group) % 4);
        samples[i].prompt = {digit, separator};
        const auto text =
            hd::train::sample(trainer, samples[i].prompt, {.tokens = 6, .temperature = 1, .seed = step * 1000 + i});
        std::vector<std::int32_t> right(static_cast<std::size_t>(digit), a), &got = samples[i].tokens;
        right.push_back(end);
        got.assign(text.begin() + 2, std::find(text.begin() + 2, text.end() - 1, end) + 1);
        double same = 0;
        for (std::size_t t = 0; t < std::min(got.size(), right.size()); ++t) same += got[t] == right[t];
        rewards.push_back(same / static_cast<double>(std::max(got.size(), right.size())));
      }
      const auto advantages = rl::group_normalised(rewards, of_group);
      double mean = 0;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        samples[i].advantage = advantages[i];
        mean += rewards[i] / static_cast<double>(samples.size());
      }
      const rl::experience data(samples, options.model.context, trainer.samples_consumed());
      if (data.counted_tokens() > 0) trainer.step(data);
      if (world.rank() == 0 && (step % 20 == 0 || step + 1 == steps))
        std::printf("step %2d  reward %.2f\n", static_cast<int>(step), mean);
    }
  });
}
