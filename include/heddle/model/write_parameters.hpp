// heddle/model/write_parameters.hpp: writes a stage's weights as named tensors.
#pragma once

#include <heddle/core/split.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/tensor_sink.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// A parameter of a description: its name and its published, whole shape.
struct parameter_outline {
  std::string name;
  std::vector<std::int64_t> shape;
};

namespace detail {

template <class Layer>
void add_outlines(const Layer& layer, std::string at, std::vector<parameter_outline>& all) {
  if (const char* const name = layer.name; name != nullptr && *name != '\0') (at += name) += '.';
  layer.parameters().each([&](auto, const auto& d) {
    using described = std::remove_cvref_t<decltype(d)>;
    if (!has_elements(d.extents)) return;
    parameter p = layers::detail::named_matrix(at, d.name, d.extents, described::rows::count, described::is_vector);
    p.logical = p.local = {d.extents.begin(), d.extents.end()};
    p.start.resize(d.extents.size());
    for_each_tensor(p, [&](const parameter& one) { all.push_back({one.name, one.shape}); });
  });
  layer.children().each([&](auto, const auto& child) { add_outlines(child, at, all); });
}

/// Which of the ranks that hold the same copy a rank is, and how many there are.
struct copy_of {
  int index = 0;
  int count = 1;
};
template <class Layout, class World, class... Tags>
copy_of copy_along(World& world, type_list<Tags...>) {
  copy_of c;
  const auto along = [&]<class Tag>(std::type_identity<Tag>) {
    if constexpr (World::mesh_type::template has<Tag> && dual<Layout>::template is_partial_on<Tag>) {
      const int extent = world.mesh().template extent<Tag>();
      c.index = c.index * extent + world.mesh().template coordinate<Tag>(world.rank());
      c.count *= extent;
    }
  };
  (along(std::type_identity<Tags>{}), ...);
  return c;
}
// Of each bucket.
template <class World, class... Layouts>
std::array<copy_of, sizeof...(Layouts)> copies_of_buckets(World& world, type_list<Layouts...>) {
  return {copy_along<Layouts>(world, typename Layouts::mesh_type::tags{})...};
}
// A rank of a mesh, where no world is needed.
template <class Mesh>
struct rank_of_mesh {
  using mesh_type = Mesh;
  Mesh ranks;
  int number = 0;
  const Mesh& mesh() const noexcept { return ranks; }
  int rank() const noexcept { return number; }
};

// The same of a stage, which may say it itself (`any_weights`).
template <class Stage, class World>
auto copies_of_stage([[maybe_unused]] const Stage& stage, World& world) {
  if constexpr (requires { stage.copies_of_buckets(); })
    return stage.copies_of_buckets();
  else
    return copies_of_buckets(world, typename Stage::buckets{});
}

// The bucket in which a parameter of a stage lies.
template <class Stage>
std::size_t bucket_of(const Stage& stage, const parameter& p) {
  const auto& elements = stage.bucket_elements();
  std::size_t bucket = 0;
  for (std::int64_t end = elements[0]; p.offset >= end && bucket + 1 < elements.size();) end += elements[++bucket];
  return bucket;
}

template <class Tensor, class T>
void write_part_of(Tensor& tensor, const parameter& p, const source_name& to, std::span<const T> part, copy_of copy) {
  const std::int64_t at = first_element_of(tensor, p, to.how, to.rows);
  if (p.count == 0) return;
  if (to.how == stored_as::transposed && to.order.empty()) {
    if (copy.index != 0) return;
    const auto [rows, columns] = matrix_runs(p);
    heddle::v0::detail::write_transposed(tensor, p.shape[0], std::span(rows.runs), std::span(columns.runs), part.data(),
                                         columns.elements);
    return;
  }
  const balanced_split share{p.count, copy.count};
  const std::int64_t begin = share.offset(copy.index), end = begin + share.size(copy.index);
  for_each_ordered_run(p, to, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
    const std::int64_t first = (std::max)(local, begin), last = (std::min)(local + length, end);
    if (first < last)
      tensor.write(at + global + first - local,
                   part.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)));
  });
}
// Writes this copy's share of a rank's part of a parameter.
// Errors: `layout_error` for every other row of a tensor: two parameters are written into it together (`parameter_of_both`).
template <class Tensor, class T>
void write_part(Tensor tensor, const parameter& p, const source_name& to, std::span<const T> part, copy_of copy) {
  if (is_every_other(to.rows))
    throw layout_error("heddle: the parameter '" + p.name + "' is every other row of '" + to.name +
                       "', which is written together with what has the rows between");
  if (to.is_piece()) {
    piece_of_tensor<Tensor> piece(tensor, to);
    write_part_of(piece, p, to, part, copy);
  } else {
    write_part_of(tensor, p, to, part, copy);
  }
}

// A parameter and another of the same shape, whose rows are between its rows.
inline parameter parameter_of_both(const parameter& even) {
  parameter both = even;
  both.shape[0] *= 2;
  both.count *= 2;
  both.logical.insert(both.logical.begin() + 1, 2);
  both.local.insert(both.local.begin() + 1, 2);
  both.start.insert(both.start.begin() + 1, 0);
  return both;
}
template <class T>
std::vector<T> rows_of_both(const parameter& even, std::span<const T> first, std::span<const T> second) {
  std::vector<T> both(first.size() + second.size());
  const std::int64_t rows = even.local.empty() ? 1 : even.local[0], width = rows > 0 ? even.count / rows : 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy_n(first.begin() + r * width, width, both.begin() + 2 * r * width);
    std::copy_n(second.begin() + r * width, width, both.begin() + (2 * r + 1) * width);
  }
  return both;
}
// The parameter of which files have the other rows of the tensor into which `one` goes, or number `index` of its stack.
// Errors: `layout_error` where the stage has none of the same part.
template <class Parameters, class NameOf>
const parameter& other_rows_of(const Parameters& all, const parameter& one, std::int64_t index, const source_name& to,
                               NameOf&& name_of) {
  for (const parameter& p : all) {
    const source_name of = name_of(std::string_view(is_stacked(p.name) ? name_in_stack(p.name, index) : p.name));
    if (is_every_other(of.rows) && of.rows != to.rows && of.name == to.name && of.index == to.index &&
        p.local == one.local && p.start == one.start)
      return p;
  }
  throw layout_error("heddle: the parameter '" + one.name + "' has every other row of '" + to.name +
                     "'; no parameter that is written with it has those between them");
}

}  // namespace detail

/// Names and shapes of all parameters of a described model, in its order: what the stages of any mesh have together.
template <class In, class Block, class Out, class Other>
std::vector<parameter_outline> parameter_outlines(const layers::language_model<In, Block, Out, Other>& m) {
  std::vector<parameter_outline> all;
  detail::add_outlines(m.in, "", all);
  for (std::int64_t l = 0; l < m.count; ++l)
    m.with_block(l, [&](const auto& b) { detail::add_outlines(b, m.block_name + std::to_string(l) + ".", all); });
  detail::add_outlines(m.out, "", all);
  return all;
}

/// Writes the weights of a stage into a sink (`tensor_sink`), the reverse of `read_parameters`: of each parameter that the rank has the
/// elements that it holds, into the tensor that `name_of(name)`, a `source_name`, says. Over all ranks each element is written once: of r
/// ranks with the same copy each writes an r-th of it (a transposed or a frozen one the first rank). Nothing is sent, and no rank holds more than its
/// own. Where the weights are not in the host's memory they come parameter by parameter.
/// Errors: `layout_error` if a tensor has another shape than the parameter, or where of two parameters whose rows a tensor has in turn one is
/// trained and the other frozen; what the sink throws.
template <class Stage, class World, class Sink, class NameOf = same_names>
  requires tensor_sink<Sink, typename Stage::scalar>
void write_parameters(Stage& stage, World& world, Sink& sink, NameOf&& name_of = {},
                      which_parameters which = which_parameters::all) {
  using T = typename Stage::scalar;
  using space = typename Stage::space;
  const auto copies = detail::copies_of_stage(stage, world);
  const auto write = [&](const auto& all, const parameter& p, auto weights, detail::copy_of copy) {
    if (!p.counted) return;  // another rank has the same
    const auto on_host = [&](const parameter& one) {
      return read_on_host<T, space>(stage.queue(),
                                    part_of_row<space>(weights, one.offset, one.count));
    };
    const parameter* other = nullptr;
    std::int64_t index = p.start.empty() ? 0 : p.start[0] - 1;  // in a stack
    for_each_tensor(p, [&](const parameter& one) {
      ++index;
      source_name to = name_of(std::string_view(one.name));
      if (is_every_other(to.rows) && other == nullptr) other = &detail::other_rows_of(all, p, index, to, name_of);
      if (to.rows == rows_in_tensor::odd) return;  // written with the even ones
      const auto values = on_host(one);
      if (to.rows != rows_in_tensor::even)
        return detail::write_part(sink.tensor(to.name), one, to, std::span<const T>(values.elements()), copy);
      const auto between = on_host(is_stacked(p.name) ? parameter_in_stack(*other, index) : *other);
      to.rows = rows_in_tensor::all;
      const std::vector<T> both =
          detail::rows_of_both(one, std::span<const T>(values.elements()), std::span<const T>(between.elements()));
      detail::write_part(sink.tensor(to.name), detail::parameter_of_both(one), to, std::span<const T>(both), copy);
    });
  };
  if (which != which_parameters::frozen) {
    detail::require_weights_here(stage, "write_parameters");
    for (const parameter& p : stage.parameters())
      write(stage.parameters(), p, stage.weights(), copies[detail::bucket_of(stage, p)]);
  }
  if constexpr (requires { stage.frozen_parameters(); })
    if (which != which_parameters::trained)
      for (const parameter& p : stage.frozen_parameters())
        write(stage.frozen_parameters(), p, stage.frozen_weights(), {});
}

}  // namespace heddle::inline v0::model
