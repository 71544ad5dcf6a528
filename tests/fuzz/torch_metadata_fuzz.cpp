// The `.metadata` of PyTorch's checkpoints: parts of an accepted one fill their tensors, and are not more than files have.
#include <heddle/io/torch/metadata.hpp>

#include "fuzz.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

HEDDLE_FUZZ_TARGET(torch_metadata) {
  namespace io = heddle::io;
  fuzz::accepted([&] {
    const io::torch_metadata all = io::parse_torch_metadata(std::as_bytes(std::span(data, size)), "x");
    std::size_t parts = 0;
    for (const io::torch_record& t : all.tensors) {
      parts += t.chunks.size();
      std::int64_t elements = 0;
      for (const io::torch_chunk& c : t.chunks) {
        fuzz::require(c.offset.size() == t.shape.size() && c.extents.size() == t.shape.size(), "dimensions of a part");
        elements += io::tensor_region::elements_of(c.extents);
      }
      fuzz::require(elements >= t.count(), "parts have all elements");
    }
    fuzz::require(parts <= size, "parts are in the file");
  });
}
