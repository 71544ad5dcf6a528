// Logs of the protocol between a broker and its jobs: a rule that is broken stays broken, whatever follows.
#include <heddle/plan/atomization/protocol.hpp>

#include "fuzz.hpp"

#include <limits>
#include <span>

HEDDLE_FUZZ_TARGET(atomization) {
  namespace sja = heddle::plan::sja;
  fuzz::bytes in(data, size);
  const auto number = [&]() -> double {
    const int n = in.below(40);
    return n == 39   ? std::numeric_limits<double>::quiet_NaN()
           : n == 38 ? std::numeric_limits<double>::infinity()
                     : n - 2;
  };
  const auto offer = [&] {
    sja::offer o;
    o.job = in.below(4) - 1;
    o.epoch = in.below(3);
    o.units = in.below(9);
    o.start = number();
    o.end = number();
    return o;
  };
  std::vector<sja::message> log;
  while (!in.empty() && log.size() < 200) {
    sja::message m;
    m.at = number();
    const int window = in.below(4);
    switch (in.below(6)) {
      case 0:
        m.what = sja::announcement{{window, {in.below(3), in.below(3)}, number(), number(), number(), 0}, number()};
        break;
      case 1: {
        sja::bid b{window, in.below(4) - 1, {}};
        for (int n = in.below(3); n > 0; --n) b.offers.push_back(offer());
        m.what = b;
        break;
      }
      case 2:
        m.what = sja::grant{window, offer()};
        break;
      case 3:
        m.what = sja::decline{window, in.below(4) - 1};
        break;
      case 4:
        m.what = sja::withdrawal{window};
        break;
      default: {
        sja::usage u;
        u.window = window;
        u.job = in.below(4) - 1;
        m.what = sja::report{u};
      }
    }
    log.push_back(m);
  }
  const std::span<const sja::message> all(log);
  const bool parallel = in.byte() % 2 != 0;
  const auto broken = [&](std::size_t messages, bool ended) {
    return sja::broken_rule(all.first(messages), [&](int) { return parallel; }, ended);
  };
  const std::string whole = broken(log.size(), false);
  fuzz::require(whole.empty() || broken(log.size(), true) == whole, "the end of a run mends nothing");
  int told = 0;
  for (int w = 0; w < 4; ++w) {
    const auto n = sja::count_messages(all, w);
    told += n.announcements + n.bids + n.grants + n.declines + n.withdrawals + n.reports;
    fuzz::require(!whole.empty() || n.announcements <= 1, "a window is announced once");
    fuzz::require(!whole.empty() || n.declines <= n.grants, "only grants are declined");
  }
  fuzz::require(told == static_cast<int>(log.size()), "every message is counted once");
}
