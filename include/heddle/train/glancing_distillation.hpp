// heddle/train/glancing_distillation.hpp: glancing distillation of a drafter of blocks.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/feature_text.hpp>
#include <heddle/train/learning_rate.hpp>
#include <heddle/train/options.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Options of a distillation. `batch`: texts of a step. `glance`: of the wrong positions those that are shown in the first epoch, falling to 0 in the last.
/// `noise`: width of the uniform noise on features. `dropout`: rate of what is left out between the LSTM layers, in the passes that are
/// trained on. Loss: smooth L1 of features + `head_weight` (`divergence_weight` KL + (1 - `divergence_weight`) cross-entropy).
/// `learning_rate.total_steps` 0: the steps of all epochs, with as many texts as the first has.
struct distillation_options {
  std::int64_t epochs = 20;
  std::int64_t batch = 16;
  warmup_cosine learning_rate{.peak = 3e-5, .minimum = 0, .warmup_steps = 0, .total_steps = 0};
  double beta1 = 0.9;
  double beta2 = 0.95;
  double clip_norm = 0.5;
  double weight_decay = 0;
  double glance = 0.4;
  double noise = 0.2;
  double dropout = 0.1;
  double head_weight = 0.1;
  double divergence_weight = 0.9;
  std::uint64_t seed = 0;

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    using detail::refuse_setting;
    if (epochs < 1) refuse_setting("epochs", std::to_string(epochs), "at least 1");
    if (batch < 1) refuse_setting("batch", std::to_string(batch), "at least 1");
    learning_rate.validate();
    adamw_options{.beta1 = beta1, .beta2 = beta2, .weight_decay = weight_decay}.validate();
    detail::require_clip_norm(clip_norm);
    if (!(glance >= 0 && glance <= 1)) refuse_setting("glance", number_text(glance), "from 0 to 1");
    if (!(dropout >= 0 && dropout < 1)) refuse_setting("dropout", number_text(dropout), "from 0 to below 1");
    const auto require_width = [](const char* name, double x) {
      if (!(x >= 0 && std::isfinite(x))) refuse_setting(name, number_text(x), "at least 0 and finite");
    };
    require_width("noise", noise);
    require_width("head_weight", head_weight);
    if (!(divergence_weight >= 0 && divergence_weight <= 1))
      refuse_setting("divergence_weight", number_text(divergence_weight), "from 0 to 1");
  }
};

/// The share of wrong positions that are shown in an epoch, counted from 1: glance (epochs - epoch) / epochs.
constexpr double glance_ratio(double glance, std::int64_t epoch, std::int64_t epochs) noexcept {
  return glance * static_cast<double>(epochs - epoch) / static_cast<double>(epochs);
}

/// Which `count` of `rows` rows are shown: blocks of `block` rows in random order, each from its first row on, so that all of them but the last are whole.
/// Errors: `config_error` for a block of no rows.
inline std::vector<std::int64_t> glanced_rows(std::int64_t rows, std::int64_t block, std::int64_t count,
                                              const counter_random& random, std::uint64_t first) {
  if (block < 1)
    throw config_error("heddle: glanced_rows: a block should have at least one row, got " + std::to_string(block));
  std::vector<std::pair<std::uint64_t, std::int64_t>> order;
  for (std::int64_t i = 0; i < rows; i += block)
    order.emplace_back(random.integer(first + static_cast<std::uint64_t>(i)), i);
  std::sort(order.begin(), order.end());
  std::vector<std::int64_t> shown;
  for (const auto& [key, begin] : order)
    for (std::int64_t i = begin; i < (std::min)(begin + block, rows) && std::ssize(shown) < count; ++i)
      shown.push_back(i);
  return shown;
}

/// What an epoch did: the mean loss of its steps, rows that were wrong in the first passes, and rows that were shown.
struct distillation_epoch {
  double loss = 0;
  std::int64_t rows = 0;
  std::int64_t wrong = 0;
  std::int64_t shown = 0;
};

/// The loss of features that a drafter gave against the model's, and its gradient; means over rows, and over elements of features.
/// Shapes: drafted, target, gradient [rows, width], tokens [rows]: those that should follow. The distribution of the model is that of its head on `target`.
/// Errors: `layout_error` for other sizes, `config_error` for tokens that the vocabulary does not have.
template <class T, class Drafter>
double distillation_loss(Drafter& drafter, std::span<const T> drafted, std::span<const T> target,
                         std::span<const std::int32_t> tokens, const distillation_options& o, std::span<T> gradient) {
  const std::size_t rows = tokens.size(), width = static_cast<std::size_t>(drafter.shape().width);
  if (rows == 0 || drafted.size() != rows * width || target.size() != drafted.size() ||
      gradient.size() != drafted.size())
    throw layout_error("heddle: distillation_loss: drafted, target and gradient of at least one row should have " +
                       std::to_string(rows * width) + " elements for " + std::to_string(rows) + " tokens, got " +
                       std::to_string(drafted.size()) + ", " + std::to_string(target.size()) + " and " +
                       std::to_string(gradient.size()));
  drafter.require_tokens(tokens, "distillation_loss");
  const auto words = static_cast<std::size_t>(drafter.vocabulary());
  std::vector<T> ours(rows * words), theirs(rows * words);
  drafter.logits_of(drafted, ours);
  drafter.logits_of(target, theirs);
  const double per_row = 1 / static_cast<double>(rows);
  double loss = 0;
  const auto log_softmax = [&](const T* x, std::vector<double>& to) {
    const double most = static_cast<double>(*std::max_element(x, x + words));
    double sum = 0;
    for (std::size_t v = 0; v < words; ++v) sum += std::exp(static_cast<double>(x[v]) - most);
    for (std::size_t v = 0; v < words; ++v) to[v] = static_cast<double>(x[v]) - most - std::log(sum);
  };
  std::vector<double> p(words), q(words);
  for (std::size_t r = 0; r < rows; ++r) {
    T* const x = ours.data() + r * words;
    log_softmax(x, q);
    log_softmax(theirs.data() + r * words, p);
    const auto token = static_cast<std::size_t>(tokens[r]);
    double divergence = 0;
    for (std::size_t v = 0; v < words; ++v) {
      const double share = std::exp(p[v]);
      divergence += share * (p[v] - q[v]);
      const double d = o.divergence_weight * (std::exp(q[v]) - share) +
                       (1 - o.divergence_weight) * (std::exp(q[v]) - (v == token ? 1 : 0));
      x[v] = static_cast<T>(o.head_weight * per_row * d);
    }
    loss += per_row * o.head_weight * (o.divergence_weight * divergence - (1 - o.divergence_weight) * q[token]);
  }
  const double per_element = per_row / static_cast<double>(width);
  for (std::size_t i = 0; i < drafted.size(); ++i) {
    const double d = static_cast<double>(drafted[i]) - static_cast<double>(target[i]);
    loss += per_element * (std::abs(d) < 1 ? 0.5 * d * d : std::abs(d) - 0.5);
    gradient[i] = static_cast<T>(per_element * std::clamp(d, -1.0, 1.0));
  }
  drafter.logits_backward(std::span<const T>(ours), gradient);
  return loss;
}

/// Coupled sequential glancing distillation: a first pass, without dropout, finds how many rows of a text the
/// drafter gets wrong; in a share of as many rows, whole blocks of them, feature and token of the
/// input become those that the row should predict; a second pass on that input gives loss and gradient. So early epochs see right neighbours, the last one none.
/// Texts are the model's own answers, of one length. A text of n tokens has (n - block - 1) rows, down to whole blocks.
/// `Drafter`: `model::falcon_drafter`. One rank. Source: Falcon, arXiv:2412.12639.
template <class Drafter, class Backend>
class glancing_distillation {
 public:
  using T = typename Drafter::scalar;
  using text = model::feature_text<T>;

  /// Drafter and backend must outlive it. Errors: as `distillation_options::validate`.
  glancing_distillation(Drafter& drafter, Backend& backend, distillation_options o)
      : drafter_(&drafter), backend_(&backend), options_(std::move(o)) {
    options_.validate();
    first_.assign(drafter.weights().size(), T(0));
    second_ = first_;
  }

  /// One epoch, counted from 1, over all texts in random order. Errors: `config_error` for texts of different lengths, too short for a block, or with tokens that the vocabulary does not have.
  distillation_epoch run_epoch(const std::vector<text>& texts, std::int64_t epoch) {
    const std::int64_t rows = rows_of(texts);
    // As a trainer reads it: the cosine ends with the last epoch.
    if (options_.learning_rate.total_steps == 0)
      options_.learning_rate.total_steps =
          options_.epochs * ((std::ssize(texts) + options_.batch - 1) / options_.batch);
    const counter_random random(options_.seed, static_cast<std::uint64_t>(epoch));
    std::vector<std::pair<std::uint64_t, std::size_t>> order;
    for (std::size_t i = 0; i < texts.size(); ++i) order.emplace_back(random.integer(i), i);
    std::sort(order.begin(), order.end());
    distillation_epoch e;
    std::int64_t steps = 0;
    for (std::size_t at = 0; at < order.size(); at += static_cast<std::size_t>(options_.batch)) {
      begin_batch();
      for (std::size_t i = at; i < (std::min)(order.size(), at + static_cast<std::size_t>(options_.batch)); ++i)
        add(texts[order[i].second], rows, random, order[i].second + 1);
      e.loss += step(rows, epoch, random, e);
      ++steps;
    }
    e.loss /= static_cast<double>(steps);
    return e;
  }

 private:
  static std::size_t size(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }

  std::int64_t rows_of(const std::vector<text>& texts) const {
    const std::int64_t k = drafter_->shape().block;
    const std::int64_t length = texts.empty() ? 0 : std::ssize(texts[0].tokens);
    const std::int64_t rows = (length - k - 1) / k * k;
    for (const text& t : texts)
      if (std::ssize(t.tokens) != length || std::ssize(t.features) != length * drafter_->shape().width)
        throw config_error("heddle: glancing_distillation: each text should have " + std::to_string(length) +
                           " tokens and their features, got " + std::to_string(t.tokens.size()) + " and " +
                           std::to_string(t.features.size()) + " elements");
    for (const text& t : texts) drafter_->require_tokens(t.tokens, "glancing_distillation");
    if (rows < k)
      throw config_error("heddle: glancing_distillation: texts should have at least " + std::to_string(2 * k + 1) +
                         " tokens, got " + std::to_string(length));
    return rows;
  }
  void begin_batch() {
    for (std::vector<std::int32_t>* v : {&next_, &wanted_}) v->clear();
    for (std::vector<T>* v : {&features_, &target_}) v->clear();
    numbers_.clear();
  }
  void add(const text& t, std::int64_t rows, const counter_random& random, std::uint64_t number) {
    const std::int64_t k = drafter_->shape().block, d = drafter_->shape().width;
    next_.insert(next_.end(), t.tokens.begin() + 1, t.tokens.begin() + 1 + rows);
    wanted_.insert(wanted_.end(), t.tokens.begin() + k + 1, t.tokens.begin() + k + 1 + rows);
    target_.insert(target_.end(), t.features.begin() + k * d, t.features.begin() + (k + rows) * d);
    for (std::int64_t i = 0; i < rows * d; ++i) {
      const double u = random.uniform((number << 32) + static_cast<std::uint64_t>(i)) - 0.5;
      features_.push_back(t.features[size(i)] + static_cast<T>(options_.noise * u));
    }
    numbers_.push_back(number);
  }
  // Shows a share of the wrong rows of each text; the counts go to `e`.
  void glance(std::int64_t rows, double share, const counter_random& random, distillation_epoch& e) {
    const std::int64_t d = drafter_->shape().width, words = drafter_->vocabulary();
    const auto drafted = drafter_->forward(next_, features_, std::ssize(numbers_), rows);
    std::vector<T> logits(next_.size() * size(words));
    drafter_->logits_of(drafted, logits);
    for (std::size_t s = 0; s < numbers_.size(); ++s) {
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t r = static_cast<std::int64_t>(s) * rows + i;
        const auto row = logits.begin() + r * words;
        wrong += std::max_element(row, row + words) - row == wanted_[size(r)] ? 0 : 1;
      }
      const auto count = static_cast<std::int64_t>(share * static_cast<double>(wrong));
      for (const std::int64_t i :
           glanced_rows(rows, drafter_->shape().block, count, random, (numbers_[s] << 32) + (std::uint64_t{1} << 31))) {
        const std::int64_t r = static_cast<std::int64_t>(s) * rows + i;
        next_[size(r)] = wanted_[size(r)];
        std::copy_n(target_.begin() + r * d, d, features_.begin() + r * d);
        ++e.shown;
      }
      e.wrong += wrong;
    }
    e.rows += std::ssize(next_);
  }
  double step(std::int64_t rows, std::int64_t epoch, const counter_random& random, distillation_epoch& e) {
    glance(rows, glance_ratio(options_.glance, epoch, options_.epochs), random, e);
    // Numbers of a stream that noise and glancing, whose streams are epochs, do not have; of each step others.
    const counter_random mask(options_.seed, (std::uint64_t{1} << 63) + static_cast<std::uint64_t>(steps_));
    const auto drafted =
        drafter_->forward(next_, features_, std::ssize(numbers_), rows, {.rate = options_.dropout, .random = mask});
    gradient_.resize(drafted.size());
    const double loss = distillation_loss<T>(*drafter_, drafted, std::span<const T>(target_),
                                             std::span<const std::int32_t>(wanted_), options_, std::span<T>(gradient_));
    std::fill(drafter_->gradients().begin(), drafter_->gradients().end(), T(0));
    drafter_->backward(gradient_);
    const double norm =
        std::sqrt(compute::sum_of<compute::ops::sum_of_squares>(*backend_, std::span<const T>(drafter_->gradients())));
    compute::adamw_step a{.lr = options_.learning_rate(steps_),
                          .beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .weight_decay = options_.weight_decay,
                          .step = ++steps_};
    if (norm > options_.clip_norm) a.grad_scale = options_.clip_norm / norm;
    detail::rule_kernels<optimizers::by_default>::update<T>(*backend_, drafter_->weights(),
                                                            std::span<const T>(drafter_->gradients()),
                                                            std::array{std::span<T>(first_), std::span<T>(second_)}, a);
    return loss;
  }

  Drafter* drafter_;
  Backend* backend_;
  distillation_options options_;
  std::int64_t steps_ = 0;
  std::vector<T> first_{}, second_{}, features_{}, target_{}, gradient_{};
  std::vector<std::int32_t> next_{}, wanted_{};
  std::vector<std::uint64_t> numbers_{};
};

}  // namespace heddle::inline v0::train
