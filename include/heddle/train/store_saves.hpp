// heddle/train/store_saves.hpp: ranks bring saves into a store together, and back.
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
#include <optional>
#include <string>
#include <system_error>

namespace heddle::inline v0::train {

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
/// its checksum is looked at. A save that cannot be brought is passed over for the next older one, of the store or in
/// `folder`; rank 0 says so on stderr. Returns the step that was brought; nothing if none was.
/// Errors, on all ranks: `io_error`, of the newest save, if no save can be brought and none is in `folder`: a file is
/// not what was written, or what store and disk say. The folder has no part of it then.
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
    try {
      io_together(world, [&] {
        io::get_save_files(from, m, partial, static_cast<std::size_t>(all.rank()),
                           static_cast<std::size_t>(all.size()));
      });
      io_together(world, [&] {
        if (all.rank() == 0) io::finish_got_save(folder, m, partial);
      });
      return m.step;
    } catch (const io_error& e) {  // the same on all ranks
      if (first_fault.empty()) first_fault = e.what();
      if (all.rank() == 0)
        std::fprintf(stderr, "%s: the save of step %lld in the store is passed over\n", e.what(),
                     static_cast<long long>(m.step));
    }
    io_together(world, clear);
    before = m.step;
  }
}

}  // namespace heddle::inline v0::train
