// tests/train/own_axes_test.cpp: a model of the test's own, with nothing but what a trainer needs, on axes of its own names.
#include "catch.hpp"
#include "random_tokens.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/post_validation.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;

namespace {

struct rows {};     // two axes share out the samples,
struct columns {};  // one on either side of
struct line {};     // the pipeline;
struct slices {};   // one splits the width;
struct mine {};     // one has nothing to do with the model

constexpr int positions = 3, words = 7, width = 5;
using data = train_test::random_tokens<positions, words>;

struct bigram_config {
  std::int64_t context = positions;
  void validate() const {}
  friend std::string to_string(const bigram_config&) { return "bigrams"; }
};
// h = E[token], then at each part h *= s, at the end logits = h W, cross-entropy.
double initial(std::uint64_t seed, int id, int index) {
  return hd::counter_random(seed, static_cast<std::uint64_t>(id)).normal(static_cast<std::uint64_t>(index)) * 0.7;
}
enum : int { embedding = 0, output = 1, scale = 2 };  // scale + p: of part p

template <class World, class Backend>
class bigram_stage {
 public:
  using scalar = double;
  using mesh_type = std::remove_cvref_t<decltype(std::declval<World&>().mesh())>;
  using named = hd::sub_mesh<mesh_type, rows, columns, slices>;
  using flat_weights = hd::layout<named, hd::varying<slices>>;
  using loss = hd::layout<named, hd::partial<hd::plus, rows, columns>, hd::identical<slices>>;
  using samples = hd::layout<named, hd::shard<0, rows, columns>>;
  using batch = hd::model::batch<double>;
  struct entry {
    std::string name;
    int id;
    std::int64_t offset, count;
    bool counted, decay;
  };

  bigram_stage(const bigram_config&, World& world, Backend&, std::array<int, 2> part, int slots, std::int64_t, int)
      : world_(world), first_(part[0] == 0), last_(part[0] + 1 == part[1]), slots_(static_cast<std::size_t>(slots)) {
    const hd::balanced_split cut{width, world.mesh().template extent<slices>()};
    begin_ = static_cast<int>(cut.offset(world.mesh().template coordinate<slices>(world.rank())));
    mine_ = static_cast<int>(cut.size(world.mesh().template coordinate<slices>(world.rank())));
    const auto add = [&](std::string name, int id, int count) {
      const std::int64_t at = table_.empty() ? 0 : table_.back().offset + table_.back().count;
      table_.push_back({std::move(name), id, at, count, true, id < scale});
      weights_.resize(static_cast<std::size_t>(at + count));
    };
    if (first_) add("embedding", embedding, words * mine_);
    add("scale." + std::to_string(part[0]), scale + part[0], mine_);
    if (last_) add("output", output, words * mine_);
    gradients_.resize(weights_.size());
  }

  std::int64_t boundary_elements(std::int64_t samples) const { return samples * positions * mine_; }
  const std::vector<entry>& parameters() const { return table_; }
  std::span<double> weights() { return weights_; }
  std::span<double> gradients() { return gradients_; }
  void zero_gradients() { std::fill(gradients_.begin(), gradients_.end(), 0.0); }
  void initialize(std::uint64_t seed) {
    for (const entry& p : table_)
      for (int i = 0; i < p.count; ++i) weights_[at(p.offset + i)] = initial(seed, p.id, whole_index(i));
  }
  /// Of element i of a tensor, which is one row per word, or one row.
  int whole_index(int i) const { return i / mine_ * width + begin_ + i % mine_; }

  void forward(int slot, const batch& b, std::span<const double> in, std::span<double> out) {
    saved& s = slots_[at(slot)];
    s.h = input(b, in);
    const std::vector<double> scaled = times_scale(s.h);
    if (!last_) return static_cast<void>(std::copy(scaled.begin(), scaled.end(), out.begin()));
    s.loss = head(b, scaled, s.d_logits);
  }
  void backward(int slot, const batch& b, std::span<const double> dout, std::span<double> din) {
    backward_input(slot, b, dout, din);
    backward_weight(slot, b);
  }
  void backward_input(int slot, const batch& b, std::span<const double> dout, std::span<double> din) {
    saved& s = slots_[at(slot)];
    s.d_scaled.assign(s.h.size(), 0.0);
    if (!last_) std::copy(dout.begin(), dout.end(), s.d_scaled.begin());
    const std::span<const double> w = tensor(output, weights_);
    for (std::size_t k = 0; last_ && k < b.tokens.size(); ++k)
      for (int v = 0; v < words; ++v)
        for (int j = 0; j < mine_; ++j)
          s.d_scaled[k * at(mine_) + at(j)] += s.d_logits[k * words + at(v)] * w[at(v * mine_ + j)];
    const std::vector<double> d = times_scale(s.d_scaled);
    if (!first_) std::copy(d.begin(), d.end(), din.begin());
  }
  void backward_weight(int slot, const batch& b) {
    const saved& s = slots_[at(slot)];
    const std::span<double> ds = tensor(scale, gradients_), dw = tensor(output, gradients_),
                            de = tensor(embedding, gradients_);
    const std::vector<double> scaled = times_scale(s.h), d = times_scale(s.d_scaled);
    for (std::size_t i = 0; i < s.h.size(); ++i) ds[i % at(mine_)] += s.d_scaled[i] * s.h[i];
    for (std::size_t k = 0; k < b.tokens.size(); ++k)
      for (int j = 0; j < mine_; ++j) {
        if (first_) de[at(b.tokens[k] * mine_ + j)] += d[k * at(mine_) + at(j)];
        for (int v = 0; last_ && v < words; ++v)
          dw[at(v * mine_ + j)] += s.d_logits[k * words + at(v)] * scaled[k * at(mine_) + at(j)];
      }
  }
  double loss_sum(int slot) const { return slots_[at(slot)].loss; }
  double forward_only(const batch& b, std::span<const double> in, std::span<double> out) {
    const std::vector<double> scaled = times_scale(input(b, in));
    std::vector<double> ignored;
    if (last_) return head(b, scaled, ignored);
    std::copy(scaled.begin(), scaled.end(), out.begin());
    return 0;
  }

 private:
  struct saved {
    std::vector<double> h, d_logits, d_scaled;
    double loss = 0;
  };
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  // Of this stage; `scale` means its own.
  std::span<double> tensor(int id, std::vector<double>& of) {
    for (const entry& p : table_)
      if (std::min<int>(p.id, scale) == id) return std::span<double>(of).subspan(at(p.offset), at(p.count));
    return {};
  }
  std::vector<double> input(const batch& b, std::span<const double> in) {
    std::vector<double> h(in.begin(), in.end());
    for (std::size_t k = 0; first_ && k < b.tokens.size(); ++k)
      for (int j = 0; j < mine_; ++j) h.push_back(tensor(embedding, weights_)[at(b.tokens[k] * mine_ + j)]);
    return h;
  }
  std::vector<double> times_scale(std::vector<double> x) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= tensor(scale, weights_)[i % at(mine_)];
    return x;
  }
  double head(const batch& b, const std::vector<double>& scaled, std::vector<double>& d_logits) {
    std::vector<double> logits(b.targets.size() * words);
    for (std::size_t k = 0; k < b.targets.size(); ++k)
      for (int v = 0; v < words; ++v)
        for (int j = 0; j < mine_; ++j)
          logits[k * words + at(v)] += scaled[k * at(mine_) + at(j)] * tensor(output, weights_)[at(v * mine_ + j)];
    auto&& group = world_.template along<slices>();
    if (group.size() > 1) group.all_reduce(std::span<double>(logits), hd::plus{});
    double loss = 0;
    for (std::size_t k = 0; k < b.targets.size(); ++k) {
      double sum = 0;
      for (int v = 0; v < words; ++v) sum += std::exp(logits[k * words + at(v)]);
      loss += std::log(sum) - logits[k * words + at(b.targets[k])];
      for (int v = 0; v < words; ++v)
        logits[k * words + at(v)] = b.loss_scale * (std::exp(logits[k * words + at(v)]) / sum - (v == b.targets[k]));
    }
    d_logits = std::move(logits);
    return loss;
  }

  World& world_;
  bool first_, last_;
  int begin_ = 0, mine_ = 0;
  std::vector<entry> table_;
  std::vector<double> weights_, gradients_;
  std::vector<saved> slots_;
};

struct bigrams {
  using scalar = double;
  using config = bigram_config;
  using batch = hd::model::batch<double>;
  template <class World, class Backend>
  using stage = bigram_stage<World, Backend>;
  static std::array<int, 2> layers_of(const bigram_config&, int part, int parts) { return {part, parts}; }
};

using mesh_type = hd::mesh<hd::axis<rows>, hd::axis<mine>, hd::axis<line>, hd::axis<columns>, hd::axis<slices>>;
using strategy = hd::strategy<mesh_type, hd::pipeline_axis<line>, hd::zero<1>, hd::post_validation>;
constexpr std::int64_t batch = 7;

using tensors = std::map<int, std::vector<double>>;

// One step's loss, gradients and norm, by the definition: loops over the batch, no stages.
struct by_definition {
  double loss = 0, norm = 0;
  tensors gradients;
  by_definition(const data& from, int parts, std::uint64_t seed) {
    tensors w;
    const auto make = [&](int id, int count) {
      gradients[id].resize(static_cast<std::size_t>(count));
      for (int i = 0; i < count; ++i) w[id].push_back(initial(seed, id, i));
    };
    make(embedding, words * width);
    make(output, words * width);
    for (int p = 0; p < parts; ++p) make(scale + p, width);
    std::vector<std::int32_t> tokens(batch * positions), targets(tokens.size());
    from.fill_train({0, batch}, tokens, targets);
    const double n = static_cast<double>(tokens.size());
    for (std::size_t k = 0; k < tokens.size(); ++k) {
      const auto word = static_cast<std::size_t>(tokens[k]), target = static_cast<std::size_t>(targets[k]);
      std::array<double, width> factor, h;
      std::array<double, words> probability;
      for (std::size_t j = 0; j < width; ++j) {
        factor[j] = 1;
        for (int p = 0; p < parts; ++p) factor[j] *= w[scale + p][j];
        h[j] = w[embedding][word * width + j] * factor[j];
      }
      double sum = 0;
      for (std::size_t v = 0; v < words; ++v) {
        double logit = 0;
        for (std::size_t j = 0; j < width; ++j) logit += h[j] * w[output][v * width + j];
        sum += probability[v] = std::exp(logit);
      }
      for (double& p : probability) p /= sum;
      loss -= std::log(probability[target]) / n;
      for (std::size_t j = 0; j < width; ++j) {
        double dh = 0;
        for (std::size_t v = 0; v < words; ++v) {
          const double d = (probability[v] - (v == target ? 1 : 0)) / n;
          gradients[output][v * width + j] += d * h[j];
          dh += d * w[output][v * width + j];
        }
        gradients[embedding][word * width + j] += dh * factor[j];
        for (int p = 0; p < parts; ++p) gradients[scale + p][j] += dh * h[j] / w[scale + p][j];
      }
    }
    for (const auto& [id, g] : gradients)
      for (const double x : g) norm += x * x;
    norm = std::sqrt(norm);
  }
};

struct outcome {
  hd::train::step_result first;
  tensors gradients;
  std::vector<double> losses, norms;
  double held_out = 0;
};

outcome train(const mesh_type& mesh, double clip) {
  outcome all;
  std::mutex one_at_a_time;
  const int parts = mesh.extent<line>();
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    hd::train::options<bigram_config> o;
    o.batch = batch;
    o.microbatches = 2;
    o.steps = 3;
    o.clip_norm = clip;
    o.threads_per_rank = 1;
    auto trainer = hd::train::make_trainer<strategy>(bigrams{}, world, o);
    const hd::train::step_result first = trainer.compute_gradients(data{});
    {
      const std::lock_guard lock(one_at_a_time);
      all.first = first;
      for (int k = 0; k < trainer.stages(); ++k) {
        auto& stage = trainer.stage(k);
        for (const auto& p : stage.parameters()) {
          std::vector<double>& to = all.gradients[p.id];
          to.resize(p.id < scale ? words * width : width);
          hd::train::detail::for_owned_part(p, trainer.optimizer_state(k), [&](auto begin, auto count, auto) {
            for (auto i = begin; i < begin + count; ++i)
              to[static_cast<std::size_t>(stage.whole_index(static_cast<int>(i)))] =
                  stage.gradients()[static_cast<std::size_t>(p.offset + i)];
          });
        }
      }
    }
    std::vector<double> losses, norms;
    trainer.run(data{}, [&](const hd::train::step_report& r) {
      losses.push_back(r.loss);
      norms.push_back(r.gradient_norm);
    });
    const double held_out = trainer.validate(data{});
    const std::lock_guard lock(one_at_a_time);
    all.losses = losses;
    all.norms = norms;
    all.held_out = held_out;
  });
  REQUIRE(static_cast<int>(all.gradients.size()) == parts + 2);
  return all;
}

void check_close(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    most = std::isnan(difference) ? std::numeric_limits<double>::infinity() : (std::max)(most, difference);
  }
  CHECK(most < 1e-12);
}

}  // namespace

TEST_CASE("axes of any name split samples, width and pipeline, and every mesh trains one model", "[train][axes]") {
  struct extents {
    int rows, line, columns, slices;
  };
  const double clip = GENERATE(0.05, 10.0);  // steps are taken back, or not
  for (const int parts : {1, 2, 3}) {
    const by_definition expected(data{}, parts, 1);
    const outcome one = train(mesh_type::from_extents({1, 1, parts, 1, 1}), clip);
    for (const extents e : {extents{2, parts, 1, 1}, extents{4, parts, 1, 1}, extents{2, parts, 2, 1},
                            extents{1, parts, 3, 2}, extents{2, parts, 2, 2}, extents{1, parts, 1, 3}}) {
      CAPTURE(e.rows, e.line, e.columns, e.slices, clip);
      const outcome got = train(mesh_type::from_extents({e.rows, 1, e.line, e.columns, e.slices}), clip);
      CHECK(got.first.loss == Approx(expected.loss).epsilon(1e-12));
      CHECK(got.first.gradient_norm == Approx(expected.norm).epsilon(1e-12));
      for (const auto& [id, g] : expected.gradients) {
        CAPTURE(id);
        check_close(got.gradients.at(id), g);
      }
      check_close(got.losses, one.losses);
      check_close(got.norms, one.norms);
      CHECK(got.held_out == Approx(one.held_out).epsilon(1e-12));
    }
  }
}

namespace {
using hd::dim::split;
using on_slices =
    hd::sharding<split<hd::dim::samples, rows>, split<hd::dim::samples, columns>, split<hd::dim::heads, slices>,
                 split<hd::dim::ffn, slices>, split<hd::dim::vocabulary, slices>>;
struct gpt2 : hd::model::gpt2<double, on_slices> {
  template <class World, class Backend>
  using stage =
      hd::model::language_stage<hd::model::gpt2<double, on_slices>, World, Backend, hd::activations::keep, line>;
};
}  // namespace

TEST_CASE("GPT-2 trains on axes of any name, and two data axes train as one", "[train][axes]") {
  using model = gpt2;
  using strategy = hd::strategy<mesh_type, hd::pipeline_axis<line>>;
  struct run {
    std::vector<double> losses, gradients;
  };
  const auto train = [](const mesh_type& mesh) {
    run all;
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      hd::train::options<model::config> o;
      o.model = {.layers = 2, .heads = 2, .width = 8, .context = positions, .vocabulary = words};
      o.batch = batch;
      o.microbatches = 2;
      o.steps = 2;
      o.clip_norm = 0.5;
      o.threads_per_rank = 1;
      auto trainer = hd::train::make_trainer<strategy>(model{}, world, o);
      std::vector<double> seen;
      trainer.run(data{}, [&](const hd::train::step_report& r) { seen.insert(seen.end(), {r.loss, r.gradient_norm}); });
      seen.push_back(trainer.validate(data{}));
      if (world.rank() != 0) return;
      all.losses = seen;
      const std::span<const double> g = trainer.stage().gradients();
      all.gradients.assign(g.begin(), g.end());
    });
    return all;
  };
  const run alone = train(mesh_type::from_extents({1, 1, 1, 1, 1}));
  for (const int parts : {1, 2})
    for (const int slices : {1, 2}) {
      CAPTURE(parts, slices);
      const run one = train(mesh_type::from_extents({4, 1, parts, 1, slices}));
      const run two = train(mesh_type::from_extents({2, 1, parts, 2, slices}));
      check_close(one.losses, alone.losses);
      check_close(two.losses, alone.losses);
      check_close(two.gradients, one.gradients);
      if (parts * slices == 1) check_close(two.gradients, alone.gradients);
    }
}

TEST_CASE("the state of a stage with records of its own is checked, and can be saved if they lie in boxes",
          "[train][axes]") {
  using world_type = hd::world<hd::threads, mesh_type>;
  using entry = bigram_stage<world_type, hd::compute::host<>>::entry;
  struct boxed : entry {
    std::array<std::int64_t, 2> logical, local, start;
  };
  STATIC_REQUIRE(hd::train::detail::lies_in_box<hd::model::parameter>);
  STATIC_REQUIRE(hd::train::detail::lies_in_box<boxed>);
  STATIC_REQUIRE_FALSE(hd::train::detail::lies_in_box<entry>);
  std::string text;
  hd::launch<hd::threads>(mesh_type::from_extents({1, 1, 1, 1, 1}), [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(bigrams{}, world, hd::train::options<bigram_config>{});
    hd::train::require_finite_state(trainer, "before");
    auto& stage = trainer.stage(0);
    stage.weights()[static_cast<std::size_t>(stage.parameters()[1].offset)] = std::numeric_limits<double>::quiet_NaN();
    try {
      hd::train::require_finite_state(trainer, "after");
    } catch (const hd::numeric_error& e) {
      text = e.what();
    }
  });
  CHECK_THAT(text, Catch::StartsWith("heddle: after: ") && Catch::Contains("scale.0"));
}

TEST_CASE("what an axis is for follows from the stage's layouts", "[train][axes]") {
  using hd::type_list;
  using world = hd::world<hd::threads, mesh_type>;
  using facts = hd::train::detail::training_axes<bigram_stage<world, hd::compute::host<>>, mesh_type, line>;
  STATIC_REQUIRE(std::is_same_v<facts::samples, type_list<rows, columns>>);
  STATIC_REQUIRE(std::is_same_v<facts::gradients, type_list<rows, columns>>);
  STATIC_REQUIRE(std::is_same_v<facts::inside, type_list<mine, slices>>);
  STATIC_REQUIRE(std::is_same_v<facts::beside, type_list<mine, slices>>);
  STATIC_REQUIRE(std::is_same_v<facts::repeats, type_list<mine, slices>>);
  STATIC_REQUIRE(hd::train::trainable_model<bigrams, world, hd::compute::host<>>);
  STATIC_REQUIRE_FALSE(hd::train::trainable_model<int, world, hd::compute::host<>>);
}

TEST_CASE("an axis of several ranks that the stage does not name is refused when the trainer is made",
          "[train][axes]") {
  std::vector<std::string> texts(2);
  hd::launch<hd::threads>(mesh_type::from_extents({1, 2, 1, 1, 1}), [&](auto& world) {
    try {
      hd::train::options<bigram_config> o;
      auto trainer = hd::train::make_trainer<strategy>(bigrams{}, world, o);
    } catch (const hd::config_error& e) {
      texts[static_cast<std::size_t>(world.rank())] = e.what();
    }
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text, Catch::Contains("2 ranks along the axis"));
    CHECK_THAT(text, Catch::Contains("mine"));
  }
}
