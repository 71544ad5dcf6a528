// Training from simulations that run: messages, draws of two ranks against those of one, and processes that die.
#include "catch.hpp"

#include "online_heat/heat_equation.hpp"
#include "small_network.hpp"

#include <heddle/heddle.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/train.hpp>
#include <heddle/train/online/message.hpp>
#include <heddle/train/online/online_pairs.hpp>
#include <heddle/train/online/run_online.hpp>
#include <heddle/train/online/solvers.hpp>
#if __has_include(<zmq.hpp>)
#include <heddle/train/online/receiver.hpp>
#include <heddle/train/online/sender.hpp>
#endif

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

using Catch::Matchers::Contains;

namespace online_test {
namespace {

namespace ht = heddle::train;
namespace fs = std::filesystem;
using online_buffer = ht::reservoir<ht::online_sample>;

struct online_folder {
  fs::path path = fs::temp_directory_path() / ("heddle-online-" + std::to_string(::getpid()));
  online_folder() { fs::remove_all(path), fs::create_directories(path); }
  ~online_folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// Sample of step t of simulation s: (s, t) within [0, 1), and a product.
ht::online_sample made(std::uint32_t s, std::uint32_t t) {
  const float a = static_cast<float>(s) / 16, b = static_cast<float>(t) / 64;
  return {s, t, {a, b}, {a * b + a}};
}
struct held_out_grid {
  std::vector<float> x, y;
  held_out_grid() {
    for (std::uint32_t s = 0; s < 16; s += 3)
      for (std::uint32_t t = 0; t < 64; t += 7) {
        const auto one = made(s, t);
        x.insert(x.end(), one.inputs.begin(), one.inputs.end());
        y.push_back(one.targets[0]);
      }
  }
};
std::vector<float> floats_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<float> x(bytes.size() / sizeof(float));
  std::memcpy(x.data(), bytes.data(), x.size() * sizeof(float));
  return x;
}

using online_mesh = heddle::mesh<heddle::axis<heddle::dp>>;
using online_network = train_test::small_network<double>;
heddle::train::options<online_network::config> online_options_of(std::int64_t steps) {
  heddle::train::options<online_network::config> o{.model = {.inputs = 2, .outputs = 1}, .batch = 16, .steps = steps};
  o.learning_rate = {.peak = 1e-2, .warmup_steps = 2};
  o.threads_per_rank = 1;
  o.validate_every = 1000;
  return o;
}
struct online_curve {
  std::vector<double> losses, norms;
  double validation = 0;
};
// `run(trainer, world, listener)` on so many ranks; what rank 0 sees.
template <class Run>
online_curve train_online(int ranks, std::int64_t steps, Run&& run) {
  online_curve c;
  heddle::launch<heddle::threads>(online_mesh(ranks), [&](auto& world) {
    auto trainer = ht::make_trainer<heddle::strategy<online_mesh, heddle::zero<1>>>(online_network{}, world,
                                                                                    online_options_of(steps));
    run(trainer, world, [&](const ht::step_report& r) {
      if (world.rank() != 0) return;
      c.losses.push_back(r.loss);
      c.norms.push_back(r.gradient_norm);
      if (r.validation_loss) c.validation = *r.validation_loss;
    });
  });
  return c;
}

}  // namespace

TEST_CASE("messages of simulations are what they were, or named", "[train][online]") {
  const auto sample = made(3, 9);
  const auto bytes = ht::message_of({.run = 7, .simulation = 3, .step = 9}, sample.inputs, sample.targets);
  REQUIRE(bytes.size() == 24 + 12);
  ht::online_header h;
  CHECK(ht::message_fault(bytes, 7, 2, 1, h).empty());
  const auto back = ht::sample_of(bytes, h);
  CHECK((back.simulation == 3 && back.step == 9 && back.inputs == sample.inputs && back.targets == sample.targets));
  CHECK_THAT(ht::message_fault(bytes, 8, 2, 1, h), Contains("a message of run 7; this is run 8"));
  CHECK(ht::message_fault(bytes, 7, 2, 1, h, 4).empty());
  CHECK_THAT(ht::message_fault(bytes, 7, 2, 1, h, 3), Contains("of simulation 3; this run has those below 3"));
  const auto end = ht::message_of({.run = 7, .simulation = 3, .step = ht::end_of_simulation}, {}, {});
  CHECK_THAT(ht::message_fault(end, 7, 2, 1, h, 3), Contains("of simulation 3; this run has those below 3"));
  CHECK_THAT(ht::message_fault(bytes, 7, 2, 2, h), Contains("2 inputs and 1 targets; expected 2 and 2"));
  CHECK_THAT(ht::message_fault(std::span(bytes).first(23), 7, 2, 1, h), Contains("23 bytes; its header has 24"));
  CHECK_THAT(ht::message_fault(std::span(bytes).first(35), 7, 2, 1, h), Contains("sent 35 bytes; expected 36"));
  auto other = bytes;
  other[0] = std::byte{0};
  CHECK_THAT(ht::message_fault(other, 7, 2, 1, h), Contains("does not begin with HDO1"));
}

TEST_CASE("gradients of two ranks that draw are those of one rank that is given the draws", "[train][online][ranks]") {
  const online_folder folder;
  const held_out_grid grid;
  const heddle::io::pairs held_out(grid.x, grid.y, {.inputs = 2, .targets = 1, .validation = 0.99});
  std::vector<std::unique_ptr<online_buffer>> buffers;
  for (std::uint64_t r = 0; r < 2; ++r)
    buffers.push_back(std::make_unique<online_buffer>(ht::buffer_options{.capacity = 60, .threshold = 20, .seed = r}));
  std::vector<std::thread> producers;
  for (std::uint32_t p = 0; p < 2; ++p)
    producers.emplace_back([&, p] {
      for (std::uint32_t s = p; s < 16; s += 2)
        for (std::uint32_t t = 0; t < 64; ++t) buffers[(s + t) % 2]->put(made(s, t));
    });
  std::thread closes([&] {
    for (std::thread& p : producers) p.join();
    for (auto& b : buffers) b->close();
  });
  std::int64_t draws[2] = {};
  const online_curve two = train_online(2, 100000, [&](auto& trainer, auto& world, auto&& listener) {
    const auto r = static_cast<std::size_t>(world.rank());
    ht::online_pairs data(*buffers[r], held_out, {.record = folder.path / std::to_string(r)});
    ht::run_online(trainer, data, listener);
    data.close_record();
    draws[r] = buffers[r]->counters().drawn;
  });
  closes.join();
  const auto steps = static_cast<std::int64_t>(two.losses.size());
  REQUIRE(steps >= 16 * 64 / 16 - 8);
  // Rank 0's half of each step, then rank 1's.
  const std::vector<float> drawn[2] = {floats_of(folder.path / "0"), floats_of(folder.path / "1")};
  std::vector<float> in, out;
  for (std::int64_t s = 0; s < steps; ++s)
    for (const auto& of_rank : drawn)
      for (std::int64_t i = 0; i < 8; ++i) {
        const auto at = static_cast<std::size_t>(3 * (8 * s + i));
        REQUIRE(at + 3 <= of_rank.size());
        in.insert(in.end(), {of_rank[at], of_rank[at + 1]});
        out.push_back(of_rank[at + 2]);
      }
  const heddle::io::pairs replay(in, out, {.inputs = 2, .targets = 1, .shuffle = false});
  const online_curve one = train_online(1, 100000, [&](auto& trainer, auto&, auto&& listener) {
    while (trainer.steps_done() < steps) {
      ht::step_report report = trainer.step(replay);
      if (trainer.steps_done() == steps) report.validation_loss = trainer.validate(held_out);
      listener(report);
    }
  });
  REQUIRE(one.losses.size() == two.losses.size());
  // The first step's gradient to the last bits; AdamW divides by moments, so that what differs in a bit grows with the steps: up to 5e-7 was seen.
  const auto apart = [&](std::size_t s) {
    return (std::max)(std::abs(one.losses[s] - two.losses[s]) / one.losses[s],
                      std::abs(one.norms[s] - two.norms[s]) / one.norms[s]);
  };
  CHECK(apart(0) < 1e-12);
  double worst = std::abs(one.validation - two.validation) / one.validation;
  for (std::size_t s = 0; s < one.losses.size(); ++s) worst = (std::max)(worst, apart(s));
  CHECK(worst < 1e-4);
  CHECK(two.validation < two.losses.front());
}

TEST_CASE("online training ends together when one rank has no more, and says what cannot be",
          "[train][online][ranks]") {
  const held_out_grid grid;
  const heddle::io::pairs held_out(grid.x, grid.y, {.inputs = 2, .targets = 1, .validation = 0.5});
  // Rank 1 has samples for 2.5 of its halves.
  std::vector<std::unique_ptr<online_buffer>> buffers;
  for (int r = 0; r < 2; ++r) {
    buffers.push_back(std::make_unique<online_buffer>(ht::buffer_options{.capacity = 100, .threshold = 0}));
    for (std::uint32_t t = 0; t < (r == 0 ? 60u : 20u); ++t) buffers.back()->put(made(1, t));
    buffers.back()->close();
  }
  // Rank 0 throws after three steps, while rank 1 waits for samples that come behind those for which rank 0 has no room.
  using online_fifo = ht::fifo<ht::online_sample>;
  std::vector<std::unique_ptr<online_fifo>> small;
  for (int r = 0; r < 2; ++r)
    small.push_back(std::make_unique<online_fifo>(ht::buffer_options{.capacity = 40, .threshold = 0}));
  std::thread simulation([&] {
    for (std::uint32_t t = 0; t < 25; ++t) small[1]->put(made(1, t));
    for (std::uint32_t t = 0; t < 200; ++t) small[0]->put(made(0, t));
    for (std::uint32_t t = 25; t < 50; ++t) small[1]->put(made(1, t));
  });
  CHECK_THROWS_WITH(train_online(2, 100000,
                                 [&](auto& trainer, auto& world, auto&&) {
                                   const auto r = static_cast<std::size_t>(world.rank());
                                   ht::run_online(trainer, ht::online_pairs(*small[r], held_out),
                                                  [&](const ht::step_report& report) {
                                                    if (r == 0 && report.step == 2) throw std::runtime_error("enough");
                                                  });
                                 }),
                    Contains("enough"));
  simulation.join();

  std::int64_t repeated = 0;
  const online_curve c = train_online(2, 100, [&](auto& trainer, auto& world, auto&& listener) {
    ht::online_pairs data(*buffers[static_cast<std::size_t>(world.rank())], held_out);
    ht::run_online(trainer, data, listener);
    if (world.rank() == 1) repeated = data.repeated();
  });
  CHECK((c.losses.size() == 3 && repeated == 4 && c.validation > 0));
  online_buffer empty;
  empty.close();
  const ht::online_pairs none(empty, held_out);
  std::vector<double> x(2), y(1);
  CHECK_THROWS_WITH(none.fill_train({0, 1}, std::span(x), std::span(y)), Contains("closed before a sample arrived"));
  online_buffer wrong({.capacity = 2, .threshold = 0});
  wrong.put({0, 0, {1}, {2}});
  CHECK_THROWS_WITH(ht::online_pairs(wrong, held_out).fill_train({0, 1}, std::span(x), std::span(y)),
                    Contains("a sample of 1 inputs and 1 targets; expected 2 and 1"));
}

namespace {
// Samples of 40 simulations of the heat equation from number `first` on, four of which run at a time.
std::vector<ht::online_sample> heat_samples(std::int64_t first, std::int64_t count) {
  std::vector<ht::online_sample> all;
  for (std::int64_t s = 0; s < count; s += 4) {
    std::vector<std::vector<ht::online_sample>> running;
    for (std::int64_t i = s; i < std::min(s + 4, count); ++i) {
      const std::vector<double> p = ht::halton(first + i, 3);
      running.emplace_back();
      heat::simulate({p[0], p[1], p[2]}, [&](int t, std::vector<float> in, std::vector<float> field) {
        running.back().push_back(
            {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(t), std::move(in), std::move(field)});
      });
    }
    for (std::size_t t = 0; t < heat::samples; ++t)
      for (const auto& r : running) all.push_back(r[t]);
  }
  return all;
}
struct heat_pairs {
  std::vector<float> x, y;
  explicit heat_pairs(const std::vector<ht::online_sample>& samples) {
    for (const auto& s : samples) {
      x.insert(x.end(), s.inputs.begin(), s.inputs.end());
      y.insert(y.end(), s.targets.begin(), s.targets.end());
    }
  }
};
// Validation errors after the same simulations through a reservoir and a fifo, and after as many steps as of the reservoir on a tenth of them.
struct heat_errors {
  double reservoir = 0, fifo = 0, offline = 0;
};
heat_errors heat_errors_of(std::int64_t seed) {
  constexpr std::int64_t simulations = 40, batch = 16, rho = 4;
  const auto produced = heat_samples(1000 * seed, simulations);
  const heat_pairs grid(heat_samples(500000, 8)), tenth(heat_samples(1000 * seed, simulations / 10));
  const heddle::io::pairs held_out(grid.x, grid.y, {.inputs = 4, .targets = heat::points, .validation = 0.99});
  const heddle::io::pairs few(tenth.x, tenth.y,
                              {.inputs = 4, .targets = heat::points, .seed = static_cast<std::uint64_t>(seed)});
  heddle::train::options<online_network::config> o{
      .model = {.inputs = 4, .outputs = heat::points}, .batch = batch, .steps = 100000};
  o.seed = static_cast<std::uint64_t>(seed);
  o.learning_rate = {.peak = 5e-3, .warmup_steps = 10};
  o.threads_per_rank = 1;
  heat_errors e;
  heddle::launch<heddle::threads>(online_mesh(1), [&](auto& world) {
    const auto fresh = [&] {
      return ht::make_trainer<heddle::strategy<online_mesh, heddle::zero<1>>>(online_network{}, world, o);
    };
    // `put` samples arrive before each step that can be made.
    const auto through = [&](auto& buffer, std::int64_t put, std::int64_t& steps) {
      auto trainer = fresh();
      const ht::online_pairs data(buffer, held_out);
      for (std::size_t i = 0; i < produced.size(); ++i) {
        buffer.put(produced[i]);
        const auto c = buffer.counters();
        if (static_cast<std::int64_t>(i + 1) % put == 0 && c.seen + c.unseen >= batch && buffer.ready())
          trainer.step(data);
      }
      buffer.close();
      ht::run_online(trainer, data);
      steps = trainer.steps_done();
      return trainer.validate(held_out);
    };
    std::int64_t steps = 0, steps_of_fifo = 0;
    online_buffer mixing({.capacity = 400, .threshold = 80, .seed = static_cast<std::uint64_t>(seed)});
    e.reservoir = through(mixing, batch / rho, steps);
    ht::fifo<ht::online_sample> in_order({.capacity = 400, .threshold = 0});
    e.fifo = through(in_order, batch, steps_of_fifo);
    REQUIRE((steps_of_fifo == 100 && steps > 350));
    auto trainer = fresh();
    while (trainer.steps_done() < steps) trainer.step(few);
    e.offline = trainer.validate(held_out);
  });
  return e;
}
}  // namespace

TEST_CASE("a reservoir learns the heat equation better than a fifo, and than training on a tenth of it",
          "[train][online]") {
  for (std::int64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    const heat_errors e = heat_errors_of(seed);
    CHECK(e.reservoir < e.fifo);
    CHECK(e.reservoir < e.offline);
  }
}

#if __has_include(<zmq.hpp>)
TEST_CASE("samples arrive over ZeroMQ once, also from a simulation that is started again", "[train][online][zmq]") {
  std::vector<std::unique_ptr<ht::fifo<ht::online_sample>>> buffers;
  std::vector<std::unique_ptr<ht::zmq_receiver<ht::fifo<ht::online_sample>>>> receivers;
  std::vector<std::string> endpoints;
  for (int r = 0; r < 2; ++r) {
    buffers.push_back(
        std::make_unique<ht::fifo<ht::online_sample>>(ht::buffer_options{.capacity = 2000, .threshold = 0}));
    receivers.push_back(std::make_unique<ht::zmq_receiver<ht::fifo<ht::online_sample>>>(
        *buffers.back(), ht::receiver_options{.run = 5, .inputs = 2, .targets = 1, .simulations = 4}));
    endpoints.push_back(receivers.back()->endpoint());
  }
  CHECK(std::isinf(receivers[0]->silent(0)));
  {
    ht::zmq_sender dies(endpoints, {.run = 5});  // in the middle of simulation 2
    for (std::uint32_t t = 0; t < 31; ++t) dies.send(2, t, made(2, t).inputs, made(2, t).targets);
    ht::zmq_sender stranger(endpoints, {.run = 6});
    stranger.send(0, 0, made(0, 0).inputs, made(0, 0).targets);
  }
  std::vector<std::thread> simulations;
  for (std::uint32_t s = 0; s < 3; ++s)
    simulations.emplace_back([&, s] {
      ht::zmq_sender to(endpoints, {.run = 5});
      for (std::uint32_t t = 0; t < 50; ++t) to.send(s, t, made(s, t).inputs, made(s, t).targets);
      to.finish(s);
    });
  for (auto& r : receivers) r->give_up(3);  // which never comes
  for (std::thread& t : simulations) t.join();
  for (std::size_t r = 0; r < 2; ++r) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> got;
    while (const auto x = buffers[r]->get()) {  // ends, as all simulations have
      REQUIRE(got.insert({x->simulation, x->step}).second);
      REQUIRE((x->simulation + x->step) % 2 == r);
      REQUIRE(x->targets == made(x->simulation, x->step).targets);
    }
    CHECK(got.size() == 75);
    const auto c = receivers[r]->counters();
    CHECK((c.samples == 75 && c.again == (r == 0 ? 16 : 15) && c.ended == 4));
    CHECK(receivers[r]->silent(1) < 1e6);
  }
  const auto refused = receivers[0]->counters().refused + receivers[1]->counters().refused;
  CHECK(refused == 1);
  CHECK_THAT(receivers[0]->last_fault() + receivers[1]->last_fault(), Contains("a message of run 6; this is run 5"));
  using fifo_receiver = ht::zmq_receiver<ht::fifo<ht::online_sample>>;
  CHECK_THROWS_AS(fifo_receiver(*buffers[0], {.inputs = 0, .targets = 1, .simulations = 1}), heddle::config_error);
  CHECK_THROWS_WITH(
      fifo_receiver(*buffers[0], {.endpoint = "tcp://nowhere", .inputs = 1, .targets = 1, .simulations = 1}),
      Contains("cannot receive at 'tcp://nowhere'"));
  CHECK_THROWS_AS(ht::zmq_sender({}), heddle::config_error);
}

TEST_CASE("a trainer that does not draw makes simulations wait", "[train][online][zmq]") {
  const online_folder folder;
  ht::reservoir<ht::online_sample> buffer({.capacity = 20, .threshold = 5});
  ht::zmq_receiver receiver(buffer, {.endpoint = "ipc://" + (folder.path / "samples").string(),
                                     .inputs = 1,
                                     .targets = 250000,
                                     .simulations = 1,
                                     .high_water_mark = 5});
  std::atomic<int> sent{0};
  std::thread simulation([&] {
    ht::zmq_sender to({receiver.endpoint()}, {.high_water_mark = 5});
    const std::vector<float> one(1, 0.f), field(250000, 1.f);  // a megabyte, more than the system keeps for a socket
    for (std::uint32_t t = 0; t < 80; ++t) {
      to.send(0, t, one, field);
      ++sent;
    }
    to.finish(0);
  });
  for (int before = -1; before != sent || sent == 0;) {
    before = sent;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  CHECK(receiver.silent(0) == 0);  // it waits, and so do its messages
  CHECK(sent <= 20 + 5 + 5 + 5);   // and what both sides have in their hands
  CHECK(buffer.counters().unseen <= 20);
  std::set<std::uint32_t> steps;
  while (const auto x = buffer.get()) steps.insert(x->step);
  simulation.join();
  CHECK(steps.size() == 80);
}

TEST_CASE("a simulation that never says that it has ended ends with its process", "[train][online][zmq]") {
  ht::fifo<ht::online_sample> buffer({.capacity = 100, .threshold = 0});
  ht::zmq_receiver receiver(buffer, ht::receiver_options{.inputs = 2, .targets = 1, .simulations = 3});
  {
    ht::zmq_sender to({receiver.endpoint()});
    for (std::uint32_t t = 0; t < 7; ++t) to.send(2, t, made(2, t).inputs, made(2, t).targets);
    to.send(3, 0, made(3, 0).inputs, made(3, 0).targets);  // there is no such simulation
    to.finish(4);
    to.finish(1);
  }
  receiver.gone(1), receiver.gone(2);
  ht::solvers runs({.command = {"/bin/sh", "-c", "exit 0"},
                    .on_finished = [&](std::int64_t s) { receiver.gone(static_cast<std::uint32_t>(s)); }},
                   {receiver.endpoint()});
  int samples = 0;
  while (buffer.get()) ++samples;  // ends
  runs.wait();
  const auto c = receiver.counters();
  CHECK((samples == 7 && c.samples == 7 && c.ended == 3 && c.unsaid == 2 && c.refused == 2));
  CHECK_THAT(receiver.last_fault(), Contains("a message of simulation 4; this run has those below 3"));
}
#endif

TEST_CASE("simulations that die are started again, and those that die too often are lost", "[train][online]") {
  const online_folder folder;
  const auto command = [&](const std::string& script) {
    return std::vector<std::string>{"/bin/sh", "-c", "cd '" + folder.path.string() + "'; " + script, "solver"};
  };
  std::vector<std::int64_t> lost;
  {  // Each dies once; what it was started with is in a file of its own.
    ht::solvers runs({.command = command("echo \"$@\" >> all.$2; [ -e once.$2 ] && exit 0; touch once.$2; exit 3"),
                      .parameters = {{0, 1}, {10, 13}},
                      .simulations = 5,
                      .at_a_time = 2},
                     {"tcp://a:1", "tcp://b:2"});
    runs.wait();
    const auto c = runs.counters();
    CHECK((c.started == 10 && c.finished == 5 && c.died == 5 && c.lost == 0));
    std::ifstream in(folder.path / "all.2");
    std::string first, second;
    std::getline(in, first), std::getline(in, second);
    CHECK(first == second);
    CHECK_THAT(first, Catch::Matchers::StartsWith("--simulation 2 --parameters 0.75,10.33333333333333") &&
                          Catch::Matchers::EndsWith(" --to tcp://a:1,tcp://b:2"));
    CHECK(runs.parameters_of(0) == std::vector<double>{0.5, 11});
  }
  {
    ht::solvers runs({.command = command("[ $2 = 1 ] && exit 1; exit 0"),
                      .simulations = 3,
                      .at_a_time = 3,
                      .restarts = 2,
                      .on_lost = [&](std::int64_t s) { lost.push_back(s); }},
                     {});
    runs.wait();
    CHECK((runs.counters().lost == 1 && runs.counters().started == 5 && lost == std::vector<std::int64_t>{1}));
  }
  {  // Nothing is heard of it.
    ht::solvers runs({.command = command("sleep 1000"),
                      .restarts = 1,
                      .patience_seconds = 0.05,
                      .silent = [](std::int64_t) { return 1e9; }},
                     {});
    runs.wait();
    CHECK((runs.counters().silent == 2 && runs.counters().lost == 1));
  }
  {  // Killed from outside, and at the end of the object.
    ht::solvers runs({.command = command("sleep 1000")}, {});
    while (!runs.kill(0)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (runs.counters().started < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(runs.counters().died == 1);
  }
  {  // The second takes the program away and dies, so that it cannot be started again: the first, which runs, is lost
     // as well.
    const fs::path program = folder.path / "shell";
    fs::create_symlink("/bin/sh", program);
    lost.clear();
    ht::solvers runs({.command = {program.string(), "-c",
                                  "[ $2 = 0 ] && exec sleep 1000; rm '" + program.string() + "'; exit 1", "solver"},
                      .simulations = 4,
                      .at_a_time = 2,
                      .on_lost = [&](std::int64_t s) { lost.push_back(s); }},
                     {});
    CHECK_THROWS_WITH(runs.wait(), Contains("cannot start"));
    CHECK((lost.size() == 4 && std::set<std::int64_t>(lost.begin(), lost.end()).size() == 4));
  }
  ht::solvers missing({.command = {"/no/such/solver"}, .simulations = 2}, {});
  CHECK_THROWS_WITH(missing.wait(), Contains("cannot start '/no/such/solver'"));
  CHECK_THROWS_AS(ht::solvers({}, {}), heddle::config_error);
  CHECK_THROWS_WITH(ht::solvers({.command = {"x"}, .parameters = {{2, 1}}}, {}), Contains("parameter 0 from 2 to 1"));
  // As published: bases 2 and 3.
  CHECK(ht::halton(4, 2)[0] == 0.625);
  CHECK(ht::halton(4, 2)[1] == Approx(7.0 / 9));
  CHECK_THROWS_AS(ht::halton(1, 17), heddle::config_error);
}

}  // namespace online_test
