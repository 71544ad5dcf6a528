// heddle/collective/dyadic_fold.hpp: folds and scans over ranks in one fixed tree, with gradients.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/collective/dyadic_plan.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/op_traits.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
// Of a fold's messages: no message of the program's own, on its way meanwhile, is taken for one of them.
inline constexpr int dyadic_tag = 31'754;

template <class T, class Op>
consteval bool can_fold_in_tree() {
  static_assert(
      fold_operator<Op, T>,
      "heddle: a dyadic fold needs an operator that can be copied and called as `T operator()(const T&, const T&) "
      "const`, or, with `static constexpr bool elementwise = false`, as `op(a, b, result)` on spans of T");
  return fold_operator<Op, T>;
}
}  // namespace detail

/// An operator whose fold can be differentiated. It works on many pairs of elements at once, each a row of scalars:
/// `forward(a, b, result, saved)` also writes `saved_size(scalars of the result)` scalars of its own choice;
/// `backward_input(a, b, saved, d_result, d_a, d_b)` writes both gradients and may change `saved`; `backward_weight(a,
/// b, saved)` follows it and adds to the gradients of the operator's parameters.
template <class Op, class T>
concept differentiable_fold_operator =
    fold_operator<Op, T> && requires(const Op op, std::span<const T> in, std::span<T> out, std::int64_t scalars) {
      { op.saved_size(scalars) } -> std::same_as<std::int64_t>;
      op.forward(in, in, out, out);
      op.backward_input(in, in, out, in, out, out);
      op.backward_weight(in, in, std::span<const T>(out));
    };

/// Folds the leaves of dyadic trees over the ranks of a group. A leaf is `element` scalars; every rank gets the roots.
/// The result has the same bits on any number of ranks and for any cut of the leaves, and they are the bits of the tree
/// on one rank, for operators that are neither commutative nor associative too (rounded sums, learned operators).
///
/// An operator that is not elementwise is called with many elements at once, those of one height of all trees: `op(a,
/// b, result)`, spans of n elements each; result i may depend on the elements i alone, and on nothing else.
///
///     hd::dyadic_fold<float> fold(hd::dyadic_plan(bounds, comm.rank()), width);
///     fold.run(comm, leaves, op);
///     if (const auto sum = fold.root()) ...            // absent: there were no leaves
///
/// Communication: the plan's messages, with a tag of their own (31'754); `backward` and `exclusive_scan` send nothing.
/// Shapes: leaves [plan.leaves(), element], roots [plan.trees(), element].
/// Memory: the values of the slots; with `forward` as much again, twice, and what the operator saves.
/// Errors: `comm_error` if the plan is another rank's, the sizes do not fit, or what is asked for was not computed.
template <transferable T>
class dyadic_fold {
 public:
  dyadic_fold(dyadic_plan plan, std::int64_t element) : plan_(std::move(plan)), element_(element) {
    if (element < 1) refuse("scalars per element", "at least 1", element);
  }

  const dyadic_plan& plan() const noexcept { return plan_; }
  std::int64_t element() const noexcept { return element_; }

  /// Folds. All ranks of the group call it with their leaves.
  template <class Communicator, class Op>
  void run(Communicator& group, std::span<const T> leaves, const Op& op) {
    if constexpr (detail::can_fold_in_tree<T, Op>()) {
      operands_.clear();
      fold(group, leaves,
           [&](std::span<const T> a, std::span<const T> b, std::span<T> result) { call(op, a, b, result); });
    }
  }

  /// Folds and keeps what `backward` needs.
  template <class Communicator, class Op>
    requires differentiable_fold_operator<Op, T>
  void forward(Communicator& group, std::span<const T> leaves, const Op& op) {
    operands_.clear();
    operands_.reserve(scalars(2 * plan_.computed()));
    saved_.clear();
    std::size_t sum = 0;
    for (const dyadic_plan::stage& s : plan_.stages())
      for_each_level(s, [&](std::int64_t first, std::int64_t last) { sum += saved_of(op, last - first); });
    saved_.resize(sum);
    std::size_t at = 0;
    fold(group, leaves, [&](std::span<const T> a, std::span<const T> b, std::span<T> result) {
      operands_.insert(operands_.end(), a.begin(), a.end());
      operands_.insert(operands_.end(), b.begin(), b.end());
      const auto saved = static_cast<std::size_t>(op.saved_size(static_cast<std::int64_t>(result.size())));
      op.forward(a, b, result, std::span<T>(saved_).subspan(at, saved));
      at += saved;
    });
  }

  /// The value of a tree after a fold; none for a tree without leaves.
  std::optional<std::span<const T>> root(std::int64_t tree = 0) const {
    require_index("tree", tree, plan_.trees());
    if (!folded_) throw comm_error("heddle: dyadic_fold: `root` needs `run` or `forward` first");
    return plan_.root(tree) < 0 ? std::nullopt : std::optional(slot(plan_.root(tree)));
  }

  /// The gradients of this rank's leaves from those of the roots, which all ranks give, after `forward`. The operator's
  /// parameters get the gradients of each node on the lowest rank that computed it and nowhere else: their sum over the
  /// ranks is the gradient of the whole, whatever the number of ranks. Sends nothing. Call it once after each
  /// `forward`.
  /// The gradient of a tree without leaves is not read.
  template <class Op>
    requires differentiable_fold_operator<Op, T>
  void backward(const Op& op, std::span<const T> d_roots, std::span<T> d_leaves) {
    expect("scalars of the roots' gradients", plan_.trees() * element_, d_roots.size());
    expect("scalars of the leaves' gradients", plan_.leaves() * element_, d_leaves.size());
    expect("scalars kept by `forward`", 2 * plan_.computed() * element_, operands_.size());
    std::vector<T> gradients(scalars(plan_.slots()), T{}), d_operands;
    for (std::int64_t t = 0; t < plan_.trees(); ++t)
      if (plan_.root(t) >= 0)
        std::copy_n(d_roots.data() + t * element_, element_, gradients.data() + plan_.root(t) * element_);
    std::size_t operands_end = operands_.size(), saved_end = saved_.size();
    for (std::size_t k = plan_.stages().size(); k-- > 0;) {
      const dyadic_plan::stage& s = plan_.stages()[k];
      for (std::size_t l = s.levels.size(); l-- > 0;) {
        const std::int64_t first = l == 0 ? s.first_result : s.levels[l - 1], last = s.levels[l];
        const std::size_t n = scalars(last - first), saved_size = saved_of(op, last - first);
        operands_end -= 2 * n;
        saved_end -= saved_size;
        const std::span<const T> a(operands_.data() + operands_end, n), b(a.data() + n, n);
        const std::span<T> saved(saved_.data() + saved_end, saved_size);
        d_operands.assign(2 * n, T{});
        const std::span<T> d_a(d_operands.data(), n), d_b(d_a.data() + n, n);
        op.backward_input(a, b, saved, std::span<const T>(gradients).subspan(scalars(first), n), d_a, d_b);
        if (s.first_of_group) op.backward_weight(a, b, std::span<const T>(saved));
        for (std::int64_t i = first; i < last; ++i) {  // each node is an operand once
          const dyadic_plan::operands& of = plan_.of(i);
          std::copy_n(d_a.data() + (i - first) * element_, element_, gradients.data() + of.left * element_);
          std::copy_n(d_b.data() + (i - first) * element_, element_, gradients.data() + of.right * element_);
        }
      }
    }
    operands_.clear();
    std::copy_n(gradients.data(), d_leaves.size(), d_leaves.data());
  }

  /// After a fold: for each leaf of this rank the fold of the leaves before it in its tree, `before`. The way is down
  /// the same tree, so that these values do not depend on the cut either. Sends nothing.
  template <class Op>
  void exclusive_scan(const Op& op) {
    if constexpr (detail::can_fold_in_tree<T, Op>()) {
      if (!folded_)
        throw comm_error(
            "heddle: dyadic_fold: exclusive_scan goes down the tree that `run` or `forward` went up; call one first");
      scan_.emplace(plan_);
      values_.resize(scalars(scan_->slots()));
      std::int64_t first = plan_.slots();
      for (const std::int64_t last : scan_->levels()) {
        gather(last - first, [&](std::int64_t i) { return scan_->of(first - plan_.slots() + i); });
        call(op, a_of(last - first), b_of(last - first), result_of(first, last));
        first = last;
      }
    }
  }

  /// What `exclusive_scan` found for a leaf of this rank; none for the first leaf of a tree.
  std::optional<std::span<const T>> before(std::int64_t leaf) const {
    if (!scan_) throw comm_error("heddle: dyadic_fold: `before` needs `exclusive_scan` first");
    require_index("leaf", leaf, plan_.leaves());
    return scan_->before(leaf) < 0 ? std::nullopt : std::optional(slot(scan_->before(leaf)));
  }

 private:
  [[noreturn]] void refuse(const char* what, const std::string& expected, std::int64_t got) const {
    throw comm_error(
        text_of({"heddle: dyadic_fold on rank ", plan_.rank(), ": ", what, ": expected ", expected, ", got ", got}));
  }
  void expect(const char* what, std::int64_t expected, std::size_t got) const {
    if (expected != static_cast<std::int64_t>(got))
      refuse(what, std::to_string(expected), static_cast<std::int64_t>(got));
  }
  void require_index(const char* what, std::int64_t index, std::int64_t count) const {
    if (index >= 0 && index < count) return;
    std::string expected = "one of ";
    expected += std::to_string(count);
    refuse(what, expected, index);
  }
  std::size_t scalars(std::int64_t elements) const noexcept { return static_cast<std::size_t>(elements * element_); }
  std::span<const T> slot(std::int64_t s) const { return std::span<const T>(values_).subspan(scalars(s), scalars(1)); }
  template <class Op>
  std::size_t saved_of(const Op& op, std::int64_t elements) const {
    return static_cast<std::size_t>(op.saved_size(elements * element_));
  }

  template <class Op>
  static void call(const Op& op, std::span<const T> a, std::span<const T> b, std::span<T> result) {
    if constexpr (op_traits<Op>::elementwise)
      for (std::size_t i = 0; i < result.size(); ++i) result[i] = op(a[i], b[i]);
    else
      op(a, b, result);
  }

  // Calls f(first slot, last slot) for what each call of the operator computes.
  template <class F>
  static void for_each_level(const dyadic_plan::stage& s, F&& f) {
    std::int64_t first = s.first_result;
    for (const std::int64_t last : s.levels) {
      f(first, last);
      first = last;
    }
  }

  // The operands of n nodes side by side: all left ones, then all right ones.
  template <class F>
  void gather(std::int64_t n, F&& operands_of) {
    pairs_.resize(scalars(2 * n));
    for (std::int64_t i = 0; i < n; ++i) {
      const dyadic_plan::operands of = operands_of(i);
      std::copy_n(values_.data() + of.left * element_, element_, pairs_.data() + i * element_);
      std::copy_n(values_.data() + of.right * element_, element_, pairs_.data() + (n + i) * element_);
    }
  }
  std::span<const T> a_of(std::int64_t n) const { return {pairs_.data(), scalars(n)}; }
  std::span<const T> b_of(std::int64_t n) const { return {pairs_.data() + scalars(n), scalars(n)}; }
  std::span<T> result_of(std::int64_t first, std::int64_t last) {
    return std::span<T>(values_).subspan(scalars(first), scalars(last - first));
  }

  template <class Communicator>
  void exchange(Communicator& group, const dyadic_plan::stage& s) {
    message_.clear();
    for (const std::int64_t from : s.send) message_.insert(message_.end(), slot(from).begin(), slot(from).end());
    const std::span<T> arriving = result_of(s.first_received, s.first_received + s.received);
    const std::span<const T> leaving(message_);
    using request = decltype(group.isend(leaving, 0, detail::dyadic_tag));
    std::array<std::optional<request>, 3> started;
    if (s.received > 0) started[0].emplace(group.irecv(arriving, s.receive_from, detail::dyadic_tag));
    if (!s.send.empty())
      for (std::size_t i = 0; i < s.send_to.size(); ++i)
        started[i + 1].emplace(group.isend(leaving, s.send_to[i], detail::dyadic_tag));
    for (auto& r : started)
      if (r) r->wait();
  }

  template <class Communicator, class Call>
  void fold(Communicator& group, std::span<const T> leaves, Call&& compute) {
    (void)detail::computes_in_buffers<Communicator>();
    if (group.size() != plan_.ranks()) refuse("ranks", std::to_string(plan_.ranks()), group.size());
    if (group.rank() != plan_.rank()) refuse("rank", std::to_string(plan_.rank()), group.rank());
    expect("scalars of this rank's leaves", plan_.leaves() * element_, leaves.size());
    folded_ = false;
    scan_.reset();
    values_.resize(scalars(plan_.slots()));
    std::copy(leaves.begin(), leaves.end(), values_.begin());
    for (const dyadic_plan::stage& s : plan_.stages()) {
      exchange(group, s);
      for_each_level(s, [&](std::int64_t first, std::int64_t last) {
        gather(last - first, [&](std::int64_t i) { return plan_.of(first + i); });
        compute(a_of(last - first), b_of(last - first), result_of(first, last));
      });
    }
    folded_ = true;
  }

  dyadic_plan plan_;
  std::int64_t element_;
  bool folded_ = false;
  std::optional<dyadic_scan_plan> scan_;
  std::vector<T> values_, pairs_, message_, operands_, saved_;
};

/// Folds elements that lie on the ranks in order, however many each has, in one dyadic tree: the same bits on every
/// rank, on any number of ranks, for any operator. No value where there is no element at all. The ranks tell each
/// other first how many elements they have; keep a `dyadic_fold` where that does not change.
/// Shapes: `leaves` [any, element], a contiguous range; the result is one element.
template <class Communicator, class Leaves, class Op>
auto dyadic_reduce(Communicator& group, const Leaves& leaves, std::int64_t element, const Op& op) {
  using T = detail::comm_element<Leaves>;
  const std::span<const T> own(leaves);
  if (element < 1 || static_cast<std::int64_t>(own.size()) % element != 0) {
    throw comm_error(
        text_of({"heddle: dyadic_reduce: ", own.size(), " scalars are no whole number of elements of ", element}));
  }
  const std::int64_t mine = static_cast<std::int64_t>(own.size()) / element;
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(group.size()) + 1, 0);
  group.all_gather(std::span<const std::int64_t>(&mine, 1), std::span(bounds).subspan(1));
  for (std::size_t r = 1; r < bounds.size(); ++r) bounds[r] += bounds[r - 1];
  dyadic_fold<T> fold(dyadic_plan(bounds, group.rank()), element);
  fold.run(group, own, op);
  const auto root = fold.root();
  return root ? std::optional(std::vector<T>(root->begin(), root->end())) : std::nullopt;
}

}  // namespace heddle::inline v0
