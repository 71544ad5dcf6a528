// tests/train/copied_stage.hpp: a stage of the host as one whose tensors lie in another memory.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace train_test {

namespace hd = heddle;

/// Weights, gradients and what stages pass on lie in the memory of `Backend`; each verb copies them to the stage of the host that
/// computes, and back. `Stage` has whole weights and gradients of its own: it must not be lent any.
template <class Stage, class Backend>
class copied_stage {
 public:
  using scalar = typename Stage::scalar;
  using space = hd::space_of<Backend>;
  using row = hd::row_view<scalar, space>;
  using const_row = hd::row_view<const scalar, space>;
  using flat_weights = typename Stage::flat_weights;
  using buckets = typename Stage::buckets;
  using loss = typename Stage::loss;
  using samples = typename Stage::samples;
  using batch = typename Stage::batch;

  template <class Config, class World, class Part>
  copied_stage(const Config& config, World& world, Backend& backend, Part part, int slots, std::int64_t samples, int n)
      : queue_(&hd::compute::queue_of(backend)),
        here_(config, world, backend, part, slots, samples, n),
        memory_(*queue_, 2 * here_.flat_elements()),
        weights_(hd::row_at<space>(memory_.address(), here_.flat_elements())),
        gradients_(hd::row_at<space>(memory_.address() + here_.flat_elements(), here_.flat_elements())) {}

  auto& queue() const { return *queue_; }
  std::int64_t boundary_elements(std::int64_t samples) const { return here_.boundary_elements(samples); }
  const auto& parameters() const { return here_.parameters(); }
  auto bucket_elements() const { return here_.bucket_elements(); }
  std::int64_t flat_elements() const { return here_.flat_elements(); }
  row weights() { return weights_; }
  row gradients() { return gradients_; }
  void lend_weights(row w) { weights_ = w; }
  void lend_gradients(row g) {
    gradients_ = g;
    zero_gradients();
  }
  void zero_gradients() { queue_->zero(gradients_); }
  void initialize(std::uint64_t seed) {
    here_.initialize(seed);
    queue_->copy(here_.weights(), weights_);
    queue_->wait();
  }

  void forward(int slot, const batch& b, const_row in, row out) {
    run(in, out, [&](auto x, auto y) { here_.forward(slot, b, x, y); });
  }
  void backward(int slot, const batch& b, const_row dout, row din) {
    run(dout, din, [&](auto dy, auto dx) { here_.backward(slot, b, dy, dx); });
  }
  void backward_input(int slot, const batch& b, const_row dout, row din) {
    run(dout, din, [&](auto dy, auto dx) { here_.backward_input(slot, b, dy, dx); });
  }
  void backward_weight(int slot, const batch& b) {
    run({}, {}, [&](auto, auto) { here_.backward_weight(slot, b); });
  }
  double loss_sum(int slot) const { return here_.loss_sum(slot); }
  double forward_only(const batch& b, const_row in, row out) {
    double loss = 0;
    run(in, out, [&](auto x, auto y) { loss = here_.forward_only(b, x, y); });
    return loss;
  }

 private:
  template <class F>
  void run(const_row in, row out, F&& f) {
    std::vector<scalar> x(static_cast<std::size_t>(in.size())), y(static_cast<std::size_t>(out.size()));
    queue_->copy(weights_, here_.weights());
    queue_->copy(in, x);
    const bool has_gradients = gradients_.size() > 0;  // a share of them may come and go
    if (has_gradients) queue_->copy(gradients_, here_.gradients());
    queue_->wait();
    f(std::span<const scalar>(x), std::span<scalar>(y));
    if (has_gradients) queue_->copy(here_.gradients(), gradients_);
    queue_->copy(y, out);
    queue_->wait();
  }

  typename space::queue* queue_;
  Stage here_;
  hd::buffer<scalar, space> memory_;
  row weights_, gradients_;
};

}  // namespace train_test
