// heddle/model/piece_of_tensor.hpp: a matrix that a file stores with others in one tensor.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/tensor/tensor_source.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// The rows of a tensor that a parameter is, where files have several in one: the first, the last, as many before the last, or every other row,
/// from the first on (`even`) or from the second on (`odd`).
enum class rows_in_tensor : unsigned char { all, first, before_last, last, even, odd };
/// Whether they are every other row of a tensor.
constexpr bool is_every_other(rows_in_tensor rows) noexcept {
  return rows == rows_in_tensor::even || rows == rows_in_tensor::odd;
}

/// Where a parameter is in a source: the name of a tensor, whether it is the transpose, and which of its rows they are. `order`: its row i is row
/// order[i] of the tensor; empty: they have one order. `index`: which it is of the matrices or vectors that the tensor has along its first
/// dimension; -1: the tensor is one.
struct source_name {
  std::string name;
  stored_as how = stored_as::is;
  rows_in_tensor rows = rows_in_tensor::all;
  std::vector<std::int64_t> order{};
  std::int64_t index = -1;

  /// Whether it is a part of a tensor whose elements are not a run, or not from its beginning on (`piece_of_tensor`).
  bool is_piece() const noexcept { return index >= 0 || is_every_other(rows); }
};

namespace detail {

/// A tensor that is element `index` of another along its first dimension, and of it every other row (of a transposed one: column). It reads
/// and writes as the tensor does; every other row is read with what lies between.
/// The tensor must stay. Errors: `layout_error` if it has no such element.
template <class Tensor>
class piece_of_tensor {
 public:
  piece_of_tensor(Tensor& tensor, const source_name& from)
      : tensor_(&tensor), shape_(tensor.shape().begin(), tensor.shape().end()) {
    if (from.index >= 0) {
      if (shape_.size() < 2 || from.index >= shape_[0])
        throw layout_error("heddle: " + where() + ": number " + std::to_string(from.index) +
                           " of what it has along its first dimension is asked for, its shape is " +
                           shown_extents(shape_));
      shape_.erase(shape_.begin());
      begin_ = from.index * elements(0);
    }
    if (!is_every_other(from.rows) || shape_.empty()) return;
    std::int64_t& rows = from.how == stored_as::transposed ? shape_.back() : shape_[0];
    if (rows % 2 != 0) return;  // another shape than any parameter's
    rows /= 2;
    run_ = from.how == stored_as::transposed ? 1 : elements(1);
    begin_ += from.rows == rows_in_tensor::odd ? run_ : 0;
  }

  std::span<const std::int64_t> shape() const noexcept { return shape_; }
  std::string where() const { return std::string(tensor_->where()); }
  template <class T>
  void read(std::int64_t first, std::span<T> out) const {
    if (run_ == 0) return tensor_->read(begin_ + first, out);
    std::vector<T> both;
    const auto count = static_cast<std::int64_t>(out.size());
    for (std::int64_t done = 0; done < count; done += most) {
      const std::int64_t at = stored(first + done), n = (std::min)(count - done, most);
      both.resize(static_cast<std::size_t>(stored(first + done + n - 1) - at + 1));
      tensor_->read(at, std::span<T>(both));
      for (std::int64_t i = 0; i < n; ++i)
        out[static_cast<std::size_t>(done + i)] = both[static_cast<std::size_t>(stored(first + done + i) - at)];
    }
  }
  template <class T>
  void write(std::int64_t first, std::span<const T> values) {
    tensor_->write(begin_ + first, values);
  }
  /// f(first, count) for the runs of the tensor's elements that a read of `count` elements from `first` on takes.
  template <class F>
  void for_each_stored(std::int64_t first, std::int64_t count, F&& f) const {
    if (run_ == 0) return f(begin_ + first, count);
    for (std::int64_t done = 0; done < count; done += most) {
      const std::int64_t at = stored(first + done), n = (std::min)(count - done, most);
      f(at, stored(first + done + n - 1) - at + 1);
    }
  }

 private:
  std::int64_t elements(std::size_t from) const noexcept {
    std::int64_t n = 1;
    for (std::size_t d = from; d < shape_.size(); ++d) n *= shape_[d];
    return n;
  }
  // Where element k is in the tensor, of every other row.
  std::int64_t stored(std::int64_t k) const noexcept { return begin_ + k + k / run_ * run_; }
  static constexpr std::int64_t most = 65536;  // elements that are read at once, with as many between them

  Tensor* tensor_;
  std::vector<std::int64_t> shape_;
  std::int64_t begin_ = 0;  // in the tensor
  std::int64_t run_ = 0;    // elements of a row, of every other one; 0: all
};

// The shape of a tensor that has parameters in it: `whole`, empty before the first of them, as it is with one more, of this shape.
inline void extend_shape(std::vector<std::int64_t>& whole, std::vector<std::int64_t> shape, const source_name& in) {
  if (in.how == stored_as::transposed && shape.size() == 2) std::swap(shape[0], shape[1]);
  if (is_every_other(in.rows) && !shape.empty()) (in.how == stored_as::transposed ? shape.back() : shape[0]) *= 2;
  if (in.index >= 0) shape.insert(shape.begin(), in.index + 1);
  if (whole.empty())
    whole = std::move(shape);
  else if (in.is_piece() && !std::equal(whole.begin() + 1, whole.end(), shape.begin() + 1, shape.end()))
    throw layout_error("heddle: parameters of different shapes are stacked in '" + in.name + "'");
  else if (in.is_piece())
    whole[0] = (std::max)(whole[0], shape[0]);
  else
    whole[0] += shape[0];
}

}  // namespace detail
}  // namespace heddle::inline v0::model
