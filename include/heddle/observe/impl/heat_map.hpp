// heddle/observe/impl/heat_map.hpp: bodies of heddle/observe/heat_map.hpp.
#pragma once

#include <heddle/observe/heat_map.hpp>

#include <heddle/core/error.hpp>
#include <heddle/draw/svg.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

namespace detail {

HEDDLE_INLINE double median_of(std::vector<double> x) {
  if (x.empty()) return 0;
  const auto half = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), half, x.end());
  if (x.size() % 2 != 0) return *half;
  return (*half + *std::max_element(x.begin(), half)) / 2;
}
HEDDLE_INLINE std::string percent_of(double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %%", std::abs(part) < 0.0995 ? 1 : 0, 100 * part);
  return text;
}

}  // namespace detail

HEDDLE_INLINE std::string to_string(const slow_part& slow) {
  return slow.name + " computes " + detail::percent_of(slow.excess) + " longer than its peers since step " +
         std::to_string(slow.since_step);
}

HEDDLE_INLINE void heat_map::require_same_ranks(int have, int want) {
  if (have != want)
    throw config_error("heddle: observe::heat_map: times are of " + std::to_string(have) + " ranks, there are " +
                       std::to_string(want));
}

HEDDLE_INLINE heat_map::heat_map(std::vector<std::vector<double>> seconds, std::int64_t first_step,
                                 std::vector<int> roles, std::vector<double> expected, slow_rule rule)
    : seconds_(std::move(seconds)), first_step_(first_step), rule_(rule) {
  const auto refuse = [](const std::string& what) { throw config_error("heddle: observe::heat_map: " + what); };
  if (rule_.over < 1 || rule_.windows < 1)
    refuse("a rule looks at 1 or more steps and windows, not at " + std::to_string(rule_.over) + " and " +
           std::to_string(rule_.windows));
  for (const auto& row : seconds_)
    if (row.size() != seconds_[0].size())
      refuse("all ranks should have " + std::to_string(seconds_[0].size()) + " steps, one has " +
             std::to_string(row.size()));
  if (roles.empty()) roles.assign(seconds_.size(), 0);
  if (roles.size() != seconds_.size())
    refuse(std::to_string(roles.size()) + " roles for " + std::to_string(seconds_.size()) + " ranks");
  for (const int role : roles)
    if (role < 0 || (!expected.empty() && role >= static_cast<int>(expected.size())))
      refuse("role " + std::to_string(role) + " where there are " + std::to_string(expected.size()) +
             " expected times");
  for (const double e : expected)
    if (!(e > 0)) refuse("expected times should be positive, got " + std::to_string(e));

  const auto n = static_cast<std::size_t>(steps());
  relative_.assign(seconds_.size(), std::vector<double>(n));
  excess_ = relative_;
  for (std::size_t i = 0; i < n; ++i) {
    std::map<int, std::vector<double>> peers;
    for (std::size_t r = 0; r < seconds_.size(); ++r)
      peers[expected.empty() ? roles[r] : 0].push_back(
          expected.empty() ? seconds_[r][i] : seconds_[r][i] / expected[static_cast<std::size_t>(roles[r])]);
    std::map<int, std::size_t> next;
    for (std::size_t r = 0; r < seconds_.size(); ++r) {
      const int role = expected.empty() ? roles[r] : 0;
      const double middle = detail::median_of(peers[role]);
      relative_[r][i] = middle > 0 ? peers[role][next[role]++] / middle : 1;
      excess_[r][i] = relative_[r][i] - 1;
    }
  }
}

HEDDLE_INLINE std::vector<std::int64_t> heat_map::packed(const std::vector<step_time>& steps, std::int64_t window) {
  std::vector<std::int64_t> words(static_cast<std::size_t>(2 * window), -1);
  const std::size_t kept = (std::min)(steps.size(), static_cast<std::size_t>(window));
  for (std::size_t i = 0; i < kept; ++i) {
    const step_time& t = steps[steps.size() - kept + i];
    words[2 * i] = t.step;
    words[2 * i + 1] = t.compute_ns;
  }
  return words;
}

// The steps that all ranks have.
HEDDLE_INLINE heat_map::kept_steps heat_map::unpacked(const std::vector<std::int64_t>& all, std::size_t each,
                                                      int ranks) {
  std::vector<std::map<std::int64_t, double>> of(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < of.size(); ++r)
    for (std::size_t i = 0; i < each; i += 2)
      if (const std::int64_t step = all[r * each + i]; step >= 0)
        of[r][step] = static_cast<double>(all[r * each + i + 1]) * 1e-9;
  kept_steps kept;
  kept.seconds.resize(of.size());
  if (of.empty()) return kept;
  std::int64_t last = -1;
  for (const auto& [step, seconds] : of[0]) {
    if (!std::all_of(of.begin(), of.end(), [&](const auto& o) { return o.contains(step); })) continue;
    if (last >= 0 && step != last + 1)  // a run that went on elsewhere: what was before is not comparable
      for (auto& row : kept.seconds) row.clear();
    if (kept.seconds[0].empty()) kept.first_step = step;
    for (std::size_t r = 0; r < of.size(); ++r) kept.seconds[r].push_back(of[r].at(step));
    last = step;
  }
  return kept;
}

// The rows that the rule calls slow at the newest step.
HEDDLE_INLINE std::vector<slow_part> heat_map::slow_rows(const std::vector<std::vector<double>>& excess) const {
  std::vector<slow_part> found;
  const int n = excess.empty() ? 0 : static_cast<int>(excess[0].size());
  const int windows = n - rule_.over + 1;
  if (windows < rule_.windows || excess.size() < 2) return found;
  // From the newest window back, as long as some row is above what the window says.
  std::vector<int> since(excess.size(), windows);
  std::vector<double> newest;
  for (int w = windows - 1; w >= 0; --w) {
    std::vector<double> medians, distances;
    for (const auto& row : excess) {
      const auto first = row.begin() + w, last = first + rule_.over;
      const double middle = medians.emplace_back(detail::median_of({first, last}));
      std::transform(first, last, std::back_inserter(distances), [&](double e) { return std::abs(e - middle); });
    }
    const double s = 1.4826 * detail::median_of(std::move(distances));
    const double limit =
        (std::max)(rule_.least, rule_.deviations * 1.25 * s / std::sqrt(static_cast<double>(rule_.over)));
    bool any = false;
    for (std::size_t r = 0; r < excess.size(); ++r)
      if (since[r] == w + 1 && medians[r] > limit) {
        since[r] = w;
        any = true;
      }
    if (newest.empty()) newest = std::move(medians);
    if (!any) break;
  }
  for (std::size_t r = 0; r < excess.size(); ++r) {
    if (windows - since[r] < rule_.windows) continue;
    // It began inside of its first window, where half of what it is now was reached.
    const auto first = excess[r].begin() + since[r];
    const auto began = std::find_if(first, first + rule_.over, [&](double e) { return e > newest[r] / 2; });
    found.push_back(
        {"rank " + std::to_string(r), static_cast<int>(r), newest[r], first_step_ + (began - excess[r].begin())});
  }
  std::sort(found.begin(), found.end(), [](const slow_part& a, const slow_part& b) {
    return a.excess != b.excess ? a.excess > b.excess : a.rank < b.rank;
  });
  return found;
}

HEDDLE_INLINE std::vector<slow_part> heat_map::slow() const {
  return slow_rows(excess_);
}

HEDDLE_INLINE std::vector<slow_part> heat_map::slow_on(const places& where) const {
  std::vector<slow_part> ranks_found = slow(), found;
  std::vector<char> told(seconds_.size());
  // Slices of two and more ranks, the largest first. Half of a mesh that is slow moves the median of all: each slice is compared
  // with the others.
  struct slice {
    std::size_t axis;
    int coordinate;
    std::vector<std::size_t> members;
    slow_part as;
  };
  std::vector<slice> slices;
  for (std::size_t a = 0; a < where.axes.size(); ++a) {
    std::map<int, std::vector<std::size_t>> by;
    for (std::size_t r = 0; r < where.of.size(); ++r) by[where.of[r][a]].push_back(r);
    if (by.size() < 2 || by.begin()->second.size() < 2) continue;
    std::vector<std::vector<double>> rows;
    for (const auto& [coordinate, members] : by) {
      auto& row = rows.emplace_back();
      for (int i = 0; i < steps(); ++i) {
        std::vector<double> x;
        for (const std::size_t r : members) x.push_back(relative_[r][static_cast<std::size_t>(i)]);
        row.push_back(detail::median_of(std::move(x)));
      }
    }
    std::vector<std::vector<double>> excess = rows;
    for (std::size_t i = 0; i < static_cast<std::size_t>(steps()); ++i)
      for (std::size_t c = 0; c < rows.size(); ++c) {
        std::vector<double> others;
        for (std::size_t d = 0; d < rows.size(); ++d)
          if (d != c) others.push_back(rows[d][i]);
        const double middle = detail::median_of(std::move(others));
        excess[c][i] = middle > 0 ? rows[c][i] / middle - 1 : 0;
      }
    for (const slow_part& s : slow_rows(excess)) {
      const auto place = std::next(by.begin(), s.rank);
      slow_part as = s;
      as.name = where.axes[a] + "=" + std::to_string(place->first);
      as.rank = -1;
      slices.push_back({a, place->first, place->second, as});
    }
  }
  std::sort(slices.begin(), slices.end(), [](const slice& a, const slice& b) {
    return std::make_tuple(b.members.size(), a.axis, a.coordinate) <
           std::make_tuple(a.members.size(), b.axis, b.coordinate);
  });
  for (const slice& s : slices) {
    // All of its ranks are slow, none of them for itself: the fastest takes a third of the slice's excess longer.
    const bool all = std::all_of(s.members.begin(), s.members.end(), [&](std::size_t r) {
      std::vector<double> of(relative_[r].end() - rule_.over, relative_[r].end()), others;
      for (std::size_t q = 0; q < relative_.size(); ++q)
        if (std::find(s.members.begin(), s.members.end(), q) == s.members.end())
          others.insert(others.end(), relative_[q].end() - rule_.over, relative_[q].end());
      return detail::median_of(of) / detail::median_of(others) - 1 > s.as.excess / 3;
    });
    if (!all || told[s.members.front()] != 0) continue;
    for (const std::size_t r : s.members) told[r] = 1;
    found.push_back(s.as);
  }
  for (slow_part& s : ranks_found) {
    const auto r = static_cast<std::size_t>(s.rank);
    if (told[r] != 0) continue;
    s.name += " (";
    for (std::size_t a = 0; a < where.axes.size(); ++a)
      s.name += (a == 0 ? "" : ", ") + where.axes[a] + "=" + std::to_string(where.of[r][a]);
    s.name += ")";
    found.push_back(s);
  }
  return found;
}

HEDDLE_INLINE std::string heat_map::to_text() const {
  std::string text = "rank  median ms  excess\n";
  const std::vector<slow_part> slow_now = slow();
  for (std::size_t r = 0; r < seconds_.size(); ++r) {
    char line[64];
    std::snprintf(line, sizeof line, "%4zu %10.3f %7.1f%%", r, 1e3 * detail::median_of(seconds_[r]),
                  100 * detail::median_of(excess_[r]));
    text += line;
    for (const slow_part& s : slow_now)
      if (s.rank == static_cast<int>(r)) text += "  slow since step " + std::to_string(s.since_step);
    text += '\n';
  }
  return text;
}

HEDDLE_INLINE std::string heat_map::to_csv() const {
  std::string text = "rank,step,seconds,excess\n";
  char line[96];
  for (int r = 0; r < ranks(); ++r)
    for (int i = 0; i < steps(); ++i) {
      std::snprintf(line, sizeof line, "%d,%lld,%.9g,%.6g\n", r, static_cast<long long>(first_step_ + i), seconds(r, i),
                    excess(r, i));
      text += line;
    }
  return text;
}

HEDDLE_INLINE std::string heat_map::to_svg(std::string_view title) const {
  svg_drawing picture;
  constexpr double left = 70, top = 56, cell = 14;
  picture.words(16, 28, title, 15, "#1b1f24", "start", true);
  picture.begin_words(11, "#57606a", "end");
  for (int r = 0; r < ranks(); ++r) picture.word(left - 8, top + cell * r + 11, "rank " + std::to_string(r));
  picture.end_words();
  // White at no excess, red at 20 % and more, blue at as much less.
  const auto colour = [](double e) {
    const double part = (std::min)(1.0, std::abs(e) / 0.2);
    const auto fade = [&](int to) { return static_cast<int>(std::lround(255 + (to - 255) * part)); };
    char text[8];
    std::snprintf(text, sizeof text, "#%02x%02x%02x", static_cast<unsigned>(fade(e > 0 ? 0xd5 : 0x3a)),
                  static_cast<unsigned>(fade(e > 0 ? 0x5e : 0x8f)), static_cast<unsigned>(fade(e > 0 ? 0x00 : 0xd0)));
    return std::string(text);
  };
  for (int r = 0; r < ranks(); ++r)
    for (int i = 0; i < steps(); ++i)
      picture.rect(left + cell * i, top + cell * r, cell - 1, cell - 1, colour(excess(r, i)));
  picture.begin_words(11, "#57606a", "start");
  const double below = top + cell * ranks() + 16;
  picture.word(left, below, "step " + std::to_string(first_step_));
  picture.end_words();
  picture.words(left + cell * steps(), below, std::to_string(first_step_ + (std::max)(0, steps() - 1)), 11, "#57606a",
                "end");
  const std::vector<slow_part> slow_now = slow();
  for (std::size_t i = 0; i < slow_now.size(); ++i)
    picture.words(left, below + 20 + 16 * static_cast<double>(i), to_string(slow_now[i]), 12, "#a33b00");
  return picture.text("", 16, "#ffffff");
}

}  // namespace heddle::inline v0::observe
