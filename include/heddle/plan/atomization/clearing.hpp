// heddle/plan/atomization/clearing.hpp: algorithms that choose among jobs' offers.
#pragma once

#include <heddle/plan/atomization/profile.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// The kind of policies that score offers.
struct score_kind {};
/// The kind of policies that choose among scored offers.
struct clearing_kind {};

/// What a job answers to an announced window: the piece it could make. Nothing is made yet. A broker puts what it knows
/// itself in the place of waiting, rest, urgency and trust before it scores an offer.
struct offer {
  int job = -1;
  std::int64_t epoch = 0;  ///< of the job when it answered; a grant is void if the job has moved on
  std::int64_t first = 0;  ///< units of work before the piece
  std::int64_t units = 0;
  double start = 0;    ///< of the piece, in the window
  double end = 0;      ///< the time it does not exceed, with high probability
  double useful = 0;   ///< seconds of its units; the rest is set-up, finish and margin
  double bytes = 0;    ///< mean memory
  double waiting = 0;  ///< seconds since the job last made progress, or since it came
  double rest = 0;     ///< seconds that all the job's remaining units take, this piece's among them; 0: not told
  double urgency = 0;  ///< 0: no deadline or a distant one; 1: it must run now
  double trust = 1;    ///< how far its declared profile has held
  double score = 0;    ///< set by the broker
  double weight() const noexcept { return score * useful; }
};

/// The score of the paper (arXiv 2509.19086); in heddle's study jobs wait longer with it than with `response_ratio`.
/// score = trust (a1 useful / window + a2 waiting / longest waiting + a3 urgency - a4 unused memory / memory). Of a window
/// without an end, only the piece's own time counts; of one without a limit of memory, none is used.
struct weighted {
  using kind = score_kind;
  double useful = 1;   ///< a1
  double waiting = 1;  ///< a2: without ageing, jobs with long smallest pieces may never win
  double urgency = 1;  ///< a3
  double unused = 0;   ///< a4

  double operator()(const offer& o, const window& w, double longest_waiting) const noexcept {
    const double length = std::isfinite(w.length()) ? w.length() : o.end - o.start;
    double s = useful * o.useful / length + urgency * o.urgency;
    if (longest_waiting > 0) s += waiting * o.waiting / longest_waiting;
    if (w.bytes > 0) s -= std::isfinite(w.bytes) ? unused * (w.bytes - o.bytes) / w.bytes : unused;
    return s * o.trust;
  }
};

/// score = trust (1 + waiting / rest), times `cut` if the piece leaves a rest. The highest ratio of response to service
/// goes first: short rests before long ones, and nobody waits for ever. A `cut` below 1 spares set-ups: jobs that a window
/// completes go before those that it cuts. What brokers use if nothing else is said.
/// Source: Brinch Hansen, Operating System Principles, 1973, section 5.2.
struct response_ratio {
  using kind = score_kind;
  double cut = 1;
  double operator()(const offer& o, const window& /*w*/, double /*longest_waiting*/) const noexcept {
    const bool whole = o.end - o.start >= o.rest * (1 - 1e-12);
    return o.trust * (whole ? 1 : cut) * (1 + (o.rest > 0 ? o.waiting / o.rest : 0));
  }
};

namespace detail {
// Weighted interval scheduling over offers whose weights may be taken away. Sorted once.
class interval_choice {
 public:
  explicit interval_choice(std::span<const offer> offers) {
    for (std::size_t i = 0; i < offers.size(); ++i)
      if (offers[i].weight() > 0) order_.push_back(i);
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return offers[a].end != offers[b].end ? offers[a].end < offers[b].end : a < b;
    });
    before_.reserve(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const offer& o = offers[order_[i]];
      weight_.push_back(o.weight());
      before_.push_back(
          static_cast<std::size_t>(std::partition_point(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(i),
                                                        [&](std::size_t k) { return offers[k].end <= o.start; }) -
                                   order_.begin()));
    }
    best_.resize(order_.size() + 1, 0.0);
  }

  /// The places, in the order of time, of the heaviest that do not overlap; none without a weight.
  std::vector<std::size_t> choose() {
    for (std::size_t i = 0; i < order_.size(); ++i) best_[i + 1] = (std::max)(best_[i], weight_[i] + best_[before_[i]]);
    std::vector<std::size_t> chosen;
    for (std::size_t i = order_.size(); i > 0;) {
      if (best_[i] == best_[i - 1]) {
        --i;
        continue;
      }
      chosen.push_back(i - 1);
      i = before_[i - 1];
    }
    std::reverse(chosen.begin(), chosen.end());
    return chosen;
  }
  std::size_t offer_at(std::size_t place) const { return order_[place]; }
  double weight(std::size_t place) const { return weight_[place]; }
  void drop(std::size_t place) { weight_[place] = 0; }

 private:
  std::vector<std::size_t> order_;   // of the offers, by their ends
  std::vector<std::size_t> before_;  // how many of them end before each starts
  std::vector<double> weight_, best_;
};
}  // namespace detail

/// The offers, by index, that do not overlap and have the largest total weight; none with a weight of 0 or less. In the
/// order of time. Weighted interval scheduling, O(n log n).
inline std::vector<std::size_t> heaviest_disjoint(std::span<const offer> offers) {
  detail::interval_choice choice(offers);
  std::vector<std::size_t> chosen = choice.choose();
  for (std::size_t& c : chosen) c = choice.offer_at(c);
  return chosen;
}

/// One piece per window: the highest score, of equals the lowest job.
struct one_winner {
  using kind = clearing_kind;
  static constexpr int pieces_offered = 1;
  std::vector<std::size_t> operator()(std::span<const offer> offers) const {
    std::size_t best = offers.size();
    for (std::size_t i = 0; i < offers.size(); ++i)
      if (best == offers.size() || offers[i].score > offers[best].score ||
          (offers[i].score == offers[best].score && offers[i].job < offers[best].job))
        best = i;
    return best < offers.size() ? std::vector<std::size_t>{best} : std::vector<std::size_t>{};
  }
};

/// Several pieces one after the other in one window, of different jobs, with the largest total of score times useful
/// time. A job that is chosen twice keeps the heavier piece, and the rest is chosen again. With `first_only` only the
/// earliest of them is granted, and what is behind it is announced again when it has ended: a job that is booked for later
/// waits even if another slice comes free.
struct interval_clearing {
  using kind = clearing_kind;
  static constexpr int pieces_offered = 7;  ///< by each job: for the window, its halves, its quarters
  bool first_only = false;

  std::vector<std::size_t> operator()(std::span<const offer> offers) const {
    std::vector<std::size_t> chosen = without_repeats(offers);
    if (first_only && chosen.size() > 1) chosen.resize(1);
    return chosen;
  }

 private:
  static std::vector<std::size_t> without_repeats(std::span<const offer> offers) {
    detail::interval_choice choice(offers);
    for (;;) {
      std::vector<std::size_t> chosen = choice.choose();
      bool again = false;
      for (std::size_t a = 0; a < chosen.size() && !again; ++a)
        for (std::size_t b = a + 1; b < chosen.size() && !again; ++b) {
          if (offers[choice.offer_at(chosen[a])].job != offers[choice.offer_at(chosen[b])].job) continue;
          choice.drop(choice.weight(chosen[a]) < choice.weight(chosen[b]) ? chosen[a] : chosen[b]);
          again = true;
        }
      if (again) continue;
      for (std::size_t& c : chosen) c = choice.offer_at(c);
      return chosen;
    }
  }
};

}  // namespace heddle::inline v0::plan::sja
