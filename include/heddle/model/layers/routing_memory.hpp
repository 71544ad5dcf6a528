// heddle/model/layers/routing_memory.hpp: integers of routing, for one layer at a time.
#pragma once

#include <heddle/model/layers/exchange_routes.hpp>
#include <heddle/model/layers/exchange_tables.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace heddle::inline v0::model::layers {

/// Integers that a layer routes rows by: which experts each row chooses, and where its copies are. They hold during one verb, as every
/// verb computes them again from what the router scored; a stage has one such memory for all its layers.
template <memory_space Space>
class routing_memory {
 public:
  /// Room for that much. Memory grows, and never shrinks.
  void reserve(typename Space::queue& queue, routing_extents most) {
    const std::int64_t choices = most.choices, experts = most.experts;
    if (choices > choices_) {
      ids_ = buffer<std::int32_t, Space>(queue, choices, "the experts that rows choose");
      kept_ = buffer<std::int32_t, Space>(queue, choices, "the choices that experts keep");
      places_ = buffer<std::int32_t, Space>(queue, choices, "the places of routed rows");
      sources_ = buffer<std::int32_t, Space>(queue, choices, "the sources of routed rows");
      choices_ = choices;
    }
    if (experts + 1 > offsets_size_) {
      offsets_ = buffer<std::int64_t, Space>(queue, experts + 1, "the rows of each expert");
      offsets_size_ = experts + 1;
    }
    exchanged_.reserve(queue, most);
  }

  /// Bytes of what is reserved: of the integers in the space, not of the tables on the host of rows that travel.
  std::int64_t bytes() const noexcept {
    return routing_extents{choices_, offsets_size_ > 0 ? offsets_size_ - 1 : 0}.bytes() + exchanged_.bytes();
  }

  /// [rows, chosen]: the experts of each row.
  matrix_view<std::int32_t, Space> ids(std::int64_t rows, std::int64_t chosen) noexcept {
    return {ids_.address(), dynamic_shape<2>(rows, chosen)};
  }
  /// [rows, chosen]: the same where experts keep the choice; -1 elsewhere.
  matrix_view<std::int32_t, Space> kept(std::int64_t rows, std::int64_t chosen) noexcept {
    return {kept_.address(), dynamic_shape<2>(rows, chosen)};
  }
  /// [rows, chosen]: the routed row of each choice; -1 where it is not here.
  matrix_view<std::int32_t, Space> places(std::int64_t rows, std::int64_t chosen) noexcept {
    return {places_.address(), dynamic_shape<2>(rows, chosen)};
  }
  /// Of each routed row: where it comes from.
  row_view<std::int32_t, Space> sources(std::int64_t choices) noexcept {
    return row_at<Space>(sources_.address(), choices);
  }
  /// Of each expert: its first routed row; and their number.
  row_view<std::int64_t, Space> offsets(std::int64_t experts) noexcept {
    return row_at<Space>(offsets_.address(), experts + 1);
  }
  /// Where rows travel between ranks.
  exchange_tables& exchange() noexcept { return exchange_; }
  auto& exchange_routes() noexcept { return exchanged_; }
  /// How many of this rank's rows chose each expert since the last `clear_loads`, of the router whose selection bias is at this address.
  /// Each microbatch counts once, in its backward_input.
  std::span<double> load_of(const void* bias, std::int64_t experts) {
    std::vector<double>& load = loads_[bias];
    load.resize(static_cast<std::size_t>(experts));
    return load;
  }
  void clear_loads() noexcept { loads_.clear(); }

 private:
  std::int64_t choices_ = 0, offsets_size_ = 0;
  buffer<std::int32_t, Space> ids_{}, kept_{}, places_{}, sources_{};
  buffer<std::int64_t, Space> offsets_{};
  exchange_tables exchange_{};
  [[no_unique_address]] detail::exchange_routes<Space> exchanged_{};
  std::map<const void*, std::vector<double>> loads_{};
};

}  // namespace heddle::inline v0::model::layers
