// tests/train/kernel_profile_test.cpp: measured kernels are those of a rank on paper, and explanations and searches use them.
#include "catch.hpp"
#include "paper_plans.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/paper/profile.hpp>
#include <heddle/model/paper/timed.hpp>
#include <heddle/plan/kendall_tau.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/measure_machine.hpp>
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/train/cluster_file.hpp>
#endif

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace {
namespace kernel_profile_test {

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using Catch::Matchers::Contains;
using namespace paper_plans;

constexpr md::llama_config small{
    .layers = 2, .heads = 4, .kv_heads = 4, .width = 32, .ffn = 88, .context = 16, .vocabulary = 96};

TEST_CASE("a kernel has the rate of the nearest one that was measured", "[train][profile]") {
  md::kernel_profile p;
  CHECK(p.empty());
  CHECK(!p.of("matmul", 10, 10).known);
  p.add({"matmul", 999, 300, 2.0, 0.25});
  p.add({"matmul", 99'999, 9'000, 100.0, 0.5});
  p.add({"add", 0, 99, 1.0, 0});
  CHECK(p.of("matmul", 999, 300).seconds == 2);
  CHECK(p.of("matmul", 999, 300).inside);
  CHECK(p.of("matmul", 1'999, 600).seconds == Approx(4));
  CHECK(p.of("matmul", 49'999, 5'000).seconds == Approx(50));
  CHECK(p.of("matmul", 49'999, 5'000).spread == 0.5);
  CHECK(p.of("matmul", 199'999, 18'000).known);
  CHECK(!p.of("matmul", 199'999, 18'000).inside);
  CHECK(!p.of("matmul", 9, 3).inside);
  CHECK(p.of("add", 0, 199).seconds == Approx(2));
  CHECK(!p.of("ad", 0, 99).known);
  p.add({"add", 0, 99, 3.0, 0});  // measured again
  CHECK(p.of("add", 0, 99).seconds == 3);
  CHECK(p.kernels().size() == 3);
  md::kernel_times times;
  for (const double t : {5.0, 1.0, 2.0, 9.0, 4.0}) times.note("add", 0, 7, t);
  times.add_to(p);
  CHECK(p.of("add", 0, 7).seconds == 4);
  CHECK(p.of("add", 0, 7).spread == Approx(3));  // the least is 1

  md::kernel_trace trace;
  trace.note("matmul", 999, 300);
  trace.note("matmul", 999, 300);
  trace.note("gelu", 0, 600);
  const md::roofline device{.flops = 1000, .bytes_per_second = 100};
  const md::traced_seconds all = md::seconds_of(trace, p, device);
  CHECK(all.seconds == Approx(2 * 2.0 + 6));
  CHECK(all.spread == Approx(2 * 2.0 * 0.25));
  CHECK(all.outside == Approx(6));
  CHECK(all.extrapolated());
  CHECK(md::seconds_of(trace, {}, device).seconds == Approx(trace.seconds(device)));
  CHECK(!md::seconds_of(trace, {}, device).extrapolated());
}

TEST_CASE("what is measured of a model are the kernels of its ranks on paper", "[train][profile]") {
  tr::cluster here{.devices = 2,
                   .memory = 1'000'000'000,
                   .device = {.flops = 1e9, .bytes_per_second = 1e9},
                   .levels = {{"machine", 2, 1e9, 1e-6}}};
  tr::measure_kernels<model, hd::compute::host<>>(here, small, std::array{1, 2, 5}, std::array{2}, 3);
  std::set<std::tuple<std::string, std::int64_t, std::int64_t>> measured;
  for (const md::measured_kernel& k : here.kernels.kernels()) {
    CHECK(k.seconds > 0);
    measured.emplace(k.name, k.flops, k.bytes);
  }
  for (const char* of : {"dp=1,pp=1,tp=1", "dp=1,pp=1,tp=2", "dp=1,pp=2,tp=1"})
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      INFO(of << ", " << schedule);
      const auto o = options_of(small, 4, 2, schedule);
      const tr::paper_step<model, strategy<1>> step(o, hd::parse_mesh<mesh_type>(of));
      for (int r = 0; r < step.mesh().size(); ++r) {
        const tr::paper_rank rank = step.rank(r);
        for (const tr::paper_work& w : rank.work)
          for (const md::kernel_calls& k : w.kernels.kernels()) {
            INFO(k.name << " " << k.flops << " " << k.bytes);
            // The loss is a number on the host, and eight bytes on paper.
            const std::int64_t bytes = k.bytes - (k.name == "cross_entropy_loss" ? 8 : 0);
            CHECK(measured.count({std::string(k.name), k.flops, bytes}) == 1);
          }
      }
      const tr::explanation e = tr::explain<model, strategy<1>>(o, step.mesh(), here);
      CHECK(!e.extrapolated);
    }
  // A step is the sum of its kernels as they were measured.
  md::kernel_profile made_up;
  for (const md::measured_kernel& k : here.kernels.kernels())
    made_up.add(
        {k.name, k.flops, k.bytes + (k.name == "cross_entropy_loss" ? 8 : 0), 1.0, k.name == "matmul" ? 0.5 : 0.0});
  here.kernels = made_up;
  const auto mesh = hd::parse_mesh<mesh_type>("dp=1");
  const auto o = options_of(small, 4, 2, "1f1b");
  const tr::explanation e = tr::explain<model, strategy<1>>(o, mesh, here);
  std::int64_t calls = 0, products = 0;
  const auto count = [&](const md::kernel_trace& t) {
    for (const md::kernel_calls& k : t.kernels()) {
      calls += k.calls;
      products += k.name == "matmul" ? k.calls : 0;
    }
  };
  const tr::paper_rank& r = e.classes.front().member;
  for (const int k : r.work_of)
    if (k >= 0) count(r.work[static_cast<std::size_t>(k)].kernels);
  const double behind = e.on.seconds(r.after.kernels);
  CHECK(e.classes.front().compute_seconds == Approx(static_cast<double>(calls) + behind).epsilon(1e-12));
  CHECK(e.spread == Approx(0.5 * static_cast<double>(products) / (static_cast<double>(calls) + behind)));
  CHECK_THAT(to_string(e), Contains(" +- "));
  // Other shapes are said to be outside.
  const auto wider =
      options_of({.layers = 2, .heads = 8, .kv_heads = 8, .width = 64, .ffn = 176, .context = 64, .vocabulary = 96}, 32,
                 1, "1f1b");
  CHECK(tr::explain<model, strategy<1>>(wider, mesh, here).extrapolated);
  CHECK_THAT(to_string(tr::explain<model, strategy<1>>(wider, mesh, here)), Contains("extrapolated"));
  md::llama_config wrong = small;
  wrong.kv_heads = 3;
  CHECK_THROWS_WITH((tr::measure_kernels<model, hd::compute::host<>>(here, wrong, std::array{1}, std::array{1})),
                    Contains("no kernels of the model could be measured: "));
}

TEST_CASE("a machine is measured: rates and a level that are positive", "[train][profile][ranks]") {
  const tr::cluster here = tr::measure_machine<hd::compute::host<>>(2, 1'000'000'000);
  CHECK_NOTHROW(here.validate());
  CHECK(here.devices == 2);
  CHECK(here.levels.front().latency_seconds > 0);
  CHECK_THROWS_WITH(tr::measure_machine<hd::compute::host<>>(0, 1), Contains("at least one device, got 0"));
#if __has_include(<nlohmann/json.hpp>)
  tr::cluster with = here;
  with.kernels.add({"matmul", 1000, 24, 1e-6, 0.125});
  with.kernels.add({"add", 0, 24, 2e-6, 0});
  const nlohmann::json text = tr::json_of_cluster(with);
  const tr::cluster back = tr::cluster_of_json(nlohmann::json::parse(text.dump()), "c.json");
  CHECK(tr::json_of_cluster(back) == text);
  CHECK(back.kernels.of("matmul", 1000, 24).spread == 0.125);
  const auto refused = [&](const char* key, const nlohmann::json& value, const std::string& what) {
    nlohmann::json bad = text;
    bad[nlohmann::json::json_pointer(key)] = value;
    CHECK_THROWS_WITH(tr::cluster_of_json(bad, "c.json"), Contains(what));
  };
  refused("/kernels", 3, "c.json, key 'kernels': expected a list of objects, got 3");
  refused("/kernels/0/seconds", -1, "kernels[0], key 'seconds': expected a positive number, got -1");
  refused("/kernels/1/name", "", "kernels[1], key 'name': expected a name, got \"\"");
  refused("/kernels/1/flops", -2, "kernels[1], key 'flops': expected a number of 0 or more, got -2");
  refused("/kernels/1/speed", 1, "kernels[1], key 'speed': expected one of ");
#endif
}

TEST_CASE("Kendall's tau counts pairs in the same order", "[plan][kendall_tau]") {
  using list = std::vector<double>;
  CHECK(hd::plan::kendall_tau(list{1, 2, 3, 4}, list{10, 20, 30, 40}) == 1);
  CHECK(hd::plan::kendall_tau(list{1, 2, 3, 4}, list{4, 3, 2, 1}) == -1);
  CHECK(hd::plan::kendall_tau(list{1, 2, 3, 4}, list{1, 3, 2, 4}) == Approx(4.0 / 6));
  // scipy.stats.kendalltau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) of its documentation.
  CHECK(hd::plan::kendall_tau(list{12, 2, 1, 12, 2}, list{1, 4, 7, 1, 0}) ==
        Approx(-0.47140452079103173).epsilon(1e-12));
  CHECK(hd::plan::kendall_tau(list{1, 1}, list{1, 2}) == 0);
  CHECK_THROWS_WITH(hd::plan::kendall_tau(list{1, 2}, list{1}), Contains("got 2 and 1"));
  CHECK_THROWS_AS(hd::plan::kendall_tau(list{1}, list{1}), hd::config_error);
}

}  // namespace kernel_profile_test
}  // namespace
