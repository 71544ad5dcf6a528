// heddle/io/tokens/token_source.hpp: training samples from files of tokens, on any mesh alike.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/tokens/token_store.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// The samples of a store in an order such as `gpt_order`, as `trainer.run` takes them (`train::sample_source`): sample
/// i is the same on every mesh, and nothing is kept between calls. `store` must outlive it.
template <token_store Store, class Order>
class token_source {
 public:
  /// `vocabulary`: of the model. `held_out`: the order of validation samples, of which the first `options().samples`
  /// are used.
  /// Errors: `config_error` if both orders have not the same context, or the vocabulary is below 1.
  token_source(const Store& store, Order order, std::int64_t vocabulary, std::optional<Order> held_out = {})
      : store_(&store), order_(std::move(order)), held_out_(std::move(held_out)), vocabulary_(vocabulary) {
    if (vocabulary < 1)
      throw config_error("heddle: a vocabulary has 1 or more tokens, not " + std::to_string(vocabulary));
    if (held_out_ && held_out_->options().context != context())
      throw config_error("heddle: samples for training have " + std::to_string(context()) +
                         " tokens, those for validation " + std::to_string(held_out_->options().context));
  }

  std::int64_t context() const noexcept { return order_.options().context; }
  std::int64_t validation_samples() const noexcept { return held_out_ ? held_out_->options().samples : 0; }
  const Order& order() const noexcept { return order_; }

  /// Shapes: as `basic_dataset::fill_train`. Errors: `config_error` if there is not enough room, or the order has not
  /// so many samples; `io_error` naming document and place of a token that is not in the vocabulary.
  template <class Id>
  void fill_train(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    fill(order_, block, inputs, targets);
  }
  template <class Id>
  void fill_validation(sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    if (block.first < 0 || block.count < 0 || block.first + block.count > validation_samples())
      throw config_error("heddle: validation samples " + std::to_string(block.first) + " to " +
                         std::to_string(block.first + block.count) + " asked, there are " +
                         std::to_string(validation_samples()));
    if (block.count > 0) fill(*held_out_, block, inputs, targets);
  }

 private:
  template <class Id>
  void fill(const Order& order, sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    const auto n = static_cast<std::size_t>(context());
    const auto needed = static_cast<std::size_t>(block.count) * n;
    if (inputs.size() < needed || targets.size() < needed)
      throw config_error("heddle: " + std::to_string(block.count) + " samples of " + std::to_string(n) +
                         " tokens need " + std::to_string(needed) + " elements, got room for " +
                         std::to_string(inputs.size()) + " inputs and " + std::to_string(targets.size()) + " targets");
    std::vector<Id> sample(n + 1);
    for (std::int64_t i = 0; i < block.count; ++i) {
      std::size_t at = 0;
      order.each_piece(block.first + i, [&](std::int64_t document, std::int64_t first, std::int64_t count) {
        const auto piece = std::span<Id>(sample).subspan(at, static_cast<std::size_t>(count));
        store_->copy(document, first, piece);
        for (std::size_t t = 0; t < piece.size(); ++t)
          if (static_cast<std::int64_t>(piece[t]) < 0 || static_cast<std::int64_t>(piece[t]) >= vocabulary_)
            throw io_error("heddle: token " + std::to_string(first + static_cast<std::int64_t>(t)) + " of document " +
                           std::to_string(document) + " is " + std::to_string(piece[t]) +
                           "; the model's vocabulary has " + std::to_string(vocabulary_));
        at += piece.size();
      });
      const std::size_t to = static_cast<std::size_t>(i) * n;
      for (std::size_t t = 0; t < n; ++t) {
        inputs[to + t] = sample[t];
        targets[to + t] = sample[t + 1];
      }
    }
  }

  const Store* store_;
  Order order_;
  std::optional<Order> held_out_;
  std::int64_t vocabulary_;
};

}  // namespace heddle::inline v0::io
