// heddle/train/weights.hpp: saves stages' weights without a trainer, and reads any save's.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/train/saved_frozen.hpp>
#include <heddle/train/saved_parameter.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// Writes a stage's weights into `folder`/step-N (`m.step`), as `save` writes those of a trainer but without moments; of those that are frozen such as change
/// between steps (`saves_frozen`). Called on all ranks of `world` together, with one stage on each. Each element is written once, by the first rank that holds it. `m.mesh` and `m.files` are
/// filled in. Returns the bytes of elements that this rank wrote.
/// Errors: `io_error` on the rank that failed; older saves stay as they were.
template <class Stage, class World>
std::int64_t save_weights(Stage& stage, World& world, const std::filesystem::path& folder, io::manifest m) {
  using T = typename Stage::scalar;
  using space = typename Stage::space;
  const auto copies = model::detail::copies_of_stage(stage, world);
  io::checkpoint_writer writer(folder, m.step, world.rank());
  std::int64_t bytes = detail::write_frozen(writer, stage);
  for (const model::parameter& p : stage.parameters()) {
    if (!p.counted || p.count == 0 || copies[model::detail::bucket_of(stage, p)].index != 0) continue;
    const auto here = part_of_row<space>(stage.weights(), p.offset, p.count);
    const auto values = read_on_host<T, space>(stage.queue(), here);
    writer.add("weight/" + p.name, std::span<const T>(values.elements()), {p.logical, p.start, p.local});
    bytes += p.count * static_cast<std::int64_t>(sizeof(T));
  }
  auto& all = world.control();
  const io::rank_file mine = writer.finish();
  m.mesh = to_string(world.mesh());
  m.files.resize(static_cast<std::size_t>(all.rank() == 0 ? all.size() : 0));
  all.gather(std::span<const io::rank_file>(&mine, 1), std::span<io::rank_file>(m.files), 0);
  if (all.rank() == 0) io::commit(folder, std::move(m));
  all.barrier();
  return bytes;
}

/// Fills the weights of a stage, but frozen ones that saves do not have, from a save, of `save_weights` or of a trainer, on any mesh: each rank reads the elements that it holds.
/// `kind`: what of a trainer's save is read, its weights or, for whoever wants them in the weights' place, moments ("first_moment/").
/// Returns the bytes of elements read.
/// Errors: `io_error` naming file and tensor, as for a save of another model or of other element types.
template <class Stage>
std::int64_t read_weights(Stage& stage, const io::checkpoint_reader& reader, const std::string& kind = "weight/") {
  using T = typename Stage::scalar;
  using space = typename Stage::space;
  const std::int64_t unchecked = reader.bytes_unchecked();
  std::int64_t bytes = kind == "weight/" ? detail::read_frozen(reader, stage) : 0;
  for (const model::parameter& p : stage.parameters()) {
    if (p.count == 0) continue;
    const auto here = part_of_row<space>(stage.weights(), p.offset, p.count);
    auto values = written_on_host<T, space>(stage.queue(), here);
    reader.read(kind + p.name, values.elements(), {p.logical, p.start, p.local});
    values.finish();
    bytes += p.count * static_cast<std::int64_t>(sizeof(T));
  }
  // Of parts that were read in part no checksum was compared: then those of whole files are.
  if (reader.bytes_unchecked() > unchecked) io::require_save(reader.path(), io::verify::contents);
  return bytes;
}

}  // namespace heddle::inline v0::train
