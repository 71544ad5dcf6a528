// Trains a byte-level GPT-2 on text across a mesh of dp x pp x tp ranks, chosen on the command line.
// run: --steps 6 --layers 2 --width 32 --heads 2 --context 32 --batch 8 --microbatches 2 --validate-every 3 --sample 20 --timeline timeline.svg
// prints: mesh         dp=2 x pp=2 x tp=2
// prints: step     6/6
// prints: timeline     timeline.svg
// mpi: 8
// kokkos
// cuda
// virtual: 64 --mesh dp=4,pp=4,tp=4 --steps 4 --width 32 --context 16 --batch 16 --validate-every 2 --sample 8
// varies: ranks as .*
// varies: products by .*
// varies: gemm  .*
// varies: [0-9]+ tok/s.*
// varies: MFU  .*
// varies: for equal stages, .*
#include <heddle/compute/gemm_peak.hpp>
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/observe/gather.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/observe/text_file.hpp>
#include <heddle/plan/layer_partition.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/background_saves.hpp>
#include <heddle/train/layer_assignment.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/sampling.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/stop_on_signal.hpp>
#include <heddle/train/store_saves.hpp>

#include "gpt2_train/backend.hpp"
#include "gpt2_train/memory.hpp"
#include "gpt2_train/results.hpp"
#include "gpt2_train/settings.hpp"
#include "gpt2_train/ways.hpp"
#include "gpt2_train/windows.hpp"
#include "offload_option.hpp"
#include "run_store.hpp"
#include "tool.hpp"
#include "training_saves.hpp"
#include "transport.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using backend = computed::by;

// All of the named files and folders, one after the other; heddle's own text if none is named.
struct text {
  hd::io::corpus corpus;
  int files = 0;
  std::vector<std::string> nesting;  // how it and the folder of the saves lie in each other
};
static text read_text(const settings& s) {
  std::vector<std::string> paths = s.data;
  if (paths.empty()) paths = {HEDDLE_SOURCE_DIR "/docs", HEDDLE_SOURCE_DIR "/include"};
  std::vector<std::uint8_t> bytes;
  std::string name;
  int files = 0;
  std::vector<std::string> nesting;
  hd::io::corpus_options options;
  const std::string folder = s.is_in_store() ? "" : s.save;
  if (!folder.empty()) options.leave_out = {folder};
  for (const std::string& path : paths) {
    const hd::io::corpus part(path, options);
    if (auto how = folder.empty() ? "" : hd::io::describe_nesting(path, folder); !how.empty())
      nesting.push_back(std::move(how));
    bytes.insert(bytes.end(), part.tokens().begin(), part.tokens().end());
    bytes.push_back('\n');
    files += part.files();
    name += (name.empty() ? "" : ", ") + path;
  }
  return {hd::io::corpus(name, std::move(bytes)), files, std::move(nesting)};
}

template <class T>
static hd::schedule::tabled schedule_of(const settings& s) {
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  const auto samples = static_cast<double>(s.batch) / mesh.extent<dp>() / std::max(1, s.microbatches);
  return ways::schedule_of(s, mesh.extent<pp>(), samples * s.context * s.width * sizeof(T));
}

template <class T>
static hd::train::options<hd::model::gpt2_config> options_of(const settings& s, const hd::schedule::tabled& when) {
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = s.layers,
             .heads = s.heads,
             .width = s.width,
             .context = s.context,
             .vocabulary = hd::io::corpus::vocabulary()};
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  memory::check(s, o.model, mesh.extent<dp>(), sizeof(T), on::any_ranks ? mesh.size() : 1, mesh.size());
  o.batch = s.batch;
  o.microbatches = s.microbatches;
  o.recompute = s.recompute;
  o.offload.store.directories = s.offload;
  o.layers_per_stage = s.layers_per_stage;
  if (s.layers_by_cost) {
    using model = hd::model::gpt2<T>;
    const int parts = when.parts_with_layers();
    o.layers_per_stage = parts < when.parts()  // the loss is where the embedding is
                             ? hd::layers_by_cost::counts_before_loss<model>(o.model, parts)
                             : hd::plan::partition_layers(hd::layers_by_cost::costs<model>(o.model), parts).counts;
  }
  o.steps = s.steps;
  o.learning_rate = {.peak = s.lr, .minimum = s.lr / 10, .warmup_steps = s.steps / 20, .total_steps = s.steps};
  o.clip_norm = s.clip;
  o.seed = s.seed;
  o.validate_every = s.validate_every;
  o.validation_samples = s.validation_samples;
  return o;
}

// Trains in the windows only, from save to save. Returns whether all steps are done.
template <class T, class Strategy, class Data>
static bool train_in_windows(const settings& s, const hd::launch_options& launch, const Data& data,
                             const hd::train::save_facts& facts, std::int64_t done) {
  const auto planned = [&](const std::string& mesh) {
    settings here = s;
    here.mesh = mesh;
    const auto when = schedule_of<T>(here);
    return std::pair(when, options_of<T>(here, when));
  };
  std::vector<windows::free_time> free;
  for (const std::string& text : s.windows) {
    free.push_back(windows::parse(text, s.mesh));
    if (!on::any_ranks &&
        hd::parse_mesh<mesh_type>(free.back().mesh).size() != hd::parse_mesh<mesh_type>(s.mesh).size())
      throw hd::config_error("heddle: there are as many processes in every window; give meshes of that many ranks");
    planned(free.back().mesh);  // what cannot run there is said now
  }
  const auto on_mesh = [&](const std::string& mesh, const std::atomic<bool>* stop, auto&& work) {
    auto plan = planned(mesh);
    plan.second.stop = stop;
    hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), launch, [&](auto& world) {
      hd::observe::recorder nothing(world.size(), {.first_step = std::numeric_limits<int>::max()});
      auto trainer = hd::train::make_trainer<Strategy>(hd::model::gpt2<T>{}, world, plan.second, plan.first, nothing);
      work(trainer, on::keeps(world.rank()));
    });
  };
  return windows::train_in(free, s, done, data, facts, on_mesh);
}

template <class T, class Precision = hd::precision<>>
static int train(const settings& s) {
  using strategy = hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<1>, backend, hd::observe::recorder,
                                hd::activations::recompute<offload_option::policy>, Precision>;
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  // What cannot run is said before anything is read or started.
  const auto when = schedule_of<T>(s);
  auto options = options_of<T>(s, when);
  options.stop = &hd::train::stop_on_signal::flag();
  options.validate();
  hd::model::parse_recompute(s.recompute);
  offload_option::require_written(s.offload);
  const std::unique_ptr<hd::io::store> store = tool::open_store(s.save);  // none: a folder
  const auto [corpus, files, nesting] = read_text(s);
  const hd::io::dataset data(corpus.tokens(), {.context = s.context, .batch = s.batch, .seed = s.seed});
  const hd::train::save_facts facts{
      .corpus = corpus.fingerprint(),
      .order = "seed " + std::to_string(s.seed) + ", context " + std::to_string(s.context),
      .most_batch = hd::train::options<hd::model::gpt2_config>::most_batch};
  const std::int64_t saved = store != nullptr
                                 ? tool::steps_saved(*store, s.resume)
                                 : training_saves::steps_saved(s.save, s.resume, s.steps, !s.windows.empty());
  const bool nothing_to_do = saved > 0 && saved >= s.steps;
  if (nothing_to_do)
    std::printf(
        "nothing to do: the save in '%s' is of step %lld, --steps asks for %lld; nothing is trained or written\n",
        s.save.c_str(), static_cast<long long>(saved), static_cast<long long>(s.steps));
  else
    for (const std::string& path : {s.trace, s.timeline})
      if (!path.empty()) hd::observe::write_text_file(path, "");  // a path that cannot be written is found now

  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::string about =
      hd::to_string(mesh) + ", " + ways::name_of(s) + ", " + std::to_string(s.microbatches) + " microbatches";
  const int last = static_cast<int>(s.steps) - 1;
  hd::launch_options launch;
  launch.timeout = hd::timeout_of(s.timeout);
  hd::io::save_folder claimed;  // until the end
  if (!s.save.empty() && !nothing_to_do)
    hd::launch<hd::threads>(mesh, launch, [&](auto& world) {
      if (store != nullptr) return hd::train::claim_saves(world, *store);
      auto folder = hd::train::claim_saves(world, s.save);
      if (on::keeps(world.rank())) claimed = std::move(folder);
    });
  if (claimed.is_held() && !claimed.is_locked())
    std::printf("saves        %s has no file locks: nothing keeps another run out of it\n", s.save.c_str());
  if (!s.windows.empty() && !nothing_to_do && !train_in_windows<T, strategy>(s, launch, data, facts, saved))
    return hd::train::stop_on_signal::received() == 0
               ? tool::steps_left
               : training_saves::status_of(hd::train::stop_on_signal::received());
  const auto gemm_peak = [cores] {
    backend whole_machine = computed::backend_of(cores);
    return hd::compute::measure_gemm_peak<T>(whole_machine, computed::gemm_extent);
  };
  double peak = on::any_ranks ? gemm_peak() : 0;  // ranks that are threads may each have a share of the cores only
  int stopped_by = 0;
  hd::launch<hd::threads>(mesh, launch, [&](auto& world) {
    const bool speaks = world.rank() == 0;
    if (speaks) {
      if (!on::any_ranks) peak = gemm_peak();
      std::printf("mesh         %s: %d ranks as %s on %d cores\n", hd::to_string(mesh).c_str(), mesh.size(),
                  on::ranks_are, cores);
      std::printf("strategy     %s, %d microbatches, ZeRO-1 over dp, AdamW, clip %g, recompute %s\n",
                  ways::name_of(s).c_str(), s.microbatches, s.clip, s.recompute.c_str());
      std::printf("model        %s, %.2f M parameters, %s\n", hd::model::to_string(options.model).c_str(),
                  static_cast<double>(options.model.parameters()) * 1e-6, s.dtype.c_str());
      std::printf("backend      %s\n", computed::about(computed::backend_of(1).gemm_name()).c_str());
      std::printf("gemm         %s, %.1f GFLOP/s measured on %d threads\n", computed::backend_of(1).gemm_name(),
                  peak * 1e-9, cores);
      std::printf("data         %s: %lld bytes of text in %d files, %lld training samples\n", corpus.name().c_str(),
                  static_cast<long long>(corpus.size()), files, static_cast<long long>(data.train_samples()));
      for (const std::string& how : nesting) std::printf("data         %s\n", how.c_str());
    }
    world.control().barrier();  // the others leave the cores alone
    hd::observe::recorder recorder(mesh.size(), {.first_step = std::max(0, last - 3)});  // each rank has its own
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<T>{}, world, options, when, recorder);
    if (store != nullptr && s.resume)
      training_saves::go_on(trainer, *store, facts);
    else if (s.resume || !s.windows.empty())
      training_saves::go_on(trainer, s.save, facts);
    std::optional<hd::train::background_saves<decltype(trainer)>> background;
    if (store != nullptr)
      background.emplace(trainer, *store, facts);
    else if (s.save_in_background)
      background.emplace(trainer, s.save, facts);
    double rate = 0;
    bool first = true;
    std::optional<hd::train::stop_on_signal> signals;  // one for all ranks of a process
    double longest = 0;                                // from one step's end to the next, with validations and saves
    if (on::keeps(world.rank())) signals.emplace(s.grace);
    world.control().barrier();
    std::int64_t last_end = hd::now_ns();
    trainer.run(
        data,
        [&](const hd::train::step_report& r) {
          rate = r.tokens_per_second;
          longest = std::max(longest, static_cast<double>(hd::now_ns() - last_end) * 1e-9);
          last_end = hd::now_ns();
          if (signals) signals->set_grace(s.grace_after(longest));
          const std::int64_t step = r.step + 1;
          const bool shown = first || step == r.steps || step % s.print_every == 0 || r.validation_loss;
          first = false;
          if (speaks && shown) std::printf("%s\n", hd::train::to_string(r).c_str()), std::fflush(stdout);
        },
        [&](auto& t) {
          if (signals && t.stopped()) signals->step_ended();
          if (background) training_saves::say_finished(*background, speaks);
          if (s.save.empty() || !training_saves::is_due(t, s.save_every)) return;
          if (background) {
            (*background)(t);
            if (!s.save_in_background) background->wait();
            return;
          }
          for (const std::string& left : hd::train::save(t, s.save, facts).left)
            std::printf("kept         %s\n", left.c_str());
        });
    if (background) {
      background->wait();
      training_saves::say_finished(*background, speaks);
    }
    if (const int number = training_saves::signal_that_stopped(trainer, s.save); number != 0) {
      if (on::keeps(world.rank())) stopped_by = number;
      return;
    }
    signals.reset();

    std::int64_t saved_bytes = trainer.saved_activation_bytes();
    world.control().all_reduce(std::span(&saved_bytes, 1), hd::maximum{});
    if (speaks && rate > 0) {
      auto passed = options.model;  // what a microbatch passes of the model
      if (s.skip > 0) passed.layers -= passed.layers * s.skip / static_cast<int>(s.nodes.size());
      std::printf("MFU          %.1f %% of the measured GEMM peak: %.0f tokens/s x %.2f MFLOP\n",
                  100 * rate * passed.flops_per_token() / peak, rate, passed.flops_per_token() * 1e-6);
    }
    offload_option::say(trainer, s.offload);
    hd::observe::gather(recorder, world.control());
    if (speaks) results::report(mesh, trainer.plan().table, recorder, about, saved_bytes, s.trace, s.timeline);
    if (s.sample > 0 && !s.prompt.empty()) {
      std::vector<std::int32_t> prompt;
      for (const char c : s.prompt) prompt.push_back(static_cast<unsigned char>(c));
      const auto text =
          hd::train::sample(trainer, prompt, {.tokens = s.sample, .temperature = s.temperature, .seed = s.seed});
      if (speaks) std::printf("sample       %s\n", std::string(text.begin(), text.end()).c_str());
    }
  });
  return training_saves::status_of(stopped_by);
}

int main(int argc, char** argv) {
  on::begin(argc, argv);
  computed::session session(argc, argv);
  settings s;
  tool::command_line app("Trains a byte-level GPT-2 on text across a mesh of dp x pp x tp ranks.",
                         "75 the windows have ended with steps left, 128 + n a signal n has ended the run");
  declare(app, s);
  return tool::run(app, argc, argv, [&] {
    require_together(s);
    take_plan(s);
    session.begin(on::any_ranks ? hd::parse_mesh<mesh_type>(s.mesh).size() : 1);
    try {
#if defined(HEDDLE_EXAMPLE_CUDA)
      return s.dtype == "bf16" ? train<float, hd::precision<hd::products_in<hd::bf16>>>(s) : train<float>(s);
#elif defined(HEDDLE_EXAMPLE_F32_ONLY)  // compiled for the demo or a test, in half the time
      if (s.dtype != "f32") throw hd::config_error("heddle: this program was compiled for --dtype f32 only; gpt2_train has all");
      return train<float>(s);
#else
      if (s.dtype == "bf16") return train<float, hd::precision<hd::products_in<hd::bf16>>>(s);
      return s.dtype == "f64" ? train<double>(s) : train<float>(s);
#endif
    } catch (const std::bad_alloc&) {
      throw hd::memory_error("heddle: no memory is left for these settings; this process can have " +
                             memory::gigabytes(static_cast<double>(hd::memory_limit())));
    }
  });
}
