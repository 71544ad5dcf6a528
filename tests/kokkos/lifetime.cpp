// Heddle before Kokkos begins and after it has ended: one named error each. A program of its own, since Kokkos begins once.
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/kokkos/memory.hpp>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace {
namespace hd = heddle;
using memory = hd::kokkos_memory<Kokkos::Serial>;
int failures = 0;

template <class Error, class F>
void expect_error(const char* text, const F& f) {
  std::string got = "no error";
  try {
    f();
  } catch (const Error& e) {
    got = e.what();
  } catch (const std::exception& e) {
    got = std::string("another error: ") + e.what();
  }
  if (got.find(text) != std::string::npos && got.rfind("heddle: ", 0) == 0) return;
  ++failures;
  std::printf("expected '%s', got '%s'\n", text, got.c_str());
}
}  // namespace

int main(int argc, char** argv) {
  const char* const too_early = "a queue of Serial needs Kokkos, which is not initialized: call Kokkos::initialize";
  expect_error<hd::kokkos_not_initialized>(too_early, [] { memory::queue q; });
  Kokkos::initialize(argc, argv);
  {
    std::optional<memory::queue> queue(std::in_place);
    std::optional<hd::buffer<double, memory>> kept(std::in_place, *queue, 1000);
    hd::buffer<double, memory> released(*queue, 10);
    released = {};
    Kokkos::finalize();
    const char* const too_late =
        "heddle: Kokkos was finalized too early: a queue of Serial and 8064 bytes of its memory";
    std::vector<double> x(1000);
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->wait(); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->copy(*kept, x); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->zero(*kept); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { hd::buffer<float, memory> more(*queue, 5); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->run([](auto) {}, kept->view()); });
    expect_error<hd::kokkos_not_initialized>("not initialized", [] { memory::queue q; });
    // The memory stays where it is, and stderr says so: the test's harness looks for it.
  }
  std::printf(failures == 0 ? "all errors were named\n" : "%d errors were not\n", failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
