// examples/cart_pole/ppo.hpp: proximal policy optimisation (PPO) of the cart with a pole, as two pipelines of three functions.
#pragma once

#include <heddle/heddle.hpp>
#include <heddle/train.hpp>
#include <heddle/train/three_functions.hpp>

#include "environment.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cart_pole {

namespace hd = heddle;
namespace op = heddle::op;

/// Two hidden layers; the fifth input is 1. The actor's output is the log-odds of a push to the right, the critic's the value.
struct network {
  static constexpr std::array parameters{hd::named_shape{"in/kernel", {5, 64}}, hd::named_shape{"mid/kernel", {64, 64}},
                                         hd::named_shape{"out/kernel", {64, 1}}};
};
inline constexpr hd::auto_redistribute fit{};
inline constexpr auto output = [](auto w, auto u, auto v, auto x) {
  const auto first = hd::apply<op::gelu>(hd::einsum<"bi,io->bo">(fit, x, w));
  const auto second = hd::apply<op::gelu>(hd::einsum<"bi,io->bo">(fit, first, u));
  return hd::einsum<"bi,io->bo">(fit, second, v);
};

/// The clipped objective by the log-odds; `side` is 1 or -1, `before` the action's log-probability when it was drawn.
/// Source: Schulman et al. 2017, arXiv:1707.06347, equation 7.
struct clipped_objective {
  static constexpr double clip = 0.2;
  static double log_probability(double odds, double side) { return -std::log1p(std::exp(-side * odds)); }
  static double value(double odds, double side, double before, double advantage) {
    const double ratio = std::exp(log_probability(odds, side) - before);
    return -(std::min)(ratio * advantage, std::clamp(ratio, 1 - clip, 1 + clip) * advantage);
  }
  static std::array<double, 4> gradient(double odds, double side, double before, double advantage) {
    const double log = log_probability(odds, side), ratio = std::exp(log - before);
    const bool clipped = advantage > 0 ? ratio > 1 + clip : ratio < 1 - clip;
    return {clipped ? 0 : -advantage * ratio * side * (1 - std::exp(log)), 0, 0,
            0};  // only the odds are differentiated
  }
};

/// A step of an environment, and what is learned from it.
struct transition {
  state from{}, to{};
  double side = 1, log_probability = 0, advantage = 0, target = 0;
  bool ended = false;
  int episode = 0;  ///< how long it was, where it ended or was cut off; 0 elsewhere
};
using transitions = std::vector<transition>;

// A column of numbers for each function of a transition.
template <class Context, class... Of>
auto columns(Context& c, const transitions& some, Of... of) {
  auto x = c.make_activations(static_cast<std::int64_t>(some.size()), sizeof...(Of));
  double* at = x.elements().data();
  for (const transition& t : some) ((*at++ = of(t)), ...);
  return x;
}
template <class Context>
auto inputs(Context& c, const transitions& some) {
  return columns(
      c, some, [](const auto& t) { return t.from[0]; }, [](const auto& t) { return t.from[1]; },
      [](const auto& t) { return t.from[2]; }, [](const auto& t) { return t.from[3]; },
      [](const auto&) { return 1.0; });
}

inline constexpr auto actor_loss = [](auto& c, const transitions& b) {
  return c.template loss<"in/kernel", "mid/kernel", "out/kernel">(
      [](auto w, auto u, auto v, auto x, auto side, auto before, auto advantage) {
        return hd::sum(hd::apply<op::map<clipped_objective>>(fit, output(w, u, v, x), side, before, advantage));
      },
      inputs(c, b), columns(c, b, [](const auto& t) { return t.side; }),
      columns(c, b, [](const auto& t) { return t.log_probability; }),
      columns(c, b, [](const auto& t) { return t.advantage; }));
};
inline constexpr auto critic_loss = [](auto& c, const transitions& b) {
  return c.template loss<"in/kernel", "mid/kernel", "out/kernel">(
      [](auto w, auto u, auto v, auto x, auto minus_target) {
        const auto miss = hd::apply<op::add>(fit, output(w, u, v, x), minus_target);
        return hd::sum(hd::apply<op::multiply>(fit, miss, miss));
      },
      inputs(c, b), columns(c, b, [](const auto& t) { return -t.target; }));
};
/// The output for each of this rank's states.
inline constexpr auto predicted = [](auto& c, const transitions& b) {
  const auto& [w, u, v] = c.template weights<"in/kernel", "mid/kernel", "out/kernel">();
  auto made = hd::vjp(c.compute(), c.world(), output, hd::constant(w), hd::constant(u), hd::constant(v),
                      hd::constant(inputs(c, b)));
  const auto y = c.template convert<typename std::remove_reference_t<decltype(c)>::activations>(std::move(made.value));
  return std::vector<double>(y.elements().begin(), y.elements().end());
};

struct settings {
  std::uint64_t seed = 1;
  std::int64_t most_steps = 200'000;
  int environments = 8, horizon = 32, epochs = 20;
  double discount = 0.98, trace = 0.8, rate = 1e-3;
};
struct outcome {
  bool solved = false;  ///< the last 20 episodes lasted 475 steps in the mean
  std::int64_t steps = 0;
  double mean = 0;
};

/// Environments are split over dp; each rank plays its own, then all learn from the steps of all.
/// Errors: `config_error` if ranks have not the same number of environments, or for fewer steps than a turn of all environments.
template <class World>
outcome train(World& world, const settings& s) {
  const int ranks = world.mesh().template extent_or_one<hd::dp>(), mine = s.environments / ranks;
  const std::int64_t batch = s.environments * s.horizon, turns = s.most_steps / batch;
  if (s.environments % ranks != 0)
    throw hd::config_error("cart_pole: the " + std::to_string(s.environments) +
                           " environments must be a multiple of the ranks that play them, got " +
                           std::to_string(ranks) + " ranks");
  if (turns < 1)
    throw hd::config_error("cart_pole: the steps must be at least a turn of " + std::to_string(batch) + ", got " +
                           std::to_string(s.most_steps));
  const auto collate = [](const transitions& some) { return some; };
  hd::train::three_functions_options options{.batch = batch, .per_rank = batch / ranks, .epochs = s.epochs};
  options.learning_rate = {.peak = s.rate, .total_steps = turns * s.epochs};
  options.optimizer = hd::train::adamw_options{.weight_decay = 0};
  options.clip_norm = 0.5;
  options.seed = s.seed;
  auto actor = hd::train::three_functions<network, double>(world, collate, actor_loss, predicted, options);
  options.seed = s.seed + 1000;
  auto critic = hd::train::three_functions<network, double>(world, collate, critic_loss, predicted, options);
  const auto outputs = [](auto& pipeline, const transitions& some) {
    return predicted(pipeline.trainer().stage().functions_context(), some);
  };

  struct environment {
    hd::counter_random random;
    std::uint64_t draws = 0;
    int age = 0;
    double draw() { return random.uniform(draws++); }
    state begin() { return {0.1 * draw() - 0.05, 0.1 * draw() - 0.05, 0.1 * draw() - 0.05, 0.1 * draw() - 0.05}; }
  };
  auto& dp = world.template control_along_if<hd::dp>();
  std::vector<environment> environments;
  transitions now(static_cast<std::size_t>(mine));
  for (int e = 0; e < mine; ++e) {
    environments.push_back({hd::counter_random(s.seed, static_cast<std::uint64_t>(dp.rank() * mine + e))});
    now[static_cast<std::size_t>(e)].from = environments.back().begin();
  }
  outcome result;
  std::vector<int> episodes;
  for (std::int64_t turn = 0; turn < turns && !result.solved; ++turn) {
    transitions own;
    for (int step = 0; step < s.horizon; ++step) {
      const auto odds = outputs(actor, now);
      for (std::size_t e = 0; e < now.size(); ++e) {
        environment& at = environments[e];
        transition& t = now[e];
        const bool right = at.draw() < 1 / (1 + std::exp(-odds[e]));
        t.side = right ? 1 : -1;
        t.log_probability = clipped_objective::log_probability(odds[e], t.side);
        t.to = pushed(t.from, right);
        t.ended = fallen(t.to);
        t.episode = ++at.age == longest || t.ended ? std::exchange(at.age, 0) : 0;
        own.push_back(t);
        t.from = t.episode > 0 ? at.begin() : t.to;
      }
    }
    // Advantages by generalised estimation (Schulman et al. 2016, arXiv:1506.02438), from the last step to the first.
    transitions behind = own;
    for (transition& t : behind) t.from = t.to;
    const auto values = outputs(critic, own), next = outputs(critic, behind);
    for (std::size_t i = own.size(), n = now.size(); i-- > 0;) {
      transition& t = own[i];
      const double later = t.episode > 0 || i + n >= own.size() ? 0 : own[i + n].advantage;
      t.advantage = 1 + (t.ended ? 0 : s.discount * next[i]) - values[i] + s.discount * s.trace * later;
      t.target = t.advantage + values[i];
    }
    transitions gathered(own.size() * static_cast<std::size_t>(ranks)), all;
    dp.all_gather(std::span<const transition>(own), std::span<transition>(gathered));
    // By time, so that the order is that of one rank.
    for (std::size_t step = 0; step < own.size(); step += now.size())
      for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
        const auto at = gathered.begin() + static_cast<std::ptrdiff_t>(r * own.size() + step);
        all.insert(all.end(), at, at + mine);
      }
    double sum = 0, squares = 0;
    for (const transition& t : all) {
      sum += t.advantage;
      squares += t.advantage * t.advantage;
      if (t.episode > 0) episodes.push_back(t.episode);
    }
    const double count = static_cast<double>(all.size()), mean = sum / count;
    const double deviation = std::sqrt((std::max)(squares / count - mean * mean, 0.0)) + 1e-8;
    for (transition& t : all) t.advantage = (t.advantage - mean) / deviation;
    actor.run(all, [](const hd::train::step_report&) {});
    critic.run(all, [](const hd::train::step_report&) {});

    result.steps += batch;
    const auto last = static_cast<std::ptrdiff_t>((std::min)(episodes.size(), std::size_t{20}));
    result.mean = 0;
    for (auto e = episodes.end() - last; e != episodes.end(); ++e) result.mean += *e / 20.0;
    result.solved = result.mean >= 475;
  }
  return result;
}

}  // namespace cart_pole
