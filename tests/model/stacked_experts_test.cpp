// Experts that files have in one tensor for all of them, gates and their factors in turns: read and written on any mesh.
#include "catch.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/hugging_face_model.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral_config.hpp>
#include <heddle/model/write_parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace ly = heddle::model::layers;
using hd::dp, hd::ep, hd::pp, hd::tp;

namespace {

using any_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<ep>, hd::axis<tp>>;
using backend = hd::compute::host<>;

// A Llama whose MLPs are experts with biases, by the names of GPT-OSS.
template <class T, class How>
struct biased_mixture : md::described<biased_mixture<T, How>, T, md::batch<T>, md::mixtral_config, How> {
  static constexpr auto describe(const md::mixtral_config& c, auto... adapt) {
    using mixture_type =
        ly::experts<ly::with_bias<>, hd::compute::clamped_swiglu, ly::dropless, ly::send_choices, ly::with_biases>;
    mixture_type mixture("mlp", "router", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
    mixture.gate_name = "experts.*.gate_proj.weight";
    mixture.down_name = "experts.*.down_proj.weight";
    mixture.up_name = "experts.*.up_proj.weight";
    return ly::describe_llama_with<ly::grouped_attention<>, false>(c, mixture, adapt...);
  }
};
const md::mixtral_config config{
    {.layers = 2, .heads = 6, .kv_heads = 3, .width = 12, .ffn = 5, .context = 5, .vocabulary = 31}, 5, 2};
const auto described = biased_mixture<double, md::megatron_with_experts<>>::describe(config);

// Tensors in memory, read and written in parts by many ranks.
struct tensors {
  struct one {
    std::vector<std::int64_t> extents;
    std::vector<double> values{};
    std::vector<int> writes{};
    std::string name{};
    std::mutex* lock = nullptr;
    std::span<const std::int64_t> shape() const { return extents; }
    std::string where() const { return "tensor '" + name + "'"; }
    void read(std::int64_t first, std::span<double> out) const {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = values.at(static_cast<std::size_t>(first) + i);
    }
  };
  struct output {
    one* to;
    std::span<const std::int64_t> shape() const { return to->extents; }
    std::string where() const { return to->where(); }
    void write(std::int64_t first, std::span<const double> from) {
      const std::scoped_lock hold(*to->lock);
      for (std::size_t i = 0; i < from.size(); ++i) {
        to->values.at(static_cast<std::size_t>(first) + i) = from[i];
        ++to->writes[static_cast<std::size_t>(first) + i];
      }
    }
  };
  std::map<std::string, one, std::less<>> all{};
  std::mutex lock{};

  // As files have them: shapes of GPT-OSS, not of this code.
  explicit tensors(bool four_bits) {
    const std::int64_t e = config.experts, f = config.ffn, w = config.width;
    for (const md::parameter_outline& p : md::parameter_outlines(described))
      if (p.name.find(".experts.") == std::string::npos) add(p.name, p.shape);
    for (int l = 0; l < config.layers; ++l) {
      const std::string at = "model.layers." + std::to_string(l) + ".mlp.experts.";
      add(at + "gate_up_proj", four_bits ? std::vector{e, 2 * f, w} : std::vector{e, w, 2 * f});
      add(at + "gate_up_proj_bias", {e, 2 * f});
      add(at + "down_proj", four_bits ? std::vector{e, w, f} : std::vector{e, f, w});
      add(at + "down_proj_bias", {e, w});
    }
  }
  void add(const std::string& name, std::vector<std::int64_t> extents) {
    one t;
    std::int64_t n = 1;
    for (const std::int64_t size : extents) n *= size;
    t.extents = std::move(extents);
    t.name = name;
    t.lock = &lock;
    for (std::int64_t i = 0; i < n; ++i) t.values.push_back(static_cast<double>(i + 100000 * std::ssize(all)));
    t.writes.resize(t.values.size());
    all.emplace(name, std::move(t));
  }
  bool contains(std::string_view name) const { return all.find(name) != all.end(); }
  const one& tensor(std::string_view name) const { return all.find(name)->second; }
  output tensor(std::string_view name) { return {&all.find(name)->second}; }
};

// The number that a parameter of one expert has at row r and column c, from the definition of GPT-OSS' tensors: gate_up[e, c, 2 r] is a gate,
// gate_up[e, c, 2 r + 1] its factor; with four bits rows come first.
double expected(const tensors& files, bool four_bits, const std::string& layer, std::int64_t e, const std::string& part,
                std::int64_t r, std::int64_t c) {
  const std::int64_t f = config.ffn, w = config.width;
  const auto at = [&](const std::string& name, std::int64_t i) {
    return files.all.at(layer + name).values.at(static_cast<std::size_t>(i));
  };
  if (part == "down_proj.weight") return at("down_proj", four_bits ? (e * w + r) * f + c : (e * f + c) * w + r);
  if (part == "down_proj.bias") return at("down_proj_bias", e * w + r);
  const std::int64_t row = 2 * r + (part.starts_with("up") ? 1 : 0);
  if (part.ends_with(".bias")) return at("gate_up_proj_bias", e * 2 * f + row);
  return at("gate_up_proj", four_bits ? (e * 2 * f + row) * w + c : (e * w + c) * 2 * f + row);
}

template <class How>
void there_and_back(const any_mesh& mesh, bool four_bits) {
  CAPTURE(mesh.extents(), four_bits);
  const tensors files(four_bits);
  tensors written(false);
  for (auto& [name, t] : written.all) std::fill(t.values.begin(), t.values.end(), -1.0);
  md::hugging_face_names names;
  names.stacked = four_bits ? md::stacked_experts::four_bits : md::stacked_experts::numbers;
  std::vector<std::string> wrong;
  std::int64_t checked = 0;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    backend kernels{1};
    typename biased_mixture<double, How>::template stage<std::remove_cvref_t<decltype(world)>, backend> s(
        config, world, kernels,
        md::split_layers(config.layers, world.template coordinate<pp>(), mesh.template extent<pp>()), 1, 1);
    md::read_parameters(s, files, names);
    md::write_parameters(s, world, written, names.written());
    const std::scoped_lock hold(written.lock);
    for (const md::parameter& whole : s.parameters())
      md::for_each_tensor(whole, [&](const md::parameter& p) {
        const std::size_t end = p.name.find(".experts.");
        if (end == std::string::npos) return;
        const std::string layer = p.name.substr(0, end + 9), rest = p.name.substr(end + 9);
        const std::int64_t e = std::stoll(rest), columns = p.shape.size() > 1 ? p.shape[1] : 1;
        md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
          for (std::int64_t i = global; i < global + n; ++i, ++checked)
            if (s.weights()[static_cast<std::size_t>(p.offset + local + i - global)] !=
                expected(files, four_bits, layer, e, rest.substr(rest.find('.') + 1), i / columns, i % columns))
              wrong.push_back(p.name + " at " + std::to_string(i));
        });
      });
  });
  CHECK(wrong == std::vector<std::string>{});
  const std::int64_t f = config.ffn, w = config.width;
  CHECK(checked >= config.layers * config.experts * (3 * f * w + 2 * f + w));
  for (const auto& [name, t] : written.all) {
    CAPTURE(name);
    CHECK(std::count(t.writes.begin(), t.writes.end(), 1) == std::ssize(t.writes));
    if (!four_bits || t.extents.size() < 3) CHECK(t.values == files.all.at(name).values);
  }
  if (four_bits)  // written as numbers: what is read of them is the same
    for (const auto& [name, t] : written.all)
      if (t.extents.size() == 3) {
        const auto& stored = files.all.at(name);
        std::vector<double> turned;
        for (std::int64_t e = 0; e < t.extents[0]; ++e)
          for (std::int64_t i = 0; i < t.extents[1]; ++i)
            for (std::int64_t k = 0; k < t.extents[2]; ++k)
              turned.push_back(stored.values[static_cast<std::size_t>((e * t.extents[2] + k) * t.extents[1] + i)]);
        CHECK(t.values == turned);
      }
}

}  // namespace

TEST_CASE("experts in one tensor are read by rank, and written once and as they were", "[model][experts][write]") {
  for (const bool four_bits : {false, true})
    for (const any_mesh& mesh : {any_mesh(1, 1, 1, 1), any_mesh(1, 1, 1, 3), any_mesh(1, 1, 3, 1), any_mesh(2, 2, 1, 1),
                                 any_mesh(2, 1, 2, 2), any_mesh(1, 2, 2, 2), any_mesh(1, 1, 6, 1)}) {
      there_and_back<md::megatron_with_experts<>>(mesh, four_bits);
      there_and_back<md::expert_parallel<>>(mesh, four_bits);
    }
}

TEST_CASE("pieces of tensors are read with what lies between, and refused where they are not there",
          "[model][experts]") {
  tensors files(false);
  const auto& stack = std::as_const(files).tensor("model.layers.1.mlp.experts.gate_up_proj");  // [5, 12, 10]
  const md::parameter p{
      .name = "up", .shape = {5, 12}, .logical = {5, 12}, .local = {2, 12}, .start = {3, 0}, .offset = 0, .count = 24};
  md::source_name from{"", hd::stored_as::transposed, md::rows_in_tensor::odd, {}, 4};
  std::vector<double> got(24);
  md::detail::read_part(stack, p, from, std::span(got));
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t c = 0; c < 12; ++c)
      CHECK(got[static_cast<std::size_t>(12 * r + c)] ==
            stack.values[static_cast<std::size_t>((4 * 12 + c) * 10 + 2 * (3 + r) + 1)]);
  std::int64_t runs = 0, elements = 0;
  md::for_each_read(stack, p, from, [&](std::int64_t first, std::int64_t n) {
    CHECK(first == (4 * 12 + runs) * 10 + 7);
    ++runs, elements += n;
  });
  CHECK((runs == 12 && elements == 12 * 3));
  using Catch::Matchers::Contains;
  const auto read = [&] { md::detail::read_part(stack, p, from, std::span(got)); };
  from.index = 5;
  CHECK_THROWS_WITH(read(), Contains("number 5 of what it has along its first dimension is asked for, its shape is "
                                     "[5,12,10]"));
  from.index = 0, from.rows = md::rows_in_tensor::all;
  CHECK_THROWS_WITH(read(), Contains("the parameter 'up' has the shape [12,5], the tensor [12,10]"));
  from.rows = md::rows_in_tensor::even;
  CHECK_THROWS_WITH(md::detail::write_part(files.tensor("model.layers.1.mlp.experts.gate_up_proj"), p, from,
                                           std::span<const double>(got), {}),
                    Contains("written together with what has the rows between"));
}

TEST_CASE("names of experts in one tensor", "[model][experts]") {
  md::hugging_face_names names{"x."};
  CHECK(names("model.layers.7.mlp.experts.12.up_proj.weight").name == "x.model.layers.7.mlp.experts.12.up_proj.weight");
  names.stacked = md::stacked_experts::numbers;
  const auto of = [&](const std::string& p) { return names("model.layers.7.mlp." + p); };
  const md::source_name up = of("experts.12.up_proj.weight"), down = of("experts.0.down_proj.bias");
  CHECK((up.name == "x.model.layers.7.mlp.experts.gate_up_proj" && up.index == 12 &&
         up.rows == md::rows_in_tensor::odd && up.how == hd::stored_as::transposed));
  CHECK((down.name == "x.model.layers.7.mlp.experts.down_proj_bias" && down.index == 0 &&
         down.rows == md::rows_in_tensor::all && down.how == hd::stored_as::is));
  CHECK(!of("router.weight").is_piece());
  CHECK(of("experts.gate_proj.weight").name == "x.model.layers.7.mlp.experts.gate_proj.weight");
  names.stacked = md::stacked_experts::four_bits;
  CHECK(of("experts.3.gate_proj.weight").how == hd::stored_as::is);
  CHECK(of("experts.3.gate_proj.weight").rows == md::rows_in_tensor::even);
  CHECK(names.written()("model.layers.7.mlp.experts.3.gate_proj.weight").how == hd::stored_as::transposed);
}
