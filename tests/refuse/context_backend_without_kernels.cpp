// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them
// and: context_facet
#include <heddle/comm/threads.hpp>
#include <heddle/context/execute.hpp>

#include <concepts>

namespace hc = heddle::compute;

// Attends, but does not merge what others have attended.
struct attends_only {
  template <std::derived_from<hc::ops::attention_operation> Op, class T>
  void run(const auto&...) {}
};

void attend(attends_only& backend, heddle::threads_communicator& ranks, const heddle::context_program& program) {
  heddle::context_executor<float, attends_only, heddle::threads_communicator>(backend, ranks)
      .attend(program, {}, {}, {}, 1.0F, {}, {});
}
