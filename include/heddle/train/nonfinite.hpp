// heddle/train/nonfinite.hpp: finds NaNs and infinities, names their origin, and stops all ranks.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/optimizer_rule.hpp>
#include <heddle/train/optimizer_shards.hpp>
#include <heddle/train/saved_parameter.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// What one rank found. Lower is closer to the cause: a bad weight makes bad activations, those make bad gradients.
// Trivially copyable, so that it can be gathered.
struct nonfinite_finding {
  enum cause_kind : std::int32_t { weight, activation, gradient, nothing };
  std::int32_t cause = nothing;
  std::int32_t order = 0;
  std::int32_t rank = 0;
  char name[116] = {};

  bool is_closer_than(const nonfinite_finding& other) const noexcept {
    return cause != other.cause ? cause < other.cause : order < other.order;
  }
  void set(cause_kind kind, std::int32_t at, std::string_view text) noexcept {
    cause = kind;
    order = at;
    const std::size_t n = (std::min)(text.size(), sizeof name - 1);
    std::memcpy(name, text.data(), n);
    name[n] = 0;
  }
};

// `held` has a stage and its optimizer, which may have this rank's share of weights and gradients only.
template <class Held, class Backend>
nonfinite_finding find_nonfinite_in(Held& held, Backend& backend) {
  auto& stage = held.stage;
  using stage_type = std::remove_reference_t<decltype(stage)>;
  using space = space_of<stage_type>;
  nonfinite_finding found;
  const auto is_finite = [&](const auto& kept, std::int64_t begin, const auto& p) {
    using element = element_of<decltype(kept)>;
    bool finite = true;
    for_kept_part(
        p, begin, static_cast<std::size_t>(kept.size()), [&](std::int64_t, std::int64_t count, std::int64_t at) {
          finite = compute::all_finite(backend, row_view<const element, space>(part_of_row<space>(kept, at, count)));
        });
    return finite;
  };
  for_each_bucket(stage, held.optimizer, [&](auto& bucket, auto& optimizer, auto) {
    for (const auto& p : bucket.parameters())
      if (found.cause == nonfinite_finding::nothing &&
          !is_finite(optimizer.weights_of(bucket), optimizer.weights_begin(), p))
        found.set(nonfinite_finding::weight, static_cast<std::int32_t>(p.id), p.name);
  });
  if (found.cause != nonfinite_finding::nothing) return found;
  if (const auto layer = model::of_stage::first_nonfinite_activation(stage); layer.index >= 0) {
    found.set(nonfinite_finding::activation, layer.index, layer.name);
    return found;
  }
  // Gradients flow from the last layer to the first: the last one that is bad is where it began.
  for_each_bucket(stage, held.optimizer, [&](auto& bucket, auto& optimizer, auto) {
    for (const auto& p : bucket.parameters()) {
      const auto order = -static_cast<std::int32_t>(p.id);
      const bool later = found.cause == nonfinite_finding::nothing || order < found.order;
      if (later && !is_finite(optimizer.gradients_of(bucket), optimizer.gradients_begin(), p))
        found.set(nonfinite_finding::gradient, order, p.name);
    }
  });
  return found;
}

}  // namespace detail

/// Where this rank's NaN or infinity is likeliest to have come from. `stages.for_each(f)` calls `f(held)` with
/// `held.stage` for each stage of this rank.
template <class Stages, class Backend>
detail::nonfinite_finding find_nonfinite(Stages& stages, Backend& backend) {
  detail::nonfinite_finding mine;
  stages.for_each([&](auto& held) {
    const detail::nonfinite_finding found = detail::find_nonfinite_in(held, backend);
    if (found.is_closer_than(mine)) mine = found;
  });
  return mine;
}

namespace detail {
inline constexpr std::size_t words_of_finding = sizeof(nonfinite_finding) / sizeof(std::int64_t);
static_assert(sizeof(nonfinite_finding) % sizeof(std::int64_t) == 0);
// What `stop_nonfinite` says, from the bytes of what each rank found.
HEDDLE_INLINE std::string stopped_by_nonfinite(std::span<const std::int64_t> findings, std::int64_t step, double loss,
                                               double gradient_norm);
}  // namespace detail

/// Called on all ranks of `all` when the loss or the gradient norm of a step is not finite: agrees on the likeliest cause
/// of those that the ranks found and throws the same `numeric_error` everywhere, naming step, what is not finite, in which
/// layer and on which rank.
template <communicator Communicator>
[[noreturn]] void stop_nonfinite(Communicator& all, detail::nonfinite_finding mine, std::int64_t step, double loss,
                                 double gradient_norm) {
  mine.rank = all.rank();
  constexpr std::size_t words = detail::words_of_finding;
  std::vector<std::int64_t> found(words), findings(words * static_cast<std::size_t>(all.size()));
  std::memcpy(found.data(), &mine, sizeof mine);
  all.all_gather(std::span<const std::int64_t>(found), std::span<std::int64_t>(findings));
  throw numeric_error(detail::stopped_by_nonfinite(findings, step, loss, gradient_norm));
}

namespace detail {

// The fault of the first rank of `all` that has one, on all of them; nothing if none has.
template <communicator Communicator>
std::string first_fault(Communicator& all, const std::string& fault) {
  std::int32_t first = fault.empty() ? all.size() : all.rank();
  all.all_reduce(std::span<std::int32_t>(&first, 1), minimum{});
  std::string text = fault;
  if (first == all.size()) return text;
  auto length = static_cast<std::int64_t>(text.size());
  all.broadcast(std::span<std::int64_t>(&length, 1), first);
  text.resize(static_cast<std::size_t>(length));
  all.broadcast(std::span<char>(text), first);
  return text;
}
// All ranks of `all` throw the error of the first rank that has a fault, or none does.
template <class Error, communicator Communicator>
void throw_together(Communicator& all, const std::string& fault) {
  if (const std::string first = first_fault(all, fault); !first.empty()) throw Error(first);
}

// The first element that is not finite, or below 0 where none may be; as many as there are elements if none is. Looks
// at bits, so that it also holds in programs compiled with -ffinite-math-only.
template <class T>
  requires(std::floating_point<T> || is_half_precision<T>)
std::size_t first_unfit(std::span<const T> x, bool may_be_negative) noexcept {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  static_assert(sizeof(bits) == sizeof(T), "heddle: weights and moments are of 2, 4 or 8 bytes");
  constexpr bits infinity = std::bit_cast<bits>((std::numeric_limits<T>::infinity)());
  constexpr bits magnitude = (std::numeric_limits<bits>::max)() / 2, minus_zero = magnitude + 1;
  const bits most = may_be_negative ? (std::numeric_limits<bits>::max)() : minus_zero;
  const auto is_unfit = [&](T value) {
    const bits b = std::bit_cast<bits>(value);
    return (b & magnitude) >= infinity || b > most;
  };
  constexpr std::size_t block = 1024;
  for (std::size_t begin = 0; begin < x.size(); begin += block) {
    const std::span<const T> some = x.subspan(begin, (std::min)(block, x.size() - begin));
    bool any = false;
    for (const T value : some) any = any | is_unfit(value);
    if (!any) continue;
    return begin + static_cast<std::size_t>(std::find_if(some.begin(), some.end(), is_unfit) - some.begin());
  }
  return x.size();
}

// "first moment of b has nan in element 3".
HEDDLE_INLINE std::string fault_of_element(const char* kind, const std::string& name, double value,
                                           std::int64_t element);

// "first moment of" for "first_moment".
HEDDLE_INLINE std::string words_of_slot(std::string name);

// What is wrong with a parameter in a buffer that begins at element `begin` of the flat one, or nothing.
template <class T>
std::string fault_in(const char* kind, const saved_parameter& p, std::span<const T> kept, std::int64_t begin,
                     bool may_be_negative) {
  const kept_part part = part_in(p.offset, p.count, begin, kept.size());
  const std::span<const T> x = kept.subspan(part.at, part.count);
  const std::size_t bad = first_unfit(x, may_be_negative);
  if (bad == x.size()) return {};
  return fault_of_element(kind, p.name, static_cast<double>(x[bad]), part.first + static_cast<std::int64_t>(bad));
}

// What is wrong with the weights and moments of one stage, or nothing.
template <class Stage, class Optimizer>
std::string state_fault(Stage& stage, Optimizer& optimizer) {
  const auto weights = read_of_stage(stage, optimizer.weights_of(stage));
  using rule = typename Optimizer::rule;
  [[maybe_unused]] const auto moments = each_moment(optimizer, [&](auto row) { return read_of_stage(stage, row); });
  [[maybe_unused]] const auto masters = read_masters(stage, optimizer);
  [[maybe_unused]] const std::int64_t begin = optimizer.owned_begin();
  for (const saved_parameter& p : saved_parameters(stage)) {
    std::string found = fault_in("weight", p, weights.elements(), optimizer.weights_begin(), true);
    if constexpr (requires { optimizer.masters(); })
      if (found.empty()) found = fault_in("master weight", p, masters.elements(), begin, true);
    for (int k = 0; k < Optimizer::moments && found.empty(); ++k)
      with_moment(optimizer, p, k, [&](const saved_parameter& mine, std::int64_t first) {
        found = fault_in(words_of_slot(slot_name<rule>(k)).c_str(), mine,
                         moments[static_cast<std::size_t>(k)].elements(), first, !slot_is_square<rule>(k));
      });
    if (!found.empty()) return found;
  }
  return {};
}

// Errors as `require_finite_state`. `fault`: what this rank found.
template <communicator Communicator>
void require_no_fault(Communicator& all, const std::string& what, std::string fault, int rank) {
  if (!fault.empty()) {
    fault.insert(0, "heddle: " + what + ": ");
    fault += " of the part of rank " + std::to_string(rank);
  }
  throw_together<numeric_error>(all, fault);
}

}  // namespace detail

/// Does `work` on all ranks of `world` together: an `io_error` of one is thrown on all.
template <class World, class Work>
void io_together(World& world, Work&& work) {
  std::string fault;
  try {
    work();
  } catch (const io_error& e) {
    fault = e.what();
  }
  detail::throw_together<io_error>(world.control(), fault);
}

/// Whether a trainer's weights and moments can be trained with: all finite, second moments not negative. Called on all
/// ranks together; reads the state once. Errors: `numeric_error` on all ranks, the same, which begins with `what` and
/// names the tensor, what was found in which element, and the rank.
template <class Trainer>
void require_finite_state(Trainer& trainer, const std::string& what) {
  std::string fault;
  for (int k = 0; k < trainer.stages() && fault.empty(); ++k)
    detail::for_each_bucket(trainer.stage(k), trainer.optimizer_state(k), [&](auto& stage, auto& optimizer, auto) {
      if (fault.empty()) fault = detail::state_fault(stage, optimizer);
    });
  detail::require_no_fault(trainer.ranks().control(), what, std::move(fault), trainer.ranks().rank());
}

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/nonfinite.hpp>
#endif
