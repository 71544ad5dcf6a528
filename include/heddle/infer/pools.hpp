// heddle/infer/pools.hpp: an engine for prompts and one for answers that look like one engine.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/hand_over.hpp>
#include <heddle/infer/kv.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Rows of a request on their way: row `from[i]` of the cache of prompts becomes row `to[i]` of that of answers. `id`: of the pools.
struct row_transfer {
  request_id id = 0;
  std::vector<std::int64_t> from{}, to{};
  std::int64_t from_state = -1, to_state = -1;
};
/// How far the rows of a request are. `layer`: the first that lacks some, and of it `arrived` of `announced` rows; where `all`, every layer has its own.
struct row_progress {
  bool all = false;
  int layer = 0;
  std::int64_t arrived = 0, announced = 0;
};

/// What carries rows between two pools. `begin(t)` starts a transfer, `progress(id)` says how far it is and `end(id)` ends it, whether rows are missing
/// or not: from then on it reads and writes no row of it.
template <class L>
concept pool_link = requires(L& link, const row_transfer& t, request_id id) {
  link.begin(t);
  { link.progress(id) } -> std::same_as<row_progress>;
  link.end(id);
};

/// A link by a `cache_mover`, for the rank that leads both runners and is rank 0 of the mover's world. All other ranks run
/// `while (runner.follow() == followed::interrupted) mover.follow();` with the runner that they belong to. Rows arrive before `begin` returns.
template <class From, class To, class Mover>
class mover_link {
 public:
  mover_link(From& prefill, To& decode, Mover& mover) : prefill_(&prefill), decode_(&decode), mover_(&mover) {}
  void begin(const row_transfer& t) {
    prefill_->interrupt();
    decode_->interrupt();
    mover_->lead(t.from, t.to, t.from_state, t.to_state);
    rows_ += std::ssize(t.from);
  }
  row_progress progress(request_id) const noexcept { return {.all = true}; }
  void end(request_id) const noexcept {}
  /// Rows that it has carried.
  std::int64_t rows() const noexcept { return rows_; }

 private:
  From* prefill_;
  To* decode_;
  Mover* mover_;
  std::int64_t rows_ = 0;
};

/// Settings of pools. `arrival_timeout`: how long the rows of a request may be on their way; then it ends with an error.
struct pool_options {
  std::chrono::milliseconds arrival_timeout{30'000};
};

/// Prompts are computed by one engine and answers by another, which may run on another mesh: a long prompt takes no rows of the steps in which others decode. A prompt's first
/// token is drawn where it was computed; then the request is handed over (`engine::hand_over`), waits until the other engine has blocks for all of its text (`adopt`), its
/// rows go there by the link, and it runs there when all have arrived. Its blocks are kept on one side until they are on the other.
/// Used as one engine, and tokens and log-probabilities are those of one engine with the same options. One thread owns pools, their engines and their link, which
/// must outlive it; nobody else calls the engines.
/// Errors: `config_error` for engines of another vocabulary, context, end tokens or seed.
/// Source: Zhong et al., "DistServe", OSDI 2024, arXiv:2401.09670; Patel et al., "Splitwise", ISCA 2024, arXiv:2311.18677.
template <class Prefill, class Decode, pool_link Link>
class pools {
 public:
  using decoding = typename Decode::decoding;

  pools(Prefill& prefill, Decode& decode, Link& link, pool_options options = {})
      : prefill_(&prefill), decode_(&decode), link_(&link), pool_options_(options) {
    require_equal("vocabulary", prefill.limits().vocabulary, decode.limits().vocabulary);
    require_equal("context", prefill.context(), decode.context());
    if (prefill.options().end_tokens != decode.options().end_tokens || prefill.options().seed != decode.options().seed)
      throw config_error("heddle: pools: both engines should have the same end_tokens and seed; they differ");
  }

  request_id submit(request r) { return prefill_->submit(std::move(r)); }
  bool cancel(request_id id) { return end_from_outside(id, finish_reason::cancelled); }
  bool finish(request_id id) { return end_from_outside(id, finish_reason::stop); }
  /// Rows that are on their way, or wait for it, are computed again where `what` is `recompute`.
  void weights_changed(kv what) {
    prefill_->weights_changed(what);
    decode_->weights_changed(what);
    if (what != kv::recompute) return;
    for (away& a : away_)
      if (a.at == place::waiting) a.handed.computed = 0;
  }

  /// One step of each engine that has something to do, with hand-overs before and between them. Errors: what runners and the link throw; events that were there already are
  /// those of the next step.
  std::span<const event> step() {
    events_.clear();
    std::swap(events_, kept_);
    try {
      take_arrived();
      if (!prefill_->idle())
        for (const event& e : prefill_->step()) {
          events_.push_back(e);
          if (e.finish == finish_reason::none) take_out(e.id);
        }
      place_waiting();
      take_arrived();
      if (!decode_->idle())
        for (const event& e : decode_->step()) hand_on(e);
    } catch (...) {
      kept_ = std::move(events_);
      events_.clear();
      throw;
    }
    return events_;
  }

  bool failed() const noexcept { return prefill_->failed() || decode_->failed(); }
  bool idle() const noexcept { return prefill_->idle() && decode_->idle() && away_.empty() && kept_.empty(); }
  /// Of both engines together; those between them are running.
  engine_counts counts() const {
    engine_counts c = prefill_->counts();
    const engine_counts d = decode_->counts();
    c.running +=
        d.running + std::count_if(away_.begin(), away_.end(), [](const away& a) { return a.at != place::running; });
    c.waiting += d.waiting;
    c.ended += d.ended + ended_;
    c.preemptions += d.preemptions;
    c.steps += d.steps;
    c.rows += d.rows;
    c.prompt_tokens += d.prompt_tokens;
    c.answer_tokens += d.answer_tokens;
    c.proposed_tokens += d.proposed_tokens;
    c.accepted_tokens += d.accepted_tokens;
    for (std::size_t i = 0; i < c.accepted_at.size(); ++i) c.accepted_at[i] += d.accepted_at[i];
    c.cache.blocks += d.cache.blocks;
    c.cache.used += d.cache.used;
    c.cache.kept += d.cache.kept;
    c.cache.looked_up += d.cache.looked_up;
    c.cache.found += d.cache.found;
    return c;
  }
  std::int64_t context() const { return decode_->context(); }
  const step_limits& limits() const noexcept { return decode_->limits(); }
  const engine_options& options() const noexcept { return prefill_->options(); }

 private:
  enum class place : unsigned char { waiting, moving, running };
  // A request that left the engine of prompts.
  struct away {
    handed_sequence handed{};
    place at = place::waiting;
    request_id adopted = 0;
    std::chrono::steady_clock::time_point began{};
  };

  static void require_equal(const char* what, std::int64_t prefill, std::int64_t decode) {
    if (prefill != decode)
      throw config_error(std::string("heddle: pools: both engines should run the same model; the ") + what +
                         " of prompts is " + std::to_string(prefill) + ", that of answers " + std::to_string(decode));
  }

  void take_out(request_id id) {
    if (auto handed = prefill_->hand_over(id)) away_.push_back({.handed = std::move(*handed)});
  }
  // In the order of their first tokens.
  void place_waiting() {
    for (away& a : away_) {
      if (a.at != place::waiting) continue;
      const auto adopted = decode_->adopt(a.handed);
      if (!adopted) return;
      row_transfer t{.id = a.handed.id};
      if (a.handed.computed > 0) t.from_state = a.handed.state, t.to_state = adopted->state;
      t.from = rows_of(a.handed.blocks, prefill_->limits().block_rows, a.handed.computed);
      t.to = rows_of(adopted->blocks, decode_->limits().block_rows, a.handed.computed);
      a.adopted = adopted->id;
      a.at = place::moving;
      a.began = std::chrono::steady_clock::now();
      link_->begin(t);
    }
  }
  static std::vector<std::int64_t> rows_of(std::span<const std::int32_t> blocks, std::int64_t block_rows,
                                           std::int64_t rows) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < rows; ++i)
      all.push_back(blocks[static_cast<std::size_t>(i / block_rows)] * block_rows + i % block_rows);
    return all;
  }
  void take_arrived() {
    for (std::size_t i = 0; i < away_.size();) {
      away& a = away_[i];
      bool late = false;
      if (a.at == place::moving) {
        const row_progress p = link_->progress(a.handed.id);
        late = !p.all && std::chrono::steady_clock::now() - a.began >= pool_options_.arrival_timeout;
        if (late) {
          events_.push_back(last_event(a, finish_reason::error));
          events_.back().message = lateness(a, p);
          decode_->cancel(a.adopted);  // whose last event `hand_on` drops
        }
        if (p.all || late) end_move(a);
      }
      if (late)
        away_.erase(away_.begin() + static_cast<std::ptrdiff_t>(i));
      else
        ++i;
    }
  }
  void end_move(away& a) {
    link_->end(a.handed.id);
    prefill_->handed(a.handed.id);
    decode_->arrived(a.adopted);
    a.at = place::running;
  }
  event last_event(const away& a, finish_reason reason) const {
    return {.id = a.handed.id,
            .index = std::ssize(a.handed.tokens) - std::ssize(a.handed.asked.prompt),
            .finish = reason,
            .cached_prompt_tokens = a.handed.cached_prompt_tokens};
  }
  std::string lateness(const away& a, const row_progress& p) const {
    return "heddle: request " + std::to_string(a.handed.id) + ": " + std::to_string(p.arrived) + " of " +
           std::to_string(p.announced) + " rows of layer " + std::to_string(p.layer) +
           " have come to the pool of answers within " + std::to_string(pool_options_.arrival_timeout.count()) + " ms";
  }

  // An event of the engine of answers, under the id that the caller knows.
  void hand_on(const event& e) {
    const auto a = std::find_if(away_.begin(), away_.end(), [&](const away& x) { return x.adopted == e.id; });
    if (a == away_.end()) return;
    events_.push_back(e);
    events_.back().id = a->handed.id;
    if (e.finish != finish_reason::none) away_.erase(a);
  }
  bool end_from_outside(request_id id, finish_reason reason) {
    const auto end_in = [&](auto& engine, request_id there) {
      return reason == finish_reason::stop ? engine.finish(there) : engine.cancel(there);
    };
    const auto a = std::find_if(away_.begin(), away_.end(), [&](const away& x) { return x.handed.id == id; });
    if (a == away_.end()) return end_in(*prefill_, id);
    if (a->at == place::running) return end_in(*decode_, a->adopted);
    kept_.push_back(last_event(*a, reason));
    if (a->at == place::moving) {
      end_in(*decode_, a->adopted);
      end_move(*a);
    } else {
      prefill_->handed(id);
      ++ended_;
    }
    away_.erase(a);
    return true;
  }

  Prefill* prefill_;
  Decode* decode_;
  Link* link_;
  pool_options pool_options_;
  std::vector<away> away_{};
  std::int64_t ended_ = 0;
  std::vector<event> events_{}, kept_{};
};

}  // namespace heddle::inline v0::infer
