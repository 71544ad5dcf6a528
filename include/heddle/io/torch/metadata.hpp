// heddle/io/torch/metadata.hpp: reads which tensors a folder of PyTorch has (`.metadata`).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/tensor_file.hpp>
#include <heddle/io/torch/pickle.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {

/// A box of a tensor, and where its bytes are. Units: `begin` and `bytes` of the file, in bytes.
struct torch_chunk {
  std::vector<std::int64_t> offset, extents;
  std::string file;  ///< a name in the folder
  std::int64_t begin = 0, bytes = 0;
};

/// A tensor that ranks have written in boxes.
struct torch_record {
  std::string name;
  safetensors_dtype dtype;
  std::vector<std::int64_t> shape;
  std::vector<torch_chunk> chunks;

  /// Elements.
  std::int64_t count() const noexcept { return tensor_region::elements_of(shape); }
};

/// What a folder has: tensors, sorted by name, and names of what is no tensor (numbers, lists: `torch.load` reads
/// them) or has elements of a type that is not read (complex64, float8_e4m3fnuz).
struct torch_metadata {
  std::vector<torch_record> tensors;
  std::vector<std::string> others;
};

namespace detail {

/// The element type that safetensors has for a type of PyTorch ("torch float32"), or null.
constexpr const safetensors_dtype* dtype_of_torch(std::string_view name) noexcept {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 15> all{{
      {"torch float64", "F64"},
      {"torch float32", "F32"},
      {"torch float16", "F16"},
      {"torch bfloat16", "BF16"},
      {"torch float8_e4m3fn", "F8_E4M3"},
      {"torch float8_e5m2", "F8_E5M2"},
      {"torch int64", "I64"},
      {"torch int32", "I32"},
      {"torch int16", "I16"},
      {"torch int8", "I8"},
      {"torch uint8", "U8"},
      {"torch uint16", "U16"},
      {"torch uint32", "U32"},
      {"torch uint64", "U64"},
      {"torch bool", "BOOL"},
  }};
  for (const auto& [torch, ours] : all)
    if (torch == name) return find_safetensors_dtype(ours);
  return nullptr;
}

// Errors: `io_error` if a chunk is no box of its tensor, chunks overlap or have not all elements together. `where`
// begins errors.
inline void require_chunks(const torch_record& t, const std::string& where) {
  const std::string of = where + "tensor '" + shown_name(t.name) + "': ";
  std::vector<tensor_region> regions;
  for (const torch_chunk& c : t.chunks) {
    regions.push_back({t.shape, c.offset, c.extents});
    if (const std::string fault = region_fault(regions.back()); !fault.empty()) throw io_error(of + fault);
  }
  std::vector<const tensor_region*> parts;
  for (const tensor_region& r : regions) parts.push_back(&r);
  std::int64_t covered = 0;
  if (const auto both = partial_overlap(parts, &covered))
    throw io_error(of + "its parts " + describe(regions[both->first]) + " and " + describe(regions[both->second]) +
                   " overlap");
  if (covered != t.count())
    throw io_error(of + "its parts have " + std::to_string(covered) + " of its " + std::to_string(t.count()) +
                   " elements");
}

inline bool is_plain_file_name(std::string_view name) noexcept {
  const auto bad = [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '/' || c == '\\'; };
  return !name.empty() && name != "." && name != ".." && std::none_of(name.begin(), name.end(), bad);
}

// Reads the records of a `.metadata`.
class torch_metadata_reader {
 public:
  using value = pickle::value;
  static constexpr std::size_t most_dimensions = 64;

  torch_metadata_reader(std::span<const std::byte> text, const std::string& what)
      : what_(what), pickle_(text, allowed(), what) {}

  /// What a `.metadata` names.
  static std::span<const std::string_view> allowed() {
    static constexpr auto names =
        std::to_array<std::string_view>({"torch.distributed.checkpoint.metadata Metadata",
                                         "torch.distributed.checkpoint.metadata TensorStorageMetadata",
                                         "torch.distributed.checkpoint.metadata BytesStorageMetadata",
                                         "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
                                         "torch.distributed.checkpoint.metadata TensorProperties",
                                         "torch.distributed.checkpoint.metadata MetadataIndex",
                                         "torch.distributed.checkpoint.metadata StorageMeta",
                                         "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
                                         "torch.distributed.checkpoint.filesystem _StorageInfo",
                                         "torch.distributed._shard.sharded_tensor.metadata MEM_FORMAT_ENCODING",
                                         "torch.distributed._shard.sharded_tensor.metadata TensorProperties",
                                         "torch.serialization _get_layout",
                                         "torch Size",
                                         "torch device",
                                         "collections OrderedDict",
                                         "collections defaultdict",
                                         "builtins dict",
                                         "builtins list",
                                         "builtins set",
                                         "builtins tuple",
                                         "pathlib Path",
                                         "pathlib PosixPath",
                                         "pathlib PurePosixPath",
                                         "pathlib._local PosixPath",
                                         "torch float64",
                                         "torch float32",
                                         "torch float16",
                                         "torch bfloat16",
                                         "torch float8_e4m3fn",
                                         "torch float8_e5m2",
                                         "torch float8_e4m3fnuz",
                                         "torch float8_e5m2fnuz",
                                         "torch complex64",
                                         "torch complex128",
                                         "torch int64",
                                         "torch int32",
                                         "torch int16",
                                         "torch int8",
                                         "torch uint8",
                                         "torch uint16",
                                         "torch bool",
                                         "torch uint32",
                                         "torch uint64"});
    return names;
  }

  torch_metadata read() {
    const value state = state_of(pickle_.root(), "torch.distributed.checkpoint.metadata Metadata");
    read_stored(pickle_.find(state, "storage_data"));
    refuse_flattened(state);
    torch_metadata all;
    const auto named = pickle_.items(pickle_.find(state, "state_dict_metadata"));
    for (std::size_t i = 0; i + 1 < named.size(); i += 2) {
      std::string name(pickle_.text(named[i]));
      const std::string of = pickle_.global(pickle_.object_class(named[i + 1]));
      if (of == "torch.distributed.checkpoint.metadata BytesStorageMetadata")
        all.others.push_back(std::move(name));
      else if (auto t = tensor(name, named[i + 1]))
        all.tensors.push_back(std::move(*t));
      else
        all.others.push_back(std::move(name));
    }
    std::sort(all.tensors.begin(), all.tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (std::size_t i = 1; i < all.tensors.size(); ++i)
      if (all.tensors[i].name == all.tensors[i - 1].name)
        throw io_error(where() + "tensor '" + shown_name(all.tensors[i].name) + "' comes twice");
    std::sort(all.others.begin(), all.others.end());
    return all;
  }

 private:
  std::string where() const { return "heddle: " + what_ + ": "; }

  // Attributes of an object of a class, as a dict.
  value state_of(value object, std::string_view of) const {
    if (object.kind() != pickle_kind::object || pickle_.global(pickle_.object_class(object)) != of)
      pickle_.refuse(object, "an object of " + std::string(of));
    const value state = pickle_.object_state(object);
    if (state.kind() != pickle_kind::dict) pickle_.refuse(state, "attributes of " + std::string(of));
    return state;
  }
  // torch.Size, or a tuple or list of numbers.
  std::vector<std::int64_t> extents(value v) const {
    if (v.kind() == pickle_kind::object) {
      const auto arguments = pickle_.items(pickle_.object_arguments(v));
      if (pickle_.global(pickle_.object_class(v)) != "torch Size" || arguments.size() != 1)
        pickle_.refuse(v, "a torch.Size");
      v = arguments[0];
    }
    std::vector<std::int64_t> all;
    for (const value n : pickle_.items(v)) {
      if (all.size() == most_dimensions) throw io_error(where() + "a shape of more than 64 dimensions");
      all.push_back(pickle_.integer(n));
      if (all.back() < 0) throw io_error(where() + "an extent of " + std::to_string(all.back()));
    }
    return all;
  }

  // Where the parts are, by tensor and offset: what has no offset stands under none.
  void read_stored(value table) {
    const auto all = pickle_.items(table);
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
      const value key = state_of(all[i], "torch.distributed.checkpoint.metadata MetadataIndex");
      const value offset = pickle_.find(key, "offset");
      stored_.insert_or_assign({pickle_.text(pickle_.find(key, "fqn")),
                                pickle_.is_none(offset) ? std::vector<std::int64_t>() : extents(offset)},
                               all[i + 1]);
    }
  }
  void refuse_flattened(value state) const {
    const value extra = pickle_.find(state, "mcore_data");
    if (extra.kind() != pickle_kind::dict) return;
    const auto all = pickle_.items(extra);
    for (std::size_t i = 0; i + 1 < all.size(); i += 2)
      if (all[i + 1].kind() == pickle_kind::dict &&
          !pickle_.is_none(pickle_.find(all[i + 1], "nd_reformulated_orig_global_shape")))
        throw io_error(where() + "tensor '" + shown_name(std::string(pickle_.text(all[i]))) +
                       "' was saved by flattened ranges of ranks (flattened_range), which are not read: save it with "
                       "the optimizer's fully_sharded_model_space or fully_reshardable format");
  }

  // Nothing for a tensor whose elements are of a type that is not read.
  std::optional<torch_record> tensor(const std::string& name, value object) {
    const std::string of = where() + "tensor '" + shown_name(name) + "': ";
    const value state = state_of(object, "torch.distributed.checkpoint.metadata TensorStorageMetadata");
    torch_record t;
    t.name = name;
    t.shape = extents(pickle_.find(state, "size"));
    const value properties = pickle_.find(state, "properties");
    value type = pickle_.object_state(properties);
    if (type.kind() == pickle_kind::dict) {
      type = pickle_.find(type, "dtype");
    } else {
      const auto all = pickle_.items(type);
      if (all.empty()) pickle_.refuse(type, "the properties of a tensor");
      type = all[0];
    }
    const std::string type_name = pickle_.global(type);
    const safetensors_dtype* const dtype = dtype_of_torch(type_name);
    if (dtype == nullptr) return std::nullopt;
    t.dtype = *dtype;
    const auto chunks = pickle_.items(pickle_.find(state, "chunks"));
    chunks_ += chunks.size();
    if (chunks_ > stored_.size())
      throw io_error(of + "more parts than the " + std::to_string(stored_.size()) + " that files have");
    for (const value chunk : chunks) {
      const value box = state_of(chunk, "torch.distributed.checkpoint.metadata ChunkStorageMetadata");
      torch_chunk& c = t.chunks.emplace_back();
      c.offset = extents(pickle_.find(box, "offsets"));
      c.extents = extents(pickle_.find(box, "sizes"));
      auto at = stored_.find({std::string_view(t.name), c.offset});
      if (at == stored_.end() && chunks.size() == 1) at = stored_.find({std::string_view(t.name), {}});
      if (at == stored_.end()) throw io_error(of + "no file has its part at " + shown_extents(c.offset));
      const value info = state_of(at->second, "torch.distributed.checkpoint.filesystem _StorageInfo");
      c.file = std::string(pickle_.text(pickle_.find(info, "relative_path")));
      if (!is_plain_file_name(c.file))
        throw io_error(of + "'" + shown_name(c.file) + "' is no name of a file in the same folder");
      c.begin = pickle_.integer(pickle_.find(info, "offset"));
      c.bytes = pickle_.integer(pickle_.find(info, "length"));
      if (c.begin < 0 || c.bytes < 0 || c.begin > most_elements || c.bytes > most_elements)
        throw io_error(of + std::to_string(c.bytes) + " bytes from " + std::to_string(c.begin) + " on of '" +
                       shown_name(c.file) + "'");
      if (const value changed = pickle_.find(info, "transform_descriptors");
          !pickle_.is_none(changed) && !pickle_.items(changed).empty())
        throw io_error(of + "its bytes are transformed (compressed, say), which is not read");
    }
    require_chunks(t, where());
    return t;
  }

  std::string what_;
  pickle pickle_;
  std::map<std::pair<std::string_view, std::vector<std::int64_t>>, value> stored_;
  std::size_t chunks_ = 0;
};

}  // namespace detail

/// The `.metadata` of a folder that `torch.distributed.checkpoint.save` wrote (PyTorch 2.1 to 2.15; Megatron's
/// torch_dist is one), from its bytes. Nothing in it is called. `what` names it in errors.
/// Errors: `io_error` with the offset for what is no pickle of these records; with the tensor for parts that overlap,
/// or leave elements out, or that no file has, compressed bytes, names of files in other folders, and Megatron's
/// flattened ranges.
inline torch_metadata parse_torch_metadata(std::span<const std::byte> text, const std::string& what) {
  return detail::torch_metadata_reader(text, what).read();
}

}  // namespace heddle::inline v0::io
