// refuse: heddle: an optimizer's rule that acts on whole matrices needs the shapes of a stage's parameters: make them model::parameter
#include <heddle/train/optimizers/muon.hpp>
#include <heddle/train/sharded_optimizer.hpp>

#include <string>
#include <vector>

struct parameter {
  std::string name;
  int offset, count;
  bool counted, decay;
};
using optimizer = heddle::train::sharded_optimizer<float, heddle::optimizers::muon, heddle::precision<>, heddle::zero<1>>;
std::int64_t state(const std::vector<parameter>& table) {
  return optimizer(table, 17, 0, 1).state_bytes();
}
