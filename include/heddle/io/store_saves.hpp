// heddle/io/store_saves.hpp: copies complete saves into a store, and back, or completes them there.
//
//   step-00000100/RUN/rank-00000.tensors   the files of the save, under the name of the run that made it; of one that
//                                          was written here, RUN/ATTEMPT/rank-00000.tensors
//   step-00000100/RUN/index
//   step-00000100/manifest                 put last, and only if there is none: with it the save is there
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/save_names.hpp>
#include <heddle/io/store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

namespace detail {

struct save_object {
  std::string file;  // in the folder
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};
// The files of a save but its manifest.
inline std::vector<save_object> objects_of(const manifest& m) {
  std::vector<save_object> all;
  for (const rank_file& f : m.files) all.push_back({rank_file_name(f.rank), f.bytes, f.checksum});
  if (m.index_bytes > 0) all.push_back({index_name, m.index_bytes, m.index_checksum});
  return all;
}
inline std::string step_prefix(std::int64_t step) {
  return save_path({}, step).string() + "/";
}
inline std::string manifest_object(std::int64_t step) {
  return step_prefix(step) + "manifest";
}
inline std::string object_name_in(std::int64_t step, const std::string& run, const std::string& file) {
  return step_prefix(step) + (run.empty() ? "unnamed" : run) + "/" + file;
}
inline std::string object_name(const manifest& m, const std::string& file) {
  const auto attempt = m.facts.find(attempt_fact);
  return object_name_in(m.step, run_of(m), attempt == m.facts.end() ? file : attempt->second + "/" + file);
}
HEDDLE_INLINE save_files files_in(const store& from, manifest m);
// What lies where a step has its manifest.
struct stored_manifest {
  std::optional<manifest> is{};  // none: it is absent or damaged
  std::string text{}, fault{};   // as it was read, and what is wrong with it
  bool stays = false;            // a later program may read it
};
// Errors: those of the store.
HEDDLE_INLINE stored_manifest manifest_at(const store& from, std::int64_t step);
inline manifest read_manifest(const store& from, std::int64_t step) {
  stored_manifest there = manifest_at(from, step);
  if (!there.is) throw io_error(there.fault);
  return std::move(*there.is);
}
// Whether this save is in a store. Errors: `io_error` if another one of its step is, which stays as it is.
inline bool is_stored(const store& to, const manifest& m) {
  stored_manifest there = manifest_at(to, m.step);
  if (!there.is && there.stays) throw io_error(there.fault);
  if (!there.is) return false;
  manifest here = m;
  there.is->facts.erase(attempt_fact);
  here.facts.erase(attempt_fact);
  if (!(*there.is == here))
    throw io_error("heddle: '" + to.where(manifest_object(m.step)) + "' is there already, of " +
                   (run_of(*there.is) == run_of(m) ? "this run" : "another run") +
                   ": a save in a store is not replaced");
  return true;
}
// What is in a store of a step. Errors: `io_error` if it is a save that another run, or a later program, made.
inline stored_manifest refuse_other_run(const store& to, std::int64_t step, const std::string& run) {
  stored_manifest there = manifest_at(to, step);
  if (!there.is && there.stays) throw io_error(there.fault);
  if (there.is && run_of(*there.is) != run)
    throw io_error("heddle: '" + to.where(manifest_object(step)) +
                   "' is there already, of another run: a save in a store is not replaced");
  return there;
}
// Steps of which there is a manifest, the newest first.
HEDDLE_INLINE std::vector<std::int64_t> steps_in(const store& from);

}  // namespace detail

/// Puts the files of a complete save in `save` that are the `first`-th and every `stride`-th behind it, so that ranks
/// may share them. Its manifest is put by `put_save_manifest`, when all are there.
/// Errors: `io_error` if another save of this step is there, before anything is put; those of the store.
inline void put_save_files(store& to, const std::filesystem::path& save, const manifest& m, std::size_t first = 0,
                           std::size_t stride = 1) {
  const auto all = detail::objects_of(m);
  const bool there = detail::is_stored(to, m);
  for (std::size_t i = first; i < all.size(); i += stride) {
    const std::string name = detail::object_name(m, all[i].file);
    if (!there || to.size(name) != all[i].bytes) to.put_file(name, save / all[i].file);
  }
}

namespace detail {
inline void put_manifest(store& to, const manifest& m, int keep, bool replaces);
}

/// Completes a save in a store: for one caller, when all its files are there. Of the same run, older saves beyond
/// `keep` are removed then (0: none), each manifest before its files, and what attempts of this run left of older
/// steps that have no manifest, and what they were killed in putting (`store::unfinished`).
/// A manifest of this step that is damaged is put aside, step-N/manifest.set-aside.
/// Errors: `io_error` if another save of this step is there, which stays; a file of this one is missing or has another
/// size; those of the store.
inline void put_save_manifest(store& to, const manifest& m, int keep = 2) {
  detail::put_manifest(to, m, keep, false);
}

namespace detail {
// Removes what puts of a run that were killed have left of steps before `step`.
inline void clear_unfinished(store& to, std::int64_t step, const std::string& run) {
  for (const std::string& name : to.unfinished("step-")) {
    const std::int64_t of = parse_save_name(name.substr(0, name.find('/'))).step;
    if (of < 0 || of >= step) continue;
    bool is_ours = name.starts_with(object_name_in(of, run, ""));
    if (name.starts_with(manifest_object(of) + ".")) {
      try {
        const auto bytes = to.read_all(name);
        is_ours = run_of(parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, name)) == run;
      } catch (const io_error&) {  // whose it is cannot be seen
      }
    }
    if (is_ours) to.remove(name);
  }
}
// `replaces`: what this run has saved of the step before.
inline void put_manifest(store& to, const manifest& m, int keep, bool replaces) {
  for (const detail::save_object& o : detail::objects_of(m)) {
    const std::string name = detail::object_name(m, o.file);
    if (const auto there = to.size(name); there != o.bytes)
      throw io_error("heddle: '" + to.where(name) + "' " +
                     (there ? "has " + std::to_string(*there) + " bytes, " + std::to_string(o.bytes) + " were written"
                            : std::string("is missing")));
  }
  const std::string text = to_text(m), name = detail::manifest_object(m.step);
  if (!to.put_new(name, std::as_bytes(std::span<const char>(text)))) {
    const stored_manifest there = refuse_other_run(to, m.step, run_of(m));
    if (!there.is && !there.text.empty())  // damaged: nobody reads it as it is
      to.put(name + ".set-aside", std::as_bytes(std::span<const char>(there.text)));
    if (replaces || !there.is)
      to.put(name, std::as_bytes(std::span<const char>(text)));
    else
      is_stored(to, m);
    if (!there.is) refuse_other_run(to, m.step, run_of(m));  // of two runs that replace it the last one has it
  }
  if (!run_of(m).empty()) clear_unfinished(to, m.step, run_of(m));
  if (keep <= 0) return;
  int kept = 0;
  const std::vector<std::int64_t> steps = detail::steps_in(to);
  if (!detail::run_of(m).empty())
    for (const std::string& object : to.list("step-")) {
      const auto slash = object.find('/');
      const detail::save_name s = detail::parse_save_name(object.substr(0, slash));
      if (s.step < 0 || s.step >= m.step || !object.starts_with(detail::object_name_in(s.step, detail::run_of(m), "")))
        continue;
      if (std::find(steps.begin(), steps.end(), s.step) == steps.end()) to.remove(object);
    }
  for (const std::int64_t step : steps) {
    if (step > m.step) continue;
    std::optional<manifest> old;
    try {
      old = detail::read_manifest(to, step);
    } catch (const io_error&) {  // what cannot be read is not removed
    }
    if (!old || detail::run_of(*old) != detail::run_of(m) || ++kept <= keep) continue;
    to.remove(detail::manifest_object(step));
    for (const detail::save_object& o : detail::objects_of(*old)) to.remove(detail::object_name(*old, o.file));
  }
}
}  // namespace detail

/// Completes a save whose files ranks have written into a store, as `put_save_manifest` does: for one caller. What its
/// run has put of this step before goes, a complete save too.
/// Errors: also as `commit`, for parts that overlap or are missing.
inline manifest commit_to_store(store& to, manifest m, int keep = 2) {
  std::sort(m.files.begin(), m.files.end(), [](const rank_file& a, const rank_file& b) { return a.rank < b.rank; });
  const detail::save_files files = detail::files_in(to, m);
  std::vector<detail::saved_part> parts;
  for (const rank_file& f : m.files)
    for (tensor_entry& e : detail::read_rank_index(files, f)) parts.push_back({f.rank, std::move(e)});
  detail::require_parts_fit(files.path, parts, detail::coverage::whole);
  detail::note_pieces(m, parts);
  const auto object = to.writer(files.prefix + detail::index_name);
  const file_digest index = detail::write_index(durable_file(*object, files.path / detail::index_name), parts);
  m.index_bytes = index.bytes;
  m.index_checksum = index.checksum;
  detail::put_manifest(to, m, keep, true);
  std::vector<std::string> wanted;
  for (const detail::save_object& o : detail::objects_of(m)) wanted.push_back(detail::object_name(m, o.file));
  for (const std::string& name : to.list(detail::object_name_in(m.step, detail::run_of(m), "")))
    if (std::find(wanted.begin(), wanted.end(), name) == wanted.end()) to.remove(name);
  return m;
}

namespace detail {
// What is wrong with the size of an object, or nothing. Errors: those of the store.
inline std::string fault_of_size(const store& from, const std::string& name, std::int64_t bytes) {
  if (from.size(name) == bytes) return {};
  return "heddle: '" + from.where(name) + "' is missing, or has not " + std::to_string(bytes) + " bytes";
}
}  // namespace detail

/// The newest complete save in a store: with a manifest that can be read, and all its files with their sizes. Why
/// newer ones were passed over goes to `skipped`; those from step `before` on are not looked at. Errors: those of the
/// store: a save that it does not give now is not passed over.
HEDDLE_INLINE std::optional<manifest> latest(const store& from, std::vector<std::string>* skipped = nullptr,
                                             std::int64_t before = (std::numeric_limits<std::int64_t>::max)());

namespace detail {
// As `get_save_files`; returns what is wrong with the save, or nothing. Errors: those of the store and the disk.
inline std::string fault_of_getting(const store& from, const manifest& m, const std::filesystem::path& partial,
                                    std::size_t first, std::size_t stride) {
  constexpr std::int64_t piece = std::int64_t{16} << 20;
  const auto all = objects_of(m);
  make_folder(partial);
  std::vector<std::byte> bytes;
  for (std::size_t i = first; i < all.size(); i += stride) {
    const std::string name = object_name(m, all[i].file);
    if (std::string fault = fault_of_size(from, name, all[i].bytes); !fault.empty()) return fault;
    durable_file file(partial / all[i].file);
    for (std::int64_t at = 0; at < all[i].bytes; at += piece) {
      bytes.resize(static_cast<std::size_t>((std::min)(piece, all[i].bytes - at)));
      from.read(name, at, bytes);
      file.write(bytes);
    }
    if (file.checksum() != all[i].checksum)
      return "heddle: '" + from.where(name) + "' is damaged: its checksum is " + to_hex(file.checksum()) + ", " +
             to_hex(all[i].checksum) + " was written";
    file.close();
  }
  return {};
}
}  // namespace detail

/// Brings files of a save from a store into the folder `partial`, the `first`-th and every `stride`-th behind it: each
/// is read once, and held against its checksum. Errors: `io_error` if it is not what was written; those of the store
/// and the disk.
inline void get_save_files(const store& from, const manifest& m, const std::filesystem::path& partial,
                           std::size_t first = 0, std::size_t stride = 1) {
  if (const std::string fault = detail::fault_of_getting(from, m, partial, first, stride); !fault.empty())
    throw io_error(fault);
}

/// Gives a save whose files are all in `partial` its name in `folder`, for one caller. A save of this step that is
/// there with all its files stays, and `partial` goes; what else has its name is set aside, step-N.set-aside. Returns
/// the folder of the save.
inline std::filesystem::path finish_got_save(const std::filesystem::path& folder, const manifest& m,
                                             const std::filesystem::path& partial) {
  const auto to = detail::save_path(folder, m.step);
  const bool taken = !detail::kind_of_entry(to).empty();
  if (taken) {
    try {
      require_save(to, verify::sizes);
      std::error_code ignored;
      std::filesystem::remove_all(partial, ignored);
      return to;
    } catch (const io_error&) {  // no save that can be read
    }
  }
  durable_file file(partial / "manifest");
  file.write(to_text(m));
  file.close();
  sync_folder(partial);
  if (taken) detail::set_aside(to);
  detail::rename_path(partial, to);
  sync_folder(folder);
  return to;
}

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/store_saves.hpp>
#endif
