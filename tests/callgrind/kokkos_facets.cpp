// tests/callgrind/kokkos_facets.cpp: calls of facets of the backend on Kokkos, and the same loops given to Kokkos by hand; callgrind counts both.
// kokkos_facets <facet|kokkos> <add|layer_norm|cast> <calls> <rows> <columns>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/tensor/buffer.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <Kokkos_Core.hpp>

namespace {

namespace hd = heddle;
namespace co = heddle::compute;
namespace on_kokkos = heddle::compute::detail::on_kokkos;
using space = hd::kokkos_memory<Kokkos::Serial>;
using range = Kokkos::RangePolicy<Kokkos::Serial, Kokkos::IndexType<std::int64_t>>;

void run(bool by_facet, const std::string& what, int calls, std::int64_t rows, std::int64_t columns) {
  const std::int64_t n = rows * columns;
  co::kokkos<Kokkos::Serial> backend;
  auto& queue = backend.queue();
  const Kokkos::Serial& instance = queue.instance();
  hd::buffer<float, space> x(queue, n, "x"), y(queue, n, "y"), z(queue, n, "z"), w(queue, columns, "w"),
      b(queue, columns, "b");
  hd::buffer<float, space> mean(queue, rows, "mean"), rstd(queue, rows, "rstd");
  hd::buffer<hd::bf16, space> narrow(queue, n, "narrow");
  for (auto* some : {&x, &y, &z, &w, &b, &mean, &rstd}) queue.zero(*some);
  const auto row = [](auto& of) {
    return hd::detail::row_at<space>(of.address(), static_cast<std::int64_t>(of.size()));
  };
  const auto matrix = [&](auto& of) {
    return hd::matrix_view<float, space>(of.address(), hd::dynamic_shape<2>(rows, columns));
  };
  const float *const xs = x.address(), *const ys = y.address(), *const ws = w.address(), *const bs = b.address();
  float *const zs = z.address(), *const means = mean.address(), *const rstds = rstd.address();
  hd::bf16* const to = narrow.address();
  const auto xr = row(x), yr = row(y), zr = row(z), wr = row(w), br = row(b), mr = row(mean), rr = row(rstd);
  const auto nr = row(narrow);
  const auto xm = matrix(x), zm = matrix(z);
  const auto calls_of = [calls](auto call) {
    for (int i = 0; i < calls; ++i) call();
  };
  if (what == "add" && by_facet) calls_of([&] { backend.add(xr, yr, zr); });
  if (what == "add" && !by_facet)
    calls_of([&] {
      Kokkos::parallel_for("heddle::add", range(instance, 0, 1), [=](std::int64_t) {
        co::detail::map_lanes(n, zs, [](float a, float b) { return a + b; }, xs, ys);
      });
    });
  if (what == "cast" && by_facet) calls_of([&] { backend.cast(xr, nr); });
  if (what == "cast" && !by_facet)
    calls_of([&] {
      Kokkos::parallel_for("heddle::cast", range(instance, 0, 1),
                           [=](std::int64_t) { co::detail::cast_lanes(n, xs, to); });
    });
  if (what == "layer_norm" && by_facet) calls_of([&] { backend.layer_norm(xm, wr, br, 1e-5f, zm, mr, rr); });
  if (what == "layer_norm" && !by_facet)
    calls_of([&] {
      const float inverse = 1.0f / static_cast<float>(columns), eps = 1e-5f;
      Kokkos::parallel_for("heddle::layer_norm", range(instance, 0, rows), [=](std::int64_t r) {
        using on_kokkos::sum_of_block, on_kokkos::map_block;
        using exec = Kokkos::Serial;
        const float* const in = xs + r * columns;
        const float rough = sum_of_block<exec, float>(columns, [](float v) { return v; }, in) * inverse;
        const float mu =
            rough + sum_of_block<exec, float>(columns, [rough](float v) { return v - rough; }, in) * inverse;
        const float variance =
            sum_of_block<exec, float>(columns, [mu](float v) { return (v - mu) * (v - mu); }, in) * inverse;
        const float s = 1.0f / std::sqrt(variance + eps);
        map_block<exec>(
            columns, zs + r * columns, [mu, s](float v, float g, float c) { return (v - mu) * s * g + c; }, in, ws, bs);
        means[r] = mu;
        rstds[r] = s;
      });
    });
  queue.wait();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return EXIT_FAILURE;
  const Kokkos::ScopeGuard kokkos(argc, argv);
  run(std::string(argv[1]) == "facet", argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]));
}
