// heddle/comm/collectives.hpp: collectives on any communicator by an algorithm of one's choice.
#pragma once

#include <heddle/comm/algorithm/dissemination.hpp>
#include <heddle/comm/algorithms.hpp>
#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/collective_plans.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/execute_rounds.hpp>
#include <heddle/core/op_traits.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace heddle::inline v0 {

namespace algo {

/// The communicator's own call, whatever it does.
struct built_in {
  static constexpr std::string_view name = "built_in";
};

/// `A` for exactly so many ranks, with its rounds (to root 0) in read-only data instead of made when first used.
template <class A, int Ranks>
struct for_ranks {
  static constexpr std::string_view name = A::name;
  template <comm_operation What>
  static constexpr fold_order order = A::template order<What>;
  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return ranks == Ranks && A::template offers<What>(ranks);
  }
  template <comm_operation What>
  static constexpr round_table rounds(int ranks, int root) {
    return A::template rounds<What>(ranks, root);
  }
  template <comm_operation What>
  static constexpr round_view view() {
    return static_rounds<A, What, Ranks>::view();
  }
};

}  // namespace algo

namespace detail {

// The checks of a communicator's own calls, for any communicator.
template <class C>
class arguments_of : argument_checks<arguments_of<C>> {
  using base = argument_checks<arguments_of<C>>;
  friend base;

 public:
  explicit arguments_of(const C& comm) : comm_(comm) {}
  using base::check_apart;
  using base::check_counts;
  using base::check_length;
  using base::check_overlap;
  using base::check_root;
  using base::fail;
  using base::length;

 private:
  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  int world_rank(int r) const {
    if constexpr (requires { comm_.world_rank(r); })
      return comm_.world_rank(r);
    else
      return r;
  }
  std::string name() const {
    std::string text;
    if constexpr (requires { text += comm_.name(); })
      text += comm_.name();
    else
      text += "unnamed";
    return text;
  }

  const C& comm_;
};

// Whether the algorithm cuts the vector, as it does on some small number of ranks then.
template <class A, comm_operation What>
consteval bool cuts_vectors() {
  for (int p = 2; p <= 4; ++p)
    if (A::template offers<What>(p))
      if (A::template rounds<What>(p, 0).view().items() > 1) return true;
  return false;
}

// What the messages below are about, so that compilers print it with them.
template <class Algorithm, class Operator>
struct may_fold {
  template <comm_operation What>
  static constexpr bool commutes =
      Algorithm::template order<What> != fold_order::any || op_traits<Operator>::commutative;
  template <comm_operation What>
  static constexpr bool groups =
      Algorithm::template order<What> == fold_order::dyadic || op_traits<Operator>::associative;
};

// The compile-time refusals. Each stops at its first sentence.
template <class A, comm_operation What>
consteval bool can_run() {
  static_assert(
      round_algorithm<A, What>,
      "heddle: the algorithm of a collective is a type such as algo::ring, with name, offers, order and rounds");
  if constexpr (round_algorithm<A, What>) {
    constexpr bool offered = offers_anywhere<A, What>();
    static_assert(offered, "heddle: this algorithm has no rounds for this collective; name another one, or none");
    return offered;
  } else {
    return false;
  }
}

template <class A, comm_operation What, class T, class Op>
consteval bool can_fold() {
  if constexpr (can_run<A, What>()) {
    constexpr bool folds = fold_operator<Op, T>;
    static_assert(
        folds,
        "heddle: the operator of a reduction takes two elements and returns one: T operator()(const T&, const "
        "T&) const; if it declares elementwise = false, it takes spans: op(a, b, result)");
    constexpr bool commutes = may_fold<A, Op>::template commutes<What>;
    if constexpr (folds)
      static_assert(
          commutes,
          "heddle: this algorithm (algo::ring, say, folds in rotated order) changes the order of the ranks, and "
          "the operator does not declare commutative = true; declare it, or use an algorithm that keeps the "
          "order, such as algo::recursive_doubling");
    constexpr bool groups = may_fold<A, Op>::template groups<What>;
    if constexpr (folds && commutes)
      static_assert(
          groups,
          "heddle: this algorithm groups the contributions as it likes, and the operator declares associative "
          "= false; use algo::dyadic, which always folds the same tree");
    if constexpr (folds && commutes && groups && !op_traits<Op>::elementwise) {
      constexpr bool whole = !cuts_vectors<A, What>();
      static_assert(
          whole,
          "heddle: this algorithm cuts the vector, and the operator declares elementwise = false; use one that "
          "sends whole vectors, such as algo::recursive_doubling");
      return whole;
    }
    return folds && commutes && groups;
  } else {
    return false;
  }
}

template <comm_operation What>
[[noreturn]] void refuse_ranks(std::string_view name, int ranks, bool commutative) {
  std::string text = "heddle: ";
  text += to_string(What);
  text += " on ";
  text += std::to_string(ranks);
  text += ranks == 1 ? " rank: algo::" : " ranks: algo::";
  text += name;
  text += " has no rounds for this number of ranks; these have: ";
  text += names_of_algorithms<What>(known_algorithms{}, ranks, commutative);
  throw comm_error(text);
}

// Any collective, by any algorithm.
template <class A, comm_operation What, class T, class C, class Op>
void by_rounds(C& comm, const T* in, T* out, block_sizes sizes, int root, bool in_place, const Op& op,
               collective_plans* plans) {
  const int p = comm.size();
  if (!A::template offers<What>(p)) refuse_ranks<What>(A::name, p, op_traits<Op>::commutative);
  if constexpr (requires { static_cast<collective_plans&>(comm.plans()); })
    if (plans == nullptr) plans = &comm.plans();
  collective_plans once;
  collective_plans& kept = plans != nullptr ? *plans : once;
  auto& plan = kept.template of<A, What>(p, comm.rank(), root, in_place);
  std::vector<std::int64_t> all;
  if constexpr (What == comm_operation::all_to_all)
    if (sizes.elements < 0 && plan.program().relays()) {  // who passes blocks on must know how long they are
      all.resize(static_cast<std::size_t>(p) * static_cast<std::size_t>(p));
      comm.all_gather(sizes.counts, std::span(all));
      sizes.all = all;
      for (int s = 0; s < p; ++s)
        arguments_of<C>(comm).check_length("all_to_all_v", "a block", sizes.received[static_cast<std::size_t>(s)],
                                           all[static_cast<std::size_t>(s * p + comm.rank())]);
    }
  const bound_rounds& bound = plan.bound(sizes);
  execute_rounds<T>(comm, bound, in, out, kept.template scratch<T>(bound.scratch), op);
}

// The last argument of the calls below: plans, or none.
struct kept_plans {
  kept_plans() = default;
  kept_plans(collective_plans& p) : plans(&p) {}
  collective_plans* plans = nullptr;
};

// all_reduce, scan and exclusive_scan: a vector in, a vector out.
template <class A, comm_operation What, class T, class C, class Op>
void fold_by_rounds(C& comm, std::span<const T> x, std::span<T> y, const Op& op, collective_plans* plans) {
  if constexpr (can_fold<A, What, T, Op>()) {
    const arguments_of<C> arguments(comm);
    arguments.check_length(to_string(What).data(), "out", arguments.length(y), arguments.length(x));
    arguments.template check_overlap<T>(to_string(What), x, y, 0, 0);
    by_rounds<A, What, T>(comm, x.data(), y.data(), block_sizes::vector(arguments.length(x)), 0, x.data() == y.data(),
                          op, plans);
  }
}

template <class A, class T, class C, class Op>
void reduce_scatter_by_rounds(C& comm, std::span<const T> x, std::span<T> y, const block_sizes& sizes,
                              std::int64_t own_at, const Op& op, collective_plans* plans) {
  constexpr auto what = comm_operation::reduce_scatter;
  if constexpr (can_fold<A, what, T, Op>()) {
    arguments_of<C>(comm).template check_overlap<T>(to_string(what), x, y, own_at, 0);
    const bool in_place = !y.empty() && x.data() + own_at == y.data();
    by_rounds<A, what, T>(comm, x.data(), in_place ? y.data() - own_at : y.data(), sizes, 0, in_place, op, plans);
  }
}

}  // namespace detail

// The calls below are those of a communicator, which says what they mean (comm/communicator.hpp), with the algorithm as
// a template argument: `all_reduce<algo::ring>(comm, x, plus{})`. Without one, or with `algo::built_in`, they are the
// communicator's own. Operators may hold state, and need an identity only for exclusive_scan; they are refused where the
// algorithm changes an order or a grouping that they do not allow (core/op_traits.hpp). The last argument, where given,
// keeps programs from call to call (comm/collective_plans.hpp); a communicator with a member `plans()` keeps them itself.
//
// Errors: `comm_error` if the algorithm has no rounds for this number of ranks, naming those that have, or if arguments
// do not fit; otherwise as the communicator's isend and irecv.

/// Every rank's `inout` becomes the fold of all.
template <class A = algo::built_in, communicator C, detail::spannable InOut, class Op>
void all_reduce(C& comm, InOut&& inout, Op op, detail::kept_plans plans = {}) {
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.all_reduce(inout, op);
  } else if constexpr (detail::can_receive<InOut>()) {
    using T = detail::comm_element<InOut>;
    const std::span<T> x = std::span(inout);
    detail::fold_by_rounds<A, comm_operation::all_reduce, T>(comm, std::span<const T>(x), x, op, plans.plans);
  }
}
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out, class Op>
void all_reduce(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.all_reduce(in, out, op);
  } else if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    detail::fold_by_rounds<A, comm_operation::all_reduce, T>(comm, std::span<const T>(std::span(in)),
                                                             std::span<T>(std::span(out)), op, plans.plans);
  }
}

/// The root's `out`, unused elsewhere, becomes the fold of all.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out, class Op>
void reduce(C& comm, In&& in, Out&& out, Op op, int root, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::reduce;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.reduce(in, out, op, root);
  } else if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    if constexpr (detail::can_fold<A, what, T, Op>()) {
      const std::span<const T> x = std::span(in);
      const std::span<T> y = std::span(out);
      const detail::arguments_of<C> arguments(comm);
      arguments.check_root(root);
      const bool at_root = comm.rank() == root;
      if (at_root) arguments.check_length("reduce", "out", arguments.length(y), arguments.length(x));
      if (at_root) arguments.template check_overlap<T>("reduce", x, y, 0, 0);
      detail::by_rounds<A, what, T>(comm, x.data(), y.data(), block_sizes::vector(arguments.length(x)), root,
                                    at_root && x.data() == y.data(), op, plans.plans);
    }
  }
}

/// `in` holds a block per rank; `out` becomes the fold of the own blocks.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out, class Op>
void reduce_scatter(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.reduce_scatter(in, out, op);
  } else if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const std::int64_t n = arguments.length(y);
    arguments.check_length("reduce_scatter", "in", arguments.length(x), comm.size() * n);
    detail::reduce_scatter_by_rounds<A, T>(comm, x, y, block_sizes::equal(n), comm.rank() * n, op, plans.plans);
  }
}
/// The same with `counts[r]` elements for rank r, the same on every rank.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out, class Op>
void reduce_scatter_v(C& comm, In&& in, Out&& out, std::span<const std::int64_t> counts, Op op,
                      detail::kept_plans plans = {}) {
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.reduce_scatter_v(in, out, counts, op);
  } else if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const detail::counted_blocks blocks = arguments.check_counts("reduce_scatter_v", counts);
    arguments.check_length("reduce_scatter_v", "in", arguments.length(x), blocks.offset(comm.size()));
    arguments.check_length("reduce_scatter_v", "out", arguments.length(y), blocks.count(comm.rank()));
    detail::reduce_scatter_by_rounds<A, T>(comm, x, y, block_sizes::counted(counts), blocks.offset(comm.rank()), op,
                                           plans.plans);
  }
}

/// `out` gets a block per rank.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out>
void all_gather(C& comm, In&& in, Out&& out, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::all_gather;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.all_gather(in, out);
  } else if constexpr (detail::same_elements<In, Out>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const std::int64_t n = arguments.length(x);
    arguments.check_length("all_gather", "out", arguments.length(y), comm.size() * n);
    arguments.template check_overlap<T>("all_gather", x, y, 0, comm.rank() * n);
    detail::by_rounds<A, what, T>(comm, x.data(), y.data(), block_sizes::equal(n), 0, false, no_operator{},
                                  plans.plans);
  }
}
/// The same with `counts[r]` elements of rank r, the same on every rank.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out>
void all_gather_v(C& comm, In&& in, Out&& out, std::span<const std::int64_t> counts, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::all_gather;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.all_gather_v(in, out, counts);
  } else if constexpr (detail::same_elements<In, Out>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const detail::counted_blocks blocks = arguments.check_counts("all_gather_v", counts);
    arguments.check_length("all_gather_v", "in", arguments.length(x), blocks.count(comm.rank()));
    arguments.check_length("all_gather_v", "out", arguments.length(y), blocks.offset(comm.size()));
    arguments.template check_overlap<T>("all_gather_v", x, y, 0, blocks.offset(comm.rank()));
    detail::by_rounds<A, what, T>(comm, x.data(), y.data(), block_sizes::counted(counts), 0, false, no_operator{},
                                  plans.plans);
  }
}

/// Block s of `out` is block `rank()` of rank s's `in`.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out>
void all_to_all(C& comm, In&& in, Out&& out, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::all_to_all;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.all_to_all(in, out);
  } else if constexpr (detail::same_elements<In, Out>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const std::int64_t n = arguments.length(x) / comm.size();
    arguments.check_length("all_to_all", "out", arguments.length(y), arguments.length(x));
    arguments.check_length("all_to_all", "in, a block for each rank,", arguments.length(x), comm.size() * n);
    arguments.template check_apart<T>("all_to_all", x, y);
    detail::by_rounds<A, what, T>(comm, x.data(), y.data(), block_sizes::equal(n), 0, false, no_operator{},
                                  plans.plans);
  }
}
/// The same with `send_counts[r]` elements for rank r and `recv_counts[r]` from it. An algorithm whose blocks pass
/// through other ranks first tells every rank all counts, by the communicator's own all_gather.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out>
void all_to_all_v(C& comm, In&& in, std::span<const std::int64_t> send_counts, Out&& out,
                  std::span<const std::int64_t> recv_counts, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::all_to_all;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.all_to_all_v(in, send_counts, out, recv_counts);
  } else if constexpr (detail::same_elements<In, Out>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const int p = comm.size(), r = comm.rank();
    const detail::counted_blocks sent = arguments.check_counts("all_to_all_v", send_counts);
    const detail::counted_blocks received = arguments.check_counts("all_to_all_v", recv_counts);
    arguments.check_length("all_to_all_v", "in", arguments.length(x), sent.offset(p));
    arguments.check_length("all_to_all_v", "out", arguments.length(y), received.offset(p));
    arguments.check_length("all_to_all_v", "the own block", sent.count(r), received.count(r));
    arguments.template check_apart<T>("all_to_all_v", x, y);
    detail::by_rounds<A, what, T>(comm, x.data(), y.data(), block_sizes::counted(send_counts, recv_counts), 0, false,
                                  no_operator{}, plans.plans);
  }
}

/// Every rank's `inout` becomes the root's.
template <class A = algo::built_in, communicator C, detail::spannable InOut>
void broadcast(C& comm, InOut&& inout, int root, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::broadcast;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.broadcast(inout, root);
  } else if constexpr (detail::can_receive<InOut>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<InOut>;
    const std::span<T> x = std::span(inout);
    const detail::arguments_of<C> arguments(comm);
    arguments.check_root(root);
    detail::by_rounds<A, what, T>(comm, x.data(), x.data(), block_sizes::vector(arguments.length(x)), root, true,
                                  no_operator{}, plans.plans);
  }
}

/// The root's `out`, unused elsewhere, gets a block per rank.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out>
void gather(C& comm, In&& in, Out&& out, int root, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::gather;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.gather(in, out, root);
  } else if constexpr (detail::same_elements<In, Out>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const std::int64_t n = arguments.length(x);
    arguments.check_root(root);
    if (comm.rank() == root) arguments.check_length("gather", "out", arguments.length(y), comm.size() * n);
    if (comm.rank() == root) arguments.template check_overlap<T>("gather", x, y, 0, root * n);
    detail::by_rounds<A, what, T>(comm, x.data(), y.data(), block_sizes::equal(n), root, false, no_operator{},
                                  plans.plans);
  }
}

/// `out` gets this rank's block of the root's `in`, which is unused elsewhere.
template <class A = algo::built_in, communicator C, detail::spannable In, detail::spannable Out>
void scatter(C& comm, In&& in, Out&& out, int root, detail::kept_plans plans = {}) {
  constexpr auto what = comm_operation::scatter;
  if constexpr (std::is_same_v<A, algo::built_in>) {
    comm.scatter(in, out, root);
  } else if constexpr (detail::same_elements<In, Out>() && detail::can_run<A, what>()) {
    using T = detail::comm_element<In>;
    const std::span<const T> x = std::span(in);
    const std::span<T> y = std::span(out);
    const detail::arguments_of<C> arguments(comm);
    const std::int64_t n = arguments.length(y);
    arguments.check_root(root);
    if (comm.rank() == root) arguments.check_length("scatter", "in", arguments.length(x), comm.size() * n);
    if (comm.rank() == root) arguments.template check_overlap<T>("scatter", x, y, root * n, 0);
    detail::by_rounds<A, what, T>(comm, x.data(), y.data(), block_sizes::equal(n), root, false, no_operator{},
                                  plans.plans);
  }
}

/// Rank r's `out` becomes the fold of ranks 0, ..., r. In place: the same buffer twice.
template <class A = algo::dissemination, communicator C, detail::spannable In, detail::spannable Out, class Op>
void scan(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    detail::fold_by_rounds<A, comm_operation::scan, T>(comm, std::span<const T>(std::span(in)),
                                                       std::span<T>(std::span(out)), op, plans.plans);
  }
}

/// Rank r's `out` becomes the fold of ranks 0, ..., r - 1; on rank 0 the operator's identity.
template <class A = algo::dissemination, communicator C, detail::spannable In, detail::spannable Out, class Op>
void exclusive_scan(C& comm, In&& in, Out&& out, Op op, detail::kept_plans plans = {}) {
  if constexpr (detail::same_elements<In, Out>()) {
    using T = detail::comm_element<In>;
    constexpr bool has_identity = requires {
      { op.template identity<T>() } -> std::convertible_to<T>;
    };
    static_assert(has_identity,
                  "heddle: exclusive_scan gives rank 0 the operator's identity: template <class T> T identity()");
    if constexpr (has_identity)
      detail::fold_by_rounds<A, comm_operation::exclusive_scan, T>(comm, std::span<const T>(std::span(in)),
                                                                   std::span<T>(std::span(out)), op, plans.plans);
  }
}

}  // namespace heddle::inline v0
