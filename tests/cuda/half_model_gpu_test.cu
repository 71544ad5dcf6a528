// A GPT-2 in bf16 on a GPU, its ranks threads that share it.
#include "half_model_trials.hpp"

TEST_CASE("a GPT-2 in bf16 trains on a GPU as on the host", "[cuda][gpu][train][bf16]") {
  half_model_trials::compare_with_host<heddle::compute::cuda>();
}
