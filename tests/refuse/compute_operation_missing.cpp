// refuse: heddle: the backend offers no such operation: run<operation>(backend, ...) names it
// and: rms_norm
#include <heddle/compute/ops/rows.hpp>

#include <span>

namespace hd = heddle;
namespace hc = heddle::compute;

struct adds_only {};

void use(adds_only& b, hd::matrix_view<const float> x, std::span<const float> w, hd::matrix_view<float> y,
         std::span<float> rstd) {
  hc::run<hc::ops::rms_norm>(b, x, w, 1e-6f, y, rstd);
}
