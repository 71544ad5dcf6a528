// heddle/train/three_functions_stage.hpp: the stage made of three functions.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/named_context.hpp>
#include <heddle/train/observed_world.hpp>
#include <heddle/train/progress.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// A microbatch of examples that stay where they are: `inputs` [samples, 2], each example's place in the list and in the
/// batch of the step. How many targets count, only the loss function knows: `targets` [samples] say nothing.
template <class T>
struct example_batch {
  std::span<const std::int64_t> inputs{};
  std::span<const std::int8_t> targets{};
  int samples = 0;
  T loss_scale = T(1);
  int sequence = 0;
};

/// Where the settings of a model would be: its functions, which outlive the trainer.
template <named_model Model, class Collate, class Loss>
struct three_functions_config {
  const Collate* collate = nullptr;
  const Loss* loss = nullptr;
  std::int64_t context = 1;

  void validate() const {}
  /// The parameters, in few words: a save with others is refused.
  friend std::string to_string(const three_functions_config&) {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    std::size_t count = 0;
    for (const named_shape& p : Model::parameters) {
      for (const char c : p.path) add(static_cast<unsigned char>(c));
      for (int d = 0; d < p.rank; ++d) add(static_cast<std::uint64_t>(p.extents[static_cast<std::size_t>(d)]));
      add(static_cast<std::uint64_t>(p.rank));
      ++count;
    }
    return text_of({"named parameters=", count, " fingerprint=", hash});
  }
};

/// All of the model on one rank of the pipeline. The loss function is called in `forward` and adds gradients there, so that
/// nothing is saved and the backwards have nothing to do.
template <class T, named_model Model, class World, class Rules, class Backend, class Collate, class Loss>
class three_functions_stage {
 public:
  using scalar = T;
  using space = space_of<Backend>;
  using row = row_view<T, space>;
  using const_row = row_view<const T, space>;
  using batch = example_batch<T>;
  using mesh_type = std::remove_cvref_t<decltype(std::declval<World&>().mesh())>;
  /// The functions' own collectives are not reported to an observer.
  using functions_world = std::remove_reference_t<decltype(detail::unobserved(std::declval<World&>()))>;
  using context = named_context<T, Model, functions_world, Rules, Backend>;
  using axes = type_list<dp, tp>;
  using flat_weights = layout_if<mesh_type, varying<tp>>;
  using loss = layout_if<mesh_type, partial<plus, dp>, identical<tp>>;

  three_functions_stage(const three_functions_config<Model, Collate, Loss>& config, World& world, Backend& backend, int,
                        int slots, std::int64_t, int)
      : collate_(*config.collate),
        loss_(*config.loss),
        all_(compute::queue_of(backend), world.mesh(), world.rank()),
        context_(backend, detail::unobserved(world), all_),
        sums_(static_cast<std::size_t>(slots)),
        added_(compute::queue_of(backend), slots + 1, "the losses of microbatches") {}
  three_functions_stage(const three_functions_stage&) = delete;
  three_functions_stage& operator=(const three_functions_stage&) = delete;

  typename space::queue& queue() noexcept { return context_.queue(); }
  typename context::parameters& all() noexcept { return all_; }
  context& functions_context() noexcept { return context_; }
  /// The examples that batches are of, and who knows the step. Both must live while batches come.
  template <class Example>
  void read(const std::vector<Example>& examples, const progress& run) {
    examples_ = &examples;
    run_ = &run;
    loss_of_ = [](three_functions_stage& self, const batch& b) {
      const auto& listed = *static_cast<const std::vector<Example>*>(self.examples_);
      std::vector<Example> some;
      some.reserve(static_cast<std::size_t>(b.samples));
      for (std::size_t i = 0; i < b.inputs.size(); i += 2)
        some.push_back(listed[static_cast<std::size_t>(b.inputs[i])]);
      return self.loss_(self.context_, self.collate_(some));
    };
  }

  const std::vector<model::parameter>& parameters() const noexcept { return all_.table(); }
  row weights() noexcept { return all_.weights(); }
  row gradients() noexcept { return all_.gradients(); }
  void zero_gradients() {
    all_.zero_gradients(queue());
    targets_ = 0;
  }
  void initialize(std::uint64_t seed) {
    seed_ = seed;
    all_.initialize(queue(), seed);
  }
  std::int64_t boundary_elements(std::int64_t) const noexcept { return 0; }

  void forward(int slot, const batch& b, const_row, row) {
    const token_loss l = run_loss(b, true, slot);
    sums_[static_cast<std::size_t>(slot)] = l.sum;
    targets_ += l.tokens;
  }
  void backward(int, const batch&, const_row, row) {}
  void backward_input(int, const batch&, const_row, row) {}
  void backward_weight(int, const batch&) {}
  /// Waits for the queue where the loss is in its memory.
  double loss_sum(int slot) { return sums_[static_cast<std::size_t>(slot)] + added(slot); }
  /// To a number in the stage's memory, in the order of the queue.
  void copy_loss(int slot, scalar_view<double, space> to)
    requires(!host_accessible_space<space>)
  {
    double& sum = sums_[static_cast<std::size_t>(slot)];
    if (sum == 0) return queue().copy(number(slot), to);
    sum = loss_sum(slot);  // both halves, added on the host, which the function has waited for anyway
    queue().copy(std::span<const double>(&sum, 1), to);
    queue().wait();
  }
  static constexpr bool adds_gradients_in_forward = true;
  std::int64_t counted_targets() const noexcept { return targets_; }
  double forward_only(const batch& b, const_row, row) { return loss_of(b, false).sum; }

  /// The loss of some examples. Gradients of the loss times `b.loss_scale` are added, or none are.
  token_loss loss_of(const batch& b, bool gradients) {
    const int beside = static_cast<int>(sums_.size());
    token_loss l = run_loss(b, gradients, beside);
    l.sum += added(beside);
    return l;
  }

 private:
  scalar_view<double, space> number(int slot) noexcept { return {added_.address() + slot, {}}; }
  // What kernels have added to the number of a slot.
  double added(int slot) {
    double sum = 0;
    queue().copy(number(slot), std::span<double>(&sum, 1));
    queue().wait();
    return sum;
  }
  token_loss run_loss(const batch& b, bool gradients, int slot) {
    queue().zero(number(slot));
    if (b.samples == 0) return {};
    context_.set_training(gradients);
    context_.set_gradient_scale(gradients ? b.loss_scale : T(0));
    context_.set_place(seed_, run_->steps_done(), b.inputs[1]);
    context_.set_loss_sum(number(slot).address());
    return loss_of_(*this, b);
  }

  const Collate& collate_;
  const Loss& loss_;
  typename context::parameters all_;
  context context_;
  std::vector<double> sums_;     // by slot: what the function returned
  buffer<double, space> added_;  // by slot, then the one of `loss_of`: what kernels added
  std::int64_t targets_ = 0;
  std::uint64_t seed_ = 0;
  const void* examples_ = nullptr;
  const progress* run_ = nullptr;
  token_loss (*loss_of_)(three_functions_stage&, const batch&) = nullptr;
};

/// What a trainer trains: a loss over named parameters, all of it on one rank of the pipeline.
template <class T, named_model Model, class Rules, class Collate, class Loss>
struct three_functions_model {
  using scalar = T;
  using config = three_functions_config<Model, Collate, Loss>;
  using batch = example_batch<T>;
  template <class World, class Backend>
  using stage = three_functions_stage<T, Model, World, Rules, Backend, Collate, Loss>;
  /// Errors: `config_error` if the schedule cuts the model.
  static int layers_of(const config&, int part, int parts) {
    if (parts != 1)
      throw config_error("heddle: three_functions: a loss function cannot be cut into the " + std::to_string(parts) +
                         " stages of the schedule; use a pipeline axis of one rank and a schedule of one stage");
    return part;
  }
};

}  // namespace heddle::inline v0::train

namespace heddle::inline v0::model {

template <class T>
struct batch_contents<train::example_batch<T>> {
  using input = std::int64_t;
  using target = std::int8_t;
  template <class Config>
  static constexpr sample_extents extents(const Config&) {
    return {2, 1};
  }
  static void give(train::example_batch<T>& b, std::span<const input> inputs, std::span<const target> targets) {
    b.inputs = inputs;
    b.targets = targets;
  }
};

}  // namespace heddle::inline v0::model
