// tests/train/explain_test.cpp: an explained strategy counts every rank once, adds up its times, and says what does not fit.
#include "catch.hpp"
#include "paper_plans.hpp"

#include <heddle/mesh/parse.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/schedule/generate/interleaved.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/cluster.hpp>
#include <heddle/train/explain.hpp>
#include <heddle/train/explain_page.hpp>
#include <heddle/train/peak_bytes.hpp>
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/train/cluster_file.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace {
namespace explain_test {

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;
using namespace paper_plans;

tr::cluster sixty_four() {
  return {.devices = 64,
          .memory = 80'000'000'000,
          .device = {.flops = 1e15, .bytes_per_second = 3e12, .efficiency = 0.5, .launch_seconds = 4e-6},
          .levels = {{"node", 8, 4e11, 3e-6}, {"network", 64, 5e10, 1e-5}}};
}
TEST_CASE("a Llama 2 7B is explained: classes, parameters, traffic, times", "[train][explain]") {
  const auto mesh = hd::parse_mesh<mesh_type>("dp=2,pp=2,tp=8");
  const auto e = tr::explain<model, strategy<1>>(options_of(md::llama2_7b(), 16, 8, "1f1b"), mesh, sixty_four());
  CHECK(e.parameters == 6'738'415'616);
  CHECK(e.tokens == 16 * 4096);
  REQUIRE(e.classes.size() == 2);
  CHECK(e.classes[0].ranks == 16);
  CHECK(e.classes[1].member.rank == 8);
  const auto of = [&](std::size_t k, const char* axes) {
    for (const md::axis_traffic& t : e.classes[k].traffic)
      if (t.axes == axes) return t.counters;
    return hd::comm_counters{};
  };
  CHECK(of(0, "tp")[hd::comm_operation::all_reduce].calls == 8 * 65);
  CHECK(of(0, "tp")[hd::comm_operation::all_reduce].bytes == 8 * (2'214'592'512 + 2'147'483'648));
  CHECK(of(0, "pp")[hd::comm_operation::send].calls == 8);
  CHECK(of(0, "pp")[hd::comm_operation::send].bytes == 8 * std::int64_t{4096} * 4096 * 4);
  CHECK(of(1, "dp")[hd::comm_operation::reduce_scatter_v].bytes == e.classes[1].member.memory->parameters.gradients);
  CHECK(e.axes[2].level == "node");
  CHECK(e.axes[0].level == "network");
  // A rank cannot be done before its own work; the step is that, what the pipeline waits, and what is sent behind.
  for (const tr::rank_class& c : e.classes) CHECK(e.seconds > c.compute_seconds);
  CHECK(e.bubble > 1.0 / 9 - 0.02);
  CHECK(e.mfu() > 0);
  CHECK(e.mfu() < 0.5);  // the efficiency of products
  CHECK(e.fits());
  const std::string text = to_string(e);
  CHECK_THAT(text, Contains("dp=2 x pp=2 x tp=8: 32 of 64 devices; schedule 1f1b; microbatches 8; zero 1"));
  CHECK_THAT(text, Contains("MFU"));
}

TEST_CASE("without a pipeline a step takes what is computed and sent, one after the other", "[train][explain]") {
  const auto mesh = hd::parse_mesh<mesh_type>("dp=4,tp=4");
  const auto e = tr::explain<model, strategy<2>>(options_of(md::llama2_7b(), 16, 4, "gpipe"), mesh, sixty_four());
  REQUIRE(e.classes.size() == 1);
  CHECK(e.seconds == Approx(e.classes[0].compute_seconds + e.classes[0].sent_seconds).epsilon(1e-12));
  // The roofline, call by call.
  double seconds = 0;
  const auto count = [&](const tr::paper_work& w, std::int64_t times) {
    for (const md::kernel_calls& k : w.kernels.kernels())
      seconds += static_cast<double>(times * k.calls) *
                 ((std::max)(static_cast<double>(k.flops) / 5e14, static_cast<double>(k.bytes) / 3e12) + 4e-6);
  };
  const tr::paper_rank& r = e.classes[0].member;
  for (const int k : r.work_of)
    if (k >= 0) count(r.work[static_cast<std::size_t>(k)], 1);
  count(r.after, 1);
  CHECK(e.classes[0].compute_seconds == Approx(seconds).epsilon(1e-12));
}

TEST_CASE("every rank is in one class, whose member holds what it holds", "[train][explain]") {
  md::llama_config c{.layers = 5, .heads = 6, .kv_heads = 3, .width = 48, .ffn = 101, .context = 8, .vocabulary = 503};
  for (const char* of : {"dp=5,pp=2,tp=3", "dp=3,tp=3", "dp=7,pp=2", "pp=5,tp=3"}) {
    INFO(of);
    const auto mesh = hd::parse_mesh<mesh_type>(of);
    const auto o = options_of(c, 23, 2, "1f1b");
    const auto e = tr::explain<model, strategy<2>>(o, mesh, sixty_four());
    const tr::paper_step<model, strategy<2>> step(o, mesh);
    using numbers = std::map<std::vector<std::int64_t>, std::int64_t>;
    const auto key = [&](int rank) {
      auto k = tr::detail::key_of_rank(step, rank);
      k.push_back(step.pipeline_rank(rank));
      return k;
    };
    numbers brute, found;
    for (int r = 0; r < mesh.size(); ++r) ++brute[key(r)];
    for (const tr::rank_class& k : e.classes) found[key(k.member.rank)] += k.ranks;
    CHECK(found == brute);
  }
}

TEST_CASE("what does not fit, and clusters that are too small or wrong, are said", "[train][explain]") {
  const auto mesh = hd::parse_mesh<mesh_type>("dp=4");
  tr::cluster c = sixty_four();
  const auto e = tr::explain<model, strategy<1>>(options_of(md::llama2_7b(), 8, 2, "1f1b"), mesh, c);
  CHECK(!e.fits());
  CHECK(e.missing_bytes() == e.fullest().member.memory->total() - 80'000'000'000);
  CHECK_THAT(to_string(e), Contains("does not fit: rank 0 needs "));
  CHECK_THAT(tr::explain_page(e), Contains("Does not fit"));
  c.devices = 2;
  c.levels = {{"node", 2, 1e9, 0}};
  CHECK_THROWS_WITH((tr::explain<model, strategy<1>>(options_of(md::llama2_7b(), 8, 2, "1f1b"), mesh, c)),
                    Contains("needs 4 devices, the cluster has 2"));
  c.levels[0].devices = 3;
  CHECK_THROWS_WITH(c.validate(), Contains("level 'node', devices should be all 2 devices, got 3"));
  c = sixty_four();
  c.levels[0].devices = 7;
  CHECK_THROWS_WITH(c.validate(), Contains("a divisor of the 64 of the next level, got 7"));
  c = sixty_four();
  c.device.efficiency = 1.5;
  CHECK_THROWS_AS(c.validate(), hd::config_error);
}

TEST_CASE("times of calls on a level are those of rings", "[train][explain]") {
  const tr::cluster_level level{"network", 64, 1e9, 1e-3};
  using op = hd::comm_operation;
  CHECK(tr::seconds_of(op::all_reduce, 8e9, 4, level) == Approx(6 * (1e-3 + 2)));
  CHECK(tr::seconds_of(op::reduce_scatter_v, 8e9, 4, level) == Approx(3 * (1e-3 + 2)));
  CHECK(tr::seconds_of(op::all_gather_v, 2e9, 4, level) == Approx(3 * (1e-3 + 2)));
  CHECK(tr::seconds_of(op::send, 2e9, 4, level) == Approx(2.001));
  CHECK(tr::seconds_of(op::recv, 2e9, 4, level) == 0);
  CHECK(tr::seconds_of(op::all_reduce, 8e9, 1, level) == 0);
  const std::vector<int> near{8, 15}, far{7, 8};
  CHECK(sixty_four().level_of(near).name == "node");
  CHECK(sixty_four().level_of(far).name == "network");
}

TEST_CASE("the page of a strategy has pictures and nothing from elsewhere", "[train][explain]") {
  const auto mesh = hd::parse_mesh<mesh_type>("dp=2,pp=2,tp=2");
  const std::string page = tr::explain_page(
      tr::explain<model, strategy<1>>(options_of(md::llama2_7b(), 16, 4, "interleaved:2"), mesh, sixty_four()));
  const auto count = [&](const std::string& what) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = page.find(what, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  for (const char* none : {"://", "<script", "src=", "href", "url(http", "@import", "<img", "<link"})
    CHECK(count(none) == 0);
  CHECK(count("<svg") == 3);
  CHECK(count("</svg>") == 3);
  CHECK(count("<table>") == count("</table>"));
  CHECK(count("<div") == count("</div>"));
  CHECK(count("width=device-width") == 1);
  CHECK(count("model.layers.*.self_attn.q_proj.weight") >= 1);
}

struct seven {
  static constexpr auto config = md::llama2_7b();
  static constexpr int samples = 1;
};
using static_mesh = hd::mesh<hd::axis<pp, 4>, hd::axis<dp, 2>, hd::axis<tp, 4>>;
template <class When, int Zero>
using static_strategy = hd::strategy<static_mesh, When, hd::zero<Zero>>;
using one = static_strategy<hd::schedule::one_f_one_b<hd::microbatches<16>>, 1>;
static_assert(tr::peak_bytes<model, one, seven> < 80'000'000'000);

template <class Strategy>
std::int64_t most_of_any_rank() {
  tr::options<md::llama_config> o;
  o.model = seven::config;
  o.batch = 2 * typename Strategy::schedule{}.microbatch_count();
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 0, .total_steps = 0};
  const tr::paper_step<model, Strategy> step(o, static_mesh{});
  std::int64_t most = 0;
  for (int r = 0; r < static_mesh::size(); ++r) most = (std::max)(most, step.memory(r)->total());
  return most;
}
TEST_CASE("the constant peak of a strategy is what its fullest rank is predicted to hold", "[train][explain]") {
  using interleaved = static_strategy<hd::schedule::interleaved<hd::microbatches<8>, 2>, 0>;
  using split = static_strategy<hd::schedule::zb_h1<hd::microbatches<8>>, 3>;
  CHECK(tr::peak_bytes<model, one, seven> == most_of_any_rank<one>());
  CHECK(tr::peak_bytes<model, interleaved, seven> == most_of_any_rank<interleaved>());
  CHECK(tr::peak_bytes<model, split, seven> == most_of_any_rank<split>());
}

#if __has_include(<nlohmann/json.hpp>)
TEST_CASE("a cluster file is read, and what is wrong in it is said by key", "[train][explain]") {
  using nlohmann::json;
  const json good = json::parse(R"({"devices": 64, "memory": 80e9, "flops": 1e15, "bytes_per_second": 3e12,
    "efficiency": 0.5, "launch_seconds": 4e-6, "levels": [
    {"name": "node", "devices": 8, "bytes_per_second": 4e11, "latency_seconds": 3e-6},
    {"name": "network", "bytes_per_second": 5e10, "latency_seconds": 1e-5}]})");
  const tr::cluster c = tr::cluster_of_json(good, "c.json");
  CHECK(c.devices == 64);
  CHECK(c.memory == 80'000'000'000);
  CHECK(c.device.efficiency == 0.5);
  REQUIRE(c.levels.size() == 2);
  CHECK(c.levels[1].devices == 64);
  CHECK(c.levels[0].latency_seconds == 3e-6);
  const auto refused = [&](const char* key, const json& value, const std::string& text) {
    json bad = good;
    bad[json::json_pointer(key)] = value;
    CHECK_THROWS_WITH(tr::cluster_of_json(bad, "c.json"), Contains(text));
  };
  refused("/devices", -1, "c.json, key 'devices': expected a whole number of 0 to 2147483647, got -1");
  refused("/devices", 0, "c.json: a cluster's devices should be 1 to 1048576, got 0");
  refused("/memory", "80 GB", "c.json, key 'memory': expected a positive number, got \"80 GB\"");
  refused("/memory", 1e30, "below 9e18, got 1e+30");
  refused("/flop", 3, "c.json, key 'flop': expected one of ");
  refused("/levels", 3, "key 'levels': expected a list of objects, got 3");
  refused("/levels/0/devices", 7, "level 'node', devices should be a divisor of the 64 of the next level, got 7");
  refused("/levels/1/name", "", "levels[1], key 'name': expected a name, got \"\"");
  refused("/levels/1/bandwidth", 1, "levels[1], key 'bandwidth': expected one of ");
  json none = good;
  none.erase("flops");
  CHECK_THROWS_WITH(tr::cluster_of_json(none, "c.json"),
                    Contains("key 'flops': expected a positive number, got nothing"));
  CHECK_THROWS_AS(tr::cluster_of_json(json::parse("3"), "c.json"), hd::config_error);
}
#endif

}  // namespace explain_test
}  // namespace
