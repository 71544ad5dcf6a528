// Heddle before Kokkos begins and after it has ended: one named error each. A program of its own, since Kokkos begins once.
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/kokkos/memory.hpp>
#include <heddle/train/buffer_pool.hpp>

#include "space.hpp"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace {
namespace hd = heddle;
using memory = hd::kokkos_memory<tested_space>;
int failures = 0;

template <class Error, class F>
void expect_error(const std::string& text, const F& f) {
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
  std::printf("expected '%s', got '%s'\n", text.c_str(), got.c_str());
}
}  // namespace

int main(int argc, char** argv) {
  const std::string name = tested_space::name();
  const std::string too_early =
      "a queue of " + name + " needs Kokkos, which is not initialized: call Kokkos::initialize";
  expect_error<hd::kokkos_not_initialized>(too_early, [] { memory::queue q; });
  expect_error<hd::kokkos_not_initialized>("instances of " + name, [] { hd::kokkos_instances<tested_space>(1); });
  Kokkos::initialize(argc, argv);
  {
    std::optional<memory::queue> queue(std::in_place);
    std::optional<hd::buffer<double, memory>> kept(std::in_place, *queue, 1000);
    hd::buffer<double, memory> released(*queue, 10);
    released = {};
    Kokkos::finalize();
    const std::string too_late =
        "heddle: Kokkos was finalized too early: a queue of " + name + " and 8064 bytes of its memory";
    std::vector<double> x(1000);
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->wait(); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->copy(*kept, x); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->zero(*kept); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { hd::buffer<float, memory> more(*queue, 5); });
    expect_error<hd::kokkos_finalized>(too_late, [&] { queue->run([](auto) {}, kept->view()); });
    hd::train::buffer_pool<float, memory> lent;
    expect_error<hd::kokkos_finalized>(too_late,
                                       [&] { lent.take(*queue, 5, decltype(lent)::contents::any, "whole weights"); });
    expect_error<hd::kokkos_not_initialized>("not initialized", [] { memory::queue q; });
    // The memory stays where it is, and stderr says so: the test's harness looks for it.
  }
  std::printf(failures == 0 ? "all errors were named\n" : "%d errors were not\n", failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
