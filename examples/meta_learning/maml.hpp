// examples/meta_learning/maml.hpp: model-agnostic meta-learning (MAML) on sine waves, as three functions.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/train.hpp>
#include <heddle/train/three_functions.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace maml {

namespace hd = heddle;
namespace op = heddle::op;

/// Samples of a task to learn from, and as many to judge by.
inline constexpr int points = 10;
/// A sine wave: y = amplitude sin(x - phase), and where it is sampled.
struct task {
  std::int64_t number = 0;
  double amplitude = 1, phase = 0;
  std::array<double, points> support{}, query{};
};
/// Amplitudes from 0.1 to 5, phases from 0 to pi, points from -5 to 5. Source: Finn et al. 2017, arXiv:1703.03400, section 5.1.
inline std::vector<task> sines(std::int64_t count, std::uint64_t seed) {
  const hd::counter_random random(seed, 1);
  std::uint64_t at = 0;
  const auto between = [&](double low, double high) { return low + (high - low) * random.uniform(at++); };
  std::vector<task> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) {
    task& t = all[i];
    t = {static_cast<std::int64_t>(i), between(0.1, 5), between(0, std::numbers::pi), {}, {}};
    for (auto* xs : {&t.support, &t.query})
      for (double& x : *xs) x = between(-5, 5);
  }
  return all;
}

/// Two hidden layers; the second input is 1.
struct network {
  static constexpr std::array parameters{hd::named_shape{"in/kernel", {2, 40}}, hd::named_shape{"mid/kernel", {40, 40}},
                                         hd::named_shape{"out/kernel", {40, 1}}};
};

struct settings {
  int order = 2;        ///< 1: the gradient behind the inner steps; 2: also through them
  int inner_steps = 1;  ///< 0: one network for all tasks
  double inner_rate = 0.01;
};

/// The mean squared error of each task, whose weights are its own: [tasks, in, out] for points [tasks, points, in].
inline constexpr auto losses = [](auto w, auto u, auto v, auto x, auto minus_y) {
  const auto first = hd::apply<op::gelu>(hd::einsum<"tpi,tio->tpo">(x, w));
  const auto second = hd::apply<op::gelu>(hd::einsum<"tpi,tio->tpo">(first, u));
  const auto miss = hd::apply<op::add>(hd::einsum<"tpi,tio->tpo">(second, v), minus_y);
  return hd::apply<op::mean<1, 2>>(hd::apply<op::multiply>(miss, miss));
};
inline constexpr auto sum_of_losses = [](auto... x) { return hd::sum(losses(x...)); };
/// The same weights for every task; backward it is the sum over tasks, of which each rank has its part.
inline constexpr auto for_each_task = [](auto w, auto ones) { return hd::einsum<"t,io->tio">(ones, w); };

/// The tasks of one rank. All tensors are split over dp by tasks, so that no inner step sends anything.
template <class Context>
class learner {
  using tasks = hd::layout_if<typename Context::mesh_type, hd::shard<0, hd::dp>>;
  using tensor = typename Context::template tensor<3, tasks>;

 public:
  using weights = std::array<tensor, 3>;
  struct samples {
    tensor x, minus_y;
  };

  learner(Context& c, const std::vector<task>& some, const settings& s)
      : c_(c),
        some_(some),
        settings_(s),
        support_(sampled(&task::support)),
        query_(sampled(&task::query)),
        ones_(c.template zeros<tasks>(hd::shape{count()})) {
    for (double& one : ones_.elements()) one = 1;
  }

  /// The gradient of the sum over tasks by the model's weights is added to them; the sum is returned.
  hd::train::token_loss meta_gradient() {
    const auto& [in, mid, out] = c_.template weights<"in/kernel", "mid/kernel", "out/kernel">();
    auto [w, to_in] = spread(in);
    auto [u, to_mid] = spread(mid);
    auto [v, to_out] = spread(out);
    std::vector<weights> steps;  // before each inner step, and behind the last
    steps.push_back({std::move(w), std::move(u), std::move(v)});
    inner_steps(steps);
    auto [sum, g] = gradient(steps.back(), query_);
    // Backward through w' = w - rate dL/dw: g - rate H g, and H g is a central difference of gradients along g.
    for (std::size_t i = steps.size() - 1; settings_.order == 2 && i-- > 0;) {
      std::vector<double> ahead(some_.size()), back(ahead), by(ahead);
      for (std::size_t t = 0; t < ahead.size(); ++t) {
        ahead[t] = 1e-5 / largest(g, t);
        back[t] = -ahead[t];
        by[t] = settings_.inner_rate / (2 * ahead[t]);
      }
      const weights plus = gradient(moved(steps[i], ahead, g), support_).second;
      const weights minus = gradient(moved(steps[i], back, g), support_).second;
      g = moved(moved(g, negative(by), plus), by, minus);
    }
    c_.template add_gradient<"in/kernel">(std::get<0>(to_in(std::move(g[0]))));
    c_.template add_gradient<"mid/kernel">(std::get<0>(to_mid(std::move(g[1]))));
    c_.template add_gradient<"out/kernel">(std::get<0>(to_out(std::move(g[2]))));
    return {sum, static_cast<std::int64_t>(some_.size())};
  }

  /// The loss of each of this rank's tasks behind the inner steps.
  std::vector<double> adapted_losses() {
    const auto& [in, mid, out] = c_.template weights<"in/kernel", "mid/kernel", "out/kernel">();
    std::vector<weights> steps;
    steps.push_back({spread(in).value, spread(mid).value, spread(out).value});
    inner_steps(steps);
    const weights& w = steps.back();
    const auto made = hd::vjp(c_.compute(), c_.world(), losses, w[0], w[1], w[2], query_.x, query_.minus_y);
    return {made.value.elements().begin(), made.value.elements().end()};
  }

 private:
  std::int64_t count() const {
    return static_cast<std::int64_t>(some_.size()) * c_.world().mesh().template extent_or_one<hd::dp>();
  }
  samples sampled(std::array<double, points> task::* xs) const {
    samples s{c_.template zeros<tasks>(hd::shape{count(), points, 2}),
              c_.template zeros<tasks>(hd::shape{count(), points, 1})};
    double* x = s.x.elements().data();
    double* minus_y = s.minus_y.elements().data();
    for (const task& t : some_)
      for (const double at : t.*xs) {
        *x++ = at;
        *x++ = 1;
        *minus_y++ = -t.amplitude * std::sin(at - t.phase);
      }
    return s;
  }
  template <class W>
  auto spread(const W& w) {
    return hd::vjp(c_.compute(), c_.world(), for_each_task, w, hd::constant(ones_));
  }
  std::pair<double, weights> gradient(const weights& w, const samples& s) {
    auto [sum, dw, du, dv, dx, dy] = hd::value_and_gradient(c_.compute(), c_.world(), sum_of_losses, w[0], w[1], w[2],
                                                            hd::constant(s.x), hd::constant(s.minus_y));
    return {sum.elements()[0], weights{std::move(dw), std::move(du), std::move(dv)}};
  }
  void inner_steps(std::vector<weights>& steps) {
    const std::vector<double> down(some_.size(), -settings_.inner_rate);
    for (int step = 0; step < settings_.inner_steps; ++step) {
      const weights g = gradient(steps.back(), support_).second;
      for (std::size_t t = 0; t < some_.size(); ++t)
        if (!std::isfinite(largest(g, t)))
          throw hd::numeric_error("meta_learning: the gradient of task " + std::to_string(some_[t].number) +
                                  " is not finite in inner step " + std::to_string(step) + " of " +
                                  std::to_string(settings_.inner_steps) + "; take a smaller inner rate than " +
                                  std::to_string(settings_.inner_rate));
      steps.push_back(moved(steps.back(), down, g));
    }
  }
  // w + by[task] d.
  weights moved(const weights& w, std::span<const double> by, const weights& d) const {
    weights to{c_.copy_of(w[0]), c_.copy_of(w[1]), c_.copy_of(w[2])};
    for (std::size_t k = 0; k < to.size(); ++k) {
      const std::size_t each = to[k].elements().size() / some_.size();
      for (std::size_t i = 0; i < to[k].elements().size(); ++i)
        to[k].elements()[i] += by[i / each] * d[k].elements()[i];
    }
    return to;
  }
  static std::vector<double> negative(std::vector<double> by) {
    for (double& b : by) b = -b;
    return by;
  }
  // The greatest magnitude in a task's part; not finite if an element is not.
  double largest(const weights& d, std::size_t t) const {
    double most = 1e-300;
    for (const tensor& x : d) {
      const std::size_t each = x.elements().size() / some_.size();
      for (const double e : x.elements().subspan(t * each, each)) {
        if (!std::isfinite(e)) return e;
        most = std::max(most, std::abs(e));
      }
    }
    return most;
  }

  Context& c_;
  const std::vector<task>& some_;
  settings settings_;
  samples support_, query_;
  typename Context::template tensor<1, tasks> ones_;
};

/// The loss of three functions: meta-gradients are added, and the sum over the tasks is returned.
struct loss_function {
  settings how{};
  template <class Context>
  hd::train::token_loss operator()(Context& c, const std::vector<task>& some) const {
    return learner<Context>(c, some, how).meta_gradient();
  }
};
/// What `predict` answers: each task's loss behind the inner steps that are set now.
struct predict_function {
  const settings* how = nullptr;
  template <class Context>
  std::vector<double> operator()(Context& c, const std::vector<task>& some) const {
    return learner<Context>(c, some, *how).adapted_losses();
  }
};
inline constexpr std::int64_t tasks_of_a_step = 20;
/// Errors: `config_error` if ranks have not the same number of a batch's tasks.
template <class World>
auto pipeline(World& world, const settings& how, const settings* evaluated, std::uint64_t seed,
              std::int64_t batch = tasks_of_a_step) {
  const int ranks = world.mesh().template extent_or_one<hd::dp>();
  if (batch % ranks != 0)
    throw hd::config_error("meta_learning: the " + std::to_string(batch) +
                           " tasks of a step must be a multiple of the ranks that learn from them, got " +
                           std::to_string(ranks) + " ranks");
  hd::train::three_functions_options options{.batch = batch, .per_rank = batch / ranks, .seed = seed};
  options.learning_rate = {.peak = 5e-3, .minimum = 5e-4};
  options.optimizer = hd::train::adamw_options{.weight_decay = 0};
  const auto collate = [](const std::vector<task>& some) { return some; };
  return hd::train::three_functions<network, double>(world, collate, loss_function{how}, predict_function{evaluated},
                                                     options);
}

/// The mean loss of 600 new tasks, before an inner step and behind one, of a network trained on so many tasks.
inline std::array<double, 2> train(int ranks, std::int64_t tasks, std::uint64_t seed, const settings& how) {
  std::array<double, 2> result{};
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>(ranks), [&](auto& world) {
    settings evaluated = how;
    auto trained = pipeline(world, how, &evaluated, seed);
    trained.run(sines(tasks, seed), [](const hd::train::step_report&) {});
    for (const int steps : {0, 1}) {
      evaluated.inner_steps = steps;
      const auto all = trained.predict(sines(600, 1'000'000 + seed));
      const double mean = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
      if (world.rank() == 0) result[static_cast<std::size_t>(steps)] = mean;
    }
  });
  return result;
}

}  // namespace maml
