// write_platform <cluster> <folder>: writes SimGrid's platform.xml and hostfile of a cluster; with a route for every pair
// of ranks if its name ends in _pairs.
#include <heddle/mesh/simgrid.hpp>

#include "clusters.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

void write(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fclose(file) != 0) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::exit(2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string cluster = argv[1];
  const hd::topology t = named(cluster);
  const auto ways = cluster.ends_with("_pairs") ? hd::simgrid_ways::pairs : hd::simgrid_ways::shortest;
  write(std::string(argv[2]) + "/platform.xml", hd::simgrid_platform(t, 1e11, ways));
  write(std::string(argv[2]) + "/hostfile", hd::simgrid_hostfile(t));
}
