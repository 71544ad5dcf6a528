// heddle/model/read_parameters.hpp: reads a stage's weights from named tensors.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/model/piece_of_tensor.hpp>
#include <heddle/model/stacked_parameters.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/tensor_source.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {

// Runs of a box of the whole: of dimensions [begin, end), in order.
inline std::vector<heddle::v0::detail::stretch> runs_of(const parameter& p, std::size_t begin, std::size_t end) {
  using heddle::v0::detail::stretch_list;
  std::vector<stretch_list> held;
  std::vector<std::int64_t> logical, local;
  for (std::size_t d = begin; d < end; ++d) {
    held.push_back(stretch_list({.from = p.start[d], .to = 0, .count = p.local[d]}));
    logical.push_back(p.logical[d]);
    local.push_back(p.local[d]);
  }
  std::vector<heddle::v0::detail::stretch> runs;
  heddle::v0::detail::for_each_run(held, logical, local, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    runs.push_back({from, to, count});
  });
  return runs;
}

// The element of the tensor at which the parameter begins.
// Errors: `layout_error` if the tensor is not the parameter, or its transpose, or has not its rows.
template <class Tensor>
std::int64_t first_element_of(const Tensor& tensor, const parameter& p, stored_as how, rows_in_tensor rows) {
  std::vector<std::int64_t> wanted = p.shape;
  std::int64_t first = 0;
  if (rows != rows_in_tensor::all && !is_every_other(rows)) {
    const std::int64_t behind = rows == rows_in_tensor::last ? 1 : rows == rows_in_tensor::before_last ? 2 : 0;
    const std::int64_t all = tensor.shape().empty() ? 0 : tensor.shape()[0];
    if (how == stored_as::is && !wanted.empty() && all >= (std::max)(behind, std::int64_t{1}) * wanted[0]) {
      first = (behind > 0 ? all - behind * wanted[0] : 0) * (wanted[0] > 0 ? p.global_count() / wanted[0] : 0);
      wanted[0] = all;
    }
  }
  if (how == stored_as::transposed) {
    if (wanted.size() != 2)
      throw layout_error("heddle: " + std::string(tensor.where()) +
                         " should be a transposed matrix for the parameter '" + p.name + "' of shape " +
                         shown_extents(wanted));
    std::swap(wanted[0], wanted[1]);
  }
  const std::span<const std::int64_t> published = tensor.shape();
  if (!std::equal(wanted.begin(), wanted.end(), published.begin(), published.end()))
    throw layout_error("heddle: " + std::string(tensor.where()) + ": the parameter '" + p.name + "' has the shape " +
                       shown_extents(wanted) + ", the tensor " + shown_extents(published));
  return first;
}

// The rows and columns of the whole matrix that a rank holds, and how many elements they are.
struct held_runs {
  std::vector<heddle::v0::detail::stretch> runs;
  std::int64_t elements = 1;
};
inline std::pair<held_runs, held_runs> matrix_runs(const parameter& p) {
  std::size_t rows = 0;  // how many of the logical dimensions make the rows
  for (std::int64_t n = 1; n != p.shape[0];) n *= p.logical[rows++];
  std::pair<held_runs, held_runs> both{{runs_of(p, 0, rows), 1}, {runs_of(p, rows, p.logical.size()), 1}};
  for (std::size_t d = 0; d < p.local.size(); ++d) (d < rows ? both.first : both.second).elements *= p.local[d];
  return both;
}

// f(first element in the tensor, first in the rank's part, elements) for the runs of a part whose rows have another order in the tensor.
// Errors: `config_error` for an order that does not name each row once, or of a transposed tensor.
template <class F>
void for_each_ordered_run(const parameter& p, const source_name& from, F&& f) {
  if (from.order.empty()) return for_each_run(p, f);
  const std::int64_t rows = p.shape[0];
  if (from.how == stored_as::transposed || std::ssize(from.order) != rows)
    throw config_error("heddle: the parameter '" + p.name + "' is read in an order of its " + std::to_string(rows) +
                       " rows from a tensor that is not transposed, got an order of " +
                       std::to_string(from.order.size()) +
                       (from.how == stored_as::transposed ? " and a transposed one" : ""));
  std::vector<char> named(static_cast<std::size_t>(rows), 0);
  for (const std::int64_t row : from.order)
    if (row < 0 || row >= rows || named[static_cast<std::size_t>(row)]++ != 0)
      throw config_error("heddle: the parameter '" + p.name + "' is read in an order that names each of its " +
                         std::to_string(rows) + " rows once, got row " + std::to_string(row) +
                         (row < 0 || row >= rows ? "" : " twice"));
  const std::int64_t width = p.global_count() / rows;
  for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
    for (std::int64_t done = 0; done < length;) {
      const std::int64_t row = (global + done) / width, column = (global + done) % width;
      const std::int64_t count = (std::min)(length - done, width - column);
      f(from.order[static_cast<std::size_t>(row)] * width + column, local + done, count);
      done += count;
    }
  });
}

template <class Tensor, class T>
void read_part_of(const Tensor& tensor, const parameter& p, const source_name& from, std::span<T> out) {
  const std::int64_t first = first_element_of(tensor, p, from.how, from.rows);
  if (p.count == 0) return;
  if (from.how == stored_as::is || !from.order.empty()) {
    for_each_ordered_run(p, from, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      tensor.read(first + global, out.subspan(static_cast<std::size_t>(local), static_cast<std::size_t>(length)));
    });
    return;
  }
  const auto [rows, columns] = matrix_runs(p);
  heddle::v0::detail::read_transposed(tensor, p.shape[0], std::span(rows.runs), std::span(columns.runs), out.data(),
                                      columns.elements);
}

template <class Tensor, class T>
void read_part(const Tensor& tensor, const parameter& p, const source_name& from, std::span<T> out) {
  if (from.is_piece())
    read_part_of(piece_of_tensor<const Tensor>(tensor, from), p, from, out);
  else
    read_part_of(tensor, p, from, out);
}

// f(first, count) for the runs that are read of a tensor, or of a piece of one.
template <class Tensor, class F>
void each_read_of(const Tensor& tensor, const parameter& p, const source_name& from, F&& f) {
  const std::int64_t start = first_element_of(tensor, p, from.how, from.rows);
  if (p.count == 0) return;
  if (from.how == stored_as::is || !from.order.empty())
    return for_each_ordered_run(
        p, from, [&](std::int64_t global, std::int64_t, std::int64_t length) { f(start + global, length); });
  const auto [rows, columns] = matrix_runs(p);
  heddle::v0::detail::for_each_transposed_tile(
      p.shape[0], std::span(rows.runs), std::span(columns.runs),
      [&](std::int64_t first, std::int64_t, std::int64_t height) { f(first, height); },
      [](const auto&, auto, auto, const auto&, auto, auto) {});
}

template <class Layer>
void add_names(const Layer& layer, std::string at, std::vector<std::string>& names) {
  if (const char* const name = layer.name; name != nullptr && *name != '\0') (at += name) += '.';
  layer.parameters().each([&](auto, const auto& described) {
    if (!has_elements(described.extents)) return;
    const std::string whole = at + described.name;
    if (!is_stacked(whole)) return names.push_back(whole);
    for (std::int64_t i = 0; i < described.extents[0]; ++i) names.push_back(name_in_stack(whole, i));
  });
  layer.children().each([&](auto, const auto& child) { add_names(child, at, names); });
}

}  // namespace detail

/// f(first, count) for the runs of elements that `read_parameters` reads of a tensor for a parameter, in the order in which it does.
/// Errors: `layout_error` if the tensor has another shape than the parameter; `config_error` for an order that does not name each of its rows once.
template <class Tensor, class F>
void for_each_read(const Tensor& tensor, const parameter& p, const source_name& from, F&& f) {
  if (!from.is_piece()) return detail::each_read_of(tensor, p, from, f);
  const detail::piece_of_tensor<const Tensor> piece(tensor, from);
  detail::each_read_of(piece, p, from,
                       [&](std::int64_t first, std::int64_t count) { piece.for_each_stored(first, count, f); });
}

/// The names of all parameters of a described model, in its order: what the stages of any mesh have together, and of those that
/// files hold in several tensors (`is_stacked`) the names of all these.
template <class In, class Block, class Out, class Other>
std::vector<std::string> parameter_names(const layers::language_model<In, Block, Out, Other>& m) {
  std::vector<std::string> names;
  detail::add_names(m.in, "", names);
  for (std::int64_t l = 0; l < m.count; ++l)
    m.with_block(l, [&](const auto& b) { detail::add_names(b, m.block_name + std::to_string(l) + ".", names); });
  detail::add_names(m.out, "", names);
  return names;
}

/// Which parameters of a stage are read or written: all, or of one that freezes some (`layers::partly_trained`) one kind of them.
enum class which_parameters : unsigned char { all, trained, frozen };

namespace detail {
// f(parameter, the flat buffer in which it lies).
template <class Stage, class F>
void for_each_parameter(Stage& stage, which_parameters which, F&& f) {
  if (which != which_parameters::frozen) {
    require_weights_here(stage, "read_parameters");
    for (const parameter& p : stage.parameters()) f(p, stage.weights());
  }
  if constexpr (requires { stage.frozen_parameters(); })
    if (which != which_parameters::trained)
      for (const parameter& p : stage.frozen_parameters()) f(p, stage.frozen_weights());
}
}  // namespace detail

/// Names of parameters that are names of the source's tensors.
struct same_names {
  source_name operator()(std::string_view parameter) const { return {std::string(parameter)}; }
};

/// Fills the weights of a stage from a source (`tensor_source`): for each parameter that the rank has, the tensor that
/// `name_of(name)`, a `source_name`, says, and of it the elements that the rank holds. Nothing else is read, and the
/// whole of a split tensor is never in memory. A parameter with a `*` in its name is read from a tensor for each index of its first
/// dimension that the rank holds, and `name_of` is called with their names. Where the weights are not in the host's memory they go there parameter
/// by parameter.
/// Errors: `layout_error` if a tensor has another shape than the parameter; `config_error` for an order that does not name each row once; what the source throws, as for a name that
/// it does not have.
template <class Stage, class Source, class NameOf = same_names>
  requires tensor_source<Source, typename Stage::scalar>
void read_parameters(Stage& stage, const Source& source, NameOf&& name_of = {},
                     which_parameters which = which_parameters::all) {
  using T = typename Stage::scalar;
  using space = typename Stage::space;
  detail::for_each_parameter(stage, which, [&](const parameter& whole, auto weights) {
    for_each_tensor(whole, [&](const parameter& p) {
      const source_name from = name_of(std::string_view(p.name));
      const auto& tensor = source.tensor(from.name);
      if constexpr (std::same_as<space, host_memory>) {
        detail::read_part(tensor, p, from,
                          weights.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count)));
      } else {
        std::vector<T> values(static_cast<std::size_t>(p.count));
        detail::read_part(tensor, p, from, std::span<T>(values));
        stage.queue().copy(values, row_at<space>(first_element(weights) + p.offset, p.count));
        stage.queue().wait();
      }
    });
  });
}

/// Refuses tensors that no parameter of the model is read from: a source of another model. `parameters` are the names of all its parameters,
/// `names` those of the source; `ignored(name)` says which of the others are no weights.
/// Errors: `config_error` with the first of them.
template <class NameOf, class Ignored>
void require_all_read(const std::vector<std::string>& parameters, const std::vector<std::string>& names,
                      NameOf&& name_of, Ignored&& ignored) {
  std::set<std::string> read;
  for (const std::string& p : parameters) read.insert(name_of(std::string_view(p)).name);
  std::string others;
  int count = 0;
  for (const std::string& name : names)
    if (read.count(name) == 0 && !ignored(std::string_view(name)) && ++count <= 3)
      others += " '" + shown_name(name) + "'";
  if (count > 0)
    throw config_error("heddle: " + std::to_string(count) + " of " + std::to_string(names.size()) +
                       " tensors belong to no parameter of the model, such as" + others);
}
/// The same for all parameters of a described model.
template <class In, class Block, class Out, class Other, class NameOf, class Ignored>
void require_all_read(const layers::language_model<In, Block, Out, Other>& m, const std::vector<std::string>& names,
                      NameOf&& name_of, Ignored&& ignored) {
  require_all_read(parameter_names(m), names, name_of, ignored);
}

}  // namespace heddle::inline v0::model
