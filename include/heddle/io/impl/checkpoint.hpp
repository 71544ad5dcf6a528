// heddle/io/impl/checkpoint.hpp: bodies of heddle/io/checkpoint.hpp.
#pragma once

#include <heddle/io/checkpoint.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/save_names.hpp>
#include <heddle/io/tensor_file.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
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

HEDDLE_INLINE void require_parts_apart(const std::filesystem::path& save, std::span<const saved_part> parts) {
  std::map<std::pair<std::string_view, std::vector<std::int64_t>>, std::vector<const saved_part*>> tensors;
  for (const saved_part& p : parts) tensors[{p.entry.name, p.entry.region.global}].push_back(&p);
  std::vector<const tensor_region*> regions;
  for (const auto& [tensor, held] : tensors) {
    regions.clear();
    for (const saved_part* p : held) regions.push_back(&p->entry.region);
    const auto found = partial_overlap(regions);
    if (!found) continue;
    const saved_part &a = *held[found->first], &b = *held[found->second];
    throw io_error("heddle: '" + save.string() + "', tensor '" + a.entry.name + "': rank " + std::to_string(b.rank) +
                   " saved " + describe(b.entry.region) + ", which overlaps " + describe(a.entry.region) + " of rank " +
                   std::to_string(a.rank) + "; parts of a tensor must be apart, or the same");
  }
}

}  // namespace detail
}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {

HEDDLE_INLINE manifest require_save(const std::filesystem::path& path, verify how) {
  const std::filesystem::path file = path / "manifest";
  if (detail::kind_of_entry(file).empty() && detail::is_folder(path))
    throw io_error("heddle: '" + path.string() + "' has no manifest: the save was not finished");
  const auto bytes = read_bytes(file, 0, detail::bytes_of_file(file), detail::links::refused);
  manifest m = parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "'" + file.string() + "'");
  const detail::save_name name =
      detail::parse_save_name((path.has_filename() ? path : path.parent_path()).filename().string());
  if (name.may_be_read() && name.step != m.step)
    throw io_error("heddle: '" + file.string() + "' says step " + std::to_string(m.step) +
                   ", the name of its folder step " + std::to_string(name.step));
  for (const rank_file& f : m.files) {
    const std::filesystem::path rank_path = path / detail::rank_file_name(f.rank);
    const std::string where = "heddle: '" + rank_path.string() + "' ";
    if (detail::kind_of_entry(rank_path).empty()) throw io_error(where + "is missing");
    if (const std::int64_t there = detail::bytes_of_file(rank_path); there != f.bytes)
      throw io_error(where + "has " + std::to_string(there) + " bytes, " + std::to_string(f.bytes) + " were written");
    if (how == verify::contents) {
      const file_digest d = digest(rank_path, detail::links::refused);
      if (d.checksum != f.checksum)
        throw io_error(where + "is damaged: its checksum is " + to_hex(d.checksum) + ", " + to_hex(f.checksum) +
                       " was written");
    }
  }
  return m;
}

}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE std::optional<manifest> save_of_run(const std::filesystem::path& save, const std::string& run) {
  try {
    require_folder(save);
    manifest m = require_save(save, verify::contents);
    if (run_of(m) == run) return m;
  } catch (const io_error&) {
  }
  return {};
}

HEDDLE_INLINE std::string remove_of_run(const std::filesystem::path& save, const std::string& run) {
  const std::optional<manifest> m = save_of_run(save, run);
  if (!m) return {};
  std::vector<std::string> names{"manifest"};
  for (const rank_file& f : m->files) names.push_back(rank_file_name(f.rank));
  const std::vector<std::string> left = remove_save(save, names);
  if (left.empty()) return {};
  std::string text = "'" + save.string() + "': the save was removed; what no save wrote stays there:";
  constexpr std::size_t most = 4;
  for (std::size_t i = 0; i < left.size() && i < most; ++i) text += " '" + left[i] + "'";
  return text + (left.size() > most ? " and " + std::to_string(left.size() - most) + " more" : "");
}

}  // namespace detail
}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {

HEDDLE_INLINE std::filesystem::path commit(const std::filesystem::path& folder, manifest m, commit_options options) {
  namespace fs = std::filesystem;
  const fs::path partial = detail::partial_path(folder, m.step);
  const fs::path final_path = detail::save_path(folder, m.step);
  const fs::path aside = detail::with_suffix(final_path, ".replaced");
  std::sort(m.files.begin(), m.files.end(), [](const rank_file& a, const rank_file& b) { return a.rank < b.rank; });
  detail::require_folder(partial);
  for (std::size_t i = 0; i < m.files.size(); ++i) {
    const rank_file& f = m.files[i];
    if (i > 0 && f.rank == m.files[i - 1].rank)
      throw io_error("heddle: the manifest of step " + std::to_string(m.step) + " lists rank " +
                     std::to_string(f.rank) + " twice");
    const fs::path path = partial / detail::rank_file_name(f.rank);
    if (detail::kind_of_entry(path).empty()) throw io_error("heddle: '" + path.string() + "' is missing");
    if (const std::int64_t there = detail::bytes_of_file(path); there != f.bytes)
      throw io_error("heddle: '" + path.string() + "' has " + std::to_string(there) + " bytes, rank " +
                     std::to_string(f.rank) + " says " + std::to_string(f.bytes));
  }
  // An attempt that was killed may have left files of ranks that this mesh does not have.
  std::vector<std::string> names;
  for (const rank_file& f : m.files) names.push_back(detail::rank_file_name(f.rank));
  detail::remove_files(partial, names, false);
  std::vector<detail::saved_part> parts;
  for (const rank_file& f : m.files)
    for (tensor_entry& e : read_tensor_index(partial / detail::rank_file_name(f.rank)))
      parts.push_back({f.rank, std::move(e)});
  detail::require_parts_apart(partial, parts);
  durable_file file(partial / "manifest");
  file.write(to_text(m));
  file.close();
  sync_folder(partial);

  const std::string run = detail::run_of(m);
  const auto tell = [&options](std::string text) {
    if (options.left != nullptr && !text.empty()) options.left->push_back(std::move(text));
  };
  if (!detail::kind_of_entry(final_path).empty()) {
    if (detail::save_of_run(final_path, run)) {
      // One that was set aside by a commit that was killed.
      tell(detail::remove_of_run(aside, run));
      if (!detail::kind_of_entry(aside).empty()) detail::set_aside(aside);
      detail::rename_path(final_path, aside);
    } else {
      detail::set_aside(final_path);
    }
  }
  detail::rename_path(partial, final_path);
  sync_folder(folder);

  // Only now may anything older go, and only if what was written can be read: another run that writes into the same folder
  // would be noticed here, while the older saves are still there.
  require_save(final_path, verify::contents);
  // What cannot be removed (somebody reads it, or owns it) stays: the new save is complete all the same.
  const auto remove_if_possible = [&](const fs::path& save) {
    try {
      tell(detail::remove_of_run(save, run));
    } catch (const io_error&) {
    }
  };
  remove_if_possible(aside);
  int kept = 1;
  for (const detail::listed_save& s : detail::list_saves(folder)) {
    if (options.keep <= 0 || s.step >= m.step) continue;
    if (kept >= options.keep)
      remove_if_possible(s.path);
    else if (detail::save_of_run(s.path, run))
      ++kept;
  }
  detail::clear_attempts(folder, m.step);
  return final_path;
}

HEDDLE_INLINE search_result latest(const std::filesystem::path& folder, verify how) {
  search_result result;
  for (const detail::listed_save& s : detail::list_saves(folder)) {
    try {
      detail::require_folder(s.path);
      result.save = found_save{s.path, require_save(s.path, how)};
      return result;
    } catch (const io_error& e) {
      result.skipped.emplace_back(e.what());
    }
  }
  return result;
}

HEDDLE_INLINE void require_readable(const search_result& found, const std::filesystem::path& folder) {
  if (found.save || found.skipped.empty()) return;
  constexpr std::string_view ours = "heddle: ";
  constexpr std::size_t most = 8;
  std::string text = "heddle: there are saves in '" + folder.string() + "', and none of them can be read: ";
  for (std::size_t i = 0; i < found.skipped.size() && i < most; ++i) {
    std::string_view why = found.skipped[i];
    if (why.substr(0, ours.size()) == ours) why.remove_prefix(ours.size());
    text += std::string(why) + "; ";
  }
  if (found.skipped.size() > most) text += "and " + std::to_string(found.skipped.size() - most) + " more; ";
  throw io_error(text +
                 "repair them or their permissions, or, to start anew, remove the folder or train without "
                 "resuming into another one. Nothing was changed");
}

HEDDLE_INLINE checkpoint_reader::checkpoint_reader(std::filesystem::path save) : path_(std::move(save)) {
  manifest_ = require_save(path_, verify::sizes);
  for (const rank_file& f : manifest_.files)
    for (tensor_entry& e : read_tensor_index(path_ / detail::rank_file_name(f.rank))) {
      by_name_[e.name].push_back(entries_.size());
      entries_.push_back({f.rank, std::move(e)});
    }
  detail::require_parts_apart(path_, entries_);
}

HEDDLE_INLINE std::vector<tensor_entry> checkpoint_reader::tensors(std::int64_t rank) const {
  std::vector<tensor_entry> list;
  for (const held& h : entries_)
    if (h.rank == rank) list.push_back(h.entry);
  return list;
}

HEDDLE_INLINE void checkpoint_reader::read_part(std::int64_t rank, std::string_view name, destination out,
                                                const tensor_region& region) const {
  const held* other = nullptr;
  for (const std::size_t i : parts_of(name)) {
    const held& h = entries_[i];
    if (h.rank != rank) continue;
    require_dtype(h, out.dtype);
    if (h.entry.region == region) {
      copy_box(h, region, out);
      return;
    }
    if (other == nullptr) other = &h;
  }
  if (other != nullptr)
    throw io_error(where(*other) + "expected " + detail::describe(region) + ", the file has " +
                   detail::describe(other->entry.region));
  throw io_error("heddle: '" + (path_ / detail::rank_file_name(rank)).string() + "' has no tensor '" +
                 std::string(name) + "'");
}

HEDDLE_INLINE void checkpoint_reader::read_region(std::string_view name, destination out,
                                                  const tensor_region& region) const {
  const std::string what = "heddle: '" + path_.string() + "', tensor '" + std::string(name) + "': ";
  if (const std::string fault = detail::region_fault(region); !fault.empty()) throw io_error(what + fault);
  std::vector<const held*> used;
  std::int64_t found = 0;
  for (const std::size_t i : parts_of(name)) {
    const held& h = entries_[i];
    require_dtype(h, out.dtype);
    if (h.entry.region.global != region.global)
      throw io_error(where(h) + "expected global shape [" + detail::join(region.global) + "], the file has [" +
                     detail::join(h.entry.region.global) + "]");
    const bool replica =
        std::any_of(used.begin(), used.end(), [&](const held* u) { return u->entry.region == h.entry.region; });
    if (replica) continue;
    used.push_back(&h);
    found += copy_box(h, region, out);
  }
  if (!contains(name)) throw io_error(what + "no rank saved it");
  if (found != region.count())
    throw io_error(what + "the ranks saved " + std::to_string(found) + " of the " + std::to_string(region.count()) +
                   " elements of " + detail::describe(region));
}

HEDDLE_INLINE std::int64_t checkpoint_reader::copy_box(const held& h, const tensor_region& to, destination out) const {
  if (static_cast<std::int64_t>(out.count) != to.count())
    throw io_error(where(h) + "expected room for " + std::to_string(to.count()) + " elements, got " +
                   std::to_string(out.count));
  const tensor_region& from = h.entry.region;
  std::vector<heddle::v0::detail::stretch_list> both;
  std::int64_t shared = 1;
  for (std::size_t d = 0; d < to.global.size(); ++d) {
    const std::int64_t begin = (std::max)(from.offset[d], to.offset[d]);
    const std::int64_t end = (std::min)(from.offset[d] + from.local[d], to.offset[d] + to.local[d]);
    if (begin >= end) return 0;
    both.push_back(heddle::v0::detail::stretch_list({begin - from.offset[d], begin - to.offset[d], end - begin}));
    shared *= end - begin;
  }
  const auto bytes = read_tensor_bytes(path_ / detail::rank_file_name(h.rank), h.entry);
  heddle::v0::detail::for_each_run(both, from.local, to.local,
                                   [&](std::int64_t source, std::int64_t target, std::int64_t count) {
                                     std::memcpy(out.data + static_cast<std::size_t>(target) * out.element_bytes,
                                                 bytes.data() + static_cast<std::size_t>(source) * out.element_bytes,
                                                 static_cast<std::size_t>(count) * out.element_bytes);
                                   });
  return shared;
}

}  // namespace heddle::inline v0::io
