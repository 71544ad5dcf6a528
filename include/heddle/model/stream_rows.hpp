// heddle/model/stream_rows.hpp: rows of the residual stream on a rank, and on all.
#pragma once

#include <heddle/model/layer.hpp>
#include <heddle/model/layers/call.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

/// The residual stream [rows, width] of batches, of which each rank has all rows, or a part where an axis splits the sequence:
/// consecutive ones, as many as others or one more, perhaps none. Units: elements; addresses are in `Space`.
template <class Layouts, class World, memory_space Space>
class stream_rows {
 public:
  using own_layout = typename Layouts::template edge<dims<dim::width>>;
  using whole_layout = typename Layouts::template edge<dims<dim::width>, dims<dim::vocabulary>>;
  static constexpr bool are_split = Layouts::template splits_rows<dims<dim::width>>;

  stream_rows(World& world, std::int64_t width) noexcept : world_(&world), width_(width) {}

  /// This rank's of so many rows.
  row_range of(std::int64_t rows) const noexcept {
    if constexpr (are_split)
      return rows_on_rank<Layouts, dims<dim::width>>(world_->mesh(), world_->rank(), rows);
    else
      return {0, rows};
  }
  std::int64_t elements(std::int64_t rows) const noexcept { return of(rows).count * width_; }
  template <class T>
  matrix_view<T, Space> matrix(T* at, extent_of_batch e) const noexcept {
    return {at, dynamic_shape<2>(of(e.rows()).count, width_)};
  }
  /// This rank's part of the rows of a smaller batch, which begins at row `first` of `all`.
  template <class T>
  matrix_view<const T, Space> part(const T* all, std::int64_t first, extent_of_batch e) const noexcept {
    return matrix(all + (first + of(e.rows()).first) * width_, e);
  }
  /// Where the rows of all ranks are: at `own`, or, where they are split, gathered at `all`.
  template <class T>
  const T* gather(typename Space::queue& queue, const T* own, extent_of_batch e, [[maybe_unused]] T* all) const {
    if constexpr (are_split) {
      layers::settle_in<own_layout, whole_layout>(*world_, queue, e.rows(), elements_of(matrix(own, e)),
                                                  row_at<Space>(all, e.rows() * width_));
      return all;
    } else {
      return own;
    }
  }

 private:
  World* world_;
  std::int64_t width_;
};

}  // namespace heddle::inline v0::model
