// tests/train/buckets_test.cpp: a stage with two buckets: experts, split over an axis that splits samples too, and the rest.
#include "catch.hpp"
#include "copied_stage.hpp"
#include "folder.hpp"
#include "random_tokens.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/testing/counting_world.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/predict.hpp>
#include <heddle/train/save.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;

namespace {

struct copies {};   // splits the samples
struct experts {};  // splits the samples, and the experts' weights
struct line {};     // the pipeline

constexpr int positions = 5, words = 7, width = 3, all_experts = 5;
using data = train_test::random_tokens<positions, words, 3>;

struct routed_config {
  std::int64_t context = positions;
  void validate() const {}
  friend std::string to_string(const routed_config&) { return "routed bigrams"; }
};

// h = E[token]; at each part h += A[e] h with the expert e of the token's position; at the end logits = h W, cross-entropy.
// A rank has the rows of its samples; those of all ranks along `experts` are gathered for the experts that it has.
template <class World, class Backend>
class routed_stage {
 public:
  using scalar = double;
  using mesh_type = std::remove_cvref_t<decltype(std::declval<World&>().mesh())>;
  using named = hd::sub_mesh<mesh_type, copies, experts>;
  using flat_weights = hd::layout<named>;
  using buckets = hd::type_list<flat_weights, hd::layout<named, hd::varying<experts>>>;
  using loss = hd::layout<named, hd::partial<hd::plus, copies, experts>>;
  using samples = hd::layout<named, hd::shard<0, copies, experts>>;
  using batch = hd::model::batch<double>;

  routed_stage(const routed_config&, World& world, Backend&, std::array<int, 2> part, int slots, std::int64_t, int)
      : world_(world),
        part_(part[0]),
        first_(part[0] == 0),
        last_(part[0] + 1 == part[1]),
        slots_(static_cast<std::size_t>(slots)) {
    const int ranks = world.mesh().template extent<experts>();
    const hd::balanced_split cut{all_experts, ranks};
    rank_ = world.mesh().template coordinate<experts>(world.rank());
    begin_ = cut.offset(rank_);
    mine_ = cut.size(rank_);
    if (first_) add("embedding", 0, {words, width}, {words, width}, {0, 0});
    if (last_) add("output", 1, {words, width}, {words, width}, {0, 0});
    if (!first_ && !last_) add("bias." + std::to_string(part_), 100 + part_, {width}, {width}, {0});
    dense_ = elements_;
    add("experts." + std::to_string(part_), 2 + part_, {all_experts, width, width}, {mine_, width, width},
        {begin_, 0, 0});
    memory_.resize(2 * at(elements_));
    weights_ = std::span<double>(memory_).first(at(elements_));
    gradients_ = std::span<double>(memory_).last(at(elements_));
  }

  std::int64_t boundary_elements(std::int64_t samples) const { return samples * positions * width; }
  const std::vector<hd::model::parameter>& parameters() const { return table_; }
  std::array<std::int64_t, 2> bucket_elements() const { return {dense_, elements_ - dense_}; }
  std::int64_t flat_elements() const { return elements_; }
  std::span<double> weights() { return weights_; }
  std::span<double> gradients() { return gradients_; }
  void lend_weights(std::span<double> w) { weights_ = w; }
  void lend_gradients(std::span<double> g) {
    gradients_ = g;
    zero_gradients();
  }
  void zero_gradients() { std::fill(gradients_.begin(), gradients_.end(), 0.0); }
  void initialize(std::uint64_t seed) {
    for (const auto& p : table_)
      hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
        const hd::counter_random random(seed, static_cast<std::uint64_t>(p.id));
        for (std::int64_t k = 0; k < length; ++k)
          weights_[at(p.offset + local + k)] = 0.7 * random.normal(static_cast<std::uint64_t>(global + k));
      });
  }

  void forward(int slot, const batch& b, std::span<const double> in, std::span<double> out) {
    saved& s = slots_[at(slot)];
    s.out = through_experts(s, input(b, in));
    if (!last_) return static_cast<void>(std::copy(s.out.begin(), s.out.end(), out.begin()));
    s.loss = head(b, s.out, s.d_logits);
  }
  void backward(int slot, const batch& b, std::span<const double> dout, std::span<double> din) {
    backward_input(slot, b, dout, din);
    backward_weight(slot, b);
  }
  void backward_input(int slot, const batch& b, std::span<const double> dout, std::span<double> din) {
    saved& s = slots_[at(slot)];
    std::vector<double> d(dout.begin(), dout.end());
    if (last_) d.assign(s.out.size(), 0.0);
    for (std::size_t k = 0; last_ && k < b.targets.size(); ++k)
      for (std::size_t v = 0; v < words; ++v)
        for (std::size_t j = 0; j < width; ++j)
          d[k * width + j] += s.d_logits[k * words + v] * tensor(1, weights_)[v * width + j];
    s.d_rows = gathered(s, d);
    std::vector<double> back(s.d_rows.size());
    for_each_row_of_mine(s, [&](std::size_t k, std::size_t expert) {
      for (std::size_t i = 0; i < width; ++i)
        for (std::size_t j = 0; j < width; ++j)
          back[k * width + j] += weight(expert, i, j, weights_) * s.d_rows[k * width + i];
    });
    s.d_in = added_up(s, back);
    for (std::size_t i = 0; i < d.size(); ++i) s.d_in[i] += d[i];
    if (!first_) std::copy(s.d_in.begin(), s.d_in.end(), din.begin());
  }
  void backward_weight(int slot, const batch& b) {
    const saved& s = slots_[at(slot)];
    for_each_row_of_mine(s, [&](std::size_t k, std::size_t expert) {
      for (std::size_t i = 0; i < width; ++i)
        for (std::size_t j = 0; j < width; ++j)
          weight(expert, i, j, gradients_) += s.d_rows[k * width + i] * s.rows[k * width + j];
    });
    for (std::size_t k = 0; k < s.d_in.size() / width; ++k)
      for (std::size_t j = 0; j < width; ++j) {
        if (first_) tensor(0, gradients_)[at(b.tokens[k]) * width + j] += s.d_in[k * width + j];
        if (!first_ && !last_) tensor(100 + part_, gradients_)[j] += s.d_in[k * width + j];
        for (std::size_t v = 0; last_ && v < words; ++v)
          tensor(1, gradients_)[v * width + j] += s.d_logits[k * words + v] * s.out[k * width + j];
      }
  }
  double loss_sum(int slot) const { return slots_[at(slot)].loss; }
  double forward_only(const batch& b, std::span<const double> in, std::span<double> out) {
    saved s;
    const std::vector<double> h = through_experts(s, input(b, in));
    if (last_) return head(b, h, s.d_logits);
    std::copy(h.begin(), h.end(), out.begin());
    return 0;
  }
  void last_logits(const batch& b, std::span<const double> in, std::span<double> out, std::span<double> logits) {
    saved s;
    const std::vector<double> h = through_experts(s, input(b, in));
    if (!last_) return static_cast<void>(std::copy(h.begin(), h.end(), out.begin()));
    const auto output = tensor(1, weights_);
    std::fill(logits.begin(), logits.end(), 0);
    for (std::size_t k = 0; k < at(b.samples); ++k)
      for (std::size_t v = 0; v < words; ++v)
        for (std::size_t j = 0; j < width; ++j)
          logits[k * words + v] += h[((k + 1) * positions - 1) * width + j] * output[v * width + j];
  }

 private:
  struct saved {
    std::vector<std::int64_t> elements;  // of each rank along `experts`
    std::size_t begin = 0;               // where this rank's rows are among all
    std::vector<double> rows, d_rows, out, d_logits, d_in;
    double loss = 0;
  };
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  void add(std::string name, int id, std::vector<std::int64_t> whole, std::vector<std::int64_t> local,
           std::vector<std::int64_t> start) {
    hd::model::parameter p;
    p.name = std::move(name);
    p.id = id;
    p.shape = p.logical = std::move(whole);
    p.local = std::move(local);
    p.start = std::move(start);
    p.offset = elements_;
    p.count = 1;
    for (const std::int64_t n : p.local) p.count *= n;
    p.decay = p.shape.size() > 1;
    elements_ += p.count;
    table_.push_back(std::move(p));
  }
  std::span<double> tensor(int id, std::span<double> of) const {
    for (const auto& p : table_)
      if (p.id == id) return of.subspan(at(p.offset), at(p.count));
    return {};
  }
  double& weight(std::size_t expert, std::size_t i, std::size_t j, std::span<double> of) const {
    return of[at(dense_) + ((expert - at(begin_)) * width + i) * width + j];
  }
  std::vector<double> input(const batch& b, std::span<const double> in) {
    std::vector<double> h(in.begin(), in.end());
    for (std::size_t k = 0; first_ && k < b.tokens.size(); ++k)
      for (std::size_t j = 0; j < width; ++j) h.push_back(tensor(0, weights_)[at(b.tokens[k]) * width + j]);
    for (std::size_t k = 0; !first_ && !last_ && k < h.size(); ++k) h[k] += tensor(100 + part_, weights_)[k % width];
    return h;
  }
  // A rank's samples are whole, so positions go on from rank to rank.
  template <class F>
  void for_each_row_of_mine(const saved& s, F&& f) const {
    for (std::size_t k = 0; k < s.rows.size() / width; ++k) {
      const std::size_t expert = (k + at(part_)) % all_experts;
      if (expert >= at(begin_) && expert < at(begin_ + mine_)) f(k, expert);
    }
  }
  std::vector<double> gathered(const saved& s, const std::vector<double>& own) {
    auto&& group = world_.template along_if<experts>();
    std::int64_t n = 0;
    for (const std::int64_t e : s.elements) n += e;
    std::vector<double> all(at(n));
    if (group.size() == 1) return own;
    group.all_gather_v(std::span<const double>(own), std::span<double>(all), std::span<const std::int64_t>(s.elements));
    return all;
  }
  std::vector<double> added_up(const saved& s, std::vector<double>& all) {
    auto&& group = world_.template along_if<experts>();
    if (group.size() > 1) group.all_reduce(std::span<double>(all), hd::plus{});
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(s.begin);
    return {from, from + s.elements[at(rank_)]};
  }
  std::vector<double> through_experts(saved& s, std::vector<double> h) {
    auto&& group = world_.template along_if<experts>();
    const auto own = static_cast<std::int64_t>(h.size());
    s.elements.assign(at(group.size()), own);
    const std::vector<std::int64_t> ones(at(group.size()), 1);
    if (group.size() > 1)
      group.all_gather_v(std::span<const std::int64_t>(&own, 1), std::span<std::int64_t>(s.elements),
                         std::span<const std::int64_t>(ones));
    s.begin = 0;
    for (int r = 0; r < rank_; ++r) s.begin += at(s.elements[at(r)]);
    s.rows = gathered(s, h);
    std::vector<double> to(s.rows.size());
    for_each_row_of_mine(s, [&](std::size_t k, std::size_t expert) {
      for (std::size_t i = 0; i < width; ++i)
        for (std::size_t j = 0; j < width; ++j)
          to[k * width + i] += weight(expert, i, j, weights_) * s.rows[k * width + j];
    });
    const std::vector<double> z = added_up(s, to);
    for (std::size_t i = 0; i < h.size(); ++i) h[i] += z[i];
    return h;
  }
  double head(const batch& b, const std::vector<double>& h, std::vector<double>& d_logits) {
    d_logits.assign(b.targets.size() * words, 0.0);
    double loss = 0;
    for (std::size_t k = 0; k < b.targets.size(); ++k) {
      double* const logits = d_logits.data() + k * words;
      double sum = 0;
      for (std::size_t v = 0; v < words; ++v) {
        for (std::size_t j = 0; j < width; ++j) logits[v] += h[k * width + j] * tensor(1, weights_)[v * width + j];
        sum += std::exp(logits[v]);
      }
      loss += std::log(sum) - logits[b.targets[k]];
      for (std::size_t v = 0; v < words; ++v)
        logits[v] = b.loss_scale * (std::exp(logits[v]) / sum - (v == at(b.targets[k]) ? 1 : 0));
    }
    return loss;
  }

  World& world_;
  int part_;
  bool first_, last_;
  int rank_ = 0;
  std::int64_t begin_ = 0, mine_ = 0, dense_ = 0, elements_ = 0;
  std::vector<hd::model::parameter> table_;
  std::vector<double> memory_;
  std::span<double> weights_, gradients_;  // in it, or the trainer's
  std::vector<saved> slots_;
};

struct routed_bigrams {
  using scalar = double;
  using config = routed_config;
  struct description {
    struct head {
      static constexpr std::int64_t outputs() { return words; }
    } out;
  };
  static description describe(const config&) { return {}; }
  using batch = hd::model::batch<double>;
  template <class World, class Backend>
  using stage = std::conditional_t<std::is_same_v<hd::space_of<Backend>, hd::host_memory>, routed_stage<World, Backend>,
                                   train_test::copied_stage<routed_stage<World, Backend>, Backend>>;
  static std::array<int, 2> layers_of(const routed_config&, int part, int parts) { return {part, parts}; }
};

// The bytes of gradients and weights that the trainer passes to communicators.
struct tally {
  using kind = hd::observer_kind;
  static constexpr bool enabled = true;
  std::map<std::string, std::int64_t> bytes{};
  void record(const hd::event& e) {
    if (e.kind == hd::activity::collective && e.bytes > 0) bytes[e.name] += e.bytes;
  }
};

using mesh_type = hd::mesh<hd::axis<copies>, hd::axis<line>, hd::axis<experts>>;
using whole = hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<0>>;
using shares = hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<1>, tally>;
using ahead = hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<2>, hd::post_validation_with_copy>;
using gathered = hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<3>>;
// In memory that the host may not touch.
using checked = hd::testing::checked_backend<hd::compute::host<>>;
using checked_ahead =
    hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<2>, hd::post_validation_with_copy, checked>;
using checked_gathered = hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<3>, checked>;
// Gradients and weights travel in float.
using rounded = hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<1>,
                             hd::precision<hd::weights_in<float>, hd::gradients_in<float>, hd::masters_in<double>>>;
using rounded_gathered =
    hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<3>,
                 hd::precision<hd::weights_in<float>, hd::gradients_in<float>, hd::masters_in<double>>>;
constexpr std::int64_t all_steps = 4;

struct outcome {
  std::vector<double> losses, norms;
  double held_out = 0, first_norm = 0, apart = 0;
  std::map<std::string, std::vector<double>> weights;  // of a run of one rank
};
struct task {
  double clip = 0.3;
  std::int64_t steps = all_steps;
  const outcome* like = nullptr;  // a run of one pipeline rank less
  const std::filesystem::path* from = nullptr;
  const std::filesystem::path* to = nullptr;
};

template <class Strategy>
outcome train(const mesh_type& mesh, const task& what) {
  outcome all;
  std::mutex one_at_a_time;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    hd::train::options<routed_config> o;
    o.batch = 7;
    o.microbatches = 2;
    o.steps = what.steps;
    o.learning_rate = {.peak = 0.05, .total_steps = all_steps};
    o.adamw.weight_decay = 0.1;
    o.clip_norm = what.clip;
    o.threads_per_rank = 1;
    tally seen;
    auto trainer = [&] {
      if constexpr (Strategy::observer::enabled)
        return hd::train::make_trainer<Strategy>(routed_bigrams{}, world, o, seen);
      else
        return hd::train::make_trainer<Strategy>(routed_bigrams{}, world, o);
    }();
    if (what.from != nullptr) {
      const bool resumed = hd::train::resume(trainer, *what.from).resumed;
      const std::lock_guard lock(one_at_a_time);
      CHECK(resumed);
    }
    outcome mine;
    double squares = 0;  // by the definition, where one rank has all
    if (world.size() == 1) {
      mine.first_norm = trainer.compute_gradients(data{}).gradient_norm;
      hd::train::detail::for_each_bucket(trainer.stage(), trainer.optimizer_state(), [&](auto& bucket, auto& of, auto) {
        const auto gradients = hd::train::detail::read_of_stage(bucket, of.gradients_of(bucket));
        for (const double g : gradients.elements()) squares += g * g;
      });
    }
    const std::int64_t before = trainer.steps_done();
    seen.bytes.clear();
    trainer.run(data{}, [&](const hd::train::step_report& r) {
      mine.losses.push_back(r.loss);
      mine.norms.push_back(r.gradient_norm);
    });
    if constexpr (Strategy::observer::enabled) {
      const int d = world.mesh().template extent<copies>(), e = world.mesh().template extent<experts>();
      std::int64_t reduced = 0, gathered = 0;
      for (int k = 0; k < trainer.stages(); ++k) {
        const auto [dense, of_experts] = trainer.stage(k).bucket_elements();
        reduced += (d * e > 1 ? dense : 0) + (d > 1 ? of_experts : 0);
        gathered += dense + of_experts;
      }
      const auto bytes = static_cast<std::int64_t>(sizeof(double)) * (trainer.steps_done() - before);
      const std::lock_guard lock(one_at_a_time);
      CHECK(seen.bytes["reduce gradients"] == reduced * bytes);
      CHECK(seen.bytes["gather weights"] == gathered * bytes);
    }
    if constexpr (Strategy::zero::stage >= 2) {
      auto& memory = trainer.parameter_memory();
      const std::lock_guard lock(one_at_a_time);
      CHECK(memory.peak_bytes() == memory.predicted_peak_bytes());
    }
    mine.held_out = trainer.validate(data{});
    if (what.to != nullptr) hd::train::save(trainer, *what.to);
    trainer.parameter_memory().with_weights([&] {
      for (int k = 0; k < trainer.stages(); ++k) {
        const auto weights = hd::train::detail::read_of_stage(trainer.stage(k), trainer.stage(k).weights());
        for (const auto& p : trainer.stage(k).parameters()) {
          std::vector<double>& to = mine.weights[p.name];
          const std::vector<double> expected =
              what.like != nullptr ? what.like->weights.at(p.name) : std::vector<double>{};
          to.resize(static_cast<std::size_t>(p.global_count()));
          hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
            for (std::int64_t i = 0; i < length; ++i) {
              const auto there = static_cast<std::size_t>(global + i);
              to[there] = weights.elements()[static_cast<std::size_t>(p.offset + local + i)];
              if (expected.empty()) continue;
              const double difference = std::abs(to[there] - expected[there]);
              mine.apart =
                  std::isnan(difference) ? std::numeric_limits<double>::infinity() : (std::max)(mine.apart, difference);
            }
          });
        }
      }
    });
    const std::lock_guard lock(one_at_a_time);
    if (world.size() == 1) CHECK(mine.first_norm == Approx(std::sqrt(squares)).epsilon(1e-12));
    mine.apart = (std::max)(mine.apart, all.apart);
    for (const auto& [name, w] : all.weights) mine.weights.emplace(name, w);
    all = std::move(mine);
  });
  return all;
}

void check_close(std::span<const double> a, std::span<const double> b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-10);
}

template <class Strategy>
void check_every_mesh(double clip) {
  struct extents {
    int copies, experts;
  };
  for (const int parts : {1, 3}) {
    // Stages have weights of their own: parts of the pipeline on one rank each, and nothing else split.
    const outcome one = train<whole>(mesh_type::from_extents({1, parts, 1}), {.clip = clip});
    CHECK(one.norms.front() > 0.3);
    for (const extents e : {extents{2, 2}, extents{3, 2}, extents{1, 3}, extents{2, 1}, extents{1, 6}}) {
      if (parts > 1 && e.copies * e.experts > 4) continue;
      CAPTURE(parts, e.copies, e.experts, clip);
      const outcome got =
          train<Strategy>(mesh_type::from_extents({e.copies, parts, e.experts}), {.clip = clip, .like = &one});
      check_close(got.losses, one.losses);
      check_close(got.norms, one.norms);
      CHECK(got.apart < 1e-10);
      CHECK(got.held_out == Approx(one.held_out).epsilon(1e-11));
    }
  }
}

}  // namespace

TEST_CASE("experts' gradients are summed over the copies of an expert only, all others over both axes",
          "[train][buckets]") {
  const double clip = GENERATE(0.3, 100.0);
  check_every_mesh<whole>(clip);
  check_every_mesh<shares>(clip);
  check_every_mesh<ahead>(clip);
  check_every_mesh<gathered>(clip);
}

TEST_CASE("several buckets train in memory that the host may not touch with the bits of the host's",
          "[train][buckets][memory]") {
  check_every_mesh<checked_ahead>(0.3);
  check_every_mesh<checked_gathered>(0.3);
  for (const auto& mesh : {mesh_type::from_extents({2, 3, 1}), mesh_type::from_extents({3, 1, 2})}) {
    const outcome expected = train<gathered>(mesh, {});
    for (const outcome& got : {train<checked_gathered>(mesh, {}), train<checked_ahead>(mesh, {})}) {
      CHECK(got.losses == expected.losses);
      CHECK(got.norms == expected.norms);
      CHECK(got.held_out == expected.held_out);
    }
  }
}

TEST_CASE("a save of several buckets goes on on another mesh", "[train][buckets]") {
  const train_test::folder folder("buckets");
  const outcome straight = train<whole>(mesh_type::from_extents({1, 1, 1}), {});
  const std::span<const double> last = std::span(straight.losses).last(2);
  const auto begin = [&](auto strategy, const mesh_type& mesh) {
    folder.remove();
    static_cast<void>(train<decltype(strategy)>(mesh, {.steps = 2, .to = &folder.path}));
  };
  const auto go_on = [&](auto strategy, const mesh_type& mesh) {
    const outcome got = train<decltype(strategy)>(mesh, {.like = &straight, .from = &folder.path});
    check_close(got.losses, last);
    CHECK(got.apart < 1e-10);
  };
  begin(shares{}, mesh_type::from_extents({2, 1, 2}));
  go_on(whole{}, mesh_type::from_extents({1, 1, 3}));
  go_on(shares{}, mesh_type::from_extents({3, 1, 2}));
  begin(whole{}, mesh_type::from_extents({1, 1, 3}));
  go_on(shares{}, mesh_type::from_extents({2, 1, 2}));
  go_on(whole{}, mesh_type::from_extents({2, 1, 1}));
  begin(gathered{}, mesh_type::from_extents({1, 1, 3}));
  go_on(gathered{}, mesh_type::from_extents({2, 1, 2}));
  go_on(whole{}, mesh_type::from_extents({1, 1, 1}));
  begin(checked_gathered{}, mesh_type::from_extents({1, 1, 3}));
  go_on(checked_ahead{}, mesh_type::from_extents({2, 1, 2}));
  go_on(whole{}, mesh_type::from_extents({1, 1, 1}));
}

TEST_CASE("a precision rounds each bucket", "[train][buckets]") {
  const outcome one = train<whole>(mesh_type::from_extents({1, 1, 1}), {});
  const outcome got = train<rounded>(mesh_type::from_extents({2, 1, 2}), {.like = &one});
  CHECK(got.apart > 1e-12);
  CHECK(got.apart < 1e-4);
  // A bucket may have one rank where the other has several, and the other way round.
  for (const auto& mesh : {mesh_type::from_extents({2, 1, 2}), mesh_type::from_extents({1, 1, 1}),
                           mesh_type::from_extents({1, 3, 2}), mesh_type::from_extents({2, 1, 1})}) {
    const outcome expected = train<rounded>(mesh, {}), by_share = train<rounded_gathered>(mesh, {});
    CHECK(by_share.losses == expected.losses);
    CHECK(by_share.norms == expected.norms);
    CHECK(by_share.held_out == expected.held_out);
  }
}

TEST_CASE("ranks that exchange samples predict uneven numbers of them", "[train][buckets]") {
  const auto predicted = [](const mesh_type& mesh, int samples) {
    std::vector<double> all;
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      hd::train::options<routed_config> o;
      o.batch = 7;
      o.microbatches = 2;
      o.threads_per_rank = 1;
      tally seen;
      auto trainer = hd::train::make_trainer<shares>(routed_bigrams{}, world, o, seen);
      std::vector<std::int32_t> x;
      for (int i = 0; i < samples * positions; ++i) x.push_back(i * i % words);
      const std::vector<double> got = hd::train::predict(trainer, std::span<const std::int32_t>(x));
      if (world.rank() == 0) all = got;
    });
    return all;
  };
  for (const int samples : {5, 1, 4}) {
    const std::vector<double> one = predicted(mesh_type::from_extents({1, 1, 1}), samples);
    REQUIRE(one.size() == static_cast<std::size_t>(samples * words));
    check_close(predicted(mesh_type::from_extents({1, 1, 2}), samples), one);
    check_close(predicted(mesh_type::from_extents({2, 1, 3}), samples), one);
  }
}

TEST_CASE("an expert that is not finite is named", "[train][buckets]") {
  std::vector<std::string> texts(4);
  hd::launch<hd::threads>(mesh_type::from_extents({2, 1, 2}), [&](auto& world) {
    hd::train::options<routed_config> o;
    o.batch = 7;
    o.microbatches = 2;
    o.steps = 1;
    o.threads_per_rank = 1;
    auto trainer = hd::train::make_trainer<whole>(routed_bigrams{}, world, o);
    if (world.mesh().template coordinate<experts>(world.rank()) == 1)
      trainer.stage().weights().back() = std::numeric_limits<double>::quiet_NaN();
    try {
      trainer.step(data{});
    } catch (const hd::numeric_error& e) {
      texts[static_cast<std::size_t>(world.rank())] = e.what();
    }
  });
  for (const std::string& text : texts) CHECK_THAT(text, Catch::Contains("the weight experts.0 was not finite"));
}

TEST_CASE("what is summed over which axes follows from the buckets' layouts", "[train][buckets]") {
  using hd::type_list;
  using world = hd::world<hd::threads, mesh_type>;
  using facts = hd::train::detail::training_axes<routed_stage<world, hd::compute::host<>>, mesh_type, line>;
  STATIC_REQUIRE(std::is_same_v<facts::of_buckets, type_list<type_list<copies, experts>, type_list<copies>>>);
  STATIC_REQUIRE(std::is_same_v<facts::gradients, type_list<copies, experts>>);
  STATIC_REQUIRE(std::is_same_v<facts::samples, type_list<copies, experts>>);
  STATIC_REQUIRE(std::is_same_v<facts::inside, type_list<>>);
  // A stage with one bucket has the optimizer and the group that it had.
  using plain = hd::train::trainer<hd::model::gpt2<double>, hd::strategy<hd::mesh<hd::axis<hd::dp>>, hd::zero<1>>>;
  STATIC_REQUIRE(std::is_same_v<plain::optimizer_type, hd::train::optimizer<double, hd::zero<1>>>);
  STATIC_REQUIRE(std::is_same_v<plain::gradient_groups::type, plain::communicator_along<hd::dp>&>);
}

namespace {

// Two buckets of these sizes, and nothing that computes.
struct two_buckets {
  using scalar = double;
  std::array<std::int64_t, 2> elements;
  std::vector<hd::model::parameter> table{};
  std::vector<double> w{}, g{};
  explicit two_buckets(std::int64_t dense, std::int64_t experts, std::int64_t cut)
      : elements{cut, dense + experts - cut}, w(static_cast<std::size_t>(dense + experts), 1.0), g(w) {
    for (const std::int64_t n : {dense, experts}) {
      hd::model::parameter p;
      p.name = table.empty() ? "dense" : "experts";
      p.offset = table.empty() ? 0 : dense;
      p.count = n;
      table.push_back(p);
    }
  }
  const std::vector<hd::model::parameter>& parameters() const { return table; }
  std::array<std::int64_t, 2> bucket_elements() const { return elements; }
  std::span<double> weights() { return w; }
  std::span<double> gradients() { return g; }
};
// The groups of both along the axes of a world that counts.
template <class World>
struct counted_groups {
  World& world;
  template <int Bucket>
  auto& get() const {
    if constexpr (Bucket == 0)
      return world.template along<copies, experts>();
    else
      return world.template along<copies>();
  }
};

}  // namespace

TEST_CASE("a step sends the ring formulas' bytes of each bucket over its own ranks", "[train][buckets]") {
  using mesh = hd::mesh<hd::axis<copies, 3>, hd::axis<experts, 2>>;
  constexpr std::int64_t dense = 13, of_experts = 10, d = 3, e = 2;
  const auto sent = [](auto zero) {
    std::int64_t all = 0;
    std::mutex one_at_a_time;
    hd::testing::counting::run(mesh{}, [&](auto& world) {
      two_buckets stage(dense, of_experts, dense);
      counted_groups<std::remove_reference_t<decltype(world)>> groups{world};
      using optimizer = hd::train::bucketed_optimizer<hd::train::optimizer<double, decltype(zero)>, 2>;
      optimizer both(stage, groups);
      hd::train::detail::for_each_bucket(stage, both, [&](auto& bucket, auto& of_bucket, auto k) {
        auto& group = hd::train::detail::group_of_bucket<decltype(k)::value>(groups);
        of_bucket.reduce(group, bucket.gradients());
        of_bucket.gather(group, bucket.weights());
      });
      world.all().barrier();
      const std::lock_guard lock(one_at_a_time);
      all += world.bytes_sent();
      if constexpr (optimizer::zero_stage == 0)
        for (std::int64_t i = 0; i < dense + of_experts; ++i)
          CHECK(stage.g[static_cast<std::size_t>(i)] == (i < dense ? d * e : d));
    });
    return all;
  };
  // Over a group of d ranks: 2 (d - 1) n elements by all of them together, in e groups of experts.
  const std::int64_t formula = 8 * (2 * (d * e - 1) * dense + e * 2 * (d - 1) * of_experts);
  CHECK(sent(hd::zero<0>{}) == formula);
  CHECK(sent(hd::zero<1>{}) == formula);
}

TEST_CASE("buckets that do not fit their stage's parameters are refused", "[train][buckets]") {
  using hd::train::detail::bucket_begins;
  two_buckets fits(4, 6, 4), across(4, 6, 5), short_of_one(4, 6, 4), three(4, 6, 4);
  CHECK(bucket_begins<2>(fits) == std::array<std::int64_t, 3>{0, 4, 10});
  short_of_one.elements[1] = 5;
  CHECK_THROWS_WITH(bucket_begins<2>(short_of_one), Catch::Contains("2 numbers that add up to its 10 elements"));
  CHECK_THROWS_WITH(bucket_begins<3>(three), Catch::Contains("3 numbers"));
  CHECK_THROWS_WITH(bucket_begins<2>(across), Catch::Contains("experts") || Catch::Contains("dense"));
}
