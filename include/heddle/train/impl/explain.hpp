// heddle/train/impl/explain.hpp: bodies of heddle/train/explain.hpp.
#pragma once

#include <heddle/train/explain.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

HEDDLE_INLINE const rank_class& explanation::fullest() const noexcept {
  return *std::max_element(classes.begin(), classes.end(), [](const rank_class& a, const rank_class& b) {
    return (a.member.memory ? a.member.memory->total() : 0) < (b.member.memory ? b.member.memory->total() : 0);
  });
}
HEDDLE_INLINE std::int64_t explanation::missing_bytes() const noexcept {
  const std::int64_t most = fullest().member.memory ? fullest().member.memory->total() : 0;
  return (std::max)(most - on.memory, std::int64_t{0});
}

namespace detail {

// The level of a group along axes "dp" or "dp,tp" of the first rank: it has the furthest of their ranks.
HEDDLE_INLINE const cluster_level& level_of_axes(const cluster& on, const groups_of_axes& groups,
                                                 std::string_view axes) {
  std::vector<int> ends{0};
  for (const auto& [name, members] : groups)
    if (("," + std::string(axes) + ",").find("," + name + ",") != std::string::npos) ends.front() += members.back();
  ends.push_back(0);
  return on.level_of(ends);
}
HEDDLE_INLINE double seconds_of_traffic(const std::vector<model::axis_traffic>& all, const cluster& on,
                                        const groups_of_axes& groups) {
  double seconds = 0;
  for (const model::axis_traffic& t : all)
    for (std::size_t i = 0; i < comm_operations; ++i)
      if (const auto& o = t.counters.by_operation[i]; o.calls > 0)
        seconds +=
            static_cast<double>(o.calls) * seconds_of(static_cast<comm_operation>(i),
                                                      static_cast<double>(o.bytes) / static_cast<double>(o.calls),
                                                      t.ranks, level_of_axes(on, groups, t.axes));
  return seconds;
}

HEDDLE_INLINE void complete_explanation(explanation& e, const groups_of_axes& groups) {
  std::vector<double> duration(e.table.actions.size(), 0.0), after(static_cast<std::size_t>(e.table.view().ranks()));
  const schedule::table_view table = e.table;
  for (rank_class& c : e.classes) {
    const paper_rank& r = c.member;
    c.traffic = r.traffic();
    c.sent_seconds = seconds_of_traffic(c.traffic, e.on, groups);
    const model::traced_seconds behind = e.on.times_of(r.after.kernels);
    model::traced_seconds all = behind;
    std::vector<double> of_work;
    std::vector<model::traced_seconds> kernels_of;
    for (const paper_work& w : r.work) {
      kernels_of.push_back(e.on.times_of(w.kernels));
      of_work.push_back(kernels_of.back().seconds + seconds_of_traffic(w.traffic, e.on, groups));
    }
    for (std::size_t k = 0; k < r.work_of.size(); ++k) {
      if (r.work_of[k] < 0) continue;
      const auto w = static_cast<std::size_t>(r.work_of[k]);
      all.add(kernels_of[w]);
      double& slowest = duration[static_cast<std::size_t>(table.offset(r.pipeline_rank)) + k];
      slowest = (std::max)(slowest, of_work[w]);
    }
    double& last = after[static_cast<std::size_t>(r.pipeline_rank)];
    last = (std::max)(last, behind.seconds + seconds_of_traffic(r.after.traffic, e.on, groups));
    c.compute_seconds = all.seconds;
    if (all.seconds > 0) e.spread = (std::max)(e.spread, all.spread / all.seconds);
    e.extrapolated = e.extrapolated || all.extrapolated();
  }
  // The durations of sends are those of their messages; a rank goes on meanwhile.
  const auto at = [&](const schedule::action& a) {
    return duration[static_cast<std::size_t>(&a - table.actions().data())];
  };
  e.line = sim::simulate(table, at, at);
  e.bubble = e.line.bubble_ratio();
  for (int p = 0; p < table.ranks(); ++p) {
    double end = 0;
    for (int k = table.offset(p); k < table.offset(p + 1); ++k)
      end = (std::max)(end, e.line.end[static_cast<std::size_t>(k)]);
    e.seconds = (std::max)(e.seconds, end + after[static_cast<std::size_t>(p)]);
  }
}

// "12.3 GB", "4.56 MB"; three digits.
HEDDLE_INLINE std::string shown_amount(double x, std::string_view unit) {
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t k = 0;
  while (x >= 999.5 && k + 1 < std::size(prefixes)) x /= 1000, ++k;
  char text[64];
  std::snprintf(text, sizeof text, k == 0 && x == static_cast<double>(static_cast<int>(x)) ? "%.0f %s" : "%.3g %s", x,
                prefixes[k]);
  return std::string(text) + std::string(unit);
}
HEDDLE_INLINE std::string shown_seconds(double s) {
  char text[64];
  std::snprintf(text, sizeof text,
                s < 1e-3 ? "%.3g us"
                : s < 1  ? "%.3g ms"
                         : "%.3g s",
                s < 1e-3 ? s * 1e6
                : s < 1  ? s * 1e3
                         : s);
  return text;
}
HEDDLE_INLINE std::string shown_share(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * x);
  return text;
}
// The kinds of memory, in words, with their bytes; those of 0 too.
HEDDLE_INLINE std::vector<std::pair<const char*, std::int64_t>> kinds_of_memory(const memory_forecast& m) {
  return {{"weights", m.parameters.weights},      {"gradients", m.parameters.gradients},
          {"optimizer", m.parameters.moments},    {"gathered", m.parameters.lent + m.parameters.rounded},
          {"activations", m.activations.total()}, {"boundaries", m.between_stages}};
}
// What is sent along some axes by one call; classes that follow each other and send the same share the row.
struct traffic_row {
  std::string axes, level, call, of;
  int ranks = 1;
  std::int64_t calls = 0, bytes = 0;
};
HEDDLE_INLINE std::vector<traffic_row> traffic_rows(const explanation& e) {
  const auto of_class = [&](const rank_class& c) {
    std::vector<traffic_row> rows;
    for (const model::axis_traffic& t : c.traffic)
      for (std::size_t i = 0; i < comm_operations; ++i)
        if (const auto& o = t.counters.by_operation[i]; o.calls > 0) {
          // Of the level that the first and the last device of a group have in common.
          std::array<int, 2> ends{0, 0};
          bool any = false;
          for (const axis_on_cluster& a : e.axes)
            if (("," + t.axes + ",").find("," + a.name + ",") != std::string::npos) {
              ends[1] += (a.ranks - 1) * a.distance;
              any = true;
            }
          const std::string level = any ? e.on.level_of(ends).name : std::string();
          rows.push_back(
              {t.axes, level, std::string(to_string(static_cast<comm_operation>(i))), "", t.ranks, o.calls, o.bytes});
        }
    std::sort(rows.begin(), rows.end(), [](const traffic_row& a, const traffic_row& b) {
      return std::tie(a.axes, a.call) < std::tie(b.axes, b.call);
    });
    return rows;
  };
  std::vector<traffic_row> all;
  for (std::size_t first = 0, k = 0; k < e.classes.size(); first = k) {
    const auto same = [](const traffic_row& a, const traffic_row& b) {
      return a.axes == b.axes && a.call == b.call && a.calls == b.calls && a.bytes == b.bytes;
    };
    const std::vector<traffic_row> rows = of_class(e.classes[first]);
    for (++k; k < e.classes.size(); ++k) {
      const std::vector<traffic_row> next = of_class(e.classes[k]);
      if (!std::equal(rows.begin(), rows.end(), next.begin(), next.end(), same)) break;
    }
    const std::string begin = std::to_string(e.classes[first].member.rank);
    for (traffic_row r : rows) {
      r.of = k == first + 1 ? begin : begin + " to " + std::to_string(e.classes[k - 1].member.rank);
      all.push_back(std::move(r));
    }
  }
  return all;
}
HEDDLE_INLINE std::string column(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

}  // namespace detail

HEDDLE_INLINE std::string to_string(const explanation& e) {
  using detail::column, detail::shown_amount, detail::shown_seconds, detail::shown_share;
  std::string out = e.model + "\n" + e.mesh + ": " + std::to_string(e.ranks) + " of " + std::to_string(e.on.devices) +
                    " devices; " + e.strategy + "\n" + shown_amount(static_cast<double>(e.parameters), " parameters") +
                    ", " + std::to_string(e.tokens) + " tokens a step\n\n";
  out += column("rank", 6) + column("ranks", 7) + column("parameters", 12);
  for (const auto& [name, bytes] : detail::kinds_of_memory({})) out += column(name, 12);
  out += column("all", 10) + column("of a device", 13) + "\n";
  for (const rank_class& c : e.classes) {
    out += column(std::to_string(c.member.rank), 6) + column(std::to_string(c.ranks), 7) +
           column(shown_amount(static_cast<double>(c.member.parameters), ""), 12);
    if (c.member.memory) {
      for (const auto& [name, bytes] : detail::kinds_of_memory(*c.member.memory))
        out += column(shown_amount(static_cast<double>(bytes), "B"), 12);
      const auto total = static_cast<double>(c.member.memory->total());
      out += column(shown_amount(total, "B"), 10) + column(shown_share(total / static_cast<double>(e.on.memory)), 13);
    }
    out += "\n";
  }
  out += "\n" + column("axis", 6) + column("ranks", 7) + "  level       call" + column("calls", 18) +
         column("bytes", 12) + "  of ranks\n";
  for (detail::traffic_row r : detail::traffic_rows(e)) {
    r.level.resize((std::max)(r.level.size(), std::size_t{10}), ' ');
    out += column(r.axes, 6) + column(std::to_string(r.ranks), 7) + "  " + r.level + "  " + r.call +
           column(std::to_string(r.calls), 22 - r.call.size()) +
           column(shown_amount(static_cast<double>(r.bytes), "B"), 12) + "  " + r.of + "\n";
  }
  out += "\nstep " + shown_seconds(e.seconds) + (e.spread > 0 ? " +- " + shown_seconds(e.spread * e.seconds) : "") +
         (e.extrapolated ? " (extrapolated: not all of its kernels were measured)" : "") + ", bubble " + shown_share(e.bubble) + ", " +
         shown_amount(e.tokens_per_second(), " tokens/s") + ", MFU " + shown_share(e.mfu()) + "\n";
  if (!e.fits())
    out += "does not fit: rank " + std::to_string(e.fullest().member.rank) + " needs " +
           shown_amount(static_cast<double>(e.missing_bytes()), "B") + " more than the " +
           shown_amount(static_cast<double>(e.on.memory), "B") + " of a device\n";
  return out;
}

}  // namespace heddle::inline v0::train
