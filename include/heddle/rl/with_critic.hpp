// heddle/rl/with_critic.hpp: a critic in a run, which gives advantages and learns from returns.
#pragma once

#include <heddle/rl/critic.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/frozen_reference.hpp>
#include <heddle/rl/run.hpp>
#include <heddle/rl/sample.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/trainer.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// A critic for `run`, which trains it by a trainer of its own on the ranks that train, with the same strategy: it says the
/// values from which the advantages follow (`set_gae`), and learns from their returns, one step for each batch.
/// `options`: of its trainer; the model's sizes, `batch` and `steps` follow from the run. It begins by the seed of its
/// options. `settings.advantage` must be `advantage_of::reward`. A run with a critic is not saved.
template <class Base>
struct with_critic {
  train::options<typename critic<Base>::config> options{};
  double gamma = 1, lambda = .95;
};

}  // namespace heddle::inline v0::rl

namespace heddle::inline v0::rl::detail {

// A critic in a session, on ranks that train; called on all of them together.
template <class Critic, class Policy, class Strategy, class World>
class session_critic;
template <class Policy, class Strategy, class World, class Base>
class session_critic<with_critic<Base>, Policy, Strategy, World> {
  using trainer_type = train::trainer<critic<Base>, Strategy, World>;

 public:
  template <class Options>
  session_critic(World& world, const with_critic<Base>& how, const Options& of_run)
      : how_(how), trainer_(world, adjusted(how.options, of_run)) {}

  // Advantages of all tokens.
  void advise(std::span<sample> samples) {
    score_by(trainer_, samples, &sample::values);
    returns_ = set_gae(samples, how_.gamma, how_.lambda);
  }
  // A step, by the returns of `advise`.
  train::step_report learn(std::span<const sample> samples) {
    std::vector<sample> own;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      sample& s = own.emplace_back();
      s.prompt = samples[i].prompt, s.tokens = samples[i].tokens, s.mask = samples[i].mask;
      s.advantages = returns_[i], s.log_probabilities = samples[i].values;
    }
    return trainer_.step(experience(std::move(own), trainer_.options().model.context, trainer_.samples_consumed()));
  }

 private:
  template <class Options>
  static auto adjusted(train::options<typename critic<Base>::config> o, const Options& of_run) {
    static_cast<typename Base::config&>(o.model) = static_cast<const typename Base::config&>(of_run.model);
    o.batch = of_run.batch, o.steps = of_run.steps, o.threads_per_rank = of_run.threads_per_rank;
    return o;
  }

  with_critic<Base> how_;
  trainer_type trainer_;
  std::vector<std::vector<double>> returns_{};
};

}  // namespace heddle::inline v0::rl::detail
