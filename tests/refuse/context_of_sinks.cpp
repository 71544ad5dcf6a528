// refuse: heddle: under a context split heads have no sinks (GPT-OSS): leave the context split out of the sharding
#include <heddle/model/layers/attention.hpp>

struct layer_with_sinks {
  static constexpr bool has_sinks = true;
};
struct call_with_documents {
  const layer_with_sinks& layer() const;
};
void forward() {
  heddle::model::layers::detail::require_no_window<call_with_documents>();
}
