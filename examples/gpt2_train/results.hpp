// examples/gpt2_train/results.hpp: what the run looked like: bubble, trace and picture, measured and predicted.
#pragma once

#include <heddle/heddle.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace results {

namespace hd = heddle;

/// What a computation of a table is recorded as.
inline hd::activity activity_of(hd::schedule::action_kind kind) {
  switch (kind) {
    case hd::schedule::action_kind::forward:
      return hd::activity::forward;
    case hd::schedule::action_kind::backward:
      return hd::activity::backward;
    case hd::schedule::action_kind::backward_input:
      return hd::activity::backward_input;
    case hd::schedule::action_kind::backward_weight:
      return hd::activity::backward_weight;
    default:
      return hd::activity::other;
  }
}

/// Mean seconds of each (kind, stage) over the recorded steps: what the simulation is fed.
class measured_times {
 public:
  explicit measured_times(const std::vector<hd::event>& events) {
    for (const hd::event& e : events) {
      if (e.stage < 0 || !hd::observe::is_stage_work(e.kind)) continue;
      auto& [sum, count] = sums_[{e.kind, e.stage}];
      sum += static_cast<double>(e.end_ns - e.begin_ns);
      count += 1;
    }
  }
  double operator()(const hd::schedule::action& a) const {
    const auto found = sums_.find({activity_of(a.kind), a.stage});
    return found == sums_.end() ? 0.0 : found->second.first / found->second.second;
  }

 private:
  std::map<std::pair<hd::activity, int>, std::pair<double, double>> sums_;
};

/// The simulated pipeline, drawn once per rank of the mesh.
template <class Mesh>
hd::observe::timeline_chart predicted_chart(const Mesh& mesh, hd::schedule::table_view table,
                                            const hd::sim::timeline& line, const std::vector<std::string>& names) {
  hd::observe::timeline_chart chart;
  chart.title = "predicted";
  chart.rows = names;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int stage_rank = mesh.template coordinate<hd::pp>(rank);
    for (int k = table.offset(stage_rank); k < table.offset(stage_rank + 1); ++k) {
      const hd::schedule::action& a = table.actions()[static_cast<std::size_t>(k)];
      if (!hd::schedule::is_compute(a.kind)) continue;
      chart.boxes.push_back({rank, activity_of(a.kind), std::to_string(a.microbatch),
                             static_cast<std::int64_t>(line.start[static_cast<std::size_t>(k)]),
                             static_cast<std::int64_t>(line.end[static_cast<std::size_t>(k)])});
    }
  }
  return chart;
}

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
  double measured = 0, of_last_step = 0;
  std::size_t steps = 0;
  int last_step = -1;
  const double pipelines = static_cast<double>(mesh.size()) / mesh.template extent<hd::pp>();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.template coordinate<hd::pp>(rank) != 0) continue;
    const auto bubbles = hd::observe::pipeline_bubbles(events, hd::group<hd::pp>(mesh, rank));
    if (bubbles.empty()) return;
    steps = bubbles.size();
    last_step = bubbles.back().step;
    of_last_step += bubbles.back().bubble() / pipelines;
    for (const auto& b : bubbles) measured += b.bubble() / (static_cast<double>(steps) * pipelines);
  }
  const hd::sim::timeline equal = hd::sim::simulate(table, hd::sim::stage_times{1, 1, 1});
  const hd::sim::timeline fitted = hd::sim::simulate(table, measured_times(events));
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
    auto above = hd::observe::timeline_from_events(events, last_step, names);
    above.captions = {"bubble " + percent(of_last_step),
                      "saved activations at most " + std::to_string((saved_bytes + 512) / 1024) + " KiB per rank"};
    auto below = predicted_chart(mesh, table, fitted, names);
    below.captions = {"bubble " + percent(fitted.bubble_ratio())};
    hd::observe::timeline_options options;
    options.title = "One training step, rank by rank";
    options.subtitle = about;
    hd::observe::write_timeline_svg(timeline, above, below, options);
    std::printf("timeline     %s\n", timeline.c_str());
  }
  if (recorder.dropped() > 0)
    std::printf("note         %lld events did not fit the recorder\n", static_cast<long long>(recorder.dropped()));
}

}  // namespace results
