// Partial results of attention merged on a GPU: the host's.
#include "merge_trials.hpp"

TEST_CASE("partial results of attention are merged on a GPU as on the host", "[cuda][context][gpu]") {
  merge_trials::compare_all_with_host<heddle::compute::cuda>();
}
