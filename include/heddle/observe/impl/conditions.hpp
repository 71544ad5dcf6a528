// heddle/observe/impl/conditions.hpp: bodies of heddle/observe/conditions.hpp.
#pragma once

#include <heddle/observe/conditions.hpp>

#include <heddle/core/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::observe {

HEDDLE_INLINE std::string_view to_string(place_kind kind) noexcept {
  constexpr std::array<std::string_view, 7> names{"service", "rank", "node", "stage", "replica", "link", "channel"};
  const auto i = static_cast<std::size_t>(kind);
  return i < names.size() ? names[i] : "place";
}

namespace detail {

struct signal_row {
  std::string_view name;
  place_kind kind;
};
inline constexpr std::array<signal_row, static_cast<std::size_t>(signal::count)> signal_rows{{
    {"arrivals", place_kind::whole},
    {"queued", place_kind::whole},
    {"idle", place_kind::whole},
    {"rows", place_kind::whole},
    {"step", place_kind::whole},
    {"step_cv", place_kind::whole},
    {"out_cv", place_kind::whole},
    {"unsent", place_kind::whole},
    {"kv", place_kind::whole},
    {"in_retransmits", place_kind::whole},
    {"out_retransmits", place_kind::whole},
    {"flow_rate", place_kind::channel},
    {"compute", place_kind::rank},
    {"active", place_kind::rank},
    {"node_compute", place_kind::node},
    {"node_bytes", place_kind::node},
    {"nic_share", place_kind::node},
    {"pcie_share", place_kind::node},
    {"h2d_wait", place_kind::node},
    {"d2h", place_kind::node},
    {"dma_bytes", place_kind::node},
    {"registrations", place_kind::node},
    {"p2p", place_kind::node},
    {"launch_gap", place_kind::node},
    {"host_wait", place_kind::node},
    {"credit_wait", place_kind::node},
    {"stage_time", place_kind::stage},
    {"replica_active", place_kind::replica},
    {"link", place_kind::link},
    {"link_retransmits", place_kind::link},
    {"small_delay", place_kind::link},
}};

}  // namespace detail

HEDDLE_INLINE std::string_view to_string(signal s) noexcept {
  const auto i = static_cast<std::size_t>(s);
  return i < detail::signal_rows.size() ? detail::signal_rows[i].name : "own";
}
HEDDLE_INLINE place_kind kind_of(signal s) noexcept {
  const auto i = static_cast<std::size_t>(s);
  return i < detail::signal_rows.size() ? detail::signal_rows[i].kind : place_kind::whole;
}

HEDDLE_INLINE std::vector<condition> catalogue_and(std::span<const condition> own) {
  std::vector<condition> rows(catalogue.begin(), catalogue.end());
  rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

HEDDLE_INLINE int condition_number(std::string_view name, std::span<const condition> rows) {
  std::string names;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].name == name) return static_cast<int>(i);
    names += (i == 0 ? "" : ", ") + std::string(rows[i].name);
  }
  throw config_error("heddle: there is no condition '" + std::string(name) + "'; there are " + names);
}

HEDDLE_INLINE std::string to_string(const verdict& v) {
  char strength[32];
  std::snprintf(strength, sizeof strength, "%.2g", v.strength);
  std::string text(v.name);
  text += " at ";
  text += v.kind == place_kind::whole ? "the service" : std::string(to_string(v.kind)) + " " + std::to_string(v.place);
  return text + " since window " + std::to_string(v.since_window) + " (" + strength +
         " x its threshold): " + std::string(v.advice);
}

HEDDLE_INLINE runbook::runbook(runbook_places places, runbook_rule rule, std::span<const condition> rows)
    : rows_(rows.begin(), rows.end()), rule_(rule), states_(rows.size()) {
  const auto refuse = [](const std::string& what) { throw config_error("heddle: observe::runbook: " + what); };
  for (const int n : {places.replicas, places.stages, places.nodes, places.ranks, places.links, places.channels})
    if (n < 1) refuse("there is at least one place of each kind, not " + std::to_string(n));
  if (rule.skipped < 0 || rule.learned < 1 || rule.windows < 1)
    refuse("a rule learns from at least 1 window and alarms after at least 1, got " + std::to_string(rule.learned) +
           " and " + std::to_string(rule.windows));
  if (!(rule.leaving > 0 && rule.leaving <= 1) || !(rule.smoothing >= 0 && rule.smoothing <= 1))
    refuse("the factors of a rule are between 0 and 1");
  const int stages = places.replicas * places.stages, nodes = stages * places.nodes;
  std::size_t cells = 0;
  int most = 1;
  for (std::size_t s = 0; s < signals; ++s) {
    int count = 1, group = 1;
    switch (kind_of(static_cast<signal>(s))) {
      case place_kind::rank:
        count = nodes * (group = places.ranks);
        break;
      case place_kind::node:
        count = stages * (group = places.nodes);
        break;
      case place_kind::stage:
        count = places.replicas * (group = places.stages);
        break;
      case place_kind::replica:
        count = group = places.replicas;
        break;
      case place_kind::link:
        count = group = places.links;
        break;
      case place_kind::channel:
        count = group = places.channels;
        break;
      case place_kind::whole:
        break;
    }
    places_[s] = count;
    groups_[s] = group;
    begins_[s] = cells;
    cells += static_cast<std::size_t>(count);
    most = (std::max)(most, group);
  }
  cells_.resize(cells);
  scratch_.reserve(static_cast<std::size_t>(most));
  for (const condition& row : rows_) {
    if (row.tests[0].how == comparison::none) refuse("condition '" + std::string(row.name) + "' has no test");
    for (const condition_test& t : row.tests)
      if (t.how != comparison::none && static_cast<std::size_t>(t.of) >= signals)
        refuse("condition '" + std::string(row.name) + "' tests a signal that does not exist");
  }
}

HEDDLE_INLINE void runbook::add(signal s, int place, double value) {
  const auto i = static_cast<std::size_t>(s);
  if (i >= signals) throw config_error("heddle: observe::runbook: there is no signal " + std::to_string(i));
  if (place < 0 || place >= places_[i])
    throw config_error("heddle: observe::runbook: signal " + std::string(to_string(s)) + " has places 0 to " +
                       std::to_string(places_[i] - 1) + ", not " + std::to_string(place));
  if (!std::isfinite(value)) return;
  cell& c = cells_[begins_[i] + static_cast<std::size_t>(place)];
  c.sum += value;
  ++c.samples;
}

// The median of a group's places but one, of those that were measured; NaN if none was.
HEDDLE_INLINE double runbook::others(std::size_t first, std::size_t group, std::size_t but, bool of_calm) const {
  scratch_.clear();
  for (std::size_t p = first; p < first + group; ++p)
    if (p != but && cells_[p].fresh && (!of_calm || cells_[p].calm > 0))
      scratch_.push_back(of_calm ? cells_[p].now / cells_[p].calm : cells_[p].now);
  if (scratch_.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto half = scratch_.begin() + static_cast<std::ptrdiff_t>(scratch_.size() / 2);
  std::nth_element(scratch_.begin(), half, scratch_.end());
  if (scratch_.size() % 2 != 0) return *half;
  return (*half + *std::max_element(scratch_.begin(), half)) / 2;
}

// Whether a test holds, and where most. `ease` below 1 moves the threshold towards what is usual (hysteresis).
HEDDLE_INLINE runbook::finding runbook::look(const condition_test& test, double ease) const {
  const auto s = static_cast<std::size_t>(test.of);
  const std::size_t begin = begins_[s], end = begin + static_cast<std::size_t>(places_[s]);
  const auto group = static_cast<std::size_t>(groups_[s]);
  const double factor = 1 + (test.than - 1) * ease;  // for thresholds that are factors, above or below 1
  finding found;
  const auto worse = [&](std::size_t p, double strength, bool holds) {
    found.seen = true;
    if (!holds || strength <= found.strength) return;
    found.holds = true;
    found.strength = strength;
    found.place = static_cast<int>(p - begin);
  };
  const auto over = [](double value, double threshold) {
    return threshold > 0 ? value / threshold : (value > 0 ? 1 + value : 0);
  };
  bool all = true;
  for (std::size_t p = begin; p < end; ++p) {
    const cell& c = cells_[p];
    if (!c.fresh) continue;
    const std::size_t first = begin + (p - begin) / group * group;
    switch (test.how) {
      // A calm value of 0 is no measure: what is above it counts from half a unit on.
      case comparison::high: {
        const double threshold = c.calm > 0 ? factor * c.calm : 0.5;
        worse(p, over(c.now, threshold), c.now > threshold);
        break;
      }
      case comparison::low: {
        const double threshold = factor * c.calm;
        worse(p, c.now > 0 ? threshold / c.now : 1e9, c.now < threshold);
        break;
      }
      case comparison::above:
        worse(p, over(c.now, test.than * ease), c.now > test.than * ease);
        break;
      case comparison::under:
        found.seen = true;
        all = all && c.now <= test.than;
        break;
      case comparison::calm:
        found.seen = true;
        all = all && (c.calm <= 0 || (c.now <= test.than * c.calm && c.now * test.than >= c.calm));
        break;
      case comparison::skew:
      case comparison::even: {
        const double median = others(first, group, p, false);
        if (std::isnan(median)) break;
        const bool is_skew = test.how == comparison::skew;
        const double threshold = (is_skew ? factor : test.than) * median;
        if (is_skew) {
          worse(p, over(c.now, threshold), c.now > threshold);
        } else {
          found.seen = true;
          all = all && c.now <= threshold;
        }
        break;
      }
      case comparison::faded:
      case comparison::joint: {
        const double median = others(first, group, p, true);
        if (std::isnan(median) || c.calm <= 0) break;
        const bool is_faded = test.how == comparison::faded;
        const double threshold = (is_faded ? factor : test.than) * c.calm;
        const bool fades = c.now < threshold && median >= 0.8;
        if (is_faded) {
          worse(p, c.now > 0 ? threshold / c.now : 1e9, fades);
        } else {
          found.seen = true;
          all = all && !fades;
        }
        break;
      }
      case comparison::none:
        break;
    }
  }
  if (test.how == comparison::under || test.how == comparison::calm || test.how == comparison::even ||
      test.how == comparison::joint)
    found.holds = all;  // what is not measured here excludes nothing
  return found;
}

HEDDLE_INLINE void runbook::end_window() {
  for (cell& c : cells_) {
    c.fresh = c.samples > 0;
    if (c.fresh) c.now = c.sum / c.samples;
    c.sum = 0;
    c.samples = 0;
  }
  const std::int64_t w = window_++;
  if (w < rule_.skipped) return;
  bool any = false;
  if (w >= rule_.skipped + rule_.learned)
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      state& now = states_[r];
      finding first;
      bool holds = true;
      for (std::size_t t = 0; t < rows_[r].tests.size() && holds; ++t) {
        const condition_test& test = rows_[r].tests[t];
        if (test.how == comparison::none) continue;
        const finding f = look(test, now.alarm ? rule_.leaving : 1);
        holds = f.holds;
        if (t == 0) first = f;
      }
      if (holds) {
        any = true;
        now.quiet = 0;
        if (!now.alarm) {  // three windows in a row at one place
          now.streak = now.place == first.place ? now.streak + 1 : 1;
          if (now.streak == 1) now.since = w;
          now.alarm = now.streak >= rule_.windows;
        }
        now.place = first.place;
        now.strength = first.strength;
      } else if (!now.alarm || ++now.quiet >= rule_.windows) {
        now = {};
      }
      any = any || now.alarm;
    }
  if (any) return;
  for (cell& c : cells_)
    if (c.fresh) {
      ++c.learned;
      const double part = c.learned <= rule_.learned ? 1.0 / c.learned : rule_.smoothing;
      c.calm += part * (c.now - c.calm);
    }
}

HEDDLE_INLINE std::vector<verdict> runbook::verdicts() const {
  std::vector<verdict> found;
  for (std::size_t r = 0; r < rows_.size(); ++r)
    if (const state& s = states_[r]; s.alarm)
      found.push_back({.row = static_cast<int>(r),
                       .name = rows_[r].name,
                       .advice = rows_[r].advice,
                       .place = s.place,
                       .kind = kind_of(rows_[r].tests[0].of),
                       .since_window = s.since,
                       .strength = s.strength});
  std::sort(found.begin(), found.end(), [](const verdict& a, const verdict& b) {
    if (a.since_window != b.since_window) return a.since_window < b.since_window;
    if (a.strength != b.strength) return a.strength > b.strength;
    return a.row < b.row;
  });
  return found;
}

HEDDLE_INLINE std::vector<int> runbook::not_seen_here() const {
  std::vector<int> rows;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const auto s = static_cast<std::size_t>(rows_[r].tests[0].of);
    bool seen = false;
    for (std::size_t p = begins_[s]; p < begins_[s] + static_cast<std::size_t>(places_[s]); ++p)
      seen = seen || cells_[p].fresh || cells_[p].learned > 0;
    if (!seen) rows.push_back(static_cast<int>(r));
  }
  return rows;
}

HEDDLE_INLINE std::string runbook::to_text() const {
  std::string text;
  const std::vector<int> absent = not_seen_here();
  const std::vector<verdict> now = verdicts();
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    char number[24];
    std::snprintf(number, sizeof number, "%2zu ", r + 1);
    std::string name(rows_[r].name);
    name.resize((std::max)(name.size(), std::size_t{28}), ' ');
    text += number + name;
    std::string what = "clear";
    if (std::find(absent.begin(), absent.end(), static_cast<int>(r)) != absent.end()) what = "not seen here";
    for (const verdict& v : now)
      if (v.row == static_cast<int>(r))
        what = "ALARM at " + (v.kind == place_kind::whole
                                  ? std::string("the service")
                                  : std::string(observe::to_string(v.kind)) + " " + std::to_string(v.place));
    text += what + "\n";
  }
  return text;
}

}  // namespace heddle::inline v0::observe
