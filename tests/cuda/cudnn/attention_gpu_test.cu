// Attention by cuDNN on a GPU, against the host's in double.
#include <heddle/compute/cudnn.hpp>

#include "attention_trials.hpp"

#include <heddle/tensor/cuda/graph.hpp>

namespace {
namespace hd = heddle;
namespace co = heddle::compute;
using backend = co::cuda_with_cudnn;
}  // namespace

TEMPLATE_TEST_CASE("attention by cuDNN on a GPU is the host's", "[cuda][gpu][cudnn]", hd::bf16, hd::f16) {
  for (const co::attention_shape& s : {co::attention_shape{1, 64, 2, 64}, co::attention_shape{3, 77, 4, 64},
                                       co::attention_shape{2, 130, 2, 128}, co::attention_shape{1, 33, 2, 40}}) {
    CAPTURE(s.batch, s.sequence, s.heads, s.head_dim);
    backend_trials::trial<backend, float> t;
    packed_attention::problem<backend, TestType> p(t, s, 11);
    p.forward();
    p.backward();
    CHECK(p.error() < 2e-2);
    auto graph = hd::cuda_graph::capture(t.backend.queue(), [&] {
      p.forward();
      p.backward();
    });
    t.backend.queue().zero(p.matrix(p.at_dqkv, 3 * p.s.width()));
    graph.launch(t.backend.queue());
    CHECK(p.error() < 2e-2);
  }
}
