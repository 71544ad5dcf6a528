// Training steps of GPT-2 on one GPU by heddle's trainer: forward, backward, norm, clipping and AdamW, on random tokens that are made beforehand.
//   nvcc -std=c++20 -O2 -arch=sm_90 -Iinclude -DHEDDLE_NUMBERS=in_bf16_products benchmarks/gpt2_cuda.cu -o gpt2_cuda -lcublasLt
//     -Xlinker --wrap=cudaGraphLaunch -Xlinker --wrap=cudaStreamSynchronize
//   ./gpt2_cuda [--model tiny|124m|1558m] [--steps eager|captured|both] [--batch N] [--microbatches N] [--seconds S]
// HEDDLE_NUMBERS is one of the structs in `numbers` below; in_bf16_cudnn, whose attention is cuDNN's, with -DHEDDLE_WITH_CUDNN and -lcudnn. Without --batch 32 samples, fewer where an estimate says that they do not fit, halved where it was wrong.
//
// MFU: gpt2_config::flops_per_token (6 for each number that enters a product, and 6 L D (S + 1) for the unmasked half of attention) times tokens per
// second, over the peak: a product of 8192^3 in bf16 by cuBLASLt on random numbers, measured here before the steps. The peak is that of bf16 whatever the
// steps compute in. Times are medians of steps, without the first three (eager, captured, first launch).
#include <heddle/comm/threads.hpp>
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/captured_steps.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/memory_forecast.hpp>

#if defined(HEDDLE_WITH_CUDNN)
#include <heddle/compute/cudnn.hpp>
#include <heddle/train/products.hpp>
#endif

#include "bf16_peak.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#if !defined(HEDDLE_NUMBERS)
#define HEDDLE_NUMBERS in_bf16_products
#endif

namespace hd = heddle;
namespace hc = heddle::compute;
using clock_type = std::chrono::steady_clock;

// What a model computes in. One more is one more struct.
namespace numbers {
struct in_float {
  static constexpr const char* name = "float";
  using scalar = float;
  using backend = hc::cuda;
  using precision = hd::precision<>;
};
struct in_tf32 {
  static constexpr const char* name = "tf32";
  using scalar = float;
  using backend = hc::cuda_tf32;
  using precision = hd::precision<>;
};
struct in_bf16_products {
  static constexpr const char* name = "bf16_products";
  using scalar = float;
  using backend = hc::cuda;
  using precision = hd::precision<hd::products_in<hd::bf16>>;
};
struct in_bf16 {
  static constexpr const char* name = "bf16";
  using scalar = hd::bf16;
  using backend = hc::cuda;
  using precision = hd::precision<>;
};
#if defined(HEDDLE_WITH_CUDNN)
struct in_bf16_cudnn : in_bf16 {
  static constexpr const char* name = "bf16_cudnn";
  using backend = hc::cuda_with_cudnn;
};
#endif
}  // namespace numbers

namespace {

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}
void require(cudaError_t status, const char* call) {
  hd::detail::require_cuda(status, call, 0);
}

// What the host's thread did in CUDA's calls since `clear`, and how long the device was at the last graph.
struct host_times {
  double launching = 0, waiting = 0;
  cudaEvent_t begin = nullptr, end = nullptr;
  bool launched = false;
  void clear() {
    launching = waiting = 0;
    launched = false;
  }
  double device_seconds() const {
    float ms = 0;
    if (launched) require(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    return ms * 1e-3;
  }
};
host_times host;

}  // namespace

// The linker puts these between heddle's calls and CUDA (--wrap).
extern "C" {
cudaError_t __real_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (host.begin == nullptr) {
    require(cudaEventCreate(&host.begin), "cudaEventCreate");
    require(cudaEventCreate(&host.end), "cudaEventCreate");
  }
  require(cudaEventRecord(host.begin, stream), "cudaEventRecord");
  const auto start = clock_type::now();
  const cudaError_t status = __real_cudaGraphLaunch(graph, stream);
  host.launching += seconds_since(start);
  require(cudaEventRecord(host.end, stream), "cudaEventRecord");
  host.launched = true;
  return status;
}
cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  const auto start = clock_type::now();
  const cudaError_t status = __real_cudaStreamSynchronize(stream);
  host.waiting += seconds_since(start);
  return status;
}
}

namespace {

// Random words, made once; a sample begins somewhere in them, and its targets are the words that follow.
struct prepared_tokens {
  std::int64_t length;
  std::vector<std::int32_t> words;

  prepared_tokens(std::int64_t length_, std::int64_t vocabulary) : length(length_) {
    const hd::counter_random random(1, 3);
    words.resize(std::size_t{1} << 20);
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = static_cast<std::int32_t>(random.integer(i) % static_cast<std::uint64_t>(vocabulary));
  }
  std::int64_t context() const { return length; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    auto at = static_cast<std::size_t>(block.first * length) % words.size();
    for (std::size_t done = 0; done < tokens.size();) {
      const std::size_t n = (std::min)(tokens.size() - done, words.size() - 1 - at);
      std::copy_n(words.begin() + static_cast<std::ptrdiff_t>(at), n,
                  tokens.begin() + static_cast<std::ptrdiff_t>(done));
      std::copy_n(words.begin() + static_cast<std::ptrdiff_t>(at + 1), n,
                  targets.begin() + static_cast<std::ptrdiff_t>(done));
      done += n;
      at = 0;
    }
  }
  void fill_validation(hd::io::sample_block block, std::span<std::int32_t> tokens,
                       std::span<std::int32_t> targets) const {
    fill_train(block, tokens, targets);
  }
};

struct settings {
  std::string model = "124m";
  std::string steps = "both";
  std::int64_t batch = 0;
  int microbatches = 1;
  double seconds = 15;
};

hd::model::gpt2_config config_of(const settings& s) {
  hd::model::gpt2_config c = s.model == "1558m" ? hd::model::gpt2_1558m() : hd::model::gpt2_124m();
  c.vocabulary = 50304;  // 50257, made a multiple of 64
  if (s.model == "tiny") c = {.layers = 2, .heads = 2, .width = 64, .context = 64, .vocabulary = 512};
  return c;
}

// 32768 tokens fill a chip; logits of twice as many would be over 2^31 numbers.
constexpr std::int64_t most_samples = 32;

// Samples that the free memory is thought to hold beside weights, gradients and moments: about 17 tensors of the width of a layer, the logits, and what
// products round.
std::int64_t batch_that_fits(const hd::model::gpt2_config& c, std::size_t element) {
  std::size_t free = 0, all = 0;
  require(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  const double state = 20.0 * static_cast<double>(c.parameters());
  const double token = static_cast<double>(element) * (17.0 * c.layers * c.width + 2.0 * c.vocabulary);
  const double samples = (0.9 * static_cast<double>(free) - state) / (token * c.context);
  return (std::clamp)(static_cast<std::int64_t>(samples), std::int64_t{1}, most_samples);
}

struct measured {
  std::vector<double> step, launch, waiting, device;
  double first_loss = 0, last_loss = 0;
  std::optional<hd::train::memory_forecast> predicted{};
  std::uint64_t used = 0;
};
double median(std::vector<double> x) {
  if (x.empty()) return 0;
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Most bytes of the pool and of graphs that were in use at a time, as CUDA counts them.
std::uint64_t most_used() {
  cudaMemPool_t pool{};
  require(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
  std::uint64_t of_pool = 0, of_graphs = 0;
  require(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &of_pool), "cudaMemPoolGetAttribute");
  require(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &of_graphs), "cudaDeviceGetGraphMemAttribute");
  return of_pool + of_graphs;
}
void forget_most_used() {
  cudaMemPool_t pool{};
  require(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
  std::uint64_t none = 0;
  require(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none), "cudaMemPoolSetAttribute");
  require(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &none), "cudaDeviceSetGraphMemAttribute");
}

template <class Numbers, class Steps>
measured train(const settings& s, const hd::model::gpt2_config& config, std::int64_t batch) {
  using mesh = hd::mesh<hd::axis<hd::dp>>;
  using strategy = hd::strategy<mesh, typename Numbers::backend, typename Numbers::precision, Steps>;
  constexpr int warm = 3, most = 60;
  std::atomic<bool> stop{false};
  hd::train::options<hd::model::gpt2_config> o;
  o.model = config;
  o.batch = batch;
  o.microbatches = s.microbatches;
  o.steps = most;
  o.stop = &stop;
  o.learning_rate = {.peak = 1e-4, .minimum = 1e-5, .warmup_steps = 2, .total_steps = most};
  const prepared_tokens data(config.context, config.vocabulary);
  measured m;
  forget_most_used();
  hd::launch<hd::threads>(mesh{1}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<typename Numbers::scalar>{}, world, o);
    m.predicted = hd::train::predicted_memory(trainer);
    auto begin = clock_type::now();
    host.clear();
    trainer.run(data, [&](const hd::train::step_report& r) {
      if (r.step == 0) m.first_loss = r.loss;
      m.last_loss = r.loss;
      if (r.step == warm - 1) begin = clock_type::now();
      if (r.step >= warm) {
        m.step.push_back(r.seconds);
        m.launch.push_back(host.launching);
        m.waiting.push_back(host.waiting);
        m.device.push_back(host.device_seconds());
      }
      if (r.step >= warm + 4 && seconds_since(begin) > s.seconds) stop = true;
      host.clear();
    });
  });
  m.used = most_used();
  return m;
}

template <class Numbers, class Steps>
void report(const settings& s, double peak) {
  const hd::model::gpt2_config config = config_of(s);
  std::int64_t batch = s.batch > 0 ? s.batch : batch_that_fits(config, sizeof(typename Numbers::scalar));
  batch = (std::max)(batch / s.microbatches, std::int64_t{1}) * s.microbatches;
  std::optional<measured> got;
  while (!got) {
    try {
      got = train<Numbers, Steps>(s, config, batch);
    } catch (const hd::memory_error& e) {
      if (s.batch > 0 || batch <= s.microbatches) throw;
      std::printf("with %lld samples: %s\n", static_cast<long long>(batch), e.what());
      batch = (std::max)(batch / 2 / s.microbatches, std::int64_t{1}) * s.microbatches;
    }
  }
  const measured& m = *got;
  const double t = median(m.step), tokens = static_cast<double>(batch * config.context);
  const double speed = tokens / t, mfu = speed * config.flops_per_token() / peak;
  constexpr bool captured = Steps::captured;
  const char* steps = captured ? "captured" : "eager";
  // Of a captured step: what it took beside the time that the device was at the graph, and the launch, which that time may hide (an upper bound). Of
  // an eager one: what it took beside waiting.
  const double on_host = captured ? t - median(m.device) + median(m.launch) : t - median(m.waiting);
  const double predicted = m.predicted ? static_cast<double>(m.predicted->total()) : 0.0,
               used = static_cast<double>(m.used);
  std::printf(
      "\nGPT-2 %s, %s, %s steps, batch %lld in %d microbatches, sequence %d: %zu steps, fastest %.2f ms, median %.2f "
      "ms, "
      "slowest %.2f ms\n",
      s.model.c_str(), Numbers::name, steps, static_cast<long long>(batch), s.microbatches, config.context,
      m.step.size(), *std::min_element(m.step.begin(), m.step.end()) * 1e3, t * 1e3,
      *std::max_element(m.step.begin(), m.step.end()) * 1e3);
  std::printf("%.0f tokens/s, %.1f %% of the peak of bf16 products; loss %.4f to %.4f\n", speed, 100 * mfu,
              m.first_loss, m.last_loss);
  std::printf("memory: %.3f GB predicted, %.3f GB in use at most, as CUDA counts it\n", predicted * 1e-9, used * 1e-9);
  if (captured)
    std::printf("host: %.1f us in cudaGraphLaunch, %.1f us of a step beside the graph\n", median(m.launch) * 1e6,
                on_host * 1e6);
  else
    std::printf("host: %.1f us of a step not waiting for the stream\n", on_host * 1e6);
  const std::string name = "heddle.gpt2-" + s.model + "." + Numbers::name + "." + steps;
  const auto result = [&](const char* what, double value, const char* unit) {
    std::printf("result %s.%s %.6g %s\n", name.c_str(), what, value, unit);
  };
  result("tokens_per_second", speed, "tokens/s");
  result("mfu", mfu, "of_peak");
  result("batch", static_cast<double>(batch), "samples");
  result("step", t * 1e3, "ms");
  result("host", on_host * 1e6, "us");
  result("host_share", on_host / t, "of_step");
  if (captured) result("graph_launch", median(m.launch) * 1e6, "us");
  if (predicted > 0) result("memory_over_predicted", used / predicted, "times");
}

int run(const settings& s) {
  int devices = 0;
  const cudaError_t asked = cudaGetDeviceCount(&devices);
  if (asked != cudaSuccess || devices == 0) {
    std::printf("skipped: there is no GPU (%s)\n", cudaGetErrorString(asked));
    return 77;
  }
  cudaDeviceProp about{};
  require(cudaGetDeviceProperties(&about, 0), "cudaGetDeviceProperties");
  cudaMemPool_t pool{};
  require(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
  const double peak = peak_of_bf16(s.model == "tiny" ? 1024 : 8192);
  std::printf("%s: a product of bf16 reaches %.1f TFLOP/s\n", about.name, peak * 1e-12);
  std::printf("result heddle.peak.bf16 %.6g TFLOP/s\n", peak * 1e-12);
  using chosen = numbers::HEDDLE_NUMBERS;
  int status = 0;
  // Each with all of the memory, whatever was before; and where one fails the other is measured.
  const auto attempt = [&](auto work) {
    try {
      require(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
      require(cudaDeviceGraphMemTrim(0), "cudaDeviceGraphMemTrim");
      work();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      status = 1;
    }
  };
  if (s.steps != "captured") attempt([&] { report<chosen, hd::eager_steps>(s, peak); });
  if (s.steps != "eager") attempt([&] { report<chosen, hd::captured_steps>(s, peak); });
  return status;
}

settings read(int argc, char** argv) {
  settings s;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--model" && (value == "tiny" || value == "124m" || value == "1558m"))
      s.model = value;
    else if (name == "--steps" && (value == "eager" || value == "captured" || value == "both"))
      s.steps = value;
    else if (name == "--batch" && std::atoll(value.c_str()) > 0)
      s.batch = std::atoll(value.c_str());
    else if (name == "--microbatches" && std::atoi(value.c_str()) > 0)
      s.microbatches = std::atoi(value.c_str());
    else if (name == "--seconds" && std::atof(value.c_str()) > 0)
      s.seconds = std::atof(value.c_str());
    else {
      std::fprintf(stderr,
                   "heddle: gpt2_cuda does not know '%s %s'; it takes --model tiny|124m|1558m, --steps "
                   "eager|captured|both, --batch N, "
                   "--microbatches N, --seconds S\n",
                   name.c_str(), value.c_str());
      std::exit(2);
    }
  }
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return run(read(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
