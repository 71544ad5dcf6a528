// Open-loop load on an engine in this process: requests arrive as a Poisson process, whatever the engine's state, with prompts and answers of
// log-normal lengths. For each batching policy and offered load it prints throughput and latency: time to first token (TTFT), time per
// output token (TPOT, mean of a request) and gaps between tokens. Loads are fractions of the throughput that continuous batching reaches when
// all requests wait at once, so what lies above 1 cannot be served in time. Time is this process's processor time; while nothing runs it
// jumps to the next arrival. So others on the machine change little, and the numbers are those of a machine of one's own.
//
//   serve_load_bench [--requests N] [--seed S] [--svg FILE]
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/model/llama.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;

namespace {

using model = hd::model::llama<float>;
constexpr hd::model::llama_config shape{
    .layers = 4, .heads = 4, .kv_heads = 2, .width = 256, .ffn = 768, .context = 640, .vocabulary = 4096};
constexpr std::int64_t most_prompt = 448, most_answer = 160, most_running = 16;

struct arrival {
  double at = 0;  // seconds, at one request per second
  std::int64_t prompt = 0, answer = 0;
};
// Tokens of a log-normal length: half of them are shorter than the median.
std::int64_t length(const hd::counter_random& random, std::uint64_t i, double median, double sigma, std::int64_t most) {
  const auto n = static_cast<std::int64_t>(std::llround(median * std::exp(sigma * random.normal(i))));
  return std::clamp(n, std::int64_t{1}, most);
}
std::vector<arrival> draw_arrivals(int requests, std::uint64_t seed) {
  const hd::counter_random gaps(seed, 1), prompts(seed, 2), answers(seed, 3);
  std::vector<arrival> all;
  double at = 0;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(requests); ++i) {
    at += -std::log(1.0 - gaps.uniform(i));  // exponential gaps with mean 1
    all.push_back({at, length(prompts, i, 48, 1.0, most_prompt), length(answers, i, 20, 0.9, most_answer)});
  }
  return all;
}

double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[static_cast<std::size_t>(q * static_cast<double>(v.size() - 1) + 0.5)];
}
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

struct result {
  double load = 0, offered = 0, tokens_s = 0;  // offered: answer tokens per second
  std::vector<double> first{}, per_token{}, gaps{};
};

// Serves all arrivals; `rate`: requests per second, 0 for all at once.
template <class Batching, class Runner>
result serve(Runner& runner, const std::vector<arrival>& arrivals, double rate) {
  inf::engine<Runner, Batching> engine(runner, {.max_running = most_running});
  struct progress {
    double arrived = 0, first = 0, last = 0;
    std::int64_t tokens = 0;
  };
  std::vector<progress> of(arrivals.size() + 1);
  result r;
  std::size_t next = 0;
  double now = 0;
  std::int64_t tokens = 0, asked = 0;
  const auto due = [&](std::size_t i) { return rate > 0 ? arrivals[i].at / rate : 0.0; };
  while (next < arrivals.size() || !engine.idle()) {
    if (engine.idle()) now = (std::max)(now, due(next));
    for (; next < arrivals.size() && due(next) <= now; ++next) {
      const arrival& a = arrivals[next];
      inf::request q{.max_tokens = a.answer, .sampling = {.temperature = 0}};
      for (std::int64_t t = 0; t < a.prompt; ++t)
        q.prompt.push_back(
            static_cast<std::int32_t>((t * 37 + static_cast<std::int64_t>(next) * 101) % shape.vocabulary));
      asked += a.answer;
      of[engine.submit(std::move(q))].arrived = due(next);
    }
    const double before = processor_seconds();
    const auto events = engine.step();
    now += processor_seconds() - before;
    for (const inf::event& e : events) {
      progress& p = of[e.id];
      if (!e.token) continue;
      if (p.tokens++ == 0)
        r.first.push_back((p.first = now) - p.arrived);
      else
        r.gaps.push_back(now - p.last);
      p.last = now;
      ++tokens;
      if (e.finish != inf::finish_reason::none && p.tokens > 1)
        r.per_token.push_back((p.last - p.first) / static_cast<double>(p.tokens - 1));
    }
  }
  r.tokens_s = static_cast<double>(tokens) / now;
  r.offered = rate * static_cast<double>(asked) / static_cast<double>(arrivals.size());
  return r;
}

struct curve {
  std::string name;
  std::vector<result> results{};
};

void print(const std::string& name, const result& r) {
  const auto ms = [](const std::vector<double>& v, double q) { return 1e3 * quantile(v, q); };
  std::printf("%-12s %5.2f %9.1f %9.1f  %8.1f %8.1f  %8.2f %8.2f  %8.2f\n", name.c_str(), r.load, r.offered, r.tokens_s,
              ms(r.first, 0.5), ms(r.first, 0.99), ms(r.per_token, 0.5), ms(r.per_token, 0.99), ms(r.gaps, 0.99));
}

// ---- the picture -----------------------------------------------------------------------------------------------
// A panel with linear x and linear or logarithmic y.
class panel {
 public:
  panel(hd::svg_drawing& out, double left, double right_value, double low, double high, bool logarithmic)
      : out_(&out), left_(left), right_(right_value), low_(low), high_(high), logarithmic_(logarithmic) {
    out.rect(left, top, width, height, "#f6f7f9");
  }
  void titles(const std::string& what, const std::string& x, const std::string& from, const std::string& to) {
    out_->words(left_, top - 12, what, 13, "#000000", "start", true);
    out_->words(left_ + width / 2, top + height + 30, x, 12, "#444444", "middle");
    out_->words(left_ - 6, top + height, from, 11, "#444444", "end");
    out_->words(left_ - 6, top + 10, to, 11, "#444444", "end");
    char most[32];
    std::snprintf(most, sizeof(most), "%.0f", right_);
    out_->words(left_ + width, top + height + 15, most, 11, "#444444", "end");
    out_->words(left_, top + height + 15, "0", 11, "#444444");
  }
  void line(const std::vector<double>& xs, const std::vector<double>& ys, std::string_view colour) {
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const double x = at_x(xs[i]), y = at_y(ys[i]);
      out_->rect(x - 3.5, y - 3.5, 7, 7, colour, 3.5);
      if (i + 1 == xs.size()) break;
      const double dx = at_x(xs[i + 1]) - x, dy = at_y(ys[i + 1]) - y;
      char turned[96];
      std::snprintf(turned, sizeof(turned), " transform=\"rotate(%.2f %.2f %.2f)\"",
                    std::atan2(dy, dx) * 180 / 3.14159265358979, x, y);
      out_->rect(x, y - 0.75, std::hypot(dx, dy), 1.5, colour, 0, turned);
    }
  }

  static constexpr double top = 60, width = 340, height = 240;

 private:
  double at_x(double v) const { return left_ + width * std::clamp(v / right_, 0.0, 1.0); }
  double at_y(double v) const {
    const auto scaled = [&](double y) { return logarithmic_ ? std::log((std::max)(y, 1e-9)) : y; };
    return top + height * (1 - std::clamp((scaled(v) - scaled(low_)) / (scaled(high_) - scaled(low_)), 0.0, 1.0));
  }
  hd::svg_drawing* out_;
  double left_, right_, low_, high_;
  bool logarithmic_;
};

void draw(const std::vector<curve>& curves, const std::string& file) {
  double offered = 0, made = 0, least = 1e30, most = 0;
  for (const curve& c : curves)
    for (const result& r : c.results) {
      offered = (std::max)(offered, r.offered);
      made = (std::max)(made, r.tokens_s);
      least = (std::min)(least, 1e3 * quantile(r.first, 0.99));
      most = (std::max)(most, 1e3 * quantile(r.first, 0.99));
    }
  hd::svg_drawing out;
  const auto number = [](double v) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.3g", v);
    return std::string(text);
  };
  panel throughput(out, 70, offered, 0, offered, false), latency(out, 510, made, least, most, true);
  throughput.titles("Answer tokens per second", "offered tokens per second", "0", number(offered));
  latency.titles("99 % of first tokens within ms (logarithmic)", "answer tokens per second", number(least),
                 number(most));
  double x = 70;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::vector<double> loads, rates, times;
    for (const result& r : curves[i].results) {
      loads.push_back(r.offered);
      rates.push_back(r.tokens_s);
      times.push_back(1e3 * quantile(r.first, 0.99));
    }
    const auto colour = hd::rank_colour(i == 0 ? 0 : i == 1 ? 2 : 5);
    throughput.line(loads, rates, colour);
    latency.line(rates, times, colour);
    out.rect(x, 12, 12, 12, colour);
    out.words(x + 18, 22, curves[i].name, 12, "#000000");
    x += 150;
  }
  std::ofstream(file) << out.page({}, 880, 350, "#ffffff");
}

template <class Batching, class Runner>
curve measure(const std::string& name, Runner& runner, const std::vector<arrival>& arrivals, double requests_s) {
  curve c{name};
  for (const double load : {0.3, 0.6, 0.9, 1.2, 2.0}) {
    c.results.push_back(serve<Batching>(runner, arrivals, load * requests_s));
    c.results.back().load = load;
    print(name, c.results.back());
  }
  return c;
}

}  // namespace

int main(int count, char** words) {
  int requests = 60;
  std::uint64_t seed = 20261124;
  std::string svg;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i];
    if (name == "--requests") requests = (std::max)(1, std::atoi(words[i + 1]));
    if (name == "--seed") seed = std::strtoull(words[i + 1], nullptr, 10);
    if (name == "--svg") svg = words[i + 1];
  }
  const std::vector<arrival> arrivals = draw_arrivals(requests, seed);
  std::printf("seed %llu, %d requests, at most %d at once\n", static_cast<unsigned long long>(seed), requests,
              static_cast<int>(most_running));
  hd::launch<hd::threads, hd::mesh<hd::axis<hd::tp, 1>>>([&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::compute::host<> kernels{1};
    inf::model_runner<model, world_type, hd::compute::host<>> runner(shape, world, kernels,
                                                                     {most_running * (shape.context / 16), 16}, 512);
    runner.stage().initialize(1);
    const result all = serve<inf::continuous_batching>(runner, arrivals, 0);
    double answers = 0;
    for (const arrival& a : arrivals) answers += static_cast<double>(a.answer);
    const double requests_s = all.tokens_s / answers * static_cast<double>(requests);
    std::printf("all at once: %.1f answer tokens/s, %.2f requests/s, which is load 1\n", all.tokens_s, requests_s);
    std::printf("%-12s %5s %9s %9s  %17s  %17s  %8s\n", "", "", "offered", "made", "TTFT ms", "TPOT ms", "gap ms");
    std::printf("%-12s %5s %9s %9s  %8s %8s  %8s %8s  %8s\n", "batching", "load", "tokens/s", "tokens/s", "p50", "p99",
                "p50", "p99", "p99");
    std::vector<curve> curves;
    curves.push_back(measure<inf::static_batching<most_running>>("static", runner, arrivals, requests_s));
    curves.push_back(measure<inf::continuous_batching>("continuous", runner, arrivals, requests_s));
    curves.push_back(measure<inf::chunked_prefill<64>>("chunked 64", runner, arrivals, requests_s));
    if (!svg.empty()) draw(curves, svg);
  });
}
