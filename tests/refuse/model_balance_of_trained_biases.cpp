// refuse: heddle: balance_experts takes all frozen parameters for selection biases: describe the model with train_only<all_but_selection_bias>
#include <heddle/model/balance_experts.hpp>

#include <span>
#include <vector>

namespace hd = heddle;
struct stage {
  using scalar = float;
  using space = hd::host_memory;
  using trained = hd::model::layers::every_parameter;
  using mesh_type = hd::mesh<>;
  struct parameter {
    std::int64_t offset = 0, count = 0;
  };
  struct layouts {
    using row_axes = hd::type_list<>;
    using sequence_splits = hd::type_list<>;
  };
  struct memory {
    std::span<double> load_of(const void*, std::int64_t) { return {}; }
    void clear_loads() {}
  };
  std::vector<parameter> frozen_parameters() { return {}; }
  std::span<float> frozen_weights() { return {}; }
  memory routing() { return {}; }
};
struct kernels {};
void body(hd::compute::ops::balance_bias, kernels&, std::int64_t, const float*, float, float*);
void use(stage s, kernels k, int world) {
  hd::model::balance_experts(s, world, k, 0.001);
}
