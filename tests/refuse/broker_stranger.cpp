// refuse: broker<...> takes a score (weighted, response_ratio) and a clearing (one_winner, interval_clearing)
#include <heddle/plan/atomization/broker.hpp>

namespace sja = heddle::plan::sja;

int main() {
  const sja::broker safe{sja::weighted{}, sja::normal_safety(0.01)};  // safety is the jobs'
  return safe.windows();
}
