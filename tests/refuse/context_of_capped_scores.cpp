// refuse: heddle: under a context split scores have no cap (Gemma-2): leave the context split out of the sharding
#include <heddle/model/layers/attention.hpp>

struct layer_with_cap {
  static constexpr bool caps_scores = true;
};
struct call_with_documents {
  const layer_with_cap& layer() const;
};
void forward() {
  heddle::model::layers::detail::require_no_window<call_with_documents>();
}
