// tests/plan/adversary_test.cpp: jobs that lie to a broker gain nothing over honest ones.
#include <heddle/core/random.hpp>
#include <heddle/plan/atomization/broker.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
namespace sja = heddle::plan::sja;

namespace {

constexpr double overhead = 5;  // set-up, and finish, of a piece in seconds; a unit takes one
constexpr double horizon = 40000;
constexpr int liar = 5;  // of the jobs, which one lies
const double infinity = std::numeric_limits<double>::infinity();

struct piece_run {  // what the cluster sees of a piece
  std::int64_t units = 0;
  double seconds = 0;
  double end = 0;
};

// A job with work left, of which the broker sees what it says. Null members: the job is honest there.
struct player;
struct strategy {
  const char* name;
  void (*say)(const player&, const sja::window&, sja::offer&) = nullptr;
  void (*make)(const player&, sja::subjob&) = nullptr;
  void (*run)(const player&, const sja::subjob&, piece_run&) = nullptr;
  bool (*bids)(const player&, const sja::window&) = nullptr;
  int copies = 1;            // of its offer
  bool other_names = false;  // its number is another one in every window
};

struct player {
  int number = 0;
  double arrival = 0;
  std::int64_t work = 0;
  const strategy* plays = nullptr;
  std::int64_t done = 0, epoch = 0;
  int pieces = 0;  // granted so far
  bool live = false;
  double ended = horizon;
  mutable int asked = 0;

  std::int64_t left() const { return work - done; }
  int id() const { return plays && plays->other_names ? 1000 + asked : number; }
  std::vector<sja::offer> offers(const sja::window& w, int) const {
    if (plays && plays->other_names) ++asked;
    if (live || left() == 0 || w.length() < 2 * overhead + 1) return {};
    if (plays && plays->bids && !plays->bids(*this, w)) return {};
    const auto n = (std::min)(left(), static_cast<std::int64_t>(w.length() - 2 * overhead));
    const auto units = static_cast<double>(n);
    if (n < left() && units < 0.8 * (units + 2 * overhead)) return {};
    sja::offer o;
    o.job = id();
    o.epoch = epoch;
    o.first = done;
    o.units = n;
    o.start = w.start;
    o.end = w.start + units + 2 * overhead;
    o.useful = units;
    o.rest = static_cast<double>(left()) + 2 * overhead;
    o.bytes = 1;
    if (!plays) return {o};
    if (plays->say) plays->say(*this, w, o);
    return std::vector<sja::offer>(static_cast<std::size_t>(plays->copies), o);
  }
  std::optional<sja::subjob> materialize(const sja::window& w, const sja::offer& o) {
    if (o.epoch != epoch) return std::nullopt;
    sja::subjob s{o.job, w.id, w.slices, o.start, o.end, o.first, o.units};
    if (plays && plays->make) plays->make(*this, s);
    return s;
  }
  void report(const sja::usage&) {}
  // Honest: as many units as it was granted, if they are so many in its time.
  piece_run run(const sja::subjob& s) const {
    piece_run r;
    const auto fit = static_cast<std::int64_t>(std::floor(s.end - s.start - 2 * overhead + 1e-9));
    r.units = (std::max)(std::int64_t{0}, (std::min)({s.units, left(), fit}));
    r.seconds = static_cast<double>(r.units);
    r.end = r.units == s.units ? s.start + r.seconds + 2 * overhead : s.end;
    if (plays && plays->run) plays->run(*this, s, r);
    return r;
  }
};

double length_of(const sja::offer& o) {
  return o.end - o.start;
}
// Cuts an offer to so many units.
void shorten(sja::offer& o, std::int64_t units) {
  o.units = (std::min)(o.units, units);
  o.useful = static_cast<double>(o.units);
  o.end = o.start + o.useful + 2 * overhead;
}
void claim_all(sja::offer& o) {  // all that may be claimed
  o.useful = length_of(o);
  o.rest = length_of(o);
  o.urgency = 1;
}

// Pieces of at most so many units that promise nothing useful. The job claims that its rest is a piece and no more; or, for
// ever the same, a little less than that, within what is not held against it.
template <std::int64_t Units>
void promise_nothing(const player&, const sja::window&, sja::offer& o) {
  shorten(o, Units);
  o.useful = 0;
  o.rest = (std::max)(length_of(o), static_cast<double>(Units) + 2 * overhead);
}
template <std::int64_t Units>
void promise_nothing_and_hide(const player&, const sja::window&, sja::offer& o) {
  const double rest = o.rest;
  shorten(o, Units);
  o.useful = 0;
  o.rest = (std::max)(length_of(o), (std::min)(rest, static_cast<double>(Units) / 1.1 + 2 * overhead));
}
// For ever the same part of its work.
template <int Part>
void claim_part(const player& p, const sja::window&, sja::offer& o) {
  o.useful = 0;
  o.rest = (std::max)(length_of(o), (static_cast<double>(p.work) + 2 * overhead) / Part);
}

const std::vector<strategy> strategies{
    {"useful 1e9", [](const player&, const sja::window&, sja::offer& o) { o.useful = 1e9; }},
    {"useful is all of the piece", [](const player&, const sja::window&, sja::offer& o) { o.useful = length_of(o); }},
    {"the whole window, for less work",
     [](const player&, const sja::window& w, sja::offer& o) {
       o.units = static_cast<std::int64_t>(w.length() - 2 * overhead);
       o.useful = static_cast<double>(o.units);
       o.end = o.start + o.useful + 2 * overhead;
       o.rest = (std::max)(o.rest, length_of(o));
     }},
    {"units that take twice as long",
     [](const player&, const sja::window&, sja::offer& o) {
       o.units *= 2;
       o.useful = length_of(o);
     }},
    {"urgency 1e6", [](const player&, const sja::window&, sja::offer& o) { o.urgency = 1e6; }},
    {"urgency 1", [](const player&, const sja::window&, sja::offer& o) { o.urgency = 1; }},
    {"trust 100", [](const player&, const sja::window&, sja::offer& o) { o.trust = 100; }},
    {"not a number", [](const player&, const sja::window&, sja::offer& o) { o.useful = o.trust = std::nan(""); }},
    {"infinite waiting", [](const player&, const sja::window&, sja::offer& o) { o.waiting = infinity; }},
    {"waits for 1e9 s", [](const player&, const sja::window&, sja::offer& o) { o.waiting = 1e9; }},
    {"negative rest", [](const player&, const sja::window&, sja::offer& o) { o.rest = -1; }},
    {"denormal rest", [](const player&, const sja::window&, sja::offer& o) { o.rest = 5e-324; }},
    {"a rest that is not told", [](const player&, const sja::window&, sja::offer& o) { o.rest = 0; }},
    {"the rest is the piece", [](const player&, const sja::window&, sja::offer& o) { o.rest = length_of(o); }},
    {"half the rest",
     [](const player&, const sja::window&, sja::offer& o) { o.rest = (std::max)(o.rest / 2, length_of(o)); }},
    {"nine tenths of the rest",
     [](const player&, const sja::window&, sja::offer& o) { o.rest = (std::max)(o.rest * 0.9, length_of(o)); }},
    {"understates, then owns up",
     [](const player& p, const sja::window&, sja::offer& o) {
       if (p.pieces == 0) o.rest = length_of(o);
     }},
    {"tells its rest in every other piece, too little of it",
     [](const player& p, const sja::window&, sja::offer& o) { o.rest = p.pieces % 2 == 0 ? length_of(o) : 0; }},
    {"a hundred times the rest", [](const player&, const sja::window&, sja::offer& o) { o.rest *= 100; }},
    {"small pieces", [](const player&, const sja::window&, sja::offer& o) { shorten(o, 40); }},
    {"small pieces that are all the rest",
     [](const player&, const sja::window&, sja::offer& o) {
       shorten(o, 40);
       o.rest = length_of(o);
     }},
    {"tiny pieces",
     [](const player&, const sja::window&, sja::offer& o) {
       o.units = 1;
       o.end = o.start + 2e-6;
       o.useful = o.rest = 2e-6;
     }},
    {"delivers nothing", nullptr, nullptr,
     [](const player&, const sja::subjob& s, piece_run& r) { r = {0, 0, s.end}; }},
    {"delivers nothing, claims all", [](const player&, const sja::window&, sja::offer& o) { claim_all(o); }, nullptr,
     [](const player&, const sja::subjob& s, piece_run& r) { r = {0, 0, s.end}; }},
    {"delivers half", nullptr, nullptr,
     [](const player&, const sja::subjob& s, piece_run& r) {
       r = {r.units / 2, static_cast<double>(r.units / 2), s.end};
     }},
    {"takes more time than it was granted",
     [](const player& p, const sja::window& w, sja::offer& o) {
       o.units = (std::min)(p.left(), o.units + 100);
       o.end = w.end;
       o.useful = (std::min)(static_cast<double>(o.units), length_of(o));
       o.rest = (std::max)(o.rest, length_of(o));
     },
     nullptr,
     [](const player&, const sja::subjob& s, piece_run& r) {
       r.units = s.units;
       r.seconds = static_cast<double>(s.units);
       r.end = s.start + r.seconds + 2 * overhead;
     }},
    {"lies in every other piece",
     [](const player& p, const sja::window&, sja::offer& o) {
       if (p.pieces % 2 == 1) claim_all(o);
     }},
    {"honest for two pieces, then lies",
     [](const player& p, const sja::window&, sja::offer& o) {
       if (p.pieces >= 2) claim_all(o);
     }},
    {"honest for two pieces, then delivers nothing in every other one", nullptr, nullptr,
     [](const player& p, const sja::subjob& s, piece_run& r) {
       if (p.pieces >= 2 && p.pieces % 2 == 0) r = {0, 0, s.end};
     }},
    {"a piece without slices", nullptr, [](const player&, sja::subjob& s) { s.slices.clear(); }},
    {"a piece with a slice twice", nullptr, [](const player&, sja::subjob& s) { s.slices.push_back(s.slices[0]); }},
    {"a piece on another slice", nullptr, [](const player&, sja::subjob& s) { s.slices[0] = 1 - s.slices[0] % 2; }},
    {"a piece of other units", nullptr, [](const player&, sja::subjob& s) { s.first += 1; }},
    {"a longer piece", nullptr, [](const player&, sja::subjob& s) { s.end += 100; }},
    {"a new name in every window", nullptr, nullptr, nullptr, nullptr, 1, true},
    {"its offer a hundred times", nullptr, nullptr, nullptr, nullptr, 100},
    {"holds back, to have waited", nullptr, nullptr, nullptr,
     [](const player& p, const sja::window& w) { return w.start > p.arrival + 500; }},
    {"bids only where its rest is short",
     [](const player& p, const sja::window&, sja::offer& o) {
       if (2 * p.left() > p.work) o.rest = (std::max)(length_of(o), o.rest / 4);
     }},
    {"promises nothing, honest else", [](const player&, const sja::window&, sja::offer& o) { o.useful = 0; }},
    {"promises nothing, the rest is the piece",
     [](const player&, const sja::window&, sja::offer& o) {
       o.useful = 0;
       o.rest = length_of(o);
     }},
    {"promises a tenth, the rest is the piece",
     [](const player&, const sja::window&, sja::offer& o) {
       o.useful /= 10;
       o.rest = length_of(o);
     }},
    {"promises nothing, pieces and rests of 40", promise_nothing<40>},
    {"promises nothing, pieces and rests of 180", promise_nothing<180>},
    {"promises nothing, pieces and rests of 220", promise_nothing<220>},
    {"promises nothing, pieces and rests of 280", promise_nothing<280>},
    {"promises nothing, pieces of 180, rests of less", promise_nothing_and_hide<180>},
    {"promises nothing, pieces of 220, rests of less", promise_nothing_and_hide<220>},
    {"promises nothing, pieces of 280, rests of less", promise_nothing_and_hide<280>},
    {"promises nothing, half of its work is left for ever", claim_part<2>},
    {"promises nothing, a quarter of its work is left for ever", claim_part<4>},
};

struct outcome {
  double own = 0;     // from its arrival to its end
  double others = 0;  // the mean of all other jobs
};

// Three slices that are free for 100 to 500 s at a time, twelve jobs of 100 to 1500 s. All measured by the cluster.
template <class Broker>
outcome play(std::uint64_t seed, const strategy* plays, Broker broker) {
  const hd::counter_random random(seed, 11);
  std::uint64_t next = 0;
  const auto uniform = [&](double low, double high) { return low + (high - low) * random.uniform(next++); };
  std::vector<player> jobs(12);
  double at = 0;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    jobs[j].number = static_cast<int>(j);
    jobs[j].arrival = at += uniform(0, 300);
    jobs[j].work = static_cast<std::int64_t>(uniform(100, 1500));
  }
  jobs[liar].plays = plays;
  struct gap {
    int slice;
    double start, end;
  };
  std::vector<gap> gaps;
  std::vector<double> times;
  for (int k = 0; k < 3; ++k)
    for (double from = uniform(0, 100); from < horizon;) {
      const double to = from + uniform(100, 500);
      gaps.push_back({k, from, to});
      times.push_back(from);
      from = to + uniform(20, 200);
    }
  for (const player& j : jobs) {
    times.push_back(j.arrival);
    broker.admit(j.number, {.arrival = j.arrival, .work = static_cast<double>(j.work)});
  }
  broker.keep_log(false);
  broker.shortest_piece(2 * overhead);
  std::sort(times.begin(), times.end());
  struct live_piece {
    sja::subjob what;
    piece_run how;
    std::size_t job;
  };
  std::vector<live_piece> live;
  std::size_t arrived = 0;
  double free_from[3] = {0, 0, 0};
  for (double now = 0; now < horizon;) {
    for (std::size_t i = 0; i < live.size();) {
      if (live[i].how.end > now) {
        ++i;
        continue;
      }
      const live_piece p = live[i];
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      player& job = jobs[p.job];
      job.live = false;
      ++job.epoch;
      ++job.pieces;
      job.done += p.how.units;
      if (job.left() == 0) job.ended = (std::min)(job.ended, now);
      broker.close(job, {p.what.window, p.what.job, p.how.units, p.how.seconds, 1, p.how.units < p.what.units}, now);
    }
    while (arrived < jobs.size() && jobs[arrived].arrival <= now) ++arrived;
    std::vector<sja::window> windows;
    for (const gap& g : gaps)
      if (g.start <= now && g.end > now && free_from[g.slice] <= now)
        windows.push_back({-1, {g.slice}, now, g.end, 10, 0});
    std::vector<player*> asked;
    for (std::size_t j = 0; j < arrived; ++j) asked.push_back(&jobs[j]);
    for (const sja::subjob& s : broker.open(std::span<const sja::window>(windows), asked, now)) {
      const auto j = static_cast<std::size_t>(s.job < 1000 ? s.job : liar);
      jobs[j].live = true;
      ++jobs[j].epoch;
      const piece_run how = jobs[j].run(s);
      REQUIRE(s.slices.size() == 1);
      REQUIRE(free_from[s.slices[0]] <= now);
      free_from[s.slices[0]] = how.end;
      live.push_back({s, how, j});
      times.insert(std::upper_bound(times.begin(), times.end(), how.end), how.end);
    }
    bool over = true;
    for (const player& j : jobs) over = over && j.left() == 0;
    const auto then = std::upper_bound(times.begin(), times.end(), now);
    if (over || then == times.end()) break;
    now = *then;
  }
  outcome o;
  for (const player& j : jobs)
    (j.number == liar ? o.own : o.others) += (j.ended - j.arrival) / (j.number == liar ? 1.0 : 11.0);
  return o;
}

}  // namespace

// Mean over seeds: nobody ends earlier by more than a twentieth because it lies, and nobody else ends that much later.
template <class Broker>
void nothing_is_gained(const char* name, const Broker& broker, std::uint64_t seeds) {
  const auto total = [&](const strategy* s) {
    outcome sum;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const outcome o = play(seed, s, broker);
      sum.own += o.own;
      sum.others += o.others;
    }
    return sum;
  };
  const outcome honest = total(nullptr);
  for (const strategy& s : strategies) {
    INFO(name << ", " << s.name << ", seeds 0 to " << seeds - 1);
    const outcome o = total(&s);
    CHECK(o.own > 0.95 * honest.own);
    CHECK(o.others < 1.05 * honest.others);
  }
}
void nothing_is_gained(std::uint64_t seeds) {
  nothing_is_gained("response_ratio", sja::broker<>{}, seeds);
  nothing_is_gained("weighted", sja::broker{sja::weighted{}}, seeds);
  nothing_is_gained("interval_clearing", sja::broker{sja::interval_clearing{}}, seeds);
}

TEST_CASE("no way to lie lets a job end earlier", "[plan][sja][exhaustive]") {
  CHECK(strategies.size() >= 20);
  nothing_is_gained(25);
}
TEST_CASE("no way to lie lets a job end earlier, with many seeds", "[plan][sja][slow]") {
  nothing_is_gained(400);
}

TEST_CASE("offers with impossible numbers win no window, and pieces that bring nothing few", "[plan][sja]") {
  // An honest job of long pieces beside a liar, for 20 windows. Every piece of the liar reports no units and an overrun.
  struct candidate {
    int number;
    void (*change)(sja::offer&);
    int id() const { return number; }
    std::vector<sja::offer> offers(const sja::window& w, int) const {
      sja::offer o;
      o.job = number;
      o.units = 80;
      o.start = w.start;
      o.end = w.start + 90;
      o.useful = 80;
      o.rest = 1e5;
      o.bytes = 1;
      change(o);
      return {o};
    }
    std::optional<sja::subjob> materialize(const sja::window& w, const sja::offer& o) {
      return sja::subjob{number, w.id, w.slices, o.start, o.end, o.first, o.units};
    }
    void report(const sja::usage&) {}
  };
  using change = void (*)(sja::offer&);
  const auto wins = [](change lie, auto broker) {
    std::vector<candidate> jobs{{0, [](sja::offer&) {}}, {1, lie}};
    int won = 0;
    for (int k = 0; k < 20; ++k) {
      const sja::window w{-1, {0}, 100.0 * k, 100.0 * k + 100, 10, 0};
      for (const sja::subjob& s : broker.open(std::span<const sja::window>(&w, 1), jobs, w.start)) {
        won += s.job;
        const bool honest = s.job == 0;
        broker.close(jobs[static_cast<std::size_t>(s.job)],
                     {s.window, s.job, honest ? 80 : 0, honest ? 80.0 : 0.0, 1, !honest}, s.end);
      }
    }
    CHECK(sja::broken_rule(broker.log()) == "");
    return won;
  };
  for (const change lie :
       {change{[](sja::offer& o) { o.useful = 1e9; }}, change{[](sja::offer& o) { o.trust = 100; }},
        change{[](sja::offer& o) { o.urgency = 1e6; }}, change{[](sja::offer& o) { o.waiting = std::nan(""); }},
        change{[](sja::offer& o) { o.useful = infinity; }}, change{[](sja::offer& o) { o.rest = infinity; }},
        change{[](sja::offer& o) { o.bytes = -1; }}}) {
    CHECK(wins(lie, sja::broker<>{}) == 0);
    CHECK(wins(lie, sja::broker{sja::weighted{}}) == 0);
    CHECK(wins(lie, sja::broker{sja::weighted{}, sja::interval_clearing{}}) == 0);
  }
  for (const change lie : {change{[](sja::offer&) {}}, change{[](sja::offer& o) { o.urgency = 1; }},
                           change{[](sja::offer& o) { o.useful = o.end - o.start; }}}) {
    CHECK(wins(lie, sja::broker<>{}) <= 2);
    CHECK(wins(lie, sja::broker{sja::weighted{}}) <= 2);
  }
}

TEST_CASE("trust follows from what pieces brought, and from nothing else", "[plan][sja]") {
  // 100 s, of which 80 useful in 80 units; memory of the window 10.
  const sja::promise p{0, 100, 80, 80, 4, 10};
  const auto after = [&](const sja::usage& u, double now) {
    sja::job_record r;
    r.granted(p, 0, 0);
    r.ended(p, u, now);
    return r.trust();
  };
  CHECK(after({0, 0, 80, 80, 4, false}, 100) == 1);
  CHECK(after({0, 0, 80, 56, 4, false}, 76) == 1);  // faster units: the useful part is 0.74, less than a tenth off
  CHECK(after({0, 0, 60, 60, 4, true}, 100) == Approx(60.0 / 80 * 0.6 / 0.8));  // fewer units, and less of the time
  CHECK(after({0, 0, 60, 60, 4, true}, 75) == Approx(60.0 / 80));               // but it gave the slice back
  CHECK(after({0, 0, 80, 40, 4, false}, 100) == Approx(0.5));                   // half as useful as promised
  CHECK(after({0, 0, 80, 80, 4, false}, 101) == sja::job_record::worst);        // behind its end
  CHECK(after({0, 0, 80, 80, 11, false}, 100) == sja::job_record::worst);       // more memory than there was
  CHECK(after({0, 0, 0, 0, 0, true}, 100) == sja::job_record::worst);
  // It falls at once and comes back slowly; small pieces bring little of it back.
  sja::job_record r;
  const auto run = [&](const sja::promise& q, std::int64_t units) {
    r.granted(q, 0, 0);
    r.ended(q, {0, 0, units, static_cast<double>(units), 4, units < q.units}, q.end);
  };
  run(p, 80);
  run(p, 0);
  run(p, 0);
  run(p, 0);
  CHECK(r.trust() == sja::job_record::least);
  run({0, 1, 0.8, 1, 4, 10}, 1);
  CHECK(r.trust() < 0.051);
  run(p, 80);
  CHECK(r.trust() == Approx(0.05 + 0.1 * 0.95).epsilon(0.02));
  CHECK(r.delivered() == 161);  // the small piece promised 0.8 s, and did 1
}

TEST_CASE("a job that promises less than it does moves on by what was measured", "[plan][sja]") {
  sja::job_record r;
  const sja::promise p{0, 100, 0, 80, 0, 0};  // 80 units, none of them useful
  r.granted(p, 100, r.progress());
  r.ended(p, {0, 0, 80, 80, 0, false}, 90);
  CHECK(r.delivered() == 80);
  sja::offer o;
  o.end = 100;
  o.rest = 100;  // as before, though 80 of them are done
  r.believe(o, 90, r.progress(), 0);
  CHECK(o.trust == Approx(100.0 / 180));
  CHECK(o.rest == Approx(180));
  // Not more than the time that it occupied.
  r.granted(p, 0, r.progress());
  r.ended(p, {0, 0, 80, 500, 0, false}, 50);
  CHECK(r.delivered() == 80 + 50);
}

TEST_CASE("a rest that grows behind a granted piece is held against a job", "[plan][sja]") {
  sja::job_record r;
  const sja::promise p{0, 100, 80, 80, 0, 0};
  r.granted(p, 100, r.progress());  // it says that this is all
  r.ended(p, {0, 0, 80, 80, 0, false}, 100);
  CHECK(r.trust() == 1);
  sja::offer o;
  o.end = 100;
  o.rest = 120;  // but 80 + 120 is 100 more than it said
  r.believe(o, 100, r.progress(), 0);
  CHECK(o.trust == Approx(0.5));
  CHECK(o.rest == Approx(240));
  o.rest = 20;  // as it said
  o.end = 20;
  r.believe(o, 100, r.progress(), 0);
  CHECK(o.trust == 1);
  CHECK(o.rest == 20);
}

TEST_CASE("a job is urgent by what it was admitted with", "[plan][sja]") {
  sja::job_record r({.arrival = 10, .deadline = 1010, .work = 100});
  CHECK(r.urgency(10) == Approx(0.1));
  CHECK(r.urgency(910) == 1);
  CHECK(r.urgency(2000) == 1);
  CHECK(sja::job_record{}.urgency(1e9) == 0);
  CHECK(r.waiting(60) == 50);
  sja::broker<> broker;
  broker.admit(4, {.arrival = 10, .deadline = 1010, .work = 100});
  const int id = broker.announce({-1, {0}, 0, 10, 0, 0});
  CHECK_FALSE(broker.bid_for(id, 5, {}, 0));
  CHECK(std::string(broker.last_refusal().why) == "was not admitted");
  CHECK(broker.bid_for(id, 4, {}, 0));
  CHECK_THROWS_WITH(broker.admit(4, {}), Catch::Matchers::Contains("job 4 has been admitted before"));
  CHECK_THROWS_AS(broker.admit(6, {.arrival = std::nan("")}), hd::config_error);
  CHECK_THROWS_AS(broker.admit(6, {.work = -1}), hd::config_error);
  CHECK_THROWS_AS(broker.shortest_piece(0), hd::config_error);
  // Who is retired behind its bid gets no piece.
  broker.admit(7, {});
  const int next = broker.announce({-1, {1}, 0, 10, 0, 0});
  sja::offer o;
  o.job = 7;
  o.units = 1;
  o.end = 5;
  o.waiting = 1e9;
  CHECK(broker.bid_for(next, 7, {o}, 0));
  broker.retire(7);
  std::vector<player*> nobody;
  CHECK(broker.clear(next, nobody, 0).empty());
  CHECK_THAT(broker.last_refusal().why, Catch::Matchers::Contains("was retired"));
  broker.retire(4);
  CHECK(broker.records() == 0);
}

TEST_CASE("a broker's books are bounded", "[plan][sja]") {
  sja::broker<> broker;
  const int rounds = 80000;
  for (int k = 0; k < rounds; ++k) {
    const int id = broker.announce({-1, {0}, 1.0 * k, k + 1.0, 0, 1.0 * k});
    sja::offer o;
    o.job = k;  // every bid comes from another job
    o.units = 1;
    o.start = k;
    o.end = k + 1;
    REQUIRE(broker.bid_for(id, k, {o}, k));
    std::vector<player*> nobody;
    broker.clear(id, nobody, k);
  }
  CHECK(broker.windows() == rounds);
  CHECK(broker.records() <= sja::ledger::most);
  CHECK(broker.record(rounds - 1) != nullptr);
  CHECK(broker.record(0) == nullptr);
  CHECK(broker.log().size() <= sja::broker<>::log_limit);
  CHECK(broker.announced(rounds - 1).start == rounds - 1);
  CHECK_THROWS_WITH(broker.announced(0), Catch::Matchers::Contains("window 0 has been forgotten"));
  CHECK_THROWS_AS(broker.bid_for(0, 1, {}, 0), hd::config_error);
}
