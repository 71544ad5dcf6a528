// refuse: heddle: under a context split attention alone sees other rows of a document: this layer reads whole samples
#include <heddle/model/layers/call.hpp>

struct layer_of_images;
struct call_with_documents {
  static constexpr bool has_context = true;
};
void forward() { heddle::model::layers::detail::require_whole_samples<layer_of_images, call_with_documents>(); }
