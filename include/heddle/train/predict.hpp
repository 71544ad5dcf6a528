// heddle/train/predict.hpp: predictions of a trained network, on the mesh it trains on.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/pair_batch.hpp>
#include <heddle/train/training_axes.hpp>
#include <heddle/train/validation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train {

/// f(x) of samples: the numbers of `squared_error`, or the logits of the classes of `language_head`, for each sample of
/// `inputs`, or for each of its rows where these have targets of their own; the same on all ranks. Shared out over the ranks that split samples. Called on all ranks together, with the same
/// inputs.
/// Shapes: `inputs` [samples, numbers of a sample's x]; the result [samples, outputs of the head] or [samples, rows, outputs].
/// Errors: `config_error` if the inputs are no whole number of samples.
template <class Trainer>
std::vector<typename Trainer::scalar> predict(
    Trainer& trainer, std::span<const typename model::batch_contents<typename Trainer::batch_type>::input> inputs) {
  using scalar = typename Trainer::scalar;
  using batch_type = typename Trainer::batch_type;
  using contents = model::batch_contents<batch_type>;
  trainer.capture_again();  // also where there are no samples for this rank
  const auto& config = trainer.options().model;
  const model::sample_extents one = model::extents_of_model<typename Trainer::model_type>(config);
  const std::int64_t of_one = one.inputs, given = static_cast<std::int64_t>(inputs.size());
  if (given % of_one != 0)
    throw config_error("heddle: predict was given " + std::to_string(given) + " inputs; a sample has " +
                       std::to_string(of_one));
  const std::int64_t samples = given / of_one;
  const std::int64_t outputs = Trainer::model_type::describe(config).out.outputs() * one.target_rows;
  std::vector<scalar> all(static_cast<std::size_t>(samples * outputs));

  auto& sharers = detail::control_along(trainer.ranks(), typename Trainer::axes::samples{});
  const balanced_split cut{samples, sharers.size()};
  const std::int64_t begin = cut.offset(sharers.rank()), end = begin + cut.size(sharers.rank());
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return std::span(all).subspan(static_cast<std::size_t>(first * outputs), static_cast<std::size_t>(count * outputs));
  };
  // With `zero<3>` all ranks gather weights equally often, and stages with several buckets may exchange samples: who has
  // no more passes an empty batch.
  const std::int64_t last = detail::runs_together<Trainer> ? begin + cut.largest() : end;
  for (std::int64_t next = begin; next < last; next += trainer.max_samples()) {
    const std::int64_t first = (std::min)(next, end), count = (std::min)(trainer.max_samples(), end - first);
    batch_type batch;
    contents::give(
        batch, inputs.subspan(static_cast<std::size_t>(first * of_one), static_cast<std::size_t>(count * of_one)), {});
    batch.samples = static_cast<int>(count);
    trainer.last_logits(batch, part(first, count));
  }
  detail::control_along(trainer.ranks(), type_list<typename Trainer::pipeline>{})
      .broadcast(part(begin, end - begin), trainer.last_stage_rank());
  std::vector<std::int64_t> counts;
  for (int r = 0; r < sharers.size(); ++r) counts.push_back(cut.size(r) * outputs);
  const std::vector<scalar> mine(part(begin, end - begin).begin(), part(begin, end - begin).end());
  sharers.all_gather_v(std::span<const scalar>(mine), std::span<scalar>(all), std::span<const std::int64_t>(counts));
  return all;
}

}  // namespace heddle::inline v0::train
