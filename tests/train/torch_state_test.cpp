// A trainer's weights and moments as a folder of PyTorch's, from any mesh and onto any other: the next steps are the same.
#include "folder.hpp"
#include "small_dataset.hpp"

#include "catch.hpp"
#include "tables.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/json/safetensors.hpp>
#include <heddle/io/json/torch_folder.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/json/torch_state.hpp>
#include <heddle/train/trainer.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace {
namespace torch_states {

using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using model = hd::model::gpt2<double>;

// PyTorch's Linear has the transposed matrix of GPT-2's Conv1D.
hd::model::source_name linear_names(std::string_view parameter) {
  const bool turned =
      parameter.starts_with("h.") && parameter.ends_with(".weight") && (parameter.find("c_") != parameter.npos);
  return {std::string(parameter), turned ? hd::stored_as::transposed : hd::stored_as::is};
}

struct torch_run {
  std::string mesh;
  std::filesystem::path from{}, to{};
  std::int64_t first = 0, steps = 4;
};

// Losses of the steps behind `first`; the state goes to `to` behind the last.
template <int Zero>
std::vector<double> train(const torch_run& r) {
  const auto mesh = hd::parse_mesh<mesh_type>(r.mesh);
  hd::train::options<hd::model::gpt2_config> o;
  o.model = {.layers = 3, .heads = 4, .width = 24, .context = 12, .vocabulary = 61};
  o.batch = 12;
  o.microbatches = 2;
  o.steps = r.steps;
  o.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 2, .total_steps = 20};
  o.threads_per_rank = 1;
  const train_test::small_dataset data(train_test::noise(500, 61), {.context = 12, .batch = 12});
  const hd::schedule::tabled when(train_test::table_named("1f1b", mesh.template extent<pp>(), 2));
  std::vector<double> losses;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    hd::train::trainer<model, hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<Zero>>, world_type> trainer(
        world, o, when);
    hd::train::torch_names names;
    names.of_parameter = linear_names;
    if (!r.from.empty()) {
      if (hd::io::torch_folder::is_one(r.from))
        hd::train::read_torch(trainer, hd::io::torch_folder(r.from), {r.first, 12 * r.first}, names);
      else
        hd::train::read_torch(trainer, hd::io::safetensors_folder(r.from), {r.first, 12 * r.first}, names);
    }
    while (trainer.steps_done() < r.steps) {
      const auto report = trainer.step(data);
      if (world.rank() == 0) losses.push_back(report.loss);
    }
    if (!r.to.empty()) hd::train::write_torch(trainer, r.to, names);
  });
  return losses;
}

std::vector<double> train(int zero, const torch_run& r) {
  return zero == 3 ? train<3>(r) : train<0>(r);
}

std::string torch_file(const std::filesystem::path& folder) {
  std::ifstream in(folder / "model.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace torch_states
}  // namespace

TEST_CASE("weights and moments go to a folder of PyTorch from any mesh and come back onto any other",
          "[train][save][torch]") {
  using namespace torch_states;
  const train_test::folder at("torch");
  const std::vector<double> whole = train(0, {""});
  REQUIRE(whole.size() == 4);
  train(0, {.mesh = "", .to = at.path / "one", .steps = 2});
  const std::string bytes = torch_file(at.path / "one");
  REQUIRE(bytes.size() > 1000);
  const hd::io::torch_folder one(at.path / "one");
  CHECK(one.tensor("model.h.0.attn.c_attn.weight").shape()[0] == 72);
  CHECK(one.tensor("optim.state.h.0.attn.c_attn.weight.exp_avg_sq").shape()[0] == 72);
  double steps = 0;
  one.tensor("optim.state.wte.weight.step").read(0, std::span<double>(&steps, 1));
  CHECK(steps == 2);
  int number = 0;
  for (const char* mesh : {"dp=2", "tp=3", "dp=2,pp=3", "dp=2,pp=2,tp=2"})
    for (const int zero : {0, 3}) {
      INFO("mesh '" << mesh << "', zero " << zero);
      const auto to = at.path / std::to_string(number++);
      CHECK(train(zero, {.mesh = mesh, .from = at.path / "one", .to = to, .first = 2, .steps = 2}).empty());
      CHECK(torch_file(to) == bytes);
      const auto losses = train(zero, {.mesh = mesh, .from = to, .first = 2});
      REQUIRE(losses.size() == 2);
      for (std::size_t i = 0; i < 2; ++i) CHECK(std::abs(losses[i] - whole[i + 2]) <= 1e-10 * whole[i + 2]);
    }
}

TEST_CASE("a folder of PyTorch without a tensor of the model is refused on all ranks", "[train][save][torch]") {
  using namespace torch_states;
  CHECK_THROWS_WITH(train(0, {.mesh = "dp=2", .from = HEDDLE_SOURCE_DIR "/tests/golden/torch/stored", .first = 2}),
                    Catch::Matchers::Contains("has no tensor 'model.w"));
}
#endif
