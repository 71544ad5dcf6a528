// heddle/tensor/redistribute_async.hpp: redistributions started and waited for later.
#pragma once

#include <heddle/core/ownership.hpp>
#include <heddle/core/typestate.hpp>
#include <heddle/tensor/async_jobs.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// An operator as functions, so that one state machine serves all.
template <class T>
struct reduction {
  void (*combine)(T* into, const T* other, std::int64_t count) = nullptr;
  void (*fill)(T* with_identity, std::int64_t count) = nullptr;
};
// `Fills`: whether a step needs the identity; otherwise the operator need not have one.
template <class T, bool Fills, class List>
struct reductions;
template <class T, bool Fills, class... Ops>
struct reductions<T, Fills, type_list<Ops...>> {
  template <class Op>
  static constexpr auto fill() -> void (*)(T*, std::int64_t) {
    if constexpr (Fills)
      return [](T* out, std::int64_t n) { std::fill_n(out, n, Op::template identity<T>()); };
    else
      return nullptr;
  }
  static constexpr std::array<reduction<T>, sizeof...(Ops) + 1> of{
      reduction<T>{[](T* into, const T* other, std::int64_t n) {
                     for (std::int64_t i = 0; i < n; ++i) into[i] = Ops{}(into[i], other[i]);
                   },
                   fill<Ops>()}...,
      reduction<T>{}};
};

// The steps of one tensor by messages: each step sends its blocks straight to the ranks that need them, and folds in rank
// order what must be combined. An all_reduce is two rounds: combine a share each, then give it to all.
template <class T, std::size_t Rank, std::size_t Axes, class Comm>
class async_redistribution final : public messaging_job<Comm> {
 public:
  struct stage {
    redistribution_step step{};
    cut_list<Axes> before{}, after{};
    Comm* comm = nullptr;
    reduction<T> op{};
    int tag = 0;
  };

  async_redistribution(moving_part<T> part, std::vector<stage> stages, const mesh_numbers<Axes>& mesh,
                       const std::array<std::int64_t, Rank>& whole, int rank)
      : part_(std::move(part)), stages_(std::move(stages)), mesh_(mesh), whole_(whole), rank_(rank) {}

  buffer<T> result() && { return std::move(part_).release(at_once_); }

 private:
  bool go_on() override {
    bool moved = false;
    while (!this->done_) {
      if (under_way_) {
        if (std::erase_if(requests_, [](auto& r) { return r.test(); }) != 0) moved = true;
        if (!requests_.empty()) return moved;
        under_way_ = false;
        moved = true;
        finish();
      } else if (at_ == stages_.size()) {
        this->done_ = moved = true;
      } else {
        begin();
      }
    }
    return moved;
  }
  std::vector<typename Comm::request>& messages() override { return requests_; }

  using place = step_place<Rank, Axes>;
  using group_type = step_group<Rank, Axes>;

  place here() const { return {mesh_, whole_, stages_[at_].before, stages_[at_].after, rank_}; }

  // Starts the step, or does it where no other rank is needed.
  void begin() {
    const stage& s = stages_[at_];
    const place where = here();
    const group_type group{where, s.step.axes, s.step.kind == step_kind::exchange};
    switch (s.step.kind) {
      case step_kind::none:
        break;
      case step_kind::slice:
        slice_step(at_once_, part_, where);
        break;
      case step_kind::pad_with_identity: {
        const auto before = where.before(rank_), after = where.after(rank_);
        buffer<T> next(elements_of(after.stored()));
        s.op.fill(next.data(), static_cast<std::int64_t>(next.size()));
        copy_overlap(overlap_of(before, after), part_.source.address(), before.stored(), next.data(), after.stored());
        part_.replace(std::move(next));
        break;
      }
      case step_kind::keep_on_owner:
        if (group.mine() != 0) {
          buffer<T> next(static_cast<std::int64_t>(part_.source.size()));
          s.op.fill(next.data(), static_cast<std::int64_t>(next.size()));
          part_.replace(std::move(next));
        }
        break;
      case step_kind::all_gather:
      case step_kind::all_to_all:
      case step_kind::exchange:
        move_blocks(group);
        return;
      case step_kind::reduce_scatter:
        reduce_blocks(group);
        return;
      case step_kind::all_reduce:
        reduce_shares(group);
        return;
    }
    ++at_;
  }

  // What follows when all messages of the round have arrived.
  void finish() {
    const stage& s = stages_[at_];
    const place where = here();
    const group_type group{where, s.step.axes, s.step.kind == step_kind::exchange};
    if (s.step.kind == step_kind::reduce_scatter) {
      fold(group.parts());
      unpack_overlap(group.from(group.mine()), incoming_.data(), next_.data(), where.after(rank_).stored());
    } else if (s.step.kind == step_kind::all_reduce) {
      if (!shared_) {
        fold(group.parts());
        share(group);
        return;
      }
      shared_ = false;
      const auto held = where.before(rank_);
      unpack_overlap(overlap_of(held, held), outgoing_.data(), next_.data(), held.stored());
    } else {
      const auto extents = where.after(rank_).stored();
      std::int64_t at = 0;
      for (int peer = 0; peer < group.parts(); ++peer) {
        if (peer == group.mine()) continue;
        const auto o = group.from(peer);
        if (o.size() == 0 || packed_start<&stretch::to>(o, extents) >= 0) continue;
        unpack_overlap(o, incoming_.data() + at, next_.data(), extents);
        at += o.size();
      }
    }
    part_.replace(std::move(next_));
    outgoing_ = {};
    incoming_ = {};
    ++at_;
  }

  void move_blocks(const group_type& group) {
    const auto from = group.at.before(rank_).stored(), to = group.at.after(rank_).stored();
    next_ = buffer<T>(elements_of(to));
    // Room for the blocks that do not lie in one piece already.
    std::int64_t out = 0, in = 0;
    for (int peer = 0; peer < group.parts(); ++peer) {
      if (peer == group.mine()) continue;
      const auto sent = group.to(peer), got = group.from(peer);
      if (packed_start<&stretch::from>(sent, from) < 0) out += sent.size();
      if (packed_start<&stretch::to>(got, to) < 0) in += got.size();
    }
    outgoing_ = buffer<T>(out);
    incoming_ = buffer<T>(in);
    out = in = 0;
    for (int peer = 0; peer < group.parts(); ++peer) {
      const auto sent = group.to(peer), got = group.from(peer);
      if (peer == group.mine()) {
        copy_overlap(got, part_.source.address(), from, next_.data(), to);
        continue;
      }
      if (const std::int64_t n = got.size(); n != 0) {
        const std::int64_t start = packed_start<&stretch::to>(got, to);
        receive(start >= 0 ? next_.data() + start : incoming_.data() + std::exchange(in, in + n), n, peer);
      }
      if (const std::int64_t n = sent.size(); n != 0) {
        const std::int64_t start = packed_start<&stretch::from>(sent, from);
        if (start < 0) pack_overlap(sent, part_.source.address(), from, outgoing_.data() + out);
        send(start >= 0 ? part_.source.address() + start : outgoing_.data() + std::exchange(out, out + n), n, peer);
      }
    }
    under_way_ = true;
  }

  // A block per rank goes out; all contributions to the own block come in.
  void reduce_blocks(const group_type& group) {
    const auto from = group.at.before(rank_).stored();
    next_ = buffer<T>(elements_of(group.at.after(rank_).stored()));
    count_ = group.from(group.mine()).size();
    incoming_ = buffer<T>(count_ * group.parts());
    std::int64_t total = 0;
    for (int peer = 0; peer < group.parts(); ++peer) total += peer == group.mine() ? 0 : group.to(peer).size();
    outgoing_ = buffer<T>(total);
    T* at = outgoing_.data();
    for (int peer = 0; peer < group.parts(); ++peer) {
      const auto sent = group.to(peer);
      if (peer == group.mine()) {
        pack_overlap(sent, part_.source.address(), from, incoming_.data() + count_ * peer);
        continue;
      }
      receive(incoming_.data() + count_ * peer, count_, peer);
      pack_overlap(sent, part_.source.address(), from, at);
      send(at, sent.size(), peer);
      at += sent.size();
    }
    under_way_ = true;
  }

  void reduce_shares(const group_type& group) {
    const auto held = group.at.before(rank_);
    next_ = buffer<T>(elements_of(held.stored()));
    outgoing_ = buffer<T>(held.size());
    pack_overlap(overlap_of(held, held), part_.source.address(), held.stored(), outgoing_.data());
    const balanced_split share{held.size(), group.parts()};
    const int mine = group.mine();
    count_ = share.size(mine);
    incoming_ = buffer<T>(count_ * group.parts());
    for (int peer = 0; peer < group.parts(); ++peer) {
      if (peer == mine) {
        std::copy_n(outgoing_.data() + share.offset(mine), count_, incoming_.data() + count_ * mine);
        continue;
      }
      receive(incoming_.data() + count_ * peer, count_, peer);
      send(outgoing_.data() + share.offset(peer), share.size(peer), peer);
    }
    under_way_ = true;
  }
  void share(const group_type& group) {
    const balanced_split share{static_cast<std::int64_t>(outgoing_.size()), group.parts()};
    const int mine = group.mine();
    std::copy_n(incoming_.data(), count_, outgoing_.data() + share.offset(mine));
    for (int peer = 0; peer < group.parts(); ++peer) {
      if (peer == mine) continue;
      receive(outgoing_.data() + share.offset(peer), share.size(peer), peer);
      send(incoming_.data(), count_, peer);
    }
    shared_ = under_way_ = true;
  }
  // In rank order, as the collectives do.
  void fold(int parts) {
    for (int peer = 1; peer < parts; ++peer)
      stages_[at_].op.combine(incoming_.data(), incoming_.data() + count_ * peer, count_);
  }

  void send(const T* data, std::int64_t count, int peer) {
    if (count != 0)
      requests_.push_back(
          stages_[at_].comm->isend(std::span<const T>(data, static_cast<std::size_t>(count)), peer, stages_[at_].tag));
  }
  void receive(T* data, std::int64_t count, int peer) {
    if (count != 0)
      requests_.push_back(
          stages_[at_].comm->irecv(std::span<T>(data, static_cast<std::size_t>(count)), peer, stages_[at_].tag));
  }

  [[no_unique_address]] host_memory::queue at_once_{};
  moving_part<T> part_;
  std::vector<stage> stages_;
  mesh_numbers<Axes> mesh_;
  std::array<std::int64_t, Rank> whole_;
  int rank_;
  std::size_t at_ = 0;
  bool under_way_ = false, shared_ = false;
  std::int64_t count_ = 0;
  buffer<T> next_, outgoing_, incoming_;
  std::vector<typename Comm::request> requests_;  // last: they end before the buffers do
};

}  // namespace detail

/// A redistribution that was started. `wait` gives the tensor; all others of its rank go on meanwhile. The end of one that was
/// not waited for waits for it; while an exception unwinds the stack it is given up instead, and its messages are taken back.
template <class T, std::size_t Rank, layout_like To>
class HEDDLE_CONSUMABLE [[nodiscard("heddle: a redistribution that was started must be waited for")]]
pending_redistribution final {
 public:
  HEDDLE_RETURNS_STATE(unconsumed)
  pending_redistribution(pending_redistribution&&) = default;
  HEDDLE_SETS_STATE(unconsumed)
  pending_redistribution& operator=(pending_redistribution&& other) noexcept {
    return move_assign(*this, std::move(other));
  }
  HEDDLE_CALLABLE_WHEN("consumed") ~pending_redistribution() { end(); }

  /// Whether `wait` would return, or throw, at once; never waits.
  bool ready() {
    if (job_ == nullptr) return true;
    if (!job_->done()) jobs_->progress();
    return job_->done();
  }
  /// Errors: what the communicator throws, again from every later call; `layout_error` if the tensor was taken already.
  HEDDLE_CALLABLE_WHEN("unconsumed", "unknown")
  HEDDLE_SETS_STATE(consumed)
  sharded<T, Rank, To> wait() && {
    if (job_ == nullptr) throw layout_error("heddle: the result of a started redistribution was taken already");
    jobs_->finish(*job_);
    const std::shared_ptr<detail::async_job> job = std::move(job_);
    return sharded<T, Rank, To>(to_, whole_, rank_, result_(*job));
  }

 private:
  template <class World>
  friend class redistribution_queue;
  using give = buffer<T> (*)(detail::async_job&);

  HEDDLE_RETURNS_STATE(unconsumed)
  pending_redistribution(std::shared_ptr<detail::async_jobs> jobs, std::shared_ptr<detail::async_job> job, give result,
                         const To& to, const dynamic_shape<Rank>& whole, int rank)
      : jobs_(std::move(jobs)), job_(std::move(job)), result_(result), to_(to), whole_(whole), rank_(rank) {}

  void end() noexcept {
    if (job_ == nullptr || job_->done()) return;
    if (std::uncaught_exceptions() > unwinding_) return job_->give_up();
    try {
      jobs_->finish(*job_);
    } catch (...) {  // the world has failed, which its next call says
    }
  }

  std::shared_ptr<detail::async_jobs> jobs_;
  std::shared_ptr<detail::async_job> job_;
  give result_;
  [[no_unique_address]] To to_;
  dynamic_shape<Rank> whole_;
  int rank_;
  int unwinding_ = std::uncaught_exceptions();
};

/// Redistributions that overlap: the steps of one tensor proceed while those of another wait for their messages. All ranks of
/// the world start the same redistributions in the same order; they may be waited for in any order, by any rank in its own.
/// There may be several queues, on one world or on it and its sub-worlds; what was started by all of them goes on together.
/// Steps are messages of the communicators along their axes, with tags from `1 << 20` on, one per step; leave these tags to
/// queues. A world whose communicators do not count them (`ticket`) has one queue at a time. Bytes sent are those of the plan. Reductions fold in rank order, as `redistribute` does.
/// Nothing proceeds while the rank is in another call: do not start a collective that waits for ranks that wait here.
///
///     hd::redistribution_queue queue(world);
///     auto p = queue.template start<To>(x);
///     auto q = queue.template start<Other>(std::move(y));
///     auto there = std::move(p).wait();
///
/// Its end waits for what was not waited for; while an exception unwinds the stack that is given up instead.
template <class World>
class redistribution_queue {
 public:
  explicit redistribution_queue(World& world)
      : world_(&world), unwinding_(std::uncaught_exceptions()), jobs_(detail::jobs_of(world.all())) {}
  redistribution_queue(const redistribution_queue&) = delete;
  redistribution_queue& operator=(const redistribution_queue&) = delete;
  ~redistribution_queue() {
    if (std::uncaught_exceptions() > unwinding_) {
      for (const auto& job : own_) job->give_up();
      return;
    }
    try {
      finish();
    } catch (...) {  // the world has failed, which its next call says
    }
  }

  /// Starts to bring a tensor to layout `To`. The source must stay alive and unchanged until the result was waited for.
  /// Errors: as `redistribute`.
  template <layout_like To, plan_objective Objective = objective::bytes, class T, std::size_t Rank, layout_like From>
  pending_redistribution<T, Rank, To> start(const sharded<T, Rank, From>& x) {
    if constexpr (detail::on_mesh_of<From, To, World>())
      return begin<To, Objective>([&] { return detail::moving_part<T>{x.memory(), {}, false}; }, x);
    else
      throw layout_error("heddle: redistribute: another mesh");  // already refused
  }
  /// As above, and takes the source's memory.
  template <layout_like To, plan_objective Objective = objective::bytes, class T, std::size_t Rank, layout_like From>
  pending_redistribution<T, Rank, To> start(sharded<T, Rank, From>&& x) {
    if constexpr (detail::on_mesh_of<From, To, World>()) {
      return begin<To, Objective>(
          [&] {
            detail::moving_part<T> part;
            part.replace(std::move(x).release());
            return part;
          },
          x);
    } else {
      throw layout_error("heddle: redistribute: another mesh");  // already refused
    }
  }

  /// Lets all that was started go on as far as it can without waiting; call it between pieces of other work.
  void progress() { jobs_->progress(); }
  /// Waits for all that this queue started. Errors: the first that one of them met.
  void finish() {
    std::exception_ptr problem;
    for (const auto& job : std::exchange(own_, {})) {
      try {
        jobs_->finish(*job);
      } catch (...) {
        if (problem == nullptr) problem = std::current_exception();
      }
    }
    if (problem != nullptr) std::rethrow_exception(problem);
  }
  /// How many of them are not done yet.
  std::size_t unfinished() const noexcept {
    std::size_t count = 0;
    for (const auto& job : own_) count += job->done() ? 0 : 1;
    return count;
  }

 private:
  template <class To, class Objective, class T, std::size_t Rank, class From, class Take>
  pending_redistribution<T, Rank, To> begin(const Take& take, const sharded<T, Rank, From>& x) {
    using mesh_type = typename From::mesh_type;
    using comm_type = std::remove_reference_t<decltype(world_->all())>;
    using job_type = detail::async_redistribution<T, Rank, mesh_type::rank, comm_type>;
    const To to{x.layout().mesh()};
    const auto plan = plan_redistribution(x.layout(), to, detail::objective_on<Objective, Rank>{});
    detail::require_part(x, *world_);
    const auto mesh = detail::numbers_of(x.layout().mesh().extents());
    std::vector<typename job_type::stage> stages;
    using plan_type = std::remove_const_t<decltype(plan)>;
    const auto& ops = detail::reductions<T, fills<plan_type>(), typename plan_type::ops>::of;
    const auto add = [&](const redistribution_step& step, std::size_t i, comm_type& comm) {
      stages.push_back({step, detail::cuts_of(plan.tables[i]), detail::cuts_of(plan.tables[i + 1]), &comm,
                        ops[step.op < 0 ? ops.size() - 1 : static_cast<std::size_t>(step.op)], next_tag(comm)});
    };
    if constexpr (plan_type::has_static_steps) {
      [&]<std::size_t... Steps>(std::index_sequence<Steps...>) {
        ((detail::step_is_idle(plan_type::steps[Steps], mesh)
              ? void()
              : add(plan_type::steps[Steps], Steps,
                    detail::communicator_along<plan_type::steps[Steps].axes>(*world_, typename mesh_type::tags{},
                                                                             type_list<>{}))),
         ...);
      }(std::make_index_sequence<plan_type::steps.size()>{});
    } else {
      for (std::size_t i = 0; i < plan.steps.size(); ++i)
        if (!detail::step_is_idle(plan.steps[i], mesh))
          add(plan.steps[i], i,
              detail::communicator_along(*world_, plan.steps[i].axes, typename mesh_type::tags{}, type_list<>{}));
    }
    auto job = std::make_shared<job_type>(take(), std::move(stages), mesh, x.shape().extents(), x.rank());
    jobs_->add(job);
    std::erase_if(own_, [](const auto& j) { return j->done() && !j->failed(); });
    own_.push_back(job);
    return {jobs_, std::move(job), [](detail::async_job& j) { return static_cast<job_type&&>(j).result(); },
            to,    x.shape(),      x.rank()};
  }

  // Whether a step may need an operator's identity.
  template <class Plan>
  static consteval bool fills() {
    if constexpr (Plan::has_static_steps) {
      for (const redistribution_step& step : Plan::steps)
        if (step.kind == step_kind::pad_with_identity || step.kind == step_kind::keep_on_owner) return true;
      return false;
    } else {
      return true;
    }
  }
  template <class Comm>
  int next_tag(Comm& comm) {
    constexpr std::int64_t first = 1 << 20, many = 1 << 30;
    if constexpr (requires { comm.ticket(); })
      return static_cast<int>(first + comm.ticket() % many);
    else
      return static_cast<int>(first + tickets_++ % many);
  }

  World* world_;
  std::int64_t tickets_ = 0;
  int unwinding_;
  std::shared_ptr<detail::async_jobs> jobs_;
  std::vector<std::shared_ptr<detail::async_job>> own_;
};

}  // namespace heddle::inline v0
