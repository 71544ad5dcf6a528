// heddle/io/impl/save_index.hpp: bodies of heddle/io/save_index.hpp.
#pragma once

#include <heddle/io/save_index.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/save_names.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

inline constexpr std::string_view save_index_head = "heddle index 1\n";

// By tensor, else in the order they are in. Only the names of tensors are compared, not those of all parts.
inline void sort_by_tensor(std::vector<saved_part>& parts) {
  std::unordered_map<std::string_view, std::size_t> number;
  std::vector<std::string_view> names;
  std::vector<std::size_t> tensor(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [at, is_new] = number.try_emplace(parts[i].entry.name, names.size());
    if (is_new) names.push_back(at->first);
    tensor[i] = at->second;
  }
  std::vector<std::size_t> by_name(names.size()), begin(names.size(), 0), order(parts.size());
  for (std::size_t n = 0; n < names.size(); ++n) by_name[n] = n;
  std::sort(by_name.begin(), by_name.end(), [&](std::size_t a, std::size_t b) { return names[a] < names[b]; });
  for (const std::size_t n : tensor) ++begin[n];
  std::size_t next = 0;
  for (const std::size_t n : by_name) next += std::exchange(begin[n], next);
  for (std::size_t i = 0; i < parts.size(); ++i) order[begin[tensor[i]]++] = i;
  std::vector<saved_part> sorted;
  sorted.reserve(parts.size());
  for (const std::size_t i : order) sorted.push_back(std::move(parts[i]));
  parts = std::move(sorted);
}

HEDDLE_INLINE void require_parts_fit(const std::filesystem::path& save, std::vector<saved_part>& parts, coverage how) {
  sort_by_tensor(parts);
  std::vector<const tensor_region*> regions;
  for (std::size_t first = 0, end = 0; first < parts.size(); first = end) {
    const saved_part& a = parts[first];
    const std::string what = "heddle: '" + save.string() + "', tensor '" + a.entry.name + "': ";
    regions.clear();
    const saved_part* other = nullptr;  // of another shape
    for (; end < parts.size() && parts[end].entry.name == a.entry.name; ++end)
      if (parts[end].entry.region.global == a.entry.region.global)
        regions.push_back(&parts[end].entry.region);
      else
        other = &parts[end];
    if (other != nullptr)
      throw io_error(what + "rank " + std::to_string(other->rank) + " saved a part of shape [" +
                     join(other->entry.region.global) + "], rank " + std::to_string(a.rank) + " of [" +
                     join(a.entry.region.global) + "]");
    std::int64_t covered = 0;
    if (const auto found = partial_overlap(regions, &covered)) {
      const saved_part &b = parts[first + found->first], &c = parts[first + found->second];
      throw io_error(what + "rank " + std::to_string(c.rank) + " saved " + describe(c.entry.region) +
                     ", which overlaps " + describe(b.entry.region) + " of rank " + std::to_string(b.rank) +
                     "; parts of a tensor must be apart, or the same");
    }
    if (how == coverage::any) continue;
    if (const std::int64_t all = tensor_region::elements_of(a.entry.region.global); covered != all)
      throw io_error(what + "the ranks saved " + std::to_string(covered) + " of the " + std::to_string(all) +
                     " elements of [" + join(a.entry.region.global) + "]; a save has all of each tensor");
  }
}

HEDDLE_INLINE file_digest write_index(durable_file file, std::span<const saved_part> parts) {
  constexpr std::size_t block_bytes = std::size_t{1} << 16;
  file.write(save_index_head);
  std::string lines, blocks;
  std::string_view first;
  const auto end_block = [&] {
    if (lines.empty()) return;
    blocks += std::to_string(file.bytes()) + '\t' + std::to_string(lines.size()) + '\t' +
              to_hex(checksum(std::as_bytes(std::span<const char>(lines)))) + '\t' + std::string(first) + '\n';
    file.write(lines);
    lines.clear();
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const tensor_entry& e = parts[i].entry;
    if (lines.size() >= block_bytes && e.name != parts[i - 1].entry.name) end_block();
    if (lines.empty()) first = e.name;
    lines += std::to_string(parts[i].rank) + '\t' + to_line(e);
  }
  end_block();
  const std::string tail = file_tail("blocks", file.bytes(), blocks);
  file.write(blocks);
  file.write(tail);
  file.close();
  return {file.bytes(), file.checksum()};
}

HEDDLE_INLINE std::vector<tensor_entry> read_rank_index(const save_files& save, const rank_file& f) {
  const std::string name = rank_file_name(f.rank);
  if (save.from == nullptr) return read_tensor_index(save.path / name);
  return read_index_of(save.open(name), f.bytes, save.path / name);
}

HEDDLE_INLINE save_index::save_index(save_files save, const manifest& m) : save_(std::move(save)) {
  if (m.index_bytes == 0) {
    block& all = blocks_.emplace_back();
    all.is_read = true;
    for (const rank_file& f : m.files)
      for (tensor_entry& e : read_rank_index(save_, f)) all.parts.push_back({f.rank, std::move(e)});
    require_parts_fit(save_.path, all.parts, coverage::any);
    return;
  }
  const std::string where = "heddle: '" + (save_.path / index_name).string() + "': ";
  const file_to_read file = save_.open(index_name);
  const auto head_bytes = static_cast<std::int64_t>(save_index_head.size());
  std::string head(save_index_head.size(), ' ');
  if (m.index_bytes < head_bytes || (file.require(std::as_writable_bytes(std::span(head)), 0), head != save_index_head))
    throw io_error(where + "is not an index of version 1 of a save");
  std::int64_t end = 0;
  const std::string list = read_tail_list(file, where, "blocks", m.index_bytes, head_bytes, end);
  index_bytes_read = head_bytes + m.index_bytes - end;
  for (std::string_view rest = list; !rest.empty();) {
    std::string_view line = next_field(rest, '\n');
    block& b = blocks_.emplace_back();
    b.begin = parse_number<std::int64_t>(next_field(line, '\t'), 10, where + "block");
    const auto bytes = parse_number<std::int64_t>(next_field(line, '\t'), 10, where + "block");
    b.checksum = parse_number<std::uint64_t>(next_field(line, '\t'), 16, where + "block");
    b.first = std::string(line);
    if (b.begin < head_bytes || bytes < 0 || b.begin > end || bytes > end - b.begin)
      throw io_error(where + "is damaged: " + std::to_string(bytes) + " bytes at " + std::to_string(b.begin) +
                     " lie outside of its " + std::to_string(end));
    b.end = b.begin + bytes;
  }
}

HEDDLE_INLINE void save_index::read(block& b) {
  const std::string where = "heddle: '" + (save_.path / index_name).string() + "': ";
  std::string lines(static_cast<std::size_t>(b.end - b.begin), ' ');
  save_.open(index_name).require(std::as_writable_bytes(std::span(lines)), b.begin);
  index_bytes_read += b.end - b.begin;
  if (checksum(std::as_bytes(std::span<const char>(lines))) != b.checksum)
    throw io_error(where + "is damaged: the checksum of the block of tensor '" + b.first + "' is wrong");
  for (std::string_view rest = lines; !rest.empty();) {
    std::string_view line = next_field(rest, '\n');
    const auto rank = parse_number<std::int64_t>(next_field(line, '\t'), 10, where + "rank");
    b.parts.push_back({rank, parse_entry(line, where)});
  }
  b.is_read = true;
}

HEDDLE_INLINE std::span<const saved_part> save_index::parts(std::string_view name) {
  const std::lock_guard lock(mutex_);
  auto at = std::upper_bound(blocks_.begin(), blocks_.end(), name,
                             [](std::string_view n, const block& b) { return n < b.first; });
  if (at == blocks_.begin()) return {};
  block& b = *--at;
  if (!b.is_read) read(b);
  const auto begin = std::lower_bound(b.parts.begin(), b.parts.end(), name,
                                      [](const saved_part& p, std::string_view n) { return p.entry.name < n; });
  auto end = begin;
  while (end != b.parts.end() && end->entry.name == name) ++end;
  return {begin, end};
}

}  // namespace heddle::inline v0::io::detail
