// Weights of a model on any mesh from safetensors: each rank reads its own bytes, converted and turned on the way.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/testing/checked_backend.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "scratch.hpp"

namespace hd = heddle;
namespace io = heddle::io;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;

namespace {

using any_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using backend = hd::compute::host<>;

const md::gpt2_config small_gpt2{.layers = 3, .heads = 4, .width = 32, .context = 9, .vocabulary = 101};
const md::llama_config small_llama{
    .layers = 3, .heads = 6, .kv_heads = 2, .width = 36, .ffn = 31, .context = 9, .vocabulary = 97};

// What a rank's part of a parameter is, and what it took to read it.
struct rank_result {
  std::map<std::string, std::vector<double>> whole;  // elements that are not the rank's are 0
  std::map<std::string, std::int64_t> copies;        // of elements held
  std::int64_t bytes = 0, share = 0;
};

template <class Stage, class Bytes>
void look(const Stage& s, rank_result& r, const Bytes& bytes_of) {
  for (const md::parameter& p : s.parameters()) {
    auto& whole = r.whole[p.name];
    whole.resize(static_cast<std::size_t>(p.global_count()));
    md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i)
        whole[static_cast<std::size_t>(global + i)] =
            static_cast<double>(s.weights()[static_cast<std::size_t>(p.offset + local + i)]);
    });
    r.copies[p.name] = p.count;
    r.share += bytes_of(p);
  }
}

// Bytes of a parameter's elements, alike for all.
auto bytes_each(std::int64_t element) {
  return [element](const md::parameter& p) { return p.count * element; };
}

// The initial weights of the model on one rank, as tensors.
template <class Model>
std::map<std::string, std::vector<double>> initial(const typename Model::config& c,
                                                   std::map<std::string, std::vector<std::int64_t>>& shapes) {
  std::map<std::string, std::vector<double>> all;
  const any_mesh one(1, 1, 1);
  hd::launch<hd::threads>(one, [&](auto& world) {
    backend kernels{1};
    typename Model::template stage<std::remove_cvref_t<decltype(world)>, backend> s(
        c, world, kernels, md::split_layers(c.layers, 0, 1), 1, 1);
    s.initialize(5);
    rank_result r;
    look(s, r, bytes_each(0));
    all = std::move(r.whole);
    for (const md::parameter& p : s.parameters()) shapes[p.name] = p.shape;
  });
  return all;
}

template <class Model, class Source, class NameOf, class Bytes>
std::vector<rank_result> load(const any_mesh& mesh, const typename Model::config& c, const Source& open, NameOf name_of,
                              const Bytes& bytes_of) {
  std::vector<rank_result> results(static_cast<std::size_t>(mesh.size()));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    backend kernels{1};
    typename Model::template stage<std::remove_cvref_t<decltype(world)>, backend> s(
        c, world, kernels,
        md::split_layers(c.layers, world.template coordinate<pp>(), world.mesh().template extent<pp>()), 1, 1);
    const auto file = open();
    md::read_parameters(s, file, name_of);
    rank_result& r = results[static_cast<std::size_t>(world.rank())];
    look(s, r, bytes_of);
    r.bytes = file.bytes_read();
  });
  return results;
}

template <template <class> class Family, class Config>
void compare(const Config& config) {
  const scratch_folder folder("load");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  auto weights = initial<Family<double>>(config, shapes);
  // As bf16, so that every type can hold them; and transposed, under another name.
  std::map<std::string, std::vector<hd::bf16>> stored, turned;
  std::vector<io::safetensors_output> tensors;
  for (auto& [name, values] : weights) {
    for (double& v : values) {
      stored[name].push_back(hd::bf16(static_cast<float>(v)));
      v = static_cast<double>(static_cast<float>(stored[name].back()));
    }
    tensors.push_back(io::safetensors_of(name, shapes[name], std::span<const hd::bf16>(stored[name])));
    if (shapes[name].size() != 2) continue;
    const std::int64_t n = shapes[name][0], m = shapes[name][1];
    auto& t = turned[name];
    for (std::int64_t j = 0; j < m; ++j)
      for (std::int64_t i = 0; i < n; ++i) t.push_back(stored[name][static_cast<std::size_t>(i * m + j)]);
    tensors.push_back(io::safetensors_of("turned." + name, {m, n}, std::span<const hd::bf16>(t)));
  }
  io::write_safetensors_folder(folder.path, tensors, 20000);
  const auto open = [&] { return io::safetensors_folder(folder.path); };
  for (const any_mesh& mesh : {any_mesh(1, 1, 1), any_mesh(1, 1, 2), any_mesh(1, 1, 3), any_mesh(1, 2, 1),
                               any_mesh(2, 1, 2), any_mesh(1, 3, 2)}) {
    CAPTURE(mesh.extents());
    std::int64_t share = 0;
    for (const bool transposed : {false, true}) {
      CAPTURE(transposed);
      const auto name_of = [&](std::string_view name) -> md::source_name {
        if (transposed && shapes.at(std::string(name)).size() == 2)
          return {"turned." + std::string(name), hd::stored_as::transposed};
        return {std::string(name)};
      };
      const auto results = load<Family<float>>(mesh, config, open, name_of, bytes_each(2));
      std::map<std::string, bool> seen;
      for (const rank_result& r : results) {
        CHECK(r.bytes == r.share);  // not a byte more than the elements it holds
        share = (std::max)(share, r.share);
        for (const auto& [name, values] : r.whole) {
          std::int64_t same = 0, zero = 0;
          const auto& expected = weights.at(name);
          for (std::size_t i = 0; i < expected.size(); ++i)
            if (values[i] != 0 || expected[i] == 0)
              same += values[i] == expected[i];
            else
              ++zero;
          CAPTURE(name);
          CHECK(same + zero == static_cast<std::int64_t>(expected.size()));
          CHECK(static_cast<std::int64_t>(expected.size()) - zero >= r.copies.at(name));
        }
      }
      // Together they have every element.
      for (const auto& [name, expected] : weights) {
        bool all = true;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          bool here = expected[i] == 0;
          for (const rank_result& r : results) {
            const auto at = r.whole.find(name);
            here = here || (at != r.whole.end() && at->second[i] == expected[i]);
          }
          all = all && here;
        }
        CAPTURE(name);
        CHECK(all);
      }
    }
    if (mesh.size() == 2 && mesh.template extent<tp>() == 2) {
      std::int64_t split = 0, whole = 0;  // norms and biases behind sums, and positions, are on both ranks
      for (const auto& [name, shape] : shapes) {
        const bool both =
            (shape.size() == 1 && name.find("c_attn") == std::string::npos && name.find("c_fc") == std::string::npos) ||
            name == "wpe.weight";
        (both ? whole : split) += 2 * static_cast<std::int64_t>(weights.at(name).size());
      }
      INFO(share << " bytes; a half of " << split << " and all of " << whole);
      CHECK(share <= (split / 2 + whole) * 103 / 100);  // odd sizes: 97 words, 31 hidden units
    }
  }
}

template <class T>
using gpt2 = md::gpt2<T>;
template <class T>
using llama = md::llama<T>;

}  // namespace

TEST_CASE("GPT-2: each rank reads its own bytes, and they are the weights", "[io][safetensors][load]") {
  compare<gpt2>(small_gpt2);
}

TEST_CASE("Llama: each rank reads its own bytes, and they are the weights", "[io][safetensors][load]") {
  compare<llama>(small_llama);
}

// A code of E4M3, by its definition.
static double of_code(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9)
                                    : std::ldexp(8 + mantissa, exponent - 10);  // 2^-6 / 8, and 2^(e - 7) / 8
  return code >= 128 ? -size : size;
}

TEST_CASE("a model in 8 bits: each rank reads its own bytes and the scales of the blocks they are in",
          "[io][safetensors][load][float8]") {
  const std::uint64_t seed = 20261126;
  CAPTURE(seed);
  const hd::counter_random random(seed, 1);
  std::uint64_t drawn = 0;
  std::map<std::string, std::vector<std::int64_t>> shapes;
  auto weights = initial<md::llama<double>>(small_llama, shapes);
  const hd::scale_blocks blocks{7, 5};
  // Random codes and scales, so that every number has its own; embedding, norms and one matrix are as they were.
  const auto is_8_bit = [&](const std::string& name) {
    return name.find("_proj.") != std::string::npos && name != "model.layers.1.mlp.up_proj.weight";
  };
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    const scratch_folder folder("load");
    std::map<std::string, std::vector<std::uint8_t>> codes;
    std::map<std::string, std::vector<float>> scales, plain;
    std::vector<io::safetensors_output> tensors;
    for (auto& [name, values] : weights) {
      if (!is_8_bit(name)) {
        for (double& v : values)
          plain[name].push_back(static_cast<float>(v)), v = static_cast<double>(plain[name].back());
        tensors.push_back(io::safetensors_of(name, shapes[name], std::span<const float>(plain[name])));
        continue;
      }
      const std::int64_t n = shapes[name][transposed ? 1 : 0], m = shapes[name][transposed ? 0 : 1];
      const std::int64_t down = (n + blocks.rows - 1) / blocks.rows, across = (m + blocks.columns - 1) / blocks.columns;
      auto& c = codes[name];
      auto& s = scales[name];
      for (std::int64_t i = 0; i < down * across; ++i) s.push_back(static_cast<float>(random.uniform(drawn++) + 0.5));
      for (std::int64_t i = 0; i < n * m; ++i) {
        const auto code = static_cast<std::uint8_t>(random.integer(drawn++) & 0xff);
        c.push_back((code & 0x7f) == 0x7f ? std::uint8_t{3} : code);
        const float scale = s[static_cast<std::size_t>(i / m / blocks.rows * across + i % m / blocks.columns)];
        values[static_cast<std::size_t>(transposed ? i % m * n + i / m : i)] =
            static_cast<double>(static_cast<float>(of_code(c.back()) * static_cast<double>(scale)));
      }
      tensors.push_back({name, "F8_E4M3", {n, m}, std::as_bytes(std::span<const std::uint8_t>(c))});
      tensors.push_back(io::safetensors_of(name + "_scale_inv", {down, across}, std::span<const float>(s)));
    }
    io::write_safetensors_folder(folder.path, tensors, 5000);
    const auto bytes_of = [&](const md::parameter& p) {
      if (!is_8_bit(p.name)) return 4 * p.count;
      std::set<std::pair<std::int64_t, std::int64_t>> touched;
      md::for_each_run(p, [&](std::int64_t global, std::int64_t, std::int64_t length) {
        for (std::int64_t g = global; g < global + length; ++g) {
          const std::int64_t row = g / p.shape[1], column = g % p.shape[1];
          transposed ? touched.emplace(column / blocks.rows, row / blocks.columns)
                     : touched.emplace(row / blocks.rows, column / blocks.columns);
        }
      });
      return p.count + 4 * std::ssize(touched);
    };
    const auto name_of = [&](std::string_view name) -> md::source_name {
      return {std::string(name),
              transposed && is_8_bit(std::string(name)) ? hd::stored_as::transposed : hd::stored_as::is};
    };
    for (const any_mesh& mesh : {any_mesh(1, 1, 1), any_mesh(1, 1, 2), any_mesh(1, 1, 3), any_mesh(1, 2, 1),
                                 any_mesh(2, 1, 2), any_mesh(1, 3, 2)}) {
      CAPTURE(mesh.extents());
      const auto results = load<md::llama<float>>(
          mesh, small_llama, [&] { return io::safetensors_folder(folder.path, blocks); }, name_of, bytes_of);
      std::map<std::string, std::vector<bool>> here;
      for (const rank_result& r : results) {
        CHECK(r.bytes == r.share);
        for (const auto& [name, values] : r.whole) {
          std::int64_t wrong = 0, zero = 0;
          auto& seen = here[name];
          seen.resize(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) {
            const bool same = values[i] == weights.at(name)[i];
            wrong += !same && values[i] != 0;
            zero += !same && values[i] == 0;
            seen[i] = seen[i] || same;
          }
          CAPTURE(name);
          CHECK(wrong == 0);
          CHECK(zero <= std::ssize(values) - r.copies.at(name));
        }
      }
      CHECK(here.size() == weights.size());
      for (const auto& [name, seen] : here) {
        CAPTURE(name);
        CHECK(std::find(seen.begin(), seen.end(), false) == seen.end());
      }
    }
  }
}

TEST_CASE("at tp2 a rank reads its share of a greater model to 1 %", "[io][safetensors][load]") {
  const md::llama_config config{
      .layers = 2, .heads = 8, .kv_heads = 4, .width = 128, .ffn = 512, .context = 4, .vocabulary = 1000};
  const scratch_folder folder("load");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto weights = initial<md::llama<double>>(config, shapes);
  std::vector<io::safetensors_output> tensors;
  std::int64_t all = 0;
  for (const auto& [name, values] : weights) {
    tensors.push_back(io::safetensors_of(name, shapes[name], std::span<const double>(values)));
    all += 8 * static_cast<std::int64_t>(values.size());
  }
  io::write_safetensors_folder(folder.path, tensors);
  const auto results = load<md::llama<float>>(
      any_mesh(1, 1, 2), config, [&] { return io::safetensors_folder(folder.path); }, md::same_names{}, bytes_each(8));
  for (const rank_result& r : results) {
    CAPTURE(r.bytes, all);
    CHECK(r.bytes == r.share);
    CHECK(static_cast<double>(r.bytes) <= 0.505 * static_cast<double>(all));
  }
}

TEST_CASE("weights go into memory that the host may not touch", "[io][safetensors][load]") {
  using checked = hd::testing::checked_backend<backend>;
  const scratch_folder folder("load");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto weights = initial<md::gpt2<double>>(small_gpt2, shapes);
  std::vector<io::safetensors_output> tensors;
  for (const auto& [name, values] : weights)
    tensors.push_back(io::safetensors_of(name, shapes[name], std::span<const double>(values)));
  io::write_safetensors_folder(folder.path, tensors);
  std::vector<int> same(2);
  hd::launch<hd::threads>(any_mesh(1, 1, 2), [&](auto& world) {
    using world_type = std::remove_cvref_t<decltype(world)>;
    const io::safetensors_folder file(folder.path);
    backend here{1};
    checked there{1};
    md::gpt2_stage<double, world_type, backend> on_host(small_gpt2, world, here, md::split_layers(3, 0, 1), 1, 1);
    md::gpt2_stage<double, world_type, checked> elsewhere(small_gpt2, world, there, md::split_layers(3, 0, 1), 1, 1);
    md::read_parameters(on_host, file);
    md::read_parameters(elsewhere, file);
    std::vector<double> copied(static_cast<std::size_t>(elsewhere.flat_elements()));
    there.queue().copy(elsewhere.weights(), copied);
    there.queue().wait();
    const auto expected = on_host.weights();
    same[static_cast<std::size_t>(world.rank())] =
        std::equal(copied.begin(), copied.end(), expected.begin(), expected.end());
  });
  CHECK(same == std::vector<int>{1, 1});
}

TEST_CASE("names and shapes that do not fit are errors on every rank that reads them", "[io][safetensors][load]") {
  const scratch_folder folder("load");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto weights = initial<md::gpt2<double>>(small_gpt2, shapes);
  const auto description = md::describe_gpt2(small_gpt2);
  std::vector<std::string> names = md::parameter_names(description);
  CHECK(names.size() == shapes.size());
  for (const std::string& name : names) CHECK(shapes.count(name) == 1);
  const auto none = [](std::string_view) { return false; };
  CHECK_NOTHROW(md::require_all_read(description, names, md::same_names{}, none));
  names.push_back("h.3.ln_1.weight");
  CHECK_THROWS_WITH(md::require_all_read(description, names, md::same_names{}, none),
                    Catch::Contains("1 of 41 tensors belong to no parameter of the model, such as 'h.3.ln_1.weight'"));
  CHECK_NOTHROW(md::require_all_read(description, names, md::same_names{},
                                     [](std::string_view n) { return n == "h.3.ln_1.weight"; }));

  std::vector<io::safetensors_output> tensors;
  for (const auto& [name, values] : weights)
    tensors.push_back(io::safetensors_of(name, shapes[name], std::span<const double>(values)));
  const auto fails = [&](const md::gpt2_config& c) {
    return message_of<hd::error>([&] {
      load<md::gpt2<double>>(
          any_mesh(1, 1, 1), c, [&] { return io::safetensors_folder(folder.path); }, md::same_names{}, bytes_each(8));
    });
  };
  io::write_safetensors_folder(folder.path, tensors);
  CHECK(fails(small_gpt2).empty());
  auto wider = small_gpt2, deeper = small_gpt2;
  wider.vocabulary = 102;
  deeper.layers = 4;
  CHECK_THAT(fails(wider), Catch::Contains("tensor 'wte.weight': the parameter 'wte.weight' has the shape [102,32], "
                                           "the tensor [101,32]"));
  CHECK_THAT(fails(deeper), Catch::Contains("has no tensor 'h.3.ln_1.weight'"));
}
#endif
