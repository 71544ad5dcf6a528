// heddle/sim/impl/world_step.hpp: bodies of heddle/sim/world_step.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/sim/action_table.hpp>
#include <heddle/sim/world_step.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {
namespace detail {

HEDDLE_INLINE void check_step(schedule::table_view table, int pipeline_ranks, int ranks, const step_options& options) {
  if (table.ranks() != pipeline_ranks)
    throw config_error(text_of({"heddle: the table of a simulated step is for ", table.ranks(),
                                " pipeline ranks, the mesh has ", pipeline_ranks}));
  for (const auto& [rank, factor] : options.slow) {
    if (rank < 0 || rank >= ranks)
      throw config_error(text_of({"heddle: a slow rank of a simulated step is ", rank, "; the mesh has ", ranks}));
    if (!(factor > 0) || !std::isfinite(factor))
      throw config_error(text_of({"heddle: rank ", rank, " of a simulated step takes ", std::to_string(factor),
                                  " times as long; give a factor above 0"}));
  }
}

HEDDLE_INLINE std::vector<double> for_stages(const std::vector<double>& bytes, int stages, const char* what) {
  const auto n = static_cast<std::size_t>(stages);
  if (bytes.size() > 1 && bytes.size() != n)
    throw config_error(text_of({"heddle: ", what, " of a simulated step has ", static_cast<int>(bytes.size()),
                                " numbers; expected none, one for all stages, or one for each of ", stages}));
  if (bytes.size() == n) return bytes;
  return std::vector<double>(n, bytes.empty() ? 0.0 : bytes.front());
}

HEDDLE_INLINE void send_before_going_on(step_case& c) {
  using kind = schedule::action_kind;
  const schedule::table_view& t = c.table;
  c.sending.assign(t.actions().size(), 0.0);
  for (int r = 0; r < t.ranks(); ++r)
    for (int k = t.offset(r); k < t.offset(r + 1); ++k) {
      const schedule::action& a = t[k];
      const bool up = a.kind == kind::forward;
      if (!up && a.kind != kind::backward && a.kind != kind::backward_input) continue;
      const int other = up ? t.next(a.stage, a.microbatch) : t.previous(a.stage, a.microbatch);
      if (other < 0) continue;
      // Of a pair the first has the time of both.
      const bool second = k > t.offset(r) && t[k - 1].overlaps_next;
      c.sending[static_cast<std::size_t>(second ? k - 1 : k)] +=
          c.hop[static_cast<std::size_t>(r) * static_cast<std::size_t>(t.ranks()) +
                static_cast<std::size_t>(t.rank_of(other))];
    }
  c.hop.assign(c.hop.size(), 0.0);
}

// UNSHARD and REDUCE_GRAD, each a call of all pipelines.
class data_calls {
 public:
  struct call {
    int action = 0;   // in the table
    int before = -1;  // the call before it on the same ranks
    int entered = 0;
    double ready = 0, begin = 0, end = -1;
    int last = 0;  // the pipeline that came last
  };

  data_calls(const step_case& c, bool beside, int pipelines) : c_(c), beside_(beside), pipelines_(pipelines) {
    using kind = schedule::action_kind;
    of_action_.assign(c.table.actions().size(), -1);
    for (int r = 0; r < c.table.ranks(); ++r)
      for (int k = c.table.offset(r), before = -1; k < c.table.offset(r + 1); ++k)
        if (c.table[k].kind == kind::unshard || c.table[k].kind == kind::reduce_gradient) {
          of_action_[static_cast<std::size_t>(k)] = static_cast<int>(calls_.size());
          calls_.push_back({k, before, 0, 0, 0, -1, 0});
          before = of_action_[static_cast<std::size_t>(k)];
        }
  }

  const call& operator[](int number) const { return calls_[static_cast<std::size_t>(number)]; }
  // -1 if the action is none.
  int number(int action) const { return of_action_[static_cast<std::size_t>(action)]; }
  std::size_t size() const { return calls_.size(); }
  bool beside() const { return beside_; }

  // A pipeline comes to a call.
  void enter(int number, int pipeline, double now) {
    call& mine = calls_[static_cast<std::size_t>(number)];
    if (mine.entered == 0 || now > mine.ready) {
      mine.ready = now;
      mine.last = pipeline;
    }
    if (++mine.entered < pipelines_) return;
    const auto stage = static_cast<std::size_t>(c_.table[mine.action].stage);
    const double seconds =
        (c_.table[mine.action].kind == schedule::action_kind::unshard ? c_.gather : c_.reduce)[stage];
    // All have been through the one before it, so that has its times.
    mine.begin = mine.before < 0 ? mine.ready : (std::max)(mine.ready, (*this)[mine.before].end);
    mine.end = mine.begin + seconds;
  }

 private:
  const step_case& c_;
  bool beside_;
  int pipelines_;
  std::vector<int> of_action_;
  std::vector<call> calls_;
};

// The calls as one pipeline sees them.
class calls_of_pipeline {
 public:
  calls_of_pipeline(const step_case& c, data_calls& all, int pipeline)
      : base_(c.table.actions().data()),
        all_(all),
        pipeline_(pipeline),
        loading_(c.loading),
        table_(c.table),
        entered_(all.size(), 0),
        gather_(static_cast<std::size_t>(c.table.stages()), -1),
        reduction_(static_cast<std::size_t>(c.table.stages()), -1) {}

  double enter(const schedule::action& a, double now) {
    const int number = all_.number(static_cast<int>(&a - base_));
    if (entered_[static_cast<std::size_t>(number)] == 0) {
      entered_[static_cast<std::size_t>(number)] = 1;
      all_.enter(number, pipeline_, now);
      const bool gathers = a.kind == schedule::action_kind::unshard;
      (gathers ? gather_ : reduction_)[static_cast<std::size_t>(a.stage)] = number;
    }
    return all_.beside() ? now : all_[number].end;
  }
  double may_begin(const schedule::action& a, double start) const {
    if (const int number = awaited(a); number >= 0) {
      const double end = all_[number].end;
      if (end < 0) return end;
      start = (std::max)(start, end);
    }
    return waits_for_batch(a) ? (std::max)(start, loading_) : start;
  }
  // The latest call that the action has to wait for; -1: none.
  int awaited(const schedule::action& a) const {
    const auto s = static_cast<std::size_t>(a.stage);
    if (a.kind == schedule::action_kind::optimizer_step) return reduction_[s];
    return schedule::is_compute(a.kind) || a.kind == schedule::action_kind::recompute ? gather_[s] : -1;
  }
  bool waits_for_batch(const schedule::action& a) const {
    return a.kind == schedule::action_kind::forward && table_.previous(a.stage, a.microbatch) < 0;
  }

 private:
  const schedule::action* base_;
  data_calls& all_;
  int pipeline_;
  double loading_;
  schedule::table_view table_;
  std::vector<char> entered_;
  std::vector<int> gather_, reduction_;  // the latest of each stage
};

// Durations and messages of a case, for a pipeline whose ranks are slower by these factors.
struct case_durations {
  const step_case* c;
  const std::vector<double>* slow;
  double operator()(const schedule::action& a) const {
    const auto k = static_cast<std::size_t>(&a - c->table.actions().data());
    const double seconds = c->seconds[k] * (*slow)[static_cast<std::size_t>(c->table.rank_of(a.stage))];
    return c->sending.empty() ? seconds : seconds + c->sending[k];
  }
  double operator()(const schedule::action& a, const schedule::action& /*b*/) const { return (*this)(a); }
};
struct case_hops {
  const step_case* c;
  double operator()(const schedule::action& send) const {
    return c->hop[static_cast<std::size_t>(c->table.rank_of(send.stage)) * static_cast<std::size_t>(c->table.ranks()) +
                  static_cast<std::size_t>(send.peer)];
  }
};

// The part of a table's lists that repeats: blocks of `length[r]` actions of rank r from `first[r]` on, `count` of
// them, each the one before with its microbatches `shift` further.
struct repeated_part {
  int shift = 0;
  int count = 0;
  int reach = 1;  // how many blocks back a block depends on
  std::vector<int> first, length;
};

class repetition_finder {
 public:
  // `receives_wait`: a receive is done when its message has come (buffered transfers).
  repetition_finder(const step_case& c, bool receives_wait) : c_(c), t_(c.table), receives_wait_(receives_wait) {}

  // None (count 0) where lists do not repeat, or a block depends on a later one.
  repeated_part find() {
    if (t_.has_paths() || t_.microbatches() == 0) return {};
    for (const int shift : {1, t_.ranks()})
      if (repeated_part part = of_shift(shift); part.count > 0) return part;
    return {};
  }

 private:
  using kind = schedule::action_kind;
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  bool repeats(int k, int length, int shift) const {
    schedule::action a = t_[k];
    const schedule::action& b = t_[k + length];
    if (a.microbatch < 0) return false;
    a.microbatch += shift;
    return a == b && c_.seconds[at(k)] == c_.seconds[at(k + length)] &&
           (c_.sending.empty() || c_.sending[at(k)] == c_.sending[at(k + length)]);
  }

  repeated_part of_shift(int shift) {
    repeated_part part;
    part.shift = shift;
    std::vector<int> last(at(t_.ranks()), 0);
    int from = 0;  // the microbatch of the first stage of each rank with which all ranks repeat
    for (int r = 0; r < t_.ranks(); ++r) {
      int of_microbatches = 0;
      for (const schedule::action& a : t_.list(r)) of_microbatches += a.microbatch >= 0 ? 1 : 0;
      const int each = t_.microbatches() / t_.chains();
      const int length = of_microbatches % each == 0 ? of_microbatches / each * shift : 0;
      if (length == 0) return {};
      // The longest run of actions that stand again `length` behind.
      int begin = t_.offset(r), best = 0, best_begin = begin;
      for (int k = t_.offset(r); k <= t_.offset(r + 1) - length; ++k) {
        if (k < t_.offset(r + 1) - length && repeats(k, length, shift)) continue;
        if (k - begin > best) best = k - begin, best_begin = begin;
        begin = k + 1;
      }
      const int anchor = first_forward(r, best_begin, best_begin + best);
      if (anchor < 0) return {};
      from = (std::max)(from, t_[anchor].microbatch);
      part.first.push_back(anchor);
      part.length.push_back(length);
      last[at(r)] = best_begin + best + length;
    }
    from = (from + shift - 1) / shift * shift;
    part.count = t_.microbatches();
    for (int r = 0; r < t_.ranks(); ++r) {
      int& k = part.first[at(r)];
      const schedule::action anchor = t_[k];
      while (k < last[at(r)] &&
             !(t_[k].kind == kind::forward && t_[k].stage == anchor.stage && t_[k].microbatch == from))
        ++k;
      part.count = (std::min)(part.count, (last[at(r)] - k) / part.length[at(r)]);
    }
    return part.count > 2 && reaches_back(part) ? part : repeated_part{};
  }

  // The first forward of the rank's first stage in a part of its list.
  int first_forward(int rank, int begin, int end) const {
    int stage = 0;
    while (stage < t_.stages() && t_.rank_of(stage) != rank) ++stage;
    for (int k = begin; k < end; ++k)
      if (t_[k].kind == kind::forward && t_[k].stage == stage) return k;
    return -1;
  }

  static constexpr int most_reach = 64;

  // How far back the middle block depends on others; false if farther than `most_reach`, or on a later one.
  bool reaches_back(repeated_part& part) const {
    const int middle = part.count / 2;
    const int oldest = (std::max)(0, middle - most_reach);
    std::map<std::size_t, int> made_in;  // the block in which each output, or input gradient, is there for others
    for (int r = 0; r < t_.ranks(); ++r)
      for (int block = oldest; block <= middle; ++block)
        for (int k = part.first[at(r)] + block * part.length[at(r)], i = 0; i < part.length[at(r)]; ++i, ++k) {
          const schedule::action& a = t_[k];
          const std::size_t cell = 2 * (at(a.stage) * at(t_.microbatches()) + at(a.microbatch));
          if (a.kind == kind::forward || a.kind == kind::send_forward) made_in[cell] = block;
          if (a.kind == kind::backward || a.kind == kind::backward_input || a.kind == kind::send_backward)
            made_in[cell + 1] = block;
        }
    for (int r = 0; r < t_.ranks(); ++r)
      for (int k = part.first[at(r)] + middle * part.length[at(r)], i = 0; i < part.length[at(r)]; ++i, ++k) {
        const schedule::action& a = t_[k];
        const bool up = a.kind == kind::forward || a.kind == kind::recv_forward;
        const bool down = a.kind == kind::backward || a.kind == kind::backward_input || a.kind == kind::recv_backward;
        if ((!up && !down) || (schedule::is_recv(a.kind) && !receives_wait_)) continue;
        const int from = up ? t_.previous(a.stage, a.microbatch) : t_.next(a.stage, a.microbatch);
        if (from < 0) continue;
        const auto made = made_in.find(2 * (at(from) * at(t_.microbatches()) + at(a.microbatch)) + (up ? 0 : 1));
        if (made == made_in.end()) return false;
        part.reach = (std::max)(part.reach, middle - made->second);
      }
    return part.count > part.reach + 2;
  }

  const step_case& c_;
  schedule::table_view t_;
  bool receives_wait_;
};

class pipeline_run : public simulation<case_durations, case_hops, calls_of_pipeline> {
  using base = simulation<case_durations, case_hops, calls_of_pipeline>;

 public:
  pipeline_run(const step_case& c, const std::vector<double>& slow, int first, data_calls& all, int number,
               schedule::transfers mode, const repeated_part& part)
      : base(c.table, durations_, hops_, mode, calls_),
        durations_{&c, &slow},
        hops_{&c},
        calls_(c, all, number),
        first_(first),
        part_(part) {
    begin();
  }
  pipeline_run(const pipeline_run&) = delete;
  pipeline_run& operator=(const pipeline_run&) = delete;

  // On as far as it can. Whether it moved.
  bool advance() {
    bool moved = false;
    while (part_.count > 0) {
      for (int r = 0; r < t_.ranks(); ++r) stop_[at(r)] = part_.first[at(r)] + block_ * part_.length[at(r)];
      moved = base::advance() || moved;
      if (head_ != stop_) return moved;  // it waits for others, or in vain: then `without_blocks` is next
      if (block_ > 1 && settled()) {
        copy_rest();
        without_blocks();
      } else if (++block_ > part_.count) {
        without_blocks();
      }
    }
    return base::advance() || moved;
  }
  // Walks the rest of the lists in one go. Whether it walked in blocks until now.
  bool without_blocks() {
    for (int r = 0; r < t_.ranks(); ++r) stop_[at(r)] = t_.offset(r + 1);
    return std::exchange(part_.count, 0) > 0;
  }
  // Refuses a table that stops. When the last rank was through its list.
  double ended() { return base::ended().makespan; }
  double ended(int rank) const { return clock_[at(rank)]; }
  double start(int k) const { return time(line_.start, k); }
  double end(int k) const { return time(line_.end, k); }
  std::int64_t copied() const { return copied_; }
  // The pipeline of the mesh that it stands for.
  int first() const { return first_; }

 private:
  // Whether every action of the last blocks, as many as a block depends on and one more, came later than that of the
  // block before by the same time.
  bool settled() {
    const int done = block_ - 1;  // the last complete block
    double by = -1;
    for (int r = 0; r < t_.ranks(); ++r)
      for (int k = part_.first[at(r)] + done * part_.length[at(r)], i = 0; i < part_.length[at(r)]; ++i, ++k) {
        const double later = line_.end[at(k)] - line_.end[at(k - part_.length[at(r)])];
        if (by < 0) by = later;
        if (std::abs(later - by) > 1e-11 * by) return equal_ = 0, false;
      }
    equal_ = equal_ > 0 && std::abs(by - by_) > 1e-11 * by ? 1 : equal_ + 1;
    by_ = by;
    return equal_ > part_.reach;
  }
  // The blocks that are left, without a look at their actions: `start` and `end` say when those were. Written down is
  // only what actions behind the blocks ask for.
  void copy_rest() {
    const int blocks = part_.count - block_;
    int asked = t_.microbatches();
    for (int r = 0; r < t_.ranks(); ++r)
      for (int k = part_.first[at(r)] + part_.count * part_.length[at(r)]; k < t_.offset(r + 1); ++k)
        if (t_[k].microbatch >= 0) asked = (std::min)(asked, t_[k].microbatch);
    for (int r = 0; r < t_.ranks(); ++r) {
      const int length = part_.length[at(r)], from = part_.first[at(r)] + (block_ - 1) * length;
      copies_.push_back({from, from + length, from + length * (blocks + 1)});
      for (int k = from; k < from + length; ++k) {
        std::vector<double>* const times = written_by(t_[k].kind);
        if (times == nullptr) continue;
        const std::size_t here = cell(t_[k].stage, t_[k].microbatch);
        for (int j = blocks; j > 0 && t_[k].microbatch + j * part_.shift >= asked; --j)
          (*times)[here + at(j * part_.shift)] = (*times)[here] + j * by_;
      }
      head_[at(r)] += blocks * length;
      clock_[at(r)] += blocks * by_;
      copied_ += std::int64_t{blocks} * length;
    }
  }
  // Of an action of the lists, when it was; copied ones as those of the last block that ran, so many blocks later.
  double time(const std::vector<double>& of, int k) const {
    if (!copies_.empty()) {
      const copy& c = copies_[at(t_.rank_of(t_[k].stage))];
      if (k >= c.begin && k < c.end) {
        const int length = c.begin - c.from, blocks = (k - c.from) / length;
        return of[at(k - blocks * length)] + blocks * by_;
      }
    }
    return of[at(k)];
  }
  // Where an action of this kind writes down when its result is there.
  std::vector<double>* written_by(kind k) {
    switch (k) {
      case kind::forward:
        return &forward_;
      case kind::backward:
      case kind::backward_input:
        return &gradient_;
      case kind::send_forward:
        return &sent_up_;
      case kind::send_backward:
        return &sent_down_;
      default:
        return nullptr;
    }
  }

  // Of a rank: the last block that ran is [from, begin), its copies [begin, end).
  struct copy {
    int from = 0, begin = 0, end = 0;
  };

  case_durations durations_;
  case_hops hops_;
  calls_of_pipeline calls_;
  std::vector<copy> copies_;
  int first_;
  repeated_part part_;
  int block_ = 0;
  int equal_ = 0;  // blocks in a row that came later by the same time
  double by_ = 0;
  std::int64_t copied_ = 0;
};

// Walks back from what ended last to what it waited for.
class critical_path {
 public:
  critical_path(const step_case& c, const data_calls& calls, const std::vector<std::unique_ptr<pipeline_run>>& runs,
                schedule::transfers mode, step& out)
      : c_(c), t_(c.table), calls_(calls), runs_(runs), mode_(mode), out_(out), nothing_(1e-12 * out.seconds) {
    index_.assign(static_cast<std::size_t>(action_kinds) * at(t_.stages()) * at(t_.microbatches()), -1);
    for (int k = 0; k < t_.offset(t_.ranks()); ++k)
      if (t_[k].kind <= kind::recv_backward) index_[place(t_[k].kind, t_[k].stage, t_[k].microbatch)] = k;
    gather_.assign(t_.actions().size(), -1);
    std::vector<int> latest(at(t_.stages()), -1), reduced(at(t_.stages()), -1);
    for (int k = 0; k < t_.offset(t_.ranks()); ++k) {
      const schedule::action& a = t_[k];
      if (a.kind == kind::unshard) latest[at(a.stage)] = calls.number(k);
      if (a.kind == kind::reduce_gradient) reduced[at(a.stage)] = calls.number(k);
      if (a.kind == kind::optimizer_step) gather_[at(k)] = reduced[at(a.stage)];
      if (schedule::is_compute(a.kind) || a.kind == kind::recompute) gather_[at(k)] = latest[at(a.stage)];
    }
  }

  void walk() {
    double now = -1;
    int last_run = 0, last_rank = 0;
    for (std::size_t c = 0; c < runs_.size(); ++c)
      for (int r = 0; r < t_.ranks(); ++r)
        if (const double e = runs_[c]->ended(r); e > now) now = e, last_run = static_cast<int>(c), last_rank = r;
    where_.run = last_run;
    before(last_rank, t_.offset(last_rank + 1), now);
    for (int n = 0; n < static_cast<int>(calls_.size()); ++n)
      if (calls_[n].end > now) now = calls_[n].end, where_.call = n;
    while (where_.call >= 0 || where_.action >= 0) now = where_.call >= 0 ? through_call() : through_action(now);
    out_.computing += (std::max)(now, 0.0);  // of loading
    std::reverse(out_.critical.begin(), out_.critical.end());
  }

 private:
  using kind = schedule::action_kind;
  static constexpr int action_kinds = 8;  // computations and transfers
  struct place_on_path {
    int run = 0;
    int action = -1;  // one of an action
    int call = -1;    // and a call
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  std::size_t place(kind k, int stage, int microbatch) const {
    return (static_cast<std::size_t>(k) * at(t_.stages()) + at(stage)) * at(t_.microbatches()) + at(microbatch);
  }
  double start(int k) const { return runs_[at(where_.run)]->start(k); }
  double end(int k) const { return runs_[at(where_.run)]->end(k); }

  int rank(int k) const { return t_.rank_of(t_[k].stage); }

  void note(int k, double from, double to) {
    const auto pipeline = at(runs_[at(where_.run)]->first());
    out_.critical.push_back({c_.member[pipeline][at(rank(k))], t_[k], from, to});
  }
  // On to what a rank did before action k of its list, which it ended at `when`; to none if it was idle then.
  double before(int rank, int k, double when) {
    const int first = t_.offset(rank);
    int j = k - 1;
    // Of neighbouring transfers that go on together, the one that took longest.
    while (j > first && schedule::is_transfer(t_[j].kind) && end(j) < when - nothing_ &&
           schedule::is_transfer(t_[j - 1].kind))
      --j;
    where_.action = j >= first && end(j) >= when - nothing_ ? j : -1;
    return when;
  }

  double through_call() {
    const data_calls::call& call = calls_[where_.call];
    where_.run = call.last;
    note(call.action, call.begin, call.end);
    out_.exposed[1] += call.end - call.begin;
    if (call.before >= 0 && calls_[call.before].end >= call.begin - nothing_) {
      where_.call = call.before;
      return call.begin;
    }
    where_.call = -1;
    return before(rank(call.action), call.action, call.begin);
  }

  double through_action(double now) {
    const int k = where_.action;
    const schedule::action& a = t_[k];
    if (schedule::is_transfer(a.kind)) return through_transfer(k, now);
    if (const int number = calls_.number(k); number >= 0 && !calls_.beside()) {
      where_.call = number;
      return now;
    }
    const double began = start(k);
    note(k, began, now);
    // Of a pair both may have been waited for.
    const bool second = k > t_.offset(rank(k)) && t_[k - 1].overlaps_next;
    const int from = second ? k - 1 : k, to = a.overlaps_next && !second ? k + 1 : k;
    const double sending = c_.sending.empty() ? 0 : c_.sending[at(from)];
    out_.computing += now - began - sending;
    out_.exposed[0] += sending;
    if (before(rank(k), from, began); where_.action >= 0) return began;
    if (a.kind == kind::forward && t_.previous(a.stage, a.microbatch) < 0 && c_.loading >= began - nothing_)
      return began;
    for (int i = from; i <= to; ++i)
      if (const int number = gather_[at(i)]; number >= 0 && calls_[number].end >= began - nothing_) {
        where_.call = number;
        return calls_[number].end;
      }
    for (int i = from; i <= to; ++i)
      if (through_input(i, began)) return came_;
    where_.action = -1;
    return began;
  }

  // On to what sent the input of a computation, if that came at `began`.
  bool through_input(int i, double began) {
    const schedule::action& a = t_[i];
    const bool up = a.kind == kind::forward;
    if (!up && a.kind != kind::backward && a.kind != kind::backward_input) return false;
    const int from = up ? t_.previous(a.stage, a.microbatch) : t_.next(a.stage, a.microbatch);
    if (from < 0) return false;
    int maker = index_[place(up ? kind::send_forward : kind::send_backward, from, a.microbatch)];
    if (maker < 0) {
      maker = index_[place(up ? kind::forward : kind::backward, from, a.microbatch)];
      if (maker < 0) maker = index_[place(kind::backward_input, from, a.microbatch)];
    }
    const double sent = end(maker);
    const int to = t_.rank_of(a.stage), source = t_.rank_of(from);
    const double hop = source == to ? 0 : c_.hop[at(source) * at(t_.ranks()) + at(to)];
    if (sent + hop < began - nothing_) return false;
    out_.exposed[0] += began - sent;
    where_.action = maker;
    came_ = sent;
    return true;
  }

  double through_transfer(int k, double now) {
    const schedule::action& a = t_[k];
    const double began = start(k);
    note(k, began, now);
    if (now - began <= nothing_) return before(rank(k), k, began);
    const schedule::action other = schedule::counterpart(a, t_);
    const int met = index_[place(other.kind, other.stage, other.microbatch)];
    // With blocking sends the later of both sides; else the sender.
    const bool theirs = mode_ == schedule::transfers::buffered ? schedule::is_recv(a.kind) : start(met) > began;
    const double from = theirs ? (mode_ == schedule::transfers::buffered ? end(met) : start(met)) : began;
    out_.exposed[0] += now - from;
    if (!theirs || mode_ == schedule::transfers::buffered) {
      if (!theirs) return before(rank(k), k, from);
      where_.action = met;
      return from;
    }
    return before(rank(met), met, from);
  }

  const step_case& c_;
  schedule::table_view t_;
  const data_calls& calls_;
  const std::vector<std::unique_ptr<pipeline_run>>& runs_;
  schedule::transfers mode_;
  step& out_;
  double nothing_;
  std::vector<int> index_;   // of each computation and transfer
  std::vector<int> gather_;  // the call that each action waits for
  place_on_path where_;
  double came_ = 0;
};

HEDDLE_INLINE step simulate_case(const step_case& c, const step_options& options) {
  std::map<std::vector<double>, int> known;
  std::vector<int> first;  // of each class, a pipeline
  for (std::size_t d = 0; d < c.slow.size(); ++d)
    if (!options.share_equal || known.emplace(c.slow[d], static_cast<int>(d)).second)
      first.push_back(static_cast<int>(d));
  data_calls calls(c, options.data_beside, static_cast<int>(first.size()));
  repeated_part part;
  const bool buffered = options.messages == schedule::transfers::buffered;
  if (options.skip_repeated && (buffered || options.messages == schedule::transfers::asynchronous))
    part = repetition_finder(c, buffered).find();
  std::vector<std::unique_ptr<pipeline_run>> runs;
  for (const int d : first)
    runs.push_back(std::make_unique<pipeline_run>(c, c.slow[static_cast<std::size_t>(d)], d, calls,
                                                  static_cast<int>(runs.size()), options.messages, part));
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& run : runs) moved = run->advance() || moved;
    for (auto& run : runs)
      if (!moved) moved = run->without_blocks();
  }
  step found;
  found.exposed.assign(2, 0.0);
  found.pipelines = static_cast<int>(runs.size());
  for (auto& run : runs) {
    found.seconds = (std::max)(found.seconds, run->ended());
    found.copied += run->copied();
    found.simulated += static_cast<std::int64_t>(c.table.actions().size()) - run->copied();
  }
  for (std::size_t n = 0; n < calls.size(); ++n)
    found.seconds = (std::max)(found.seconds, calls[static_cast<int>(n)].end);
  critical_path(c, calls, runs, options.messages, found).walk();
  return found;
}

}  // namespace detail
}  // namespace heddle::inline v0::sim
