// Converts a model between a folder of Hugging Face, of PyTorch, and a save of heddle, each rank its own part, on any mesh.
// run: --from @SOURCE_DIR@/tests/golden/models/llama3 --to out --mesh pp=2,tp=2 --max-file-bytes 30000
// prints: llama  3 layers of width 36: 30 tensors, 94752 bytes
// prints: rank 3 (dp 0, pp 1, tp 1)
// prints: wrote 4 files of 94752 bytes of weights to 'out'
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/io/output_folder.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/torch/folder.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/described_weights.hpp>
#include <heddle/model/families.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/hugging_face/byte_gpt2.hpp>
#include <heddle/train/hugging_face/folder.hpp>
#include <heddle/train/torch/names.hpp>
#include <heddle/train/torch/shards.hpp>
#include <heddle/train/weights.hpp>

#include "model_folder.hpp"
#include "tool.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::ep, hd::tp;

namespace {

struct settings {
  std::string from, to, config, blocks, mesh = "dp=1", format = "huggingface";
  std::vector<std::string> ignored_keys;
  std::int64_t most_bytes = 5000000000;
  bool dry_run = false, with_moments = false;

  bool writes_files() const { return format != "heddle"; }
  bool is_for_torch() const { return format.starts_with("torch"); }
  bool is_sharded() const { return format == "torch-sharded"; }
  std::string folder_of_config() const { return config.empty() ? from : config; }
};

// Any kind of folder: weights of Hugging Face or of PyTorch's ranks, or the newest save of heddle.
struct source {
  std::optional<io::safetensors_folder> published;
  std::optional<io::torch_folder> torch;
  std::optional<io::checkpoint_reader> saved;

  // `first`: a parameter of the model.
  source(const std::string& folder, std::optional<hd::quantized_weights> scales, const std::string& first) {
    if (const auto path = save_in(folder))
      saved.emplace(*path);
    else if (io::torch_folder::is_one(folder))
      torch.emplace(folder);
    else
      published.emplace(folder, scales);
    if (published && !published->contains(md::names_in(*published)(first).name)) {  // as --format torch names them
      torch.emplace(folder);
      published.reset();
    }
  }

  // A save, or the newest one in a folder of saves.
  static std::optional<std::filesystem::path> save_in(const std::filesystem::path& folder) {
    if (std::filesystem::exists(folder / "manifest")) return folder;
    const io::search_result found = io::latest(folder);
    io::require_readable(found, folder);
    if (!found.save) return std::nullopt;
    return found.save->path;
  }
};

// What goes with the weights: config.json, and how other files are written into a folder.
struct beside_weights {
  std::string config, dtype;  // the type of elements that files do not say, as in "F32"
  std::function<void(const std::filesystem::path&)> write;
};

// What a save made here says of the files that it was made from.
constexpr const char *types_fact = "stored types", *prefix_fact = "stored prefix";

// "name=F32 ..." of tensors that have another type than the model's, and back.
std::string types_text(const io::safetensors_plan& plan, const std::string& dtype) {
  std::string text;
  for (const io::safetensors_outline& t : plan.tensors())
    if (t.dtype != dtype) text += (text.empty() ? "" : " ") + t.name + "=" + t.dtype;
  return text;
}
io::safetensors_plan with_types(const io::safetensors_plan& plan, const std::string& text, std::int64_t most_bytes) {
  auto tensors = plan.tensors();
  std::istringstream words(text);
  for (std::string word; words >> word;)
    for (io::safetensors_outline& t : tensors)
      if (const auto equals = word.rfind('='); word.compare(0, equals, t.name) == 0) t.dtype = word.substr(equals + 1);
  return io::safetensors_plan(std::move(tensors), most_bytes);
}

// What stands before the names of parameters in a folder of PyTorch. Errors: `config_error` for one of another model.
std::string prefix_in(const io::torch_folder& folder, const md::hugging_face_model& about,
                      const std::vector<md::parameter_outline>& outlines) {
  const std::string& first = outlines.front().name;
  std::vector<std::string> parameters, of_model;
  for (const md::parameter_outline& p : outlines) parameters.push_back(p.name);
  for (const std::string& name : folder.names()) {
    if (!name.ends_with(first) || name.starts_with(hd::train::torch_names{}.optimizer)) continue;
    md::hugging_face_names names = md::names_of(about);
    names.prefix = name.substr(0, name.size() - first.size());
    names.kept = about.kept;
    for (const std::string& other : folder.names())
      if (other.starts_with(names.prefix) &&
          !(names.prefix.empty() && other.starts_with(hd::train::torch_names{}.optimizer)))
        of_model.push_back(other);
    md::require_all_read(parameters, of_model, names, [&](std::string_view constant) {
      return md::is_saved_constant(about, constant.substr(names.prefix.size()));
    });
    return names.prefix;
  }
  throw hd::config_error("heddle: '" + folder.path().string() + "' has no tensor whose name ends with '" + first +
                         "', but " + std::to_string(folder.names().size()) + " others");
}

// The moments of a save, as it calls them.
std::vector<std::string> slots_of(const settings& s, const source& from,
                                  const std::vector<md::parameter_outline>& outlines) {
  std::vector<std::string> slots;
  if (!s.with_moments) return slots;
  if (!from.saved || !s.is_for_torch())
    throw hd::config_error("heddle: --with-moments converts a save of heddle to --format torch or torch-sharded");
  for (const char* slot : {"first_moment", "second_moment", "momentum"})
    if (from.saved->contains(std::string(slot) + "/" + outlines.front().name)) slots.emplace_back(slot);
  if (slots.empty())
    throw hd::config_error("heddle: '" + from.saved->path().string() + "' has no moments of '" + outlines.front().name +
                           "'");
  return slots;
}
// The plan with PyTorch's names, and moments behind the weights.
io::safetensors_plan for_torch(const io::safetensors_plan& plan, const hd::train::torch_names& names,
                               const std::vector<std::string>& slots, std::string_view dtype, std::int64_t most_bytes) {
  auto tensors = plan.tensors();
  for (const io::safetensors_outline& t : plan.tensors()) {
    for (const std::string& slot : slots) tensors.push_back({names(slot, t.name).name, std::string(dtype), t.shape});
    if (!slots.empty()) tensors.push_back({names.optimizer + t.name + "." + names.steps, "F32", {}});
  }
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) tensors[i].name = names.weights + tensors[i].name;
  return io::safetensors_plan(std::move(tensors), most_bytes);
}

// `make(mesh, rank, part)` gives a rank's weights.
template <class scalar, class Make>
void convert(const settings& s, const md::hugging_face_model& about, const beside_weights& beside,
             io::output_folder* out, const Make& make) {
  const std::string in_words = to_string(md::any_config(about)) + " " + std::string(io::dtype_name<scalar>());
  const std::string& dtype = beside.dtype;
  const md::any_config config(about);
  const auto mesh = mesh_for(s.mesh, config);
  const auto outlines = md::outlines_of<float>(config);
  const source from(s.from, about.scales, outlines.front().name);
  md::hugging_face_names names = md::names_of(about), of_source;
  if (from.saved && !about.kept.numbers.empty())
    throw hd::config_error("heddle: --blocks takes weights of Hugging Face or PyTorch, '" +
                           from.saved->path().string() + "' is a save of heddle: convert it first");
  if (from.published) {
    of_source = md::names_in(*from.published, about);
    names = of_source.written();
    of_source.kept = about.kept;
    std::vector<std::string> parameters;
    for (const md::parameter_outline& p : outlines) parameters.push_back(p.name);
    md::require_all_read(parameters, from.published->names(), of_source, [&](std::string_view name) {
      return md::is_saved_constant(about, name) || from.published->is_scales(name);
    });
  }
  const auto fact = [&](const char* name) {
    const auto& facts = from.saved->manifest().facts;
    const auto at = facts.find(name);
    return at == facts.end() ? std::optional<std::string>() : at->second;
  };
  if (from.saved) names.prefix = fact(prefix_fact).value_or(names.prefix);
  if (from.torch) {
    of_source = md::names_of(about);
    of_source.prefix = prefix_in(*from.torch, about, outlines);
    of_source.kept = about.kept;
  }
  const hd::train::torch_names in_torch;
  const std::vector<std::string> slots = slots_of(s, from, outlines);
  auto plan = hd::train::hugging_face_plan(outlines, names, dtype, s.most_bytes);
  if (from.saved) plan = with_types(plan, fact(types_fact).value_or(""), s.most_bytes);
  if (from.published) {  // each tensor keeps its type; matrices in fewer bits get that of the model
    plan = hd::train::with_types_of(*from.published, plan, s.most_bytes, about.kept);
    for (const io::safetensors_outline& t : plan.tensors())
      if (const auto tensor = from.published->tensor(md::name_in_files(about.kept, t.name));
          t.dtype != tensor.dtype() && !tensor.is_quantized())
        throw hd::config_error("heddle: " + tensor.where() + ": elements of type " + std::string(tensor.dtype()) +
                               " do not come back from float; F32, BF16 and F16 do");
  }
  const md::hugging_face_names published = names;
  if (s.is_for_torch()) {
    names.prefix = in_torch.weights + names.prefix;
    plan = for_torch(plan, in_torch, slots, io::safetensors_dtype_name<scalar>(), s.most_bytes);
  }
  std::printf("%s  %d layers of width %d: %zu tensors, %lld bytes\n", std::string(about.family()).c_str(),
              config.layers, config.width, plan.tensors().size(), static_cast<long long>(plan.data_bytes()));
  if (s.writes_files())
    for (const auto& file : plan.files()) {
      if (!s.is_sharded())
        std::printf("  %s  %zu tensors, %lld bytes\n", file.name.c_str(), file.tensors.size(),
                    static_cast<long long>(file.bytes));
      for (const std::size_t i : file.tensors)
        if (s.dry_run)
          std::printf("    %s  %s, %lld elements\n", plan.tensors()[i].name.c_str(), plan.tensors()[i].dtype.c_str(),
                      static_cast<long long>(plan.tensors()[i].count()));
    }
  if (out != nullptr) {
    std::int64_t elements = 0;
    for (const auto& t : plan.tensors()) elements += t.count();
    out->require_room(s.writes_files() ? plan.data_bytes() : elements * static_cast<std::int64_t>(sizeof(scalar)));
    beside.write(out->path());
  }
  std::size_t files = s.writes_files() ? plan.files().size() : static_cast<std::size_t>(mesh.size());
  const auto tensors = std::ssize(outlines);
  tool::progress shown("reading and writing", (s.dry_run ? 1 : 2) * tensors, "tensors");
  hd::launch_options ranks;
  ranks.timeout = std::chrono::milliseconds(0);  // a rank may wait as long as others read and write
  hd::launch<hd::threads>(mesh, ranks, [&](auto& world) {
    const int stage_number = world.template coordinate<pp>(), stages = mesh.template extent<pp>();
    auto part = md::split_layers(config.layers, stage_number, stages);
    part.lent_weights = s.dry_run;
    const std::unique_ptr<md::any_weights<scalar>> made = make(mesh, world.rank(), part);
    md::any_weights<scalar>& stage = *made;
    std::int64_t to_read = 0, parameters = 0;
    const auto count = [&](const md::parameter& p) {
      md::for_each_tensor(p, [&](const md::parameter& one) {
        ++parameters;
        if (!from.published) {
          const auto width =
              from.torch ? io::find_safetensors_dtype(from.torch->tensor(of_source(one.name).name).dtype())->bits / 8
                         : static_cast<int>(sizeof(scalar));
          to_read += one.count * width;
        } else if (s.dry_run) {
          const md::source_name stored = of_source(one.name);
          const auto& tensor = from.published->tensor(stored.name);
          io::safetensors_reads reads(tensor);
          md::for_each_read(tensor, one, stored, [&](std::int64_t first, std::int64_t n) { reads.read(first, n); });
          to_read += reads.bytes();
        }
      });
    };
    for (const md::parameter& p : stage.parameters()) count(p);
    for (const md::parameter& p : stage.frozen_parameters()) count(p);
    const auto say = [&](const char* what, std::int64_t bytes) {
      shown.above([&] {
        const std::string along_ep =
            mesh.template extent<ep>() == 1 ? "" : ", ep " + std::to_string(world.template coordinate<ep>());
        std::printf("rank %d (dp %d, pp %d%s, tp %d)  %s %lld bytes of %lld tensors\n", world.rank(),
                    world.template coordinate<dp>(), stage_number, along_ep.c_str(), world.template coordinate<tp>(),
                    what, static_cast<long long>(bytes), static_cast<long long>(parameters));
      });
    };
    const bool counts = world.template coordinate<dp>() == 0 && is_first_copy(world);
    if (s.dry_run) return say("would read", to_read);
    if (from.published) {
      const io::safetensors_reader weights(*from.published);
      md::read_parameters(stage, weights, tool::counted(of_source, shown, counts));
      say("read", weights.bytes_read());
    } else if (from.torch) {
      md::read_parameters(stage, *from.torch, tool::counted(of_source, shown, counts));
      say("read", to_read);
    } else {
      say("read", hd::train::read_weights(stage, *from.saved));
      if (counts) shown.add(parameters);
    }
    const auto write = [&](auto& sink, bool is_dry) {
      md::write_parameters(stage, world, sink, tool::counted(names, shown, counts && !is_dry));
      for (const std::string& slot : slots) {  // the weights are written: their place is free
        if (!is_dry) hd::train::read_weights(stage, *from.saved, slot + "/");
        md::write_parameters(stage, world, sink, [&](std::string_view parameter) {
          md::source_name to = published(parameter);
          to.name = in_torch(slot, to.name).name;
          return to;
        });
      }
      if (!slots.empty() && world.rank() == 0)
        hd::train::write_steps(sink, plan, in_torch, from.saved->manifest().step);
    };
    if (s.is_sharded()) {
      const auto shards = hd::train::write_torch_shards(world, out->path(), plan, write, s.most_bytes);
      say("wrote", shards.bytes);
      if (world.rank() == 0) files = static_cast<std::size_t>(shards.files);
    } else if (s.writes_files())
      say("wrote", hd::train::write_together(world, out->path(), plan, [&](auto& sink) { write(sink, false); }));
    else
      say("wrote",
          hd::train::save_weights(
              stage, world, out->path(),
              {.config = in_words, .facts = {{types_fact, types_text(plan, dtype)}, {prefix_fact, published.prefix}}}));
  });
  if (out == nullptr) return;
  hd::train::write_model_file(out->path() / "config.json", beside.config);
  out->finish();
  shown.above([&] {
    std::printf("wrote %zu files of %lld bytes of weights to '%s'\n", files, static_cast<long long>(plan.data_bytes()),
                s.to.c_str());
  });
}

auto weights_of(const md::hugging_face_model& about) {
  return [config = md::any_config(about)](const tool_mesh& mesh, int rank, md::stage_layers part) {
    return md::make_weights<float>(config, mesh, rank, part);
  };
}

// A save that has no config.json beside it, as those of gpt2_train, whose tokens are bytes.
bool convert_gpt2_save(const settings& s, io::output_folder* out) {
  const auto save = source::save_in(s.from);
  if (!save) return false;
  const io::manifest manifest = io::require_save(*save, io::verify::sizes);
  const auto found = hd::train::gpt2_of(manifest);
  if (!found)
    throw hd::config_error("heddle: '" + save->string() + "' is a save of " + manifest.config +
                           ": without a config.json only saves of a GPT-2 are converted");
  md::hugging_face_model about;
  about.config = found->config;
  about.tied = !io::checkpoint_reader(*save).contains("weight/lm_head.weight");  // finetune trains others, too
  const bool wide = found->dtype == "f64";
  if (wide && !about.tied)
    throw hd::config_error("heddle: '" + save->string() +
                           "' is a save of a GPT-2 of f64 with a head of its own, which is not converted: its weights in "
                           "f32 are");
  const beside_weights beside{hd::train::gpt2_config_json(found->config, wide ? "F64" : "F32", about.tied),
                              wide ? "F64" : "F32",
                              [&](const std::filesystem::path& to) {
                                if (found->config.vocabulary != 256) return;  // other tokens than bytes
                                hd::train::write_model_file(to / "tokenizer.json", hd::train::byte_tokenizer_json());
                                hd::train::write_model_file(to / "tokenizer_config.json",
                                                            hd::train::byte_tokenizer_config_json(found->config));
                              }};
  if (!wide) {
    convert<float>(s, about, beside, out, weights_of(about));
    return true;
  }
  convert<double>(s, about, beside, out, [&](const tool_mesh& mesh, int rank, md::stage_layers part) {
    return std::make_unique<md::described_weights<md::gpt2<double>, tool_mesh>>(found->config, mesh, rank, part);
  });
  return true;
}

void run(const settings& s) {
  std::optional<io::output_folder> claimed;  // before anything is read
  if (!s.dry_run) claimed.emplace(s.to);
  io::output_folder* const out = claimed ? &*claimed : nullptr;
  namespace fs = std::filesystem;
  const std::string about = s.folder_of_config();
  const bool has_config = fs::exists(fs::path(about) / "config.json");
  if (!has_config && s.blocks.empty() && fs::is_directory(s.from) && convert_gpt2_save(s, out)) return;
  tool::require_model(about, s.config.empty() ? "--from" : "--config");
  const model_folder from = read_model_folder(about, s.ignored_keys, s.blocks);
  const beside_weights beside{hd::train::written_config(about, from.own_head, from.about),
                              hd::train::dtype_in_config(*from.config),
                              [&](const fs::path& to) { hd::train::copy_side_files(about, to); }};
  convert<float>(s, from.about, beside, out, weights_of(from.about));
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Converts a model between folders of Hugging Face and PyTorch and saves of heddle.");
  app.add_option("--from", s.from, "folder with config.json and weights of any format, or saves of gpt2_train")
      ->required();
  app.add_option("--to", s.to, "folder to write; not there yet, or empty")->required();
  app.add_option("--mesh", s.mesh, "ranks along dp, pp, ep (of models with experts) and tp, as in pp=2,tp=2");
  app.add_option("--format", s.format, "what is written")->one_of({"huggingface", "heddle", "torch", "torch-sharded"});
  app.add_option("--config", s.config, "folder with config.json, where --from has none");
  app.add_flag("--with-moments", s.with_moments,
               "with --format torch or torch-sharded: of a save, the optimizer's moments too");
  app.add_option("--max-file-bytes", s.most_bytes, "most bytes of weights in a safetensors file")->more_than(0);
  app.add_flag("--dry-run", s.dry_run, "print tensors, files and bytes of each rank, and write nothing");
  add_blocks(app, s.blocks);
  add_ignored_keys(app, s.ignored_keys);
  return tool::run(app, argc, argv, [&] { run(s); });
}
