// Converts a model between a folder of Hugging Face and a save of heddle, each rank its own part; any mesh reads what another wrote.
// run: --from @SOURCE_DIR@/tests/golden/models/llama3 --to out --mesh pp=2,tp=2 --max-file-bytes 30000
// prints: llama  3 layers of width 36: 30 tensors, 94752 bytes
// prints: rank 3 (dp 0, pp 1, tp 1)
// prints: wrote 4 files of 94752 bytes of weights to 'out'
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/io/json/safetensors.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/train/json/hugging_face_folder.hpp>
#include <heddle/train/weights.hpp>

#include "model_folder.hpp"
#include "tool.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using backend = hd::compute::host<>;

namespace {

struct settings {
  std::string from, to, mesh = "dp=1", format = "huggingface";
  std::vector<std::string> ignored_keys;
  std::int64_t most_bytes = 5000000000;
  bool dry_run = false;
};

// Either kind of folder: weights of Hugging Face, or the newest save of heddle.
struct source {
  std::optional<io::safetensors_folder> published;
  std::optional<io::checkpoint_reader> saved;

  source(const std::string& folder, std::optional<hd::scale_blocks> scales) {
    const io::search_result found = io::latest(folder);
    io::require_readable(found, folder);
    if (found.save)
      saved.emplace(found.save->path);
    else
      published.emplace(folder, scales);
  }
};

template <class Model, class Config>
void convert(const settings& s, const model_folder& of, Config config) {
  const md::hugging_face_model& about = of.about;
  const std::string dtype = hd::train::dtype_in_config(of.config);
  const std::string in_words = md::to_string(config) + " f32";
  if constexpr (std::is_base_of_v<md::llama_config, Config>) config.context = 1;  // no memory for activations
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  const source from(s.from, about.scales);
  const auto described = Model::describe(config);
  md::hugging_face_names names{about.family() == "gpt2" ? "transformer." : ""}, of_source;
  if (from.published) {
    of_source = names = md::names_in(*from.published);
    md::require_all_read(described, from.published->names(), of_source, [&](std::string_view name) {
      return md::is_saved_constant(about, name) || from.published->is_scales(name);
    });
  }
  auto plan = hd::train::hugging_face_plan(described, names, dtype, s.most_bytes);
  if (from.published) {  // each tensor keeps its type; matrices in 8 bits get that of the model
    auto tensors = plan.tensors();
    for (io::safetensors_outline& t : tensors) {
      const auto tensor = from.published->tensor(t.name);
      if (!about.scales || tensor.dtype() != "F8_E4M3") t.dtype = tensor.dtype();
      if (t.dtype != "F32" && t.dtype != "BF16" && t.dtype != "F16")
        throw hd::config_error("heddle: " + tensor.where() + ": elements of type " + t.dtype +
                               " do not come back from float; F32, BF16 and F16 do");
    }
    plan = io::safetensors_plan(std::move(tensors), s.most_bytes);
  }
  std::printf("%s  %d layers of width %d: %zu tensors, %lld bytes\n", std::string(about.family()).c_str(),
              config.layers, config.width, plan.tensors().size(), static_cast<long long>(plan.data_bytes()));
  if (s.format == "huggingface")
    for (const auto& file : plan.files()) {
      std::printf("  %s  %zu tensors, %lld bytes\n", file.name.c_str(), file.tensors.size(),
                  static_cast<long long>(file.bytes));
      for (const std::size_t i : file.tensors)
        if (s.dry_run)
          std::printf("    %s  %s, %lld elements\n", plan.tensors()[i].name.c_str(), plan.tensors()[i].dtype.c_str(),
                      static_cast<long long>(plan.tensors()[i].count()));
    }
  if (!s.dry_run) hd::train::copy_model_files(s.from, s.to, of.own_head);
  const auto tensors = static_cast<std::int64_t>(md::parameter_outlines(described).size());
  tool::progress shown("reading and writing", (s.dry_run ? 1 : 2) * tensors, "tensors");
  hd::launch_options ranks;
  ranks.timeout = std::chrono::milliseconds(0);  // a rank may wait as long as others read and write
  hd::launch<hd::threads>(mesh, ranks, [&](auto& world) {
    backend kernels{1};
    const int stage_number = world.template coordinate<pp>(), stages = mesh.template extent<pp>();
    auto part = Model::layers_of(config, stage_number, stages);
    part.lent_gradients = true;  // never there
    part.lent_weights = s.dry_run;
    using stage_type = typename Model::template stage<std::remove_cvref_t<decltype(world)>, backend>;
    stage_type stage(config, world, kernels, part, 1, 1, 0);
    std::int64_t to_read = 0, parameters = 0;
    const auto count = [&](const md::parameter& p) {
      md::for_each_tensor(p, [&](const md::parameter& one) {
        ++parameters;
        if (!from.published) {
          to_read += one.count * 4;
        } else if (s.dry_run) {
          const md::source_name stored = of_source(one.name);
          io::safetensors_reads reads(from.published->tensor(stored.name));
          md::for_each_read(one, stored.how, [&](std::int64_t first, std::int64_t n) { reads.read(first, n); });
          to_read += reads.bytes();
        }
      });
    };
    for (const md::parameter& p : stage.parameters()) count(p);
    if constexpr (requires { stage.frozen_parameters(); })
      for (const md::parameter& p : stage.frozen_parameters()) count(p);
    const auto say = [&](const char* what, std::int64_t bytes) {
      shown.above([&] {
        std::printf("rank %d (dp %d, pp %d, tp %d)  %s %lld bytes of %lld tensors\n", world.rank(),
                    world.template coordinate<dp>(), stage_number, world.template coordinate<tp>(), what,
                    static_cast<long long>(bytes), static_cast<long long>(parameters));
      });
    };
    const bool counts = world.template coordinate<dp>() == 0 && world.template coordinate<tp>() == 0;
    if (s.dry_run) return say("would read", to_read);
    if (from.published) {
      const io::safetensors_reader weights(*from.published);
      md::read_parameters(stage, weights, tool::counted(of_source, shown, counts));
      say("read", weights.bytes_read());
    } else {
      say("read", hd::train::read_weights(stage, *from.saved));
      if (counts) shown.add(parameters);
    }
    if (s.format == "huggingface")
      say("wrote", hd::train::write_together(world, s.to, plan, [&](auto& sink) {
            md::write_parameters(stage, world, sink, tool::counted(names, shown, counts));
          }));
    else
      say("wrote", hd::train::save_weights(stage, world, s.to, {.config = in_words}));
  });
  if (s.dry_run) return;
  shown.above([&] {
    std::printf("wrote %zu files of %lld bytes of weights to '%s'\n",
                s.format == "huggingface" ? plan.files().size() : static_cast<std::size_t>(mesh.size()),
                static_cast<long long>(plan.data_bytes()), s.to.c_str());
  });
}

void run(const settings& s) {
  tool::require_model(s.from, "--from");
  const model_folder from = read_model_folder(s.from, s.ignored_keys);
  md::with_model<float>(from.about,
                        [&]<class Model>(std::type_identity<Model>, const auto& c) { convert<Model>(s, from, c); });
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  tool::command_line app("Converts a model between a folder of Hugging Face and a save of heddle.");
  app.add_option("--from", s.from, "folder with config.json and weights of either format")->required();
  app.add_option("--to", s.to, "folder to write")->required();
  app.add_option("--mesh", s.mesh, "ranks along dp, pp and tp, as in pp=2,tp=2");
  app.add_option("--format", s.format, "what is written")->one_of({"huggingface", "heddle"});
  app.add_option("--max-file-bytes", s.most_bytes, "most bytes of weights in a safetensors file")->more_than(0);
  app.add_flag("--dry-run", s.dry_run, "print tensors, files and bytes of each rank, and write nothing");
  add_ignored_keys(app, s.ignored_keys);
  return tool::run(app, argc, argv, [&] { run(s); });
}
