// tests/layout/describe_plan_test.cpp: tables and pictures of plans, compared with the plans.
#include "catch.hpp"

#include <heddle/layout/plan_svg.hpp>

#include <cstdint>
#include <string>
#include <string_view>

using namespace heddle;
using Catch::Matchers::Contains;

namespace {

using square = mesh<axis<dp, 2>, axis<tp, 2>>;
using out = layout<square, shard<0, dp>, partial<plus, tp>>;
using columns = layout<square, shard<1, dp, tp>>;
using zigzag = layout<square, shard<0, split::zigzag, tp, dp>>;

// The steps of the table add up to what the plan says of itself, and its states are those of the plan.
template <class Plan, std::int64_t... E>
bool agrees(const Plan& plan, const shape<E...>& s) {
  const auto d = detail::described(plan, s, 4);
  std::int64_t all = 0, peak = 0, most = 0;
  for (const auto& step : d.steps) {
    all += step.all_sent;
    most += step.most_sent;
    peak = (std::max)(peak, step.peak);
  }
  bool ok = d.steps.size() == plan.steps.size() && d.states.size() == plan.steps.size() + 1;
  ok = ok && all == plan.bytes_sent_in_total(s, 4) && most >= plan.bytes_sent_per_rank(s, 4);
  ok = ok && (d.steps.empty() || peak == plan.peak_bytes(s, 4));
  for (std::size_t i = 0; ok && i < d.states.size(); ++i)
    for (int rank = 0; rank < plan.from().mesh().size(); ++rank)
      for (std::size_t k = 0; k < sizeof...(E); ++k)
        ok = ok &&
             d.states[i].ranks[static_cast<std::size_t>(rank)].dims[k].stored == plan.local_shape_before(i, s, rank)[k];
  return ok;
}

}  // namespace

TEST_CASE("a plan is described as a table of its steps", "[layout][describe][plan]") {
  CHECK(describe(redistribution<out, layout<square>>, shape{9, 64}) ==
        "shard<0, dp>, partial<plus, tp> on dp=2 x tp=2 -> replicated\n"
        "tensor 9 x 64, 4 bytes per element\n"
        "  step                                 most bytes a rank sends  all ranks send  peak bytes of a rank  "
        "largest part  layout\n"
        "  start                                                                                               "
        "5 x 64        shard<0, dp>, partial<plus, tp>\n"
        "  1 all_reduce(plus) over tp                              1280            4608                  2560  "
        "5 x 64        shard<0, dp>\n"
        "  2 all_gather of dimension 0 over dp                     1280            4608                  3584  "
        "9 x 64        replicated\n"
        "  together                                                2560            9216                  3584\n");
  CHECK_THAT(describe(redistribution<out, out>, shape{8, 8}), Contains("\nnothing to do\n"));
  CHECK_THAT(describe(redistribution<columns, zigzag>, shape{9, 64}), Contains("  shard<0, zigzag, tp, dp>\n"));
}

TEST_CASE("the table of a plan adds up to what the plan says", "[layout][describe][plan]") {
  for (const std::int64_t n : {0, 1, 5, 8, 13}) {
    const shape s{n, 2 * n, 3};
    CAPTURE(n);
    CHECK(agrees(redistribution<out, columns>, s));
    CHECK(agrees(redistribution<columns, zigzag>, s));
    CHECK(agrees(redistribution<zigzag, out>, s));
    CHECK(agrees(redistribution<layout<square>, layout<square, identical<dp>, shard<2, tp>>>, s));
  }
  using some = mesh<axis<dp>, axis<tp>>;
  const some m(2, 3);
  CHECK(agrees(plan_redistribution(layout<some, shard<0, dp, tp>>(m), layout<some, shard<1, tp>, partial<plus, dp>>(m)),
               shape{7, 5}));
}

TEST_CASE("a plan is drawn with what every rank holds before and after each step", "[layout][describe][plan][svg]") {
  const std::string svg = describe_svg(redistribution<out, layout<square>>, shape{8, 64});
  CHECK_THAT(svg, Contains(">before: shard&lt;0, dp&gt;, partial&lt;plus, tp&gt;</text>") &&
                      Contains(">1. all_reduce(plus) over tp</text>") &&
                      Contains(">after step 1: shard&lt;0, dp&gt;</text>") &&
                      Contains(">2. all_gather of dimension 0 over dp</text>") &&
                      Contains(">after step 2: replicated</text>") &&
                      Contains("a rank sends at most 1 KiB, all ranks 4 KiB") && Contains("peak 3 KiB per rank"));
  std::size_t ranks = 0;
  for (std::size_t at = svg.find(">rank 3<"); at != std::string::npos; at = svg.find(">rank 3<", at + 1)) ++ranks;
  CHECK(ranks == 3);
  CHECK_THAT(describe_svg(redistribution<out, out>, shape{8, 64}), Contains(">nothing to do</text>"));
  CHECK(detail::bytes_text(1023) == "1023 bytes");
  CHECK(detail::bytes_text(1536) == "1.5 KiB");
  CHECK(detail::bytes_text((1 << 20) - 1) == "1 MiB");
  CHECK(detail::bytes_text((1 << 20) - 10) == "1023.99 KiB");
}

TEST_CASE("describe of a plan refuses what it cannot draw", "[layout][describe][plan]") {
  CHECK_THROWS_AS(describe(redistribution<out, columns>, shape{1, 2, 3, 4, 5}), layout_error);
  CHECK_THAT(describe_svg(redistribution<out, columns>, shape{8, 64, 3, 2}),
             Contains(">tensor 8 x 64 x 3 x 2, 4 bytes"));
  CHECK_THROWS_AS(describe(redistribution<out, columns>, shape{4}), layout_error);
  CHECK_THROWS_AS(describe_svg(redistribution<out, columns>, shape{4}), layout_error);
}
