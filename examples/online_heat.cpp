// Trains a surrogate of the heat equation while solvers run: four at a time, on two ranks, without a file in between. A solver that dies is started again.
// run: --simulations 24 --at-a-time 4 --kill
// prints: 24 of 24 simulations
// prints: a solver died and was started again: yes
// prints: 960 samples arrived, each was drawn
// prints: validation error below 0.01: yes
#include <heddle/heddle.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>
#include <heddle/train.hpp>
#include <heddle/train/online/online_pairs.hpp>
#include <heddle/train/online/receiver.hpp>
#include <heddle/train/online/run_online.hpp>
#include <heddle/train/online/solvers.hpp>

#include "online_heat/heat_equation.hpp"
#include "tool.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace hd = heddle;
namespace ht = heddle::train;
using hd::dp, hd::model::dims, hd::model::by_inputs;
namespace dim = hd::dim;
using mesh = hd::mesh<hd::axis<dp>>;
using buffer_type = ht::reservoir<ht::online_sample>;

namespace {

// Blocks x + mlp(norm(x)) between two linear layers.
struct surrogate : hd::model::described<surrogate, float, hd::model::pair_batch<float>, hd::model::network_config> {
  static auto describe(const config& c) {
    using namespace hd::model::layers;
    using in = linear<dims<dim::features>, dims<dim::width>>;
    using up = linear<dims<dim::width>, dims<dim::ffn>>;
    using down = linear<dims<dim::ffn>, dims<dim::width>>;
    using out = linear<dims<dim::width>, dims<dim::outputs>>;
    return network(in("in", {c.inputs}, {c.width}, by_inputs(c.inputs)), "block.", c.layers,
                   residual(layer_norm<>("norm", c.width, 1e-5), gelu_mlp("mlp", up("up", {c.width}, {c.hidden}, by_inputs(c.width)),
                                                                          down("down", {c.hidden}, {c.width}, by_inputs(c.hidden)))),
                   squared_error(out("out", {c.width}, {c.outputs}, by_inputs(c.width))));
  }
};

struct settings {
  std::vector<std::string> solver;
  std::int64_t simulations = 64, steps = 100000;
  int at_a_time = 4, ranks = 2, capacity = 400, threshold = 80, pause_ms = 2;
  bool kill = false;
};

// A thread that is told to end and waited for, also where training throws.
struct joined_thread {
  std::atomic<bool>& done;
  std::thread thread;
  void join() {
    done = true;
    if (thread.joinable()) thread.join();
  }
  ~joined_thread() { join(); }
};

int train(const settings& s) {
  // What is validated on: simulations that no solver runs.
  std::vector<float> x, y;
  for (std::int64_t i = 0; i < 20; ++i) {
    const std::vector<double> at = ht::halton(100000 + i, 3);
    heat::simulate({at[0], at[1], at[2]}, [&](int, const std::vector<float>& in, const std::vector<float>& field) {
      x.insert(x.end(), in.begin(), in.end());
      y.insert(y.end(), field.begin(), field.end());
    });
  }
  const hd::io::pairs held_out(x, y, {.inputs = 4, .targets = heat::points, .validation = 0.999});

  std::vector<std::unique_ptr<buffer_type>> buffers;
  std::vector<std::unique_ptr<ht::zmq_receiver<buffer_type>>> receivers;
  std::vector<std::string> endpoints;
  for (int r = 0; r < s.ranks; ++r) {
    buffers.push_back(std::make_unique<buffer_type>(
        ht::buffer_options{.capacity = s.capacity, .threshold = s.threshold, .seed = static_cast<std::uint64_t>(r)}));
    receivers.push_back(std::make_unique<ht::zmq_receiver<buffer_type>>(
        *buffers.back(), ht::receiver_options{.inputs = 4, .targets = heat::points, .simulations = s.simulations}));
    endpoints.push_back(receivers.back()->endpoint());
  }
  std::vector<std::string> command = s.solver;
  command.insert(command.end(), {"--pause-ms", std::to_string(s.pause_ms), "--ranks", "2"});
  ht::solvers runs({.command = command,
                    .parameters = {{0, 1}, {0, 1}, {0, 1}},
                    .simulations = s.simulations,
                    .at_a_time = s.at_a_time,
                    .on_lost = [&](std::int64_t lost) {
                      for (auto& r : receivers) r->give_up(static_cast<std::uint32_t>(lost));
                    },
                    .on_finished = [&](std::int64_t finished) {
                      for (auto& r : receivers) r->gone(static_cast<std::uint32_t>(finished));
                    }},
                   endpoints);
  std::atomic<bool> done{false};
  joined_thread killer{done, std::thread([&] {  // a simulation that has sent something just now, until one was not finished yet
    for (std::int64_t i = 0; s.kill && !done && runs.counters().died == 0; ++i)
      if (receivers[0]->silent(static_cast<std::uint32_t>(i % s.simulations)) < 0.02 && runs.kill(i % s.simulations))
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      else if (i % s.simulations == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
  })};

  ht::options<surrogate::config> options{.model = {.inputs = 4, .outputs = heat::points}, .batch = 32, .steps = s.steps};
  options.learning_rate = {.peak = 5e-3, .warmup_steps = 20};
  options.validate_every = s.steps;
  options.threads_per_rank = 1;
  double error = std::numeric_limits<double>::infinity();  // until it is validated
  std::int64_t steps = 0;
  hd::launch<hd::threads>(mesh(s.ranks), [&](auto& world) {
    auto trainer = ht::make_trainer<hd::strategy<mesh, hd::zero<1>>>(surrogate{}, world, options);
    const ht::online_pairs data(*buffers[static_cast<std::size_t>(world.rank())], held_out);
    try {
      ht::run_online(trainer, data, [&](const ht::step_report& r) {
        if (world.rank() != 0) return;
        steps = r.step + 1;
        if (r.step % 100 == 0) std::printf("step %5d  loss %.5f\n", static_cast<int>(r.step), r.loss);
        if (r.validation_loss) error = *r.validation_loss;
      });
    } catch (...) {  // the other ranks are not to wait for samples
      for (auto& b : buffers) b->close();
      throw;
    }
  });
  killer.join();
  runs.wait();

  const ht::solvers_counters c = runs.counters();
  std::printf("%lld of %lld simulations\n", static_cast<long long>(c.finished), static_cast<long long>(s.simulations));
  if (s.kill) std::printf("a solver died and was started again: %s\n", c.died > 0 && c.started == c.finished + c.died ? "yes" : "no");
  std::int64_t put = 0, never = 0, again = 0;
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    while (buffers[r]->get()) {  // of ranks that had more than the one whose end was the end
    }
    const ht::buffer_counters b = buffers[r]->counters();
    put += b.put;
    never += b.exposures.empty() ? 0 : b.exposures[0];
    again += receivers[r]->counters().again;
    std::printf("rank %zu: each sample drawn %.2f times, %.0f samples old; %lld draws and %lld samples waited\n", r, b.mean_draws(), b.mean_age(),
                static_cast<long long>(b.get_waits), static_cast<long long>(b.put_waits));
  }
  std::printf("%lld samples arrived, %s; %lld came twice and were dropped\n", static_cast<long long>(put), never == 0 ? "each was drawn" : "not all were drawn",
              static_cast<long long>(again));
  std::printf("%lld steps, validation error %.5f\nvalidation error below 0.01: %s\n", static_cast<long long>(steps), error, error < 0.01 ? "yes" : "no");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  const std::string beside = (std::filesystem::path(argv[0]).parent_path() / "heat_solver").string();
  tool::command_line line("Trains a surrogate of the heat equation on what solvers compute meanwhile.");
  line.add_option("--solver", s.solver, "the program heat_solver and words before it, such as \"mpirun -n 2 ./heat_solver_mpi\"")
      ->delimiter(' ')
      ->otherwise("the one beside this program");
  line.add_option("--simulations", s.simulations, "how many")->at_least(1);
  line.add_option("--at-a-time", s.at_a_time, "solvers that run beside each other")->at_least(1);
  line.add_option("--ranks", s.ranks, "that train")->at_least(1);
  line.add_option("--steps", s.steps, "at most")->at_least(1);
  line.add_option("--capacity", s.capacity, "samples in the buffer of a rank")->at_least(1);
  line.add_option("--threshold", s.threshold, "samples that a rank waits for in the beginning")->at_least(0);
  line.add_option("--pause-ms", s.pause_ms, "of a solver, for each sample")->at_least(0);
  line.add_flag("--kill", s.kill, "kills a solver on the way");
  return tool::run(line, argc, argv, [&] {
    if (s.solver.empty()) s.solver = {beside};
    return train(s);
  });
}
