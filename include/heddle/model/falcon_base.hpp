// heddle/model/falcon_base.hpp: embedding, head and final norm for a drafter of Falcon.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::model {

namespace detail {
// Embedding, head and final norm of a model.
inline constexpr std::array<std::string_view, 3> falcon_base_names{"model.embed_tokens.weight", "lm_head.weight",
                                                                   "model.norm.weight"};

// Which elements of a tensor of the model `take` has had. `left`: those that it has not, -1 before one was looked for.
struct falcon_parts_taken {
  std::int64_t left = -1;
  std::vector<bool> there{};
  void begin(std::int64_t count) {
    if (left >= 0) return;
    left = count;
    there.assign(static_cast<std::size_t>(count), false);
  }
  void add(std::int64_t first, std::int64_t length, std::int64_t count) {
    begin(count);
    if (left == 0) return;
    for (std::int64_t i = first; i < first + length; ++i)
      if (!there[static_cast<std::size_t>(i)]) {
        there[static_cast<std::size_t>(i)] = true;
        --left;
      }
    if (left == 0) there = std::vector<bool>();  // `= {}` would keep the memory
  }
};
}  // namespace detail

/// What a drafter has of its model, whole. Shapes: embedding and head [vocabulary, width], final_norm [width]; the head is empty where it is the embedding.
template <class T>
struct falcon_base {
  std::vector<T> embedding{}, head{}, final_norm{};
};

/// Gathers embedding, head and final norm of a model from the stages of all ranks to rank 0, over the control plane. A collective: every rank of the world calls it with its own stage, those of an
/// `infer::model_runner` before they `follow`. On other ranks the result is empty.
/// Errors: `config_error` for weights that are not here, and on rank 0 for a model that has no embedding or no
/// final norm of these names (`model.embed_tokens.weight`, `model.norm.weight`), or not all of one.
template <class Stage, class World>
falcon_base<typename Stage::scalar> gather_falcon_base(Stage& stage, World& world) {
  using T = typename Stage::scalar;
  detail::require_weights_here(stage, "gather_falcon_base");
  constexpr int tag = 7201;
  auto& control = world.control();
  falcon_base<T> base;
  std::string wrong;  // said when all messages have come
  const std::array<std::vector<T>*, 3> wholes{&base.embedding, &base.head, &base.final_norm};
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    std::array<std::int64_t, 3> sizes{};  // elements of the whole, those that a rank has, and runs of them
    std::vector<std::int64_t> runs;       // of each the first element of the whole, and how many
    std::vector<T> values;
    const auto look = [&](const std::vector<parameter>& table, auto weights) {
      for (const parameter& p : table) {
        if (p.name != detail::falcon_base_names[i] || !p.counted) continue;
        const auto here = part_of_row<typename Stage::space>(weights, p.offset, p.count);
        const read_on_host<T, typename Stage::space> held(stage.queue(), here);
        for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          runs.insert(runs.end(), {global, length});
          const auto from = held.elements().begin() + local;
          values.insert(values.end(), from, from + length);
        });
        sizes[0] = p.global_count();
      }
    };
    look(stage.parameters(), stage.weights());
    look(stage.frozen_parameters(), stage.frozen_weights());
    sizes[1] = std::ssize(values);
    sizes[2] = std::ssize(runs) / 2;
    if (world.rank() != 0) {
      control.send(std::span<const std::int64_t>(sizes), 0, tag);
      if (values.empty()) continue;
      control.send(std::span<const std::int64_t>(runs), 0, tag);
      control.send(std::span<const T>(values), 0, tag);
      continue;
    }
    std::vector<T>& whole = *wholes[i];
    std::vector<bool> there;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank > 0) {
        control.recv(std::span<std::int64_t>(sizes), rank, tag);
        runs.resize(static_cast<std::size_t>(2 * sizes[2]));
        values.resize(static_cast<std::size_t>(sizes[1]));
        if (values.empty()) continue;
        control.recv(std::span<std::int64_t>(runs), rank, tag);
        control.recv(std::span<T>(values), rank, tag);
      }
      whole.resize((std::max)(whole.size(), static_cast<std::size_t>(sizes[0])));
      there.resize(whole.size());
      auto from = values.begin();
      for (std::size_t r = 0; r < runs.size(); r += 2) {
        std::copy_n(from, runs[r + 1], whole.begin() + runs[r]);
        std::fill_n(there.begin() + runs[r], runs[r + 1], true);
        from += runs[r + 1];
      }
    }
    const auto found = std::count(there.begin(), there.end(), true);
    if (wrong.empty() && ((whole.empty() && i != 1) || found != std::ssize(whole)))
      wrong = "heddle: gather_falcon_base: the ranks should have all of '" + std::string(detail::falcon_base_names[i]) +
              "', got " + std::to_string(found) + " of " + std::to_string(whole.size()) + " elements";
  }
  if (!wrong.empty()) throw config_error(wrong);
  return base;
}

}  // namespace heddle::inline v0::model
