// What a route of weights costs: 100 M parameters of 300 tensors from a mesh to another one of eight ranks that are threads, against one
// all_to_all_v of as many elements between the same ranks; and the time that its plan takes. Rounds alternate.
// Usage: parameter_route_bench [rounds = 7] [bytes of a bucket]
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/parameter_route.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <string>
#include <vector>

namespace {

namespace hd = heddle;
namespace md = heddle::model;
constexpr int tensors = 300, edge = 576, ranks = 8;

// This rank's parts of the tensors where they are cut over t ranks, by rows and by columns in turn; on none of them the rank has nothing.
struct weights {
  using element = float;
  using space = hd::host_memory;
  std::vector<md::parameter_box> all{};
  mutable std::vector<float> elements{};

  weights() = default;
  weights(int place, int t) : all(boxes_of(place, t)) {
    elements.assign(static_cast<std::size_t>(tensors) * edge * edge / static_cast<std::size_t>(t), 1.0f);
  }
  static std::vector<md::parameter_box> boxes_of(int place, int t) {
    std::vector<md::parameter_box> all;
    const std::int64_t part = edge / t, begin = place * part;
    for (int i = 0; i < tensors; ++i) {
      const bool rows = i % 2 == 0;
      all.push_back({"h." + std::to_string(i) + ".weight",
                     {edge, edge},
                     {rows ? begin : 0, rows ? 0 : begin},
                     {rows ? part : edge, rows ? edge : part},
                     i * part * edge,
                     0});
    }
    return all;
  }
  const std::vector<md::parameter_box>& boxes() const { return all; }
  std::vector<std::span<float>> rows() const { return {elements}; }
  static void written() {}
};

// Seconds, and the processor's of the whole process, which other programs change less.
struct cost {
  double seconds = 0, processor = 0;
};
cost cost_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t before = std::clock();
  work();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC};
}

double median(const std::vector<cost>& all, double cost::* of) {
  std::vector<double> x;
  for (const cost& c : all) x.push_back(c.*of);
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}
// Sources on the first `from` ranks, targets on the last `to`, cut over groups of as many.
void run(const char* what, int from, int from_t, int to, int to_t, int rounds, std::int64_t bucket) {
  std::vector<cost> plan, routed, plain;
  double bytes = 0;
  int buckets = 0;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>(ranks), [&](auto& world) {
    const int r = world.rank();
    const weights source = r < from ? weights(r % from_t, from_t) : weights();
    const weights target = r >= ranks - to ? weights((r - (ranks - to)) % to_t, to_t) : weights();
    hd::compute::host<hd::compute::portable> backend{1};
    std::vector<md::boxes_of_rank> boxes;
    using none = std::vector<md::parameter_box>;
    for (int k = 0; k < ranks; ++k)
      boxes.push_back({k < from ? weights::boxes_of(k % from_t, from_t) : none{},
                       k >= ranks - to ? weights::boxes_of((k - (ranks - to)) % to_t, to_t) : none{}});
    const md::parameter_route route(world, source, target, bucket);
    // As many elements from rank to rank, to each in proportion to what it receives, and to the rank itself what it keeps.
    std::vector<std::int64_t> sends(ranks, 0), receives(ranks, 0);
    double others = 0;
    for (int k = 0; k < ranks; ++k) others += k == r ? 0 : static_cast<double>(route.received(k));
    for (int k = 0; k < ranks; ++k)
      sends[static_cast<std::size_t>(k)] =
          k == r ? route.kept()
                 : static_cast<std::int64_t>(static_cast<double>(route.sent()) *
                                             static_cast<double>(route.received(k)) / others);
    world.control().all_to_all(std::span<const std::int64_t>(sends), std::span<std::int64_t>(receives));
    std::int64_t out = 0, in = 0;
    for (int k = 0; k < ranks; ++k)
      out += sends[static_cast<std::size_t>(k)], in += receives[static_cast<std::size_t>(k)];
    std::vector<float> outgoing(static_cast<std::size_t>(out), 1.0f), incoming(static_cast<std::size_t>(in));
    for (int k = 0; k <= rounds; ++k) {
      world.control().barrier();
      const cost planned = r != 0 ? cost{} : cost_of([&] { const md::parameter_route again(boxes, 0); });
      world.control().barrier();
      const cost by_route = cost_of([&] {
        route.run(world, backend, source, target);
        world.control().barrier();
      });
      const cost at_once = cost_of([&] {
        world.all().all_to_all_v(std::span<const float>(outgoing), sends, std::span<float>(incoming), receives);
        world.control().barrier();
      });
      if (r != 0 || k == 0) continue;  // the first round touches the memory
      plan.push_back(planned);
      routed.push_back(by_route);
      plain.push_back(at_once);
    }
    if (r == 0) {
      for (int k = 0; k < ranks; ++k) bytes += static_cast<double>(route.sent(k) + route.kept(k)) * sizeof(float);
      buckets = route.buckets();
    }
  });
  const auto ms = [](const std::vector<cost>& of, double cost::* which) { return 1e3 * median(of, which); };
  std::printf(
      "%-34s %5.0f MB in %3d buckets: route %4.0f ms (processor %4.0f), all_to_all_v %4.0f ms (%4.0f): %3.0f %% (%3.0f "
      "%%) of its speed; plan %.1f ms\n",
      what, bytes / 1e6, buckets, ms(routed, &cost::seconds), ms(routed, &cost::processor), ms(plain, &cost::seconds),
      ms(plain, &cost::processor), 100 * ms(plain, &cost::seconds) / ms(routed, &cost::seconds),
      100 * ms(plain, &cost::processor) / ms(routed, &cost::processor), ms(plan, &cost::seconds));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: parameter_route_bench [rounds = 7] [bytes of a bucket]\n");
    return 2;
  }
  const std::int64_t bucket = argc > 2 ? std::atoll(argv[2]) : md::usual_bucket_bytes<hd::host_memory>;
  run("tp4 on 4 ranks to tp2 on 4 others", 4, 4, 4, 2, rounds, bucket);
  run("tp8 to tp2 x 4 on the same ranks", 8, 8, 8, 2, rounds, bucket);
}
