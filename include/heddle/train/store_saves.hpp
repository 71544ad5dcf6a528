// heddle/train/store_saves.hpp: saves in a store, from a trainer or through a folder.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/save.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {
// The objects of a store, and why it did not give one: that is no fault of a save.
class watched_objects final : public io::object_reader {
 public:
  explicit watched_objects(const io::store& from) : from_(&from) {}
  void read(const std::string& name, std::int64_t offset, std::span<std::byte> out) const override {
    try {
      from_->read(name, offset, out);
    } catch (const io_error& e) {
      const std::scoped_lock lock(lock_);
      if (fault_.empty()) fault_ = e.what();
      throw;
    }
  }
  std::string fault() const {
    const std::scoped_lock lock(lock_);
    return fault_;
  }

 private:
  const io::store* from_;
  mutable std::mutex lock_;
  mutable std::string fault_;
};
}  // namespace detail

/// Probes that this run can save in a store, before its first step. Called on all ranks of a world together. A bucket
/// is not claimed: of two runs that save the same step, one gets an error. Errors: `io_error` on all ranks.
template <class World>
void claim_saves(World& world, io::store& to) {
  io_together(world, [&] {
    const std::string name = "probe-" + detail::random_name();
    to.put(name, {});
    to.remove(name);
  });
}

/// As `save`, straight into a store: each rank writes its file there, and with the manifest, put last, the save is
/// there. A save of this step that this run made before is replaced. Memory: one part of an object (`store::writer`).
/// Unlike in a folder nothing is read back before older saves are removed: that it has what it was given is the store's
/// word.
/// Errors, on all ranks: as `save`; `io_error` if another run's save of this step is there: of two runs one gets it;
/// what the store says.
template <class Trainer>
save_result save(Trainer& trainer, io::store& to, const save_facts& facts = {}) {
  detail::refuse_ahead(trainer);
  auto& world = trainer.ranks();
  require_finite_state(trainer, "step " + std::to_string(trainer.steps_done()) + " is not saved, older saves stay");
  auto& all = world.control();
  io::manifest m = detail::manifest_of(trainer);
  const std::string attempt = detail::on_first_rank(all, [&] {
    const std::string run = trainer.run_name().value_or(std::string());
    io::detail::refuse_other_run(to, m.step, run);
    return detail::random_name();
  });
  trainer.set_run_name(detail::on_first_rank(all, [&] { return trainer.run_name().value_or(detail::random_name()); }));
  m = detail::named_manifest(trainer, facts, std::move(m));
  m.facts[io::detail::attempt_fact] = attempt;
  io::rank_file mine;
  io_together(world, [&] {
    const std::string name = io::detail::object_name(m, io::detail::rank_file_name(world.rank()));
    const auto object = to.writer(name);
    io::tensor_file_writer writer(io::durable_file(*object, to.where(name)));
    detail::write_state(writer, trainer, facts);
    if (facts.beside != nullptr) facts.beside->write(writer);
    const io::file_digest d = writer.finish();
    mine = {world.rank(), d.bytes, d.checksum};
  });
  m.files.resize(static_cast<std::size_t>(all.rank() == 0 ? all.size() : 0));
  all.gather(std::span<const io::rank_file>(&mine, 1), std::span<io::rank_file>(m.files), 0);
  io_together(world, [&] {
    if (all.rank() == 0) io::commit_to_store(to, m, facts.keep);
  });
  return {};
}

/// As `resume`, from a store: each rank reads what it needs there, by ranges of its objects; nothing is kept on a disk.
/// A save that lacks its manifest is not there; one that is damaged is passed over for the one before.
/// Errors: as `resume`; what the store says: a save that it does not give now is not passed over.
template <class Trainer>
resume_result resume(Trainer& trainer, const io::store& from, const save_facts& facts = {}) {
  detail::refuse_ahead(trainer);
  auto& all = trainer.ranks().control();
  resume_result result;
  for (std::int64_t before = (std::numeric_limits<std::int64_t>::max)();;) {
    const std::string text = detail::on_first_rank(all, [&] {
      const std::optional<io::manifest> newest = io::latest(from, &result.skipped, before);
      if (!newest) io::require_readable({std::nullopt, result.skipped}, from.where(""));
      return newest ? io::to_text(*newest) : std::string();
    });
    if (text.empty()) return result;
    io::detail::save_files files = io::detail::files_in(from, io::parse_manifest(text, "a manifest"));
    const detail::watched_objects objects(from);
    files.from = &objects;
    const std::string fault = detail::fault_of_resume(trainer, files, facts, result, false);
    if (fault.empty()) return result;
    detail::throw_together<io_error>(all, objects.fault());
    if (all.rank() == 0) result.skipped.push_back(fault);
    before = files.about.step;
  }
}

/// Copies the newest complete save in `folder` into a store, where it is not there yet. Called on all ranks of a world
/// together, after `save` or `background_saves::wait`: rank r puts files r, r + P, ...; with the manifest, last, the
/// save is there. Older saves of the run beyond `keep` are removed from the store. Returns the step; nothing without a
/// save. Errors, on all ranks: `io_error` if another save of this step is in the store, which stays as it is, and what
/// the store says.
template <class World>
std::optional<std::int64_t> copy_to_store(World& world, const std::filesystem::path& folder, io::store& to,
                                          int keep = 2) {
  auto& all = world.control();
  bool there = false;
  const std::string path = detail::on_first_rank(all, [&] {
    const io::search_result found = io::latest(folder, io::verify::sizes);
    if (!found.save) return std::string();
    there = io::detail::is_stored(to, found.save->manifest);
    return found.save->path.string() + (there ? "/" : "");
  });
  if (path.empty()) return std::nullopt;
  io::manifest m;
  io_together(world, [&] { m = io::require_save(path, io::verify::manifest); });
  if (path.back() == '/') return m.step;
  io_together(world, [&] {
    io::put_save_files(to, path, m, static_cast<std::size_t>(all.rank()), static_cast<std::size_t>(all.size()));
  });
  io_together(world, [&] {
    if (all.rank() == 0) io::put_save_manifest(to, m, keep);
  });
  return m.step;
}

/// Brings the newest save of a store into `folder`, which all ranks see, where that has none as new. Called on all
/// ranks of a world together, before `resume`: rank r gets files r, r + P, ..., so that every byte is read once, and
/// its checksum is looked at. A save that is damaged is passed over for the next older one, of the store or in
/// `folder`; rank 0 says so on stderr. Returns the step that was brought; nothing if none was.
/// Errors, on all ranks: `io_error`, of the newest save, if all are damaged and none is in `folder`; what store and
/// disk say. The folder has no part of it then.
template <class World>
std::optional<std::int64_t> fetch_from_store(World& world, const io::store& from, const std::filesystem::path& folder) {
  auto& all = world.control();
  std::string first_fault;
  for (std::int64_t before = (std::numeric_limits<std::int64_t>::max)();;) {
    const std::string text = detail::on_first_rank(all, [&] {
      const std::optional<io::manifest> newest = io::latest(from, nullptr, before);
      const io::search_result here = io::latest(folder, io::verify::sizes);
      if (!newest && !here.save && !first_fault.empty()) throw io_error(first_fault);
      if (!newest || (here.save && here.save->manifest.step >= newest->step)) return std::string();
      return io::to_text(*newest);
    });
    if (text.empty()) return std::nullopt;
    const io::manifest m = io::parse_manifest(text, "a manifest of the store");
    const auto partial = io::detail::with_suffix(io::detail::partial_path(folder, m.step), "-fetched");
    const auto clear = [&] {
      std::error_code ec;
      if (all.rank() == 0) std::filesystem::remove_all(partial, ec);
      if (ec) throw io_error("heddle: cannot remove '" + partial.string() + "': " + ec.message());
    };
    io_together(world, clear);
    std::string damage;
    try {
      io_together(world, [&] {
        damage = io::detail::fault_of_getting(from, m, partial, static_cast<std::size_t>(all.rank()),
                                              static_cast<std::size_t>(all.size()));
      });
      damage = detail::first_fault(all, damage);
      if (damage.empty()) {
        io_together(world, [&] {
          if (all.rank() == 0) io::finish_got_save(folder, m, partial);
        });
        return m.step;
      }
    } catch (const io_error&) {  // the same on all ranks: an older save would hide it
      std::error_code ignored;
      if (all.rank() == 0) std::filesystem::remove_all(partial, ignored);
      throw;
    }
    if (first_fault.empty()) first_fault = damage;
    if (all.rank() == 0)
      std::fprintf(stderr, "%s: the save of step %lld in the store is passed over\n", damage.c_str(),
                   static_cast<long long>(m.step));
    io_together(world, clear);
    before = m.step;
  }
}

}  // namespace heddle::inline v0::train
