// A folder of a model with experts that transformers wrote, read with experts on ranks of their own: losses, logits, and what is written again.
#pragma once

#if __has_include(<nlohmann/json.hpp>)
#include "catch.hpp"
#include "golden_file.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/model/experts_in_order.hpp>
#include <heddle/model/hugging_face/config.hpp>
#include <heddle/model/write_parameters.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace expert_folders {
namespace hd = heddle;
namespace md = heddle::model;
using backend = hd::compute::host<>;

// A sink of tensors of the shapes that a description has.
struct kept_tensors {
  struct one {
    std::vector<std::int64_t> extents;
    std::vector<float>* values;
    std::span<const std::int64_t> shape() const { return extents; }
    std::string where() const { return "kept"; }
    void write(std::int64_t first, std::span<const float> from) const {
      std::copy(from.begin(), from.end(), values->begin() + first);
    }
  };
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::map<std::string, std::vector<float>> values;
  bool contains(std::string_view name) const { return shapes.contains(std::string(name)); }
  one tensor(std::string_view name) {
    const std::vector<std::int64_t>& shape = shapes.at(std::string(name));
    auto& to = values[std::string(name)];
    std::int64_t n = 1;
    for (const std::int64_t e : shape) n *= e;
    to.resize(static_cast<std::size_t>(n));
    return {shape, &to};
  }
};

// A folder that transformers wrote, with its experts on ranks of their own, in the file's order or another one.
template <class model>
void equals_on_ranks_of_experts(const std::string& name) {
  CAPTURE(name);
  using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::ep>, hd::axis<hd::tp>>;
  const std::string path = HEDDLE_SOURCE_DIR "/tests/golden/models/" + name;
  const auto read = [&](const char* file) {
    std::ifstream in(path + "/" + file);
    return nlohmann::json::parse(in);
  };
  const nlohmann::json expected = read("expected.json");
  const auto config = std::get<typename model::config>(md::from_config(read("config.json")).config);
  const auto samples = expected["samples"].get<std::vector<std::vector<std::int32_t>>>();
  const hd::io::safetensors_folder folder(path, md::from_config(read("config.json")).scales);
  const md::hugging_face_names in_files = md::names_in(folder);
  const bool stacked = in_files.stacked != md::stacked_experts::no;
  CHECK_NOTHROW(md::require_all_read(model::describe(config), folder.names(), in_files,
                                     [&](std::string_view of) { return folder.is_scales(of); }));
  for (const mesh_type& mesh : {mesh_type(1, 1, 1), mesh_type(1, 2, 1), mesh_type(1, 3, 1), mesh_type(1, 6, 1),
                                mesh_type(2, 2, 1), mesh_type(1, 2, 2)}) {
    CAPTURE(to_string(mesh));
    std::mutex mutex;
    kept_tensors written;
    if (!stacked)
      for (const auto& outline : md::parameter_outlines(model::describe(config)))
        written.shapes[outline.name] = outline.shape;
    else if (in_files.stacked == md::stacked_experts::numbers)  // blocks in four bits are not written
      for (const std::string& tensor : folder.names()) {
        const auto shape = folder.tensor(tensor).shape();
        written.shapes[tensor].assign(shape.begin(), shape.end());
      }
    // Experts of layer k in steps of k + 1, or where these are not prime to their number backwards; the file's order on one rank.
    std::vector<std::vector<int>> orders;
    for (int k = 0; k < config.layers; ++k) {
      std::vector<int> order;
      const int n = static_cast<int>(config.experts), step = std::gcd(n, k + 1) == 1 ? k + 1 : 1;
      for (int e = 0; e < n; ++e) order.push_back(mesh.size() == 1 ? e : n - 1 - e * step % n);
      orders.push_back(order);
    }
    const md::experts_in_order names(model::describe(config), orders, in_files);
    double loss = 0;
    int targets = 0;
    std::vector<std::vector<float>> logits(samples.size());
    std::int64_t most_read = 0, most_held = 0, most_short = 0;
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      backend kernels{1};
      typename model::template stage<std::remove_cvref_t<decltype(world)>, backend> stage(
          config, world, kernels, model::layers_of(config, 0, 1), 1, 1, 0);
      const hd::io::safetensors_reader weights(folder);
      md::read_parameters(stage, weights, names);
      if (!written.shapes.empty()) {
        const std::lock_guard lock(mutex);
        md::write_parameters(stage, world, written, names);
      }
      std::int64_t held = 0;
      for (const md::parameter& p : stage.parameters()) held += p.count * 4;
      // A sample for each rank along dp and ep; who has none calls, too, for the others' tokens.
      const int ranks = mesh.template extent<hd::dp>() * mesh.template extent<hd::ep>();
      const int mine =
          world.template coordinate<hd::dp>() * mesh.template extent<hd::ep>() + world.template coordinate<hd::ep>();
      const bool first = world.template coordinate<hd::tp>() == 0;
      for (std::size_t at = 0; at < samples.size(); at += static_cast<std::size_t>(ranks)) {
        const std::size_t i = at + static_cast<std::size_t>(mine);
        const bool some = i < samples.size();
        std::vector<std::int32_t> next;
        if (some) next.assign(samples[i].begin() + 1, samples[i].end());
        if (some) next.push_back(-1);
        const typename model::batch batch{some ? std::span(samples[i]) : std::span<const std::int32_t>{}, next,
                                          some ? 1 : 0, 1, some ? static_cast<int>(samples[i].size()) : 1};
        const double sum = stage.forward_only(batch, {}, {});
        std::vector<float> last(some ? static_cast<std::size_t>(config.vocabulary) : 0);
        stage.last_logits(batch, {}, {}, last);
        const std::lock_guard lock(mutex);
        if (!some || !first) continue;
        loss += sum;
        targets += static_cast<int>(samples[i].size()) - 1;
        logits[i] = last;
      }
      const std::lock_guard lock(mutex);
      most_read = (std::max)(most_read, weights.bytes_read());
      most_held = (std::max)(most_held, held);
      most_short = (std::max)(most_short, held - weights.bytes_read());
    });
    CHECK(loss / targets == Approx(expected["loss_f32"].get<double>()).epsilon(1e-5));
    for (std::size_t i = 0; i < samples.size(); ++i)
      CHECK(model_test::relative_error(logits[i], expected["last_logits"][i].get<std::vector<double>>()) < 1e-5);
    if (!stacked) {  // else rows between those that are asked for are read, too, and numbers in four bits are widened
      CHECK(most_read == most_held);
      CHECK(most_short == 0);
    }
    for (const auto& [name, values] : written.values) {  // as the file has them
      CAPTURE(name);
      std::vector<float> in_file(values.size());
      folder.tensor(name).read(0, std::span(in_file));
      CHECK(in_file == values);
    }
    CHECK(written.values.size() == written.shapes.size());
    CHECK(written.values.empty() == (in_files.stacked == md::stacked_experts::four_bits));
  }
  const auto refusal = [&](const std::vector<std::vector<int>>& orders) {
    return md::experts_in_order<>(model::describe(config), orders);
  };
  CHECK_THROWS_WITH(refusal({}), Catch::Contains("layers with experts, got orders for 0"));
  std::vector<std::vector<int>> few(static_cast<std::size_t>(config.layers), std::vector<int>{0});
  CHECK_THROWS_WITH(refusal(few), Catch::Contains("the order of layer 0 names each of " +
                                                  std::to_string(config.experts) + " experts once, got one of 1"));
}

}  // namespace expert_folders
#endif
