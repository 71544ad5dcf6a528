// heddle/train/save.hpp: saves a trainer's state and brings it back, on any mesh.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/train/buckets.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/progress.hpp>
#include <heddle/train/saved_frozen.hpp>
#include <heddle/train/saved_stage.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// With `post_validation` a step may wait for its gradient norm: its weights may yet be taken back.
template <class Trainer>
void refuse_ahead(const Trainer& trainer) {
  if (trainer.is_ahead())
    throw config_error(
        "heddle: the gradient norm of the last step is still on its way; call finish_step() before a save");
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

/// State of somebody else in the saves of a trainer, by `save` and `resume`: there when the trainer's is, or not.
/// Errors: `io_error`.
class state_beside {
 public:
  virtual void write(io::part_writer& writer) = 0;               ///< this rank's
  virtual void read(const io::checkpoint_reader& reader) = 0;    ///< this rank's share
  virtual void gather(const io::checkpoint_reader& reader) = 0;  ///< on all ranks together, when all have read

 protected:
  ~state_beside() = default;
};

/// What a save is told beside the trainer's own state.
struct save_facts {
  std::uint64_t corpus = 0;  ///< fingerprint of the data; a resume with other data is refused
  std::string order{};       ///< how samples are drawn (seed, context, held-out part); a resume with another is refused
  int keep = 2;              ///< complete saves of this run that stay
  /// Samples of a step at the most, where each has consumed at least one: the position of a save that cannot be that
  /// of so many steps is refused. 0: any position.
  std::int64_t most_batch = 0;
  /// Of rank 0: numbers of whoever trains, kept in the same save as the tensor "words"; empty: none.
  std::span<const std::int64_t> words{};
  state_beside* beside = nullptr;  ///< on all ranks, or on none
};

/// What `save` did beside saving.
struct save_result {
  /// On rank 0: a sentence for each old save whose folder stays, with the files in it that no save wrote.
  std::vector<std::string> left{};
};

namespace detail {

// The manifest of a save, on the rank that completes it: `m` has what depends on the trainer's type. The first save of
// a run names it.
HEDDLE_INLINE std::string random_name();
HEDDLE_INLINE io::manifest named_manifest(progress& run, const save_facts& facts, io::manifest m);
// Errors: `config_error` for a save of another training, `io_error` for a position that steps cannot lead to.
// `config`: what this one trains, and `plain`, without a `precision`.
HEDDLE_INLINE void require_same_training(const io::checkpoint_reader& reader, const std::string& config,
                                         const std::string& plain, const save_facts& facts);

// Reads a save back, each file by one of the ranks: what is wrong with it, on all of them, or nothing.
template <communicator Communicator>
std::string fault_of_files(Communicator& all, const io::detail::save_files& save) {
  std::string fault;
  try {
    const io::manifest m = save.from != nullptr ? save.about : io::require_save(save.path, io::verify::manifest);
    io::detail::require_files(save, m, io::verify::contents, static_cast<std::size_t>(all.rank()),
                              static_cast<std::size_t>(all.size()));
  } catch (const io_error& e) {
    fault = e.what();
  }
  return first_fault(all, fault);
}

// Completes a save of which all ranks have written theirs. Returns when it is there and has been read back. Older ones
// go, or are kept, by their sizes: this one is known to be good.
template <communicator Communicator>
save_result finish_save(Communicator& all, progress& run, io::rank_file mine, const std::filesystem::path& folder,
                        const save_facts& facts, io::manifest m) {
  save_result result;
  m.files.resize(static_cast<std::size_t>(all.rank() == 0 ? all.size() : 0));
  all.gather(std::span<const io::rank_file>(&mine, 1), std::span<io::rank_file>(m.files), 0);
  const io::commit_options options{.keep = facts.keep, .left = &result.left, .older = io::verify::sizes};
  const std::string path = on_first_rank(all, [&] {
    m = named_manifest(run, facts, std::move(m));
    return io::detail::publish(folder, m, options).string();
  });
  if (const std::string fault = fault_of_files(all, std::filesystem::path(path)); !fault.empty()) throw io_error(fault);
  on_first_rank(all, [&] {
    io::detail::retire(folder, m, options);
    return std::string();
  });
  return result;
}

// The newest complete save by its sizes, found by one rank, so that all take the same; nothing if there is none.
// `failed`: those that are known to be damaged.
template <communicator Communicator>
std::string find_save(Communicator& all, const std::filesystem::path& folder, std::vector<std::string>& skipped,
                      const io::failed_saves& failed) {
  return on_first_rank(all, [&] {
    io::search_result found = io::latest(folder, io::verify::sizes, failed);
    io::require_readable(found, folder);
    skipped = std::move(found.skipped);
    return found.save ? found.save->path.string() : std::string();
  });
}
// The newest that the ranks have read, each file by one of them.
template <communicator Communicator>
std::string find_checked_save(Communicator& all, const std::filesystem::path& folder,
                              std::vector<std::string>& skipped) {
  for (io::failed_saves failed;;) {
    const std::string path = find_save(all, folder, skipped, failed);
    const std::string fault = path.empty() ? std::string() : fault_of_files(all, std::filesystem::path(path));
    if (fault.empty()) return path;
    failed[path] = fault;
  }
}

// The model and the element types of its weights and activations, as a manifest has them.
template <class Trainer>
std::string model_of(Trainer& trainer) {
  return text_of({to_string(trainer.options().model), ' ', io::dtype_name<typename Trainer::scalar>()});
}

// Calls f(stage, optimizer, group) for each bucket of this rank's stages, in an order that is the same on the ranks of
// its group.
template <class Trainer, class F>
void each_saved_bucket(Trainer& trainer, F&& f) {
  for (int k = 0; k < trainer.stages(); ++k)
    for_each_bucket(trainer.stage(k), trainer.optimizer_state(k), [&](auto& stage, auto& optimizer, auto bucket) {
      f(stage, optimizer, group_of_bucket<decltype(bucket)::value>(trainer.gradient_group()));
    });
}

// What this rank writes of a trainer's state. `counted`: as for `write_stage`; without, the rank's file has all that it
// reads.
template <class Trainer>
void write_state(io::part_writer& writer, Trainer& trainer, const save_facts& facts, bool counted = true) {
  for (int k = 0; k < trainer.stages(); ++k) write_frozen(writer, trainer.stage(k), counted);
  each_saved_bucket(trainer, [&](auto& stage, auto& optimizer, auto& group) {
    write_stage(writer, stage, optimizer, group, counted);
  });
  if (trainer.ranks().rank() == 0 && !facts.words.empty()) writer.add("words", facts.words);
}
// What this rank reads of it, and what ranks of a group then tell each other.
template <class Reader, class Trainer>
void read_shares(const Reader& reader, Trainer& trainer) {
  for (int k = 0; k < trainer.stages(); ++k) read_frozen(reader, trainer.stage(k));
  each_saved_bucket(trainer,
                    [&](auto& stage, auto& optimizer, auto& group) { read_stage(reader, stage, optimizer, group); });
}
template <class Reader, class Trainer>
void gather_shares(const Reader& reader, Trainer& trainer) {
  each_saved_bucket(trainer,
                    [&](auto& stage, auto& optimizer, auto& group) { gather_stage(reader, stage, optimizer, group); });
}
// What the manifest of a save has of its trainer's type.
template <class Trainer>
io::manifest manifest_of(Trainer& trainer) {
  io::manifest m;
  m.step = trainer.steps_done();
  m.seed = trainer.options().seed;
  m.mesh = to_string(trainer.ranks().mesh());
  using saved = saved_optimizer<typename Trainer::optimizer_type>;
  m.config = model_of(trainer) + saved::rule() + saved::types();
  return m;
}

}  // namespace detail

/// Saves weights, masters where a `precision` keeps them, both moments and the position of a training run into
/// `folder`/step-N. Called on all ranks together. The stages' parameters need `logical`, `local` and `start`, as
/// `model::parameter` has them; others are refused when compiled. `Trainer` derives from `progress`. Every logical
/// element is written once: of r ranks that hold the same copy of a flat buffer each writes an r-th. Each file is read
/// back by one rank. A save is complete or it is not there, whenever the process is killed. A save says nothing of
/// stages: another schedule may go on from it. Older saves are removed beyond `facts.keep` if this run wrote them (it
/// or what it was resumed from), and no others; files that no save wrote stay (`save_result::left`).
/// Errors: `io_error` on all ranks, the same; older saves stay as they were. `numeric_error` on all ranks, before
/// anything is written, if weights or moments are not finite. `config_error` while a step waits for its gradient norm
/// (`post_validation`).
template <class Trainer>
save_result save(Trainer& trainer, const std::filesystem::path& folder, const save_facts& facts = {}) {
  detail::refuse_ahead(trainer);
  auto& world = trainer.ranks();
  require_finite_state(trainer, "step " + std::to_string(trainer.steps_done()) + " is not saved, older saves stay");
  auto& all = world.control();
  io::rank_file mine;
  std::string fault;
  try {
    // An attempt that found no room for itself would leave none for this one.
    if (world.rank() == 0) io::detail::clear_attempts(folder, trainer.steps_done());
    io::checkpoint_writer writer(folder, trainer.steps_done(), world.rank());
    detail::write_state(writer, trainer, facts);
    if (facts.beside != nullptr) facts.beside->write(writer);
    mine = writer.finish();
  } catch (const io_error& e) {
    fault = e.what();
  }
  detail::throw_together<io_error>(all, fault);
  return detail::finish_save(all, trainer, mine, folder, facts, detail::manifest_of(trainer));
}

/// What `resume` did.
struct resume_result {
  bool resumed = false;  ///< false: no complete save there
  std::int64_t step = 0;
  std::string mesh{};                  ///< of the run that saved
  std::vector<std::string> skipped{};  ///< incomplete or damaged saves that were passed over, on rank 0
  std::int64_t bytes_read = 0;         ///< of weights and moments, by this rank
};

namespace detail {

// Opens a save on all ranks. Returns why it cannot be read, on all of them, or nothing. Errors: as `require_same_training`.
template <communicator Communicator>
std::string fault_of_opening(Communicator& all, const io::detail::save_files& save, const std::string& config,
                             const std::string& plain, const save_facts& facts,
                             std::optional<io::checkpoint_reader>& reader) {
  std::string fault;
  try {
    reader.emplace(save, io::verify::manifest);
  } catch (const io_error& e) {
    fault = e.what();
  }
  if (fault = first_fault(all, fault); fault.empty()) require_same_training(*reader, config, plain, facts);
  return fault;
}
// Behind the reading, where `fault` is this rank's: the first rank's, or that of the files where nothing has checked them.
template <communicator Communicator>
std::string fault_of_reading(Communicator& all, const io::detail::save_files& save, std::string fault,
                             const io::checkpoint_reader& reader, bool checked) {
  if (fault = first_fault(all, fault); !fault.empty() || checked) return fault;
  auto unchecked =
      static_cast<double>(reader.bytes_unchecked());  // a sum of doubles: every trainer has that of its losses
  all.all_reduce(std::span<double>(&unchecked, 1), plus{});
  return unchecked > 0 ? fault_of_files(all, save) : std::string();
}
HEDDLE_INLINE void note_resumed(progress& run, const io::checkpoint_reader& reader, resume_result& result);

// Goes on from a save whose sizes somebody has checked. Returns why it cannot be read, on all ranks the
// same, or nothing: then weights and moments are not those of a training. `checked`: so are its files. Each rank reads
// an r-th of what it holds like r - 1 others, and gets the rest from them. A part that is read whole is checked by
// that; the files are read for their checksums only where less of some part was wanted: on another mesh.
template <class Trainer>
std::string fault_of_resume(Trainer& trainer, const io::detail::save_files& save, const save_facts& facts,
                            resume_result& result, bool checked) {
  auto& all = trainer.ranks().control();
  using saved = saved_optimizer<typename Trainer::optimizer_type>;
  const std::string plain = model_of(trainer) + saved::rule();
  std::optional<io::checkpoint_reader> reader;
  std::string fault = fault_of_opening(all, save, plain + saved::types(), plain, facts, reader);
  if (!fault.empty()) return fault;
  try {
    read_shares(*reader, trainer);
    if (facts.beside != nullptr) facts.beside->read(*reader);
  } catch (const io_error& e) {
    fault = e.what();
  }
  if (fault = fault_of_reading(all, save, fault, *reader, checked); !fault.empty()) return fault;
  gather_shares(*reader, trainer);
  if (facts.beside != nullptr) facts.beside->gather(*reader);
  require_finite_state(trainer, "'" + save.path.string() + "' is no save to go on from");
  note_resumed(trainer, *reader, result);
  all.barrier();
  return {};
}
// The same of a save that all ranks have read. Errors: `io_error` on all ranks if it cannot be read any more.
template <class Trainer>
void resume_from(Trainer& trainer, const std::string& path, const save_facts& facts, resume_result& result) {
  refuse_ahead(trainer);
  if (const std::string fault = fault_of_resume(trainer, std::filesystem::path(path), facts, result, true);
      !fault.empty())
    throw io_error(fault);
}

}  // namespace detail

/// Brings back the newest complete save in `folder`. Called on all ranks together. On the mesh that saved, the run
/// continues bit for bit; on another mesh it continues the same training with that mesh's rounding.
/// The trainer and its stages are what `save` asks for.
/// With a `precision`, a save made without one is converted: its weights become the masters. One made with other types of
/// weights, masters or moments is refused; those of reduced gradients and products, and how is rounded, may differ.
/// A save that turns out to be damaged is passed over for the one before. Each rank reads its share of what others
/// hold, too, and gathers the rest.
/// Errors, on all ranks: `io_error` if there are saves and none can be read, with the reasons (weights and moments are
/// then undefined), or the position cannot be (`facts.most_batch`); `config_error` if the save is of another model,
/// element types or data; `numeric_error` if its weights or moments are not finite, or a second moment is negative.
template <class Trainer>
resume_result resume(Trainer& trainer, const std::filesystem::path& folder, const save_facts& facts = {}) {
  detail::refuse_ahead(trainer);
  resume_result result;
  for (io::failed_saves failed;;) {
    const std::string path = detail::find_save(trainer.ranks().control(), folder, result.skipped, failed);
    if (path.empty()) return result;
    const std::string fault = detail::fault_of_resume(trainer, std::filesystem::path(path), facts, result, false);
    if (fault.empty()) return result;
    failed[path] = fault;
  }
}

}  // namespace heddle::inline v0::train

#if defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/host_saves.hpp>
#endif

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/save.hpp>
#endif
