// heddle/io/impl/tensor_file.hpp: bodies of heddle/io/tensor_file.hpp.
#pragma once

#include <heddle/io/tensor_file.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

HEDDLE_INLINE std::int64_t tensor_region::elements_of(const std::vector<std::int64_t>& extents) noexcept {
  constexpr std::int64_t most = (std::numeric_limits<std::int64_t>::max)();
  std::int64_t n = 1;
  for (const std::int64_t e : extents)
    if (e <= 0) return 0;
  for (const std::int64_t e : extents) n = n > most / e ? most : n * e;
  return n;
}

}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE std::string join(const std::vector<std::int64_t>& numbers) {
  return heddle::v0::detail::joined_numbers(numbers, ",");
}

HEDDLE_INLINE std::string region_fault(const tensor_region& r) {
  if (r.offset.size() != r.global.size() || r.local.size() != r.global.size())
    return "its global shape, offset and local shape have " + std::to_string(r.global.size()) + ", " +
           std::to_string(r.offset.size()) + " and " + std::to_string(r.local.size()) + " dimensions";
  for (std::size_t d = 0; d < r.global.size(); ++d)
    if (r.global[d] < 0 || r.offset[d] < 0 || r.local[d] < 0 || r.local[d] > r.global[d] - r.offset[d])
      return "dimension " + std::to_string(d) + " of extent " + std::to_string(r.global[d]) + " has no " +
             std::to_string(r.local[d]) + " elements from index " + std::to_string(r.offset[d]) + " on";
  if (tensor_region::elements_of(r.global) > most_elements)
    return "the shape [" + join(r.global) + "] has more than " + std::to_string(most_elements) + " elements";
  return {};
}

HEDDLE_INLINE bool overlap(const tensor_region& a, const tensor_region& b) noexcept {
  bool common = a.count() > 0 && b.count() > 0;
  for (std::size_t d = 0; common && d < a.global.size(); ++d)
    common = a.offset[d] < b.offset[d] + b.local[d] && b.offset[d] < a.offset[d] + a.local[d];
  return common;
}

HEDDLE_INLINE std::optional<std::pair<std::size_t, std::size_t>> partial_overlap(
    std::span<const tensor_region* const> parts, std::int64_t* covered) {
  if (covered != nullptr) *covered = 0;
  if (parts.empty()) return {};
  const std::size_t dims = parts[0]->global.size();
  std::size_t sweep = 0, most = 0;
  for (std::size_t d = 0; d < dims; ++d) {
    std::vector<std::int64_t> begins;
    for (const tensor_region* r : parts) begins.push_back(r->offset[d]);
    std::sort(begins.begin(), begins.end());
    const auto apart = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (apart > most) most = apart, sweep = d;
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i]->count() > 0) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t k) {
    const tensor_region &a = *parts[i], &b = *parts[k];
    if (dims > 0 && a.offset[sweep] != b.offset[sweep]) return a.offset[sweep] < b.offset[sweep];
    return a.offset != b.offset ? a.offset < b.offset : a.local != b.local ? a.local < b.local : i < k;
  });
  std::vector<std::size_t> open;  // those that reach beyond where the sweep stands
  const tensor_region* last = nullptr;
  for (const std::size_t i : order) {
    const tensor_region& r = *parts[i];
    if (last != nullptr && r == *last) continue;  // a replica
    last = &r;
    if (covered != nullptr) *covered += r.count();
    std::size_t kept = 0;
    for (const std::size_t k : open) {
      if (overlap(*parts[k], r)) return std::pair((std::min)(i, k), (std::max)(i, k));
      if (parts[k]->offset[sweep] + parts[k]->local[sweep] > r.offset[sweep]) open[kept++] = k;
    }
    open.resize(kept);
    open.push_back(i);
  }
  return {};
}

}  // namespace detail
}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE void add_checksums(tensor_entry& e, std::span<const std::byte> bytes) {
  constexpr auto piece = static_cast<std::size_t>(checksum_piece);
  e.pieces.clear();
  if (bytes.size() <= piece) {
    e.checksum = io::checksum(bytes);
    return;
  }
  for (std::size_t at = 0; at < bytes.size(); at += piece)
    e.pieces.push_back(io::checksum(bytes.subspan(at, (std::min)(piece, bytes.size() - at))));
  e.checksum = io::checksum(std::as_bytes(std::span(e.pieces)));
}

HEDDLE_INLINE std::string fault_of_bytes(const tensor_entry& e, std::span<const std::byte> bytes, std::int64_t begin,
                                         std::int64_t& checked) {
  const auto fault = [&](std::span<const std::byte> part, std::uint64_t written) {
    checked += std::ssize(part);
    const std::uint64_t sum = io::checksum(part);
    return sum == written ? std::string() : " checksum is " + to_hex(sum) + ", " + to_hex(written) + " was written";
  };
  if (e.pieces.empty()) {
    if (std::ssize(bytes) != e.bytes) return {};
    const std::string found = fault(bytes, e.checksum);
    return found.empty() ? found : "is damaged: its" + found;
  }
  const std::int64_t end = begin + std::ssize(bytes), element = dtype_bytes(e.dtype);
  for (auto k = static_cast<std::size_t>((begin + checksum_piece - 1) / checksum_piece); k < e.pieces.size(); ++k) {
    const std::int64_t from = static_cast<std::int64_t>(k) * checksum_piece;
    const std::int64_t to = (std::min)(from + checksum_piece, e.bytes);
    if (to > end) break;
    const auto part = bytes.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from));
    if (const std::string found = fault(part, e.pieces[k]); !found.empty())
      return "elements " + std::to_string(from / element) + " to " + std::to_string(to / element) + " of " +
             describe(e.region) + " are damaged: their" + found;
  }
  return {};
}

HEDDLE_INLINE std::string to_line(const tensor_entry& e) {
  std::string line = e.name + '\t' + e.dtype + '\t' + join(e.region.global) + '\t' + join(e.region.offset) + '\t' +
                     join(e.region.local) + '\t' + std::to_string(e.position) + '\t' + std::to_string(e.bytes) + '\t' +
                     to_hex(e.checksum);
  for (std::size_t k = 0; k < e.pieces.size(); ++k) line += (k == 0 ? '\t' : ',') + to_hex(e.pieces[k]);
  return line + '\n';
}

HEDDLE_INLINE tensor_entry parse_entry(std::string_view line, const std::string& where) {
  tensor_entry e;
  e.name = std::string(next_field(line, '\t'));
  const std::string what = where + "tensor '" + e.name + "'";
  e.dtype = std::string(next_field(line, '\t'));
  e.region.global = split_numbers(next_field(line, '\t'), what);
  e.region.offset = split_numbers(next_field(line, '\t'), what);
  e.region.local = split_numbers(next_field(line, '\t'), what);
  e.position = parse_number<std::int64_t>(next_field(line, '\t'), 10, what);
  e.bytes = parse_number<std::int64_t>(next_field(line, '\t'), 10, what);
  e.checksum = parse_number<std::uint64_t>(next_field(line, '\t'), 16, what);
  while (!line.empty()) e.pieces.push_back(parse_number<std::uint64_t>(next_field(line, ','), 16, what));
  const std::string fault = region_fault(e.region);
  if (!fault.empty()) throw io_error(what + ": " + fault);
  if (dtype_bytes(e.dtype) == 0 || e.bytes != e.region.count() * dtype_bytes(e.dtype))
    throw io_error(what + ": " + std::to_string(e.bytes) + " bytes at " + std::to_string(e.position) + " do not fit " +
                   e.dtype + " [" + join(e.region.local) + "]");
  if (const auto n = (e.bytes + checksum_piece - 1) / checksum_piece; !e.pieces.empty() && std::ssize(e.pieces) != n)
    throw io_error(what + ": " + std::to_string(e.pieces.size()) + " checksums of the " + std::to_string(n) +
                   " pieces of " + std::to_string(e.bytes) + " bytes");
  return e;
}

HEDDLE_INLINE std::string file_tail(std::string_view word, std::int64_t begin, std::string_view list) {
  std::string tail = '\n' + std::string(word) + ' ' + to_hex(static_cast<std::uint64_t>(begin)) + ' ' +
                     to_hex(io::checksum(std::as_bytes(std::span<const char>(list))));
  tail.resize(tensor_file_tail - 1, ' ');
  return tail + '\n';
}

HEDDLE_INLINE std::string read_tail_list(const file_to_read& file, const std::string& where, std::string_view word,
                                         std::int64_t size, std::int64_t head, std::int64_t& begin) {
  const auto tail_bytes = static_cast<std::int64_t>(tensor_file_tail);
  std::string tail(tensor_file_tail, ' ');
  if (size >= head + tail_bytes) file.require(std::as_writable_bytes(std::span(tail)), size - tail_bytes);
  const std::string mark = '\n' + std::string(word) + ' ';
  if (tail.substr(0, mark.size()) != mark) throw io_error(where + "is cut off: it has no index");
  begin = static_cast<std::int64_t>(
      parse_number<std::uint64_t>(std::string_view(tail).substr(mark.size(), 16), 16, where + "index offset"));
  if (begin < head || begin > size - tail_bytes) throw io_error(where + "is damaged: its index lies outside it");
  std::string list(static_cast<std::size_t>(size - tail_bytes - begin), ' ');
  file.require(std::as_writable_bytes(std::span(list)), begin);
  if (to_hex(checksum(std::as_bytes(std::span<const char>(list)))) != tail.substr(mark.size() + 17, 16))
    throw io_error(where + "is damaged: the checksum of its index is wrong");
  return list;
}

}  // namespace detail

HEDDLE_INLINE file_digest tensor_file_writer::finish() {
  const std::string tail = detail::file_tail("index", file_.bytes(), index_);
  file_.write(index_);
  file_.write(tail);
  file_.close();
  return {file_.bytes(), file_.checksum()};
}

HEDDLE_INLINE void tensor_file_writer::add_part(std::string_view name, std::string_view dtype,
                                                std::span<const std::byte> bytes, const tensor_region& region) {
  const std::string where = "heddle: '" + file_.path().string() + "', tensor '" + std::string(name) + "': ";
  if (name.empty() || name.find_first_of("\t\n") != std::string_view::npos)
    throw io_error(where + "a name needs at least one character, and no tab or line break");
  if (const std::string fault = detail::region_fault(region); !fault.empty()) throw io_error(where + fault);
  const auto count = static_cast<std::int64_t>(bytes.size()) / (std::max)(dtype_bytes(dtype), 1);
  if (count != region.count())
    throw io_error(where + "the local shape [" + detail::join(region.local) + "] has " +
                   std::to_string(region.count()) + " elements, got " + std::to_string(count));
  std::vector<tensor_region>& parts = parts_[std::string(name)];
  for (const tensor_region& earlier : parts) {
    if (earlier.offset == region.offset)
      throw io_error(where + "the part at [" + detail::join(region.offset) + "] was added before");
    if (earlier.global == region.global && detail::overlap(earlier, region))
      throw io_error(where + "the part " + detail::describe(region) + " overlaps " + detail::describe(earlier) +
                     ", which was added before");
  }
  parts.push_back(region);
  static constexpr std::array<std::byte, detail::tensor_alignment> zeros{};
  if (const std::int64_t over = file_.bytes() % detail::tensor_alignment; over > 0)
    file_.write(std::span<const std::byte>(zeros).first(static_cast<std::size_t>(detail::tensor_alignment - over)));
  tensor_entry e{std::string(name), std::string(dtype), region, file_.bytes(), std::ssize(bytes)};
  detail::add_checksums(e, bytes);
  index_ += detail::to_line(e);
  file_.write(bytes);
}

HEDDLE_INLINE std::vector<tensor_entry> read_tensor_index(const std::filesystem::path& path) {
  const std::int64_t size = detail::bytes_of_file(path);
  return detail::read_index_of(detail::file_to_read(path, detail::links::refused), size, path);
}

HEDDLE_INLINE std::vector<tensor_entry> detail::read_index_of(const file_to_read& file, std::int64_t size,
                                                              const std::filesystem::path& shown) {
  const std::string where = "heddle: '" + shown.string() + "': ";
  const auto head_bytes = static_cast<std::int64_t>(detail::tensor_file_head.size());
  std::string head(detail::tensor_file_head.size(), ' ');
  if (size < head_bytes || (file.require(std::as_writable_bytes(std::span(head)), 0), head != detail::tensor_file_head))
    throw io_error(where + "is not a heddle tensor file of version 1");
  std::int64_t begin = 0;
  const std::string index = detail::read_tail_list(file, where, "index", size, head_bytes, begin);
  std::vector<tensor_entry> entries;
  for (std::string_view rest = index; !rest.empty();) {
    tensor_entry e = detail::parse_entry(detail::next_field(rest, '\n'), where);
    if (e.position < head_bytes || e.position > begin || e.bytes > begin - e.position)
      throw io_error(where + "tensor '" + e.name + "': " + std::to_string(e.bytes) + " bytes at " +
                     std::to_string(e.position) + " do not fit " + e.dtype + " [" + detail::join(e.region.local) + "]");
    entries.push_back(std::move(e));
  }
  return entries;
}

HEDDLE_INLINE std::vector<std::byte> read_tensor_bytes(const std::filesystem::path& path, const tensor_entry& e) {
  auto bytes = read_bytes(path, e.position, e.bytes, detail::links::refused);
  std::int64_t checked = 0;
  if (const std::string fault = detail::fault_of_bytes(e, bytes, 0, checked); !fault.empty())
    throw io_error("heddle: '" + path.string() + "', tensor '" + e.name + "': " + fault);
  return bytes;
}

}  // namespace heddle::inline v0::io
