// heddle/train/same_copies.hpp: compares by checksum the weights that several ranks hold copies of.
#pragma once

#include <heddle/comm/gathered_words.hpp>
#include <heddle/core/config.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/saved_parameter.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// What one rank says of the copies that it holds: of each, which elements of which tensor they are, and their checksum.
class copies_held {
 public:
  // Elements [part.first, part.first + part.count) of this rank's box of a parameter.
  HEDDLE_INLINE void add(const char* kind, const saved_parameter& p, const kept_part& part,
                         std::span<const std::byte> elements);
  std::span<const std::int64_t> words() const noexcept { return words_; }
  // "weight h.0.ln_1.weight has other elements on rank 3 than on ranks 0, 1, 2", of the first copies that differ, on the ranks
  // that hold them; nothing where all are equal.
  HEDDLE_INLINE std::string first_that_differs(const gathered_words& all) const;

 private:
  std::vector<std::int64_t> words_;  // pairs: which elements, checksum
  std::vector<std::string> names_;
};

}  // namespace detail

/// Whether all copies of a trainer's weights are equal bit for bit, and of its master weights where it keeps some: those elements of a
/// tensor that several ranks hold, along whichever axes the layouts repeat them. Finds what the arithmetic of a step does not show: a
/// reduction that one rank left out, an unequal step, memory that lost a bit. Called on all ranks together, for instance by
/// `train::every(100, ...)`; each rank reads its weights once, 16 bytes a parameter and rank travel over the control plane.
/// Errors: `numeric_error` on all ranks, the same, naming the tensor, the ranks that differ (the fewer ones) and the step.
template <class Trainer>
void require_same_copies(Trainer& trainer) {
  detail::copies_held mine;
  for (int k = 0; k < trainer.stages(); ++k)
    detail::for_each_bucket(trainer.stage(k), trainer.optimizer_state(k), [&](auto& stage, auto& optimizer, auto) {
      const auto add_all = [&](const char* kind, const auto& read, std::int64_t begin) {
        const auto elements = read.elements();
        for (const detail::saved_parameter& p : detail::saved_parameters(stage)) {
          const detail::kept_part part = detail::part_in(p.offset, p.count, begin, elements.size());
          mine.add(kind, p, part, std::as_bytes(elements.subspan(part.at, part.count)));
        }
      };
      add_all("weight", detail::read_of_stage(stage, optimizer.weights_of(stage)), optimizer.weights_begin());
      if constexpr (requires { optimizer.masters(); })
        add_all("master weight", detail::read_masters(stage, optimizer), optimizer.owned_begin());
    });
  auto& all = trainer.ranks().control();
  std::string fault = mine.first_that_differs(gather_words(all, mine.words()));
  if (!fault.empty()) fault = "heddle: after " + std::to_string(trainer.steps_done()) + " steps " + fault;
  detail::throw_together<numeric_error>(all, fault);
}

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/same_copies.hpp>
#endif
