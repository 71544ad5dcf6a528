// heddle/rl/scored_batch.hpp: answers as a batch whose log-probabilities are computed.
#pragma once

#include <heddle/rl/experience.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/sample.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl::detail {

// Of no answers, too. Errors: `config_error` for samples that do not fit the context.
template <class T>
class scored_batch {
 public:
  scored_batch(std::span<const sample> of, std::int64_t context)
      : of_(of),
        context_(static_cast<std::size_t>(context)),
        inputs_(of.size() * context_),
        targets_(inputs_.size() * numbers_of_row),
        of_rows_(inputs_.size()) {
    std::vector<sample> bare;
    for (const sample& s : of) bare.push_back({.prompt = s.prompt, .tokens = s.tokens});
    experience(std::move(bare), context, 0).fill_train({0, std::ssize(of)}, inputs_, targets_);
    batch_.tokens = inputs_;
    batch_.targets = targets_;
    batch_.samples = static_cast<int>(of.size());
  }
  scored_batch(const scored_batch&) = delete;
  scored_batch& operator=(const scored_batch&) = delete;

  const batch<T>& get() const noexcept { return batch_; }
  // What `target_log_probabilities` fills.
  std::span<double> of_rows() noexcept { return of_rows_; }
  std::span<const double> of_answer(std::size_t i) const {
    return std::span(of_rows_).subspan(i * context_ + of_[i].prompt.size() - 1, of_[i].tokens.size());
  }

 private:
  std::span<const sample> of_;
  std::size_t context_;
  std::vector<std::int32_t> inputs_, targets_;
  std::vector<double> of_rows_;
  batch<T> batch_{};
};

}  // namespace heddle::inline v0::rl::detail
