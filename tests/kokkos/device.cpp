// tests/kokkos/device.cpp: a program whose ranks are processes of MPI, on the execution space that this Kokkos prefers, be that a device's: Views are
// redistributed, an einsum by teams is compared with the host's, and a GPT-2, a Llama, a Qwen-3 and a Mixtral
// train to the host's losses. scripts/kokkos cuda compiles and links it for CUDA.
// mpirun -n <ranks> device
#include <heddle/comm/mpi.hpp>
#include <heddle/compute/einsum.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kokkos/kokkos.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/tensor/kokkos/view.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/train/trainer.hpp>

#include <Kokkos_Core.hpp>

#include "../train/random_tokens.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace co = heddle::compute;
using hd::dp, hd::pp, hd::tp, hd::shard;
using exec = Kokkos::DefaultExecutionSpace;
using memory = hd::kokkos_memory<exec>;
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using by_both = hd::layout<mesh, shard<0, dp>, shard<1, tp>>;
using turned = hd::layout<mesh, shard<0, tp>, shard<1, dp>>;
using sums = hd::layout<mesh, hd::partial<hd::plus, dp>, shard<0, tp>>;
using parts_of_sums = hd::layout<mesh, shard<1, dp>>;
using rows = hd::layout<mesh, shard<0, dp>>;
using column = hd::layout<mesh, shard<1, tp>>;
using in_order = Kokkos::RangePolicy<exec, Kokkos::IndexType<std::int64_t>>;

int wrong = 0;  // of this process
void expect(bool right, const std::string& what) {
  if (right) return;
  ++wrong;
  std::printf("wrong: %s\n", what.c_str());
}

// ---- the program's own Views ----
struct fill {
  Kokkos::View<float**, Kokkos::LayoutRight, exec> x;
  std::int64_t row, column;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(x.extent(1)); ++j)
      x(i, j) = static_cast<float>(100 * (row + i) + column + j);
  }
};
template <class Layout>
auto view_under(const Layout& how, memory::queue& queue, hd::dynamic_shape<2> whole, int rank) {
  const auto [n, m] = how.local_shape(whole, rank).extents();
  const auto [row, first] = how.local_offset(whole, rank);
  const Kokkos::View<float**, Kokkos::LayoutRight, exec> view(
      Kokkos::view_alloc(Kokkos::WithoutInitializing, "part of a rank"), static_cast<std::size_t>(n),
      static_cast<std::size_t>(m));
  Kokkos::parallel_for("fill", in_order(queue.instance(), 0, n), fill{view, row, first});
  return hd::sharded<float, 2, Layout, memory>(how, whole, rank, hd::buffer_of_view(queue, view));
}
template <class Layout>
void expect_elements(const hd::sharded<float, 2, Layout, memory>& x, memory::queue& queue, float times,
                     const char* what) {
  const auto here = hd::copy_to<hd::host_memory>(queue, x);
  const auto [row, first] = x.local_offset();
  const auto local = here.local();
  bool right = true;
  for (std::int64_t i = 0; i < local.extent(0); ++i)
    for (std::int64_t j = 0; j < local.extent(1); ++j)
      right = right && local(i, j) == times * static_cast<float>(100 * (row + i) + first + j);
  expect(right, what);
}

void views(auto& world) {
  const mesh m = world.mesh();
  memory::queue queue;
  const hd::dynamic_shape<2> whole(13, 6);
  const auto start = view_under(by_both{m}, queue, whole, world.rank());
  const auto other = hd::redistribute<turned>(start, world, queue);
  expect_elements(other, queue, 1, "rows and columns change places");
  expect_elements(hd::redistribute<by_both>(other, world, queue), queue, 1, "and back");
  const auto added = view_under(sums{m}, queue, whole, world.rank());
  expect_elements(hd::redistribute<parts_of_sums>(added, world, queue), queue, static_cast<float>(m.extents()[0]),
                  "parts are added up");
}

// ---- against the host ----
template <class L>
auto random_part(const mesh& m, hd::dynamic_shape<2> whole, int rank, std::uint64_t stream) {
  hd::buffer<double> numbers(whole.size());
  const hd::counter_random random(5, stream);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = random.uniform(i) - 0.5;
  return hd::shard_of(hd::view<const double, hd::dynamic_shape<2>>(numbers.data(), whole), L{m}, rank);
}
void products(auto& world) {
  co::host<> near;
  co::kokkos<exec, co::teams<>> there;
  auto& queue = there.queue();
  const auto x = random_part<rows>(world.mesh(), {5, 3}, world.rank(), 1);
  const auto w = random_part<column>(world.mesh(), {3, 7}, world.rank(), 2);
  const auto expected = co::einsum<"ij,jk->ik">(near, world, x, w);
  const auto got = hd::copy_to<hd::host_memory>(
      queue, co::einsum<"ij,jk->ik">(there, world, hd::copy_to<memory>(queue, x), hd::copy_to<memory>(queue, w)));
  bool right = got.elements().size() == expected.elements().size();
  for (std::size_t i = 0; right && i < got.elements().size(); ++i)
    right = std::abs(got.elements()[i] - expected.elements()[i]) < 1e-10;
  expect(right, "einsum");
}

// ---- training ----
constexpr int context = 6, words = 20;
using samples = train_test::random_tokens<context, words, 5>;

template <class Model, class Backend>
std::vector<double> train(const typename Model::config& config, int processes) {
  using ranks = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
  hd::train::options<typename Model::config> o;
  o.model = config;
  o.batch = 4 * processes;
  o.microbatches = 2;
  o.steps = 3;
  o.clip_norm = 0.5;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  std::vector<double> numbers;
  hd::launch<hd::mpi>(hd::parse_mesh<ranks>("dp=" + std::to_string(processes)), [&](auto& world) {
    using strategy = hd::strategy<ranks, hd::zero<1>, hd::schedule::named, Backend>;
    hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    trainer.run(samples{}, [&](const hd::train::step_report& report) {
      numbers.push_back(report.loss);
      numbers.push_back(report.gradient_norm);
    });
    numbers.push_back(trainer.validate(samples{}));
  });
  return numbers;
}
template <class Model>
void family(const typename Model::config& config, int processes, const char* name) {
  const auto got = train<Model, co::kokkos<exec>>(config, processes),
             expected = train<Model, co::host<>>(config, processes);
  bool right = got.size() == expected.size() && got.size() == 7;
  for (std::size_t i = 0; right && i < got.size(); ++i)
    right = std::abs(got[i] - expected[i]) <= 1e-4 * (1 + std::abs(expected[i]));
  expect(right, std::string("losses and norms of ") + name);
}

void all(int processes) {
  hd::launch<hd::mpi>(mesh{processes, 1}, [&](auto& world) {
    views(world);
    products(world);
  });
  family<hd::model::gpt2<float>>({.layers = 2, .heads = 2, .width = 8, .context = context, .vocabulary = words},
                                 processes, "a GPT-2");
  const hd::model::llama_config llama{.layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .width = 12,
                                      .ffn = 7,
                                      .context = context,
                                      .vocabulary = words,
                                      .initial_deviation = 0.3,
                                      .head_elements = 4};
  family<hd::model::llama<float>>(llama, processes, "a Llama");
  family<hd::model::qwen3<float>>(hd::model::qwen3_config(llama), processes, "a Qwen-3");
  family<hd::model::mixtral<float>>({llama, 5, 2}, processes, "a Mixtral");
}

}  // namespace

int main(int argc, char** argv) {
  const hd::mpi_session session(argc, argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  int processes = 0, rank = 0, any = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    all(processes);
  } catch (const std::exception& e) {
    expect(false, e.what());
  }
  MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%d processes on %s: %s\n", processes, exec::name(), any == 0 ? "equal to the host" : "wrong");
  return any == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
