// heddle/train/save.hpp: saves a trainer's state and brings it back, on the same mesh or another one.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/mixed_save.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/optimizer.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// Cuts elements [begin, end) of a row-major box with these extents into boxes, in order: at most two per dimension, one
// at either end. `f(start, extents, count)` gets the first index and the extents of each.
template <class F>
void for_each_box(std::span<const std::int64_t> extents, std::int64_t begin, std::int64_t end, F&& f) {
  const std::size_t rank = extents.size();
  while (begin < end) {
    // The widest slab of whole inner boxes that starts at `begin` and stays inside: dimension `d` advances by `count`.
    std::int64_t inner = 1;
    std::size_t d = rank;
    std::int64_t slab = 1;
    std::int64_t count = 1;
    while (d > 0) {
      const std::int64_t index = begin / inner % extents[d - 1];
      const std::int64_t fits = (std::min)(extents[d - 1] - index, (end - begin) / inner);
      if (begin % inner != 0 || fits == 0) break;
      slab = inner;
      count = fits;
      --d;
      if (index != 0 || fits < extents[d]) break;
      inner *= extents[d];
    }
    std::vector<std::int64_t> start(rank), size(rank, 1);
    std::int64_t rest = begin;
    for (std::size_t i = rank; i-- > 0;) {
      start[i] = rest % extents[i];
      rest /= extents[i];
    }
    std::int64_t below = 1;
    for (std::size_t i = rank; i-- > 0 && below < slab;) {
      size[i] = extents[i];
      below *= extents[i];
    }
    if (rank > 0) size[d] = count;
    f(start, size, slab * count);
    begin += slab * count;
  }
}

// The part of tensor `p` at [first, first + count) of the rank's part, as boxes of the whole tensor.
template <class Parameter, class F>
void for_each_region(const Parameter& p, std::int64_t first, std::int64_t count, F&& f) {
  std::int64_t at = first;
  for_each_box(p.local, first, first + count, [&](const auto& start, const auto& extents, std::int64_t n) {
    io::tensor_region region;
    region.global.assign(p.logical.begin(), p.logical.end());
    region.local.assign(extents.begin(), extents.end());
    for (std::size_t d = 0; d < p.start.size(); ++d) region.offset.push_back(p.start[d] + start[d]);
    f(region, at, n);
    at += n;
  });
}

// The same of what this rank keeps of its weights, `elements` of them; `f` gets places in these.
template <class Parameter, class Optimizer, class F>
void for_each_kept_region(const Parameter& p, const Optimizer& optimizer, std::size_t elements, F&& f) {
  for_kept_part(p, optimizer.weights_begin(), elements, [&](std::int64_t first, std::int64_t count, std::int64_t in) {
    for_each_region(p, first, count, [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
      f(region, static_cast<std::size_t>(in + at - first), static_cast<std::size_t>(n));
    });
  });
}

// What this rank writes of one stage: each logical element once over all ranks.
template <class Stage, class Optimizer>
void write_stage(io::checkpoint_writer& writer, Stage& stage, Optimizer& optimizer, bool weights_here,
                 bool moments_here) {
  const auto all_weights = read_of_stage(stage, optimizer.weights_of(stage));
  const auto first_moments = read_of_stage(stage, optimizer.first_moment());
  const auto second_moments = read_of_stage(stage, optimizer.second_moment());
  const auto weights = all_weights.elements();
  for (const auto& p : stage.parameters()) {
    if (!p.counted || p.count == 0) continue;  // another rank holds the same copy
    if (weights_here)
      for_each_kept_region(p, optimizer, weights.size(), [&](const io::tensor_region& region, auto at, auto n) {
        writer.add("weight/" + p.name, weights.subspan(at, n), region);
      });
    if (!moments_here) continue;
    for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
      for_each_region(p, first, count, [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
        const auto from = static_cast<std::size_t>(in_share + at - first);
        const auto length = static_cast<std::size_t>(n);
        writer.add("first_moment/" + p.name, first_moments.elements().subspan(from, length), region);
        writer.add("second_moment/" + p.name, second_moments.elements().subspan(from, length), region);
      });
    });
  }
}

template <class Stage, class Optimizer>
void read_stage(const io::checkpoint_reader& reader, Stage& stage, Optimizer& optimizer) {
  auto all_weights = written_of_stage(stage, optimizer.weights_of(stage));
  auto first_moments = written_of_stage(stage, optimizer.first_moment());
  auto second_moments = written_of_stage(stage, optimizer.second_moment());
  const auto weights = all_weights.elements();
  for (const auto& p : stage.parameters()) {
    if (p.count == 0) continue;
    for_each_kept_region(p, optimizer, weights.size(), [&](const io::tensor_region& region, auto at, auto n) {
      reader.read("weight/" + p.name, weights.subspan(at, n), region);
    });
    for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
      for_each_region(p, first, count, [&](const io::tensor_region& region, std::int64_t at, std::int64_t n) {
        const auto to = static_cast<std::size_t>(in_share + at - first);
        const auto elements = static_cast<std::size_t>(n);
        reader.read("first_moment/" + p.name, first_moments.elements().subspan(to, elements), region);
        reader.read("second_moment/" + p.name, second_moments.elements().subspan(to, elements), region);
      });
    });
  }
  all_weights.finish();
  first_moments.finish();
  second_moments.finish();
}

}  // namespace detail

namespace detail {

// With `post_validation` a step may wait for its gradient norm: its weights may yet be taken back.
template <class Trainer>
void refuse_ahead(const Trainer& trainer) {
  if (trainer.is_ahead())
    throw config_error(
        "heddle: the gradient norm of the last step is still on its way; call finish_step() before a save");
}

// 128 random bits: no two runs have the same.
inline std::string new_run_name() {
  std::random_device device;
  std::string name;
  for (int i = 0; i < 2; ++i) name += io::to_hex((std::uint64_t{device()} << 32) | device());
  return name;
}

// What `work` finds out or does on rank 0; its `io_error` is thrown on all ranks. Returns its text to all.
template <communicator Communicator, class Work>
std::string on_first_rank(Communicator& all, Work&& work) {
  std::string text, fault;
  try {
    if (all.rank() == 0) text = work();
  } catch (const io_error& e) {
    fault = e.what();
  }
  throw_together<io_error>(all, fault);
  auto length = static_cast<std::int64_t>(text.size());
  all.broadcast(std::span<std::int64_t>(&length, 1), 0);
  text.resize(static_cast<std::size_t>(length));
  if (length > 0) all.broadcast(std::span<char>(text), 0);
  return text;
}

}  // namespace detail

/// Claims `folder` for the saves of one run, and probes on every rank's machine that they can be written. Called on all
/// ranks of a world together, before the first step. Rank 0 holds the claim as long as it keeps what this returns; the
/// others get an empty object. A claim ends with its process, however that ends.
/// Errors: `io_error` on all ranks, the same: another run is saving there, or nothing can be saved, and why.
template <class World>
io::save_folder claim_saves(World& world, const std::filesystem::path& folder) {
  auto& all = world.control();
  io::save_folder claimed;
  const std::string first = detail::on_first_rank(all, [&] {
    claimed = io::save_folder(folder);
    return io::detail::this_process();
  });
  std::string fault;
  try {
    if (io::detail::this_process() != first) io::probe_folder(folder, world.rank());
  } catch (const io_error& e) {
    fault = std::string(e.what()) + ", rank " + std::to_string(world.rank());
  }
  detail::throw_together<io_error>(all, fault);
  return claimed;
}

/// What a save is told beside the trainer's own state.
struct save_facts {
  std::uint64_t corpus = 0;  ///< fingerprint of the data; a resume with other data is refused
  std::string order{};       ///< how samples are drawn (seed, context, held-out part); a resume with another is refused
  int keep = 2;              ///< complete saves of this run that stay
};

/// Saves weights, masters where a `precision` keeps them, both moments and the position of a training run into
/// `folder`/step-N. Called on all ranks together.
/// Every logical element is written once, by the lowest rank that holds it; a save is complete or it is not there,
/// whenever the process is killed. A save says nothing of stages: another schedule may go on from it. Older saves are
/// removed beyond `facts.keep` if this run wrote them (it or what it was resumed from), and no others.
/// Errors: `io_error` on the rank that failed; older saves stay as they were. `numeric_error` on all ranks, before
/// anything is written, if weights or moments are not finite. `config_error` while a step waits for its gradient norm
/// (`post_validation`).
template <class Trainer>
void save(Trainer& trainer, const std::filesystem::path& folder, const save_facts& facts = {}) {
  using scalar = typename Trainer::scalar;
  detail::refuse_ahead(trainer);
  auto& world = trainer.ranks();
  auto& all = world.control();
  require_finite_state(trainer, "step " + std::to_string(trainer.steps_done()) + " is not saved, older saves stay");
  io::checkpoint_writer writer(folder, trainer.steps_done(), world.rank());
  for (int k = 0; k < trainer.stages(); ++k)
    detail::for_each_bucket(
        trainer.stage(k), trainer.optimizer_state(k), [&](auto& stage, auto& optimizer, auto bucket) {
          // What is whole is the same on every rank of the group; a share is held once.
          const bool first = detail::group_of_bucket<decltype(bucket)::value>(trainer.gradient_group()).rank() == 0;
          detail::write_stage(writer, stage, optimizer, Trainer::zero_stage >= 3 || first,
                              Trainer::zero_stage >= 1 || first);
        });
  const io::rank_file mine = writer.finish();
  std::vector<io::rank_file> files(static_cast<std::size_t>(world.rank() == 0 ? world.size() : 0));
  all.gather(std::span<const io::rank_file>(&mine, 1), std::span<io::rank_file>(files), 0);
  if (world.rank() == 0) {
    io::manifest manifest;
    manifest.step = trainer.steps_done();
    manifest.seed = trainer.options().seed;
    manifest.position.consumed = trainer.samples_consumed();
    manifest.corpus = facts.corpus;
    manifest.mesh = to_string(world.mesh());
    if (!facts.order.empty()) manifest.facts["order"] = facts.order;
    if (!trainer.run_name()) trainer.set_run_name(detail::new_run_name());
    if (!trainer.run_name()->empty()) manifest.facts["run"] = *trainer.run_name();
    manifest.config = to_string(trainer.options().model) + " " + std::string(io::dtype_name<scalar>()) +
                      detail::saved_types<typename Trainer::optimizer_type>::words();
    manifest.files = std::move(files);
    io::commit(folder, std::move(manifest), {.keep = facts.keep});
  }
  all.barrier();  // nobody goes on before the save is complete
}

/// What `resume` did.
struct resume_result {
  bool resumed = false;  ///< false: no complete save there
  std::int64_t step = 0;
  std::string mesh{};                  ///< of the run that saved
  std::vector<std::string> skipped{};  ///< incomplete or damaged saves that were passed over, on rank 0
};

/// Brings back the newest complete save in `folder`. Called on all ranks together. On the mesh that saved, the run
/// continues bit for bit; on another mesh it continues the same training with that mesh's rounding.
/// With a `precision`, a save made without one is converted: its weights become the masters. One made with other types of
/// weights, masters or moments is refused; those of reduced gradients and products, and how is rounded, may differ.
/// Errors, on all ranks: `io_error` if there are saves and none can be read, with the reasons; `config_error` if the
/// save is of another model, element types or data; `numeric_error` if its weights or moments are not finite, or a
/// second moment is negative.
template <class Trainer>
resume_result resume(Trainer& trainer, const std::filesystem::path& folder, const save_facts& facts = {}) {
  using scalar = typename Trainer::scalar;
  detail::refuse_ahead(trainer);
  auto& world = trainer.ranks();
  auto& all = world.control();
  resume_result result;

  // One rank looks, so that all take the same save.
  const std::string path = detail::on_first_rank(all, [&] {
    io::search_result found = io::latest(folder);
    io::require_readable(found, folder);
    result.skipped = std::move(found.skipped);
    return found.save ? found.save->path.string() : std::string();
  });
  if (path.empty()) return result;

  const io::checkpoint_reader reader{std::filesystem::path(path)};
  const io::manifest& manifest = reader.manifest();
  const std::string plain = to_string(trainer.options().model) + " " + std::string(io::dtype_name<scalar>());
  const std::string config = plain + detail::saved_types<typename Trainer::optimizer_type>::words();
  if (manifest.config != config && manifest.config != plain)
    throw config_error("heddle: '" + path + "' is a save of " + manifest.config + "; this run trains " + config);
  if (facts.corpus != 0 && manifest.corpus != 0 && manifest.corpus != facts.corpus)
    throw config_error("heddle: '" + path + "' was trained on other data (fingerprint " + io::to_hex(manifest.corpus) +
                       ", this data has " + io::to_hex(facts.corpus) + "); give the same data, or start anew");

  if (const auto order = manifest.facts.find("order");
      !facts.order.empty() && order != manifest.facts.end() && order->second != facts.order)
    throw config_error("heddle: '" + path + "' drew its samples by " + order->second +
                       "; this run would draw them by " + facts.order + ", and repeat some and lose others");

  for (int k = 0; k < trainer.stages(); ++k)
    detail::for_each_bucket(trainer.stage(k), trainer.optimizer_state(k),
                            [&](auto& stage, auto& optimizer, auto) { detail::read_stage(reader, stage, optimizer); });
  require_finite_state(trainer, "'" + path + "' is no save to go on from");
  trainer.set_position(manifest.step, manifest.position.consumed);
  trainer.set_run_name(io::detail::run_of(manifest));
  result.resumed = true;
  result.step = manifest.step;
  result.mesh = manifest.mesh;
  all.barrier();
  return result;
}

}  // namespace heddle::inline v0::train
