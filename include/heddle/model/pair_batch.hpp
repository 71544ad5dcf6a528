// heddle/model/pair_batch.hpp: a microbatch of pairs (x, y), and sample types of batches.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/layer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model {

/// One microbatch of pairs (x, y). `inputs` [samples, context, inputs] are needed on the first stage, `targets` on the last:
/// classes (an integer for each row; negative: ignored) or numbers [samples, context, outputs]; behind `layers::pooled`, which takes
/// the mean of a sample's rows, an integer or [outputs] numbers for each sample. `loss_scale` multiplies the gradient:
/// 1 / (targets of the whole step). `sequence` stays 0: every sample has the rows of the configuration.
template <class T, class Target = T>
struct pair_batch {
  std::span<const T> inputs{};
  std::span<const Target> targets{};
  int samples = 0;
  sum_of_type<T> loss_scale = 1;
  int sequence = 0;
};

/// Numbers of one sample, how many of its rows have targets of their own, and of how many numbers a target is that counts.
struct sample_extents {
  std::int64_t inputs = 0, targets = 0;
  std::int64_t target_rows = 1;
  std::int64_t numbers_of_target = 1;
  friend constexpr bool operator==(const sample_extents&, const sample_extents&) = default;
};

/// What a sample of a batch holds: the types of its numbers, how many there are, and how a batch is given them. This one is of
/// tokens. A batch of your own specialises it, and has overloads of `inputs_of` and `checked_batch` in its namespace.
template <class Batch>
struct batch_contents {
  using input = std::int32_t;
  using target = std::int32_t;
  template <class Config>
  static constexpr sample_extents extents(const Config& c) {
    return {c.context, c.context};
  }
  static void give(Batch& b, std::span<const input> inputs, std::span<const target> targets) {
    b.tokens = inputs;
    b.targets = targets;
  }
};
template <class T, class Target>
struct batch_contents<pair_batch<T, Target>> {
  using input = T;
  using target = Target;
  template <class Config>
  static constexpr sample_extents extents(const Config& c) {
    return {std::int64_t{c.context} * c.inputs, std::is_integral_v<Target> ? 1 : c.outputs};
  }
  static void give(pair_batch<T, Target>& b, std::span<const input> inputs, std::span<const target> targets) {
    b.inputs = inputs;
    b.targets = targets;
  }
};

/// Whether each row of a sample has targets of its own, such as the pixels of an image that become those of another: samples are
/// pairs, and the head of the model takes no mean of rows.
template <class Batch, class Head>
inline constexpr bool has_targets_of_rows = false;
template <class T, class Target, class Head>
inline constexpr bool has_targets_of_rows<pair_batch<T, Target>, Head> =
    requires { Head::takes_classes; } && !requires { requires Head::takes_means; };

/// Numbers of one sample of a model whose last layer is `Head`.
template <class Batch, class Head, class Config>
constexpr sample_extents extents_of_sample(const Config& c) {
  sample_extents one = batch_contents<Batch>::extents(c);
  if constexpr (has_targets_of_rows<Batch, Head>) {
    one.target_rows = c.context;
    one.targets *= c.context;
  }
  return one;
}

namespace detail {
template <class Model>
struct head_of {
  using type = void;  // of a stage of one's own
};
template <class Model>
  requires requires(const typename Model::config& c) { Model::describe(c).out; }
struct head_of<Model> {
  using type = std::remove_cvref_t<decltype(Model::describe(std::declval<const typename Model::config&>()).out)>;
};
}  // namespace detail
/// The same of a model.
template <class Model>
constexpr sample_extents extents_of_model(const typename Model::config& c) {
  return extents_of_sample<typename Model::batch, typename detail::head_of<Model>::type>(c);
}

/// What the first layer of a model reads: token ids, or a matrix [rows, inputs].
template <class Config, class T>
compute::token_ids inputs_of(const Config&, const batch<T>& b, extent_of_batch) {
  return b.tokens;
}
template <class Config, class T, class Target>
matrix_view<const T> inputs_of(const Config& c, const pair_batch<T, Target>& b, extent_of_batch e) {
  return {b.inputs.data(), dynamic_shape<2>(e.rows(), c.inputs)};
}

/// The extent of a microbatch, `target_rows` rows of each sample having targets. Errors: `config_error` naming what does not fit: samples,
/// numbers, or classes.
template <class Config, class T, class Target>
extent_of_batch checked_batch(const Config& config, std::int64_t max_samples, const pair_batch<T, Target>& b,
                              bool reads_inputs, bool reads_targets, std::int64_t target_rows = 1) {
  if (b.samples < 0 || b.samples > max_samples)
    throw config_error("heddle: a microbatch of " + std::to_string(b.samples) + " samples; this stage has room for " +
                       std::to_string(max_samples));
  if (b.sequence != 0)
    throw config_error("heddle: samples of pairs have the rows of the configuration: sequence must be 0, got " +
                       std::to_string(b.sequence));
  const sample_extents one = batch_contents<pair_batch<T, Target>>::extents(config);
  const auto require = [&](std::size_t got, std::int64_t of_sample, const char* what) {
    if (static_cast<std::int64_t>(got) != b.samples * of_sample)
      throw config_error("heddle: a microbatch of " + std::to_string(b.samples) + " samples of " +
                         std::to_string(of_sample) + " " + what + " came with " + std::to_string(got));
  };
  if (reads_inputs) require(b.inputs.size(), one.inputs, "inputs");
  if (reads_targets) {
    require(b.targets.size(), one.targets * target_rows, "targets");
    if constexpr (std::is_integral_v<Target>)
      for (const Target id : b.targets)
        if (id >= config.outputs)
          throw config_error("heddle: targets hold the class " + std::to_string(id) + ", outside the " +
                             std::to_string(config.outputs) + " of the model");
  }
  return {b.samples, config.context};
}

namespace detail {
// The same where the last layer of the model is `Head`.
template <class Head, class Config, class Batch>
extent_of_batch checked_batch_of(const Config& config, std::int64_t max_samples, const Batch& b, bool reads_inputs,
                                 bool reads_targets) {
  if constexpr (has_targets_of_rows<Batch, Head>)
    return checked_batch(config, max_samples, b, reads_inputs, reads_targets, config.context);
  else
    return checked_batch(config, max_samples, b, reads_inputs, reads_targets);
}
}  // namespace detail

}  // namespace heddle::inline v0::model
