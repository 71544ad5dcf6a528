// heddle/model/hugging_face/weights.hpp: opens a folder's weights and checks them.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/write_parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// Refuses a folder with an adapter_config.json: transformers applies its adapter to the weights beside it, or to those of another folder, so
/// that these weights alone are another model.
/// Errors: `config_error` that says what to do.
inline void require_no_adapter(const std::filesystem::path& folder) {
  std::error_code none;
  if (!std::filesystem::exists(folder / "adapter_config.json", none)) return;
  const bool model = std::filesystem::exists(folder / "config.json", none);
  throw config_error("heddle: '" + folder.string() + "' has an adapter_config.json" +
                     (model ? " beside its config.json, an adapter that changes the model"
                            : " and no config.json: it is an adapter, not a model") +
                     ". Adapters are not applied: merge it into its model first, with merge_and_unload() and "
                     "save_pretrained() of peft's model" +
                     (model ? ", or take the adapter's files away to use the model without it" : ""));
}

namespace detail {
// Whether two tensors have the same shape and numbers.
template <class Folder>
bool are_same_numbers(const Folder& folder, const std::string& one, const std::string& other) {
  const auto a = folder.tensor(one), b = folder.tensor(other);
  std::int64_t count = 1;
  for (const std::int64_t n : a.shape()) count *= n;
  if (!std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(), b.shape().end())) return false;
  constexpr std::int64_t most = std::int64_t{1} << 18;
  std::vector<float> of_a, of_b;
  for (std::int64_t first = 0; first < count; first += most) {
    const auto n = static_cast<std::size_t>((std::min)(most, count - first));
    of_a.resize(n);
    of_b.resize(n);
    a.read(first, std::span<float>(of_a));
    b.read(first, std::span<float>(of_b));
    if (of_a != of_b) return false;
  }
  return true;
}
// Whether a tied configuration stands beside a head that is not the token embedding.
template <class Folder>
bool has_other_head(const hugging_face_model& about, const Folder& folder) {
  constexpr const char* head = "lm_head.weight";
  if (!about.tied || !folder.contains(head)) return false;
  const std::string embedding =
      names_in(folder)(about.family() == "gpt2" ? "wte.weight" : "model.embed_tokens.weight").name;
  return folder.contains(embedding) && !are_same_numbers(folder, embedding, head);
}
// Refuses a tensor that has several parameters and has not the rows of all of them, or more.
template <class Folder>
void require_rows_of_all(const Folder& folder, const hugging_face_names& names,
                         const std::vector<parameter_outline>& outlines) {
  std::map<std::string, std::vector<std::int64_t>> together;
  for (const parameter_outline& p : outlines) {
    const source_name from = names(p.name);
    if ((from.rows == rows_in_tensor::all && !from.is_piece()) || !folder.contains(from.name)) continue;
    extend_shape(together[from.name], p.shape, from);
  }
  for (const auto& [name, shape] : together) {
    const auto tensor = folder.tensor(name);
    if (!std::equal(shape.begin(), shape.end(), tensor.shape().begin(), tensor.shape().end()))
      throw layout_error("heddle: " + std::string(tensor.where()) + ": the parameters in it have together the shape " +
                         shown_extents(shape) + ", the tensor " + shown_extents(tensor.shape()));
  }
}
}  // namespace detail

/// The model that a folder's files hold: `about`, or, where the configuration ties the head to the token embedding and the files have an
/// `lm_head.weight` with other numbers, the same with a head of its own, which is what transformers loads. Where both are there it reads both.
/// Errors: those of reading.
template <class Folder>
hugging_face_model with_own_head(hugging_face_model about, const Folder& folder) {
  if (!detail::has_other_head(about, folder)) return about;
  about.tied = false;
  return about;
}

/// The opened files with a model's weights, and the names that its parameters have in them. Opened once for all ranks: each reads its
/// part by an `io::safetensors_reader` of `folder`.
template <class Folder>
struct hugging_face_weights {
  Folder folder;
  hugging_face_names names;
};

/// Opens a folder's weights as `Folder`, which is `io::safetensors_folder`, and checks that a model with these parameters reads all tensors in
/// them but saved constants (`is_saved_constant`), scales, and blocks that are not kept. Matrices in 8 bits read as their numbers times the scales of their blocks (`about.scales`).
/// Errors: those of opening; `config_error` for a folder with an adapter (`require_no_adapter`), for a tied model whose files have another head
/// (give what `with_own_head` says), and where tensors belong to no parameter of the model, as those of another model; `io_error` where a
/// matrix in 8 bits has no scales, or others than its blocks need. Names alone say no shapes: these are compared where the weights are read.
template <class Folder>
hugging_face_weights<Folder> open_weights(const std::filesystem::path& path, const hugging_face_model& about,
                                          const std::vector<std::string>& parameters) {
  require_no_adapter(path);
  Folder folder(path, about.scales);
  if (detail::has_other_head(about, folder))
    throw config_error("heddle: '" + path.string() +
                       "': config.json ties the head to the token embedding, and the files have another "
                       "lm_head.weight: take the model that with_own_head gives");
  hugging_face_names names = names_in(folder, about);
  names.kept = about.kept;
  require_all_read(parameters, folder.names(), names,
                   [&](std::string_view name) { return is_saved_constant(about, name) || folder.is_scales(name); });
  if (about.scales)  // before a rank begins to read
    for (const std::string& parameter : parameters)
      if (const std::string name = names(parameter).name; folder.contains(name)) static_cast<void>(folder.tensor(name));
  return {std::move(folder), names};
}
/// The same for a model with these outlines, or for a described one. A tensor that has several parameters one below the other, as files of
/// Phi-3 have queries, keys and values, must have the rows of all. Errors: those above; `layout_error` for other rows.
template <class Folder>
hugging_face_weights<Folder> open_weights(const std::filesystem::path& path, const hugging_face_model& about,
                                          const std::vector<parameter_outline>& outlines) {
  std::vector<std::string> parameters;
  for (const parameter_outline& p : outlines) parameters.push_back(p.name);
  hugging_face_weights<Folder> opened = open_weights<Folder>(path, about, parameters);
  detail::require_rows_of_all(opened.folder, opened.names, outlines);
  return opened;
}
template <class Folder, class In, class Block, class Out, class Other>
hugging_face_weights<Folder> open_weights(const std::filesystem::path& path, const hugging_face_model& about,
                                          const layers::language_model<In, Block, Out, Other>& described) {
  return open_weights<Folder>(path, about, parameter_outlines(described));
}

}  // namespace heddle::inline v0::model
