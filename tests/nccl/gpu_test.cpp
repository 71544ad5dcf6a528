// The nccl transport on GPUs: the collectives of the concept with one rank, and with a rank per GPU that is here, against
// their definitions. Without a GPU it says so and exits with 77, which ctest shows as skipped.
#include <heddle/nccl/nccl.hpp>
#include <heddle/nccl/windows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
using std::int64_t;

struct point {
  float x, y;
  std::int32_t id;
};

// In the order of the communicator's stream, and waited for there: other waits may be for the kernels of other ranks of the process, which wait for
// calls that this thread has yet to make.
void copy(hd::nccl_communicator& c, void* to, const void* from, std::size_t bytes, cudaMemcpyKind way) {
  c.wait();  // a copy of memory that is not pinned may wait for the stream, and looks out for nobody
  if (cudaMemcpyAsync(to, from, bytes, way, c.stream()) != cudaSuccess) throw hd::error("cudaMemcpyAsync");
  c.wait();
}

// Memory of this thread that is no longer used. It is given back when all ranks are done: cudaFree waits for GPUs.
thread_local std::vector<void*> used;
void free_used() {
  for (void* memory : std::exchange(used, {})) static_cast<void>(cudaFree(memory));
}

// Memory of the GPU, filled from the host.
template <class T>
class on_gpu {
 public:
  on_gpu(hd::nccl_communicator& c, const std::vector<T>& values) : c_(c), size_(values.size()) {
    if (size_ == 0) return;
    if (cudaMalloc(&memory_, size_ * sizeof(T)) != cudaSuccess) throw hd::error("cudaMalloc");
    used.push_back(memory_);
    copy(c, memory_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  on_gpu(const on_gpu&) = delete;
  on_gpu& operator=(const on_gpu&) = delete;
  std::span<T> all() const { return {static_cast<T*>(memory_), size_}; }
  std::span<T> part(int64_t first, int64_t count) const {
    return all().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  std::vector<T> host() const {
    std::vector<T> values(size_);
    if (size_ > 0) copy(c_, values.data(), memory_, size_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  hd::nccl_communicator& c_;
  void* memory_ = nullptr;
  std::size_t size_;
};

std::mutex mutex;
int checks = 0, failures = 0;
void expect(bool ok, const char* what, int rank, int ranks, int64_t n) {
  const std::lock_guard lock(mutex);
  ++checks;
  if (ok) return;
  ++failures;
  std::printf("wrong: %s on rank %d of %d, n = %lld\n", what, rank, ranks, static_cast<long long>(n));
}

// Small whole numbers, which every type folds exactly in any order.
template <class T>
T value(int rank, int64_t i) {
  const auto x = static_cast<float>((rank + i) % 2 + (rank == i ? 1 : 0));
  if constexpr (std::is_same_v<T, point>)
    return {x, static_cast<float>(i), rank};
  else
    return static_cast<T>(x);
}
template <class T>
std::vector<T> values(int rank, int64_t first, int64_t count) {
  std::vector<T> x;
  for (int64_t i = first; i < first + count; ++i) x.push_back(value<T>(rank, i));
  return x;
}
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if constexpr (std::is_same_v<T, point>) {
      if (a[i].x != b[i].x || a[i].y != b[i].y || a[i].id != b[i].id) return false;
    } else {
      if (static_cast<float>(a[i]) != static_cast<float>(b[i])) return false;
    }
  return true;
}

template <class T, class Op>
void reductions(hd::nccl_communicator& c, int64_t n, Op op) {
  const int p = c.size(), r = c.rank();
  const auto check = [&](bool ok, const char* what) { expect(ok, what, r, p, n); };
  const auto folded = [&](int64_t first, int64_t count) {
    std::vector<T> x;
    for (int64_t i = first; i < first + count; ++i) {
      float sum = static_cast<float>(value<T>(0, i));
      for (int q = 1; q < p; ++q) sum = op(sum, static_cast<float>(value<T>(q, i)));
      x.push_back(static_cast<T>(sum));
    }
    return x;
  };
  const on_gpu<T> in(c, values<T>(r, 0, n)), out(c, std::vector<T>(static_cast<std::size_t>(n)));
  const on_gpu<T> wide(c, values<T>(r, 0, n * p));
  const std::vector<int64_t> counts(static_cast<std::size_t>(p), n);
  c.all_reduce(std::span<const T>(in.all()), out.all(), op);
  c.wait();
  check(same(out.host(), folded(0, n)), "all_reduce");
  c.reduce_scatter(wide.all(), out.all(), op);
  c.wait();
  check(same(out.host(), folded(r * n, n)), "reduce_scatter");
  c.all_reduce(out.all(), hd::maximum{});
  c.reduce_scatter_v(wide.all(), out.all(), counts, op);
  c.wait();
  check(same(out.host(), folded(r * n, n)), "reduce_scatter_v");
  {  // unequal shares: a group of calls; and equal ones in place
    std::vector<int64_t> shares = counts;
    shares[0] += n;
    const on_gpu<T> wider(c, values<T>(r, 0, n * (p + 1))),
        more(c, std::vector<T>(static_cast<std::size_t>(r == 0 ? 2 * n : n)));
    c.reduce_scatter_v(wider.all(), more.all(), shares, op);
    c.wait();
    check(same(more.host(), r == 0 ? folded(0, 2 * n) : folded((r + 1) * n, n)), "reduce_scatter_v of unequal shares");
    const on_gpu<T> own(c, values<T>(r, 0, n * p));
    c.reduce_scatter_v(own.all(), own.part(r * n, n), counts, op);
    c.wait();
    const std::vector<T> after = own.host();
    check(same(std::vector<T>(after.begin() + r * n, after.begin() + (r + 1) * n), folded(r * n, n)),
          "reduce_scatter_v in place");
  }
  c.reduce(in.all(), out.all(), op, p - 1);
  c.wait();
  if (r == p - 1) check(same(out.host(), folded(0, n)), "reduce");
  c.all_reduce(in.all(), op);
  c.wait();
  check(same(in.host(), folded(0, n)), "all_reduce in place");
}

template <class T>
void moves(hd::nccl_communicator& c, int64_t n) {
  const int p = c.size(), r = c.rank(), root = p - 1;
  const auto check = [&](bool ok, const char* what) { expect(ok, what, r, p, n); };
  const auto total = static_cast<std::size_t>(n * p);
  std::vector<T> gathered, exchanged;
  for (int q = 0; q < p; ++q)
    for (int64_t i = 0; i < n; ++i) {
      gathered.push_back(value<T>(q, i));
      exchanged.push_back(value<T>(q, r * n + i));
    }
  const std::vector<int64_t> counts(static_cast<std::size_t>(p), n);
  const on_gpu<T> mine(c, values<T>(r, 0, n)), wide(c, values<T>(r, 0, n * p)), everything(c, gathered);
  const auto with_output = [&](const char* what, std::size_t size, bool here, const std::vector<T>& right, auto call) {
    const on_gpu<T> out(c, std::vector<T>(size));
    call(out.all());
    c.wait();
    if (here) check(same(out.host(), right), what);
  };
  with_output("all_gather", total, true, gathered, [&](auto out) { c.all_gather(mine.all(), out); });
  with_output("all_gather_v", total, true, gathered, [&](auto out) { c.all_gather_v(mine.all(), out, counts); });
  {  // unequal shares: a group of calls; and equal ones in place
    std::vector<int64_t> shares = counts;
    shares[0] += n;
    std::vector<T> of_all = values<T>(0, 0, 2 * n);
    of_all.insert(of_all.end(), gathered.begin() + n, gathered.end());
    const on_gpu<T> share(c, values<T>(r, 0, r == 0 ? 2 * n : n));
    with_output("all_gather_v of unequal shares", of_all.size(), true, of_all,
                [&](auto out) { c.all_gather_v(share.all(), out, shares); });
    std::vector<T> own_alone(total);
    std::copy(gathered.begin() + r * n, gathered.begin() + (r + 1) * n, own_alone.begin() + r * n);
    const on_gpu<T> own(c, own_alone);
    c.all_gather_v(own.part(r * n, n), own.all(), counts);
    c.wait();
    check(same(own.host(), gathered), "all_gather_v in place");
  }
  with_output("all_to_all", total, true, exchanged, [&](auto out) { c.all_to_all(wide.all(), out); });
  with_output("all_to_all_v", total, true, exchanged,
              [&](auto out) { c.all_to_all_v(wide.all(), counts, out, counts); });
  with_output("gather", total, r == root, gathered, [&](auto out) { c.gather(mine.all(), out, root); });
  with_output("gather_v", total, r == root, gathered, [&](auto out) { c.gather_v(mine.all(), out, counts, root); });
  const auto own = values<T>(r, 0, n);
  with_output("scatter", static_cast<std::size_t>(n), true, own,
              [&](auto out) { c.scatter(everything.all(), out, root); });
  with_output("scatter_v", static_cast<std::size_t>(n), true, own,
              [&](auto out) { c.scatter_v(everything.all(), counts, out, root); });
  with_output("messages round the ring", static_cast<std::size_t>(n), true, values<T>((r + p - 1) % p, 0, n),
              [&](auto out) {
                auto a = c.isend(mine.all(), (r + 1) % p);
                auto b = c.irecv(out, (r + p - 1) % p);
                a.wait();
                b.wait();
              });
  c.broadcast(mine.all(), root);
  c.wait();
  check(same(mine.host(), values<T>(root, 0, n)), "broadcast");
}

void body(hd::nccl_communicator& c) {
  int device = 0, major_number = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major_number, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
    throw hd::error("cudaGetDevice or cudaDeviceGetAttribute");
  for (const int64_t n : {0, 1, 5, 100'000}) {
    reductions<std::int32_t>(c, n, hd::plus{});
    reductions<float>(c, n, hd::maximum{});
    reductions<double>(c, n, hd::plus{});
    reductions<__nv_bfloat16>(c, n, hd::minimum{});
    if (major_number >= 9) reductions<__nv_fp8_e4m3>(c, n, hd::maximum{});  // NCCL folds fp8 from there on
    moves<double>(c, n);
    moves<point>(c, n);
    moves<__nv_fp8_e5m2>(c, n);
  }
  auto part = c.split(c.rank() % 2, -c.rank());
  moves<float>(part, 7);
  const on_gpu<float> x(c, std::vector<float>(4, 1)), y(part, std::vector<float>(4, 1));
  hd::nccl_group together(c, part);
  c.all_reduce(x.all(), hd::plus{});
  part.all_reduce(y.all(), hd::plus{});
  together.launch();
  c.wait();
  const auto sum = [](int p) { return std::vector<float>(4, static_cast<float>(p)); };
  expect(same(x.host(), sum(c.size())) && same(y.host(), sum(part.size())), "a group of calls", c.rank(), c.size(), 4);
  hd::nccl_windows windows(c);
  for (int again = 0; again < 2; ++again) {
    const auto w = windows.take<float>(1000);
    std::vector<float> numbers(1000, 1);
    copy(c, w.elements().data(), numbers.data(), w.elements().size_bytes(), cudaMemcpyHostToDevice);
    c.all_reduce(w.elements(), hd::plus{});
    c.wait();
    copy(c, numbers.data(), w.elements().data(), w.elements().size_bytes(), cudaMemcpyDeviceToHost);
    expect(same(numbers, std::vector<float>(1000, static_cast<float>(c.size()))),
           w.registered() ? "all_reduce in a window" : "all_reduce in memory of NCCL's", c.rank(), c.size(), 1000);
  }
  part.barrier();
  c.barrier();
  free_used();
}

}  // namespace

int main() {
  int gpus = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&gpus); result != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU here (%s)\n", cudaGetErrorString(result));
    return 77;
  }
  try {
    for (const int p : {1, gpus}) {
      if (p == 1 && gpus == 1 && checks > 0) break;
      const hd::mesh<hd::axis<hd::dp>> ranks{p};
      hd::launch<hd::nccl>(ranks, hd::launch_options{}, [](auto& world) { body(world.all()); });
      hd::launch<hd::nccl_complete>(ranks, hd::launch_options{}, [](auto& world) { body(world.all()); });
      std::printf("%d of %d GPUs: %d checks, %d wrong\n", p, gpus, checks, failures);
    }
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
  return failures == 0 && checks > 0 ? 0 : 1;
}
