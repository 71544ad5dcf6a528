// examples/gpt2_train/results.hpp: what the run looked like: bubble, trace and picture, measured and predicted.
#pragma once

#include <heddle/heddle.hpp>
#include <heddle/observe/chrome_trace.hpp>
#include <heddle/observe/pipeline_bubble.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/observe/text_file.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/train/measured_schedule.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace results {

namespace hd = heddle;

inline std::string percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * ratio);
  return text;
}

template <class Mesh>
std::vector<std::string> rank_names(const Mesh& mesh) {
  std::vector<std::string> names;
  const auto axes = hd::axis_names<Mesh>();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::string place;
    const auto coordinates = mesh.coordinates(rank);
    for (std::size_t i = 0; i < axes.size(); ++i)
      place += (i ? ", " : "") + axes[i] + " " + std::to_string(coordinates[i]);
    names.push_back("rank " + std::to_string(rank) + " (" + place + ")");
  }
  return names;
}

/// Prints the bubble, measured and predicted, and writes trace and picture.
/// `saved_bytes`: saved activations of the rank that holds most.
template <class Mesh>
void report(const Mesh& mesh, hd::schedule::table_view table, const hd::observe::recorder& recorder,
            const std::string& about, std::int64_t saved_bytes, const std::string& trace, const std::string& timeline) {
  const auto events = recorder.events();
  // Each pipeline by itself: that several do not start together is nobody's bubble.
  double measured = 0;
  std::size_t steps = 0;
  int last_step = -1;
  const double pipelines = static_cast<double>(mesh.size()) / mesh.template extent<hd::pp>();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.template coordinate<hd::pp>(rank) != 0) continue;
    const auto bubbles = hd::observe::pipeline_bubbles(events, hd::group<hd::pp>(mesh, rank));
    if (bubbles.empty()) return;
    steps = bubbles.size();
    last_step = bubbles.back().step;
    for (const auto& b : bubbles) measured += b.bubble() / (static_cast<double>(steps) * pipelines);
  }
  const hd::sim::timeline equal = hd::sim::simulate(table, hd::sim::stage_times{1, 1, 1});
  const hd::sim::timeline fitted = hd::sim::simulate(table, hd::train::measured_times(events, table));
  std::printf("bubble       predicted %s for equal stages, %s for the measured stage times; measured %s (%zu steps)\n",
              percent(equal.bubble_ratio()).c_str(), percent(fitted.bubble_ratio()).c_str(), percent(measured).c_str(),
              steps);
  const auto names = rank_names(mesh);
  if (!trace.empty()) {
    hd::observe::trace_metadata metadata;
    metadata.rank_names = names;
    metadata.about = {{"run", about}};
    hd::observe::write_chrome_trace(trace, events, metadata);
    std::printf("trace        %s (open it in ui.perfetto.dev)\n", trace.c_str());
  }
  if (!timeline.empty()) {
    std::vector<hd::train::schedule_row> rows;
    for (int rank = 0; rank < mesh.size(); ++rank)
      rows.push_back({rank, mesh.template coordinate<hd::pp>(rank), names[static_cast<std::size_t>(rank)]});
    auto both = hd::train::compare_with_simulation(events, table, last_step, rows);
    both.measured.captions.push_back("saved activations at most " + std::to_string((saved_bytes + 512) / 1024) +
                                     " KiB per rank");
    hd::observe::write_text_file(timeline, both.svg({.title = "One training step, rank by rank", .subtitle = about}));
    std::printf("timeline     %s\n", timeline.c_str());
  }
  if (recorder.dropped() > 0)
    std::printf("note         %lld events did not fit the recorder\n", static_cast<long long>(recorder.dropped()));
}

}  // namespace results
