// Shows who holds what: layouts and a plan, as text and as the pictures of docs/images.
// run: images
// prints:   0..4 | 0+1   | 2+3    |
// prints: rank 3 (cp 3): [6..9], 4
// prints: 1 reduce_scatter(plus) of dimension 1 over tp
// prints: wrote images/describe_plan.svg
#include <heddle/layout/describe_svg.hpp>
#include <heddle/layout/plan_svg.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>

namespace hd = heddle;
using hd::cp, hd::dp, hd::pp, hd::tp;

namespace {

void write(const std::filesystem::path& file, const std::string& svg) {
  std::ofstream out(file, std::ios::binary);
  out << svg;
  if (!out.flush()) throw hd::io_error("cannot write " + file.string());
  std::printf("wrote %s\n", file.string().c_str());
}

template <class What, class Shape>
void show(const std::filesystem::path& folder, const std::string& name, const What& what, const Shape& shape) {
  std::printf("%s\n", describe(what, shape).c_str());
  if (!folder.empty()) write(folder / ("describe_" + name + ".svg"), describe_svg(what, shape));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1 && argv[1][0] == '-') {
    std::printf("usage: describe_layouts [folder for pictures]\n");
    return 0;
  }
  const std::filesystem::path folder = argc > 1 ? argv[1] : "";
  if (!folder.empty()) std::filesystem::create_directories(folder);

  // A matrix of 9 rows over dp and 64 columns over pp, whose elements are sums over tp.
  using cube = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
  using sums = hd::layout<cube, hd::shard<0, dp>, hd::shard<1, pp>, hd::partial<hd::plus, tp>>;
  show(folder, "matrix", sums{}, hd::shape{9, 64});

  // A sequence in zigzag order over the ranks of a ring, so that causal attention gives each the same work.
  using ring = hd::mesh<hd::axis<cp, 4>>;
  show(folder, "zigzag", hd::layout<ring, hd::shard<0, hd::split::zigzag, cp>>{}, hd::shape{16});

  // Three dimensions: batch, sequence and width; the sequence in blocks, copies along tp.
  using square = hd::mesh<hd::axis<dp, 2>, hd::axis<cp, 2>, hd::axis<tp, 2>>;
  using blocks = hd::layout<square, hd::shard<0, dp>, hd::shard<1, hd::split::block_cyclic<2>, cp>>;
  show(folder, "slices", blocks{}, hd::shape{4, 10, 8});

  // Four dimensions: batch, heads, sequence and width, as attention has them: a row of slices per block of the batch.
  using heads = hd::layout<square, hd::shard<0, dp>, hd::shard<1, tp>, hd::shard<2, cp>>;
  show(folder, "rows", heads{}, hd::shape{2, 4, 8, 6});

  // What it takes to sum over tp and give every rank its columns.
  using grid = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using from = hd::layout<grid, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  using to = hd::layout<grid, hd::shard<1, tp>>;
  show(folder, "plan", hd::redistribution<from, to>, hd::shape{8, 64});
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
