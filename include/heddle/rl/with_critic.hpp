// heddle/rl/with_critic.hpp: a critic in a run, which gives advantages and learns from returns.
#pragma once

#include <heddle/core/text.hpp>
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
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// A critic for `run`, which trains it by a trainer of its own on the ranks that train, with the same strategy: it says the
/// values from which the advantages follow (`set_gae`), and learns from their returns, one step for each batch.
/// `options`: of its trainer; the model's sizes, `batch` and `steps` follow from the run. It begins by the seed of its
/// options. `settings.advantage` must be `advantage_of::reward`. Saves of the run (`saves`) have the critic's state, too.
template <class Base>
struct with_critic {
  train::options<typename critic<Base>::config> options{};
  double gamma = 1, lambda = .95;

  using model = critic<Base>;
  /// Of its trainer, in a run whose trainer has these.
  template <class Options>
  train::options<typename model::config> options_in(const Options& of_run) const {
    auto o = options;
    static_cast<typename Base::config&>(o.model) = static_cast<const typename Base::config&>(of_run.model);
    o.batch = of_run.batch, o.steps = of_run.steps, o.threads_per_rank = of_run.threads_per_rank;
    return o;
  }
};
/// `"value loss clip=0.2, gamma=1, lambda=0.95"`.
template <class Base>
std::string to_string(const with_critic<Base>& c) {
  return to_string(c.options.model.objective) + ", gamma=" + number_text(c.gamma) + ", lambda=" + number_text(c.lambda);
}

}  // namespace heddle::inline v0::rl

namespace heddle::inline v0::rl::detail {

// A critic in a session, on ranks that train; called on all of them together.
template <class Critic, class Policy, class Strategy, class World>
class session_critic;
template <class Policy, class Strategy, class World, class Base>
class session_critic<with_critic<Base>, Policy, Strategy, World> {
 public:
  using trainer_type = train::trainer<critic<Base>, Strategy, World>;
  template <class Options>
  session_critic(World& world, const with_critic<Base>& how, const Options& of_run)
      : how_(how), trainer_(world, how.options_in(of_run)) {}

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
  trainer_type& trainer() noexcept { return trainer_; }

 private:
  with_critic<Base> how_;
  trainer_type trainer_;
  std::vector<std::vector<double>> returns_{};
};

}  // namespace heddle::inline v0::rl::detail
