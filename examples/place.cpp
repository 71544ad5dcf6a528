// Places a training job on the pods of a cluster (Arnold): reads free nodes and a job, prints the order of ranks, draws where groups lie.
// run: @SOURCE_DIR@/examples/place/four_pods.txt place_four_pods.svg
// prints: 3 pods, a group in at most 1
// prints: 2 pods, a group in at most 2
// prints: taken: 3 pods
// prints: pp: a group in 1 pods at most, 0 of 32 mix cards, 0 of 6.72 GB between pods
// prints: dp: a group in 3 pods at most, 0 of 64 mix cards, 576 of 768 GB between pods
// prints: order: 0-7, 64-71, 160-167, 352-359
#include <heddle/core/error.hpp>
#include <heddle/mesh/axis_network.hpp>
#include <heddle/plan/level_bytes.hpp>
#include <heddle/plan/place_groups.hpp>
#include <heddle/plan/placement_svg.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using job_mesh = hd::mesh<hd::axis<pp>, hd::axis<dp>, hd::axis<tp>>;

namespace {

struct input {
  int node = 8, extents[3] = {1, 1, 1};
  std::vector<int> free_nodes{};
  std::vector<hd::link_kind> cards{};
  double pipeline_bytes = 0, gradient_bytes = 0, alpha = 0.3;
};

input read(const char* path) {
  std::ifstream file(path);
  if (!file) throw hd::io_error("heddle: cannot read '" + std::string(path) + "'");
  input in;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string kind, card, more;
    if (!(words >> kind)) continue;
    if (kind == "node") {
      words >> in.node;
    } else if (kind == "pod") {
      words >> in.free_nodes.emplace_back() >> card;
      const auto at = std::find(hd::link_kind_names.begin(), hd::link_kind_names.end(), card);
      if (at == hd::link_kind_names.end()) words.setstate(std::ios::failbit);
      in.cards.push_back(static_cast<hd::link_kind>(at - hd::link_kind_names.begin()));
    } else if (kind == "job") {
      for (int& e : in.extents) words >> e;
    } else if (kind == "bytes") {
      words >> in.pipeline_bytes >> in.gradient_bytes;
    } else if (kind == "alpha") {
      words >> in.alpha;
    } else {
      words.setstate(std::ios::failbit);
    }
    if (!words || words >> more)
      throw hd::io_error(
          "heddle: '" + std::string(path) + "', line " + std::to_string(number) + ": '" + line +
          "' is none of node RANKS, pod NODES CARD, job PP DP TP, bytes PIPELINE GRADIENTS, alpha WEIGHT");
  }
  return in;
}

// Ranks of nodes of so many, pod by pod. Placing asks only who sits where, so there are no links.
hd::topology cluster_of(const input& in) {
  std::vector<hd::rank_place> places;
  for (std::size_t pod = 0, node = 0; pod < in.free_nodes.size(); ++pod)
    for (int n = 0; n < in.free_nodes[pod]; ++n, ++node)
      for (int r = 0; r < in.node; ++r)
        places.push_back(
            {static_cast<int>(places.size()), static_cast<int>(node), r, static_cast<int>(pod), in.cards[pod]});
  hd::topology t(static_cast<int>(places.size()));
  for (std::size_t r = 0; r < places.size(); ++r) t.place(static_cast<int>(r), places[r]);
  return t;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 3 || argv[1][0] == '-') {
    std::printf("usage: place <cluster and job> [<picture>.svg]\n");
    return argc == 2 ? 0 : 2;
  }
  const input in = read(argv[1]);
  const job_mesh mesh(in.extents[0], in.extents[1], in.extents[2]);
  const hd::topology cluster = cluster_of(in);
  const int rows = std::max(1, in.extents[1] * in.extents[2] / std::max(1, in.node));  // pipelines of whole nodes
  const auto placed = hd::plan::place_groups({in.free_nodes, rows, in.extents[0]});
  for (const auto& p : placed.choices) std::printf("%d pods, a group in at most %d\n", p.pods, p.widest);
  const hd::plan::group_placement& best = placed.best(in.alpha);
  std::printf("taken: %d pods\n", best.pods);
  const std::vector<int> order = best.order(mesh, cluster);
  const double ring = 2.0 * (in.extents[1] - 1) / in.extents[1];
  const auto stages = hd::plan::bytes_along<pp>(mesh, cluster, order, in.pipeline_bytes, false);
  const auto sums = hd::plan::bytes_along<dp>(mesh, cluster, order, ring * in.gradient_bytes, true);
  hd::topology job(mesh.size());  // its own ranks, in the mesh's order
  for (int r = 0; r < mesh.size(); ++r) job.place(r, cluster.place(order[static_cast<std::size_t>(r)]));
  const auto print = [](const char* axis, const hd::group_spread& s, const hd::axis_network& n,
                        const hd::plan::level_bytes& sent) {
    std::printf("%s: a group in %d pods at most, %d of %d mix cards, %g of %g GB between pods\n", axis, s.widest,
                n.mixed, n.groups, sent.between_pods / 1e9, sent.all() / 1e9);
  };
  print("pp", hd::spread_along<pp>(mesh, job, hd::cluster_level::pod), hd::network_along<pp>(mesh, job), stages);
  print("dp", hd::spread_along<dp>(mesh, job, hd::cluster_level::pod), hd::network_along<dp>(mesh, job), sums);
  std::printf("order:");
  for (std::size_t r = 0; r < order.size();) {
    std::size_t end = r + 1;
    while (end < order.size() && order[end] == order[end - 1] + 1) ++end;
    std::printf("%s %d-%d", r == 0 ? "" : ",", order[r], order[end - 1]);
    r = end;
  }
  std::printf("\n");
  if (argc == 3) {
    const std::vector<hd::plan::axis_bytes> axes{{"pp", stages}, {"dp", sums}};
    std::ofstream out(argv[2]);
    if (!(out << hd::plan::placement_svg(best, in.free_nodes, axes,
                                         std::filesystem::path(argv[1]).filename().string())))
      throw hd::io_error("heddle: cannot write '" + std::string(argv[2]) + "'");
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
