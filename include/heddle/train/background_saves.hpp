// heddle/train/background_saves.hpp: saves that hold a run for one copy in memory.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/io/background_save.hpp>
#include <heddle/train/save.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// As many steps between saves as lose the least when failures come so long apart on the mean: by Daly's formula
/// (`sim::daly_interval`) from what the first two saves, after 10 and 20 steps, have cost, and not more often than
/// saves are completed.
struct daly_interval {
  std::chrono::duration<double> mean_time_between_failures{};
};
/// Steps between saves; 0: after the last one only.
class save_interval {
 public:
  save_interval(std::int64_t steps) : steps_(steps) {}  // NOLINT: `.every = 100`
  save_interval(daly_interval d)                        // NOLINT: `.every = daly_interval{...}`
      : steps_(10), mtbf_seconds_(d.mean_time_between_failures.count()), chosen_(false) {}

 private:
  friend class save_clock;
  std::int64_t steps_;
  double mtbf_seconds_ = 0;
  bool chosen_ = true;
};

/// What becomes of a save that fails in the background.
enum class save_failure : std::uint8_t {
  ends_run,  ///< an `io_error` on all ranks at the next save, or in `wait`
  reports    ///< a line on stderr there, of rank 0
};
/// What a save does that is due while the one before is under way on some rank.
enum class busy_save : std::uint8_t { waits, skips };

/// Settings of `background_saves`.
struct background_options {
  save_interval every = 100;
  save_failure on_failure = save_failure::ends_run;
  busy_save if_busy = busy_save::waits;
  /// How long rank 0 waits for the others' files while none of them grows.
  std::chrono::milliseconds patience{std::chrono::minutes(10)};
};

/// What saves have cost this rank so far.
struct background_stats {
  std::int64_t saves = 0;                      ///< begun
  std::int64_t failed = 0;                     ///< on any rank
  std::int64_t skipped = 0;                    ///< `busy_save::skips`
  std::int64_t waited = 0;                     ///< begun later, since the one before was under way
  std::int64_t held_ns = 0, last_held_ns = 0;  ///< steps, by saves: of it the waiting, too
  std::int64_t copy_ns = 0, last_copy_ns = 0;  ///< of it the copies
  std::int64_t copy_bytes = 0;                 ///< of one of them
};

/// When saves are due.
class save_clock {
 public:
  /// Errors: `config_error` for less than 0 steps, or no time between failures.
  explicit save_clock(save_interval every);
  bool due(std::int64_t done, std::int64_t last) const noexcept {
    return done == last || (every_.steps_ > 0 && done % every_.steps_ == 0);
  }
  std::int64_t steps() const noexcept { return every_.steps_; }
  /// Whether it is still to be chosen.
  bool chooses() const noexcept { return !every_.chosen_; }
  /// After a save that held the run so long, with the time until the one before it was there: the steps between saves
  /// from now on, or those of before. On one rank; the others `take` them.
  std::int64_t choose(std::int64_t step, std::int64_t now_ns, std::int64_t held_ns, std::int64_t there_ns);
  void take(std::int64_t steps) noexcept {
    every_.chosen_ = every_.chosen_ || steps != every_.steps_;
    every_.steps_ = steps;
  }

 private:
  save_interval every_;
  std::int64_t first_step_ = -1, first_ns_ = 0;
};

namespace detail {

// What is wrong with copied weights and moments, or nothing: as `state_fault`. `squares`: the kinds that may not be
// negative.
HEDDLE_INLINE std::string fault_of_parts(const io::save_snapshot& parts, std::span<const std::string> squares);
template <class Optimizer>
std::string fault_of_copy(const io::save_snapshot& parts) {
  using rule = typename Optimizer::rule;
  std::vector<std::string> squares;
  for (int k = 0; k < rule::moments; ++k)
    if (slot_is_square<rule>(k)) squares.push_back(slot_name<rule>(k));
  return fault_of_parts(parts, squares);
}
HEDDLE_INLINE void report_failure(const std::string& fault);

}  // namespace detail

/// Saves of a trainer in the background: for `trainer.run(data, listener, saves)`, which then holds a step only until
/// what this rank saves has been copied. A thread of each rank writes its file and reads it back, that of rank 0 waits
/// for all files and completes the save; the threads neither send nor receive. What is saved is what `save` saves, and
/// `resume` reads it. Constructed, called and destroyed on all ranks together; the trainer must outlive it. Memory: one
/// copy of what the rank writes.
///
/// A copy that is not finite, a full disk or a rank that is gone fail the save, not the step: see `save_failure`. A
/// save under way is completed by the destructor, which reports a failure on stderr.
/// Source: Wan et al., "ByteCheckpoint", NSDI 2025, arXiv:2407.20143, section 4 (copies that are written
/// asynchronously).
template <class Trainer>
class background_saves {
 public:
  /// Errors: `config_error` as `save_clock`, `memory_error` for the copy.
  background_saves(Trainer& trainer, std::filesystem::path folder, save_facts facts, background_options options = {})
      : background_saves(trainer, std::move(folder), nullptr, std::move(facts), options) {}
  /// The same straight into a store, which must outlive it: a rank reads nothing back; of two runs that save one step,
  /// one gets an error.
  background_saves(Trainer& trainer, io::store& to, save_facts facts, background_options options = {})
      : background_saves(trainer, {}, &to, std::move(facts), options) {}
  ~background_saves() {
    writer_.close();
    for (const io::finished_save& f : writer_.take_finished())
      if (!f.fault.empty()) detail::report_failure(f.fault);
  }
  background_saves(const background_saves&) = delete;
  background_saves& operator=(const background_saves&) = delete;

  /// As `every::due`.
  bool due(std::int64_t done, std::int64_t last) const noexcept { return clock_.due(done, last); }

  /// Copies the state of this rank, and lets it be written. Called on all ranks together. `words`: as
  /// `save_facts::words`, of now.
  /// Errors: `io_error` on all ranks if an earlier save has failed (`save_failure::ends_run`): nothing is saved then,
  /// older saves stay; `config_error` while a step waits for its gradient norm.
  void operator()(Trainer& trainer, std::span<const std::int64_t> words = {}) {
    detail::refuse_ahead(trainer);
    const std::int64_t begin = now_ns();
    double busy = writer_.is_busy() ? 1 : 0;
    all().all_reduce(std::span<double>(&busy, 1), plus{});
    if (busy > 0 && stats_.saves > 0) {  // else memory is being touched
      const bool last = trainer.stopped() || trainer.steps_done() >= trainer.options().steps;
      if (options_.if_busy == busy_save::skips && !last) {
        ++stats_.skipped;
        return;
      }
      ++stats_.waited;
    }
    settle();
    const std::int64_t copied = now_ns();
    save_facts now = facts_;
    if (!words.empty()) now.words = words;  // of this call only: they are the caller's
    io::save_snapshot& copy = writer_.snapshot();
    copy.clear();
    detail::write_state(copy, trainer, now);
    if (now.beside != nullptr) now.beside->write(copy);
    const std::int64_t end = now_ns();
    if (to_ != nullptr)
      trainer.set_run_name(
          detail::on_first_rank(all(), [&] { return trainer.run_name().value_or(detail::random_name()); }));
    io::background_save next{.folder = folder_,
                             .to = to_,
                             .run = to_ == nullptr ? std::string() : *trainer.run_name(),
                             .step = trainer.steps_done(),
                             .rank = trainer.ranks().rank(),
                             .ranks = trainer.ranks().size(),
                             .attempt = attempt_ + '-' + std::to_string(stats_.saves),
                             .keep = facts_.keep,
                             .fault_of = &detail::fault_of_copy<typename Trainer::optimizer_type>,
                             .patience = options_.patience};
    if (next.rank == 0) next.about = detail::named_manifest(trainer, facts_, detail::manifest_of(trainer));
    writer_.start(std::move(next));
    ++stats_.saves;
    stats_.copy_bytes = copy.bytes();
    stats_.copy_ns += stats_.last_copy_ns = end - copied;
    stats_.held_ns += stats_.last_held_ns = now_ns() - begin;
    if (!clock_.chooses()) return;
    std::int64_t steps = clock_.choose(trainer.steps_done(), begin, stats_.last_copy_ns, last_there_ns_);
    all().broadcast(std::span<std::int64_t>(&steps, 1), 0);
    clock_.take(steps);
  }

  /// Returns when the save under way has ended. Called on all ranks together. Errors: `io_error` on all of them if it,
  /// or one before, has failed (`save_failure::ends_run`).
  void wait() { settle(); }

  /// The saves that are known to have ended since the last call; on rank 0 with the bytes of all ranks.
  std::vector<io::finished_save> take_finished() {
    note(writer_.take_finished());
    return std::exchange(finished_, {});
  }
  const background_stats& stats() const noexcept { return stats_; }
  /// Steps between saves, as they are now (`daly_interval`).
  std::int64_t every() const noexcept { return clock_.steps(); }

 private:
  background_saves(Trainer& trainer, std::filesystem::path folder, io::store* to, save_facts facts,
                   background_options options)
      : trainer_(&trainer),
        folder_(std::move(folder)),
        to_(to),
        facts_(std::move(facts)),
        options_(options),
        clock_(options.every) {
    attempt_ = detail::on_first_rank(all(), [] { return detail::random_name(); });
    io::part_sizes sizes;
    detail::write_state(sizes, trainer, facts_);
    if (facts_.beside != nullptr) facts_.beside->write(sizes);
    writer_.snapshot().reserve(sizes.bytes());
    writer_.touch();
  }
  auto& all() { return trainer_->ranks().control(); }
  void note(std::vector<io::finished_save> ended) {
    for (io::finished_save& f : ended) {
      if (fault_.empty()) fault_ = f.fault;
      last_there_ns_ = f.there_ns;
      f.held_ns = stats_.last_held_ns;
      finished_.push_back(std::move(f));
    }
  }
  void settle() {
    // In short waits: a collective that one rank enters minutes before another would end by the launch's time-out.
    for (double busy = 1; busy > 0;) {
      writer_.wait_for(std::chrono::seconds(1));
      busy = writer_.is_busy() ? 1 : 0;
      all().all_reduce(std::span<double>(&busy, 1), plus{});
    }
    note(writer_.take_finished());
    const std::string fault = detail::first_fault(all(), std::exchange(fault_, {}));
    if (fault.empty()) return;
    ++stats_.failed;
    if (options_.on_failure == save_failure::ends_run) throw io_error(fault);
    if (trainer_->ranks().rank() == 0) detail::report_failure(fault);
  }

  Trainer* trainer_;
  std::filesystem::path folder_;
  io::store* to_;
  save_facts facts_;
  background_options options_;
  save_clock clock_;
  background_stats stats_{};
  std::string attempt_{}, fault_{};
  std::vector<io::finished_save> finished_{};
  std::int64_t last_there_ns_ = 0;
  io::background_writer writer_{};
};

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/background_saves.hpp>
#endif
