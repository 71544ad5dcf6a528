// tests/callgrind/kokkos_facets.cpp: calls of facets of the backend on Kokkos, and the same loops given to Kokkos by hand; callgrind counts both.
// kokkos_facets <calls> <rows> <columns>
// By hand the same sizes are checked where HEDDLE_CHECK_ARGUMENTS is on, and none where it is off; `plain` is a loop over single elements.
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/tensor/buffer.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include <Kokkos_Core.hpp>

namespace {

namespace hd = heddle;
namespace co = heddle::compute;
namespace on_kokkos = heddle::compute::detail::on_kokkos;
using exec = Kokkos::Serial;
using space = hd::kokkos_memory<exec>;
using backend_on_kokkos = co::kokkos<exec>;
using range = Kokkos::RangePolicy<exec, Kokkos::IndexType<std::int64_t>>;
template <class T>
using row = hd::vector_view<T, space>;
template <class T>
using matrix = hd::matrix_view<T, space>;

struct arguments {
  row<const float> x, y, w, b;
  row<float> z, mean, rstd;
  row<hd::bf16> narrow;
  matrix<const float> xm;
  matrix<float> zm;
  float factor, eps;
};

// Each call is a function of its own, so that the compiler makes of each what it would make of a program's.
[[gnu::noinline]] void add_facet(backend_on_kokkos& backend, const arguments& a) {
  co::run<co::ops::add>(backend, a.x, a.y, a.z);
}
[[gnu::noinline]] void scale_facet(backend_on_kokkos& backend, const arguments& a) {
  co::run<co::ops::scale>(backend, a.z, a.factor);
}
[[gnu::noinline]] void cast_facet(backend_on_kokkos& backend, const arguments& a) {
  co::cast(backend, a.x, a.narrow);
}
[[gnu::noinline]] void add_bias_facet(backend_on_kokkos& backend, const arguments& a) {
  co::run<co::ops::add_bias>(backend, a.zm, a.b);
}
[[gnu::noinline]] void rms_norm_facet(backend_on_kokkos& backend, const arguments& a) {
  co::run<co::ops::rms_norm>(backend, a.xm, a.w, a.eps, a.zm, a.rstd);
}
[[gnu::noinline]] void layer_norm_facet(backend_on_kokkos& backend, const arguments& a) {
  co::run<co::ops::layer_norm>(backend, a.xm, a.w, a.b, a.eps, a.zm, a.mean, a.rstd);
}

[[noreturn, gnu::noinline, gnu::cold]] void wrong_sizes() {
  throw hd::layout_error("wrong sizes");
}
void check(std::int64_t expected, std::int64_t got) {
  if constexpr (HEDDLE_CHECK_ARGUMENTS != 0)
    if (expected != got) [[unlikely]]
      wrong_sizes();
}
// Blocks of 4096 elements, which are what threads of an execution space can share.
constexpr std::int64_t block = 4096;
std::int64_t blocks_of(std::int64_t n) {
  return (n + block - 1) / block;
}
std::int64_t block_at(std::int64_t begin, std::int64_t n) {
  const std::int64_t rest = n - begin;
  return rest < block ? rest : block;
}

[[gnu::noinline]] void add_kokkos(const exec& instance, const arguments& a) {
  check(a.x.size(), a.y.size());
  check(a.x.size(), a.z.size());
  const std::int64_t n = a.x.size();
  const float *const x = a.x.address(), *const y = a.y.address();
  float* const z = a.z.address();
  Kokkos::parallel_for("heddle::add", range(instance, 0, blocks_of(n)), [=](std::int64_t i) {
    const std::int64_t at = i * block;
    on_kokkos::map_block<exec>(block_at(at, n), z + at, [](float u, float v) { return u + v; }, x + at, y + at);
  });
}
[[gnu::noinline]] void scale_kokkos(const exec& instance, const arguments& a) {
  const std::int64_t n = a.z.size();
  float* const z = a.z.address();
  const float factor = a.factor;
  Kokkos::parallel_for("heddle::scale", range(instance, 0, blocks_of(n)), [=](std::int64_t i) {
    const std::int64_t at = i * block;
    on_kokkos::map_block<exec>(
        block_at(at, n), z + at, [factor](float v) { return v * factor; }, static_cast<const float*>(z + at));
  });
}
[[gnu::noinline]] void cast_kokkos(const exec& instance, const arguments& a) {
  check(a.x.size(), a.narrow.size());
  const std::int64_t n = a.x.size();
  const float* const x = a.x.address();
  hd::bf16* const to = a.narrow.address();
  Kokkos::parallel_for("heddle::cast", range(instance, 0, blocks_of(n)), [=](std::int64_t i) {
    const std::int64_t at = i * block;
    on_kokkos::cast_block<exec>(block_at(at, n), x + at, to + at);
  });
}
[[gnu::noinline]] void add_bias_kokkos(const exec& instance, const arguments& a) {
  check(a.zm.extent(1), a.b.size());
  const std::int64_t columns = a.zm.extent(1);
  float* const z = a.zm.address();
  const float* const b = a.b.address();
  Kokkos::parallel_for("heddle::add_bias", range(instance, 0, a.zm.extent(0)), [=](std::int64_t i) {
    float* const out = z + i * columns;
    on_kokkos::map_block<exec>(columns, out, [](float u, float v) { return u + v; }, static_cast<const float*>(out), b);
  });
}
[[gnu::noinline]] void rms_norm_kokkos(const exec& instance, const arguments& a) {
  check(a.xm.extent(0), a.zm.extent(0));
  check(a.xm.extent(1), a.zm.extent(1));
  check(a.xm.extent(1), a.w.size());
  check(a.xm.extent(0), a.rstd.size());
  const std::int64_t columns = a.xm.extent(1);
  const float *const x = a.xm.address(), *const w = a.w.address();
  float *const z = a.zm.address(), *const rstd = a.rstd.address();
  const float inverse = 1.0f / static_cast<float>(columns), eps = a.eps;
  Kokkos::parallel_for("heddle::rms_norm", range(instance, 0, a.xm.extent(0)), [=](std::int64_t r) {
    const float* const in = x + r * columns;
    const float squares = on_kokkos::sum_of_block<exec, float>(columns, [](float v) { return v * v; }, in);
    const float s = 1.0f / std::sqrt(squares * inverse + eps);
    on_kokkos::map_block<exec>(columns, z + r * columns, [s](float v, float g) { return v * s * g; }, in, w);
    rstd[r] = s;
  });
}
[[gnu::noinline]] void layer_norm_kokkos(const exec& instance, const arguments& a) {
  check(a.xm.extent(0), a.zm.extent(0));
  check(a.xm.extent(1), a.zm.extent(1));
  check(a.xm.extent(1), a.w.size());
  check(a.xm.extent(1), a.b.size());
  check(a.xm.extent(0), a.mean.size());
  check(a.xm.extent(0), a.rstd.size());
  const std::int64_t columns = a.xm.extent(1);
  const float *const x = a.xm.address(), *const w = a.w.address(), *const b = a.b.address();
  float *const z = a.zm.address(), *const mean = a.mean.address(), *const rstd = a.rstd.address();
  const float inverse = 1.0f / static_cast<float>(columns), eps = a.eps;
  Kokkos::parallel_for("heddle::layer_norm", range(instance, 0, a.xm.extent(0)), [=](std::int64_t r) {
    using on_kokkos::sum_of_block;
    const float* const in = x + r * columns;
    const float rough = sum_of_block<exec, float>(columns, [](float v) { return v; }, in) * inverse;
    const float mu = rough + sum_of_block<exec, float>(columns, [rough](float v) { return v - rough; }, in) * inverse;
    const float variance =
        sum_of_block<exec, float>(columns, [mu](float v) { return (v - mu) * (v - mu); }, in) * inverse;
    const float s = 1.0f / std::sqrt(variance + eps);
    on_kokkos::map_block<exec>(
        columns, z + r * columns, [mu, s](float v, float g, float c) { return (v - mu) * s * g + c; }, in, w, b);
    mean[r] = mu;
    rstd[r] = s;
  });
}

[[gnu::noinline]] void add_plain(const exec& instance, const arguments& a) {
  const float *const x = a.x.address(), *const y = a.y.address();
  float* const z = a.z.address();
  Kokkos::parallel_for("heddle::add", range(instance, 0, a.x.size()), [=](std::int64_t i) { z[i] = x[i] + y[i]; });
}
[[gnu::noinline]] void scale_plain(const exec& instance, const arguments& a) {
  float* const z = a.z.address();
  const float factor = a.factor;
  Kokkos::parallel_for("heddle::scale", range(instance, 0, a.z.size()), [=](std::int64_t i) { z[i] = z[i] * factor; });
}

void run(int calls, std::int64_t rows, std::int64_t columns) {
  const std::int64_t n = rows * columns;
  backend_on_kokkos backend;
  auto& queue = backend.queue();
  const exec& instance = queue.instance();
  hd::buffer<float, space> x(queue, n, "x"), y(queue, n, "y"), z(queue, n, "z"), w(queue, columns, "w"),
      b(queue, columns, "b");
  hd::buffer<float, space> mean(queue, rows, "mean"), rstd(queue, rows, "rstd");
  hd::buffer<hd::bf16, space> narrow(queue, n, "narrow");
  for (auto* some : {&x, &y, &z, &w, &b, &mean, &rstd}) queue.zero(*some);
  const auto row_of = [](auto& of) { return hd::row_at<space>(of.address(), static_cast<std::int64_t>(of.size())); };
  const arguments a{row_of(x),
                    row_of(y),
                    row_of(w),
                    row_of(b),
                    row_of(z),
                    row_of(mean),
                    row_of(rstd),
                    row_of(narrow),
                    matrix<const float>(x.address(), hd::dynamic_shape<2>(rows, columns)),
                    matrix<float>(z.address(), hd::dynamic_shape<2>(rows, columns)),
                    1.5f,
                    1e-5f};
  for (int i = 0; i < calls; ++i) {
    for (auto* facet : {add_facet, scale_facet, cast_facet, add_bias_facet, rms_norm_facet, layer_norm_facet})
      facet(backend, a);
    for (auto* by_hand : {add_kokkos, scale_kokkos, cast_kokkos, add_bias_kokkos, rms_norm_kokkos, layer_norm_kokkos,
                          add_plain, scale_plain})
      by_hand(instance, a);
  }
  queue.wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return EXIT_FAILURE;
  const Kokkos::ScopeGuard kokkos(argc, argv);
  run(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]));
}
