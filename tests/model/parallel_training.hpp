// tests/model/parallel_training.hpp: one training step of a language model on every rank of a mesh, compared with one rank.
#pragma once

#include "catch.hpp"
#include "support.hpp"
#include "transport.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/tied_gradients.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace model_test {

using hd::dp, hd::pp, hd::tp;
using parallel_backend = hd::compute::host<>;
using any_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;

/// A model, its samples, and how a rank cuts its share of them.
template <class Config>
struct model_case {
  Config config;
  int samples;
  std::vector<int> microbatches;  // samples of each but the last, which takes the rest
};

struct outcome {
  double loss = 0;
  double evaluated = 0;
  std::map<std::string, std::vector<double>> initial, gradients;
  std::vector<std::pair<std::string, std::vector<double>>> tied;  // name, the head's copy of the gradient
  std::vector<double> logits;
  std::int64_t counted = 0;
  std::vector<std::string> problems;

  // What other ranks have found. Each element is held by one rank, or by several that give parts of a sum.
  void add(outcome&& other) {
    loss += other.loss;
    evaluated += other.evaluated;
    counted += other.counted;
    for (const auto& [name, values] : other.initial) add(initial[name], values);
    for (const auto& [name, values] : other.gradients) add(gradients[name], values);
    add(logits, other.logits);
    tied.insert(tied.end(), other.tied.begin(), other.tied.end());
    problems.insert(problems.end(), other.problems.begin(), other.problems.end());
  }
  static void add(std::vector<double>& to, const std::vector<double>& values) {
    to.resize((std::max)(to.size(), values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) to[i] += values[i];
  }
  [[maybe_unused]] friend auto members(outcome& o) {
    return std::tie(o.loss, o.evaluated, o.initial, o.gradients, o.tied, o.logits, o.counted, o.problems);
  }
};

inline std::vector<double> whole_of(const md::parameter& p) {
  return std::vector<double>(static_cast<std::size_t>(p.global_count()));
}

inline void scatter_into(std::vector<double>& whole, const md::parameter& p, std::span<const double> flat) {
  md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i)
      whole[static_cast<std::size_t>(global + i)] += flat[static_cast<std::size_t>(p.offset + local + i)];
  });
}

/// What a group has been asked for: how often, and the elements of double that this rank has given to gathers and scatters.
struct calls {
  std::int64_t reduced = 0, gathered = 0, scattered = 0;
  std::int64_t elements_gathered = 0, elements_scattered = 0;
  friend bool operator==(const calls&, const calls&) = default;
  friend calls operator-(const calls& a, const calls& b) {
    return {a.reduced - b.reduced, a.gathered - b.gathered, a.scattered - b.scattered,
            a.elements_gathered - b.elements_gathered, a.elements_scattered - b.elements_scattered};
  }
  std::string text() const {
    std::string t;
    for (const std::int64_t n : {reduced, gathered, scattered, elements_gathered, elements_scattered})
      t += ' ' + std::to_string(n);
    return t;
  }
};
template <class Group>
calls calls_of(const Group& group) {
  const auto& n = group.counters();
  const auto both = [&](hd::comm_operation even, hd::comm_operation uneven) {
    return std::pair(n[even].calls + n[uneven].calls, (n[even].bytes + n[uneven].bytes) / 8);
  };
  const auto gathers = both(hd::comm_operation::all_gather, hd::comm_operation::all_gather_v);
  const auto scatters = both(hd::comm_operation::reduce_scatter, hd::comm_operation::reduce_scatter_v);
  return {n[hd::comm_operation::all_reduce].calls, gathers.first, scatters.first, gathers.second, scatters.second};
}
/// What a pass of `rows` rows over the axis that splits layers takes: so many all_reduces with whole rows of the stream; with rows
/// that are split as many reduce_scatters of all rows, and all_gathers of those that this rank has.
inline calls expected_calls(bool splits_rows, std::int64_t sums, std::int64_t gathers, std::int64_t others,
                            std::int64_t rows, std::int64_t own, std::int64_t width) {
  if (!splits_rows) return {sums + others, 0, 0, 0, 0};
  return {others, gathers, sums, gathers * own * width, sums * rows * width};
}

/// One step on every rank of `mesh`: all microbatches forward, then all backward, activations by direct messages.
template <class Model, class Mesh>
outcome train(const Mesh& mesh, const model_case<typename Model::config>& what, bool apart) {
  outcome result;
  std::mutex mutex;
  const typename Model::config& c = what.config;
  const auto tokens = random_ids(what.samples * c.context, c.vocabulary, 1);
  auto targets = random_ids(what.samples * c.context, c.vocabulary, 2);
  targets[3] = -100;
  const double scale = 1.0 / static_cast<double>(targets.size() - 1);

  transport_test::launch(mesh, [&](auto& world) {
    using whole_mesh = typename std::remove_cvref_t<decltype(world)>::mesh_type;
    const int stages = world.mesh().template extent_or_one<pp>();
    const int replicas = world.mesh().template extent_or_one<dp>();
    const int parts = world.mesh().template extent_or_one<tp>();
    int stage_index = 0, replica = 0, part = 0;
    if constexpr (whole_mesh::template has<pp>) stage_index = world.template coordinate<pp>();
    if constexpr (whole_mesh::template has<dp>) replica = world.template coordinate<dp>();
    if constexpr (whole_mesh::template has<tp>) part = world.template coordinate<tp>();
    auto& neighbours = world.template along_if<pp>();
    auto& tp_group = world.template along_if<tp>();
    std::vector<std::string> problems;
    const auto expect = [&](bool ok, const std::string& text) {
      if (!ok) problems.push_back("rank " + std::to_string(world.rank()) + ": " + text);
    };

    const hd::balanced_split share{what.samples, replicas};
    std::vector<std::array<std::int64_t, 2>> cuts;  // first sample, samples
    std::int64_t next = share.offset(replica), left = share.size(replica);
    for (const int wanted : what.microbatches) {
      const std::int64_t n = (std::min)(left, static_cast<std::int64_t>(wanted));
      cuts.push_back({next, n});
      next += n;
      left -= n;
    }
    cuts.push_back({next, left});
    const int microbatches = static_cast<int>(cuts.size());
    const auto batch_of = [&](int k) {
      const auto& cut = cuts[static_cast<std::size_t>(k)];
      const auto first = static_cast<std::size_t>(cut[0] * c.context), n = static_cast<std::size_t>(cut[1] * c.context);
      return md::batch<double>{std::span(tokens).subspan(first, n), std::span(targets).subspan(first, n),
                               static_cast<int>(cut[1]), scale};
    };

    parallel_backend kernels{1};
    const auto layers = md::split_layers(c.layers, stage_index, stages);
    typename Model::template stage<std::remove_cvref_t<decltype(world)>, parallel_backend> s(
        c, world, kernels, layers, microbatches, what.samples, apart ? microbatches : 0);
    s.initialize(11);
    // Biases away from zero, norms' weights away from one: every term of every gradient counts.
    for (const md::parameter& p : s.parameters()) {
      if (p.shape.size() != 1) continue;
      const auto noise = random_vector(p.global_count(), static_cast<std::uint64_t>(500 + p.id), 0.3);
      md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
        for (std::int64_t i = 0; i < length; ++i)
          s.weights()[static_cast<std::size_t>(p.offset + local + i)] += noise[static_cast<std::size_t>(global + i)];
      });
    }

    using layouts = typename std::remove_cvref_t<decltype(s)>::layouts;
    constexpr bool splits_rows = layouts::template splits_rows<md::dims<hd::dim::width>>;
    // A head that makes its logits again reads whole rows in backward_input, not in backward_weight.
    constexpr bool logits_again =
        md::layers::detail::makes_logits_in_chunks<typename std::remove_cvref_t<decltype(s)>::out_layer>;
    // All that one pass sends over tp: a block has two sums, and two places where the rows of all ranks come together.
    const auto expect_calls = [&](const calls& before, std::int64_t samples, std::int64_t sums, std::int64_t gathers,
                                  std::int64_t others, const char* of) {
      const std::int64_t rows = samples * c.context, own = hd::balanced_split{rows, parts}.size(part);
      const calls got = calls_of(tp_group) - before;
      const calls wanted =
          parts > 1 && samples > 0 ? expected_calls(splits_rows, sums, gathers, others, rows, own, c.width) : calls{};
      expect(got == wanted, std::string(of) + ": calls over tp are" + got.text() + ", expected" + wanted.text());
    };
    // Messages beside products are no collectives: what is left are the embedding's.
    constexpr std::int64_t moved = layouts::overlapped_pieces > 0 ? 0 : 1;
    const std::int64_t sums = moved * 2 * layers.count, of_head = s.is_last() ? moved : 0;
    const std::int64_t of_head_again = logits_again ? of_head : 0;
    const std::int64_t gathers_for_weights = sums + (s.is_first() ? 1 : 0) + of_head - of_head_again;
    std::vector<std::vector<double>> in(cuts.size()), out(cuts.size());
    double loss = 0;
    for (int k = 0; k < microbatches; ++k) {
      const auto i = static_cast<std::size_t>(k);
      const auto b = batch_of(k);
      const auto elements = static_cast<std::size_t>(s.boundary_elements(b.samples));
      if (!s.is_first()) {
        in[i].resize(elements);
        neighbours.recv(in[i], stage_index - 1);
      }
      if (!s.is_last()) out[i].resize(elements);
      const calls before = calls_of(tp_group);
      s.forward(k, b, in[i], out[i]);
      expect_calls(before, b.samples, sums + (s.is_first() ? 1 : 0), sums + of_head, s.is_last() ? 3 : 0, "forward");
      if (!s.is_last()) neighbours.send(out[i], stage_index + 1);
      loss += s.loss_sum(k);
    }
    for (int k = microbatches; k-- > 0;) {
      const auto i = static_cast<std::size_t>(k);
      const auto b = batch_of(k);
      if (!s.is_last()) neighbours.recv(out[i], stage_index + 1);
      const calls before = calls_of(tp_group);
      if (apart)
        s.backward_input(k, b, out[i], in[i]);
      else
        s.backward(k, b, out[i], in[i]);
      expect_calls(before, b.samples, sums + of_head, sums + of_head_again + (apart ? 0 : gathers_for_weights), 0,
                   "backward");
      if (!s.is_first()) neighbours.send(in[i], stage_index - 1);
    }
    if (apart)
      for (int k = 0; k < microbatches; ++k) {
        const std::int64_t before = tp_group.counters().collectives();
        const calls counted = calls_of(tp_group);
        s.backward_weight(k, batch_of(k));
        expect_calls(counted, batch_of(k).samples, 0, gathers_for_weights, 0, "backward_weight");
        expect(splits_rows || tp_group.counters().collectives() == before, "backward_weight communicates over tp");
      }
    if (parts == 1) expect(tp_group.counters().collectives() == 0, "communication along tp with one rank there");
    md::reduce_tied_gradients(s, world.template along_if<pp>(), kernels);

    // Evaluation of the replica's samples at once, and the logits of every sample's last position.
    const md::batch<double> all{std::span(tokens).subspan(static_cast<std::size_t>(share.offset(replica) * c.context),
                                                          static_cast<std::size_t>(share.size(replica) * c.context)),
                                std::span(targets).subspan(static_cast<std::size_t>(share.offset(replica) * c.context),
                                                           static_cast<std::size_t>(share.size(replica) * c.context)),
                                static_cast<int>(share.size(replica)), scale};
    const auto elements = static_cast<std::size_t>(s.boundary_elements(all.samples));
    std::vector<double> entering(s.is_first() ? 0 : elements), leaving(s.is_last() ? 0 : elements);
    std::vector<double> logits(s.is_last() ? static_cast<std::size_t>(all.samples * c.vocabulary) : 0);
    if (!s.is_first()) neighbours.recv(entering, stage_index - 1);
    const double evaluated = s.forward_only(all, entering, leaving);
    if (!s.is_last()) neighbours.send(leaving, stage_index + 1);
    s.last_logits(all, entering, leaving, logits);

    const std::lock_guard lock(mutex);
    result.problems.insert(result.problems.end(), problems.begin(), problems.end());
    if (s.is_last() && part == 0) {
      result.loss += loss;
      result.evaluated += evaluated;
      result.logits.resize(static_cast<std::size_t>(what.samples * c.vocabulary));
      std::copy(logits.begin(), logits.end(), result.logits.begin() + share.offset(replica) * c.vocabulary);
    }
    for (const md::parameter& p : s.parameters()) {
      if (p.offset >= *s.bucket_elements().begin()) {  // whose gradient is a sum over tp, too
        if (p.counted && replica == 0 && part == 0) {
          result.counted += p.count;
          scatter_into(result.initial.try_emplace(p.name, whole_of(p)).first->second, p, s.weights());
        }
        scatter_into(result.gradients.try_emplace(p.name, whole_of(p)).first->second, p, s.gradients());
      } else if (p.counted) {
        if (replica == 0) {
          result.counted += p.count;
          auto& w = result.initial.try_emplace(p.name, whole_of(p)).first->second;
          scatter_into(w, p, s.weights());
        }
        scatter_into(result.gradients.try_emplace(p.name, whole_of(p)).first->second, p, s.gradients());
      } else if (replicas == 1) {
        std::vector<double> copy(whole_of(p).size(), std::nan(""));  // of what this rank does not hold
        std::int64_t held = 0;
        md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          for (std::int64_t i = 0; i < length; ++i) {
            const double g = s.gradients()[static_cast<std::size_t>(p.offset + local + i)];
            copy[static_cast<std::size_t>(global + i)] = g;
            held += std::isnan(g) ? 0 : 1;
          }
        });
        if (held != p.count) result.problems.push_back(p.name + ": a copy's gradient is not a number");
        result.tied.emplace_back(p.name, std::move(copy));
      }
    }
  });
  transport_test::merge(result, [](outcome& all, outcome&& other) { all.add(std::move(other)); });
  return result;
}

/// `alone`: the mesh of one rank that is the reference, with the model `Reference`.
template <class Model, class Reference = Model, class Mesh, class Alone = hd::mesh<>>
void compare_with_one_rank(const Mesh& mesh, const model_case<typename Model::config>& what, bool apart = false,
                           const Alone& alone = {}) {
  if (mesh.size() > transport_test::most_ranks()) return;
  const outcome one = train<Reference>(alone, {what.config, what.samples, {}}, false);
  const outcome many = train<Model>(mesh, what, apart);
  for (const std::string& problem : many.problems) FAIL_CHECK(problem);
  CHECK(many.counted == md::layers::count_parameters(Model::describe(what.config)));
  CHECK(many.loss == Approx(one.loss).epsilon(1e-12));
  CHECK(many.evaluated == Approx(one.loss).epsilon(1e-12));
  CHECK(relative_error(many.logits, one.logits) < 1e-10);
  REQUIRE(many.gradients.size() == one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    CAPTURE(name);
    CHECK(many.initial.at(name) == one.initial.at(name));
    // Key biases have no gradient but rounding, so tensors are compared with their own greatest element or 1e-3.
    std::vector<double> expected = gradient, got = many.gradients.at(name);
    expected.push_back(1e-3);
    got.push_back(1e-3);
    CHECK(relative_error(got, expected) < 1e-10);
  }
  // Copies that do not count hold the same bits as the ones that do.
  for (const auto& [name, copy] : many.tied) {
    CAPTURE(name);
    const auto& counted = many.gradients.at(name);
    bool same = true;
    for (std::size_t i = 0; i < copy.size(); ++i) same = same && (copy[i] == counted[i] || std::isnan(copy[i]));
    CHECK(same);
  }
}

}  // namespace model_test
