// tests/train/small_model.hpp: a small real model, cut into stages, and what a table makes of its gradients.
#pragma once

#include "transport.hpp"

#include <heddle/model/pipeline/executor.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/schedule/lower/plan.hpp>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace small_model {

namespace hd = heddle;
namespace sc = heddle::schedule;

inline constexpr int width = 4, hidden = 6, vocabulary = 7;

struct batch {
  int samples = 0;
  int sequence = 0;
  int id = 0;  // of the microbatch: what its tokens and targets are made of
};

inline std::vector<batch> batches(int m) {
  std::vector<batch> all;
  for (int i = 0; i < m; ++i) all.push_back({1 + i % 3, 1 + (2 * i) % 5, i});  // no two neighbours are of one size
  return all;
}
inline constexpr int most_samples = 3, most_sequence = 5;

// The bytes that one rank's stages hold for their backwards, as the allocator sees them.
struct memory {
  std::atomic<std::int64_t> now{0}, peak{0};
  void add(std::int64_t bytes) {
    const std::int64_t n = now += bytes;
    std::int64_t before = peak;
    while (before < n && !peak.compare_exchange_weak(before, n)) {
    }
  }
};
template <class T>
struct counting_allocator {
  using value_type = T;
  memory* of;
  explicit counting_allocator(memory* counts) : of(counts) {}
  template <class U>
  counting_allocator(const counting_allocator<U>& other) : of(other.of) {}
  T* allocate(std::size_t n) {
    if (of != nullptr) of->add(static_cast<std::int64_t>(n * sizeof(T)));
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, std::size_t n) {
    if (of != nullptr) of->now -= static_cast<std::int64_t>(n * sizeof(T));
    std::allocator<T>().deallocate(p, n);
  }
  friend bool operator==(const counting_allocator&, const counting_allocator&) = default;
};
using activations = std::vector<double, counting_allocator<double>>;
inline void drop(activations& x) {
  activations(x.get_allocator()).swap(x);
}

// A number in (-0.5, 0.5) of three indices.
inline double number(int a, int b, int c) {
  std::uint64_t x = static_cast<std::uint64_t>(a) * 1'000'003 + static_cast<std::uint64_t>(b) * 10'007 +
                    static_cast<std::uint64_t>(c) + 12'345;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<double>((x ^ (x >> 31)) >> 11) / 9007199254740992.0 - 0.5;
}

// y = x + gelu(x A + b) C, row by row; the first part looks x up in an embedding, the last has a squared loss.
// One buffer of gradients in the order A, b, C, embedding.
struct stage {
  using scalar = double;

  struct saved {
    activations x, h;
    std::vector<double> dy, dh;
    int state = 0;  // 0 free, 1 forward done, 2 backward_input done
  };
  int part, parts;
  bool beside = false;  // whether it says that it can run beside others
  std::vector<double> weights, gradients;
  std::vector<saved> slots;
  double loss = 0;

  stage(int of_part, int all, int slot_count, memory* counts = nullptr)
      : part(of_part),
        parts(all),
        weights(static_cast<std::size_t>(2 * width * hidden + hidden + (of_part == 0 ? vocabulary * width : 0))),
        gradients(weights.size()),
        slots(static_cast<std::size_t>(slot_count), saved{activations(counting_allocator<double>(counts)),
                                                          activations(counting_allocator<double>(counts)),
                                                          {},
                                                          {}}) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = number(1, part, static_cast<int>(i));
  }

  const double& a(int i, int k) const { return weights[static_cast<std::size_t>(i * hidden + k)]; }
  const double& b(int k) const { return weights[static_cast<std::size_t>(width * hidden + k)]; }
  const double& c(int k, int j) const {
    return weights[static_cast<std::size_t>((width + 1) * hidden + k * width + j)];
  }
  static std::size_t embedding(const batch& of, int row, int i) {
    const int token = static_cast<int>((number(2, of.id, row) + 0.5) * vocabulary);
    return static_cast<std::size_t>((2 * width + 1) * hidden + token * width + i);
  }

  std::int64_t boundary_elements(std::int64_t samples, int sequence = most_sequence) const {
    return samples * sequence * width;
  }
  bool runs_beside(const stage& other) const { return beside && &other != this; }

  saved& enter(int slot, int from, int to) {
    saved& s = slots.at(static_cast<std::size_t>(slot));
    if (s.state != from) throw hd::error("small model: a slot is in the wrong state");
    s.state = to;
    return s;
  }

  static double gelu(double x) { return 0.5 * x * (1 + std::erf(x * 0.7071067811865476)); }
  static double gelu_slope(double x) {
    return 0.5 * (1 + std::erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * std::exp(-0.5 * x * x);
  }

  void forward(int slot, const batch& of, std::span<const double> in, std::span<double> out) {
    saved& s = enter(slot, 0, 1);
    const int rows = of.samples * of.sequence;
    const auto n = static_cast<std::size_t>(rows * width);
    if (in.size() != (part == 0 ? 0 : n) || out.size() != (part == parts - 1 ? 0 : n))
      throw hd::error("small model: a tensor between stages has the wrong size");
    s.x.resize(n);
    s.h.resize(static_cast<std::size_t>(rows * hidden));
    s.dy.resize(n);
    for (int r = 0; r < rows; ++r) {
      double* x = s.x.data() + r * width;
      for (int i = 0; i < width; ++i)
        x[i] = part == 0 ? weights[embedding(of, r, i)] : in[static_cast<std::size_t>(r * width + i)];
      double* h = s.h.data() + r * hidden;
      for (int k = 0; k < hidden; ++k) {
        h[k] = b(k);
        for (int i = 0; i < width; ++i) h[k] += x[i] * a(i, k);
      }
      for (int j = 0; j < width; ++j) {
        double y = x[j];
        for (int k = 0; k < hidden; ++k) y += gelu(h[k]) * c(k, j);
        if (part < parts - 1) {
          out[static_cast<std::size_t>(r * width + j)] = y;
        } else {
          const double wrong = y - number(3, of.id, r * width + j);
          s.dy[static_cast<std::size_t>(r * width + j)] = wrong;
          loss += 0.5 * wrong * wrong;
        }
      }
    }
  }

  void backward_input(int slot, const batch& of, std::span<const double> dout, std::span<double> din) {
    saved& s = enter(slot, 1, 2);
    const int rows = of.samples * of.sequence;
    if (part < parts - 1) s.dy.assign(dout.begin(), dout.end());
    if (s.dy.size() != s.x.size() || din.size() != (part == 0 ? 0 : s.x.size()))
      throw hd::error("small model: a gradient between stages has the wrong size");
    s.dh.resize(s.h.size());
    for (int r = 0; r < rows; ++r) {
      const double *dy = s.dy.data() + r * width, *h = s.h.data() + r * hidden;
      double* dh = s.dh.data() + r * hidden;
      for (int k = 0; k < hidden; ++k) {
        double dg = 0;
        for (int j = 0; j < width; ++j) dg += dy[j] * c(k, j);
        dh[k] = dg * gelu_slope(h[k]);
      }
      if (part > 0)
        for (int i = 0; i < width; ++i) {
          double dx = dy[i];
          for (int k = 0; k < hidden; ++k) dx += dh[k] * a(i, k);
          din[static_cast<std::size_t>(r * width + i)] = dx;
        }
    }
  }

  void backward_weight(int slot, const batch& of) {
    saved& s = enter(slot, 2, 0);
    const int rows = of.samples * of.sequence;
    double* const da = gradients.data();
    double* const db = da + width * hidden;
    double* const dc = db + hidden;
    for (int r = 0; r < rows; ++r) {
      const double *x = s.x.data() + r * width, *dy = s.dy.data() + r * width;
      const double *h = s.h.data() + r * hidden, *dh = s.dh.data() + r * hidden;
      for (int k = 0; k < hidden; ++k) {
        db[k] += dh[k];
        for (int i = 0; i < width; ++i) da[i * hidden + k] += x[i] * dh[k];
        for (int j = 0; j < width; ++j) dc[k * width + j] += gelu(h[k]) * dy[j];
      }
      if (part == 0)
        for (int i = 0; i < width; ++i) {
          double dx = dy[i];
          for (int k = 0; k < hidden; ++k) dx += dh[k] * a(i, k);
          gradients[embedding(of, r, i)] += dx;
        }
    }
    drop(s.x);
    drop(s.h);
  }

  void backward(int slot, const batch& of, std::span<const double> dout, std::span<double> din) {
    backward_input(slot, of, dout, din);
    backward_weight(slot, of);
  }
};

// What one rank knows after a run.
struct rank_result {
  std::vector<std::vector<double>> gradients;  // by stage; empty for stages of other ranks
  double loss = 0;
  std::int64_t sends = 0, bytes = 0, peak_bytes = 0;
  int peak_live = 0, overlapped = 0;
  std::vector<int> reduced;  // stages, as REDUCE_GRAD came
};
inline auto members(rank_result& r) {
  return std::tie(r.gradients, r.loss, r.sends, r.bytes, r.peak_bytes, r.peak_live, r.overlapped, r.reduced);
}

struct hooks {
  rank_result& of;
  void forward_done(int, int, int) {}
  void reduce_gradient(int s) { of.reduced.push_back(s); }
};

// Weights are wrong until `redo`, if there is to be one.
struct doubting_hooks : hooks {
  std::vector<stage>& stages;
  bool wrong;
  int asked = 0;

  doubting_hooks(rank_result& r, std::vector<stage>& here, bool is_wrong) : hooks{r}, stages(here), wrong(is_wrong) {
    if (wrong)
      for (auto& s : stages)
        for (double& w : s.weights) w *= 4;
  }
  bool validate() {
    if (++asked > 1) throw hd::error("asked twice");
    for (const auto& s : stages)
      for (const double g : s.gradients)
        if (g != 0) throw hd::error("a backward has run");
    return !wrong;
  }
  void redo() {
    for (auto& s : stages) {
      for (double& w : s.weights) w /= 4;
      for (auto& slot : s.slots) slot.state = 0;
      s.loss = 0;
    }
  }
};

// What all microbatches make of the model on one rank, one microbatch after the other. `ways[i]`: the parts that
// microbatch i passes; empty: all of them, all microbatches.
struct serial_result {
  std::vector<std::vector<double>> gradients;  // by part
  double loss = 0;
};
inline serial_result serial(int parts, int m, const std::vector<std::vector<int>>& ways = {}) {
  std::vector<stage> model;
  for (int k = 0; k < parts; ++k) model.emplace_back(k, parts, 1);
  std::vector<int> all(static_cast<std::size_t>(parts));
  for (int k = 0; k < parts; ++k) all[static_cast<std::size_t>(k)] = k;
  for (const batch& of : batches(m)) {
    const auto& way = ways.empty() ? all : ways[static_cast<std::size_t>(of.id)];
    std::vector<double> between(static_cast<std::size_t>(of.samples * of.sequence * width)), other(between);
    for (std::size_t k = 0; k < way.size(); ++k) {
      model[static_cast<std::size_t>(way[k])].forward(0, of, k == 0 ? std::span<double>() : between,
                                                      k + 1 == way.size() ? std::span<double>() : other);
      between.swap(other);
    }
    for (std::size_t k = way.size(); k-- > 0;) {
      model[static_cast<std::size_t>(way[k])].backward(0, of, k + 1 == way.size() ? std::span<double>() : between,
                                                       k == 0 ? std::span<double>() : other);
      between.swap(other);
    }
  }
  serial_result result;
  for (stage& s : model) {
    result.gradients.push_back(s.gradients);
    result.loss += s.loss;
  }
  return result;
}

// A communicator whose sends end when their receives have, and whose receives end with their messages.
template <class Communicator>
class blocking : public Communicator {
 public:
  using request = typename Communicator::request;  // an empty one is over
  explicit blocking(Communicator&& c) : Communicator(std::move(c)) {}
  template <class In>
  request isend(In&& in, int to, int tag = 0) {
    char received = 0;
    Communicator::send(in, to, tag);
    Communicator::recv(std::span<char>(&received, 1), to, tag + 100);
    return {};
  }
  template <class Out>
  request irecv(Out&& out, int from, int tag = 0) {
    const char received = 1;
    Communicator::recv(out, from, tag);
    Communicator::send(std::span<const char>(&received, 1), from, tag + 100);
    return {};
  }
  blocking split(int color, int key) { return blocking(Communicator::split(color, key)); }
};

// Runs a table once; `made(pipe)` is the communicator to run it on, `hooked(result, stages)` makes the hooks. Everyone
// gets the results of all ranks.
template <class Make, class MakeHooks>
std::vector<rank_result> run_on(sc::table_view table, int sends_in_flight, bool beside, const std::vector<batch>& all,
                                Make&& made, MakeHooks&& hooked) {
  const sc::plan plan = sc::make_plan(table, sends_in_flight);
  const sc::plan_view view = plan;
  std::vector<rank_result> by_rank(static_cast<std::size_t>(table.ranks()));
  transport_test::launch(hd::mesh<hd::axis<hd::pp>>(table.ranks()), [&](auto& world) {
    auto&& pipe = made(world.template along<hd::pp>());
    rank_result& mine = by_rank[static_cast<std::size_t>(pipe.rank())];
    memory held_bytes;
    std::vector<stage> here;
    here.reserve(static_cast<std::size_t>(table.stages()));
    std::vector<stage*> held(static_cast<std::size_t>(table.stages()), nullptr);
    for (int s = 0; s < table.stages(); ++s)
      if (table.rank_of(s) == pipe.rank()) {
        here.emplace_back(table.part_of(s), table.parts(), view.storage.slots(s), &held_bytes);
        here.back().beside = beside;
        held[static_cast<std::size_t>(s)] = &here.back();
      }
    hd::null_observer off;
    hd::model::executor<stage, std::remove_reference_t<decltype(pipe)>> executor(view, held, pipe, most_samples, off);
    executor.run(std::span<const batch>(all), 0, hooked(mine, here));
    mine.gradients.resize(held.size());
    for (std::size_t s = 0; s < held.size(); ++s)
      if (held[s] != nullptr) {
        mine.gradients[s] = held[s]->gradients;
        mine.loss += held[s]->loss;
      }
    mine.sends = executor.counters().sends;
    mine.bytes = executor.counters().bytes_sent;
    mine.peak_live = executor.counters().peak_live;
    mine.peak_bytes = held_bytes.peak;
    mine.overlapped = executor.counters().overlapped;
  });
  transport_test::share(by_rank);
  return by_rank;
}
template <class Make>
std::vector<rank_result> run_on(sc::table_view table, int sends_in_flight, bool beside, const std::vector<batch>& all,
                                Make&& made) {
  return run_on(table, sends_in_flight, beside, all, made, [](rank_result& r, auto&) { return hooks{r}; });
}
inline std::vector<rank_result> run(sc::table_view table, int sends_in_flight = 1, bool beside = false) {
  return run_on(table, sends_in_flight, beside, batches(table.microbatches()),
                [](auto& pipe) -> auto& { return pipe; });
}
// The same where the forwards that begin the step are done again.
inline std::vector<rank_result> run_again(sc::table_view table, int sends_in_flight, bool beside) {
  return run_on(
      table, sends_in_flight, beside, batches(table.microbatches()), [](auto& pipe) -> auto& { return pipe; },
      [](rank_result& r, std::vector<stage>& here) { return doubting_hooks(r, here, true); });
}

// The gradients of a part: those of its replicas, added.
inline std::vector<double> gradient_of(sc::table_view table, const std::vector<rank_result>& by_rank, int part) {
  std::vector<double> sum;
  for (int s = 0; s < table.stages(); ++s) {
    if (table.part_of(s) != part) continue;
    const auto& g = by_rank[static_cast<std::size_t>(table.rank_of(s))].gradients[static_cast<std::size_t>(s)];
    sum.resize(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
  }
  return sum;
}

inline double total_loss(const std::vector<rank_result>& by_rank) {
  double sum = 0;
  for (const rank_result& r : by_rank) sum += r.loss;
  return sum;
}

// The largest difference of two vectors, relative to the largest element.
inline double difference(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() != y.size()) return 1;
  double apart = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = std::fabs(x[i] - y[i]);
    if (std::isnan(d) || d > apart) apart = d;  // a NaN stays
    largest = std::fmax(largest, std::fabs(y[i]));
  }
  return largest == 0 ? apart : apart / largest;
}

// Whether each stage adds to its weight gradients in the order of the microbatches.
inline bool weights_in_order(sc::table_view table) {
  std::vector<int> last(static_cast<std::size_t>(table.stages()), -1);
  for (const sc::action& a : table.actions())
    if (a.kind == sc::action_kind::backward || a.kind == sc::action_kind::backward_weight) {
      int& before = last[static_cast<std::size_t>(a.stage)];
      if (a.microbatch < before) return false;
      before = a.microbatch;
    }
  return true;
}

}  // namespace small_model
