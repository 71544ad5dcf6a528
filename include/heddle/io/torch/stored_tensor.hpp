// heddle/io/torch/stored_tensor.hpp: finds the elements of a tensor that torch.save wrote.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/io/torch/metadata.hpp>
#include <heddle/io/torch/pickle.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

// The members of a zip archive in bytes [begin, begin + bytes) of a file, stored and not compressed: name behind the
// first '/', place and size.
// Errors: `io_error` for what is no such archive. Source: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3.7 to 4.3.16.
class stored_archive {
 public:
  struct member {
    std::int64_t header = 0, bytes = 0;
  };

  stored_archive(const input_file& file, std::int64_t begin, std::int64_t bytes, std::string where)
      : file_(&file), begin_(begin), bytes_(bytes), where_(std::move(where)) {
    if (begin < 0 || bytes < tail || begin > file.size() - bytes)
      fail("is no archive of torch.save: " + std::to_string(bytes) + " bytes from " + std::to_string(begin) +
           " on, the file has " + std::to_string(file.size()));
    const auto end = read(bytes - tail, tail);
    if (number(end, 0, 4) != 0x06054b50) fail("is no archive of torch.save: it has no end record");
    std::int64_t count = number(end, 10, 2), list = number(end, 16, 4), list_bytes = number(end, 12, 4);
    if (count == 0xffff || list == 0xffffffff || list_bytes == 0xffffffff) {
      const auto locator = read(bytes - tail - 20, 20);
      if (number(locator, 0, 4) != 0x07064b50) fail("has no end record of 64 bits");
      const auto wide = read(number(locator, 8, 8), 56);
      if (number(wide, 0, 4) != 0x06064b50) fail("has no end record of 64 bits");
      count = number(wide, 32, 8);
      list_bytes = number(wide, 40, 8);
      list = number(wide, 48, 8);
    }
    constexpr std::int64_t most = std::int64_t{1} << 20;
    if (list_bytes < 0 || list_bytes > most || count < 0 || count > list_bytes / 46)
      fail("has a damaged list of members");
    const auto entries = read(list, list_bytes);
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      if (at > list_bytes - 46 || number(entries, at, 4) != 0x02014b50) fail("has a damaged list of members");
      const std::int64_t name = number(entries, at + 28, 2), extra = number(entries, at + 30, 2);
      if (at + 46 + name + extra > list_bytes) fail("has a damaged list of members");
      member m{number(entries, at + 42, 4), number(entries, at + 24, 4)};
      std::int64_t stored = number(entries, at + 20, 4);
      for (std::int64_t e = at + 46 + name, last = e + extra; e + 4 <= last;) {
        const std::int64_t id = number(entries, e, 2), size = number(entries, e + 2, 2);
        std::int64_t field = e + 4;
        const auto widen = [&](std::int64_t& value) {
          if (value != 0xffffffff || field + 8 > (std::min)(last, e + 4 + size)) return;
          value = number(entries, field, 8);
          field += 8;
        };
        if (id == 1) widen(m.bytes), widen(stored), widen(m.header);
        e += 4 + size;
      }
      const std::string_view all(reinterpret_cast<const char*>(entries.data()) + at + 46,
                                 static_cast<std::size_t>(name));
      const auto slash = all.find('/');
      if (number(entries, at + 10, 2) == 0 && stored == m.bytes && m.bytes >= 0 && slash != all.npos)
        members_.emplace(all.substr(slash + 1), m);
      at += 46 + name + extra + number(entries, at + 32, 2);
    }
  }

  bool contains(const std::string& name) const { return members_.count(name) != 0; }
  std::int64_t bytes_of(const std::string& name) const { return find(name).bytes; }
  // Offset in the file of a member's first byte.
  std::int64_t position_of(const std::string& name) const {
    const member m = find(name);
    const auto head = read(m.header, 30);
    if (number(head, 0, 4) != 0x04034b50) fail("has no member '" + name + "' where its list says");
    const std::int64_t at = m.header + 30 + number(head, 26, 2) + number(head, 28, 2);
    if (at > bytes_ - m.bytes) fail("ends inside its member '" + name + "'");
    return begin_ + at;
  }
  std::vector<std::byte> contents_of(const std::string& name) const {
    constexpr std::int64_t most = std::int64_t{1} << 20;
    if (bytes_of(name) > most) fail("has a member '" + name + "' of more than a MiB");
    return read(position_of(name) - begin_, bytes_of(name));
  }
  [[noreturn]] void fail(const std::string& what) const { throw io_error("heddle: " + where_ + " " + what); }

 private:
  static constexpr std::int64_t tail = 22;

  member find(const std::string& name) const {
    const auto at = members_.find(name);
    if (at == members_.end()) fail("has no member '" + name + "' that is stored as it is");
    return at->second;
  }
  std::vector<std::byte> read(std::int64_t at, std::int64_t count) const {
    if (at < 0 || count < 0 || at > bytes_ - count) fail("is cut off");
    std::vector<std::byte> out(static_cast<std::size_t>(count));
    file_->read(begin_ + at, out);
    return out;
  }
  static std::int64_t number(const std::vector<std::byte>& from, std::int64_t at, int count) {
    std::uint64_t n = 0;
    for (int i = count; i-- > 0;) n = n << 8 | std::to_integer<std::uint64_t>(from[static_cast<std::size_t>(at + i)]);
    return static_cast<std::int64_t>(n);
  }

  const input_file* file_;
  std::int64_t begin_, bytes_;
  std::string where_;
  std::map<std::string, member, std::less<>> members_;
};

// The element type of a storage ("torch FloatStorage"), or null for one of bytes.
constexpr const safetensors_dtype* dtype_of_storage(std::string_view name) noexcept {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> all{{{"torch DoubleStorage", "F64"},
                                                                               {"torch FloatStorage", "F32"},
                                                                               {"torch HalfStorage", "F16"},
                                                                               {"torch BFloat16Storage", "BF16"},
                                                                               {"torch LongStorage", "I64"},
                                                                               {"torch IntStorage", "I32"},
                                                                               {"torch ShortStorage", "I16"},
                                                                               {"torch CharStorage", "I8"},
                                                                               {"torch ByteStorage", "U8"},
                                                                               {"torch BoolStorage", "BOOL"}}};
  for (const auto& [torch, ours] : all)
    if (torch == name) return find_safetensors_dtype(ours);
  return nullptr;
}

// Offset in the file of the first element of a tensor of these extents, row-major without gaps.
// `dtype`: as safetensors names it.
// Errors: `io_error` for another shape or type, elements in another order, and machines of another byte order.
inline std::int64_t position_of_stored(const input_file& file, std::int64_t begin, std::int64_t bytes,
                                       const std::vector<std::int64_t>& extents, const safetensors_dtype& dtype,
                                       const std::string& where) {
  const std::int64_t element_bytes = dtype.bits / 8;
  static constexpr auto allowed = std::to_array<std::string_view>({"torch._utils _rebuild_tensor_v2",
                                                                   "torch._utils _rebuild_tensor_v3",
                                                                   "collections OrderedDict",
                                                                   "torch DoubleStorage",
                                                                   "torch FloatStorage",
                                                                   "torch HalfStorage",
                                                                   "torch BFloat16Storage",
                                                                   "torch LongStorage",
                                                                   "torch IntStorage",
                                                                   "torch ShortStorage",
                                                                   "torch CharStorage",
                                                                   "torch ByteStorage",
                                                                   "torch BoolStorage",
                                                                   "torch UntypedStorage",
                                                                   "torch.storage UntypedStorage",
                                                                   "torch float8_e4m3fn",
                                                                   "torch float8_e5m2",
                                                                   "torch uint16",
                                                                   "torch uint32",
                                                                   "torch uint64"});
  const stored_archive archive(file, begin, bytes, where);
  if (archive.contains("byteorder")) {
    const auto order = archive.contents_of("byteorder");
    if (std::string_view(reinterpret_cast<const char*>(order.data()), order.size()) != "little")
      archive.fail("was written on a machine of another byte order");
  }
  const auto text = archive.contents_of("data.pkl");
  const pickle p(text, allowed, where + ", data.pkl");
  const auto expect = [&](bool is, const std::string& what) {
    if (!is) archive.fail("is no tensor as it was expected: " + what);
  };
  const pickle::value root = p.root();
  expect(root.kind() == pickle_kind::object, "no tensor");
  const auto arguments = p.items(p.object_arguments(root));
  expect(arguments.size() >= 4, "its arguments");
  const auto storage = p.items(p.stored_id(arguments[0]));
  expect(storage.size() == 5, "its storage");
  const std::string of = p.global(storage[1]);
  const safetensors_dtype* type = dtype_of_storage(of);
  if (type == nullptr && arguments.size() > 6 && arguments[6].kind() == pickle_kind::global)
    type = dtype_of_torch(p.global(arguments[6]));
  expect(type != nullptr && *type == dtype, "elements of " + shown_name(of) +
                                                (type == nullptr ? "" : " (" + std::string(type->name) + ")") + ", " +
                                                std::string(dtype.name) + " in .metadata");
  const auto sizes = p.items(arguments[2]), strides = p.items(arguments[3]);
  expect(sizes.size() == extents.size() && strides.size() == extents.size(),
         std::to_string(sizes.size()) + " dimensions, " + std::to_string(extents.size()) + " in .metadata");
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    expect(p.integer(sizes[d]) == extents[d], "extent " + std::to_string(p.integer(sizes[d])) + " of dimension " +
                                                  std::to_string(d) + ", " + std::to_string(extents[d]) +
                                                  " in .metadata");
    expect(extents[d] <= 1 || p.integer(strides[d]) == stride,
           "its elements are not in row-major order; save it as .contiguous()");
    stride *= extents[d];
  }
  const std::string member = "data/" + std::string(p.text(storage[2]));
  const std::int64_t first = p.integer(arguments[1]), there = archive.bytes_of(member);
  expect(
      first >= 0 && first <= there && stride <= there / element_bytes - first,
      std::to_string(there) + " bytes for " + std::to_string(stride) + " elements of " + std::to_string(element_bytes));
  return archive.position_of(member) + first * element_bytes;
}

}  // namespace heddle::inline v0::io::detail
