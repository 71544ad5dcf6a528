// Linear attention with decays against a naive recurrence and its gradients, cut into any calls and over ranks that pass states.
#include "decay_trials.hpp"
#include "model/golden_file.hpp"

#include <heddle/collective/pass_states.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/decay_attention.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/split.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/testing/counting_world.hpp>
#include <heddle/testing/on_ranks.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

namespace hd = heddle;
namespace cp = heddle::compute;
using decay_numbers = std::vector<double>;
using decay_matrix = hd::matrix_view<double>;

struct decay_case {
  model_test::golden_file golden{std::string(HEDDLE_SOURCE_DIR "/tests/golden/gla_golden.bin")};
  std::int64_t sequences, rows;
  cp::decay_heads of;
  double normalizer;
  decay_numbers q, k, v, gates, decays;

  decay_case() {
    const auto sizes = golden.ids("sizes");
    sequences = sizes[0];
    rows = sizes[1];
    of = {sizes[2], sizes[3], sizes[4], 1 / std::sqrt(static_cast<double>(sizes[4]))};
    normalizer = sizes[5];
    q = golden.values("q"), k = golden.values("k"), v = golden.values("v"), gates = golden.values("gates");
    decays.resize(gates.size());
    cp::host<> kernels{1};
    cp::gate_decays(kernels, view(std::as_const(gates), of.keys()), normalizer, view(decays, of.keys()));
  }
  static decay_matrix view(decay_numbers& x, std::int64_t columns) {
    return {x.data(), hd::dynamic_shape<2>(std::ssize(x) / columns, columns)};
  }
  static hd::matrix_view<const double> view(const decay_numbers& x, std::int64_t columns) {
    return {x.data(), hd::dynamic_shape<2>(std::ssize(x) / columns, columns)};
  }
  static hd::matrix_view<const double> part(const decay_numbers& x, std::int64_t columns, std::int64_t first,
                                            std::int64_t count) {
    return {x.data() + first * columns, hd::dynamic_shape<2>(count, columns)};
  }
  static decay_matrix part(decay_numbers& x, std::int64_t columns, std::int64_t first, std::int64_t count) {
    return {x.data() + first * columns, hd::dynamic_shape<2>(count, columns)};
  }
};

double decay_distance(const decay_numbers& a, const decay_numbers& b) {
  double worst = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < (std::min)(a.size(), b.size()); ++i) {
    const double off = std::abs(a[i] - b[i]);
    if (!(off <= worst)) worst = off;
  }
  return worst;
}

}  // namespace

TEST_CASE("linear attention with decays is the naive recurrence, forward and backward", "[compute][golden]") {
  const decay_case c;
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    cp::host<> kernels{threads};
    const cp::state_sequences<hd::host_memory> both{{}, c.sequences, c.rows, false};
    decay_numbers states = c.golden.values("states"), out(c.q.size());
    cp::decay_attention(kernels, c.of, both, c.view(c.q, c.of.queries()), c.view(c.k, c.of.keys()),
                        c.view(c.v, c.of.keys()), c.view(c.decays, c.of.keys()), std::span<double>(states),
                        c.view(out, c.of.queries()));
    CHECK(decay_distance(out, c.golden.values("out")) < 1e-11);
    CHECK(decay_distance(states, c.golden.values("last")) < 1e-11);

    decay_numbers dq(c.q.size()), dk(c.k.size()), dv(c.v.size()), dg(c.gates.size());
    decay_numbers d_states = c.golden.values("d_last");
    const decay_numbers& began = c.golden.values("states");
    cp::decay_attention_backward(kernels, c.of, both, c.view(c.golden.values("d_out"), c.of.queries()),
                                 c.view(c.q, c.of.queries()), c.view(c.k, c.of.keys()), c.view(c.v, c.of.keys()),
                                 c.view(c.decays, c.of.keys()), std::span<const double>(began),
                                 std::span<double>(d_states), c.view(dq, c.of.queries()), c.view(dk, c.of.keys()),
                                 c.view(dv, c.of.keys()), c.view(dg, c.of.keys()));
    cp::gate_decays_backward(kernels, c.view(c.gates, c.of.keys()), c.normalizer, c.view(dg, c.of.keys()));
    CHECK(decay_distance(dq, c.golden.values("d_q")) < 1e-10);
    CHECK(decay_distance(dk, c.golden.values("d_k")) < 1e-10);
    CHECK(decay_distance(dv, c.golden.values("d_v")) < 1e-10);
    CHECK(decay_distance(dg, c.golden.values("d_gates")) < 1e-10);
    CHECK(decay_distance(d_states, c.golden.values("d_states")) < 1e-10);
  }
}

TEST_CASE("cut into any calls with any companions, linear attention has the same bits", "[compute]") {
  const decay_case c;
  cp::host<> kernels{2};
  decay_numbers whole_states = c.golden.values("states"), whole(c.q.size());
  const cp::state_sequences<hd::host_memory> both{{}, c.sequences, c.rows, false};
  cp::decay_attention(kernels, c.of, both, c.view(c.q, c.of.queries()), c.view(c.k, c.of.keys()),
                      c.view(c.v, c.of.keys()), c.view(c.decays, c.of.keys()), std::span<double>(whole_states),
                      c.view(whole, c.of.queries()));
  const std::uint64_t seed = 12;
  const hd::counter_random random(seed, 1);
  CAPTURE(seed);
  std::uint64_t draws = 0;
  for (int round = 0; round < 20; ++round) {
    decay_numbers states = c.golden.values("states"), out(c.q.size(), -1);
    std::vector<std::int64_t> done(static_cast<std::size_t>(c.sequences), 0);
    while (*std::min_element(done.begin(), done.end()) < c.rows) {
      std::vector<cp::state_rows> listed;
      for (std::int64_t s = 0; s < c.sequences; ++s) {
        auto& at = done[static_cast<std::size_t>(s)];
        const std::int64_t n = (std::min)(c.rows - at, static_cast<std::int64_t>(random.integer(draws++) % 6));
        if (n > 0)
          listed.push_back({static_cast<std::int32_t>(s * c.rows + at), static_cast<std::int32_t>(n),
                            static_cast<std::int32_t>(s), 0});
        at += n;
      }
      if (listed.empty()) continue;
      cp::decay_attention(kernels, c.of, cp::state_sequences<hd::host_memory>{listed}, c.view(c.q, c.of.queries()),
                          c.view(c.k, c.of.keys()), c.view(c.v, c.of.keys()), c.view(c.decays, c.of.keys()),
                          std::span<double>(states), c.view(out, c.of.queries()));
    }
    CHECK(out == whole);
    CHECK(states == whole_states);
  }
}

TEST_CASE("ranks that share a sequence pass or gather its states", "[compute][golden]") {
  const decay_case c;
  struct cp_axis {};
  using mesh = hd::mesh<hd::axis<cp_axis>>;
  using world_type = hd::world<hd::threads, mesh>;
  const std::int64_t q_columns = c.of.queries(), columns = c.of.keys();
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const bool gathers : {false, true}) {
      CAPTURE(ranks, gathers);
      const auto found = hd::testing::on_ranks(mesh{ranks}, [&](world_type& world) {
        auto&& group = world.template along<cp_axis>();
        cp::host<> kernels{1};
        const hd::balanced_split cut{c.rows, ranks};
        const std::int64_t first = cut.offset(world.rank()), rows = cut.size(world.rank());
        const auto own = [&](const decay_numbers& x, std::int64_t n) { return c.part(x, n, first, rows); };
        const cp::state_sequences<hd::host_memory> one{{}, 1, rows, false};
        const auto run = [&](decay_numbers& states, decay_matrix out) {
          cp::decay_attention(kernels, c.of, one, own(c.q, q_columns), own(c.k, columns), own(c.v, columns),
                              own(c.decays, columns), std::span<double>(states), out);
        };
        const auto elements = static_cast<std::size_t>(c.of.state());
        const bool is_first = world.rank() == 0, is_last = world.rank() == ranks - 1;
        // The state that the own rows leave, and how much of one that enters is left of it.
        decay_numbers local(elements, 0), in(elements), decay(static_cast<std::size_t>(columns), 1);
        const decay_numbers& began = c.golden.values("states");
        if (is_first) std::copy_n(began.begin(), elements, local.begin());
        run(local, {});
        for (std::int64_t r = first; r < first + rows; ++r)
          for (std::int64_t i = 0; i < columns; ++i)
            decay[static_cast<std::size_t>(i)] *= c.decays[static_cast<std::size_t>(r * columns + i)];
        hd::gathered_decays<double> all;
        if (gathers)
          all = hd::gather_states(group, std::span<const double>(decay), std::span<const double>(local),
                                  std::span<double>(in));
        else
          hd::pass_states(group, std::span<const double>(decay), std::span<const double>(local), std::span<double>(in));
        if (is_first) std::copy_n(began.begin(), elements, in.begin());
        decay_numbers out(static_cast<std::size_t>(rows * q_columns)), last = in;
        run(last, c.view(out, q_columns));
        const auto off = [&](const decay_numbers& x, const char* name, std::int64_t n) {
          const decay_numbers& golden = c.golden.values(name);
          return decay_distance(x, decay_numbers(golden.begin() + first * n, golden.begin() + (first + rows) * n));
        };
        const auto off_state = [&](const decay_numbers& x, const char* name) {
          const decay_numbers& golden = c.golden.values(name);
          return decay_distance(x, decay_numbers(golden.begin(), golden.begin() + c.of.state()));
        };
        double worst = off(out, "out", q_columns);
        if (is_last) worst = (std::max)(worst, off_state(last, "last"));

        // Back: what own outputs ask of the state that entered, then what the ranks behind ask of the one that left.
        decay_numbers d_state(elements, 0), d_decay(decay.size()), d_local(elements);
        const decay_numbers& d_last = c.golden.values("d_last");
        decay_numbers dq(out.size()), dk(static_cast<std::size_t>(rows * columns)), dv(dk.size()), dg(dk.size());
        const auto back = [&] {
          cp::decay_attention_backward(
              kernels, c.of, one, own(c.golden.values("d_out"), q_columns), own(c.q, q_columns), own(c.k, columns),
              own(c.v, columns), own(c.decays, columns), std::span<const double>(in), std::span<double>(d_state),
              c.view(dq, q_columns), c.view(dk, columns), c.view(dv, columns), c.view(dg, columns));
        };
        if (is_last) std::copy_n(d_last.begin(), elements, d_state.begin());
        back();
        if (gathers)
          hd::gather_states_backward(group, all, std::span<const double>(in), std::span<const double>(d_state),
                                     std::span<double>(d_decay), std::span<double>(d_local));
        else
          hd::pass_states_backward(group, std::span<const double>(decay), std::span<const double>(in),
                                   std::span<const double>(d_state), std::span<double>(d_decay),
                                   std::span<double>(d_local));
        d_state = d_local;
        if (is_last) std::copy_n(d_last.begin(), elements, d_state.begin());
        back();
        cp::gate_decays_backward(kernels, own(c.gates, columns), c.normalizer, c.view(dg, columns));
        worst = (std::max)({worst, off(dq, "d_q", q_columns), off(dk, "d_k", columns), off(dv, "d_v", columns),
                            off(dg, "d_gates", columns)});
        if (is_first) worst = (std::max)(worst, off_state(d_state, "d_states"));
        return worst;
      });
      if (!found.ok()) FAIL(found.error);
      for (int r = 0; r < ranks; ++r) CHECK(found[r] < 1e-10);
    }
}

TEST_CASE("linear attention refuses sizes that do not belong together", "[compute][error]") {
  using Catch::Matchers::Contains;
  cp::host<> kernels{1};
  const cp::decay_heads of{2, 1, 3};
  decay_numbers held(36), states(36);  // 6 rows of 2 heads of 3 elements, and 2 states
  const auto right = decay_case::view(std::as_const(held), 6);
  const auto shorter = decay_case::part(std::as_const(held), 6, 0, 5),
             narrow = decay_case::view(std::as_const(held), 4);
  const auto run = [&](auto k, auto v, auto decays, std::int64_t state, decay_matrix out, std::int64_t rows) {
    cp::decay_attention(kernels, of, cp::state_sequences<hd::host_memory>{{}, 2, rows}, right, k, v, decays,
                        std::span<double>(states).first(static_cast<std::size_t>(state)), out);
  };
  const auto out = decay_case::view(held, 6), low = decay_case::part(held, 6, 0, 5);
  CHECK_THROWS_WITH(run(right, shorter, right, 36, out, 3), Contains("values should have 6 rows, as keys have, got 5"));
  CHECK_THROWS_WITH(run(right, right, narrow, 36, out, 3), Contains("a row of decays should have 6 elements, got 4"));
  CHECK_THROWS_WITH(run(right, right, right, 36, low, 3), Contains("outputs should have 6 rows"));
  CHECK_THROWS_WITH(run(right, right, right, 18, out, 3),
                    Contains("states of the sequences should have 36 elements, got 18"));
  CHECK_THROWS_WITH(run(right, right, right, 35, out, 3), Contains("got 35"));
  CHECK_THROWS_WITH(run(right, right, right, 36, out, 4),
                    Contains("2 sequences of 4 rows should lie in the 6 rows of keys"));
  CHECK_THROWS_WITH(cp::gate_decays(kernels, shorter, 1.0, out), Contains("decays should have 5 rows"));
  const auto back = [&](decay_matrix dv) {
    cp::decay_attention_backward(kernels, of, cp::state_sequences<hd::host_memory>{{}, 2, 3}, right, right, right,
                                 right, right, std::span<const double>(), std::span<double>(), out, out, dv, out);
  };
  CHECK_THROWS_WITH(back(low), Contains("gradients of values should have 6 rows"));
}

TEST_CASE("linear attention in memory that the host may not touch has the same bits", "[compute]") {
  cp::host<> plain{1};
  hd::testing::checked_backend<cp::host<>> checked(1);
  const cp::decay_heads of{2, 2, 5, 0.5};
  CHECK(decay_trials::results<double>(checked, of, 9) == decay_trials::results<double>(plain, of, 9));
}

TEST_CASE("linear attention refuses heads that are too large", "[compute][error]") {
  cp::host<> kernels{1};
  decay_numbers none(300);
  const auto one = decay_case::view(none, 300);
  CHECK_THROWS_WITH(
      cp::decay_attention(kernels, cp::decay_heads{1, 1, 300}, cp::state_sequences<hd::host_memory>{{}, 1, 1},
                          hd::matrix_view<const double>(one), hd::matrix_view<const double>(one),
                          hd::matrix_view<const double>(one), hd::matrix_view<const double>(one), std::span<double>(),
                          one),
      Catch::Matchers::Contains("at most 256 elements, got 300"));
}
