// refuse: heddle: the backend lacks kernels that a layer needs; layer_needs<layer, facet, backend, element type> names them
// and: layer_needs<llama_norm,
// and: rms_norm_facet, products_only, float>
#include <heddle/compute/facets.hpp>

namespace hc = heddle::compute;

struct products_only {};
template <hc::transpose TA, hc::transpose TB>
void body(hc::ops::matmul<TA, TB>, products_only&, std::int64_t, std::int64_t, std::int64_t, const float*, const float*,
          float*, float);
void body(hc::ops::add_bias, products_only&, std::int64_t, std::int64_t, float*, const float*);
void body(hc::ops::add_bias_backward, products_only&, std::int64_t, std::int64_t, const float*, float*);

struct llama_norm {
  template <class Backend, class T>
  void forward(Backend& b, heddle::matrix_view<const T> x, std::span<const T> w, heddle::matrix_view<T> y,
               std::span<T> rstd) const {
    if constexpr (hc::require_facet<llama_norm, hc::rms_norm_facet, Backend, T>())
      hc::run<hc::ops::rms_norm>(b, x, w, T(1e-6), y, rstd);
  }
};

void use(products_only& b) {
  llama_norm{}.forward<products_only, float>(b, {}, {}, {}, {});
}
