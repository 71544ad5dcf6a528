// Safetensors files: what is accepted lies inside the file without holes, and written again it reads as the same.
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>

#include "fuzz.hpp"

#include <span>
#include <string>
#include <vector>

HEDDLE_FUZZ_TARGET(safetensors) {
  namespace io = heddle::io;
  // The first byte says whether the length of the header is set right, which a fuzzer does not find by itself.
  fuzz::bytes in(data, size);
  const unsigned how = in.byte();
  std::string text(in.rest());
  if (how % 4 != 0) {
    const auto end = text.find_last_of('}');
    const std::size_t length = end == std::string::npos ? text.size() : end + 1;
    std::string head;
    for (int i = 0; i < 8; ++i) head += static_cast<char>(length >> (8 * i) & 0xff);
    text = head + text;
  }
  const auto bytes = [](const std::string& t) { return std::as_bytes(std::span<const char>(t)); };
  fuzz::accepted([&] {
    const io::safetensors_header h = io::parse_safetensors(bytes(text), "x");
    std::vector<io::safetensors_output> tensors;
    std::int64_t at = h.data_begin;
    for (const io::safetensors_entry& e : h.tensors) {
      fuzz::require(e.begin == at && e.end >= e.begin, "tensors follow each other");
      at = e.end;
      const auto of = bytes(text).subspan(static_cast<std::size_t>(e.begin), static_cast<std::size_t>(e.bytes()));
      tensors.push_back({e.name, std::string(e.dtype.name), e.shape, of});
      std::vector<float> values(static_cast<std::size_t>(e.count()));
      if (io::converts_to<float>(e.dtype.name)) io::convert_elements(e.dtype.name, of.data(), values.data(), e.count());
    }
    fuzz::require(at == static_cast<std::int64_t>(text.size()), "tensors fill the file");
    const std::span<const io::safetensors_output> outputs(tensors);
    for (const io::safetensors_order order : {io::safetensors_order::given, io::safetensors_order::reference}) {
      std::string again =
          io::detail::safetensors_head(io::detail::ordered_outputs(outputs, order, "heddle: "), h.metadata, "heddle: ");
      for (const auto* t : io::detail::ordered_outputs(outputs, order, "heddle: "))
        again.append(reinterpret_cast<const char*>(t->bytes.data()), t->bytes.size());
      const io::safetensors_header same = io::parse_safetensors(bytes(again), "x");
      fuzz::require(same.metadata == h.metadata && same.tensors.size() == h.tensors.size(),
                    "what is written reads back");
      if (order == io::safetensors_order::given)
        for (std::size_t i = 0; i < same.tensors.size(); ++i)
          fuzz::require(same.tensors[i].name == h.tensors[i].name && same.tensors[i].shape == h.tensors[i].shape &&
                            same.tensors[i].dtype == h.tensors[i].dtype,
                        "tensors read back in order");
    }
  });
}
#endif
