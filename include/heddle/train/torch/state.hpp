// heddle/train/torch/state.hpp: brings a trainer's state to PyTorch and back.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/io/safetensors/parts.hpp>
#include <heddle/model/stacked_parameters.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/train/hugging_face/folder.hpp>
#include <heddle/train/nonfinite.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/texts_of_ranks.hpp>
#include <heddle/train/torch/names.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// "kind/parameter" of a save.
inline std::pair<std::string, std::string> kind_and_parameter(std::string_view name) {
  const auto slash = name.find('/');
  if (slash == name.npos) return {};
  return {std::string(name.substr(0, slash)), std::string(name.substr(slash + 1))};
}

// A box of a tensor of a save as a parameter: its published shape is `published` where it has the elements of that.
inline model::parameter parameter_of(std::string parameter, const io::tensor_region& region,
                                     const std::map<std::string, std::vector<std::int64_t>>& shapes) {
  model::parameter p;
  p.name = std::move(parameter);
  p.logical = region.global;
  p.local = region.local;
  p.start = region.offset;
  p.count = region.count();
  const auto known = shapes.find(p.name);
  p.shape = known != shapes.end() &&
                    io::tensor_region::elements_of(known->second) == io::tensor_region::elements_of(region.global)
                ? known->second
                : region.global;
  return p;
}

// Published shapes of a trainer's parameters on this rank.
template <class Stage>
void add_shapes(const Stage& stage, std::map<std::string, std::vector<std::int64_t>>& shapes) {
  const auto add = [&](const auto& table) {
    for (const auto& p : table)
      if constexpr (requires { std::vector<std::int64_t>(p.shape.begin(), p.shape.end()); })
        shapes.emplace(std::string(p.name), std::vector<std::int64_t>(p.shape.begin(), p.shape.end()));
  };
  add(stage.parameters());
  if constexpr (requires { stage.frozen_parameters(); }) add(stage.frozen_parameters());
}
template <class Trainer>
std::map<std::string, std::vector<std::int64_t>> shapes_of(Trainer& trainer) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (int k = 0; k < trainer.stages(); ++k) add_shapes(trainer.stage(k), shapes);
  return shapes;
}

// Tensors of a folder by name, from parts of a save's tensors: the same whichever parts of them a rank has.
class torch_outlines {
 public:
  torch_outlines(const torch_names& names, const std::map<std::string, std::vector<std::int64_t>>& shapes, bool masters)
      : names_(&names), shapes_(&shapes), masters_(masters) {}

  // Where masters are kept, they are the weights.
  bool is_written(std::string_view kind) const { return !kind.empty() && kind != (masters_ ? "weight" : "master"); }
  void add(std::string_view name, std::string_view dtype, const std::vector<std::int64_t>& global) {
    const auto [kind, parameter] = kind_and_parameter(name);
    if (!is_written(kind)) return;
    model::for_each_tensor(
        parameter_of(parameter, io::tensor_region::whole(global), *shapes_), [&](const model::parameter& one) {
          const model::source_name to = (*names_)(kind, one.name);
          auto shape = one.shape;
          if (to.how == stored_as::transposed) std::reverse(shape.begin(), shape.end());
          add_line(to.name, dtype, shape);
          if (kind != "weight" && kind != "master" && !names_->steps.empty())
            add_line(names_->optimizer + names_->of_parameter(one.name).name + "." + names_->steps, "f32", {});
        });
  }
  // As text, to be put together with those of others.
  std::string lines() const {
    std::string text;
    for (const std::string& line : lines_) text += line + '\n';
    return text;
  }
  static io::safetensors_plan plan(std::string_view text, std::int64_t most_bytes) {
    std::set<std::string_view> all;
    while (!text.empty()) all.insert(io::detail::next_field(text, '\n'));
    std::vector<io::safetensors_outline> tensors;
    for (std::string_view line : all) {
      io::safetensors_outline& t = tensors.emplace_back();
      t.name = std::string(io::detail::next_field(line, '\t'));
      t.dtype = std::string(io::detail::next_field(line, '\t'));
      t.shape = io::detail::split_numbers(line, "a tensor's shape");
    }
    return io::safetensors_plan(std::move(tensors), most_bytes);
  }

 private:
  void add_line(const std::string& name, std::string_view dtype, const std::vector<std::int64_t>& shape) {
    if (name.find_first_of("\t\n") != name.npos)
      throw config_error("heddle: '" + shown_name(name) + "' is no name for a tensor: it has a tab or a line's end");
    std::string type(dtype);
    for (char& c : type)
      if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    lines_.insert(name + "\t" + type + "\t" + io::detail::join(shape));
  }
  const torch_names* names_;
  const std::map<std::string, std::vector<std::int64_t>>* shapes_;
  bool masters_;
  std::set<std::string> lines_;
};

// Collects what would be written.
class torch_dry_writer final : public io::part_writer {
 public:
  explicit torch_dry_writer(torch_outlines& to) : to_(&to) {}
  void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte>,
                const io::tensor_region& region) override {
    to_->add(name, dtype, region.global);
  }

 private:
  torch_outlines* to_;
};

// Writes parts of a save's tensors into the files.
class torch_part_writer final : public io::part_writer {
 public:
  torch_part_writer(io::safetensors_part_writer& sink, const torch_outlines& of, const torch_names& names,
                    const std::map<std::string, std::vector<std::int64_t>>& shapes)
      : sink_(&sink), of_(&of), names_(&names), shapes_(&shapes) {}
  void add_part(std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                const io::tensor_region& region) override {
    const auto [kind, parameter] = kind_and_parameter(name);
    if (!of_->is_written(kind)) return;
    const auto as = [&]<class T>(std::type_identity<T>) {
      if (dtype != io::dtype_name<T>()) return;
      const std::span<const T> all(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
      model::for_each_tensor(parameter_of(parameter, region, *shapes_), [&](const model::parameter& one) {
        const model::source_name to = (*names_)(kind, one.name);
        model::detail::write_part(
            sink_->tensor(to.name), one, to,
            all.subspan(static_cast<std::size_t>(one.offset), static_cast<std::size_t>(one.count)), {});
      });
    };
    as(std::type_identity<double>{});
    as(std::type_identity<float>{});
    as(std::type_identity<bf16>{});
    as(std::type_identity<f16>{});
  }

 private:
  io::safetensors_part_writer* sink_;
  const torch_outlines* of_;
  const torch_names* names_;
  const std::map<std::string, std::vector<std::int64_t>>* shapes_;
};

// Reads boxes of a save's tensors from named tensors.
template <class Source>
class torch_part_reader {
 public:
  torch_part_reader(const Source& source, const torch_names& names,
                    const std::map<std::string, std::vector<std::int64_t>>& shapes)
      : source_(&source), names_(&names), shapes_(&shapes) {}
  template <class T>
  void read(std::string_view name, std::span<T> out, const io::tensor_region& region) const {
    const auto [kind, parameter] = kind_and_parameter(name);
    model::for_each_tensor(parameter_of(parameter, region, *shapes_), [&](const model::parameter& one) {
      const model::source_name from = (*names_)(kind, one.name);
      model::detail::read_part(source_->tensor(from.name), one, from,
                               out.subspan(static_cast<std::size_t>(one.offset), static_cast<std::size_t>(one.count)));
    });
  }

 private:
  const Source* source_;
  const torch_names* names_;
  const std::map<std::string, std::vector<std::int64_t>>* shapes_;
};

template <class Trainer, class F>
void each_frozen_stage([[maybe_unused]] Trainer& trainer, [[maybe_unused]] F&& f) {
  for (int k = 0; k < trainer.stages(); ++k)
    if constexpr (requires { trainer.stage(k).frozen_parameters(); })
      if (!saves_frozen_of(trainer.stage(k))) f(trainer.stage(k));
}

}  // namespace detail

/// Writes a trainer's weights (its masters where a `precision` keeps them), moments and number of steps as a folder of
/// safetensors. PyTorch 2.9 and later reads it with `torch.distributed.checkpoint.load` and
/// `HuggingFaceStorageReader`, into tensors of any DTensor layout. Called on all ranks of the trainer together, on any
/// mesh: each rank writes its own bytes into the shared files (of r ranks with the same elements each an r-th),
/// nothing is gathered. Returns the bytes of elements that this rank wrote. Errors, on all ranks: `io_error` if the
/// folder has a model, or the disk refuses; `config_error` as for `save`; `numeric_error` for a state that is not
/// finite.
template <class Trainer>
std::int64_t write_torch(Trainer& trainer, const std::filesystem::path& folder, const torch_names& names = {},
                         std::int64_t most_bytes = 5000000000) {
  detail::refuse_ahead(trainer);
  require_finite_state(trainer, "'" + folder.string() + "' is not written");
  auto& world = trainer.ranks();
  const auto shapes = detail::shapes_of(trainer);
  detail::torch_outlines outlines(names, shapes, [] {
    bool keeps = false;
    using optimizer = typename Trainer::optimizer_type;
    if constexpr (requires { optimizer::keeps_masters; }) keeps = optimizer::keeps_masters;
    return keeps;
  }());
  detail::torch_dry_writer dry(outlines);
  detail::write_state(dry, trainer, {});
  detail::each_frozen_stage(trainer, [&](auto& stage) {
    using T = typename std::remove_cvref_t<decltype(stage)>::scalar;
    for (const model::parameter& p : stage.frozen_parameters())
      if (p.count > 0 && p.counted) outlines.add("weight/" + p.name, io::dtype_name<T>(), p.logical);
  });
  const io::safetensors_plan plan =
      detail::torch_outlines::plan(detail::texts_of_ranks(world.control(), outlines.lines()), most_bytes);
  return write_together(world, folder, plan, [&](io::safetensors_part_writer& sink) {
    detail::torch_part_writer parts(sink, outlines, names, shapes);
    detail::write_state(parts, trainer, {});
    detail::each_frozen_stage(trainer, [&](auto& stage) {
      model::write_parameters(
          stage, world, sink, [&](std::string_view p) { return names("weight", p); }, model::which_parameters::frozen);
    });
    if (world.rank() == 0) write_steps(sink, plan, names, trainer.steps_done());
  });
}

/// Where a training from PyTorch goes on.
struct torch_position {
  std::int64_t step = 0;
  std::int64_t consumed = 0;  ///< samples
};

/// Fills a trainer's weights and moments from named tensors (a `tensor_source` such as `io::torch_folder` or
/// `io::safetensors_folder`), and sets its position: the next step is the one behind `at.step`. Called on all ranks of
/// the trainer together, on any mesh: each rank reads its share of what others hold, too, and gathers the rest. With a
/// `precision` that keeps masters, these are what is read, and the weights are rounded from them.
/// Errors, on all ranks: `io_error` if a tensor is missing or cannot be read; `layout_error` for another shape;
/// `numeric_error` for a state that is not finite. Weights and moments are undefined then.
template <class Trainer, class Source>
  requires tensor_source<Source, typename Trainer::scalar>
void read_torch(Trainer& trainer, const Source& source, const torch_position& at, const torch_names& names = {}) {
  detail::refuse_ahead(trainer);
  auto& all = trainer.ranks().control();
  const auto shapes = detail::shapes_of(trainer);
  const detail::torch_part_reader<Source> reader(source, names, shapes);
  std::string fault, misfit;
  try {
    for (int k = 0; k < trainer.stages(); ++k) detail::read_frozen(reader, trainer.stage(k));
    detail::each_frozen_stage(trainer, [&](auto& stage) {
      model::read_parameters(
          stage, source, [&](std::string_view p) { return names("weight", p); }, model::which_parameters::frozen);
    });
    detail::each_saved_bucket(trainer, [&](auto& stage, auto& optimizer, auto& group) {
      detail::read_stage(reader, stage, optimizer, group);
    });
  } catch (const io_error& e) {
    fault = e.what();
  } catch (const layout_error& e) {
    misfit = e.what();
  }
  detail::throw_together<io_error>(all, fault);
  detail::throw_together<layout_error>(all, misfit);
  detail::each_saved_bucket(trainer, [&](auto& stage, auto& optimizer, auto& group) {
    detail::gather_stage(reader, stage, optimizer, group);
  });
  require_finite_state(trainer, "the tensors are no state to go on from");
  trainer.set_position(at.step, at.consumed);
}

}  // namespace heddle::inline v0::train
