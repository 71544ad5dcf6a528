// heddle/collective/run_collective.hpp: checks a collective's call and executes its rounds.
#pragma once

#include <heddle/collective/algorithm/name.hpp>
#include <heddle/collective/algorithms.hpp>
#include <heddle/comm/argument_checks.hpp>
#include <heddle/collective/collective_plans.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/collective/decision.hpp>
#include <heddle/collective/execute_rounds.hpp>
#include <heddle/collective/rounds_check.hpp>
#include <heddle/core/op_traits.hpp>
#include <heddle/core/text.hpp>

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
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
  static constexpr auto stored_name = detail::name_with("for_ranks", std::string_view(A::name), Ranks);
  static constexpr std::string_view name = stored_name;
  static constexpr int only_ranks = Ranks;
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
  using base::fail;
  using base::length;
  using base::require_all_to_all;
  using base::require_all_to_all_v;
  using base::require_blocks_in;
  using base::require_blocks_out;
  using base::require_counts;
  using base::require_length;
  using base::require_root;
  using base::require_vectors;

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

// Whether the algorithm cuts the vector, as it does on some small number of ranks then. One that is not for few ranks
// is taken for one that does: to find out on many would take the compiler long.
template <class A, comm_operation What>
consteval bool cuts_vectors() {
  bool known = false;
  if constexpr (requires { A::only_ranks; })
    return A::template offers<What>(A::only_ranks) && A::template rounds<What>(A::only_ranks, 0).view().items() > 1;
  for (int p = 2; p <= 4; ++p)
    if (A::template offers<What>(p)) {
      if (A::template rounds<What>(p, 0).view().items() > 1) return true;
      known = true;
    }
  return !known;
}

// What the refusals below are about. Compilers print what does not hold beside the sentence: which algorithm, which
// collective, which operator.
template <class Algorithm, comm_operation What>
inline constexpr bool has_rounds = offers_anywhere<Algorithm, What>();
template <class Operator, class Element>
inline constexpr bool is_operator_on = fold_operator<Operator, Element>;
template <class Algorithm, comm_operation What, class Operator>
inline constexpr bool keeps_order_for =
    Algorithm::template order<What> != fold_order::any || op_traits<Operator>::commutative;
template <class Algorithm, comm_operation What, class Operator>
inline constexpr bool may_group_for =
    Algorithm::template order<What> == fold_order::dyadic || op_traits<Operator>::associative;
template <class Algorithm, comm_operation What>
inline constexpr bool sends_whole_vectors = !cuts_vectors<Algorithm, What>();

// The compile-time refusals. Each stops at its first sentence.
template <class A, comm_operation What>
consteval bool can_run() {
  if constexpr (std::is_same_v<A, algo::automatic>) {
    return true;
  } else {
    static_assert(
        round_algorithm<A, What>,
        "heddle: the algorithm of a collective is a type such as algo::ring, with name, offers, order and rounds");
    if constexpr (round_algorithm<A, What>) {
      static_assert(has_rounds<A, What>,
                    "heddle: this algorithm has no rounds for this collective; name another one, or none");
      return has_rounds<A, What>;
    } else {
      return false;
    }
  }
}

template <class A, comm_operation What, class T, class Op>
consteval bool can_fold() {
  if constexpr (can_run<A, What>()) {
    constexpr bool folds = is_operator_on<Op, T>;
    static_assert(
        is_operator_on<Op, T>,
        "heddle: the operator of a reduction takes two elements and returns one: T operator()(const T&, const "
        "T&) const; if it declares elementwise = false, it takes spans: op(a, b, result)");
    if constexpr (std::is_same_v<A, algo::automatic>) {
      return folds;
    } else {
      constexpr bool commutes = keeps_order_for<A, What, Op>;
      if constexpr (folds)
        static_assert(
            keeps_order_for<A, What, Op>,
            "heddle: this algorithm (algo::ring, say, folds in rotated order) changes the order of the ranks, and "
            "the operator does not declare commutative = true; declare it, or use an algorithm that keeps the "
            "order: algo::recursive_doubling, for reduce algo::binomial, for reduce_scatter algo::reduce_then_scatter");
      constexpr bool groups = may_group_for<A, What, Op>;
      if constexpr (folds && commutes)
        static_assert(
            may_group_for<A, What, Op>,
            "heddle: this algorithm groups the contributions as it likes, and the operator declares associative "
            "= false; use algo::dyadic, which always folds the same tree, or for reduce_scatter "
            "algo::reduce_then_scatter");
      if constexpr (folds && commutes && groups && !op_traits<Op>::elementwise) {
        static_assert(
            sends_whole_vectors<A, What>,
            "heddle: this algorithm cuts the vector, and the operator declares elementwise = false; use one that "
            "sends whole vectors: algo::recursive_doubling, for reduce algo::binomial");
        return sends_whole_vectors<A, What>;
      }
      return folds && commutes && groups;
    }
  } else {
    return false;
  }
}

template <comm_operation What>
[[noreturn]] void refuse_ranks(std::string_view name, int ranks, bool commutative, bool associative) {
  throw comm_error(text_of({"heddle: ", to_string(What), " on ", ranks, ranks == 1 ? " rank: algo::" : " ranks: algo::",
                            name, " has no rounds for this number of ranks; these have: ",
                            names_of_algorithms<What>(known_algorithms{}, ranks, commutative, associative)}));
}

// --- the rounds of others ---

template <class A, int Ranks>
inline constexpr bool is_proved<algo::for_ranks<A, Ranks>> = is_proved<A>;

// What is known of the rounds of an algorithm for one collective, in this process.
struct checked_rounds {
  round_fault fault;
  int blocks = 1;
  int parts = 1;
};
struct rounds_verdicts {
  std::atomic<std::uint64_t> right{0};  // the ranks and the root that were found right last, + 1
  std::mutex mutex;
  std::map<std::pair<int, int>, checked_rounds> all;
};

// "elements 50 to 74 of 100": what an item is in this call.
inline std::string elements_of_item(const checked_rounds& c, const block_sizes& sizes) {
  const int block = c.fault.item / c.parts, part = c.fault.item % c.parts;
  const bool vector = round_promise{c.fault.operation, c.fault.ranks, 0, c.parts}.blocks() == 0;
  const auto cut = [](std::int64_t begin, std::int64_t n, int pieces, int i) {
    const auto at = [&](int k) { return begin + n / pieces * k + (n % pieces < k ? n % pieces : k); };
    return std::pair(at(i), at(i + 1));
  };
  std::string text;
  if (vector) {
    const auto [first, last] = cut(0, sizes.elements, c.blocks, block);
    const auto [begin, end] = cut(first, last - first, c.parts, part);
    if (begin == end) return "none of the " + std::to_string(sizes.elements) + " elements";
    text = "elements " + std::to_string(begin) + " to " + std::to_string(end - 1);
    text += " of " + std::to_string(sizes.elements);
    return text;
  }
  if (c.parts > 1) text = "part " + std::to_string(part) + " of " + std::to_string(c.parts) + " of ";
  if (c.fault.operation == comm_operation::all_to_all)
    text += "the block from rank " + std::to_string(block / c.fault.ranks) + " to rank " +
            std::to_string(block % c.fault.ranks);
  else
    text += "the block of rank " + std::to_string(block);
  return text;
}

[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_rounds(std::string_view name, const checked_rounds& c,
                                                                 const block_sizes& sizes) {
  std::string text = "heddle: the rounds of the algorithm ";
  text += name;
  text += " are wrong: " + to_string(c.fault).substr(std::string_view("heddle: ").size());
  if (c.fault.item >= 0 && c.fault.item < c.blocks * c.parts) text += "; the item is " + elements_of_item(c, sizes);
  throw comm_error(text);
}

// Throws if the rounds of the algorithm do not do what the collective promises. They are followed once per number of
// ranks and root in a process, block by block, however many elements there are.
template <class A, comm_operation What>
void require_right_rounds(int ranks, int root, const block_sizes& sizes) {
  static rounds_verdicts verdicts;
  const std::uint64_t key = (static_cast<std::uint64_t>(ranks) << 32 | static_cast<std::uint64_t>(root)) + 1;
  if (verdicts.right.load(std::memory_order_relaxed) == key) [[likely]]
    return;
  const std::lock_guard lock(verdicts.mutex);
  const auto [at, made] = verdicts.all.try_emplace({ranks, root});
  checked_rounds& c = at->second;
  if (made) {
    try {
      const round_table table = A::template rounds<What>(ranks, root);
      const round_view view = table.view();
      const bool asked = view.what() == What && view.ranks() == ranks && view.root() == root;
      if (asked) {
        c.fault = round_checker(view, A::template order<What>, bounded_stride(view)).run();
      } else {
        c.fault.what = round_problem::malformed;
        c.fault.operation = What;
        c.fault.ranks = ranks;
      }
      c.blocks = table.blocks;
      c.parts = table.parts;
    } catch (...) {
      verdicts.all.erase(at);
      throw;
    }
  }
  if (!c.fault.ok()) refuse_rounds(A::name, c, sizes);
  verdicts.right.store(key, std::memory_order_relaxed);
}

// Whether the calls of a communicator are checked: as it says, else yes.
template <class C>
bool checks_calls(const C& comm) {
  if constexpr (requires {
                  { comm.checked() } -> std::same_as<bool>;
                })
    return comm.checked();
  else
    return true;
}

// --- the choice ---

// An algorithm as a value, under the name that decisions give it.
struct known_source {
  algorithm_name name = algorithm_name::built_in;
  const round_source* source = nullptr;
  bool whole = false;  // it sends whole vectors
};

template <class A, comm_operation What>
constexpr void add_known(std::array<known_source, known_algorithms::size>& all, std::size_t& count) {
  if constexpr (offers_anywhere<A, What>())
    all[count++] = {algorithm_named(A::name), &round_source_of<A, What>, !cuts_vectors<A, What>()};
}

// All algorithms for one collective; the rest of the array is empty.
template <comm_operation What>
inline constexpr std::array<known_source, known_algorithms::size> known_sources = [] {
  std::array<known_source, known_algorithms::size> all{};
  std::size_t count = 0;
  [&]<class... As>(type_list<As...>) { (add_known<As, What>(all, count), ...); }(known_algorithms{});
  return all;
}();

// The source that decisions choose, the first that fits where heddle lacks it, or null for the communicator's own call.
inline const round_source* chosen_source(std::span<const known_source> known, const collective_question& q,
                                         const measured_decisions* decisions) {
  const algorithm_name name = decisions != nullptr ? decisions->choose(q) : choose(q);
  const auto fits = [&](const known_source& k) {
    return k.source != nullptr && k.source->offers(q.ranks) && (q.elementwise || k.whole) &&
           (q.commutative || k.source->order != fold_order::any) &&
           (q.associative || k.source->order == fold_order::none || k.source->order == fold_order::dyadic);
  };
  const round_source* first = nullptr;
  for (const known_source& k : known) {
    if (!fits(k)) continue;
    if (k.name == name && name != algorithm_name::built_in) return k.source;
    if (first == nullptr) first = k.source;
  }
  return name == algorithm_name::built_in ? nullptr : first;
}

// How many bytes all_to_all_v moves no rank knows: it counts as many, so that messages go straight to their ranks.
inline constexpr std::int64_t unknown_length = std::int64_t{1} << 60;

// For collectives that communicators do not have.
struct no_own_call {};

// --- execution ---

// Any collective, by any algorithm. `bytes` as in `collective_question`; `own(comm)` is the communicator's own call.
template <comm_operation What, class T, class C, class Op>
void by_source(C& comm, const round_source& source, const T* in, T* out, block_sizes sizes, int root, bool in_place,
               const Op& op, collective_plans& plans) {
  const int p = comm.size();
  auto& plan = plans.find(source, What, p, comm.rank(), root, in_place);
  std::vector<std::int64_t> all;
  if constexpr (What == comm_operation::all_to_all)
    if (sizes.elements < 0 && plan.program().relays()) {  // who passes blocks on must know how long they are
      all.resize(static_cast<std::size_t>(p) * static_cast<std::size_t>(p));
      comm.all_gather(sizes.counts, std::span(all));
      sizes.all = all;
      for (int s = 0; s < p; ++s)
        arguments_of<C>(comm).require_length("all_to_all_v", "a block", sizes.received[static_cast<std::size_t>(s)],
                                             all[static_cast<std::size_t>(s * p + comm.rank())]);
    }
  const bound_rounds& bound = plan.bound(sizes);
  execute_rounds<T>(comm, bound, in, out, plans.template scratch<T>(bound.scratch), op);
}

template <class A, comm_operation What, class T, class C, class Op, class Own>
void by_rounds(C& comm, const T* in, T* out, const block_sizes& sizes, std::int64_t elements, int root, bool in_place,
               const Op& op, collective_plans* plans, const Own& own) {
  [[maybe_unused]] const int p = comm.size();
  if constexpr (requires { static_cast<collective_plans&>(comm.plans()); })
    if (plans == nullptr) plans = &comm.plans();
  collective_plans once;
  collective_plans& kept = plans != nullptr ? *plans : once;
  constexpr bool folds = !std::is_same_v<Op, no_operator>;
  constexpr bool has_own = !std::is_same_v<Own, no_own_call> &&
                           (!folds || (monoid<Op, T> && op_traits<Op>::associative && op_traits<Op>::elementwise));
  if constexpr (std::is_same_v<A, algo::automatic> && has_own && !has_host_memory<C>) {
    own(comm);  // no algorithm can
  } else if constexpr (std::is_same_v<A, algo::automatic>) {
    const measured_decisions* decisions = kept.decisions();
    collective_question q{What, p, elements * static_cast<std::int64_t>(sizeof(T)), true, true, true, kept.network()};
    if constexpr (folds) {
      q.commutative = op_traits<Op>::commutative;
      q.associative = op_traits<Op>::associative;
      q.elementwise = op_traits<Op>::elementwise;
    }
    if constexpr (has_own && requires { requires C::collectives_in_place; })
      if (decisions == nullptr || !decisions->knows(q)) return own(comm);
    if (const round_source* source = chosen_source(known_sources<What>, q, decisions))
      return by_source<What, T>(comm, *source, in, out, sizes, root, in_place, op, kept);
    if constexpr (has_own) {
      own(comm);
    } else {
      throw comm_error(text_of({"heddle: no algorithm does ", to_string(What), " on ", p,
                                " ranks as this operator needs it (core/op_traits.hpp)"}));
    }
  } else {
    if (!A::template offers<What>(p))
      refuse_ranks<What>(A::name, p, op_traits<Op>::commutative, op_traits<Op>::associative);
    if constexpr (!is_proved<A>)
      if (checks_calls(comm)) require_right_rounds<A, What>(p, root, sizes);
    by_source<What, T>(comm, round_source_of<A, What>, in, out, sizes, root, in_place, op, kept);
  }
}

// An algorithm that is a call of one transport, without rounds: `A::all_reduce(comm, x, y, op)` for its `A::communicator`.
template <class A>
concept algorithm_of_transport = requires { typename A::communicator; };
template <class A, class C>
inline constexpr bool is_of_transport = std::is_same_v<typename A::communicator, C>;

template <class A, class T, class C, class Op>
void all_reduce_of_transport(C& comm, std::span<const T> x, std::span<T> y, const Op& op) {
  static_assert(is_of_transport<A, C>,
                "heddle: this algorithm is a call of one transport, and the communicator is of another");
  static_assert(is_operator_on<Op, T>,
                "heddle: the operator of a reduction takes two elements and returns one: T operator()(const T&, const "
                "T&) const");
  if constexpr (is_of_transport<A, C> && is_operator_on<Op, T>) {
    arguments_of<C>(comm).template require_vectors<T>("all_reduce", x, y);
    A::template all_reduce<T>(comm, x, y, op);
  }
}

// The last argument of the calls below: plans, or none.
struct kept_plans {
  kept_plans() = default;
  kept_plans(collective_plans& p) : plans(&p) {}
  collective_plans* plans = nullptr;
};

// all_reduce, scan and exclusive_scan: a vector in, a vector out.
template <class A, comm_operation What, class T, class C, class Op, class Own>
void fold_by_rounds(C& comm, std::span<const T> x, std::span<T> y, const Op& op, collective_plans* plans,
                    const Own& own) {
  if constexpr (can_fold<A, What, T, Op>()) {
    const arguments_of<C> arguments(comm);
    arguments.template require_vectors<T>(to_string(What).data(), x, y);
    by_rounds<A, What, T>(comm, x.data(), y.data(), block_sizes::vector(arguments.length(x)), arguments.length(x), 0,
                          x.data() == y.data(), op, plans, own);
  }
}

// Calls `run(arguments, x, y)` with the elements of `in` and `out`, or `own(comm)` where the communicator's own call is asked for.
template <class A, class In, class Out, class C, class Own, class Run>
void with_spans(C& comm, In& in, Out& out, const Own& own, const Run& run) {
  if constexpr (std::is_same_v<A, algo::built_in>)
    own(comm);
  else if constexpr (same_elements<In, Out>())
    run(arguments_of<C>(comm), std::span<const comm_element<In>>(std::span(in)),
        std::span<comm_element<In>>(std::span(out)));
}

// Collectives that fold nothing: blocks in, blocks out, not in place.
template <class A, comm_operation What, class T, class C, class Own>
void move_by_rounds(C& comm, std::span<const T> x, std::span<T> y, const block_sizes& sizes, std::int64_t elements,
                    int root, collective_plans* plans, const Own& own) {
  if constexpr (can_run<A, What>())
    by_rounds<A, What, T>(comm, x.data(), y.data(), sizes, elements, root, false, no_operator{}, plans, own);
}

// gather or scatter of equal blocks: the root has one for every rank.
template <class A, comm_operation What, class T, class C, class Arguments, class Own>
void move_with_root(C& comm, const Arguments& arguments, std::span<const T> x, std::span<T> y, int root,
                    collective_plans* plans, const Own& own) {
  constexpr bool gathers = What == comm_operation::gather;
  const std::int64_t n = gathers ? arguments.length(x) : arguments.length(y);
  arguments.require_root(root);
  if (comm.rank() == root) {
    if constexpr (gathers)
      arguments.require_blocks_out("gather", x, y);
    else
      arguments.require_blocks_in("scatter", x, y);
  }
  move_by_rounds<A, What>(comm, x, y, block_sizes::equal(n), comm.size() * n, root, plans, own);
}

template <class A, class T, class C, class Op, class Own>
void reduce_scatter_by_rounds(C& comm, std::span<const T> x, std::span<T> y, const block_sizes& sizes,
                              std::int64_t own_at, const Op& op, collective_plans* plans, const Own& own) {
  constexpr auto what = comm_operation::reduce_scatter;
  if constexpr (can_fold<A, what, T, Op>()) {
    const bool in_place = !y.empty() && x.data() + own_at == y.data();
    by_rounds<A, what, T>(comm, x.data(), in_place ? y.data() - own_at : y.data(), sizes,
                          static_cast<std::int64_t>(x.size()), 0, in_place, op, plans, own);
  }
}

}  // namespace detail

}  // namespace heddle::inline v0
