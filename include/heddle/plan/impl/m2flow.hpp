// heddle/plan/impl/m2flow.hpp: bodies of heddle/plan/m2flow.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/plan/m2flow.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>

namespace heddle::inline v0::plan {
namespace detail {

// A plan is phases, one after the other, each a pipeline: its `warm` seconds for the first chunk, and `per` for each further one. A pipeline of
// two plans joins the last phase of one to the first of the other; so only these two need to be known, and the seconds of all between them.
struct flow_phases {
  bool single = true;  // then `first` is all
  double first_warm = 0, first_per = 0;
  double between = 0;  // with weights
  double last_warm = 0, last_per = 0;

  double seconds(int chunks) const {
    return between + first_warm + first_per * (chunks - 1) + (single ? 0 : last_warm + last_per * (chunks - 1));
  }
  bool no_worse(const flow_phases& o) const {
    return first_warm <= o.first_warm && first_per <= o.first_per && between <= o.between && last_warm <= o.last_warm &&
           last_per <= o.last_per;
  }
};

inline flow_phases phases_of_task(double seconds, double switching, int chunks) {
  const double per = seconds / chunks;
  return {true, per + switching, per, 0, 0, 0};
}

inline flow_phases one_after_the_other(const flow_phases& a, const flow_phases& b, double weights, int chunks) {
  flow_phases all{false, a.first_warm, a.first_per, a.between + b.between + weights, b.last_warm, b.last_per};
  if (!a.single) all.between += a.last_warm + a.last_per * (chunks - 1);
  if (b.single) {
    all.last_warm = b.first_warm;
    all.last_per = b.first_per;
  } else {
    all.between += b.first_warm + b.first_per * (chunks - 1);
  }
  return all;
}

inline flow_phases as_pipeline(const flow_phases& a, const flow_phases& b, bool reads, double weights, int chunks) {
  const double a_warm = a.single ? a.first_warm : a.last_warm, a_per = a.single ? a.first_per : a.last_per;
  const double warm = reads ? a_warm + b.first_warm : (std::max)(a_warm, b.first_warm),
               per = (std::max)(a_per, b.first_per);
  flow_phases all{a.single && b.single, warm, per, a.between + b.between + weights, 0, 0};
  if (all.single) return all;
  if (!a.single) {
    all.first_warm = a.first_warm;
    all.first_per = a.first_per;
  }
  if (!b.single) {
    all.last_warm = b.last_warm;
    all.last_per = b.last_per;
  }
  if (a.single) return all;  // the joined phase is the first
  if (b.single) {
    all.last_warm = warm;
    all.last_per = per;
  } else {
    all.between += warm + per * (chunks - 1);
  }
  return all;
}

// Sets of tasks are bits.
class flow_search {
 public:
  flow_search(const workflow& flow, const flow_options& options, int devices)
      : flow_(flow), options_(options), devices_(devices), tasks_(static_cast<int>(flow.tasks.size())) {
    if (tasks_ < 1 || tasks_ > 16 || devices < 1 || options.chunks < 1)
      throw config_error("heddle: m2flow plans 1 to 16 tasks in at least 1 chunk on at least 1 device, got " +
                         std::to_string(tasks_) + ", " + std::to_string(options.chunks) + " and " +
                         std::to_string(devices));
    before_.assign(flow.tasks.size(), 0u);
    for (const auto& [from, to] : flow.edges) {
      require_task(from);
      require_task(to);
      before_[static_cast<std::size_t>(to)] |= bit(from);
    }
    for (const flow_weights& w : flow.weights) {
      require_task(w.from);
      require_task(w.to);
    }
    unsigned done = 0;
    for (bool more = true; more;) {
      more = false;
      for (int t = 0; t < tasks_; ++t)
        if ((done & bit(t)) == 0 && (before_[static_cast<std::size_t>(t)] & ~done) == 0) done |= bit(t), more = true;
    }
    if (done != all())
      throw config_error(
          "heddle: m2flow: the tasks of a workflow read of each other in a circle; make one task of them");
  }

  unsigned all() const { return (1u << tasks_) - 1; }

  flow_plan best() {
    // What is certainly possible; nothing that is slower is looked at further.
    bound_ = (std::min)(all_temporal(), by_turns());
    for (int t = 0; t < tasks_; ++t) {
      double least = std::numeric_limits<double>::infinity();
      for (int n = 1; n <= devices_; ++n) least = (std::min)(least, n * flow_.seconds(t, n));
      least_work_.push_back(least);
    }
    const entry* found = nullptr;
    const front of = options_.hybrids ? plans(all(), devices_, false) : pure();
    for (const entry& e : of)
      if (found == nullptr || e.phases.seconds(options_.chunks) < found->phases.seconds(options_.chunks)) found = &e;
    if (found == nullptr)
      throw config_error("heddle: m2flow: no plan has devices for all tasks of the workflow on " +
                         std::to_string(devices_));
    flow_plan plan;
    plan.seconds = found->phases.seconds(options_.chunks);
    write(*found, all(), devices_, 0, plan.steps);
    return plan;
  }

  double seconds(int task, int devices, bool shared) const {
    return flow_.seconds(task, devices) + (shared ? switching(task, devices) : 0);
  }
  double switching(int task, int devices) const { return flow_.switching ? flow_.switching(task, devices) : 0; }
  flow_phases task_alone(int task, int devices, bool shared) const {
    return phases_of_task(flow_.seconds(task, devices), shared ? switching(task, devices) : 0, options_.chunks);
  }
  double weights_between(unsigned a, unsigned b, bool together) const {
    double sum = 0;
    for (const flow_weights& w : flow_.weights)
      if (((a & bit(w.from)) && (b & bit(w.to))) || ((b & bit(w.from)) && (a & bit(w.to))))
        sum += together ? w.together : w.apart;
    return sum;
  }
  bool reads(unsigned later, unsigned earlier) const {
    for (int t = 0; t < tasks_; ++t)
      if ((later & bit(t)) && (before_[static_cast<std::size_t>(t)] & earlier)) return true;
    return false;
  }
  static unsigned bit(int task) { return 1u << task; }

 private:
  struct entry {
    flow_phases phases{};
    flow_step::kind what = flow_step::kind::task;
    unsigned left = 0;  // tasks
    int left_devices = 0;
    std::size_t left_plan = 0, right_plan = 0;
    bool shared = false;
  };
  using front = std::vector<entry>;
  struct known {  // of a set of tasks, by the number of devices
    std::vector<front> fronts{};
    std::vector<bool> done{};
  };
  // The fewest devices whose time until the bound is enough for what the tasks do: as no device works longer than a plan.
  int fewest(unsigned set) const {
    double work = 0;
    for (int t = 0; t < tasks_; ++t)
      if (set & bit(t)) work += least_work_[static_cast<std::size_t>(t)];
    if (set == 0 || !(bound_ > 0) || !std::isfinite(bound_)) return set == 0 ? 0 : 1;
    const double n = std::ceil(work / bound_ * (1 - 1e-9));
    return n >= devices_ + 1.0 ? devices_ + 1 : (std::max)(1, static_cast<int>(n));
  }
  known& row_of(unsigned set, bool shared) {
    known& row = known_[set * 2 + (shared ? 1 : 0)];
    if (row.done.empty()) {
      row.fronts.resize(static_cast<std::size_t>(devices_) + 1);
      row.done.resize(static_cast<std::size_t>(devices_) + 1);
    }
    return row;
  }

  void require_task(int t) const {
    if (t < 0 || t >= tasks_)
      throw config_error("heddle: m2flow: task " + std::to_string(t) + " is none of the workflow's " +
                         std::to_string(tasks_));
  }
  // Whether no task of the set reads of others in `of` that are not in the set.
  bool is_before(unsigned set, unsigned of) const {
    for (int t = 0; t < tasks_; ++t)
      if ((set & bit(t)) && (before_[static_cast<std::size_t>(t)] & of & ~set)) return false;
    return true;
  }
  double all_temporal() const {
    double sum = 0;
    for (int t = 0; t < tasks_; ++t) sum += seconds(t, devices_, tasks_ > 1);
    for (const flow_weights& w : flow_.weights)
      if (w.from != w.to) sum += w.together;
    return sum;
  }
  // All spatial: each further device goes to the task that is slowest.
  double by_turns() const {
    if (devices_ < tasks_) return std::numeric_limits<double>::infinity();
    std::vector<int> n(static_cast<std::size_t>(tasks_), 1);
    double best = std::numeric_limits<double>::infinity();
    for (int left = devices_ - tasks_;; --left) {
      double warm = 0, per = 0;
      std::size_t slowest = 0;
      for (std::size_t t = 0; t < n.size(); ++t) {
        const double s = flow_.seconds(static_cast<int>(t), n[t]);
        warm += s / options_.chunks;
        if (s > per) per = s, slowest = t;
      }
      if (left == 0) {
        best = warm + per / options_.chunks * (options_.chunks - 1);
        break;
      }
      ++n[slowest];
    }
    for (const flow_weights& w : flow_.weights)
      if (w.from != w.to) best += w.apart;
    return best;
  }

  void keep(front& of, const entry& e) const {
    const double seconds = e.phases.seconds(options_.chunks);
    if (!(seconds <= bound_ * (1 + 1e-12)) || !std::isfinite(seconds)) return;
    for (const entry& o : of)
      if (o.phases.single == e.phases.single && o.phases.no_worse(e.phases)) return;
    std::erase_if(of,
                  [&](const entry& o) { return o.phases.single == e.phases.single && e.phases.no_worse(o.phases); });
    of.push_back(e);
  }

  const front& plans(unsigned set, int devices, bool shared) {
    known& row = row_of(set, shared);
    const auto at = static_cast<std::size_t>(devices);
    front& of = row.fronts[at];
    if (row.done[at]) return of;
    row.done[at] = true;
    // Others have devices of their own, unless some are shared.
    if (devices < fewest(set) || (!shared && devices_ - devices < fewest(all() & ~set))) return of;
    if ((set & (set - 1)) == 0) {
      int task = 0;
      while (bit(task) != set) ++task;
      keep(of, {task_alone(task, devices, shared), flow_step::kind::task, set, devices, 0, 0, shared});
    }
    for (unsigned left = (set - 1) & set; left != 0; left = (left - 1) & set) {
      if (!is_before(left, set)) continue;
      const unsigned right = set & ~left;
      if (options_.hybrids) {
        const front &a = plans(left, devices, true), &b = plans(right, devices, true);
        const double weights = weights_between(left, right, true);
        for (std::size_t i = 0; i < a.size(); ++i)
          for (std::size_t k = 0; k < b.size(); ++k)
            keep(of, {one_after_the_other(a[i].phases, b[k].phases, weights, options_.chunks),
                      flow_step::kind::temporal, left, devices, i, k, shared});
      }
      const double weights = weights_between(left, right, false);
      const bool read = reads(right, left);
      known &lefts = row_of(left, shared), &rights = row_of(right, shared);
      for (int n = fewest(left), most = devices - fewest(right); n <= most; ++n) {
        const auto l = static_cast<std::size_t>(n), r = static_cast<std::size_t>(devices - n);
        const front& a = lefts.done[l] ? lefts.fronts[l] : plans(left, n, shared);
        if (a.empty()) continue;
        const front& b = rights.done[r] ? rights.fronts[r] : plans(right, devices - n, shared);
        for (std::size_t i = 0; i < a.size(); ++i)
          for (std::size_t k = 0; k < b.size(); ++k)
            keep(of, {as_pipeline(a[i].phases, b[k].phases, read, weights, options_.chunks), flow_step::kind::spatial,
                      left, n, i, k, shared});
      }
    }
    return of;
  }
  // Those plans that are one pipeline, and the one that is none.
  front pure() {
    front of = plans(all(), devices_, false);
    if (tasks_ > 1) {
      unsigned done = 0;
      entry e;
      for (int t = 0; t < tasks_; ++t) {
        int next = 0;
        while ((done & bit(next)) || (before_[static_cast<std::size_t>(next)] & ~done)) ++next;
        order_.push_back(next);
        const flow_phases own = task_alone(next, devices_, true);
        e.phases = done == 0
                       ? own
                       : one_after_the_other(e.phases, own, weights_between(done, bit(next), true), options_.chunks);
        done |= bit(next);
      }
      e.what = flow_step::kind::temporal;
      keep(of, e);
    }
    return of;
  }
  int write(const entry& e, unsigned set, int devices, int first, std::vector<flow_step>& steps) {
    if (e.what == flow_step::kind::temporal && !options_.hybrids) {
      for (const int t : order_) {
        const int before = static_cast<int>(steps.size()) - 1;
        steps.push_back({flow_step::kind::task, t, 0, devices, -1, -1});
        if (before >= 0)
          steps.push_back({flow_step::kind::temporal, -1, 0, devices, before, static_cast<int>(steps.size()) - 1});
      }
      return static_cast<int>(steps.size()) - 1;
    }
    flow_step s{e.what, -1, first, devices, -1, -1};
    if (e.what == flow_step::kind::task) {
      s.task = 0;
      while (bit(s.task) != set) ++s.task;
    } else {
      const bool temporal = e.what == flow_step::kind::temporal;
      const bool shared = e.shared || temporal;
      const int n = e.left_devices, m = temporal ? devices : devices - n;
      s.left = write(plans(e.left, n, shared)[e.left_plan], e.left, n, first, steps);
      s.right =
          write(plans(set & ~e.left, m, shared)[e.right_plan], set & ~e.left, m, temporal ? first : first + n, steps);
    }
    steps.push_back(s);
    return static_cast<int>(steps.size()) - 1;
  }

  const workflow& flow_;
  flow_options options_;
  int devices_, tasks_;
  std::vector<unsigned> before_{};
  std::vector<double> least_work_{};  // seconds of devices
  double bound_ = std::numeric_limits<double>::infinity();
  std::unordered_map<unsigned, known> known_{};
  std::vector<int> order_{};
};

}  // namespace detail

HEDDLE_INLINE const flow_step& flow_plan::of(int task) const {
  for (const flow_step& s : steps)
    if (s.what == flow_step::kind::task && s.task == task) return s;
  throw config_error("heddle: the plan has no task " + std::to_string(task));
}

HEDDLE_INLINE std::string to_string(const flow_plan& plan, const workflow& flow) {
  const auto text = [&](auto&& self, int at, bool whole) -> std::string {
    const flow_step& s = plan.steps[static_cast<std::size_t>(at)];
    if (s.what == flow_step::kind::task) {
      const int last = s.first + s.devices - 1;
      return flow.tasks[static_cast<std::size_t>(s.task)] + " [" + std::to_string(s.first) +
             (last > s.first ? "-" + std::to_string(last) : std::string()) + "]";
    }
    const auto part = [&](int of) { return self(self, of, plan.steps[static_cast<std::size_t>(of)].what == s.what); };
    const std::string words = part(s.left) + (s.what == flow_step::kind::temporal ? " ; " : " | ") + part(s.right);
    return whole ? words : "(" + words + ")";
  };
  return plan.steps.empty() ? "no tasks" : text(text, static_cast<int>(plan.steps.size()) - 1, true);
}

HEDDLE_INLINE double seconds_of(const flow_plan& plan, const workflow& flow, const flow_options& options) {
  const detail::flow_search search(flow, options, plan.steps.empty() ? 1 : plan.steps.back().devices);
  struct part {
    detail::flow_phases phases{};
    unsigned tasks = 0;
  };
  const auto value = [&](auto&& self, int at, bool shared) -> part {
    const flow_step& s = plan.steps[static_cast<std::size_t>(at)];
    if (s.what == flow_step::kind::task)
      return {search.task_alone(s.task, s.devices, shared), detail::flow_search::bit(s.task)};
    const bool temporal = s.what == flow_step::kind::temporal;
    const part a = self(self, s.left, shared || temporal), b = self(self, s.right, shared || temporal);
    const double weights = search.weights_between(a.tasks, b.tasks, temporal);
    return {temporal ? detail::one_after_the_other(a.phases, b.phases, weights, options.chunks)
                     : detail::as_pipeline(a.phases, b.phases, search.reads(b.tasks, a.tasks), weights, options.chunks),
            a.tasks | b.tasks};
  };
  const part whole = plan.steps.empty() ? part{} : value(value, static_cast<int>(plan.steps.size()) - 1, false);
  if (whole.tasks != search.all())
    throw config_error("heddle: the plan has other tasks than the workflow's " + std::to_string(flow.tasks.size()));
  return whole.phases.seconds(options.chunks);
}

HEDDLE_INLINE flow_plan m2flow(const workflow& flow, int devices, const flow_options& options) {
  return detail::flow_search(flow, options, devices).best();
}

}  // namespace heddle::inline v0::plan
