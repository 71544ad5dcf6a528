#include <heddle/tensor/redistribute.hpp>
#include <heddle/testing/counting_world.hpp>

#include "catch.hpp"
#include "layout/oracles/oneflow.hpp"
#include "tensor/value_level.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
using namespace value_level;

namespace {
using mesh2 = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>>;

hd::detail::axis_table<2> table_of(const oneflow::nd_sbp& s) {
  hd::detail::axis_table<2> t;
  for (std::size_t a = 0; a < 2; ++a) {
    if (s[a].kind == 'P') t.use[a] = contributions(0);
    if (s[a].kind == 'S') t.use[a] = split_dim(s[a].dim);
    if (s[a].kind == 'S' && a == 1 && s[0] == s[1]) t.use[a].level = 1;
  }
  return t;
}

// One redistribution: its plan, and what each rank must send.
struct job {
  hd::detail::axis_table<2> from{}, to{};
  plan<2> how{};
  std::vector<std::int64_t> bytes{};
};
}  // namespace

TEST_CASE("all 64 x 64 pairs of nd-SBPs run with the right values, and send what their plans say",
          "[tensor][redistribute][oneflow][law][exhaustive]") {
  using world = hd::testing::counting::world<mesh2>;
  constexpr std::size_t rank = 6;
  const auto states = oneflow::universe();
  // Six dimensions, two of them uneven, one shorter than the axes: some parts are empty.
  const std::array<std::int64_t, rank> extents{6, 3, 2, 2, 1, 2};
  for (const auto& m : {mesh2{2, 2}, mesh2{2, 3}, mesh2{3, 2}}) {
    const problem<2, rank> p{hd::detail::numbers_of(m.extents()), extents};
    const auto ranks = static_cast<std::size_t>(m.size());
    std::vector<job> jobs;
    for (const auto& from : states)
      for (const auto& to : states) {
        job j{table_of(from), table_of(to), {}, std::vector<std::int64_t>(ranks)};
        const auto found = hd::detail::find_steps(j.from, j.to, m.extents());
        j.how = {{found.steps.begin(), found.steps.end()}, {found.tables.begin(), found.tables.end()}};
        for (std::size_t i = 0; i < found.steps.size(); ++i)
          for (int r = 0; r < m.size(); ++r)
            j.bytes[static_cast<std::size_t>(r)] +=
                hd::detail::elements_sent(found.steps[i], hd::detail::cuts_of(found.tables[i]),
                                          hd::detail::cuts_of(found.tables[i + 1]), p.mesh, extents, r) *
                static_cast<std::int64_t>(sizeof(double));
        jobs.push_back(std::move(j));
      }
    std::vector<std::vector<hd::buffer<double>>> results(jobs.size());
    // Bytes are counted per eight pairs: before and after, all ranks must have come to rest.
    constexpr std::size_t together = 8;
    std::vector<std::vector<std::int64_t>> sent(jobs.size() / together, std::vector<std::int64_t>(ranks));
    for (auto& r : results) r.resize(ranks);
    hd::testing::counting::run<mesh2>(m, [&](world& w) {
      const auto me = static_cast<std::size_t>(w.rank());
      for (std::size_t j = 0; j < jobs.size(); ++j) {
        if (j % together == 0) {
          w.all().barrier();
          sent[j / together][me] = -w.bytes_sent();
          w.all().barrier();
        }
        const auto source = p.some_part(jobs[j].from, w.rank());
        results[j][me] = hd::detail::redistribute_by_plan<operators>(
            std::span<const double>(source.data(), source.size()), jobs[j].how, extents, w);
        if (j % together + 1 == together) {
          w.all().barrier();
          sent[j / together][me] += w.bytes_sent();
        }
      }
    });
    std::string wrong;
    for (std::size_t j = 0; j < jobs.size() && wrong.empty(); ++j) {
      std::string text;
      std::vector<hd::buffer<double>> sources;
      for (int r = 0; r < m.size(); ++r) sources.push_back(p.some_part(jobs[j].from, r));
      const auto before = p.whole_of(jobs[j].from, sources, text);
      if (p.whole_of(jobs[j].to, results[j], text) != before && text.empty()) text = "another tensor";
      for (std::size_t r = 0; r < ranks; ++r) sent[j / together][r] -= jobs[j].bytes[r];
      if (j % together + 1 == together && sent[j / together] != std::vector<std::int64_t>(ranks) && text.empty())
        text = "it or one of the seven before sent other bytes than planned";
      if (!text.empty())
        wrong = text_of(jobs[j].from) + " -> " + text_of(jobs[j].to) + " on " + to_string(m) + ": " + text;
    }
    CHECK(wrong == "");
  }
}
