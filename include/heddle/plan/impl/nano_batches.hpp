// heddle/plan/impl/nano_batches.hpp: bodies of heddle/plan/nano_batches.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/line_reader.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/nano_batches.hpp>
#include <heddle/sim/lanes.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan {
namespace detail {

inline constexpr int most_nano_parts = 64;
inline constexpr int most_nano_works = 1 << 20;

inline void require_nano_operations(std::span<const nano_operation> operations) {
  if (operations.empty()) throw config_error("heddle: a layer has at least one operation");
  for (std::size_t o = 0; o < operations.size(); ++o) {
    if (!operations[o].seconds)
      throw config_error(text_of({"heddle: the operation '", operations[o].name, "' says no seconds"}));
    for (const int a : operations[o].after)
      if (a < 0 || static_cast<std::size_t>(a) >= o)
        throw config_error(text_of({"heddle: the operation '", operations[o].name, "' reads operation ", a,
                                    "; operations are listed after those that they read"}));
  }
}

// The least time of work: no lane does more with a share than the straight lines above its table's points say.
class lane_bound {
 public:
  explicit lane_bound(const sim::lane_speed& speed) {
    constexpr int steps = 100;
    for (std::size_t l = 0; l < sim::lanes; ++l) {
      std::vector<sim::share_table::point>& hull = hull_[l];
      for (int i = 0; i <= steps; ++i) {
        const double share = static_cast<double>(i) / steps;
        const sim::share_table::point p{share, speed(static_cast<sim::lane>(l), share)};
        if (!(p.speed >= 0)) throw config_error("heddle: a lane's speed is not negative");
        const auto below = [&](const auto& a, const auto& b) {
          return (b.speed - a.speed) * (p.share - a.share) <= (p.speed - a.speed) * (b.share - a.share);
        };
        while (hull.size() > 1 && below(hull[hull.size() - 2], hull.back())) hull.pop_back();
        hull.push_back(p);
      }
      if (!(hull.back().speed > 0)) throw config_error("heddle: with all of the device each lane moves");
    }
  }

  double seconds(const std::array<double, sim::lanes>& work) const {
    double low = 0, high = 0;
    for (std::size_t l = 0; l < sim::lanes; ++l) high += work[l] / hull_[l].back().speed;
    for (int i = 0; i < 200 && high > 0; ++i) {
      const double middle = (low + high) / 2;
      double shares = 0;
      for (std::size_t l = 0; l < sim::lanes; ++l) shares += share_for(l, work[l] / middle);
      (shares <= 1 ? high : low) = middle;
    }
    return high;
  }

 private:
  double share_for(std::size_t l, double speed) const {
    const auto& hull = hull_[l];
    if (speed <= 0) return 0;
    for (std::size_t i = 1; i < hull.size(); ++i)
      if (speed <= hull[i].speed)
        return hull[i - 1].share +
               (hull[i].share - hull[i - 1].share) * (speed - hull[i - 1].speed) / (hull[i].speed - hull[i - 1].speed);
    return 2;  // faster than the lane can be
  }
  std::array<std::vector<sim::share_table::point>, sim::lanes> hull_;
};

// Calls `visit` with all ways to write `units` as `parts` positive numbers.
template <class Visit>
void each_composition(int units, int parts, std::vector<int>& so_far, const Visit& visit) {
  if (parts == 1) {
    so_far.push_back(units);
    visit(std::as_const(so_far));
    so_far.pop_back();
    return;
  }
  for (int first = 1; first <= units - parts + 1; ++first) {
    so_far.push_back(first);
    each_composition(units - first, parts - 1, so_far, visit);
    so_far.pop_back();
  }
}

class nano_search {
 public:
  nano_search(std::span<const nano_operation> operations, const sim::lane_speed& speed, const nano_options& o)
      : operations_(operations), speed_(speed), options_(o) {
    require_nano_operations(operations);
    constexpr int most_rows = 1 << 30;
    if (o.rows < 1 || o.rows > most_rows || o.multiple < 1 || o.multiple > most_rows || o.parts < 1 ||
        o.parts > most_nano_parts || o.layers < 1 || !(o.share_step >= 0.001 && o.share_step <= 1) ||
        !(o.least_gain >= 0))
      throw config_error(text_of(
          {"heddle: nano-batches need rows, a multiple and layers of at least 1, 1 to ", most_nano_parts,
           " parts, a step of shares from 0.001 to 1 and a least gain of at least 0; got ", o.rows, ", ", o.multiple,
           ", ", o.layers, ", ", o.parts, ", ", number_text(o.share_step), " and ", number_text(o.least_gain)}));
    for (std::size_t i = 0; i < operations.size(); ++i)
      if (operations[i].where != sim::lane::compute) shared_.push_back(i);
    for (int k = 1; k * o.share_step < 1 + 1e-9; ++k) grid_.push_back((std::min)(k * o.share_step, 1.0));
    if (grid_.size() > 1 && grid_.back() > 1 - 1e-9) grid_.pop_back();  // all of the device is for works that are alone
  }

  nano_plan run() {
    const lane_bound bound(speed_);
    std::array<double, sim::lanes> work{};
    double serial = 0;
    for (const nano_operation& o : operations_) {
      const double s = o.seconds(options_.rows) * options_.layers;
      work[static_cast<std::size_t>(o.where)] += s;
      serial += s;
    }
    best_.rows = options_.rows;
    best_.layers = options_.layers;
    best_.parts = {options_.rows};
    best_.seconds = std::numeric_limits<double>::infinity();
    const int units = (options_.rows + options_.multiple - 1) / options_.multiple;
    for (int parts = 1; parts <= (std::min)(options_.parts, units); ++parts) search(parts, units);
    best_.seconds = simulated(best_, options_.layers);
    best_.serial_seconds = serial;
    best_.bound = bound.seconds(work);
    if (!(best_.seconds * (1 + options_.least_gain) < serial * (1 - 1e-9))) {
      best_.parts = {options_.rows};
      best_.shares.clear();
      best_.order.clear();
      best_.serial = true;
      best_.seconds = serial;
    }
    return best_;
  }

 private:
  static constexpr std::int64_t searched_through = 50'000;  // simulations

  double simulated(const nano_plan& p, int layers) const {
    const std::vector<std::vector<int>> rows(operations_.size(), p.parts);
    return sim::simulate_lanes(nano_works(operations_, rows, p.shares, layers, p.order), speed_).seconds;
  }
  // A few layers stand for all: what they take, for each of them.
  int searched_layers() const { return (std::min)(options_.layers, 6); }
  bool improve(const nano_plan& p) {
    const double seconds = simulated(p, searched_layers()) / searched_layers() * options_.layers;
    if (!(seconds < best_.seconds * (1 - 1e-12))) return false;
    best_ = p;
    best_.seconds = seconds;
    return true;
  }
  nano_plan with(const std::vector<int>& units) const {
    nano_plan p;
    p.rows = options_.rows;
    p.layers = options_.layers;
    for (const int u : units) p.parts.push_back(u * options_.multiple);
    p.parts.back() -=
        std::accumulate(p.parts.begin(), p.parts.end(), 0) - options_.rows;  // the last may be no multiple
    p.shares.assign(operations_.size(), 0.0);
    return p;
  }

  // All orders of each lane's nano-operations, one after the other; false after the last.
  static bool next_order(std::vector<std::vector<int>>& of_lane) {
    for (std::vector<int>& l : of_lane)
      if (std::next_permutation(l.begin(), l.end())) return true;
    return false;
  }

  void search(int parts, int units) {
    const int count = static_cast<int>(operations_.size()) * parts;
    std::vector<std::vector<int>> of_lane(sim::lanes);
    for (int i = 0; i < count; ++i)
      of_lane[static_cast<std::size_t>(operations_[static_cast<std::size_t>(i / parts)].where)].push_back(i);
    std::int64_t ways = 1;
    const auto times = [&](std::size_t n) {
      ways = ways > searched_through ? ways : ways * static_cast<std::int64_t>(n);
    };
    for (const auto& l : of_lane)
      for (std::size_t k = 2; k <= l.size(); ++k) times(k);
    for (std::size_t s = 0; s < shared_.size(); ++s) times(grid_.size());
    for (int k = 1; k < parts; ++k) times(static_cast<std::size_t>(units));
    std::vector<int> cut;
    if (options_.layers == 1 && ways <= searched_through) {
      each_composition(units, parts, cut, [&](const std::vector<int>& c) { all_of(with(c), of_lane); });
      return;
    }
    std::vector<int> even(static_cast<std::size_t>(parts), units / parts);
    for (int k = 0; k < units % parts; ++k) ++even[static_cast<std::size_t>(parts - 1 - k)];
    // Rows first or operations first, a share for each lane.
    std::vector<std::pair<double, nano_plan>> tried;
    const nano_plan start = with(even);
    for (const double memory : grid_)
      for (const double network : grid_) {
        if (memory + network > 1 - 1e-9) continue;
        nano_plan p = start;
        for (const std::size_t o : shared_) p.shares[o] = operations_[o].where == sim::lane::memory ? memory : network;
        for (const bool rows_first : {false, true}) {
          p.order.clear();
          for (int i = 0; i < count; ++i)
            p.order.push_back(rows_first ? i % static_cast<int>(operations_.size()) * parts +
                                               i / static_cast<int>(operations_.size())
                                         : i);
          tried.emplace_back(simulated(p, searched_layers()), p);
        }
      }
    if (tried.empty()) tried.emplace_back(0.0, start);
    const std::size_t kept = (std::min)(tried.size(), std::size_t{3});
    const auto faster = [](const auto& a, const auto& b) { return a.first < b.first; };
    std::partial_sort(tried.begin(), tried.begin() + static_cast<std::ptrdiff_t>(kept), tried.end(), faster);
    bool better = false;
    for (std::size_t k = 0; k < kept; ++k) {
      const auto cut_as = [&](const std::vector<int>& c) {
        nano_plan p = tried[k].second;
        p.parts = with(c).parts;
        better = improve(p) || better;
      };
      if (parts <= 3 && units <= 32)
        each_composition(units, parts, cut, cut_as);
      else
        cut_as(even);
    }
    for (bool again = better; again;) {
      again = false;
      for (const std::size_t o : shared_)
        for (const double share : grid_) {
          nano_plan p = best_;
          p.shares[o] = share;
          again = improve(p) || again;
        }
    }
  }

  void all_of(nano_plan p, std::vector<std::vector<int>> of_lane) {
    for (const std::size_t o : shared_) p.shares[o] = grid_.front();
    std::vector<std::size_t> at(shared_.size(), 0);
    for (bool more = true; more;) {
      for (std::size_t s = 0; s < shared_.size(); ++s) p.shares[shared_[s]] = grid_[at[s]];
      do {
        p.order.clear();
        for (const std::vector<int>& l : of_lane) p.order.insert(p.order.end(), l.begin(), l.end());
        improve(p);
      } while (next_order(of_lane));
      more = false;
      for (std::size_t s = 0; s < at.size() && !more; ++s) more = ++at[s] < grid_.size() || (at[s] = 0, false);
    }
  }

  std::span<const nano_operation> operations_;
  const sim::lane_speed& speed_;
  const nano_options& options_;
  std::vector<std::size_t> shared_;  // operations that are not compute
  std::vector<double> grid_;
  nano_plan best_;
};

}  // namespace detail

HEDDLE_INLINE std::vector<sim::lane_work> nano_works(std::span<const nano_operation> operations,
                                                     std::span<const std::vector<int>> rows,
                                                     std::span<const double> shares, int layers,
                                                     std::span<const int> order) {
  detail::require_nano_operations(operations);
  if (rows.size() != operations.size() || (!shares.empty() && shares.size() != operations.size()))
    throw config_error(text_of({"heddle: ", operations.size(), " operations have rows and shares of their own; got ",
                                rows.size(), " and ", shares.size()}));
  std::vector<int> first{0};  // nano-operation of each operation
  std::vector<char> last(operations.size(), 1);
  const auto all = [](const std::vector<int>& parts) {
    return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  };
  for (std::size_t o = 0; o < operations.size(); ++o) {
    if (rows[o].empty() || *std::min_element(rows[o].begin(), rows[o].end()) < 1 || all(rows[o]) != all(rows[0]))
      throw config_error(text_of({"heddle: the parts of '", operations[o].name,
                                  "' have at least a row each and as many together as all others"}));
    first.push_back(first.back() + static_cast<int>(rows[o].size()));
    for (const int a : operations[o].after) last[static_cast<std::size_t>(a)] = 0;
  }
  const int in_layer = first.back();
  if (layers < 1 || std::int64_t{layers} * in_layer > detail::most_nano_works)
    throw config_error(
        text_of({"heddle: ", layers, " layers of ", in_layer, " nano-operations; at least one layer, and at most ",
                 detail::most_nano_works, " of them together"}));
  std::vector<int> place(static_cast<std::size_t>(in_layer), -1), listed(order.begin(), order.end());
  if (listed.empty()) {
    listed.resize(place.size());
    std::iota(listed.begin(), listed.end(), 0);
  }
  bool once = listed.size() == place.size();
  for (std::size_t i = 0; i < listed.size() && once; ++i) {
    once = listed[i] >= 0 && listed[i] < in_layer && place[static_cast<std::size_t>(listed[i])] < 0;
    if (once) place[static_cast<std::size_t>(listed[i])] = static_cast<int>(i);
  }
  if (!once)
    throw config_error(text_of({"heddle: an order lists each of the ", in_layer, " nano-operations of a layer once"}));

  std::vector<sim::lane_work> works(static_cast<std::size_t>(in_layer) * static_cast<std::size_t>(layers));
  for (std::size_t o = 0; o < operations.size(); ++o) {
    int begin = 0;
    for (std::size_t k = 0; k < rows[o].size(); ++k) {
      const int end = begin + rows[o][k];
      sim::lane_work w{operations[o].name,
                       operations[o].where,
                       operations[o].seconds(rows[o][k]),
                       {},
                       shares.empty() ? 0 : shares[o]};
      if (rows[o].size() > 1) w.name += text_of({" ", k + 1});
      // Those parts of an operation, in this layer or the one before, whose rows meet these.
      const auto meet = [&](std::size_t read, int base) {
        int from = 0;
        for (std::size_t q = 0; q < rows[read].size(); ++q) {
          const int to = from + rows[read][q];
          if (from < end && begin < to) w.after.push_back(base + place[static_cast<std::size_t>(first[read]) + q]);
          from = to;
        }
      };
      const auto at = static_cast<std::size_t>(place[static_cast<std::size_t>(first[o]) + k]);
      for (int layer = 0; layer < layers; ++layer) {
        w.after.clear();
        for (const int a : operations[o].after) meet(static_cast<std::size_t>(a), layer * in_layer);
        if (operations[o].after.empty() && layer > 0)
          for (std::size_t q = 0; q < operations.size(); ++q)
            if (last[q] != 0) meet(q, (layer - 1) * in_layer);
        works[static_cast<std::size_t>(layer) * static_cast<std::size_t>(in_layer) + at] = w;
      }
      begin = end;
    }
  }
  return works;
}

HEDDLE_INLINE std::vector<sim::lane_work> nano_works(std::span<const nano_operation> operations,
                                                     const nano_plan& plan) {
  std::vector<sim::lane_work> works = nano_works(
      operations, std::vector<std::vector<int>>(operations.size(), plan.parts), plan.shares, plan.layers, plan.order);
  if (plan.serial)
    for (std::size_t w = 1; w < works.size(); ++w) works[w].after = {static_cast<int>(w) - 1};
  return works;
}

HEDDLE_INLINE nano_plan find_nano_plan(std::span<const nano_operation> operations, const sim::lane_speed& speed,
                                       const nano_options& options) {
  return detail::nano_search(operations, speed, options).run();
}

HEDDLE_INLINE std::string to_string(const nano_plan& plan) {
  std::string text = text_of({plan.rows, " rows "});
  if (plan.serial) {
    text += "one operation after the other";
  } else {
    text += "as ";
    for (std::size_t k = 0; k < plan.parts.size(); ++k) text += (k == 0 ? "" : " + ") + std::to_string(plan.parts[k]);
    text += ", shares";
    for (const double s : plan.shares) text += s > 0 ? " " + rounded_text(s, 2) : " rest";
  }
  text += "\n" + rounded_text(1000 * plan.seconds, 3) + " ms, one after the other " +
          rounded_text(1000 * plan.serial_seconds, 3) + " ms, " + rounded_text(100 * plan.gap(), 1) +
          " % above the bound";
  return text;
}

HEDDLE_INLINE std::string to_text(const nano_plan& plan) {
  std::string text = text_of(
      {"heddle nano_plan 1\nrows ", plan.rows, "\nlayers ", plan.layers, "\nserial ", plan.serial ? "yes" : "no"});
  text +=
      "\nseconds " + number_text(plan.seconds) + " " + number_text(plan.serial_seconds) + " " + number_text(plan.bound);
  text += "\nparts " + std::to_string(plan.parts.size());
  for (const int p : plan.parts) text += " " + std::to_string(p);
  text += "\nshares " + std::to_string(plan.shares.size());
  for (const double s : plan.shares) text += " " + number_text(s);
  text += "\norder " + std::to_string(plan.order.size());
  for (const int i : plan.order) text += " " + std::to_string(i);
  return text + "\n";
}

HEDDLE_INLINE nano_plan parse_nano_plan(std::string_view text, std::string_view source) {
  line_reader<config_error> lines(text, source);
  nano_plan plan;
  constexpr int most = (std::numeric_limits<int>::max)();
  constexpr double forever = (std::numeric_limits<double>::max)();
  constexpr std::array<std::string_view, 2> answers{"no", "yes"};
  lines.require("heddle", 3, "heddle nano_plan 1");
  if (lines.word(1) != "nano_plan" || lines.word(2) != "1") lines.fail("expected heddle nano_plan 1");
  lines.require("rows", 2, "rows <number>");
  plan.rows = lines.between(1, 1, most);
  lines.require("layers", 2, "layers <number>");
  plan.layers = lines.between(1, 1, detail::most_nano_works);
  lines.require("serial", 2, "serial yes|no");
  plan.serial = lines.position(1, answers, "answer") == 1;
  lines.require("seconds", 4, "seconds <of the plan> <one after the other> <bound>");
  plan.seconds = lines.between(1, 0.0, forever);
  plan.serial_seconds = lines.between(2, 0.0, forever);
  plan.bound = lines.between(3, 0.0, forever);
  const auto list = [&](std::string_view key, int most_entries, const auto& add) {
    if (!lines.next() || lines.word(0) != key || lines.words() < 2)
      lines.fail(text_of({"expected ", key, " <how many> and as many numbers"}));
    const int count = lines.between(1, 0, most_entries);
    lines.expect(static_cast<std::size_t>(count) + 2, text_of({key, " ", count, " and as many numbers"}));
    for (int i = 0; i < count; ++i) add(static_cast<std::size_t>(i) + 2);
  };
  std::int64_t rows = 0;
  list("parts", detail::most_nano_parts, [&](std::size_t word) {
    plan.parts.push_back(lines.between(word, 1, plan.rows));
    rows += plan.parts.back();
  });
  if (rows != plan.rows) lines.fail(text_of({"the parts have ", rows, " rows together, not ", plan.rows}));
  list("shares", detail::most_nano_works,
       [&](std::size_t word) { plan.shares.push_back(lines.between(word, 0.0, 1.0)); });
  list("order", detail::most_nano_works,
       [&](std::size_t word) { plan.order.push_back(lines.between(word, 0, detail::most_nano_works)); });
  std::vector<int> sorted = plan.order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<int>(i)) lines.fail("an order lists each nano-operation once");
  if (!plan.order.empty() && plan.order.size() != plan.parts.size() * plan.shares.size())
    lines.fail(
        text_of({"an order of ", plan.parts.size() * plan.shares.size(), " nano-operations has ", plan.order.size()}));
  if (lines.next()) lines.fail("the plan ends before this line");
  return plan;
}

HEDDLE_INLINE std::vector<batch_costs> costs_of(const dense_batch& b) {
  for (const double x :
       {b.layers, b.hidden, b.kv_width, b.inner, b.devices, b.element_bytes, b.rows, b.prompt + b.answer})
    if (!(x > 0) || !(x < std::numeric_limits<double>::infinity()))
      throw config_error("heddle: sizes of a batch and its model are positive and finite");
  const double per_layer = b.element_bytes * b.layers;
  std::vector<batch_costs> costs;
  const auto product = [&](const char* name, double outputs, double inputs) {
    costs.push_back({name, sim::lane::compute, 2 * b.rows * outputs * inputs * b.layers,
                     (outputs * inputs + b.rows * (outputs + inputs)) * per_layer, 0});
  };
  product("kqv", b.hidden + 2 * b.kv_width, b.hidden);
  product("o", b.hidden, b.hidden);
  product("up_gate", 2 * b.inner, b.hidden);
  product("down", b.hidden, b.inner);
  const double decoded = b.rows * b.answer / (b.prompt + b.answer), prompts = b.rows - decoded;
  const double keys = b.prompt + b.answer / 2;  // that a decoded token sees
  const double of_pair = 4 * b.hidden * b.layers, row = 2 * b.hidden * per_layer, key = 2 * b.kv_width * per_layer;
  costs.push_back(
      {"decode_attention", sim::lane::memory, decoded * keys * of_pair, decoded * keys * key + decoded * row, 0});
  costs.push_back({"prompt_attention", sim::lane::compute, prompts * b.prompt * of_pair,
                   prompts * row + (prompts + (prompts > 0 ? b.prompt / 2 : 0)) * key, 0});
  const double sent = 4 * (b.devices - 1) * b.rows * b.hidden * per_layer;
  costs.push_back({"network", sim::lane::network, 2 * (b.devices - 1) * b.rows * b.hidden * b.layers, sent, sent});
  return costs;
}

}  // namespace heddle::inline v0::plan
