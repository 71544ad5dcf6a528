// heddle/compute/ops/images.hpp: operations on images, whose pixels are rows, and means of rows.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/error.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::compute {
namespace ops {
struct unfolded {};  ///< a dimension: taps times channels
struct groups {};    ///< groups of rows

/// The base of operations on whole images [samples * pixels, channels] and their unfolded pixels [samples * pixels, taps * channels].
struct image_operation : operation {
  using dims = sizes<rows, columns, unfolded>;

 protected:
  static void check_images(const char* name, const char* columns_of, const dims& n, const image_window& w) {
    if (w.height < 1 || w.width < 1 || w.radius < 0 || n[rows{}] % w.pixels() != 0) [[unlikely]]
      throw layout_error("heddle: " + std::string(name) + ": rows should be whole images of " +
                         std::to_string(w.height) + " x " + std::to_string(w.width) + " pixels, got " +
                         std::to_string(n[rows{}]) + " rows");
    detail::expect(name, columns_of, w.taps() * n[columns{}], n[unfolded{}]);
  }
};
/// Row p of y holds the neighbours of pixel p, tap by tap, zeros outside the image, so that a convolution is a product.
struct unfold : image_operation {
  static constexpr const char* name = "unfold";
  static constexpr const char* arguments[] = {"x", "window", "y"};
  using takes = signature<in<rows, columns>, value<image_window>, out<rows, unfolded>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
  static void check(const dims& n, const void*, const image_window& w, const void*) {
    check_images(name, "columns of y (taps times channels)", n, w);
  }
};
/// Adds up what a pixel was to its neighbours.
struct unfold_backward : image_operation {
  static constexpr const char* name = "unfold_backward";
  static constexpr const char* arguments[] = {"dy", "window", "dx"};
  using takes = signature<in<rows, unfolded>, value<image_window>, out<rows, columns>>;
  static constexpr std::int64_t flops(const dims& n) { return n[rows{}] * n[unfolded{}]; }
  static void check(const dims& n, const void*, const image_window& w, const void*) {
    check_images(name, "columns of dy (taps times channels)", n, w);
  }
};

/// The base of operations on `group` rows each.
struct mean_operation : operation {
  using dims = sizes<rows, groups, columns>;
  static constexpr std::int64_t flops(const dims& n) { return n[rows{}] * n[columns{}]; }

 protected:
  static void check_groups(const char* name, const dims& n, std::int64_t group) {
    if (group < 1) [[unlikely]]
      throw layout_error("heddle: " + std::string(name) + ": a group should have at least 1 row, got " +
                         std::to_string(group));
    detail::expect(name, "rows (groups times their rows)", n[groups{}] * group, n[rows{}]);
  }
};
/// The mean of each `group` rows.
struct mean_of_rows : mean_operation {
  static constexpr const char* name = "mean_of_rows";
  static constexpr const char* arguments[] = {"x", "group", "y"};
  using takes = signature<in<rows, columns>, index, out<groups, columns>>;
  static void check(const dims& n, const void*, std::int64_t group, const void*) { check_groups(name, n, group); }
};
/// The gradient of `mean_of_rows`: each row gets its group's, divided by the rows of the group.
struct mean_of_rows_backward : mean_operation {
  static constexpr const char* name = "mean_of_rows_backward";
  static constexpr const char* arguments[] = {"dy", "group", "dx"};
  using takes = signature<in<groups, columns>, index, out<rows, columns>>;
  static void check(const dims& n, const void*, std::int64_t group, const void*) { check_groups(name, n, group); }
};
}  // namespace ops

/// Neighbourhoods of pixels and means of rows.
struct image_facet : operations<ops::unfold, ops::unfold_backward, ops::mean_of_rows, ops::mean_of_rows_backward> {};

}  // namespace heddle::inline v0::compute
