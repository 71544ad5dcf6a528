// heddle/infer/pools.hpp: an engine for prompts and one for answers that look like one engine.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/engine_lane.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/hand_over.hpp>
#include <heddle/infer/kv.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <concepts>
#include <exception>
#include <functional>
#include <limits>
#include <span>
#include <type_traits>
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
/// `while (runner.follow() == followed::interrupted) mover.follow();` with the runner that they belong to. Rows arrive when pools ask for them the first time.
/// With a lane, rank 0 leads the runner of answers alone, and the lane's thread that of prompts: `there` is that rank's mover. Then at most `rows_at_once` rows move between two steps, and
/// no step of prompts begins before all are there.
template <class From, class To, class Mover, class Lane = in_turn>
class mover_link {
 public:
  static constexpr bool stops_prompts = !std::is_same_v<Lane, in_turn>;

  mover_link(From& prefill, To& decode, Mover& mover)
    requires(!stops_prompts)
      : mover_link(prefill, decode, mover, mover, always_, (std::numeric_limits<std::int64_t>::max)()) {}
  mover_link(From& prefill, To& decode, Mover& mover, Mover& there, Lane& lane, std::int64_t rows_at_once = 64)
      : prefill_(&prefill), decode_(&decode), mover_(&mover), there_(&there), lane_(&lane), at_once_(rows_at_once) {
    if (rows_at_once < 1)
      throw config_error("heddle: mover_link: at least 1 row should move at once, got " + std::to_string(rows_at_once));
  }
  void begin(const row_transfer& t) { under_way_.push_back({t, 0}); }
  row_progress progress(request_id id) {
    moving& m = *with_id(id);
    const std::size_t all = m.what.from.size();
    if (m.arrived < all) {
      const std::size_t n = (std::min)(all - m.arrived, static_cast<std::size_t>(at_once_));
      carry(m.what, m.arrived, n, m.arrived + n == all);
      m.arrived += n;
      rows_ += static_cast<std::int64_t>(n);
    }
    return {.all = m.arrived == all,
            .arrived = static_cast<std::int64_t>(m.arrived),
            .announced = static_cast<std::int64_t>(all)};
  }
  void end(request_id id) { under_way_.erase(with_id(id)); }
  /// Rows that it has carried.
  std::int64_t rows() const noexcept { return rows_; }

 private:
  struct moving {
    row_transfer what{};
    std::size_t arrived = 0;
  };
  auto with_id(request_id id) {
    return std::find_if(under_way_.begin(), under_way_.end(), [&](const moving& m) { return m.what.id == id; });
  }
  void carry(const row_transfer& t, std::size_t first, std::size_t n, bool last) {
    decode_->interrupt();  // which may throw: before the lane has work that waits for `lead`
    lane_->start([this] {
      prefill_->interrupt();
      if constexpr (stops_prompts) there_->follow();
    });
    mover_->lead(std::span<const std::int64_t>(t.from).subspan(first, n),
                 std::span<const std::int64_t>(t.to).subspan(first, n), last ? t.from_state : -1,
                 last ? t.to_state : -1);
    lane_->wait();
  }

  static inline in_turn always_{};
  From* prefill_;
  To* decode_;
  Mover* mover_;
  Mover* there_;
  Lane* lane_;
  std::int64_t at_once_;
  std::vector<moving> under_way_{};
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
/// must outlive it; nobody else calls the engines. With a lane, steps of prompts run on its thread, at the same time as those of answers; what is asked of their
/// engine meanwhile is done when the step ends. Without, they run one after the other.
/// Errors: `config_error` for engines of another vocabulary, context, end tokens or seed.
/// Source: Zhong et al., "DistServe", OSDI 2024, arXiv:2401.09670; Patel et al., "Splitwise", ISCA 2024, arXiv:2311.18677.
template <class Prefill, class Decode, pool_link Link, class Lane = in_turn>
class pools {
 public:
  using decoding = typename Decode::decoding;

  pools(Prefill& prefill, Decode& decode, Link& link, pool_options options = {})
    requires std::is_same_v<Lane, in_turn>
      : pools(prefill, decode, link, always_, options) {}
  pools(Prefill& prefill, Decode& decode, Link& link, Lane& lane, pool_options options = {})
      : prefill_(&prefill), decode_(&decode), link_(&link), lane_(&lane), pool_options_(options) {
    require_equal("vocabulary", prefill.limits().vocabulary, decode.limits().vocabulary);
    require_equal("context", prefill.context(), decode.context());
    if (prefill.options().end_tokens != decode.options().end_tokens || prefill.options().seed != decode.options().seed)
      throw config_error("heddle: pools: both engines should have the same end_tokens and seed; they differ");
  }
  pools(const pools&) = delete;
  pools& operator=(const pools&) = delete;
  ~pools() {
    try {
      lane_->wait();
    } catch (...) {  // of a step whose events nobody asks for
    }
  }

  request_id submit(request r) {
    if (!defers()) return inside_.emplace_back(prefill_->submit(std::move(r)));
    prefill_->require(r);
    const std::int64_t most = prefill_->options().max_waiting;
    if (most > 0 && prompt_counts_.waiting + deferred_ >= most)
      throw queue_full_error("heddle: " + std::to_string(most) + " requests wait, as many as may");
    later_.push_back([this, r = std::move(r)]() mutable { prefill_->submit(std::move(r)); });
    return inside_.emplace_back(last_id_ + static_cast<request_id>(++deferred_));
  }
  bool cancel(request_id id) { return end_from_outside(id, finish_reason::cancelled); }
  bool finish(request_id id) { return end_from_outside(id, finish_reason::stop); }
  /// Rows that are on their way, or wait for it, are computed again where `what` is `recompute`. Call `settle` before weights are written.
  void weights_changed(kv what) {
    settle();
    prefill_->weights_changed(what);
    decode_->weights_changed(what);
    if (what != kv::recompute) return;
    for (away& a : away_)
      if (a.at == place::waiting) a.handed.computed = 0;
  }
  /// Waits until no step of prompts runs, and does what was asked meanwhile. What the step threw, the next `step` throws.
  void settle() {
    try {
      lane_->wait();
    } catch (...) {
      error_ = std::current_exception();
    }
    for (std::size_t i = 0; i < later_.size(); ++i) later_[i]();
    later_.clear();
    deferred_ = 0;
  }

  /// One step of answers, if there are some, and one of prompts, with hand-overs between them; with a lane, one of prompts where none runs. Errors: what runners and the link
  /// throw; events that were there already are those of the next step.
  std::span<const event> step() {
    events_.clear();
    std::swap(events_, kept_);
    try {
      if (!lane_->busy()) {
        between_steps();
        if (!prefill_->idle() && !stopped()) {
          last_id_ = prefill_->last_id();
          prompt_counts_ = prefill_->counts();
          lane_->start([this] { prompt_events_ = prefill_->step(); });
          if (!lane_->busy()) between_steps();
        }
      }
      if (!decode_->idle())
        for (const event& e : decode_->step()) hand_on(e);
      else
        lane_->wait();
    } catch (...) {
      kept_ = std::move(events_);
      events_.clear();
      throw;
    }
    return events_;
  }

  bool failed() const noexcept { return (!lane_->busy() && prefill_->failed()) || decode_->failed(); }
  bool idle() const noexcept {
    return !lane_->busy() && prompt_events_.empty() && later_.empty() && prefill_->idle() && decode_->idle() &&
           away_.empty() && kept_.empty();
  }
  /// Of both engines together; those between them are running. While a step of prompts runs, those of that engine are of its beginning.
  engine_counts counts() const {
    engine_counts c = lane_->busy() ? prompt_counts_ : prefill_->counts();
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

  // Whether what is asked of the engine of prompts waits for the end of its step.
  bool defers() const { return lane_->busy() || !later_.empty(); }
  template <class F>
  void ask_prompts(F&& f) {
    if (defers())
      later_.emplace_back(std::forward<F>(f));
    else
      f();
  }
  // Whether rows of prompts are to arrive before the next step of that engine.
  bool stopped() const {
    if constexpr (requires { requires Link::stops_prompts; })
      return std::any_of(away_.begin(), away_.end(), [](const away& a) { return a.at == place::moving; });
    else
      return false;
  }
  void between_steps() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    lane_->wait();
    for (const event& e : std::exchange(prompt_events_, {})) {
      const bool last = e.finish != finish_reason::none;
      if (std::count(gone_.begin(), gone_.end(), e.id) > 0) {
        if (last) std::erase(gone_, e.id);
        continue;
      }
      events_.push_back(e);
      if (last)
        std::erase(inside_, e.id);
      else
        take_out(e.id);
    }
    settle();
    place_waiting();
    take_arrived();
  }
  void take_out(request_id id) {
    std::erase(inside_, id);
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
    ask_prompts([this, id = a.handed.id] { prefill_->handed(id); });
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
    if (a == away_.end()) {
      if (std::erase(inside_, id) == 0) return false;
      if (!defers()) return end_in(*prefill_, id);
      kept_.push_back({.id = id, .finish = reason});
      gone_.push_back(id);
      later_.push_back([this, end_in, id] { end_in(*prefill_, id); });
      return true;
    }
    if (a->at == place::running) return end_in(*decode_, a->adopted);
    kept_.push_back(last_event(*a, reason));
    if (a->at == place::moving) {
      end_in(*decode_, a->adopted);
      end_move(*a);
    } else {
      ask_prompts([this, id] { prefill_->handed(id); });
      ++ended_;
    }
    away_.erase(a);
    return true;
  }

  static inline in_turn always_{};
  Prefill* prefill_;
  Decode* decode_;
  Link* link_;
  Lane* lane_;
  pool_options pool_options_;
  std::vector<away> away_{};
  std::int64_t ended_ = 0;
  std::vector<event> events_{}, kept_{};
  std::span<const event> prompt_events_{};      // of a step that nobody has looked at
  std::vector<std::function<void()>> later_{};  // for the engine of prompts, when its step ends
  std::vector<request_id> inside_{}, gone_{};   // in that engine; of these, those that have had their last event
  request_id last_id_ = 0;                      // of that engine when its step began
  std::int64_t deferred_ = 0;                   // requests in `later_`
  engine_counts prompt_counts_{};
  std::exception_ptr error_{};
};
template <class Prefill, class Decode, class Link>
pools(Prefill&, Decode&, Link&) -> pools<Prefill, Decode, Link>;
template <class Prefill, class Decode, class Link>
pools(Prefill&, Decode&, Link&, pool_options) -> pools<Prefill, Decode, Link>;

}  // namespace heddle::inline v0::infer
