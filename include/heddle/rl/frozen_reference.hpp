// heddle/rl/frozen_reference.hpp: scores answers by the weights that a trainer had once.
#pragma once

#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/rl/sample.hpp>
#include <heddle/rl/scored_batch.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/trainer_weights.hpp>
#include <heddle/train/training_axes.hpp>
#include <heddle/train/validation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::rl {

/// Fills `to` of each sample, `&sample::proximal` or `&sample::reference`, with the log-probabilities of its tokens by
/// the weights that the trainer has. The samples are shared out over the ranks that split samples. Called on all ranks
/// of the trainer together, with the same samples, between steps.
/// Errors: `config_error` for samples that do not fit the model's context (`rl::experience`), and tokens that are not
/// in its vocabulary.
template <class Trainer>
void score_by(Trainer& trainer, std::span<sample> samples, std::vector<double> sample::* to) {
  auto& sharers = train::detail::control_along(trainer.ranks(), typename Trainer::axes::samples{});
  const balanced_split cut{std::ssize(samples), sharers.size()};
  const std::int64_t begin = cut.offset(sharers.rank()), end = begin + cut.size(sharers.rank());
  // As in `train::predict`: where ranks work together in a forward pass, who has no more samples passes an empty batch.
  const std::int64_t last = train::detail::runs_together<Trainer> ? begin + cut.largest() : end;
  std::vector<double> mine;  // of all tokens of its answers
  for (std::int64_t next = begin; next < last; next += trainer.max_samples()) {
    const std::int64_t first = (std::min)(next, end), count = (std::min)(trainer.max_samples(), end - first);
    detail::scored_batch<typename Trainer::scalar> scored(
        samples.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
        trainer.options().model.context);
    trainer.target_log_probabilities(scored.get(), scored.of_rows());
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const auto of = scored.of_answer(i);
      mine.insert(mine.end(), of.begin(), of.end());
    }
  }
  train::detail::control_along(trainer.ranks(), type_list<typename Trainer::pipeline>{})
      .broadcast(std::span<double>(mine), trainer.last_stage_rank());
  std::vector<std::int64_t> counts(static_cast<std::size_t>(sharers.size()));
  std::int64_t tokens = 0, sample_of = 0;
  for (int r = 0; r < sharers.size(); ++r)
    for (std::int64_t i = 0; i < cut.size(r); ++i) {
      const std::int64_t n = std::ssize(samples[static_cast<std::size_t>(sample_of++)].tokens);
      counts[static_cast<std::size_t>(r)] += n, tokens += n;
    }
  std::vector<double> all(static_cast<std::size_t>(tokens));
  sharers.all_gather_v(std::span<const double>(mine), std::span<double>(all), std::span<const std::int64_t>(counts));
  auto at = all.begin();
  for (sample& s : samples) {
    const auto of = at;
    (s.*to).assign(of, at += std::ssize(s.tokens));
  }
}

/// The weights that a trainer has when this is made, such as a policy's before its first step: a second copy of what
/// this rank keeps of the trained ones (`train::trainer_weights`; with `zero<3>` its share, with adapters the adapters
/// alone), in the same memory. `score` exchanges both copies, passes answers forward, and exchanges them back: the
/// trainer's bits, masters and moments stay.
template <class Trainer>
class frozen_reference {
  using scalar = typename Trainer::scalar;
  using space = typename Trainer::space;

 public:
  explicit frozen_reference(Trainer& trainer) {
    auto& queue = queue_of(trainer);
    for (const auto& row : train::trainer_weights<Trainer>(&trainer).rows()) {
      auto& copy = rows_.emplace_back(queue, size_of(row), "weights of the reference");
      queue.copy(row, copy.view());
    }
    queue.wait();
  }

  /// Fills `reference` of each sample. As `score_by`.
  void score(Trainer& trainer, std::span<sample> samples) {
    exchange(trainer);
    try {
      score_by(trainer, samples, &sample::reference);
    } catch (...) {
      exchange(trainer);
      throw;
    }
    exchange(trainer);
  }
  /// Of its weights on this rank.
  std::int64_t bytes() const noexcept {
    std::int64_t n = 0;
    for (const auto& row : rows_) n += static_cast<std::int64_t>(row.size() * sizeof(scalar));
    return n;
  }

 private:
  template <class Row>
  static std::int64_t size_of(const Row& row) noexcept {
    return static_cast<std::int64_t>(element_count(row));
  }
  static auto& queue_of(Trainer& trainer) { return train::detail::queue_of_stage(trainer.stage(0)); }
  // Piece by piece, so that a third copy is small.
  void exchange(Trainer& trainer) {
    constexpr std::int64_t piece = model::usual_bucket_bytes<space> / static_cast<std::int64_t>(sizeof(scalar));
    const train::trainer_weights<Trainer> of(&trainer);
    auto& queue = queue_of(trainer);
    std::int64_t longest = 0;
    for (const auto& row : rows_) longest = (std::max)(longest, static_cast<std::int64_t>(row.size()));
    buffer<scalar, space> between(queue, (std::min)(longest, piece), "weights to exchange");
    const auto rows = of.rows();
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::int64_t at = 0; at < size_of(rows[r]); at += piece) {
        const std::int64_t n = (std::min)(piece, size_of(rows[r]) - at);
        const auto trained = part_of_row<space>(rows[r], at, n), kept = part_of_row<space>(rows_[r].view(), at, n),
                   third = part_of_row<space>(between.view(), 0, n);
        queue.copy(trained, third);
        queue.copy(kept, trained);
        queue.copy(third, kept);
      }
    queue.wait();
    of.written();
  }

  std::vector<buffer<scalar, space>> rows_{};
};

}  // namespace heddle::inline v0::rl
