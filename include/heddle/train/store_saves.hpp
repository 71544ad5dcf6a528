// heddle/train/store_saves.hpp: ranks bring saves into a store together, and back.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>
#include <heddle/train/save.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace heddle::inline v0::train {

namespace detail {
// Does `work` on all ranks; what it throws as `io_error` is thrown on all.
template <communicator Communicator, class Work>
void in_store_together(Communicator& all, Work&& work) {
  std::string fault;
  try {
    work();
  } catch (const io_error& e) {
    fault = e.what();
  }
  throw_together<io_error>(all, fault);
}
}  // namespace detail

/// Copies the newest complete save in `folder` into a store, where it is not there yet. Called on all ranks of a world
/// together, after `save` or `background_saves::wait`: rank r puts files r, r + P, ...; with the manifest, last, the
/// save is there. Older saves of the run beyond `keep` are removed from the store. Returns the step; nothing without a
/// save. Errors, on all ranks: `io_error` if another run's save of this step is in the store, and what the store says.
template <class World>
std::optional<std::int64_t> copy_to_store(World& world, const std::filesystem::path& folder, io::store& to,
                                          int keep = 2) {
  auto& all = world.control();
  bool there = false;
  const std::string path = detail::on_first_rank(all, [&] {
    const io::search_result found = io::latest(folder, io::verify::sizes);
    if (!found.save) return std::string();
    const auto known = to.size(io::detail::manifest_object(found.save->manifest.step));
    there = known.has_value() && io::detail::read_manifest(to, found.save->manifest.step) == found.save->manifest;
    return found.save->path.string() + (there ? "/" : "");
  });
  if (path.empty()) return std::nullopt;
  io::manifest m;
  detail::in_store_together(all, [&] { m = io::require_save(path, io::verify::manifest); });
  if (path.back() == '/') return m.step;
  detail::in_store_together(all, [&] {
    io::put_save_files(to, path, m, static_cast<std::size_t>(all.rank()), static_cast<std::size_t>(all.size()));
  });
  detail::in_store_together(all, [&] {
    if (all.rank() == 0) io::put_save_manifest(to, m, keep);
  });
  return m.step;
}

/// Brings the newest save of a store into `folder`, which all ranks see, where that has none as new. Called on all
/// ranks of a world together, before `resume`: rank r gets files r, r + P, ..., so that every byte is read once, and
/// its checksum is looked at. Returns the step that was brought; nothing if none was.
/// Errors, on all ranks: `io_error` if a file is not what was written, and what store and disk say; the folder has no
/// part of the save then.
template <class World>
std::optional<std::int64_t> fetch_from_store(World& world, const io::store& from, const std::filesystem::path& folder) {
  auto& all = world.control();
  const std::string text = detail::on_first_rank(all, [&] {
    const std::optional<io::manifest> newest = io::latest(from);
    if (!newest) return std::string();
    const io::search_result here = io::latest(folder, io::verify::sizes);
    if (here.save && here.save->manifest.step >= newest->step) return std::string();
    return io::to_text(*newest);
  });
  if (text.empty()) return std::nullopt;
  const io::manifest m = io::parse_manifest(text, "a manifest of the store");
  const auto partial = io::detail::with_suffix(io::detail::partial_path(folder, m.step), "-fetched");
  detail::in_store_together(all, [&] {
    if (all.rank() == 0) std::filesystem::remove_all(partial);
  });
  detail::in_store_together(all, [&] {
    io::get_save_files(from, m, partial, static_cast<std::size_t>(all.rank()), static_cast<std::size_t>(all.size()));
  });
  detail::in_store_together(all, [&] {
    if (all.rank() == 0) io::finish_got_save(folder, m, partial);
  });
  return m.step;
}

}  // namespace heddle::inline v0::train
