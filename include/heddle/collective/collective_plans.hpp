// heddle/collective/collective_plans.hpp: compiled collectives that are kept from call to call.
#pragma once

#include <heddle/collective/execute_rounds.hpp>
#include <heddle/collective/measured_decisions.hpp>
#include <heddle/collective/round_program.hpp>
#include <heddle/collective/rounds.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {

// An algorithm for one collective, as a value.
struct round_source {
  std::string_view name;
  fold_order order = fold_order::none;
  bool (*offers)(int ranks) = nullptr;
  // Compiles the part of one rank.
  round_program (*compile)(int ranks, int root, int rank, bool in_place) = nullptr;
};

template <class A, comm_operation What>
inline constexpr round_source round_source_of{
    std::string_view(A::name), A::template order<What>, [](int ranks) { return A::template offers<What>(ranks); },
    [](int ranks, int root, int rank, bool in_place) {
      if constexpr (requires { A::template view<What>(); })
        if (root == 0) return round_program(A::template view<What>(), rank, in_place);
      return round_program(A::template rounds<What>(ranks, root).view(), rank, in_place);
    }};

}  // namespace detail

/// What one rank's collectives by round tables keep: a program per algorithm, collective, number of ranks, root and rank,
/// with the addresses of its last call, and scratch memory. A call with the sizes of the last one like it then computes
/// no addresses and allocates nothing. Belongs to one rank; may serve all of its communicators.
///
///     hd::collective_plans plans;
///     for (...) hd::all_reduce<hd::algo::ring>(comm, x, hd::plus{}, plans);
class collective_plans {
 public:
  collective_plans() = default;
  collective_plans(collective_plans&&) = default;
  collective_plans& operator=(collective_plans&&) = default;

  /// Programs that are kept.
  std::size_t programs() const noexcept { return kept_.size(); }
  /// Forgets them, and what decides.
  void clear() { *this = {}; }

  /// What chooses where no algorithm is named; the same on every rank. See comm/tune.hpp for measuring it.
  void decide_by(measured_decisions decisions) {
    decisions_ = std::make_unique<measured_decisions>(std::move(decisions));
  }
  /// Null if nobody has said.
  const measured_decisions* decisions() const noexcept { return decisions_.get(); }
  /// What thresholds are to know of the network.
  void network(const network_hint& hint) noexcept { network_ = hint; }
  const network_hint& network() const noexcept { return network_; }

  /// One rank's program of one collective.
  class plan {
   public:
    const round_program& program() const noexcept { return program_; }
    /// The program with addresses for these sizes; made only if the sizes are not those of the last call.
    const bound_rounds& bound(const block_sizes& sizes) {
      const auto same = [](std::span<const std::int64_t> a, const std::vector<std::int64_t>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end());
      };
      if (known_ && elements_ == sizes.elements && same(sizes.counts, counts_) && same(sizes.received, received_) &&
          same(sizes.all, all_))
        return bound_;
      known_ = false;
      program_.bind(sizes, bound_);
      elements_ = sizes.elements;
      counts_.assign(sizes.counts.begin(), sizes.counts.end());
      received_.assign(sizes.received.begin(), sizes.received.end());
      all_.assign(sizes.all.begin(), sizes.all.end());
      known_ = true;
      return bound_;
    }

   private:
    friend class collective_plans;
    const detail::round_source* source_ = nullptr;
    int root_ = 0;
    bool in_place_ = false;
    bool known_ = false;
    round_program program_;
    bound_rounds bound_;
    std::int64_t elements_ = 0;
    std::vector<std::int64_t> counts_, received_, all_;
  };

  /// The plan of this rank; compiled if it is new.
  template <class A, comm_operation What>
  plan& of(int ranks, int rank, int root = 0, bool in_place = false) {
    return find(detail::round_source_of<A, What>, What, ranks, rank, root, in_place);
  }

  /// The same where the algorithm was chosen at run time.
  plan& find(const detail::round_source& source, comm_operation what, int ranks, int rank, int root, bool in_place) {
    for (const auto& p : kept_)
      if (p->source_ == &source && p->root_ == root && p->in_place_ == in_place && p->program_.ranks() == ranks &&
          p->program_.rank() == rank && p->program_.what() == what)
        return *p;
    auto made = std::make_unique<plan>();
    made->program_ = source.compile(ranks, root, rank, in_place);
    made->source_ = &source;
    made->root_ = root;
    made->in_place_ = in_place;
    kept_.push_back(std::move(made));
    return *kept_.back();
  }

  template <class T>
  T* scratch(std::int64_t elements) {
    return memory_.elements<T>(elements);
  }

 private:
  std::vector<std::unique_ptr<plan>> kept_;  // references into it stay valid
  detail::round_memory memory_;
  std::unique_ptr<measured_decisions> decisions_;
  network_hint network_{};
};

}  // namespace heddle::inline v0
