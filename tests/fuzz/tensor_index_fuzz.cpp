// Indexes of tensor files, their checksum made to match, and whole files: what is accepted lies inside the file and
// the tensors, and boxes overlap where elements do.
#include <heddle/io/tensor_file.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(tensor_index) {
  namespace io = heddle::io;
  static const fuzz::memory_file file;
  fuzz::bytes in(data, size);
  const bool whole = in.byte() % 8 == 7;
  std::string text(in.rest());
  if (!whole) {
    const std::string head = "heddle tensors 1\n" + std::string(512, '\0');
    std::string tail = "\nindex " + io::to_hex(static_cast<std::uint64_t>(head.size())) + " " +
                       io::to_hex(io::checksum(std::as_bytes(std::span<const char>(text))));
    tail.resize(63, ' ');
    text = head + text + tail + "\n";
  }
  file.fill(text);
  fuzz::accepted([&] {
    const auto entries = io::read_tensor_index(file.path());
    for (const io::tensor_entry& e : entries) {
      fuzz::require(e.position >= 0 && e.bytes >= 0 && e.position <= static_cast<std::int64_t>(text.size()) - e.bytes,
                    "a tensor lies in the file");
      fuzz::require(e.region.count() >= 0 && e.region.count() <= e.bytes, "a tensor has the bytes of its elements");
      fuzz::accepted([&] { io::read_tensor_bytes(file.path(), e); });
    }
    std::vector<const io::tensor_region*> parts;
    for (const io::tensor_entry& e : entries)
      if (e.region.global == entries.front().region.global && parts.size() < 50) parts.push_back(&e.region);
    bool expected = false;
    for (const auto* a : parts)
      for (const auto* b : parts) expected = expected || (!(*a == *b) && io::detail::overlap(*a, *b));
    fuzz::require(io::detail::partial_overlap(parts).has_value() == expected, "the sweep finds what all pairs have");
  });
}
