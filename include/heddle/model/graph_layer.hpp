// heddle/model/graph_layer.hpp: a graph network's layer over nodes that lie on ranks.
#pragma once

#include <heddle/collective/dyadic_fold.hpp>
#include <heddle/collective/sparse_exchange.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/op_traits.hpp>
#include <heddle/core/text.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gru_operator.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/parameters.hpp>

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

namespace heddle::inline v0::model {

namespace detail {
// A group of one rank, which sends nothing.
struct lone_rank {
  struct request {
    void wait() const noexcept {}
  };
  int rank() const noexcept { return 0; }
  int size() const noexcept { return 1; }
  template <class T>
  request isend(std::span<const T>, int, int) const noexcept {
    return {};
  }
  template <class T>
  request irecv(std::span<T>, int, int) const noexcept {
    return {};
  }
};
}  // namespace detail

/// The nodes [bounds[r], bounds[r + 1]) of a graph that rank r holds, with the edges that come to them: own node i hears of
/// the nodes sources[row_pointer[i]] ... sources[row_pointer[i + 1] - 1], numbers in the whole graph that do not descend.
/// Whose rows lie on other ranks is found once, by a sparse exchange that all ranks of the group call.
/// Shapes: bounds [ranks + 1], row_pointer [own nodes + 1], sources [own edges].
/// Errors: `config_error` that names the edge for a source outside of the graph or sources that descend; and for bounds or
/// a row pointer that do not fit, on a rank or between ranks. It is thrown on all ranks where any has one.
class graph_part {
 public:
  template <communicator C>
  graph_part(C& group, std::vector<std::int64_t> bounds, std::vector<std::int64_t> row_pointer,
             const std::vector<std::int64_t>& sources)
      : bounds_(std::move(bounds)), row_pointer_(std::move(row_pointer)), rank_(group.rank()) {
    refuse_together(group, fault_of(group.size(), sources));
    std::vector<std::int64_t> others;
    for (const std::int64_t s : sources)
      if (s < begin() || s >= end()) others.push_back(s);
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    const auto ranks = static_cast<std::size_t>(group.size());
    std::vector<block_to<std::int64_t>> asked;
    counts_in_.assign(ranks, 0);
    counts_out_.assign(ranks, 0);
    for (std::size_t r = 0, at = 0; r < ranks; ++r) {
      const std::size_t first = at;
      while (at < others.size() && others[at] < bounds_[r + 1]) ++at;
      counts_in_[r] = static_cast<std::int64_t>(at - first);
      if (at > first)
        asked.push_back({static_cast<int>(r), std::span<const std::int64_t>(others).subspan(first, at - first)});
    }
    const auto wanted = sparse_exchange(group, asked);
    std::string fault;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      for (const std::int64_t node : wanted[i])
        if (fault.empty() && (node < begin() || node >= end()))
          fault = text_of({"rank ", wanted.from(i), " asks for node ", node, "; the nodes here are ", begin(), " to ",
                           end() - 1, ": bounds must be the same on all ranks"});
    refuse_together(group, fault);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      counts_out_[static_cast<std::size_t>(wanted.from(i))] = static_cast<std::int64_t>(wanted[i].size());
      for (const std::int64_t node : wanted[i]) sent_.push_back(node - begin());
    }
    for (const std::int64_t s : sources)
      rows_.push_back(s >= begin() && s < end()
                          ? s - begin()
                          : nodes() + (std::lower_bound(others.begin(), others.end(), s) - others.begin()));
  }

  std::int64_t begin() const noexcept { return bounds_[static_cast<std::size_t>(rank_)]; }
  std::int64_t end() const noexcept { return bounds_[static_cast<std::size_t>(rank_) + 1]; }
  std::int64_t nodes() const noexcept { return end() - begin(); }
  std::int64_t edges() const noexcept { return static_cast<std::int64_t>(rows_.size()); }
  const std::vector<std::int64_t>& row_pointer() const noexcept { return row_pointer_; }
  /// For each edge the row of its source: own nodes first, then those of other ranks.
  const std::vector<std::int64_t>& rows() const noexcept { return rows_; }
  /// Own nodes whose rows go to other ranks, ordered by rank; how many to each, and how many come from each.
  const std::vector<std::int64_t>& sent() const noexcept { return sent_; }
  const std::vector<std::int64_t>& counts_out() const noexcept { return counts_out_; }
  const std::vector<std::int64_t>& counts_in() const noexcept { return counts_in_; }

 private:
  template <communicator C>
  void refuse_together(C& group, const std::string& fault) const {
    std::array<int, 1> faults{fault.empty() ? 0 : 1};
    group.all_reduce(std::span<int>(faults), plus{});
    if (!fault.empty()) throw config_error("heddle: graph_part on rank " + std::to_string(rank_) + ": " + fault);
    if (faults[0] > 0)
      throw config_error("heddle: graph_part on rank " + std::to_string(rank_) +
                         ": other ranks hold edges that are refused, " + std::to_string(faults[0]) + " of them");
  }
  std::string fault_of(int ranks, const std::vector<std::int64_t>& sources) const {
    if (bounds_.size() != static_cast<std::size_t>(ranks) + 1 || bounds_.front() != 0 ||
        !std::is_sorted(bounds_.begin(), bounds_.end()))
      return text_of(
          {"bounds must ascend from 0, one for each of ", ranks, " ranks and the end; got ", bounds_.size()});
    if (static_cast<std::int64_t>(row_pointer_.size()) != nodes() + 1 || row_pointer_.front() != 0 ||
        row_pointer_.back() != static_cast<std::int64_t>(sources.size()) ||
        !std::is_sorted(row_pointer_.begin(), row_pointer_.end()))
      return text_of({"the row pointer must ascend from 0 to ", sources.size(), " edges for ", nodes(), " nodes; got ",
                      row_pointer_.size(), " entries to ",
                      row_pointer_.empty() ? std::int64_t{0} : row_pointer_.back()});
    for (std::int64_t i = 0; i < nodes(); ++i)
      for (auto e = static_cast<std::size_t>(row_pointer_[static_cast<std::size_t>(i)]);
           e < static_cast<std::size_t>(row_pointer_[static_cast<std::size_t>(i) + 1]); ++e) {
        if (sources[e] < 0 || sources[e] >= bounds_.back())
          return text_of({"edge ", e, " comes from node ", sources[e], " to node ", begin() + i,
                          "; the graph has nodes 0 to ", bounds_.back() - 1});
        if (e > static_cast<std::size_t>(row_pointer_[static_cast<std::size_t>(i)]) && sources[e] < sources[e - 1])
          return text_of({"edge ", e, " from node ", sources[e], " to node ", begin() + i, " follows one from node ",
                          sources[e - 1], "; the sources of a node must not descend"});
      }
    return {};
  }

  std::vector<std::int64_t> bounds_, row_pointer_, rows_, sent_, counts_out_, counts_in_;
  int rank_;
};

/// The sizes of a graph layer. Units: numbers of a node.
struct graph_layer_config {
  std::int64_t inputs = 0;   ///< of a node before the layer
  std::int64_t width = 128;  ///< of a message, which the operator folds
  std::int64_t outputs = 0;  ///< of a node behind the layer
};

/// h_i' = relu(h_i W + fold over edges (j to i) of relu(h_j V + c) U + b). A node to which no edge comes has a learned row
/// for the value of its fold: the operator has no identity.
///
///     model::graph_part part(group, bounds, row_pointer, sources);
///     model::graph_layer<float> layer({.inputs = 16, .width = 32, .outputs = 32}, seed);
///     layer.forward(backend, group, part, saved, h, out);
///     layer.backward(backend, group, part, saved, d_out, d_h);   // adds to parameters().gradients()
///     group.all_reduce(layer.parameters().gradients(), hd::plus{});
///
/// `Op`: `both_orders` or `one_order` is a GRU cell with the layer's weights; anything else is an operator of rows without
/// weights (a `differentiable_fold_operator` with `elementwise = false`). `Fold`: `dyadic_fold`, or `recurrent_fold`.
/// Shapes: h and d_h [own nodes, inputs], out and d_out [own nodes, outputs]. The same parameters are on all ranks.
/// Communication: forward sends the rows relu(h V + c) of nodes that other ranks' edges come from, once each, in one
/// all_to_all_v; backward returns their gradients. The fold sends nothing. With products whose rows are independent
/// (`compute::portable`), or `rows_alone`, values have the same bits on any number of ranks.
/// Errors: `config_error` for sizes below 1; `layout_error` for rows of another size.
/// Source: Ong and Velickovic 2022, arXiv:2212.08541 (the aggregator).
template <class T, class Op = both_orders, template <class> class Fold = dyadic_fold>
class graph_layer {
  static constexpr bool learned = std::is_same_v<Op, both_orders> || std::is_same_v<Op, one_order>;
  static consteval bool folds_rows() {
    if constexpr (learned) {
      return true;
    } else {
      static_assert(
          !op_traits<Op>::elementwise,
          "heddle: graph_layer: the operator claims to be elementwise, but rows of neighbours are folded whole, "
          "with gradients: give it `static constexpr bool elementwise = false`, forward and backward");
      return true;
    }
  }
  static_assert(folds_rows());

 public:
  /// What backward needs from forward.
  struct saved {
    saved(const graph_part& part, const graph_layer_config& config)
        : fold(dyadic_plan(part.row_pointer(), std::vector<std::int64_t>{0, part.edges()}, 0), config.width) {}
    Fold<T> fold;
    std::vector<T> h, messages, roots, out;
  };

  explicit graph_layer(const graph_layer_config& config, std::uint64_t seed = 1) : config_(config) {
    if (config.inputs < 1 || config.width < 1 || config.outputs < 1)
      throw config_error(text_of({"heddle: graph_layer: inputs, width and outputs must be at least 1, got ",
                                  config.inputs, ", ", config.width, " and ", config.outputs}));
    const std::int64_t n = config.inputs, w = config.width, m = config.outputs;
    const auto spread = [](double gain, std::int64_t fan) { return std::sqrt(gain / static_cast<double>(fan)); };
    add("message.weight", {n, w}, spread(2, n));
    add("message.bias", {w}, 0);
    add("fold.weight", {w, m}, spread(2, w));
    add("bias", {m}, 0);
    add("self.weight", {n, m}, spread(2, n));
    add("no_edges", {w}, 0);
    if (learned) {
      add("gru.weight", {6 * w, w}, spread(1.0 / 3, w));
      add("gru.bias", {6 * w}, 0);
    }
    parameters_.allocate();
    parameters_.initialize(seed);
  }

  const graph_layer_config& config() const noexcept { return config_; }
  parameter_store<T>& parameters() noexcept { return parameters_; }

  /// All ranks of the group call it with their own nodes.
  template <class Rows = rows_together, class Backend, communicator Communicator>
  void forward(Backend& compute, Communicator& group, const graph_part& part, saved& s, matrix_view<const T> h,
               matrix_view<T> out) {
    require(part, h.extent(0), h.extent(1), config_.inputs);
    require(part, out.extent(0), out.extent(1), config_.outputs);
    const std::int64_t w = config_.width, nodes = part.nodes(), m = config_.outputs;
    s.h.assign(h.elements().begin(), h.elements().end());
    s.messages.assign(size_of((nodes + total(part.counts_in())) * w), T{});
    const auto own = as_matrix(std::span<T>(s.messages).first(size_of(nodes * w)), nodes, w);
    multiply<Rows>(compute, std::span<const T>(s.h), views(0, config_.inputs, w).weight, own, T(0));
    compute::run<compute::ops::add_bias>(compute, own, parameters_.weight(1));
    for (T& v : own.elements()) v = (std::max)(v, T(0));
    std::vector<T> leaving;
    for (const std::int64_t node : part.sent()) append(leaving, s.messages, node);
    const auto to = times(part.counts_out(), w), from = times(part.counts_in(), w);
    group.all_to_all_v(std::span<const T>(leaving), to, std::span<T>(s.messages).subspan(size_of(nodes * w)), from);
    std::vector<T> leaves;
    leaves.reserve(size_of(part.edges() * w));
    for (const std::int64_t row : part.rows()) append(leaves, s.messages, row);
    detail::lone_rank alone;
    with_op<Rows>(compute, [&](const auto& op) { s.fold.forward(alone, std::span<const T>(leaves), op); });
    s.roots.clear();
    for (std::int64_t i = 0; i < nodes; ++i) {
      const auto root = s.fold.root(i);
      const auto value = root ? *root : std::span<const T>(parameters_.weight(5));
      s.roots.insert(s.roots.end(), value.begin(), value.end());
    }
    const auto of_fold = views(2, w, m);
    multiply<Rows>(compute, std::span<const T>(s.roots), of_fold.weight, out, T(0));
    multiply<Rows>(compute, std::span<const T>(s.h), as_matrix(parameters_.weight(4), config_.inputs, m), out, T(1));
    compute::run<compute::ops::add_bias>(compute, out, of_fold.bias);
    for (T& v : out.elements()) v = (std::max)(v, T(0));
    s.out.assign(out.elements().begin(), out.elements().end());
  }

  /// Adds to the gradients of the parameters, whose sum over the ranks is the whole's, and writes those of the nodes. All
  /// ranks call it, once after each forward. Errors: `layout_error` if `s` has nothing of a forward of this part.
  template <class Backend, communicator Communicator>
  void backward(Backend& compute, Communicator& group, const graph_part& part, saved& s, matrix_view<const T> d_out,
                matrix_view<T> d_h) {
    require(part, d_h.extent(0), d_h.extent(1), config_.inputs);
    require(part, d_out.extent(0), d_out.extent(1), config_.outputs);
    const std::int64_t n = config_.inputs, w = config_.width, nodes = part.nodes(), m = config_.outputs;
    if (s.h.size() != size_of(nodes * n) || s.roots.size() != size_of(nodes * w) ||
        s.out.size() != size_of(nodes * m) || s.messages.size() != size_of((nodes + total(part.counts_in())) * w))
      throw layout_error(text_of({"heddle: graph_layer: backward needs what forward has saved of ", nodes,
                                  " nodes and ", total(part.counts_in()), " of other ranks; got ", s.messages.size(),
                                  " numbers of messages, expected ", (nodes + total(part.counts_in())) * w}));
    std::vector<T> d(d_out.elements().begin(), d_out.elements().end()), d_roots(size_of(nodes * w));
    for (std::size_t i = 0; i < d.size(); ++i)
      if (!(s.out[i] > T(0))) d[i] = T(0);
    const auto d_y = as_matrix(std::span<const T>(d), nodes, m);
    const auto h = as_matrix(std::span<const T>(s.h), nodes, n);
    const auto of_fold = views(2, w, m), of_self = views(4, n, m), of_message = views(0, n, w);
    heddle::v0::compute::matmul<transpose::no, transpose::yes>(compute, d_y, of_fold.weight,
                                                               as_matrix(std::span<T>(d_roots), nodes, w), T(0));
    heddle::v0::compute::matmul<transpose::yes, transpose::no>(
        compute, as_matrix(std::span<const T>(s.roots), nodes, w), d_y, of_fold.weight_gradient, T(1));
    heddle::v0::compute::matmul<transpose::yes, transpose::no>(compute, h, d_y, of_self.weight_gradient, T(1));
    heddle::v0::compute::matmul<transpose::no, transpose::yes>(compute, d_y, of_self.weight, d_h, T(0));
    compute::run<compute::ops::add_bias_backward>(compute, d_y, of_fold.bias_gradient);
    for (std::int64_t i = 0; i < nodes; ++i)
      if (!s.fold.root(i)) add_row(parameters_.gradient(5), 0, d_roots, i);
    std::vector<T> d_leaves(size_of(part.edges() * w)), d_messages(s.messages.size()),
        arriving(part.sent().size() * size_of(w));
    with_op<rows_together>(
        compute, [&](const auto& op) { s.fold.backward(op, std::span<const T>(d_roots), std::span<T>(d_leaves)); });
    for (std::size_t e = 0; e < part.rows().size(); ++e)
      add_row(std::span<T>(d_messages), part.rows()[e], d_leaves, static_cast<std::int64_t>(e));
    const auto to = times(part.counts_in(), w), from = times(part.counts_out(), w);
    group.all_to_all_v(std::span<const T>(d_messages).subspan(size_of(nodes * w)), to, std::span<T>(arriving), from);
    for (std::size_t i = 0; i < part.sent().size(); ++i)
      add_row(std::span<T>(d_messages), part.sent()[i], arriving, static_cast<std::int64_t>(i));
    d_messages.resize(size_of(nodes * w));
    for (std::size_t i = 0; i < d_messages.size(); ++i)
      if (!(s.messages[i] > T(0))) d_messages[i] = T(0);
    const auto d_x = as_matrix(std::span<const T>(d_messages), nodes, w);
    heddle::v0::compute::matmul<transpose::no, transpose::yes>(compute, d_x, of_message.weight, d_h, T(1));
    heddle::v0::compute::matmul<transpose::yes, transpose::no>(compute, h, d_x, of_message.weight_gradient, T(1));
    compute::run<compute::ops::add_bias_backward>(compute, d_x, of_message.bias_gradient);
  }

 private:
  static std::size_t size_of(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }
  static std::int64_t total(const std::vector<std::int64_t>& counts) noexcept {
    std::int64_t sum = 0;
    for (const std::int64_t n : counts) sum += n;
    return sum;
  }
  static std::vector<std::int64_t> times(std::vector<std::int64_t> counts, std::int64_t each) {
    for (std::int64_t& n : counts) n *= each;
    return counts;
  }
  void append(std::vector<T>& to, const std::vector<T>& rows, std::int64_t row) const {
    const auto from = rows.begin() + row * config_.width;
    to.insert(to.end(), from, from + config_.width);
  }
  void add_row(std::span<T> to, std::int64_t row, const std::vector<T>& rows, std::int64_t from) const {
    for (std::int64_t j = 0; j < config_.width; ++j)
      to[size_of(row * config_.width + j)] += rows[size_of(from * config_.width + j)];
  }
  void add(std::string name, std::vector<std::int64_t> shape, double deviation) {
    parameter p;
    p.name = std::move(name);
    p.id = static_cast<int>(parameters_.table().size());
    p.shape = shape;
    p.initial_deviation = deviation;
    const layout<mesh<axis<dp, 1>>> everywhere;
    if (shape.size() == 2)
      parameters_.add(std::move(p), std::array<std::int64_t, 2>{shape[0], shape[1]}, everywhere, 0);
    else
      parameters_.add(std::move(p), std::array<std::int64_t, 1>{shape[0]}, everywhere, 0);
  }
  weight_views<T> views(std::size_t i, std::int64_t rows, std::int64_t columns) {
    return {as_matrix(parameters_.weight(i), rows, columns), as_matrix(parameters_.gradient(i), rows, columns),
            parameters_.weight(i + 1), parameters_.gradient(i + 1)};
  }
  template <class Rows, class Backend, class F>
  void with_op(Backend& compute, F&& f) {
    if constexpr (learned)
      f(gru_operator<T, Backend, Op, Rows>(compute, views(6, 6 * config_.width, config_.width)));
    else
      f(Op{});
  }
  template <class Rows, class Backend>
  static void multiply(Backend& compute, std::span<const T> x, matrix_view<const T> weight, matrix_view<T> y, T beta) {
    const std::int64_t in = weight.extent(0), out = weight.extent(1);
    const std::int64_t each = Rows::together ? y.extent(0) : 1;
    for (std::int64_t r = 0; r < y.extent(0); r += each)
      heddle::v0::compute::matmul<transpose::no, transpose::no>(
          compute, matrix_view<const T>(x.data() + r * in, dynamic_shape<2>(each, in)), weight,
          matrix_view<T>(y.data() + r * out, dynamic_shape<2>(each, out)), beta);
  }
  static void require(const graph_part& part, std::int64_t rows, std::int64_t columns, std::int64_t wanted) {
    if (rows == part.nodes() && columns == wanted) return;
    throw layout_error(text_of({"heddle: graph_layer: expected ", part.nodes(), " nodes of ", wanted, " numbers, got ",
                                rows, " of ", columns}));
  }

  graph_layer_config config_;
  parameter_store<T> parameters_;
};

}  // namespace heddle::inline v0::model
