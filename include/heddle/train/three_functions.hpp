// heddle/train/three_functions.hpp: training and prediction from three functions: collate, loss and predict.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/einsum.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/permutation.hpp>
#include <heddle/tensor/gradient.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/train/learning_rate.hpp>
#include <heddle/train/named_parameters.hpp>
#include <heddle/train/options.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// What a loss function returns for one micro-batch: the sum over the tokens (or examples) that this rank saw, and how
/// many count. Sums, not means: ranks and micro-batches hold different numbers of valid tokens.
struct token_loss {
  double sum = 0;
  std::int64_t tokens = 0;
};

/// Settings of `three_functions`.
struct three_functions_options {
  std::int64_t batch = 8;     ///< examples per optimizer step, over all ranks
  std::int64_t per_rank = 1;  ///< examples per micro-batch on each dp rank
  std::int64_t epochs = 1;
  warmup_cosine learning_rate{};  ///< `total_steps` 0: the steps of all epochs
  adamw_options adamw{};          ///< weight decay on parameters of two and more dimensions only
  double clip_norm = 1.0;         ///< infinity: never
  std::uint64_t seed = 1;         ///< of the initial weights, of the order of examples and of `context.random()`

  /// Errors: `config_error` naming the setting, its value and what would be accepted.
  void validate() const {
    learning_rate.validate();
    if (epochs < 0) detail::refuse_setting("epochs", std::to_string(epochs), "at least 0");
    detail::require_clip_norm(clip_norm);
    adamw.validate();
  }
};

/// One step, the same on every rank.
struct three_functions_step {
  std::int64_t step = 0;  ///< from 0
  double loss = 0;        ///< mean over all tokens of the batch
  std::int64_t tokens = 0;
  double gradient_norm = 0;  ///< before clipping; each logical element once
  double learning_rate = 0;
};

namespace detail {
// Carries the parameter's name and both numbers of dimensions into the compiler's message.
template <class Parameter, std::size_t Given, std::size_t Wanted>
struct gradient_has_the_rank_of {
  static constexpr bool value = Given == Wanted;
};
}  // namespace detail

/// What loss and predict compute with: the parameters, a backend and the world. `training()` tells the two uses apart.
template <class T, named_model Model, class World, class Rules, class Backend>
class named_context {
 public:
  using value_type = T;
  using mesh_type = typename World::mesh_type;
  using parameters = named_parameters<T, Model, mesh_type, Rules>;
  /// Activations between layers, [rows, width]: rows split over dp, one value along tp.
  using activations = layout_if<mesh_type, shard<0, dp>, identical<tp>>;

  named_context(Backend& backend, World& world, parameters& all) : backend_(backend), world_(world), all_(all) {}

  Backend& compute() noexcept { return backend_; }
  World& world() noexcept { return world_; }
  bool training() const noexcept { return training_; }
  void set_training(bool on) noexcept { training_ = on; }

  /// Random numbers of this step, a pure function of (seed, step, use), the same on every rank. Give each use (each
  /// dropout) a number of its own, below 2^20, and address elements by their place in the batch, which no mesh changes:
  /// this rank's examples of the micro-batch are `first_example()`, `first_example() + 1`, ... of it.
  counter_random random(std::uint64_t use = 0) const noexcept {
    return {seed_, std::uint64_t{1} << 63 | static_cast<std::uint64_t>(step_) << 20 | use};
  }
  std::int64_t first_example() const noexcept { return first_example_; }
  void set_place(std::uint64_t seed, std::int64_t step, std::int64_t first_example) noexcept {
    seed_ = seed;
    step_ = step;
    first_example_ = first_example;
  }

  template <fixed_string Path>
  const auto& weight() {
    return all_.template of<Path>().weight;
  }

  /// Adds to a parameter's gradient, whatever layout the contribution has: a missing sum or gather along an axis is in
  /// the types and is done here. Sums over dp stay open until the step.
  /// Errors: `layout_error` naming the parameter if the contribution has another shape; a compile error for another
  /// number of dimensions.
  template <fixed_string Path, std::size_t Rank, layout_like L>
  void add_gradient(sharded<T, Rank, L>&& g) {
    auto& target = all_.template of<Path>().gradient;
    using target_type = std::remove_cvref_t<decltype(target)>;
    constexpr bool fits = Rank == target_type::dimensions;
    static_assert(detail::gradient_has_the_rank_of<heddle::v0::detail::parameter_named<Path>, Rank,
                                                   target_type::dimensions>::value,
                  "heddle: add_gradient: the contribution has another number of dimensions than the parameter; a "
                  "gradient has the shape of its parameter");
    if constexpr (fits) {
      if (!(g.shape() == target.shape())) {
        std::string text = "heddle: add_gradient: the parameter ";
        text += Path.view();
        text += " is of shape ";
        text += to_string(target.shape());
        text += ", its gradient was given as ";
        text += to_string(g.shape());
        throw layout_error(text);
      }
      const auto settled = redistribute<typename target_type::layout_type>(std::move(g), world_);
      const std::span<T> sum = target.elements();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += settled.elements()[i];
    }
  }

  /// This rank's rows of an activation: `local` rows of `width` values, all dp ranks together `local * dp` rows.
  sharded<T, 2, activations> make_activations(std::int64_t local_rows, std::int64_t width) {
    return {activations{world_.mesh()}, shape{local_rows * world_.mesh().template extent_or_one<dp>(), width},
            world_.rank()};
  }
  /// The same tensor in another layout, by as many collectives as it takes.
  template <layout_like To, std::size_t Rank, layout_like From>
  sharded<T, Rank, To> convert(sharded<T, Rank, From>&& x) {
    return redistribute<To>(std::move(x), world_);
  }

 private:
  Backend& backend_;
  World& world_;
  parameters& all_;
  bool training_ = true;
  std::uint64_t seed_ = 0;
  std::int64_t step_ = 0, first_example_ = 0;
};

namespace detail {
// What a product with this weight wants of its input along tp: all of it for a split of the outputs, the matching part
// for a split of the inputs, the one value for a copy.
template <class Mesh, class Weight>
struct input_of_product {
  using type =
      std::conditional_t<Weight::template is_sharded_on<tp>,
                         std::conditional_t<Weight::template dim_of<tp> == 0,
                                            layout_if<Mesh, shard<0, dp>, shard<1, tp>>, layout_if<Mesh, shard<0, dp>>>,
                         layout_if<Mesh, shard<0, dp>, identical<tp>>>;
};
}  // namespace detail

/// y = x W for the parameter `Path` [in, out], whatever its layout: the input is brought to what the split of W needs
/// (nothing is sent where it fits), the product is local. A column layer leaves y split, a row layer leaves it a sum.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
template <fixed_string Path>
struct named_linear {
  static_assert(!heddle::v0::detail::same_text(heddle::v0::detail::path_part(Path.view(), 0), "weight"),
                "heddle: named_linear<path>: multiplies by a kernel [in, out], and what PyTorch calls weight is [out, "
                "in]; list the "
                "parameter as a kernel, or use einsum<\"bi,oi->bo\">");
  /// The product's input as the product saw it. A layer object holds one for each forward that awaits its backward.
  template <class Context, layout_like From>
  struct saved {
    using input = typename detail::input_of_product<
        typename Context::mesh_type,
        typename std::remove_cvref_t<decltype(std::declval<Context&>().template weight<Path>())>::layout_type>::type;
    using source = From;
    sharded<typename Context::value_type, 2, input> x;
  };

  /// The result, and what backward needs.
  template <class Context, class T, layout_like From>
  static auto forward(Context& c, sharded<T, 2, From>&& x) {
    using kept = saved<Context, From>;
    kept s{c.template convert<typename kept::input>(std::move(x))};
    auto y = compute::einsum<"bi,io->bo">(c.compute(), c.world(), s.x, c.template weight<Path>());
    return std::pair<decltype(y), kept>(std::move(y), std::move(s));
  }
  /// The input's gradient, in the dual of its layout; adds the weight's. `dy` may have any layout.
  template <class Context, class Saved, class T, layout_like From>
  static auto backward(Context& c, const Saved& s, sharded<T, 2, From>&& dy) {
    const auto& w = c.template weight<Path>();
    using weight_layout = typename std::remove_cvref_t<decltype(w)>::layout_type;
    using result = dual<propagate<"bi,io->bo", typename Saved::input, weight_layout>>;
    const auto g = c.template convert<result>(std::move(dy));
    c.template add_gradient<Path>(compute::einsum_gradient<"bi,io->bo", 1>(c.compute(), c.world(), g, s.x, w));
    return c.template convert<dual<typename Saved::source>>(
        compute::einsum_gradient<"bi,io->bo", 0>(c.compute(), c.world(), g, s.x, w));
  }
};

/// Trains and predicts; made by `three_functions`.
template <class T, named_model Model, class World, class Collate, class Loss, class Predict, class Rules, class Backend>
class three_function_pipeline {
 public:
  using context = named_context<T, Model, World, Rules, Backend>;
  using parameters = typename context::parameters;

  /// Errors: `config_error` if the batch is no whole number of micro-batches, naming the numbers, and as
  /// `three_functions_options::validate`.
  three_function_pipeline(World& world, Collate collate, Loss loss, Predict predict,
                          const three_functions_options& options)
      : world_(world),
        options_(options),
        collate_(std::move(collate)),
        loss_(std::move(loss)),
        predict_(std::move(predict)),
        all_(world.mesh(), world.rank()),
        context_(backend_, world, all_) {
    const std::int64_t micro = options.per_rank * replicas();
    if (options.batch < 1 || options.per_rank < 1 || options.batch % micro != 0) {
      std::string text = "heddle: three_functions: a batch of ";
      text += std::to_string(options.batch);
      text += " examples is no whole number of micro-batches of ";
      text += std::to_string(options.per_rank);
      text += " on each of ";
      text += std::to_string(replicas());
      text += " dp ranks; choose a multiple of ";
      text += std::to_string(micro);
      throw config_error(text);
    }
    options.validate();
    all_.initialize(options.seed);
  }
  three_function_pipeline(const three_function_pipeline&) = delete;
  three_function_pipeline& operator=(const three_function_pipeline&) = delete;

  parameters& all() noexcept { return all_; }
  /// Micro-batches per step.
  std::int64_t accumulate() const { return options_.batch / (options_.per_rank * replicas()); }

  /// Trains for all epochs, calling `report(three_functions_step)` after each step. Every rank passes the same list; its
  /// order is drawn anew each epoch, the same on all ranks; what does not fill a batch is left out of that epoch.
  /// A second run goes on: epochs and steps are counted through, and a learning rate with `total_steps` 0 ends with it.
  template <class Example, class Report>
  void run(const std::vector<Example>& examples, Report&& report) {
    const std::int64_t count = static_cast<std::int64_t>(examples.size()), steps = count / options_.batch;
    warmup_cosine rate = options_.learning_rate;
    if (rate.total_steps == 0) rate.total_steps = step_ + steps * options_.epochs;
    for (std::int64_t epoch = 0; epoch < options_.epochs; ++epoch) {
      const io::permutation order(count, options_.seed, static_cast<std::uint64_t>(epoch_++));
      for (std::int64_t s = 0; s < steps; ++s) {
        std::vector<std::int64_t> chosen;
        for (std::int64_t i = 0; i < options_.batch; ++i) chosen.push_back(order(s * options_.batch + i));
        const three_functions_step before = loss_and_gradients(examples, chosen);
        report(update(before, rate(step_)));
      }
    }
  }

  /// Loss and gradients of some examples, in whole micro-batches: afterwards each parameter's `gradient` holds this
  /// rank's contribution to the gradient of the summed loss. The result's `loss` is the mean over tokens.
  /// Errors: `config_error` if `chosen` is no whole number of micro-batches or names no example; `numeric_error` if no
  /// token counts, or the loss is not finite.
  template <class Example>
  three_functions_step loss_and_gradients(const std::vector<Example>& examples,
                                          const std::vector<std::int64_t>& chosen) {
    const std::int64_t micro = options_.per_rank * replicas();
    require_chosen(chosen, static_cast<std::int64_t>(examples.size()), micro);
    all_.zero_gradients();
    context_.set_training(true);
    std::array<double, 2> sums{};
    for (std::int64_t at = 0; at + micro <= static_cast<std::int64_t>(chosen.size()); at += micro) {
      const auto batch = collate_(mine(examples, chosen, at));
      context_.set_place(options_.seed, step_, at + part() * options_.per_rank);
      const token_loss l = loss_(context_, batch);
      sums[0] += l.sum;
      sums[1] += static_cast<double>(l.tokens);
    }
    world_.template control_along_if<dp>().all_reduce(std::span<double>(sums), plus{});
    if (!(sums[1] > 0)) throw numeric_error("heddle: three_functions: no token of the batch counts towards the loss");
    require_finite("loss", sums[0]);
    return {step_, sums[0] / sums[1], static_cast<std::int64_t>(sums[1]), 0, 0};
  }

  /// One AdamW step with the gradients of `loss_and_gradients`.
  /// Errors: `numeric_error`, the same on every rank, if the gradients' norm is not finite; the weights stay as they were.
  three_functions_step update(three_functions_step now, double rate) {
    double squares = 0;
    all_.for_each([&](auto& p, const named_shape&) {
      using layout_type = typename std::remove_cvref_t<decltype(p)>::layout_type;
      using gradient_type = std::remove_cvref_t<decltype(p.gradient)>;
      auto whole = settle_gradient<layout_type>(std::move(p.gradient), world_);  // the sum over dp
      if (whole.layout().is_primary(world_.rank()))
        squares += backend_.sum_of_squares(std::span<const T>(whole.elements()));
      // Kept where it was, so that the step needs no second set of buffers.
      p.gradient = gradient_type(p.gradient.layout(), whole.shape(), world_.rank(), std::move(whole).release());
    });
    std::array<double, 1> total{squares};
    world_.control().all_reduce(std::span<double>(total), plus{});
    const double per_token = 1.0 / static_cast<double>(now.tokens);
    now.gradient_norm = std::sqrt(total[0]) * per_token;
    require_finite("gradients' norm", now.gradient_norm);
    now.learning_rate = rate;
    compute::adamw_step hyper{};
    hyper.lr = rate;
    hyper.beta1 = options_.adamw.beta1;
    hyper.beta2 = options_.adamw.beta2;
    hyper.eps = options_.adamw.epsilon;
    hyper.step = ++step_;
    hyper.grad_scale = per_token * (std::min)(1.0, options_.clip_norm / (now.gradient_norm + 1e-6));
    all_.for_each([&](auto& p, const named_shape& d) {
      hyper.weight_decay = d.rank >= 2 ? options_.adamw.weight_decay : 0.0;
      backend_.adamw(p.weight.elements(), std::span<const T>(p.gradient.elements()), p.first_moment.elements(),
                     p.second_moment.elements(), hyper);
    });
    all_.zero_gradients();
    return now;
  }

  /// One output per example, in their order, the same on every rank. A last batch that is not full is filled up with
  /// its last example and cut again.
  /// Errors: `layout_error` if the function returns another number of outputs than it got examples.
  template <class Example>
  auto predict(const std::vector<Example>& examples) {
    context_.set_training(false);
    const std::int64_t count = static_cast<std::int64_t>(examples.size()), micro = options_.per_rank * replicas();
    using outputs = decltype(predict_(context_, collate_(examples)));
    using value = typename outputs::value_type;
    outputs all;
    for (std::int64_t at = 0; at < count; at += micro) {
      std::vector<std::int64_t> chosen;
      for (std::int64_t i = at; i < at + micro; ++i) chosen.push_back((std::min)(i, count - 1));
      context_.set_place(options_.seed, step_, at + part() * options_.per_rank);
      const outputs own = predict_(context_, collate_(mine(examples, chosen, 0)));
      if (static_cast<std::int64_t>(own.size()) != options_.per_rank) {
        std::string text = "heddle: three_functions: predict got ";
        text += std::to_string(options_.per_rank);
        text += " examples and returned ";
        text += std::to_string(own.size());
        text += " outputs";
        throw layout_error(text);
      }
      outputs together(static_cast<std::size_t>(micro));
      world_.template control_along_if<dp>().all_gather(std::span<const value>(own), std::span<value>(together));
      const auto wanted = static_cast<std::ptrdiff_t>((std::min)(micro, count - at));
      all.insert(all.end(), together.begin(), together.begin() + wanted);
    }
    return all;
  }

 private:
  std::int64_t replicas() const { return world_.mesh().template extent_or_one<dp>(); }

  std::int64_t part() const {
    if constexpr (World::mesh_type::template has<dp>) return world_.template coordinate<dp>();
    return 0;
  }

  // Every rank holds the same value, so that all of them throw.
  void require_finite(const char* what, double value) const {
    if (std::isfinite(value)) return;
    std::string text = "heddle: three_functions: the ";
    text += what;
    text += " of step ";
    text += std::to_string(step_);
    text += " is ";
    text += std::to_string(value);
    text += "; the weights were not changed by it";
    throw numeric_error(text);
  }
  static void require_chosen(const std::vector<std::int64_t>& chosen, std::int64_t examples, std::int64_t micro) {
    const auto given = static_cast<std::int64_t>(chosen.size());
    if (given < 1 || given % micro != 0) {
      std::string text = "heddle: three_functions: ";
      text += std::to_string(given);
      text += " chosen examples are no whole number of micro-batches of ";
      text += std::to_string(micro);
      throw config_error(text);
    }
    for (const std::int64_t i : chosen)
      if (i < 0 || i >= examples) {
        std::string text = "heddle: three_functions: example ";
        text += std::to_string(i);
        text += " was chosen of ";
        text += std::to_string(examples);
        throw config_error(text);
      }
  }

  // This dp rank's examples of the micro-batch that begins at `at`.
  template <class Example>
  std::vector<Example> mine(const std::vector<Example>& examples, const std::vector<std::int64_t>& chosen,
                            std::int64_t at) const {
    const std::int64_t first = at + part() * options_.per_rank;
    std::vector<Example> result;
    for (std::int64_t i = 0; i < options_.per_rank; ++i)
      result.push_back(examples[static_cast<std::size_t>(chosen[static_cast<std::size_t>(first + i)])]);
    return result;
  }

  World& world_;
  three_functions_options options_;
  Collate collate_;
  Loss loss_;
  Predict predict_;
  Backend backend_{};
  parameters all_;
  context context_;
  std::int64_t step_ = 0, epoch_ = 0;
};

/// A pipeline from three functions; layouts of the parameters follow from their names and shapes.
///
///     collate(std::vector<Example>) -> batch              on the host, for this dp rank's examples
///     loss(context&, batch) -> token_loss                 computes the loss, and adds gradients of the summed loss
///     predict(context&, batch) -> std::vector<Output>     one trivially copyable output per example
///
/// The same three functions run on any mesh with or without the axes dp and tp, and give the same numbers up to rounding.
/// `auto p = train::three_functions<model, double>(world, collate, loss, predict, options); p.run(examples, report);`
/// Errors: `config_error` if the batch is no whole number of micro-batches.
/// Source: Tan et al., "Redco", arXiv:2310.16355, section 3.2. Loss and gradients are weighted by tokens instead of by
/// replicas, whose means would be wrong where they hold different numbers of valid tokens.
template <named_model Model, class T, class Rules = redco_rules, class Backend = compute::host<>, class World,
          class Collate, class Loss, class Predict>
auto three_functions(World& world, Collate collate, Loss loss, Predict predict,
                     const three_functions_options& options) {
  return three_function_pipeline<T, Model, World, Collate, Loss, Predict, Rules, Backend>(
      world, std::move(collate), std::move(loss), std::move(predict), options);
}

}  // namespace heddle::inline v0::train
