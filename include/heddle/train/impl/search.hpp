// heddle/train/impl/search.hpp: bodies of heddle/train/search.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/plan/layer_partition.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/train/search.hpp>
#include <heddle/train/search_tables.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {
namespace detail {

class strategy_search {
 public:
  strategy_search(const search_space& space, const cost_source& costs) : space_(space), costs_(costs) {
    if (space.ranks < 1 || space.layers < 1 || space.batch < 1 || space.batch > (std::numeric_limits<int>::max)() ||
        space.schedules.empty() || space.zero.empty() || space.device_bytes < 1 || space.most_samples < 1 ||
        space.simulated < 1 || space.nearest < 0)
      throw config_error(
          text_of({"heddle: a search needs ranks, layers, samples, bytes, schedules and ZeRO stages; got ", space.ranks,
                   " ranks, ", space.layers, " layers, a batch of ", space.batch, ", ", std::ssize(space.schedules),
                   " schedules and ", std::ssize(space.zero), " ZeRO stages"}));
  }

  search_result run() {
    std::vector<plan::space_axis> axes = space_.axes;
    for (plan::space_axis& a : axes) a.most = 0;  // what is beyond is refused with a reason
    for (const std::vector<int>& extents : plan::mesh_extents(space_.ranks, axes)) {
      search_point point;
      point.dtype = space_.dtype;
      for (std::size_t i = 0; i < extents.size(); ++i) point.axes.emplace_back(space_.axes[i].name, extents[i]);
      const int dp = point.extent("dp"), pp = point.extent("pp");
      const std::int64_t of_rank = space_.batch / dp;
      const auto stages = static_cast<std::size_t>(dp == 1 ? 1 : std::ssize(space_.zero));
      const auto schedules = static_cast<std::size_t>(pp == 1 ? 1 : std::ssize(space_.schedules));
      std::optional<search_reason> refused;
      for (std::size_t i = 0; i < extents.size() && !refused; ++i)
        if (const plan::space_axis& a = space_.axes[i]; a.most > 0 && extents[i] > a.most)
          refused = {reason_kind::network,
                     a.name + "=" + std::to_string(extents[i]) + " is more than " + std::to_string(a.most) +
                         " ranks, as many as are joined fast enough",
                     static_cast<double>(extents[i] - a.most)};
      if (!refused && (of_rank < 1 || space_.batch % dp != 0))
        refused = {reason_kind::divides,
                   "a batch of " + std::to_string(space_.batch) + " is not divided by dp=" + std::to_string(dp)};
      if (!refused && pp > space_.layers)
        refused = {reason_kind::divides,
                   std::to_string(space_.layers) + " layers do not fill " + std::to_string(pp) + " stages"};
      if (refused) {
        refuse(*refused, static_cast<std::int64_t>(stages * schedules));
        continue;
      }
      for (std::int64_t samples = 1; samples <= (std::min)(of_rank, space_.most_samples); ++samples) {
        if (of_rank % samples != 0) continue;
        for (std::size_t z = 0; z < stages; ++z) {
          point.zero = space_.zero[z];
          point.samples = static_cast<int>(samples);
          const search_costs costs = checked(costs_(point));
          for (std::size_t w = 0; w < schedules; ++w) {
            if (costs.refused)
              refuse(*costs.refused, 1);
            else
              score(point, costs, space_.schedules[w], static_cast<int>(of_rank / samples));
          }
        }
      }
    }
    simulate_best();
    return std::move(result_);
  }

 private:
  struct scored {
    searched_strategy found;
    search_costs costs;
    int fewest = 0;  // blocks that must be recomputed
  };

  void refuse(const search_reason& reason, std::int64_t times) {
    const auto kind = static_cast<std::size_t>(reason.kind);
    result_.candidates += times;
    result_.refused[kind] += times;
    if (result_.examples[kind].empty()) result_.examples[kind] = reason.text;
  }

  search_costs checked(search_costs costs) const {
    if (!costs.refused && costs.layers.size() != 1 && std::ssize(costs.layers) != space_.layers)
      throw config_error("heddle: a cost source gave " + std::to_string(costs.layers.size()) +
                         " layers; expected 1 for all or " + std::to_string(space_.layers));
    const auto good = [](const search_layer& l) {
      for (const double s : {l.forward, l.backward_input, l.backward_weight, l.reduction, l.gather})
        if (!(s >= 0) || !(s < std::numeric_limits<double>::infinity())) return false;
      if (!(l.again < std::numeric_limits<double>::infinity())) return false;
      return (std::min)({l.state_bytes, l.lent_bytes, l.input_bytes, l.waiting_bytes, l.waiting_again_bytes,
                        l.saved_bytes - l.input_bytes}) >=
             0;
    };
    if (!std::all_of(costs.layers.begin(), costs.layers.end(), good) || !good(costs.first) || !good(costs.last) ||
        costs.rank_bytes < 0 || costs.stage_bytes < 0 || costs.again_bytes < 0 || !(costs.message_seconds >= 0) ||
        !(costs.spread >= 0))
      throw config_error(
          "heddle: a cost source gave seconds or bytes that are negative or not finite, or a recomputed layer that "
          "keeps more than another");
    return costs;
  }

  const searched_table& table_of(const std::string& name, int ranks, int microbatches) {
    const auto made = [&](int m) -> const searched_table& {
      auto& known = tables_[{name, ranks, m}];
      if (!known) known = std::make_unique<searched_table>(facts_of(name, ranks, m));
      return *known;
    };
    // What stages keep does not grow beyond a full pipeline, unless the schedule lets it.
    const int full = 4 * ranks;
    if (microbatches <= 2 * full || microbatches % ranks != 0) return made(microbatches);
    const searched_table &one = made(full), &two = made(2 * full);
    return one.misfit.empty() && one.slots == two.slots && one.waiting == two.waiting ? one : made(microbatches);
  }

  // Sums over layers [0, i) with the first n recomputed, from which those of any stage follow.
  struct sums {
    double forward = 0, input = 0, weight = 0, reduction = 0, gather = 0;
    double states = 0, lent = 0, saved = 0, waiting = 0;
    int recomputed = 0;  // layers
    void add(const search_layer& l, bool again) {
      forward += l.forward;
      input += l.backward_input + (!again ? 0 : l.again < 0 ? l.forward : l.again);
      weight += l.backward_weight;
      reduction += l.reduction;
      gather += l.gather;
      states += static_cast<double>(l.state_bytes);
      lent += static_cast<double>(l.lent_bytes);
      saved += static_cast<double>(again ? l.input_bytes : l.saved_bytes);
      waiting += static_cast<double>(l.waiting_bytes + (again ? l.waiting_again_bytes : 0));
      recomputed += again;
    }
    sums operator-(const sums& o) const {
      return {forward - o.forward, input - o.input,          weight - o.weight, reduction - o.reduction,
              gather - o.gather,   states - o.states,        lent - o.lent,     saved - o.saved,
              waiting - o.waiting, recomputed - o.recomputed};
    }
    // With weights gathered beside the computation.
    double forward_seconds() const { return (std::max)(forward, gather); }
    double input_seconds() const { return (std::max)(input, gather); }
    double seconds() const { return forward_seconds() + input_seconds() + weight; }
  };

  // Everything that follows from costs, table and n.
  struct view {
    const searched_table& table;
    const search_costs& costs;
    std::vector<sums> until{};

    view(const searched_table& t, const search_costs& c, int layers, int n) : table(t), costs(c), until(1) {
      for (int l = 0; l < layers; ++l) {
        sums next = until.back();
        next.add(c.layers[c.layers.size() == 1 ? 0 : static_cast<std::size_t>(l)], l < n);
        until.push_back(next);
      }
    }
    sums of_part(int part, int begin, int end) const {
      sums all = until[static_cast<std::size_t>(end)] - until[static_cast<std::size_t>(begin)];
      if (part == 0) all.add(costs.first, false);
      if (part == table.parts - 1) all.add(costs.last, false);
      return all;
    }
    // Of a stage's part, without what comes and goes.
    double bytes_of(int stage, const sums& part) const {
      const auto s = static_cast<std::size_t>(stage);
      return resident(part) + table.slots[s] * part.saved + table.waiting[s] * part.waiting;
    }
    double resident(const sums& part) const {
      return part.states + static_cast<double>(costs.stage_bytes + (part.recomputed > 0 ? costs.again_bytes : 0));
    }
  };

  std::vector<sums> parts_of(const view& v, const std::vector<int>& counts) const {
    std::vector<sums> parts;
    int next = 0;
    for (int p = 0; p < v.table.parts; ++p) {
      parts.push_back(v.of_part(p, next, next + counts[static_cast<std::size_t>(p)]));
      next += counts[static_cast<std::size_t>(p)];
    }
    return parts;
  }

  // Bytes of each rank.
  std::vector<double> bytes_of_ranks(const view& v, const std::vector<sums>& parts) const {
    std::vector<double> all;
    for (const auto& stages : v.table.of_rank) {
      double bytes = static_cast<double>(v.costs.rank_bytes), lent = 0;
      for (const int s : stages) {
        const sums& part = parts[static_cast<std::size_t>(v.table.part_of[static_cast<std::size_t>(s)])];
        bytes += v.bytes_of(s, part);
        lent = (std::max)(lent, part.lent);
      }
      all.push_back(bytes + lent * (stages.size() > 1 ? 2 : 1));  // of a rank's stages two are whole at a time
    }
    return all;
  }

  // Layers of each part so that the slowest is as fast as can be and all hold what they have; empty if none does.
  // The farthest a stage reaches from `begin` is never less from a later one: so the greedy ends are exact for a bound,
  // unless they lead a stage to a layer that it does not hold.
  std::vector<int> cut(const view& v, double bound) const {
    std::vector<int> counts;
    int begin = 0;
    for (int p = 0; p < v.table.parts; ++p) {
      const int rest = v.table.parts - 1 - p;  // parts behind, of a layer at least
      const auto fits = [&](int end) { return stage_fits(v, p, begin, end, bound); };
      int least = begin + 1, most = space_.layers - rest;
      if (!fits(least)) return cut_from_all(v, bound);
      while (least < most) {
        const int middle = (least + most + 1) / 2;
        (fits(middle) ? least : most) = fits(middle) ? middle : middle - 1;
      }
      counts.push_back(least - begin);
      begin = least;
    }
    return begin == space_.layers ? counts : std::vector<int>{};
  }
  bool stage_fits(const view& v, int p, int begin, int end, double bound) const {
    const sums part = v.of_part(p, begin, end);
    return part.seconds() <= bound &&
           v.bytes_of(p, part) + part.lent <= static_cast<double>(space_.device_bytes - v.costs.rank_bytes);
  }
  // The same from every layer at which a stage can begin.
  std::vector<int> cut_from_all(const view& v, double bound) const {
    const int parts = v.table.parts, layers = space_.layers;
    std::vector<std::vector<int>> from(static_cast<std::size_t>(parts) + 1,
                                       std::vector<int>(static_cast<std::size_t>(layers) + 1, -1));
    from[0][0] = 0;
    for (int p = 0; p < parts; ++p)
      for (int begin = p, reached = 0; begin < layers; ++begin) {
        if (from[static_cast<std::size_t>(p)][static_cast<std::size_t>(begin)] < 0) continue;
        for (int end = (std::max)(begin, reached) + 1; end <= layers && stage_fits(v, p, begin, end, bound); ++end) {
          from[static_cast<std::size_t>(p) + 1][static_cast<std::size_t>(end)] = begin;
          reached = end;
        }
      }
    if (from.back().back() < 0) return {};
    std::vector<int> counts(static_cast<std::size_t>(parts));
    for (int p = parts, end = layers; p-- > 0;) {
      const int begin = from[static_cast<std::size_t>(p) + 1][static_cast<std::size_t>(end)];
      counts[static_cast<std::size_t>(p)] = end - begin;
      end = begin;
    }
    return counts;
  }
  double slowest(const view& v, const std::vector<int>& counts) const {
    double most = 0;
    for (const sums& part : parts_of(v, counts)) most = (std::max)(most, part.seconds());
    return most;
  }
  std::vector<int> even(int parts) const {
    std::vector<int> counts(static_cast<std::size_t>(parts), space_.layers / parts);
    for (int p = 0; p < space_.layers % parts; ++p) ++counts[static_cast<std::size_t>(p)];  // the larger ones first
    return counts;
  }
  std::vector<int> counts_of(const view& v) const {
    constexpr double none = std::numeric_limits<double>::infinity();
    if (!v.table.one_each()) {
      std::vector<int> counts = even(v.table.parts);
      for (const double bytes : bytes_of_ranks(v, parts_of(v, counts)))
        if (bytes > static_cast<double>(space_.device_bytes)) return {};
      return counts;
    }
    std::vector<int> best = cut(v, none);
    if (best.empty()) return best;
    double low = v.until.back().seconds() / v.table.parts * 0.5, high = slowest(v, best);
    for (int i = 0; i < 60 && high - low > 1e-12 * high; ++i) {
      const double middle = low + (high - low) / 2;
      if (std::vector<int> now = cut(v, middle); now.empty())
        low = middle;
      else
        high = (std::min)(middle, slowest(v, now)), best = std::move(now);
    }
    return best;
  }

  // No order is faster: a rank waits for its first forward, computes, the last backward goes back; split weights lie beside that.
  double bound_of(const view& v, const std::vector<sums>& parts, int microbatches) const {
    std::vector<double> forth(parts.size() + 1, 0.0), back = forth;
    for (std::size_t p = 0; p < parts.size(); ++p)
      forth[p + 1] = forth[p] + parts[p].forward_seconds(), back[p + 1] = back[p] + parts[p].input_seconds();
    double most = 0, reduction = 0;
    const int each = microbatches * v.table.parts / v.table.stages;  // of each chain
    for (const auto& stages : v.table.of_rank) {
      double work = 0, weights = 0, own = 0, first = std::numeric_limits<double>::infinity(), last = first;
      bool split = false;
      for (const int s : stages) {
        const auto p = static_cast<std::size_t>(v.table.part_of[static_cast<std::size_t>(s)]);
        const double inputs = parts[p].forward_seconds() + parts[p].input_seconds();
        work += each * inputs;
        weights += each * (parts[p].seconds() - inputs);
        own += parts[p].reduction;
        first = (std::min)(first, forth[p]);
        last = (std::min)(last, back[p]);
        split = split || v.table.waiting[static_cast<std::size_t>(s)] > 0;
      }
      most = (std::max)(most, first + work + (split ? (std::max)(weights, last) : weights + last));
      reduction = (std::max)(reduction, own);
    }
    return most + reduction;
  }

  void score(const search_point& point, const search_costs& costs, const std::string& schedule, int microbatches) {
    const int pp = point.extent("pp");
    if (const auto large = too_large(pp, pp, microbatches); !large.empty())
      return refuse({reason_kind::schedule, large}, 1);
    const searched_table& table = table_of(schedule, pp, microbatches);
    if (!table.misfit.empty()) return refuse({reason_kind::schedule, table.misfit}, 1);
    if (table.parts > space_.layers)
      return refuse({reason_kind::divides, std::to_string(space_.layers) + " layers do not fill the " +
                                               std::to_string(table.parts) + " stages of " + schedule},
                    1);
    if (const auto large = too_large(table.stages, pp, microbatches); !large.empty())
      return refuse({reason_kind::schedule, large}, 1);
    searched_strategy found;
    std::string mesh;
    for (const auto& [name, n] : point.axes) mesh += (mesh.empty() ? "" : ",") + name + "=" + std::to_string(n);
    found.choice = {
        .mesh = mesh, .schedule = schedule, .microbatches = microbatches, .zero = point.zero, .dtype = point.dtype};
    found.samples = point.samples;
    found.spread = costs.spread;
    found.extrapolated = costs.extrapolated;

    const int all = space_.recompute ? space_.layers : 0;
    const auto fits = [&](int n) {
      const view v(table, costs, space_.layers, n);
      return v.table.one_each() ? !cut(v, std::numeric_limits<double>::infinity()).empty() : !counts_of(v).empty();
    };
    if (!fits(0) && (all == 0 || !fits(all))) return miss(found, costs, table, all);
    int fewest = 0;
    if (!fits(0)) {
      int below = 0;
      for (fewest = all; fewest - below > 1;) {
        const int middle = below + (fewest - below) / 2;
        (fits(middle) ? fewest : below) = middle;
      }
    }
    // More recomputation takes more time, but may let the stages be more even.
    consider(found, costs, table, fewest, (std::max)(1, (all - fewest) / 8));
    if (space_.trainer)
      if (const auto reason = space_.trainer(found.choice)) return refuse(*reason, 1);
    ++result_.candidates;
    ++result_.scored;
    if (std::ssize(best_) == space_.simulated && found.bound >= best_.back().found.bound) return;
    const auto place = std::upper_bound(best_.begin(), best_.end(), found.bound,
                                        [](double b, const scored& s) { return b < s.found.bound; });
    best_.insert(place, {std::move(found), costs, fewest});
    if (std::ssize(best_) > space_.simulated) best_.pop_back();
  }

  // The best number of recomputed blocks from `fewest` on, in steps, until the stages are as even as without memory.
  void consider(searched_strategy& found, const search_costs& costs, const searched_table& table, int fewest,
                int step) const {
    double least = std::numeric_limits<double>::infinity();
    for (int n = fewest; n <= space_.layers; n += step) {
      const view v(table, costs, space_.layers, n);
      const std::vector<int> counts = counts_of(v);
      if (counts.empty()) break;
      const auto parts = parts_of(v, counts);
      const double slow = slowest(v, counts);
      if (slow < least * (1 - 1e-12)) {
        least = slow;
        found.bound = bound_of(v, parts, found.choice.microbatches);
        found.choice.recompute = n == 0 ? "none" : n == space_.layers ? "full" : "first " + std::to_string(n);
        found.choice.layers = counts == even(table.parts) ? std::vector<int>{} : counts;
        const auto bytes = bytes_of_ranks(v, parts);
        found.bytes = static_cast<std::int64_t>(*std::max_element(bytes.begin(), bytes.end()));
      }
      if (!table.one_each() || !space_.recompute) break;
      search_costs free = costs;
      for (search_layer& l : free.layers)
        l.state_bytes = l.lent_bytes = l.saved_bytes = l.input_bytes = l.waiting_bytes = l.waiting_again_bytes = 0;
      for (search_layer* l : {&free.first, &free.last})
        l->state_bytes = l->lent_bytes = l->saved_bytes = l->waiting_bytes = 0;
      const view unbounded(table, free, space_.layers, n);
      if (slow <= slowest(unbounded, counts_of(unbounded)) * (1 + 1e-9)) break;
    }
  }

  // As fast, with the other stages as even as can be.
  void balance(searched_strategy& found, const search_costs& costs, const searched_table& table) const {
    const view v(table, costs, space_.layers, first_of(found.choice));
    const plan::layer_partition cut = plan::partition_layers(
        space_.layers, table.parts,
        [&](int p, int begin, int end) {
          constexpr double none = std::numeric_limits<double>::infinity();
          return stage_fits(v, p, begin, end, none) ? v.of_part(p, begin, end).seconds() : none;
        },
        1);
    const auto parts = parts_of(v, cut.counts);
    const auto bytes = bytes_of_ranks(v, parts);
    found.choice.layers = cut.counts == even(table.parts) ? std::vector<int>{} : cut.counts;
    found.bytes = static_cast<std::int64_t>(*std::max_element(bytes.begin(), bytes.end()));
    found.bound = bound_of(v, parts, found.choice.microbatches);
  }

  // Says what is missing where even all that can be recomputed is.
  void miss(searched_strategy& found, const search_costs& costs, const searched_table& table, int n) {
    const view v(table, costs, space_.layers, n);
    const auto bytes = bytes_of_ranks(v, parts_of(v, even(table.parts)));
    const auto fullest = std::max_element(bytes.begin(), bytes.end());
    const double missing = *fullest - static_cast<double>(space_.device_bytes);
    found.choice.recompute = n == 0 ? "none" : "full";
    refuse(found,
           {reason_kind::memory,
            "rank " + std::to_string(fullest - bytes.begin()) + " along pp needs " + of_device(*fullest), missing});
  }
  std::string of_device(double bytes) const {
    return digits_text(bytes * 1e-9, 2) + " GB of " + digits_text(static_cast<double>(space_.device_bytes) * 1e-9, 2);
  }
  void refuse(const searched_strategy& found, const search_reason& reason) {
    refuse(reason, 1);
    if (reason.kind != reason_kind::memory) return;
    auto& near = result_.nearest;
    const auto place = std::upper_bound(near.begin(), near.end(), reason.amount,
                                        [](double m, const refused_strategy& r) { return m < r.reason.amount; });
    if (place == near.end() && std::ssize(near) >= space_.nearest) return;
    near.insert(place, {found.choice, found.samples, reason});
    if (std::ssize(near) > space_.nearest) near.pop_back();
  }

  void simulate_best() {
    for (scored& s : best_) {
      searched_strategy& found = s.found;
      const int pp = search_extent(found.choice, "pp"), m = found.choice.microbatches;
      const searched_table& facts = table_of(found.choice.schedule, pp, m);
      if (s.fewest > 0) consider(found, s.costs, facts, s.fewest, 1);  // every number, not some
      if (facts.one_each()) balance(found, s.costs, facts);
      if (space_.exact) {
        --result_.candidates, --result_.scored;
        settle(found);
        continue;
      }
      const std::vector<int> counts = found.choice.layers.empty() ? even(facts.parts) : found.choice.layers;
      const view v(facts, s.costs, space_.layers, first_of(found.choice));
      const auto parts = parts_of(v, counts);
      const schedule::action_table table = table_of_choice(found.choice.schedule, pp, m);
      using kind = schedule::action_kind;
      const auto seconds = [&](const schedule::action& a) {
        const sums& part = parts[static_cast<std::size_t>(facts.part_of[static_cast<std::size_t>(a.stage)])];
        switch (a.kind) {
          case kind::forward:
            return part.forward_seconds();
          case kind::backward:
            return part.input_seconds() + part.weight;
          case kind::backward_input:
            return part.input_seconds();
          case kind::backward_weight:
            return part.weight;
          default:
            return 0.0;
        }
      };
      const sim::timeline line = sim::simulate(table.view(), seconds, sim::link_time{s.costs.message_seconds});
      double reduction = 0;
      for (const auto& stages : facts.of_rank) {
        double own = 0;
        for (const int stage : stages)
          own += parts[static_cast<std::size_t>(facts.part_of[static_cast<std::size_t>(stage)])].reduction;
        reduction = (std::max)(reduction, own);
      }
      found.seconds = line.makespan + reduction;
      found.bubble = line.bubble_ratio();
      result_.best.push_back(found);
    }
    if (space_.exact) settle_misses();
    std::sort(result_.best.begin(), result_.best.end(), [](const searched_strategy& a, const searched_strategy& b) {
      return std::tie(a.seconds, a.bytes, a.choice.mesh, a.choice.schedule, a.choice.zero) <
             std::tie(b.seconds, b.bytes, b.choice.mesh, b.choice.schedule, b.choice.zero);
    });
    for (refused_strategy& r : result_.nearest) say_where(r);
  }

  // Ranks or refuses what the exact score says.
  void settle(searched_strategy found) {
    search_score exact = space_.exact(found.choice);
    const auto misses = [&] { return !exact.refused && exact.bytes > space_.device_bytes; };
    if (int below = first_of(found.choice), n = space_.layers; misses() && space_.recompute && below < n) {
      // The costs were too low: as few more blocks as fit are recomputed.
      const auto score = [&](int blocks) {
        found.choice.recompute = blocks == space_.layers ? "full" : "first " + std::to_string(blocks);
        exact = space_.exact(found.choice);
      };
      score(n);
      for (const bool fits = !misses(); fits && n - below > 1;) {
        const int middle = below + (n - below) / 2;
        score(middle);
        (misses() ? below : n) = middle;
      }
      if (misses()) score(n);
    }
    if (exact.refused) return refuse(found, *exact.refused);
    found.bytes = exact.bytes;
    if (exact.bytes > space_.device_bytes)
      return refuse(found,
                    {reason_kind::memory,
                     "the fullest rank needs " + of_device(static_cast<double>(exact.bytes)) + ", " +
                         digits_text(static_cast<double>(exact.bytes - space_.device_bytes) * 1e-9, 2) + " GB too many",
                     static_cast<double>(exact.bytes - space_.device_bytes)});
    ++result_.candidates, ++result_.scored;
    found.seconds = exact.seconds;
    found.bubble = exact.bubble;
    found.tokens_per_second = exact.tokens_per_second;
    found.mfu = exact.mfu;
    result_.best.push_back(std::move(found));
  }
  // Those that the costs refuse; what the exact score refused is among them, and is scored again.
  void settle_misses() {
    for (const refused_strategy& r : std::exchange(result_.nearest, {})) {
      --result_.candidates;
      --result_.refused[static_cast<std::size_t>(reason_kind::memory)];
      searched_strategy found;
      found.choice = r.choice;
      found.samples = r.samples;
      settle(std::move(found));
    }
  }

  // Adds at which action of its list the rank of a near miss needs the most.
  void say_where(refused_strategy& r) {
    const int pp = search_extent(r.choice, "pp");
    search_point point;
    for (const auto& axis : mesh_axes_of(r.choice)) point.axes.push_back(axis);
    point.zero = r.choice.zero;
    point.samples = r.samples;
    point.dtype = r.choice.dtype;
    const search_costs costs = checked(costs_(point));
    const schedule::action_table table = table_of_choice(r.choice.schedule, pp, r.choice.microbatches);
    const searched_table& facts = table_of(r.choice.schedule, pp, r.choice.microbatches);
    const view v(facts, costs, space_.layers, first_of(r.choice));
    struct memory {
      const view& v;
      std::vector<sums> parts;
      const sums& of(int s) const {
        return parts[static_cast<std::size_t>(v.table.part_of[static_cast<std::size_t>(s)])];
      }
      std::int64_t activation_bytes(int s) const { return static_cast<std::int64_t>(of(s).saved); }
      std::int64_t weight_input_bytes(int s) const {
        return static_cast<std::int64_t>((std::max)(of(s).saved, of(s).waiting));
      }
      std::int64_t resident_bytes(int s) const {
        return static_cast<std::int64_t>(v.resident(of(s)) + of(s).lent) + v.costs.rank_bytes;
      }
    };
    const schedule::memory_need need = schedule::peak_memory(table.view(), memory{v, parts_of(v, even(facts.parts))});
    if (need.position >= 0)
      r.reason.text += ", at position " + std::to_string(need.position) + " (" + schedule::to_text(need.where) + ")";
  }

  static int search_extent(const strategy_choice& choice, std::string_view name) {
    for (const auto& [axis, n] : mesh_axes_of(choice))
      if (axis == name) return n;
    return 1;
  }
  int first_of(const strategy_choice& choice) const {
    if (choice.recompute == "none") return 0;
    if (choice.recompute == "full") return space_.layers;
    return std::stoi(choice.recompute.substr(6));
  }

  const search_space& space_;
  const cost_source& costs_;
  search_result result_{};
  std::vector<scored> best_{};  // by bound
  std::map<std::tuple<std::string, int, int>, std::unique_ptr<searched_table>> tables_{};
};

}  // namespace detail

HEDDLE_INLINE search_result search(const search_space& space, const cost_source& costs) {
  return detail::strategy_search(space, costs).run();
}

HEDDLE_INLINE std::string to_string(const search_result& result) {
  std::string text;
  const auto line = [&](std::initializer_list<std::pair<std::string, int>> words) {
    std::size_t end = 0;
    std::string row;
    for (const auto& [word, width] : words) {
      row += word;
      end += static_cast<std::size_t>(width);
      row.resize((std::max)(end, row.size() + 1), ' ');
    }
    while (!row.empty() && row.back() == ' ') row.pop_back();
    text += row + '\n';
  };
  const bool told = !result.best.empty() && result.best.front().tokens_per_second > 0;
  if (result.best.empty())
    text += "no strategy fits\n";
  else
    line({{"", 4}, {"mesh", 24}, {"schedule", 15}, {"microbatches", 14}, {"zero", 6}, {"recompute", 11}, {"GB", 8},
          {"seconds", 16}, {"bubble", told ? 9 : 0}, {told ? "tokens/s" : "", told ? 12 : 0}, {told ? "MFU" : "", 0}});
  int rank = 0;
  for (const searched_strategy& s : result.best) {
    std::string seconds = digits_text(s.seconds, 4);
    if (s.spread > 0) seconds += " +- " + digits_text(s.spread * s.seconds, 4);
    if (s.extrapolated) seconds += " extrapolated";
    line({{std::to_string(++rank), 4},
          {s.choice.mesh, 24},
          {s.choice.schedule, 15},
          {std::to_string(s.choice.microbatches) + " x " + std::to_string(s.samples), 14},
          {std::to_string(s.choice.zero), 6},
          {s.choice.recompute, 11},
          {digits_text(static_cast<double>(s.bytes) * 1e-9, 1), 8},
          {seconds, 16},
          {rounded_text(100 * s.bubble, 1) + " %", told ? 9 : 0},
          {told ? rounded_text(s.tokens_per_second, 0) : "", told ? 12 : 0},
          {told ? rounded_text(100 * s.mfu, 1) + " %" : "", 0}});
  }
  text += std::to_string(result.candidates) + " candidates, " + std::to_string(result.scored) + " scored\n";
  for (std::size_t k = 0; k < reason_names.size(); ++k)
    if (result.refused[k] > 0)
      text += "refused: " + std::string(reason_names[k]) + ' ' + std::to_string(result.refused[k]) +
              ", such as: " + result.examples[k] + '\n';
  for (const refused_strategy& r : result.nearest)
    text += "nearest: " + r.choice.mesh + ", " + r.choice.schedule + ", " + std::to_string(r.choice.microbatches) +
            " x " + std::to_string(r.samples) + ", zero " + std::to_string(r.choice.zero) + ", recompute " +
            r.choice.recompute + ": " + r.reason.text + "\n";
  return text;
}

}  // namespace heddle::inline v0::train
