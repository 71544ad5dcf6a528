// tests/train/context_test.cpp: documents of any length, whose tokens several ranks share, train the Llama of one rank.
#include "document_training.hpp"

#include "folder.hpp"

#include <heddle/model/llama.hpp>
#include <heddle/train/save.hpp>

#include <cmath>
#include <mutex>

using namespace document_training;

namespace {

namespace md = heddle::model;
constexpr md::llama_config settings{
    .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 13, .context = 40, .vocabulary = 31};
using model = md::llama<double, md::megatron_context<>>;
using policies = hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<3>, language_training::recompute>;
outcome train(const setup& s) { return document_training::train<model, hd::zero<3>, language_training::recompute>(settings, s); }

}  // namespace

TEST_CASE("a Llama trained on documents that ranks share is that of one rank, in double", "[train][context][ranks]") {
  const outcome serial = train({.microbatches = 1, .rows = 400});
  REQUIRE(serial.weights.size() == 1 + 2 * 9 + 2);
  REQUIRE(serial.norms[0] > 0.05);  // so that clipping is part of what is compared
  REQUIRE(std::abs(serial.losses[2] - serial.losses[0]) > 1e-6);
  const setup runs[] = {
      {"cp=8", "kv-ring,zigzag,whole", "1f1b", 6, 12},
      {"cp=4", "token-ring,zigzag,hybrid", "1f1b", 8, 12},
      {"cp=3", "burst,striped,flex", "gpipe", 8, 20},
      {"dp=2,cp=2,tp=2", "gather,contiguous,hybrid", "1f1b", 5, 20},
      {"cp=2,pp=2,tp=2", "double-ring-2,zigzag,whole", "zb-h1", 8, 20},
      {"dp=2,pp=2,cp=2", "ulysses-2,contiguous,flex", "gpipe", 6, 40},
      {"dp=2,cp=3", "kv-ring,striped,hybrid", "zb-h1", 6, 14, "attn.out,mlp.hidden"},
      {"cp=4,tp=2", "usp-2,zigzag,whole", "1f1b", 8, 12},
  };
  for (const setup& s : runs) {
    INFO(s.mesh << ", " << s.context << ", " << s.schedule << ", " << s.microbatches << " microbatches");
    check_same(train(s), serial);
  }
}

TEST_CASE("samples of one length are documents, and give the losses of a trainer of samples", "[train][context][ranks]") {
  using train_test::random_tokens;
  using tokens = random_tokens<settings.context, settings.vocabulary, 3>;
  hd::train::options<md::llama_config> o;
  o.model = settings;
  o.batch = 7;
  o.steps = 2;
  o.clip_norm = 0.05;
  o.threads_per_rank = 1;
  using plain = md::llama<double, md::megatron<>>;
  const outcome samples =
      language_training::train_on<language_training::mesh_type, plain, hd::zero<3>, language_training::recompute>(
          o, "", "1f1b", 1, tokens{});
  for (const char* mesh : {"", "cp=3", "dp=2,cp=2"}) {
    INFO("mesh '" << mesh << "'");
    check_same(language_training::train_on<mesh_type, model, hd::zero<3>, language_training::recompute>(
                   o, mesh, "1f1b", 4, tokens{}),
               samples);
  }
}

TEST_CASE("a save of four ranks that share documents resumes on one and on eight", "[train][context][ranks]") {
  const corpus all(30, settings.context, settings.vocabulary);
  const auto data = all.documents();
  const train_test::folder folder("context_saves");
  const auto run = [&](const char* mesh_text, std::int64_t rows, std::int64_t steps, const char* resume_from, const char* save_to) {
    const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
    const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 8));
    double loss = 0;
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      hd::train::options<md::llama_config> o;
      o.model = settings;
      o.batch = 9;
      o.steps = 3;
      o.threads_per_rank = 1;
      o.rows_per_rank = rows;
      hd::train::trainer<model, policies, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
      if (resume_from != nullptr) hd::train::resume(trainer, folder.path / resume_from, {.corpus = 7});
      double last = 0;
      while (trainer.steps_done() < steps) last = trainer.step(data).loss;
      if (save_to != nullptr) hd::train::save(trainer, folder.path / save_to, {.corpus = 7});
      if (world.rank() == 0) loss = last;
    });
    return loss;
  };
  const double whole = run("", 400, 3, nullptr, nullptr);
  run("cp=4", 14, 2, nullptr, "four");
  CHECK(std::abs(run("", 400, 3, "four", nullptr) - whole) <= 1e-10);
  CHECK(std::abs(run("cp=8", 12, 3, "four", nullptr) - whole) <= 1e-10);
}

TEST_CASE("ranks that share documents and read other ones, or expect other costs, are told", "[train][context][error]") {
  const corpus all(30, settings.context, settings.vocabulary), other(30, settings.context - 3, settings.vocabulary);
  const auto mesh = hd::parse_mesh<mesh_type>("cp=2");
  const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 8));
  const auto run = [&](bool other_data, bool other_costs) {
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      hd::train::options<md::llama_config> o;
      o.model = settings;
      o.batch = 9;
      o.threads_per_rank = 1;
      o.rows_per_rank = 20;
      const hd::plan::sequence_costs mine{.linear = other_costs ? 1.0 + world.rank() : 1.0};
      o.costs = &mine;
      hd::train::trainer<model, policies, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
      trainer.step((other_data && world.rank() == 1 ? other : all).documents());
    });
  };
  CHECK_NOTHROW(run(false, false));
  CHECK_THROWS_WITH(run(true, false), Catch::Matchers::Contains("different documents, or another plan for them"));
  CHECK_THROWS_WITH(run(false, true), Catch::Matchers::Contains("has other options than rank 0: costs="));
}

TEST_CASE("documents that do not fit are refused before the step", "[train][context][error]") {
  using Catch::Matchers::Contains;
  const auto trained = [](const char* mesh, const char* context, int microbatches, std::int64_t rows) {
    return train({.mesh = mesh, .context = context, .microbatches = microbatches, .rows = rows});
  };
  CHECK_THROWS_WITH(trained("cp=2", "", 9, 12), Contains("2 ranks with rows_per_rank = 12 have room for 24"));
  CHECK_THROWS_WITH(trained("cp=2", "", 1, 20), Contains("options.microbatches is 1"));
  CHECK_THROWS_WITH(trained("cp=2", "tocken-ring", 8, 20), Contains("the carriers are kv-ring, token-ring"));
  CHECK_THROWS_WITH(trained("cp=2", "token-ring,sideways", 8, 20), Contains("contiguous"));
  CHECK_THROWS_WITH(trained("cp=2", "token-ring,zigzag,best", 8, 20), Contains("the planners are whole, flex, hybrid"));
  CHECK_THROWS_WITH(trained("cp=3", "ulysses-2,zigzag", 8, 20), Contains("ulysses-2 cannot spread document"));
  CHECK_THROWS_WITH(trained("cp=2", "ulysses-8,zigzag", 8, 20), Contains("cannot be cut into 8 parts"));
}
