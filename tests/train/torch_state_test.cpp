// A trainer's weights and moments as a folder of PyTorch's, from any mesh and onto any other: the next steps are the same.
#include "folder.hpp"
#include "small_dataset.hpp"

#include "catch.hpp"
#include "tables.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/torch/folder.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/peer_saves.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/torch/state.hpp>
#include <heddle/train/trainer.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
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
  std::filesystem::path peers{}, saves{};  // folders of nodes, of which dp has one each
  bool resumes = false;
  std::int64_t first = 0, steps = 4;
};

// Losses of the steps behind `first`; the state goes to `to` behind the last.
template <int Zero, class Model = model, class... Policies>
std::vector<double> train(const torch_run& r, hd::train::peer_resume_result* back_from) {
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
    hd::train::trainer<Model, hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<Zero>, Policies...>, world_type>
        trainer(world, o, when);
    hd::train::torch_names names;
    names.of_parameter = linear_names;
    if (!r.from.empty()) {
      if (hd::io::torch_folder::is_one(r.from))
        hd::train::read_torch(trainer, hd::io::torch_folder(r.from), {r.first, 12 * r.first}, names);
      else
        hd::train::read_torch(trainer, hd::io::safetensors_folder(r.from), {r.first, 12 * r.first}, names);
    }
    std::optional<hd::train::peer_saves<hd::train::across<dp>>> peers;
    if (r.peers.empty() && r.resumes) hd::train::resume(trainer, r.saves);
    if (!r.peers.empty()) {
      const auto node = r.peers / std::to_string(world.template coordinate<dp>());
      if (r.resumes) {
        const auto back = hd::train::resume_from_peers(trainer, node, r.saves);
        if (world.rank() == 0 && back_from != nullptr) *back_from = back;
      } else {
        peers.emplace(trainer, node, hd::train::save_facts{}, hd::train::peer_options{.every = 1});
      }
    }
    while (trainer.steps_done() < r.steps) {
      const auto report = trainer.step(data);
      if (world.rank() == 0) losses.push_back(report.loss);
      if (peers && trainer.steps_done() == 1) hd::train::save(trainer, r.saves);
      if (peers && peers->due(trainer.steps_done(), r.steps)) (*peers)(trainer);
    }
    if (r.peers.empty() && !r.saves.empty() && !r.resumes) hd::train::save(trainer, r.saves);
    if (!r.to.empty()) hd::train::write_torch(trainer, r.to, names);
  });
  return losses;
}

using halves = hd::precision<hd::weights_in<hd::bf16>, hd::masters_in<float>>;
constexpr int of_halves = -1;  // zero 1, and weights of 16 bits with masters

std::vector<double> train(int zero, const torch_run& r, hd::train::peer_resume_result* back = nullptr) {
  if (zero == of_halves) return train<1, hd::model::gpt2<hd::bf16>, halves>(r, back);
  return zero == 3 ? train<3>(r, back) : train<2>(r, back);
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
  const std::vector<double> whole = train(2, {""});
  REQUIRE(whole.size() == 4);
  train(2, {.mesh = "", .to = at.path / "one", .steps = 2});
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
    for (const int zero : {2, 3}) {
      INFO("mesh '" << mesh << "', zero " << zero);
      const auto to = at.path / std::to_string(number++);
      CHECK(train(zero, {.mesh = mesh, .from = at.path / "one", .to = to, .first = 2, .steps = 2}).empty());
      CHECK(torch_file(to) == bytes);
      const auto losses = train(zero, {.mesh = mesh, .from = to, .first = 2});
      REQUIRE(losses.size() == 2);
      for (std::size_t i = 0; i < 2; ++i) CHECK(std::abs(losses[i] - whole[i + 2]) <= 1e-10 * whole[i + 2]);
    }
}

TEST_CASE("a save of any layout with zero 2 or 3 is what every other one resumes, bit for bit", "[train][save]") {
  using namespace torch_states;
  struct layout {
    const char* mesh;
    int zero;
  };
  const std::vector<layout> all{{"", 2}, {"dp=4", 2}, {"dp=2,tp=2", 3}, {"dp=3,pp=2", 2}, {"dp=2,pp=2,tp=2", 3}};
  for (const layout& from : all) {
    const train_test::folder at("zero-pairs");
    INFO("from mesh '" << from.mesh << "', zero " << from.zero);
    train(from.zero, {.mesh = from.mesh, .to = at.path / "from", .saves = at.path / "saves", .steps = 2});
    const std::string bytes = torch_file(at.path / "from");
    for (std::size_t k = 0; k < all.size(); ++k) {
      INFO("to mesh '" << all[k].mesh << "', zero " << all[k].zero);
      const auto to = at.path / std::to_string(k);
      CHECK(train(all[k].zero, {.mesh = all[k].mesh, .to = to, .saves = at.path / "saves", .resumes = true, .steps = 2})
                .empty());
      CHECK(torch_file(to) == bytes);
    }
  }
}

TEST_CASE("masters go to PyTorch as the weights, and come back by saves and peers, bit for bit",
          "[train][save][torch][peers]") {
  using namespace torch_states;
  const train_test::folder at("masters");
  train(of_halves, {.mesh = "", .to = at.path / "one", .saves = at.path / "saves", .steps = 2});
  const std::string bytes = torch_file(at.path / "one");
  CHECK(hd::io::torch_folder(at.path / "one").tensor("model.wte.weight").dtype() == "F32");
  const auto same = [&](const char* name) { return torch_file(at.path / name) == bytes; };
  for (const char* mesh : {"dp=2", "tp=2", "dp=2,pp=2"}) {
    INFO("mesh '" << mesh << "'");
    CHECK(train(of_halves, {.mesh = mesh, .from = at.path / "one", .to = at.path / "torch", .first = 2, .steps = 2})
              .empty());
    CHECK(same("torch"));
    CHECK(train(of_halves,
                {.mesh = mesh, .to = at.path / "save", .saves = at.path / "saves", .resumes = true, .steps = 2})
              .empty());
    CHECK(same("save"));
    std::filesystem::remove_all(at.path / "torch");
    std::filesystem::remove_all(at.path / "save");
  }
  torch_run r{
      .mesh = "dp=2,tp=2", .to = at.path / "kept", .peers = at.path / "nodes", .saves = at.path / "peers", .steps = 2};
  train(of_halves, r);
  r.to = at.path / "back";
  r.resumes = true;
  hd::train::peer_resume_result back;
  CHECK(train(of_halves, r, &back).empty());
  CHECK(back.from_peers);
  CHECK((torch_file(at.path / "back") == torch_file(at.path / "kept")));
}

TEST_CASE("a run goes on from copies of peers, bit for bit, although a node is lost", "[train][save][peers]") {
  using namespace torch_states;
  namespace fs = std::filesystem;
  for (const int zero : {2, 3}) {
    const train_test::folder at("peers");
    CAPTURE(zero);
    const std::string mesh = "dp=4,tp=2";  // eight ranks on four nodes
    train(zero,
          {.mesh = mesh, .to = at.path / "whole", .peers = at.path / "nodes", .saves = at.path / "saves", .steps = 3});
    const std::string whole = torch_file(at.path / "whole");
    const std::string rank0 = "rank-00000.tensors";
    CHECK_FALSE(fs::exists(at.path / "nodes/0/step-00000001"));  // two steps stay
    CHECK(fs::exists(at.path / "nodes/0/step-00000002" / rank0));
    CHECK(fs::exists(at.path / "nodes/1/step-00000003" / rank0));  // rank 0's neighbour
    hd::train::peer_resume_result back;
    const auto resume = [&](const char* to, std::int64_t steps) {
      return train(zero,
                   {.mesh = mesh,
                    .to = at.path / to,
                    .peers = at.path / "nodes",
                    .saves = at.path / "saves",
                    .resumes = true,
                    .steps = steps},
                   &back);
    };
    CHECK(resume("same", 3).empty());
    CHECK(back.from_peers);
    CHECK(back.moved == 0);
    CHECK(torch_file(at.path / "same") == whole);
    fs::remove_all(at.path / "nodes/2");
    CHECK(resume("lost", 3).empty());
    CHECK(back.from_peers);
    CHECK(back.result.step == 3);
    CHECK(back.moved == 2);
    CHECK(torch_file(at.path / "lost") == whole);
    // A file that is damaged, or both of a pair lost: the save.
    fs::remove_all(at.path / "nodes/2");
    fs::remove_all(at.path / "nodes/3");
    const auto losses = resume("pair", 3);
    CHECK_FALSE(back.from_peers);
    CHECK(back.result.step == 1);
    CHECK(losses.size() == 2);
    CHECK_THAT(back.why, Catch::Matchers::Contains("no node has a copy of rank 4 of step 3"));
    CHECK(torch_file(at.path / "pair") == whole);
  }
}

TEST_CASE("copies of peers that are damaged, of another run or left over are not gone on from",
          "[train][save][peers]") {
  using namespace torch_states;
  namespace fs = std::filesystem;
  const train_test::folder at("peers-bad");
  const auto run = [&](const char* saves, bool resumes, std::int64_t steps, hd::train::peer_resume_result* back) {
    return train(2,
                 {.mesh = "dp=2",
                  .to = at.path / ("to-" + std::string(saves) + (resumes ? "-on" : "")),
                  .peers = at.path / "nodes",
                  .saves = at.path / saves,
                  .resumes = resumes,
                  .steps = steps},
                 back);
  };
  fs::create_directories(at.path / "nodes/0/step-00000077");  // of an attempt that was killed
  std::ofstream(at.path / "nodes/0/step-00000077/rank-00001.tensors") << "x";
  run("one", false, 3, nullptr);
  CHECK_FALSE(fs::exists(at.path / "nodes/0/step-00000077"));
  CHECK(fs::exists(at.path / "nodes/0/step-00000002"));
  // Another run's save of an older step: its state, not the copies of step 3.
  const train_test::folder elsewhere("peers-elsewhere");
  train(2, {.mesh = "dp=2", .peers = elsewhere.path, .saves = at.path / "two", .steps = 1});
  hd::train::peer_resume_result back;
  CHECK(run("two", true, 3, &back).size() == 2);
  CHECK_FALSE(back.from_peers);
  CHECK(back.result.step == 1);
  // One rank's copy is damaged, and there is no save: all ranks begin anew, with nothing of the others' copies.
  const std::vector<double> anew = train(2, {.mesh = "dp=2", .saves = at.path / "no"});
  const fs::path file = at.path / "nodes/1/step-00000003/rank-00001.tensors";
  std::string bytes(static_cast<std::size_t>(fs::file_size(file)), '\0');
  std::ifstream(file, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  CHECK(run("none", true, 4, &back) == anew);
  CHECK_FALSE(back.from_peers);
  CHECK_FALSE(back.result.resumed);
  CHECK_THAT(back.why, Catch::Matchers::Contains("is damaged"));
}

TEST_CASE("a folder of PyTorch without a tensor of the model is refused on all ranks", "[train][save][torch]") {
  using namespace torch_states;
  CHECK_THROWS_WITH(train(2, {.mesh = "dp=2", .from = HEDDLE_SOURCE_DIR "/tests/golden/torch/stored", .first = 2}),
                    Catch::Matchers::Contains("has no tensor 'model.w"));
}
#endif
