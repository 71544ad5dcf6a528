// context_mpi <cluster>, under smpirun: of the carriers of context parallelism the one is first that the model of costs says.
#include <heddle/comm/mpi.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/context/cost.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/context/program.hpp>

#include "clusters.hpp"

#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hc = heddle::compute;

namespace {

constexpr double flops_per_second = 2e9;
constexpr std::int64_t rows = 16, dim = 32;  // of each rank

void sleep_to(double until) {
  const double seconds = until - MPI_Wtime();
  if (seconds <= 0) return;
  const timespec t{static_cast<time_t>(seconds), static_cast<long>(std::fmod(seconds, 1.0) * 1e9)};
  nanosleep(&t, nullptr);
}

// Takes the virtual time of attention, and computes nothing.
struct timed_backend : hc::host<> {
  timed_backend() : hc::host<>(1) {}
  void takes(std::span<const hc::attention_slice> slices, std::int64_t heads, hd::context_pass pass) const {
    std::int64_t pairs = 0;
    for (const hc::attention_slice& s : slices) pairs += s.area();
    sleep_to(MPI_Wtime() + static_cast<double>(pairs * heads) *
                               hd::operations_per_pair({heads, heads, dim, dim, 4, 4}, pass) / flops_per_second);
  }
  template <class Op, class T, class... Arguments>
    requires std::derived_from<Op, hc::ops::attention_operation>
  void run(const Arguments&... x) const {
    attend(Op{}, x...);
  }

 private:
  template <class Q, class K, class V, class Out>
  void attend(hc::ops::attention, const Q& q, const K&, const V&, std::span<const hc::attention_slice> slices, float,
              const Out& out, std::span<float> lse, const hc::key_pages&) const {
    for (std::int64_t r = 0; r < out.rows; ++r) std::fill_n(out.row(r, 0), out.width(), 0.0F);
    std::fill(lse.begin(), lse.end(), 0.0F);
    takes(slices, q.heads, hd::context_pass::forward);
  }
  template <class D, class Q, class K, class V, class Out, class Dq, class Dk, class Dv>
  void attend(hc::ops::attention_backward, const D&, const Q& q, const K&, const V&, const Out&, std::span<const float>,
              std::span<const hc::attention_slice> slices, float, const Dq& dq, const Dk& dk, const Dv& dv,
              const hc::key_pages&) const {
    for (const auto& x : {dq, dk, dv})
      for (std::int64_t r = 0; r < x.rows; ++r) std::fill_n(x.row(r, 0), x.width(), 0.0F);
    takes(slices, q.heads, hd::context_pass::backward);
  }
};

struct passes {
  hd::context_table forward{}, backward{};
};

// Virtual seconds of both passes until the last rank is done.
template <class World>
double seconds_of(World& world, const passes& tables, const hd::context_shape& shape) {
  auto& ranks = world.template along<hd::cp>();
  const auto make = [&](std::int64_t heads) {
    return std::vector<float>(static_cast<std::size_t>(rows * heads * dim));
  };
  const auto of = [&](std::vector<float>& x, std::int64_t heads) {
    return hc::head_rows<float>{x.data(), rows, heads, dim, heads * dim};
  };
  const std::int64_t h = shape.query_heads, g = shape.key_heads;
  std::vector<float> q = make(h), out = q, dout = q, dq = q, k = make(g), v = k, dk = k, dv = k;
  std::vector<float> lse(static_cast<std::size_t>(rows * h));
  timed_backend backend;
  hd::context_executor<float, timed_backend, std::remove_reference_t<decltype(ranks)>> attention(backend, ranks);
  double seconds = 0;
  for (const hd::context_table* table : {&tables.forward, &tables.backward}) {
    const hd::context_program program = hd::lower_context(*table, ranks.rank());
    double start = MPI_Wtime();
    world.control().all_reduce(start, hd::maximum{});
    start = std::ceil(start) + 1;  // by when all have left the reduction
    sleep_to(start);
    if (table->pass == hd::context_pass::forward)
      attention.attend(program, of(q, h), of(k, g), of(v, g), 1.0F, of(out, h), lse);
    else
      attention.attend_backward(program, of(dout, h), of(q, h), of(k, g), of(v, g), of(out, h), lse, 1.0F, of(dq, h),
                                of(dk, g), of(dv, g));
    double took = MPI_Wtime() - start;
    world.control().all_reduce(took, hd::maximum{});
    seconds += took;
  }
  return seconds;
}

struct result {
  std::string_view carrier{};
  double took = 0, model = 0;
};

template <class World>
int check(World& world, const hd::topology& cluster, bool full_mesh) {
  const int ranks = world.size();
  hd::context_document document{rows * ranks, {}, hd::masks::causal{}.slices(rows * ranks)};
  for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
  const hd::context_cut cut = hd::cut_documents<hd::split::zigzag>({document}, ranks);
  const hd::route_table way = cluster.route(0, ranks - 1);
  const hd::context_machine machine{flops_per_second, way.bytes_per_second, way.seconds, full_mesh};
  constexpr std::array<std::int64_t, 2> all_key_heads{8, 1};
  std::array<std::vector<result>, 2> results;
  for (const std::string_view name : {"kv-ring", "token-ring", "burst", "gather", "usp-2"}) {
    const hd::context_carrier& carrier = hd::named_context_carrier(name);
    const passes tables{make_context_table(carrier, cut, hd::context_pass::forward),
                        make_context_table(carrier, cut, hd::context_pass::backward)};
    for (std::size_t i = 0; i < 2; ++i) {
      const hd::context_shape shape{8, all_key_heads[i], dim, dim, 4, 4};
      const double took = seconds_of(world, tables, shape);
      if (world.rank() != 0) continue;
      results[i].push_back(
          {name, took, seconds(tables.forward, shape, machine) + seconds(tables.backward, shape, machine)});
    }
  }
  if (world.rank() != 0) return 0;
  int wrong = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto first = [&](double result::* by) {
      return *std::min_element(results[i].begin(), results[i].end(),
                               [&](const result& a, const result& b) { return a.*by < b.*by; });
    };
    for (const result& r : results[i]) {
      std::printf("8:%d heads, %-10s %8.3f ms, model %8.3f ms\n", static_cast<int>(all_key_heads[i]), r.carrier.data(),
                  r.took * 1e3, r.model * 1e3);
      // The model lets messages of a round share a link without loss, and all of them set off when the round begins.
      wrong += r.took < 0.99 * r.model || r.took > 2 * r.model;
    }
    const result won = first(&result::took), said = first(&result::model);
    std::printf("first: %s, model: %s\n", won.carrier.data(), said.carrier.data());
    wrong += said.took > 1.01 * won.took;  // some are equal
  }
  std::printf("%d ranks, %d wrong\n", ranks, wrong);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const hd::topology cluster = named(argv[1]);
  int wrong = 0;
  const int status = hd::launch<hd::mpi>(hd::mesh<hd::axis<hd::cp>>{cluster.ranks()}, [&](auto& world) {
    wrong = check(world, cluster, argv[1] == std::string("full"));
  });
  return status != 0 || wrong != 0 ? 1 : 0;
}
