// benchmarks/skippipe_quality_bench.cpp: perplexity with stages left out, of GPT-2 trained with and without skipped stages.
//
//   skippipe_quality_bench [--seeds 5] [--first-seed 1] [--steps 500] [--text docs]
//
// Six stages of one block each. A microbatch skips 0 to 3 of the last five, in the model's order; every way of that length has equally
// many microbatches, and steps are as many as make block visits equal. Then 0 to 3 of the five are left out, all choices of them: the mean
// of their losses on held-out text, as perplexity.
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/sim/serial_nodes.hpp>
#include <heddle/train/make_trainer.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace sc = heddle::schedule;

namespace {

constexpr int stages = 6, most_left_out = 3, microbatches = 10, samples_each = 2, held_out = 64;
constexpr hd::model::gpt2_config shape{
    .layers = stages, .heads = 2, .width = 32, .context = 32, .vocabulary = hd::io::corpus::vocabulary()};
using mesh_type = hd::mesh<hd::axis<hd::pp, stages>>;
using weights_by_name = std::map<std::string, std::vector<float>>;

// The stages that are there when some of the last five are left out, for each choice of so many: bit k is stage k.
std::vector<unsigned> choices(int left_out) {
  std::vector<unsigned> all;
  for (unsigned there = 1; there < 1u << stages; there += 2)
    if (std::popcount(there) == stages - left_out) all.push_back(there);
  return all;
}

// Each choice is the way of equally many microbatches; a node for each stage.
sc::routed ways_of(int skipped) {
  const std::vector<unsigned> all = choices(skipped);
  sc::path_table ways;
  ways.stages = stages;
  ways.length = stages - skipped;
  for (int k = 0; k < stages; ++k) ways.stage_of_node.push_back(k);
  for (int i = 0; i < microbatches; ++i)
    for (int k = 0; k < stages; ++k)
      if (all[static_cast<std::size_t>(i) % all.size()] >> k & 1) ways.way.push_back(k);
  const sc::visit_costs costs{.forward = std::vector<double>(stages, 1.0),
                              .message = std::vector<double>(stages * stages, 0.0)};
  return sc::routed(ways, hd::sim::serial_nodes{.slots = microbatches}(ways, costs));
}

weights_by_name trained(int skipped, std::int64_t steps, std::uint64_t seed, const hd::io::dataset& data) {
  hd::train::options<hd::model::gpt2_config> options;
  options.model = shape;
  options.batch = microbatches * samples_each;
  options.steps = steps * stages / (stages - skipped);  // block visits are equal
  options.learning_rate = {.peak = 5e-3, .minimum = 5e-4, .warmup_steps = 20, .total_steps = options.steps};
  options.seed = seed;
  options.threads_per_rank = 1;
  weights_by_name all;
  std::mutex guard;
  hd::launch<hd::threads>(mesh_type{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<mesh_type, sc::routed>>(hd::model::gpt2<float>{}, world,
                                                                                options, ways_of(skipped));
    while (trainer.steps_done() < options.steps) trainer.step(data);
    const std::lock_guard lock(guard);
    for (int k = 0; k < trainer.stages(); ++k)
      for (const auto& p : trainer.stage(k).parameters()) {
        const auto from = trainer.stage(k).weights().begin() + p.offset;
        all[p.name].assign(from, from + p.count);
      }
  });
  return all;
}

// Of a model of the stages that are there: its blocks are numbered anew.
double held_out_loss(const weights_by_name& weights, unsigned there, const hd::io::dataset& data) {
  std::vector<int> blocks;
  for (int k = 0; k < stages; ++k)
    if (there >> k & 1) blocks.push_back(k);
  auto smaller = shape;
  smaller.layers = static_cast<int>(blocks.size());
  const std::int64_t n = std::min<std::int64_t>(held_out, data.validation_samples());
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n * shape.context)), targets(tokens.size());
  data.fill_validation({0, n}, std::span(tokens), std::span(targets));
  double loss = 0;
  hd::compute::host<> backend(1);
  hd::launch<hd::threads>(hd::mesh<>{}, [&](auto& world) {
    using stage_type = hd::model::gpt2<float>::stage<std::remove_reference_t<decltype(world)>, hd::compute::host<>>;
    stage_type stage(smaller, world, backend, {0, smaller.layers, 0, 1}, 1, n);
    for (const auto& p : stage.parameters()) {
      std::string name = p.name;
      if (name.starts_with("h.")) {
        const std::size_t dot = name.find('.', 2);
        name = "h." + std::to_string(blocks[static_cast<std::size_t>(std::stoi(name.substr(2, dot - 2)))]) +
               name.substr(dot);
      }
      const auto& from = weights.at(name);
      std::copy(from.begin(), from.end(), stage.weights().begin() + p.offset);
    }
    stage.weights_written();
    loss =
        stage.forward_only({tokens, targets, static_cast<int>(n), 1.0, 0}, {}, {}) / static_cast<double>(tokens.size());
  });
  return loss;
}

struct spread {
  double mean = 0, deviation = 0;
};
spread of(const std::vector<double>& values) {
  spread s;
  for (const double v : values) s.mean += v / static_cast<double>(values.size());
  for (const double v : values) s.deviation += (v - s.mean) * (v - s.mean);
  s.deviation = values.size() > 1 ? std::sqrt(s.deviation / static_cast<double>(values.size() - 1)) : 0;
  return s;
}

}  // namespace

int main(int argc, char** argv) try {
  int seeds = 5, first = 1;
  std::int64_t steps = 500;
  std::string text = "docs";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--seeds") seeds = std::atoi(argv[i + 1]);
    if (name == "--first-seed") first = std::atoi(argv[i + 1]);
    if (name == "--steps") steps = std::atoi(argv[i + 1]);
    if (name == "--text") text = argv[i + 1];
  }
  if (argc % 2 == 0 || seeds < 1 || steps < 1)
    return std::fprintf(stderr, "skippipe_quality_bench [--seeds 5] [--first-seed 1] [--steps 500] [--text FOLDER]\n"),
           1;
  const hd::io::corpus corpus(text);

  constexpr std::size_t kinds = most_left_out + 1;
  std::array<std::array<std::vector<double>, kinds>, kinds> perplexities;  // [skipped][left out], of each seed
  std::array<int, kinds> better{};                                         // with two skipped than with none
  for (int seed = first; seed < first + seeds; ++seed) {
    const hd::io::dataset data(
        corpus.tokens(),
        {.context = shape.context, .batch = microbatches * samples_each, .seed = static_cast<std::uint64_t>(seed)});
    for (std::size_t skipped = 0; skipped < kinds; ++skipped) {
      const weights_by_name weights = trained(static_cast<int>(skipped), steps, static_cast<std::uint64_t>(seed), data);
      for (std::size_t left_out = 0; left_out < kinds; ++left_out) {
        const std::vector<unsigned> all = choices(static_cast<int>(left_out));
        double loss = 0;
        for (const unsigned there : all) loss += held_out_loss(weights, there, data) / static_cast<double>(all.size());
        perplexities[skipped][left_out].push_back(std::exp(loss));
      }
    }
    for (std::size_t left_out = 0; left_out < kinds; ++left_out) {
      // How much more than with nothing left out.
      const auto lost = [&](std::size_t skipped) {
        return std::log(perplexities[skipped][left_out].back() / perplexities[skipped][0].back());
      };
      better[left_out] += lost(2) < lost(0);
    }
    std::printf("seed %d:", seed);
    for (const auto& of_training : perplexities) {
      for (const auto& values : of_training) std::printf(" %.3f", values.back());
      std::printf(&of_training == &perplexities.back() ? "\n" : " |");
    }
    std::fflush(stdout);
  }
  std::printf(
      "%lld steps of %d microbatches where none is skipped; %lld bytes of text; %d seeds: mean, standard deviation\n\n",
      static_cast<long long>(steps), microbatches, static_cast<long long>(corpus.size()), seeds);
  std::printf("| skipped in training | 0 left out | 1 | 2 | 3 |\n|--|--|--|--|--|\n");
  for (std::size_t skipped = 0; skipped < kinds; ++skipped) {
    std::printf("| %zu |", skipped);
    for (const auto& values : perplexities[skipped]) {
      const spread s = of(values);
      std::printf(" %.2f ± %.2f |", s.mean, s.deviation);
    }
    std::printf("\n");
  }
  std::printf("\nloses less with two skipped than with none: 1 left out %d of %d seeds, 2 left out %d, 3 left out %d\n",
              better[1], seeds, better[2], better[3]);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
