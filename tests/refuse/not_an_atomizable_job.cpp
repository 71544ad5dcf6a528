// refuse: a job has id(), offers(window, most), materialize(window, offer) and report(usage); see atomizable_job
#include <heddle/plan/atomization/broker.hpp>

#include <vector>

namespace sja = heddle::plan::sja;

struct rigid_job {
  int id() const { return 0; }
};

int main() {
  sja::broker<> broker;
  std::vector<rigid_job> jobs(1);
  return static_cast<int>(broker.open({}, jobs, 0).size());
}
