// refuse: broker<...> got two policies of one kind; keep one of them
#include <heddle/plan/atomization/broker.hpp>

namespace sja = heddle::plan::sja;

int main() {
  const sja::broker both{sja::one_winner{}, sja::interval_clearing{}};
  return both.windows();
}
