// tests/callgrind/static_redistribution.cpp: redistributions that callgrind.py counts the instructions and allocations of.
//   static_redistribution <mode> <times>     modes: see main
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace {
std::atomic<bool> counting{false};
std::atomic<long> buffers{0};  // aligned: what heddle::buffer asks for
std::atomic<long> others{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (counting) ++(alignment == 0 ? others : buffers);
  void* memory = alignment == 0 ? std::malloc(bytes)
                                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes == 0 ? 1 : bytes, 0);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes == 0 ? 1 : bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t a) {
  return allocate(bytes == 0 ? 1 : bytes, static_cast<std::size_t>(a));
}
// Never inlined: g++ would see std::free meet memory of the operator new that does not throw, which calls those above.
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;

using from = hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
using to = hd::layout<mesh, hd::shard<1, dp, tp>>;
using whole = hd::layout<mesh>;
using rows = hd::layout<mesh, hd::shard<0, dp>>;

// reduce_scatter and what else the plan says, `times` times.
template <class World>
void move(World& world, int times) {
  const hd::sharded<float, 2, from> x(from{}, hd::shape{12, 20}, world.rank());
  for (int i = 0; i < times; ++i) {
    const auto y = hd::redistribute<to>(x, world);
    if (y.elements().size() != 60) std::abort();
  }
}

// Without communication: rows of a whole matrix.
using matrix = hd::sharded<float, 2, whole>;
[[gnu::noinline]] auto sliced(const matrix& x, auto& world) {
  return hd::redistribute<rows>(x, world);
}
[[gnu::noinline]] hd::sharded<float, 2, rows> sliced_by_hand(const matrix& x, auto& world) {
  hd::sharded<float, 2, rows> y(rows{}, hd::shape{64, 64}, world.rank());
  std::memcpy(y.elements().data(), x.elements().data() + mesh::coordinate<dp>(world.rank()) * 32 * 64,
              32 * 64 * sizeof(float));
  return y;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int times = argc > 2 ? std::atoi(argv[2]) : 1;
  if (mode == "static") {
    hd::launch<hd::threads, mesh>([&](auto& world) { move(world, times); });
  } else if (mode == "planned") {
    const volatile int ranks = 2;  // the same search, where the compiler cannot do it
    for (int i = 0; i < times; ++i)
      if (hd::detail::found_steps<from, to>::steps_on({ranks, ranks}).steps.size() !=
          hd::redistribution<from, to>.steps.size())
        std::abort();
  } else if (mode == "allocations") {  // of all ranks
    hd::launch<hd::threads, mesh>([&](auto& world) {
      move(world, 2);  // whatever is made once
      auto& all = world.all();
      all.barrier();
      if (world.rank() == 0) counting = true;
      all.barrier();
      const hd::sharded<float, 2, from> x(from{}, hd::shape{12, 20}, world.rank());
      for (int i = 0; i < times; ++i)
        if (hd::redistribute<to>(x, world).elements().size() != 60) std::abort();
      all.barrier();
      if (world.rank() == 0) counting = false;
      all.barrier();
    });
    std::printf("%d steps, %ld buffers, %ld other allocations\n",
                static_cast<int>(hd::redistribution<from, to>.steps.size()), buffers.load(), others.load());
  } else if (mode == "slice" || mode == "slice_by_hand") {
    hd::launch<hd::threads, mesh>([&](auto& world) {
      const matrix x(whole{}, hd::shape{64, 64}, world.rank());
      if (world.rank() != 3) return;
      for (int i = 0; i < times; ++i)
        if ((mode == "slice" ? sliced(x, world) : sliced_by_hand(x, world)).elements().size() != 32 * 64) std::abort();
    });
  } else {
    std::fprintf(stderr, "usage: static_redistribution static|planned|allocations|slice|slice_by_hand <times>\n");
    return 2;
  }
}
