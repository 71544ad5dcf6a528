// examples/gpt2_train/windows.hpp: training in the windows in which a machine is free, cut to fit by job atomization.
#pragma once

#include <heddle/plan/atomization/broker.hpp>
#include <heddle/plan/atomization/protocol.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/report.hpp>
#include <heddle/train/stop_on_signal.hpp>
#include <heddle/train/training_job.hpp>

#include "settings.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace windows {

namespace hd = heddle;
namespace sja = hd::plan::sja;

/// The machine is free from `start` to `end`, with so much memory for each rank. Units: seconds from the beginning; bytes.
struct free_time {
  double start = 0, end = 0;
  double bytes = 1e18;
  std::string mesh;  // the ranks there are
};

/// "0-60", "90-200:512" (MB for each rank), "0-60@dp=2,pp=2" (another mesh).
inline free_time parse(std::string_view text, const std::string& mesh) {
  free_time w{.mesh = mesh};
  std::string rest(text);
  const auto refuse = [&] {
    throw hd::config_error(
        "heddle: --window is START-END, START-END:MB or START-END@MESH, such as 0-60:512@dp=2; got '" +
        std::string(text) + "'");
  };
  if (const auto at = rest.find('@'); at != rest.npos) {
    w.mesh = rest.substr(at + 1);
    rest.resize(at);
  }
  const char* from = rest.c_str();
  const auto number = [&](double& to) {
    char* end = nullptr;
    to = std::strtod(from, &end);
    if (end == from || !(to >= 0)) refuse();
    from = end;
  };
  number(w.start);
  if (*from++ != '-') refuse();
  number(w.end);
  if (*from == ':') {
    ++from;
    number(w.bytes);
    w.bytes *= 1e6;
  }
  if (*from != '\0' || !(w.start < w.end) || w.start > 1e9) refuse();  // 30 years are more than clocks are asked for
  return w;
}

/// Measures a step, then bids for each window in turn and trains what it is granted; each piece goes on from the newest
/// save in `s.save`, of step `done` at first, and leaves one. Returns whether all steps are done.
/// `on_mesh(mesh, stop, work)` makes a trainer with that `options.stop` on each rank of a mesh and calls
/// `work(trainer, keeps)` there; what work finds is for this process if `keeps`. The first SIGINT or SIGTERM ends a
/// piece after its step, with its save, and the training; between pieces, where nothing is left to save, it ends the
/// process.
template <class Data, class OnMesh>
bool train_in(const std::vector<free_time>& free, const settings& s, std::int64_t done, const Data& data,
              const hd::train::save_facts& facts, const OnMesh& on_mesh) {
  const std::filesystem::path folder = s.save;
  const std::int64_t steps = s.steps;
  sja::resource_profile profile;
  const std::int64_t began = hd::now_ns();
  on_mesh(free.front().mesh, nullptr, [&](auto& trainer, bool keeps) {
    // A folder that was not there before: all that is in it may be removed.
    std::array<char, 6> mark{};
    if (trainer.ranks().rank() == 0) {
      std::string name = (folder / ".measured-XXXXXX").string();
      if (::mkdtemp(name.data()) == nullptr)
        throw hd::io_error("heddle: cannot create the folder '" + name + "': " + std::strerror(errno));
      std::copy(name.end() - mark.size(), name.end(), mark.begin());
    }
    trainer.ranks().control().broadcast(std::span<char>(mark), 0);
    const std::filesystem::path scratch = folder / (".measured-" + std::string(mark.begin(), mark.end()));
    const auto times = hd::train::measure_step_times(trainer, data, 4, scratch, began);
    const auto p = hd::train::resource_profile_of(trainer, times);
    if (keeps) profile = p;
    trainer.ranks().control().barrier();
    if (trainer.ranks().rank() == 0) std::filesystem::remove_all(scratch);
  });
  std::printf("profile      %.3f s +- %.3f s and %.1f MB of a rank per step; %.3f s to start, %.3f s to save\n",
              profile.unit, profile.unit_sd, profile.phases.at(0).bytes / 1e6, profile.set_up, profile.finish);
  if (done >= steps) return true;

  const free_time* here = nullptr;
  bool asked_to_stop = false;
  double longest = 0;
  const auto work = [&](const sja::subjob&, const hd::train::piece_limits& limits) {
    hd::train::piece_report report;
    std::optional<hd::train::stop_on_signal> signals(std::in_place, s.grace);
    on_mesh(here->mesh, &signals->flag(), [&](auto& trainer, bool keeps) {
      const auto listen = [&](hd::train::step_report r) {
        const auto& o = trainer.options();
        if (o.validate_every > 0 && ((r.step + 1) % o.validate_every == 0 || r.step + 1 == o.steps))
          r.validation_loss = trainer.validate(data);
        r.tokens_per_second = static_cast<double>(r.tokens) / r.seconds;
        r.seconds_left = r.seconds * static_cast<double>(r.steps - r.step - 1);
        if (keeps) longest = std::max(longest, r.seconds), signals->set_grace(s.grace_after(longest));
        if (keeps && trainer.stopped()) signals->step_ended();
        const bool shown =
            r.step == done || r.step + 1 == r.steps || (r.step + 1) % s.print_every == 0 || r.validation_loss;
        if (shown && trainer.ranks().rank() == 0)
          std::printf("%s\n", hd::train::to_string(r).c_str()), std::fflush(stdout);
      };
      auto mine = hd::train::run_piece(trainer, data, limits, folder, facts, listen);
      // Also a signal that came to any rank behind the last step's sums, while the piece was saved, say.
      int asked = hd::train::stop_on_signal::flag() ? 1 : 0;
      trainer.ranks().control().all_reduce(asked, hd::maximum{});
      mine.asked_to_stop = mine.asked_to_stop || asked != 0;
      if (keeps) report = mine;
    });
    signals.reset();
    // One that came still later: nothing is left to save.
    if (const int late = hd::train::stop_on_signal::received(); late != 0 && !report.asked_to_stop) std::raise(late);
    report.first -= done;
    asked_to_stop = report.asked_to_stop;
    return report;
  };
  const std::int64_t left = steps - done;
  profile.phases.at(0).to = left;
  hd::train::training_job job(0, profile, sja::job_terms{.units = left, .least_efficiency = 0.1}, work);
  sja::broker<> broker;
  const auto start = std::chrono::steady_clock::now();
  for (const free_time& w : free) {
    if (job.finished() || asked_to_stop) break;
    std::this_thread::sleep_until(start + std::chrono::duration<double>(w.start));
    here = &w;
    const int before = broker.windows();
    hd::train::train_in_window(
        broker, job, {-1, {0}, w.start, w.end, w.bytes, 0},
        [&](const sja::subjob& piece, const hd::train::piece_report& did) {
          std::printf("piece        %.2f s to %.2f s on %s: %lld steps granted, %lld done, %.2f s of them training\n",
                      piece.start, piece.start + did.length(), here->mesh.c_str(), static_cast<long long>(piece.units),
                      static_cast<long long>(did.steps), did.seconds);
        });
    const bool worth_it = broker.windows() > before + 1 || sja::count_messages(broker.log(), before).grants > 0;
    if (!worth_it) std::printf("window       %.2f s to %.2f s: not enough time or memory for a step\n", w.start, w.end);
  }
  std::printf("windows      %lld of %lld steps done%s\n", static_cast<long long>(done + job.done()),
              static_cast<long long>(steps),
              asked_to_stop    ? "; stopped by a signal, --resume goes on"
              : job.finished() ? ""
                               : "; --resume goes on in further windows");
  return job.finished();
}

}  // namespace windows
