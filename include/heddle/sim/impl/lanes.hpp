// heddle/sim/impl/lanes.hpp: bodies of heddle/sim/lanes.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/line_reader.hpp>
#include <heddle/core/text.hpp>
#include <heddle/draw/gantt.hpp>
#include <heddle/sim/lanes.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

HEDDLE_INLINE double share_table::operator()(lane l, double share) const {
  const std::vector<point>& line = points[static_cast<std::size_t>(l)];
  if (line.empty()) throw config_error("heddle: a table of shares has no points for a lane");
  for (std::size_t i = 1; i < line.size(); ++i) {
    const point &a = line[i - 1], &b = line[i];
    if (share <= b.share && b.share > a.share)
      return a.speed + (b.speed - a.speed) * ((std::max)(share, a.share) - a.share) / (b.share - a.share);
  }
  return line.back().speed;
}

HEDDLE_INLINE share_table nanoflow_shares() {
  return {{{{{0, 0}, {1, 1}},
            {{0, 0}, {0.1, 0.2}, {0.2, 0.3}, {0.4, 0.8}, {0.8, 0.85}, {0.9, 0.95}, {1, 1}},
            {{0, 0}, {0.1, 0.3}, {0.2, 0.5}, {0.8, 0.9}, {0.9, 1}, {1, 1}}}}};
}

HEDDLE_INLINE std::string to_text(const share_table& table) {
  std::string text = "heddle lane_shares 1\n";
  for (std::size_t l = 0; l < lanes; ++l) {
    text.append(lane_names[l]).append(" ").append(std::to_string(table.points[l].size()));
    for (const share_table::point& p : table.points[l]) text += " " + number_text(p.share) + " " + number_text(p.speed);
    text += "\n";
  }
  return text;
}

HEDDLE_INLINE share_table parse_share_table(std::string_view text, std::string_view source) {
  line_reader<config_error> lines(text, source);
  constexpr std::string_view first = "heddle lane_shares 1";
  lines.require("heddle", 3, first);
  if (lines.word(1) != "lane_shares" || lines.word(2) != "1") lines.fail(text_of({"expected ", first}));
  share_table table;
  for (std::size_t l = 0; l < lanes; ++l) {
    constexpr int most_points = 1000;
    const std::string form = text_of({lane_names[l], " <how many> and as many pairs of share and speed"});
    if (!lines.next()) lines.fail("the text ends here; expected " + form);
    if (lines.word(0) != lane_names[l] || lines.words() < 2) lines.fail("expected " + form);
    const int count = lines.between(1, 2, most_points);
    lines.expect(2 + 2 * static_cast<std::size_t>(count), form);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const share_table::point p{lines.between(2 + 2 * i, 0.0, 1.0), lines.between(3 + 2 * i, 0.0, 1.0)};
      std::vector<share_table::point>& of = table.points[l];
      if (i == 0 ? p.share != 0 : !(p.share > of.back().share && p.speed >= of.back().speed))
        lines.fail("expected shares that rise from 0 on and speeds that do not fall");
      of.push_back(p);
    }
    if (table.points[l].back() != share_table::point{1, 1}) lines.fail("expected speed 1 for share 1 at the end");
  }
  if (lines.next()) lines.fail("the table ends before this line");
  return table;
}

namespace detail {

inline void require_lane_works(std::span<const lane_work> works, const std::vector<int>& order) {
  const int n = static_cast<int>(works.size());
  for (const lane_work& w : works) {
    if (!(w.seconds >= 0) || !(w.seconds < std::numeric_limits<double>::infinity()) || !(w.share >= 0 && w.share <= 1))
      throw config_error(text_of({"heddle: the work '", w.name,
                                  "' needs seconds that are finite and not negative, and a share from 0 to 1; got ",
                                  number_text(w.seconds), " and ", number_text(w.share)}));
    for (const int a : w.after)
      if (a < 0 || a >= n)
        throw config_error(text_of({"heddle: the work '", w.name, "' is after work ", a, ", which is not there"}));
  }
  std::vector<char> seen(works.size(), 0);
  bool once = order.empty() || order.size() == works.size();
  for (std::size_t i = 0; i < order.size() && once; ++i)
    once = order[i] >= 0 && order[i] < n && seen[static_cast<std::size_t>(order[i])]++ == 0;
  if (!once) throw config_error(text_of({"heddle: an order of lanes' works lists each of the ", n, " works once"}));
}

}  // namespace detail

HEDDLE_INLINE lane_timeline simulate_lanes(std::span<const lane_work> works, const lane_speed& speed,
                                           const lane_options& options) {
  detail::require_lane_works(works, options.order);
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<int> place(works.size()), open(works.size(), 0);  // place in the order; works that are waited for
  std::iota(place.begin(), place.end(), 0);
  for (std::size_t i = 0; i < options.order.size(); ++i) place[at(options.order[i])] = static_cast<int>(i);
  std::vector<std::vector<int>> next(works.size());
  using entry = std::pair<int, int>;  // place and work
  std::array<std::priority_queue<entry, std::vector<entry>, std::greater<entry>>, lanes> ready;
  const auto release = [&](int w) { ready[at(static_cast<int>(works[at(w)].where))].push({place[at(w)], w}); };
  for (std::size_t w = 0; w < works.size(); ++w) {
    open[w] = static_cast<int>(works[w].after.size());
    for (const int a : works[w].after) next[at(a)].push_back(static_cast<int>(w));
    if (open[w] == 0) release(static_cast<int>(w));
  }
  lane_timeline line;
  std::array<int, lanes> running{-1, -1, -1};
  std::array<double, lanes> left{}, share{}, rate{};
  std::size_t done = 0;
  for (double now = 0; done < works.size();) {
    for (std::size_t l = 0; l < lanes; ++l)
      if (running[l] < 0 && !ready[l].empty()) {
        running[l] = ready[l].top().second;
        ready[l].pop();
        left[l] = works[at(running[l])].seconds;
      }
    double unclaimed = 1;
    std::size_t first = lanes;  // that gets what is left
    for (std::size_t l = 0; l < lanes; ++l) {
      if (running[l] < 0) continue;
      const double wanted = works[at(running[l])].share;
      share[l] = (std::min)(wanted, unclaimed);
      unclaimed -= share[l];
      if (first == lanes || (works[at(running[first])].share > 0 && wanted == 0)) first = l;
    }
    if (first < lanes && (options.fill || works[at(running[first])].share == 0)) share[first] += unclaimed;
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t l = 0; l < lanes; ++l) {
      if (running[l] < 0) continue;
      rate[l] = left[l] > 0 ? speed(static_cast<lane>(l), share[l]) : 1;
      if (!(rate[l] >= 0)) throw config_error("heddle: the speed of a lane is a number that is not negative");
      if (rate[l] > 0) step = (std::min)(step, left[l] / rate[l]);
    }
    if (!(step < std::numeric_limits<double>::infinity()))
      throw config_error(first == lanes ? "heddle: works of lanes wait for each other"
                                        : "heddle: the works that run have shares with which none of them moves");
    const double begin = now;
    now += step;
    for (std::size_t l = 0; l < lanes; ++l) {
      if (running[l] < 0) continue;
      const int w = running[l];
      if (step > 0) {
        // A share that stays the same is one span.
        bool goes_on = false;
        for (std::size_t k = line.spans.size(); k-- > 0 && k + 2 * lanes >= line.spans.size() && !goes_on;)
          if (line.spans[k].work == w && line.spans[k].end == begin && line.spans[k].share == share[l]) {
            line.spans[k].end = now;
            goes_on = true;
          }
        if (!goes_on) line.spans.push_back({w, begin, now, share[l]});
      }
      left[l] -= step * rate[l];
      if (left[l] > 1e-12 * works[at(w)].seconds) continue;
      running[l] = -1;
      ++done;
      for (const int n : next[at(w)])
        if (--open[at(n)] == 0) release(n);
    }
    line.seconds = now;
  }
  return line;
}

HEDDLE_INLINE lane_report check_lanes(std::span<const lane_work> works, const lane_timeline& line,
                                      const lane_speed& speed) {
  constexpr double slack = 1e-9;
  const double unit = line.seconds > 0 ? line.seconds : 1;
  std::vector<double> begin(works.size(), line.seconds), end(works.size(), 0), done(works.size(), 0), times;
  for (const lane_span& s : line.spans) {
    if (s.work < 0 || static_cast<std::size_t>(s.work) >= works.size())
      return {text_of({"a span is of work ", s.work, ", which is not there"})};
    const auto w = static_cast<std::size_t>(s.work);
    begin[w] = (std::min)(begin[w], s.begin);
    end[w] = (std::max)(end[w], s.end);
    done[w] += (s.end - s.begin) * speed(works[w].where, s.share);
    times.push_back(s.begin);
  }
  for (std::size_t w = 0; w < works.size(); ++w) {
    if (std::abs(done[w] - works[w].seconds) > slack * (works[w].seconds + unit))
      return {text_of(
          {"'", works[w].name, "' ran for ", number_text(done[w]), " of ", number_text(works[w].seconds), " seconds"})};
    for (const int a : works[w].after) {
      const auto before = static_cast<std::size_t>(a);
      if (works[w].seconds > 0 && works[before].seconds > 0 && begin[w] < end[before] - slack * unit)
        return {text_of({"'", works[w].name, "' begins before '", works[before].name, "' has ended"})};
    }
  }
  for (const double t : times) {
    double shares = 0;
    std::array<int, lanes> at_once{};
    for (const lane_span& s : line.spans)
      if (s.begin <= t && t < s.end - slack * unit) {
        shares += s.share;
        ++at_once[static_cast<std::size_t>(works[static_cast<std::size_t>(s.work)].where)];
      }
    if (shares > 1 + slack) return {text_of({"at ", number_text(t), " s shares add up to ", number_text(shares)})};
    for (std::size_t l = 0; l < lanes; ++l)
      if (at_once[l] > 1) return {text_of({"at ", number_text(t), " s the lane ", lane_names[l], " has two works"})};
  }
  return {};
}

HEDDLE_INLINE gantt_chart lanes_chart(std::span<const lane_work> works, const lane_timeline& line,
                                      const std::string& title, double scale) {
  gantt_chart chart;
  chart.title = title;
  constexpr std::array<const char*, lanes> fills{"#5aa9f7", "#56d4a0", "#ffb224"};
  for (std::size_t l = 0; l < lanes; ++l) {
    chart.rows.emplace_back(lane_names[l]);
    chart.styles.push_back({.name = std::string(lane_names[l]), .fill = fills[l], .letters = ""});
  }
  for (const lane_span& s : line.spans) {
    const lane_work& w = works[static_cast<std::size_t>(s.work)];
    const int row = static_cast<int>(w.where);
    chart.boxes.push_back({row, row, std::to_string(std::lround(100 * s.share)), scale * s.begin, scale * s.end});
  }
  return chart;
}

}  // namespace heddle::inline v0::sim
