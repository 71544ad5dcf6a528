// Attention by cuDNN on a GPU, against the host's in double.
#include <heddle/compute/cudnn.hpp>

#include "attention_trials.hpp"

#include <heddle/tensor/cuda/graph.hpp>

#include <type_traits>

namespace {
namespace hd = heddle;
namespace co = heddle::compute;
using stream_launcher = co::detail::on_cuda::stream_launcher<co::detail::on_cuda::full_floats>;
using with_cudnn = co::detail::on_cudnn::launcher_with_cudnn<stream_launcher>;

int by_cudnn = 0;
// `compute::cuda_with_cudnn`'s, which counts the calls that cuDNN computes.
struct counting : with_cudnn {
  using with_cudnn::with_cudnn;
  template <class... X>
  bool attend_by_library(const X&... x) const {
    return counted(with_cudnn::attend_by_library(x...));
  }
  template <class... X>
  bool attend_backward_by_library(const X&... x) const {
    return counted(with_cudnn::attend_backward_by_library(x...));
  }
  static bool counted(bool done) {
    by_cudnn += done ? 1 : 0;
    return done;
  }
};
static_assert(std::is_same_v<co::cuda_with_cudnn, co::basic_cuda<with_cudnn>>);
using backend = co::basic_cuda<counting>;
}  // namespace

TEMPLATE_TEST_CASE("attention by cuDNN on a GPU is the host's", "[cuda][gpu][cudnn]", hd::bf16, hd::f16) {
  for (const co::attention_shape& s : {co::attention_shape{1, 64, 2, 64}, co::attention_shape{3, 77, 4, 64},
                                       co::attention_shape{2, 130, 2, 128}, co::attention_shape{1, 33, 2, 40}}) {
    CAPTURE(s.batch, s.sequence, s.heads, s.head_dim);
    backend_trials::trial<backend, float> t;
    packed_attention::problem<backend, TestType> p(t, s, 11);
    by_cudnn = 0;
    p.forward();
    p.backward();
    CHECK(by_cudnn == 2);  // else heddle's own kernels would answer, and pass
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
