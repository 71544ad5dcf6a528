// examples/training_saves.hpp: saves of programs that train: where they go on from, when they save, and how a signal ends them.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/stop_on_signal.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace training_saves {

namespace hd = heddle;

/// Tells models apart whose weights are not in a save: sizes of the files, and some of their bytes.
inline std::uint64_t fingerprint_of_weights(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  hd::io::checksum64 sum;
  for (const auto& file : files) {
    const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file)), piece = std::int64_t{4096};
    sum.update(std::as_bytes(std::span(&bytes, 1)));
    for (std::int64_t k = 0; k < 64; ++k)
      if (const std::int64_t at = bytes / 64 * k; at < bytes)
        sum.update(hd::io::read_bytes(file, at, (std::min)(piece, bytes - at)));
  }
  return sum.value();
}

/// What the newest save in the folder says, if there is one. One run told to go on that finds saves, and none that it
/// can read, ends here; so does one that would train over saves. `whole`: read it whole in any case.
inline std::int64_t steps_saved(const std::string& folder, bool resume, std::int64_t steps, bool whole) {
  if (folder.empty()) return 0;
  auto found = hd::io::latest(folder, hd::io::verify::sizes);
  if (resume) {
    // The last save of a run that is done is read whole, so that nothing is written beside one that is damaged.
    // So is the one that pieces count their steps from.
    if (found.save && (found.save->manifest.step >= steps || whole)) found = hd::io::latest(folder);
    hd::io::require_readable(found, folder);
    return found.save ? found.save->manifest.step : 0;
  }
  if (found.save)
    throw hd::config_error("heddle: '" + folder + "' holds a save of step " +
                           std::to_string(found.save->manifest.step) +
                           "; give --resume to go on from it, or another folder");
  hd::io::require_readable(found, folder);
  return 0;
}

/// Goes on from the newest save in a folder or a store, and says so. On all ranks together.
template <class Trainer, class Place>
void go_on(Trainer& trainer, const Place& saves, const hd::train::save_facts& facts) {
  const auto resumed = hd::train::resume(trainer, saves, facts);
  for (const std::string& why : resumed.skipped) std::printf("passed over  %s\n", why.c_str());
  if (trainer.ranks().rank() == 0)
    std::printf("resume       %s\n",
                resumed.resumed ? ("after step " + std::to_string(resumed.step)).c_str() : "nothing saved yet");
}

/// Whether a save is due after a step: after every so many, and the last of a run, also of one that a signal ends.
template <class Trainer>
bool is_due(const Trainer& trainer, std::int64_t every) {
  const std::int64_t done = trainer.steps_done();
  return done == trainer.options().steps || trainer.stopped() || (every > 0 && done % every == 0);
}

/// Says what has become of saves in the background, on rank 0. `saves`: a `background_saves`.
template <class Saves>
void say_finished(Saves& saves, bool speaks) {
  for (const auto& f : saves.take_finished()) {
    if (!speaks || !f.fault.empty()) continue;
    std::printf("save         step %lld: %.3g MB, held the step %.1f ms, there after %.2f s\n",
                static_cast<long long>(f.step), static_cast<double>(f.bytes) * 1e-6,
                static_cast<double>(f.held_ns) * 1e-6, static_cast<double>(f.there_ns) * 1e-9);
    for (const std::string& left : f.left) std::printf("kept         %s\n", left.c_str());
  }
}

/// The signal that has ended a run before its last step, which is then said, with where it was saved; else 0. On all ranks together.
template <class Trainer>
int signal_that_stopped(Trainer& trainer, const std::string& folder) {
  const std::int64_t steps = trainer.options().steps;
  if (!trainer.stopped() || trainer.steps_done() >= steps) return 0;
  int number = hd::train::stop_on_signal::received();
  trainer.ranks().control().all_reduce(std::span(&number, 1), hd::maximum{});
  if (trainer.ranks().rank() == 0)
    std::printf("stopped      %s: after step %lld of %lld, %s\n", number == SIGINT ? "SIGINT" : "SIGTERM",
                static_cast<long long>(trainer.steps_done()), static_cast<long long>(steps),
                folder.empty() ? "not saved (no --save)" : ("saved in '" + folder + "': --resume goes on").c_str());
  return number;
}

/// The status of a run that a signal has ended: what shells say of a program that one has, 128 and its number.
inline int status_of(int signal) {
  return signal == 0 ? 0 : 128 + signal;
}

}  // namespace training_saves
