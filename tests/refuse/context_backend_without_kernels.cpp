// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them
// and: context_facet
#include <heddle/comm/threads.hpp>
#include <heddle/context/execute.hpp>

#include <span>

namespace hc = heddle::compute;

// Attends, but does not merge what others have attended.
struct attends_only {
  void attention(hc::head_rows<const float>, hc::head_rows<const float>, hc::head_rows<const float>,
                 std::span<const hc::attention_slice>, float, hc::head_rows<float>, std::span<float>, hc::key_pages) {}
  void attention_backward(hc::head_rows<const float>, hc::head_rows<const float>, hc::head_rows<const float>,
                          hc::head_rows<const float>, hc::head_rows<const float>, std::span<const float>,
                          std::span<const hc::attention_slice>, float, hc::head_rows<float>, hc::head_rows<float>,
                          hc::head_rows<float>, hc::key_pages) {}
};

void attend(attends_only& backend, heddle::threads_communicator& ranks, const heddle::context_program& program) {
  heddle::context_executor<float, attends_only, heddle::threads_communicator>(backend, ranks)
      .attend(program, {}, {}, {}, 1.0F, {}, {});
}
