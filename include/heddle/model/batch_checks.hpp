// heddle/model/batch_checks.hpp: refuses batches whose sizes a stage does not take.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/model/layer.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::model {

/// The extent of a microbatch. Errors: `config_error` naming what does not fit: samples, length, or ids.
template <class Config, class T>
extent_of_batch checked_batch(const Config& config, std::int64_t max_samples, const batch<T>& b, bool reads_tokens,
                              bool reads_targets) {
  const int sequence = b.sequence > 0 ? b.sequence : config.context;
  if (b.samples < 0 || b.samples > max_samples)
    throw config_error("heddle: a microbatch of " + std::to_string(b.samples) + " samples; this stage has room for " +
                       std::to_string(max_samples));
  if (sequence > config.context)
    throw config_error("heddle: a sequence of " + std::to_string(sequence) + " tokens; the model's context is " +
                       std::to_string(config.context));
  const extent_of_batch e{b.samples, sequence};
  const auto require_ids = [&](compute::token_ids ids, const char* what, bool negative) {
    if (static_cast<std::int64_t>(ids.size()) != e.rows())
      throw config_error(std::string("heddle: a microbatch of ") + std::to_string(b.samples) + " x " +
                         std::to_string(sequence) + " tokens came with " + std::to_string(ids.size()) + " " + what);
    for (const std::int32_t id : ids)
      if (id >= config.vocabulary || (id < 0 && !negative))
        throw config_error(std::string("heddle: ") + what + " hold the id " + std::to_string(id) +
                           ", outside the vocabulary of " + std::to_string(config.vocabulary));
  };
  if (reads_tokens) require_ids(b.tokens, "tokens", false);
  if (reads_targets) require_ids(b.targets, "targets", true);
  return e;
}

/// Refuses a backward whose batch is not the forward's of its slot.
/// Errors: `schedule_error` if a backward's batch is not the forward's of its slot.
HEDDLE_INLINE void require_same_extent(int slot, extent_of_batch e, extent_of_batch forward);

/// Refuses a buffer that does not hold the logits of each sample's last position.
/// Errors: `config_error` if there is not room for the logits of each sample's last position.
HEDDLE_INLINE void require_logits(std::size_t room, extent_of_batch e, std::int64_t vocabulary);

/// Refuses a buffer that does not hold a number of each row.
/// Errors: `config_error` if there is not room for the log-probability of each row's target.
HEDDLE_INLINE void require_log_probabilities(std::size_t room, extent_of_batch e);

/// Refuses a tensor of the residual stream that is not of the size of its batch.
/// Errors: `config_error` if a tensor of the residual stream has not the elements of this batch.
/// `own`: rows of it that this rank has.
HEDDLE_INLINE void require_stream_size(std::size_t elements, extent_of_batch e, std::int64_t own, int width,
                                       const char* what);

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/batch_checks.hpp>
#endif
