// Attention by cuDNN over stand-ins for cuDNN and CUDA.
#include "attention_trials.hpp"
#include "cuda/emulated_launcher.hpp"
#include "double.hpp"

#include <heddle/compute/cudnn.hpp>
#include <heddle/tensor/cuda/graph.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {
using namespace packed_attention;
namespace dn = heddle::compute::detail::on_cudnn;
using with_cudnn = co::basic_cuda<dn::launcher_with_cudnn<cuda_double::emulated_launcher<1>>>;
template <class Half>
using held = packed_attention::problem<with_cudnn, Half>;

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const hd::error& e) {
    return e.what();
  }
  return "";
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("attention by cuDNN is the host's", "[cuda][cudnn]") {
  cudnn_double::reset();
  const auto compare = [](auto half, const co::attention_shape& s) {
    using Half = decltype(half);
    CAPTURE(s.batch, s.sequence, s.heads, s.head_dim);
    backend_trials::trial<with_cudnn, float> t;
    held<Half> p(t, s, 11);
    const int before = cudnn_double::runs();
    p.forward();
    p.backward();
    CHECK(p.error() < 1e-2);
    CHECK(cudnn_double::runs() == before + 2);
  };
  compare(hd::bf16(), {1, 17, 2, 8});
  compare(hd::bf16(), {3, 5, 2, 16});  // log-sum-exps of several sequences are put in order for gradients
  compare(hd::bf16(), {2, 2, 1, 8});
  compare(hd::f16(), {2, 9, 4, 24});
  CHECK(cudnn_double::open() == 0);
}

TEST_CASE("all queries to all keys, grouped heads and values of another width by cuDNN", "[cuda][cudnn]") {
  cudnn_double::reset();
  for (const bool causal : {false, true})
    for (const std::int64_t kv_heads : {1, 2, 4}) {
      CAPTURE(causal, kv_heads);
      const std::int64_t batch = 2, heads = 4, queries = 6, keys = causal ? 6 : 9, width = 8, value_width = 16;
      using half_attention_trials::difference;
      namespace in_trials = half_attention_trials;
      std::vector<co::attention_slice> slices;
      for (std::int64_t b = 0; b < batch; ++b)
        slices.push_back({b * queries, (b + 1) * queries, b * keys, (b + 1) * keys,
                          causal ? co::slice_mask::causal : co::slice_mask::full});
      const in_trials::problem p{"", batch * queries, batch * keys, heads, kv_heads, width, slices, {}, 0,
                                 8,  value_width};
      const auto x = in_trials::operands_of<hd::bf16>(p);
      in_trials::outcome y;
      in_trials::expected_forward(p, x, y);

      backend_trials::trial<with_cudnn, float> t;
      const auto keep = [&](const numbers& from) {
        std::vector<hd::bf16> to;
        for (const double e : from) to.push_back(hd::bf16(static_cast<float>(e)));
        return t.keep(to);
      };
      const auto strides = [](std::int64_t rows, std::int64_t count, std::int64_t dim) {
        return dn::attention_strides{rows * count * dim, dim, count * dim};
      };
      dn::attention_problem asked{batch, heads, kv_heads, queries, keys, width, value_width, causal};
      asked.q = asked.dq = strides(queries, heads, width);
      asked.k = asked.dk = strides(keys, kv_heads, width);
      asked.v = asked.dv = strides(keys, kv_heads, value_width);
      asked.out = asked.dout = strides(queries, heads, value_width);
      asked.lse = {queries, batch * queries, 1};
      dn::attention_addresses at{keep(x.q),
                                 keep(x.k),
                                 keep(x.v),
                                 keep(x.dout),
                                 t.keep(std::vector<float>(static_cast<std::size_t>(heads * batch * queries))),
                                 keep(x.dout),
                                 keep(x.q),
                                 keep(x.k),
                                 keep(x.v)};
      typename cuda_double::emulated_launcher<1>::products none(t.backend.queue());
      const cuda_double::emulated_launcher<1> on(t.backend.queue(), none);
      dn::attention_library library(t.backend.queue());
      const auto scale = static_cast<float>(in_trials::scale_of(p));
      CHECK(library.run(on, asked, scale, at));
      const auto values = [&](const void* from, std::size_t n) {
        std::vector<hd::bf16> here(n);
        t.backend.queue().copy(
            hd::row_at<hd::cuda_memory>(static_cast<const hd::bf16*>(from), static_cast<std::int64_t>(n)), here);
        t.backend.queue().wait();
        numbers out;
        for (const hd::bf16 e : here) out.push_back(static_cast<double>(static_cast<float>(e)));
        return out;
      };
      CHECK(difference(values(at.out, y.out.size()), y.out, static_cast<std::int64_t>(y.out.size())) < 1e-2);
      y.out = values(at.out, y.out.size());
      in_trials::expected_backward(p, x, y);
      asked.backward = true;
      CHECK(library.run(on, asked, scale, at));
      CHECK(difference(values(at.dq, y.dq.size()), y.dq, static_cast<std::int64_t>(y.dq.size())) < 1e-2);
      CHECK(difference(values(at.dk, y.dk.size()), y.dk, static_cast<std::int64_t>(y.dk.size())) < 1e-2);
      CHECK(difference(values(at.dv, y.dv.size()), y.dv, static_cast<std::int64_t>(y.dv.size())) < 1e-2);
    }
}

TEST_CASE("a plan of cuDNN is made once for each problem", "[cuda][cudnn]") {
  cudnn_double::reset();
  backend_trials::trial<with_cudnn, float> t;
  held<hd::bf16> a(t, {2, 6, 2, 8}, 1), b(t, {2, 6, 2, 8}, 5), c(t, {2, 7, 2, 8}, 9);
  for (int i = 0; i < 3; ++i) {
    a.forward();
    b.forward();
    a.backward();
  }
  CHECK(cudnn_double::plans() == 2);
  b.backward();
  c.forward();
  c.backward();
  CHECK(cudnn_double::plans() == 4);
  CHECK(cudnn_double::runs() == 12);
  CHECK(a.error() < 1e-2);
  CHECK(b.error() < 1e-2);
  CHECK(c.error() < 1e-2);
}

TEST_CASE("what cuDNN has not is computed by kernels of heddle's, and asked for once", "[cuda][cudnn]") {
  cudnn_double::reset();
  backend_trials::trial<with_cudnn, float> t;
  held<hd::bf16> p(t, {2, 6, 2, 8}, 1);
  cudnn_double::has_engines(false);
  p.forward();
  p.backward();
  cudnn_double::has_engines(true);
  p.forward();  // decided already
  p.backward();
  CHECK(cudnn_double::plans() == 0);
  CHECK(p.error() < 2e-2);
  // the second engine, if the first does not take it
  cudnn_double::refuse_engines(1, CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
  held<hd::bf16> q(t, {1, 6, 2, 8}, 1);
  q.forward();
  q.backward();
  CHECK(cudnn_double::plans() == 2);
  CHECK(q.error() < 1e-2);
  // heads that are not asked for: no multiple of 8, over 128; gradients of one key; arrays that are not aligned
  cudnn_double::reset();
  for (const co::attention_shape& s : {co::attention_shape{1, 5, 2, 12}, co::attention_shape{1, 3, 1, 136}}) {
    held<hd::bf16> other(t, s, 3);
    other.forward();
    other.backward();
    CHECK(other.error() < 2e-2);
  }
  held<hd::bf16> one(t, {3, 1, 2, 8}, 3);
  one.backward();
  CHECK(cudnn_double::plans() == 0);
  std::vector<hd::bf16> longer(static_cast<std::size_t>(3 * p.s.rows() * p.s.width() + 1));
  p.at_qkv = t.keep(longer) + 1;
  p.qkv.assign(p.qkv.size(), 0.0);
  p.forward();
  p.backward();
  CHECK(cudnn_double::runs() == 0);
  CHECK(p.error() < 2e-2);
}

TEST_CASE("attention by cuDNN is captured once it has run", "[cuda][cudnn][graph]") {
  cudnn_double::reset();
  backend_trials::trial<with_cudnn, float> t;
  held<hd::bf16> p(t, {2, 6, 2, 8}, 1), later(t, {2, 12, 2, 8}, 7);
  const auto both = [&] {
    p.forward();
    p.backward();
  };
  const std::string early = error_of([&] { hd::cuda_graph::capture(t.backend.queue(), both); });
  CHECK(has(early, "may not be part of a graph before it has run once outside of one"));
  CHECK(cudnn_double::plans() == 0);
  both();
  t.backend.queue().wait();
  const auto taken = [] {
    auto calls = cuda_double::calls();
    return calls["cudaMallocAsync"];
  };
  const int before = taken();
  auto graph = hd::cuda_graph::capture(t.backend.queue(), both);
  CHECK(taken() == before);
  later.forward();  // needs more memory; the graph keeps its own
  later.backward();
  t.backend.queue().zero(p.matrix(p.at_out, p.s.width()));
  t.backend.queue().zero(p.matrix(p.at_dqkv, 3 * p.s.width()));
  graph.launch(t.backend.queue());
  CHECK(p.error() < 1e-2);
  CHECK(later.error() < 1e-2);
}

TEST_CASE("errors of cuDNN name the call, the device and its words", "[cuda][cudnn]") {
  cudnn_double::reset();
  {
    backend_trials::trial<with_cudnn, float> t;
    held<hd::bf16> p(t, {1, 6, 2, 8}, 1);
    cudnn_double::fail_next("cudnnBackendFinalize", CUDNN_STATUS_BAD_PARAM);
    CHECK(has(error_of([&] { p.forward(); }),
              "heddle: cudnnBackendFinalize of a tensor on CUDA device 0: CUDNN_STATUS_BAD_PARAM: as "
              "planned"));
    cudnn_double::refuse_engines(2, CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING);
    CHECK(has(error_of([&] { p.forward(); }), "cudnnBackendFinalize of an execution plan on CUDA device 0"));
    cudnn_double::refuse_engines(0, CUDNN_STATUS_NOT_SUPPORTED);
    cudnn_double::fail_next("cudnnBackendExecute", CUDNN_STATUS_EXECUTION_FAILED);
    CHECK(has(error_of([&] { p.forward(); }),
              "heddle: cudnnBackendExecute on CUDA device 0: CUDNN_STATUS_EXECUTION_FAILED: as planned"));
    p.forward();  // all is well again
    p.backward();
    CHECK(p.error() < 1e-2);
    cudnn_double::fail_next("cudnnCreate", CUDNN_STATUS_EXECUTION_FAILED);
    CHECK(has(error_of([] { with_cudnn other; }), "heddle: cudnnCreate on CUDA device 0"));
    cudnn_double::version(91500);
    CHECK(error_of([] { with_cudnn other; }) ==
          "heddle: attention by cuDNN needs cuDNN 9.16 or later (91600), this program has loaded 91500");
  }
  cudnn_double::reset();
  CHECK(cudnn_double::open() == 0);
}
