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
  if (how != verify::manifest) detail::require_files(path, m, how);
  return m;
}

}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE void require_files(const save_files& save, const manifest& m, verify how, std::size_t first,
                                 std::size_t stride) {
  const auto require = [&](const std::string& name, std::int64_t bytes, std::uint64_t checksum) {
    const std::filesystem::path path = save.path / name;
    const std::string where = "heddle: '" + path.string() + "' ";
    if (save.from != nullptr) {
      if (how != verify::contents) return;
      const file_to_read file = save.open(name);
      std::vector<std::byte> piece;
      checksum64 sum;
      for (std::int64_t at = 0; at < bytes; at += std::ssize(piece)) {
        piece.resize(static_cast<std::size_t>((std::min)(bytes - at, std::int64_t{16} << 20)));
        file.require(piece, at);
        sum.update(piece);
      }
      if (sum.value() != checksum)
        throw io_error(where + "is damaged: its checksum is " + to_hex(sum.value()) + ", " + to_hex(checksum) +
                       " was written");
      return;
    }
    if (kind_of_entry(path).empty()) throw io_error(where + "is missing");
    if (const std::int64_t there = bytes_of_file(path); there != bytes)
      throw io_error(where + "has " + std::to_string(there) + " bytes, " + std::to_string(bytes) + " were written");
    if (how != verify::contents) return;
    if (const file_digest d = digest(path, links::refused); d.checksum != checksum)
      throw io_error(where + "is damaged: its checksum is " + to_hex(d.checksum) + ", " + to_hex(checksum) +
                     " was written");
  };
  for (std::size_t i = first; i < m.files.size(); i += stride)
    require(rank_file_name(m.files[i].rank), m.files[i].bytes, m.files[i].checksum);
  if (m.index_bytes > 0 && m.files.size() % stride == first) require(index_name, m.index_bytes, m.index_checksum);
}

HEDDLE_INLINE std::optional<manifest> save_of_run(const std::filesystem::path& save, const std::string& run,
                                                  verify how) {
  try {
    require_folder(save);
    manifest m = require_save(save, how);
    if (run_of(m) == run) return m;
  } catch (const io_error&) {
  }
  return {};
}

HEDDLE_INLINE std::string remove_of_run(const std::filesystem::path& save, const std::string& run, verify how) {
  const std::optional<manifest> m = save_of_run(save, run, how);
  if (!m) return {};
  std::vector<std::string> names{"manifest"};
  if (m->index_bytes > 0) names.emplace_back(index_name);
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

namespace detail {

HEDDLE_INLINE std::filesystem::path publish(const std::filesystem::path& folder, manifest m,
                                            const commit_options& options) {
  namespace fs = std::filesystem;
  const fs::path partial = options.partial.empty() ? partial_path(folder, m.step) : options.partial;
  const fs::path final_path = save_path(folder, m.step);
  const fs::path aside = with_suffix(final_path, ".replaced");
  std::sort(m.files.begin(), m.files.end(), [](const rank_file& a, const rank_file& b) { return a.rank < b.rank; });
  require_folder(partial);
  for (std::size_t i = 0; i < m.files.size(); ++i) {
    const rank_file& f = m.files[i];
    if (i > 0 && f.rank == m.files[i - 1].rank)
      throw io_error("heddle: the manifest of step " + std::to_string(m.step) + " lists rank " +
                     std::to_string(f.rank) + " twice");
    const fs::path path = partial / rank_file_name(f.rank);
    if (kind_of_entry(path).empty()) throw io_error("heddle: '" + path.string() + "' is missing");
    if (const std::int64_t there = bytes_of_file(path); there != f.bytes)
      throw io_error("heddle: '" + path.string() + "' has " + std::to_string(there) + " bytes, rank " +
                     std::to_string(f.rank) + " says " + std::to_string(f.bytes));
  }
  // An attempt that was killed may have left files of ranks that this mesh does not have.
  std::vector<std::string> names;
  for (const rank_file& f : m.files) names.push_back(rank_file_name(f.rank));
  remove_files(partial, names, false);
  std::vector<saved_part> parts;
  for (const rank_file& f : m.files)
    for (tensor_entry& e : read_tensor_index(partial / rank_file_name(f.rank))) parts.push_back({f.rank, std::move(e)});
  require_parts_fit(partial, parts, coverage::whole);
  note_pieces(m, parts);
  const file_digest index = write_index(durable_file(partial / index_name), parts);
  m.index_bytes = index.bytes;
  m.index_checksum = index.checksum;
  durable_file file(partial / "manifest");
  file.write(to_text(m));
  file.close();
  sync_folder(partial);

  if (!kind_of_entry(final_path).empty()) {
    const std::string run = run_of(m);
    if (save_of_run(final_path, run, options.older)) {
      // One that was set aside by a commit that was killed.
      const std::string left = remove_of_run(aside, run, options.older);
      if (options.left != nullptr && !left.empty()) options.left->push_back(left);
      if (!kind_of_entry(aside).empty()) set_aside(aside);
      rename_path(final_path, aside);
    } else {
      set_aside(final_path);
    }
  }
  rename_path(partial, final_path);
  sync_folder(folder);
  return final_path;
}

HEDDLE_INLINE void retire(const std::filesystem::path& folder, const manifest& m, const commit_options& options) {
  const std::string run = run_of(m);
  // What cannot be removed (somebody reads it, or owns it) stays: the new save is complete all the same.
  const auto remove_if_possible = [&](const std::filesystem::path& save) {
    try {
      std::string left = remove_of_run(save, run, options.older);
      if (options.left != nullptr && !left.empty()) options.left->push_back(std::move(left));
    } catch (const io_error&) {
    }
  };
  remove_if_possible(with_suffix(save_path(folder, m.step), ".replaced"));
  int kept = 1;
  for (const listed_save& s : list_saves(folder)) {
    if (options.keep <= 0 || s.step >= m.step) continue;
    if (kept >= options.keep)
      remove_if_possible(s.path);
    else if (save_of_run(s.path, run, options.older))
      ++kept;
  }
  clear_attempts(folder, m.step);
}

}  // namespace detail

HEDDLE_INLINE std::filesystem::path commit(const std::filesystem::path& folder, manifest m, commit_options options) {
  const std::filesystem::path path = detail::publish(folder, m, options);
  // Only now may anything older go, and only if what was written can be read: another run that writes into the same
  // folder would be noticed here, while the older saves are still there.
  require_save(path, verify::contents);
  detail::retire(folder, m, options);
  return path;
}

HEDDLE_INLINE search_result latest(const std::filesystem::path& folder, verify how, const failed_saves& failed) {
  search_result result;
  for (const detail::listed_save& s : detail::list_saves(folder)) {
    if (const auto known = failed.find(s.path.string()); known != failed.end()) {
      result.skipped.push_back(known->second);
      continue;
    }
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

HEDDLE_INLINE checkpoint_reader::checkpoint_reader(std::filesystem::path save, verify how)
    : checkpoint_reader(detail::save_files(std::move(save)), how) {}
HEDDLE_INLINE checkpoint_reader::checkpoint_reader(detail::save_files save, verify how) : files_(std::move(save)) {
  manifest_ = files_.from == nullptr ? require_save(files_.path, how) : files_.about;
  index_ = std::make_shared<detail::save_index>(files_, manifest_);
}

HEDDLE_INLINE std::vector<tensor_entry> checkpoint_reader::tensors(std::int64_t rank) const {
  for (const rank_file& f : manifest_.files)
    if (f.rank == rank) return detail::read_rank_index(files_, f);
  return {};
}

HEDDLE_INLINE void checkpoint_reader::read_part(std::int64_t rank, std::string_view name, destination out,
                                                const tensor_region& region) const {
  const held* other = nullptr;
  for (const held& h : index_->parts(name)) {
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
  throw io_error("heddle: '" + (path() / detail::rank_file_name(rank)).string() + "' has no tensor '" +
                 std::string(name) + "'");
}

HEDDLE_INLINE void checkpoint_reader::read_region(std::string_view name, destination out,
                                                  const tensor_region& region) const {
  const std::string what = "heddle: '" + path().string() + "', tensor '" + std::string(name) + "': ";
  if (const std::string fault = detail::region_fault(region); !fault.empty()) throw io_error(what + fault);
  std::vector<const held*> used;
  std::int64_t found = 0;
  const auto parts = index_->parts(name);
  for (const held& h : parts) {
    require_dtype(h, out.dtype);
    if (h.entry.region.global != region.global)
      throw io_error(where(h) + "expected global shape [" + detail::join(region.global) + "], the file has [" +
                     detail::join(h.entry.region.global) + "]");
    if (!detail::overlap(h.entry.region, region)) continue;
    const bool replica =
        std::any_of(used.begin(), used.end(), [&](const held* u) { return u->entry.region == h.entry.region; });
    if (replica) continue;
    used.push_back(&h);
    found += copy_box(h, region, out);
  }
  if (parts.empty()) throw io_error(what + "no rank saved it");
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
  const auto size = static_cast<std::int64_t>(out.element_bytes);
  // Runs that follow each other closely are read at once: a request to a store takes as long as many bytes.
  const bool in_store = files_.from != nullptr;
  const std::int64_t gap = in_store ? std::int64_t{1} << 18 : 4096, most = std::int64_t{in_store ? 16 : 1} << 20;
  std::vector<run> runs;
  std::int64_t begin = 0, end = 0;
  const bool whole = shared == from.count();
  std::vector<std::byte> bytes;
  const detail::file_to_read file = files_.open(detail::rank_file_name(h.rank));
  const auto read = [&] {
    if (runs.empty()) return;
    const auto count = static_cast<std::size_t>(end - begin);
    // One run goes where it is wanted.
    const bool direct = runs.size() == 1;
    if (!direct) bytes.resize(count);
    const std::span<std::byte> there = direct ? std::span(out.data + runs[0].to, count) : std::span(bytes).first(count);
    file.require(there, h.entry.position + begin);
    index_->bytes_read += end - begin;
    std::int64_t checked = 0;
    if (const std::string fault = detail::fault_of_bytes(h.entry, there, begin, checked); !fault.empty())
      throw io_error(where(h) + fault);
    index_->bytes_unchecked += end - begin - checked;
    if (!direct)
      for (const run& r : runs)
        std::memcpy(out.data + r.to, bytes.data() + (r.from - begin), static_cast<std::size_t>(r.bytes));
    runs.clear();
  };
  heddle::v0::detail::for_each_run(
      both, from.local, to.local, [&](std::int64_t source, std::int64_t target, std::int64_t count) {
        const run next{source * size, target * size, count * size};
        if (!whole && !runs.empty() && (next.from - end > gap || next.from + next.bytes - begin > most)) read();
        if (runs.empty()) begin = next.from;
        end = next.from + next.bytes;
        runs.push_back(next);
      });
  read();
  return shared;
}

}  // namespace heddle::inline v0::io
