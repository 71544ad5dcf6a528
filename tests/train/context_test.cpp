// tests/train/context_test.cpp: documents of any length, whose tokens several ranks share, train the Llama of one rank.
#include "document_training.hpp"

#include "folder.hpp"

#include <heddle/context/cost.hpp>
#include <heddle/context/kept_tail.hpp>
#include <heddle/io/tokens/best_fit.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/train/activations/memory_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/save.hpp>

#include <cmath>
#include <map>
#include <mutex>

using namespace document_training;

namespace {

namespace md = heddle::model;
constexpr md::llama_config settings{
    .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .ffn = 13, .context = 40, .vocabulary = 31};
using model = md::llama<double, md::megatron_context<>>;
// Documents as they come, of which the thirteenth is too long.
struct with_a_long_one {
  hd::io::basic_documents<std::int32_t> of;
  std::int64_t documents() const { return 18; }
  std::int64_t length(std::int64_t d) const { return d == 12 ? settings.context + 1 : std::min<std::int64_t>(of.length(d), settings.context - 3); }
  void fill(std::int64_t d, std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    of.fill(d, first, inputs, targets);
  }
};
// Documents for packs, one of them longer than the context; the same tokens each time.
struct packing_documents {
  hd::counter_random random{23, 1};
  std::int64_t documents() const { return 30; }
  std::int64_t length(std::int64_t d) const {
    return d == 7 ? settings.context + 5 : 1 + static_cast<std::int64_t>(random.integer(static_cast<std::uint64_t>(d)) % 20);
  }
  template <class Id>
  void copy(std::int64_t d, std::int64_t first, std::span<Id> to) const {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = static_cast<Id>(random.integer(static_cast<std::uint64_t>(1000 * (d + 1) + first) + i) % settings.vocabulary);
  }
  std::uint64_t fingerprint() const { return 1; }
};
// The same packs with attention inside documents, each document by itself, or packs as documents of their own.
struct packing_source {
  const hd::io::packed_documents<packing_documents>& of;
  enum how { packed, alone, joined } as;

  std::int64_t documents() const { return of.documents(); }
  std::int64_t length(std::int64_t d) const {
    if (as != joined) return of.length(d);
    std::int64_t n = 0;
    const auto pack = of.order().pack(d);
    for (std::int64_t i = pack.first; i < pack.first + pack.count; ++i) n += of.length(i);
    return n;
  }
  std::int64_t validation_samples() const { return of.validation_samples(); }
  hd::io::packing::range train_pack(std::int64_t i) const {
    if (as == packed) return of.train_pack(i);
    const std::int64_t n = of.order().packs(), singles = of.order().pack(n - 1).first + of.order().pack(n - 1).count;
    return {i % (as == alone ? singles : n), 1};
  }
  hd::io::packing::range validation_pack(std::int64_t i) const {
    return as == joined ? hd::io::packing::range{of.order().packs() + i, 1} : of.validation_pack(i);
  }
  void fill(std::int64_t d, std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    if (as != joined) return of.fill(d, first, inputs, targets);
    std::vector<std::int32_t> in(static_cast<std::size_t>(length(d))), out(in.size());
    const auto pack = of.order().pack(d);
    std::size_t at = 0;
    for (std::int64_t i = pack.first; i < pack.first + pack.count; ++i) {
      const auto n = static_cast<std::size_t>(of.length(i));
      of.fill(i, 0, std::span(in).subspan(at, n), std::span(out).subspan(at, n));
      at += n;
    }
    std::copy_n(in.begin() + first, inputs.size(), inputs.begin());
    std::copy_n(out.begin() + first, targets.size(), targets.begin());
  }
};
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

TEST_CASE("outputs of attention that are kept of late rows give the gradients of a run that keeps all", "[train][context][ranks]") {
  const outcome serial = train({.microbatches = 1, .rows = 400});
  const setup runs[] = {
      {"cp=4", "kv-ring,zigzag,whole", "1f1b", 8, 12, "full,keep-tail 1/2"},
      {"cp=3", "token-ring,striped,flex", "gpipe", 8, 20, "attn.out,keep-tail 2/3"},
      {"cp=2,pp=2", "burst,contiguous,hybrid", "zb-h1", 8, 20, "every 2,keep-tail 1/3"},
      {"cp=2,tp=2", "gather,zigzag,whole", "gpipe", 5, 20, "full,mlp.hidden,keep-tail 1/1"},
      {"dp=2", "", "gpipe", 2, 200, "full,keep-tail 1/2"},
  };
  for (const setup& s : runs) {
    INFO(s.mesh << ", " << s.context << ", " << s.schedule << ", " << s.again);
    check_same(train(s), serial);
  }
}

TEST_CASE("activations that leave memory and come back give the gradients of one rank", "[train][context][offload][ranks]") {
  namespace act = hd::activations;
  // All of them leave, the tails of attention's outputs among them.
  using away = act::recompute<act::full, act::keep_tail<1, 2>,
                              act::offload<act::memory_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>>;
  const outcome serial = train({.microbatches = 1, .rows = 400});
  for (const setup& s : {setup{"cp=4", "kv-ring,zigzag,whole", "gpipe", 8, 12}, setup{"cp=2,pp=2", "burst,zigzag,hybrid", "1f1b", 8, 20},
                         setup{"dp=2,cp=3", "gather,striped,flex", "gpipe", 6, 14}}) {
    INFO(s.mesh << ", " << s.context << ", " << s.schedule);
    check_same(document_training::train<model, hd::zero<3>, away>(settings, s), serial);
  }
  // They have left: the input of each block, and half of its outputs of attention with their log-sum-exp.
  const corpus all(30, settings.context, settings.vocabulary);
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>("cp=2"), [&](auto& world) {
    hd::train::options<md::llama_config> o;
    o.model = settings;
    o.batch = 9;
    o.threads_per_rank = 1;
    o.rows_per_rank = 32;
    const hd::schedule::tabled when(train_test::table_named("gpipe", 1, 6));
    hd::train::trainer<model, hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<3>, away>, std::remove_reference_t<decltype(world)>>
        trainer(world, o, when);
    trainer.step(all.documents());
    const auto report = trainer.stage().saved_layers().report();
    const std::int64_t each = (32 * 16 + 16 * 16 + 16 * 4) * 8;
    if (world.rank() == 0) CHECK(report.tensors.bytes_stored >= 2 * 5 * each);
    if (world.rank() == 0) CHECK(report.tensors.bytes_stored % each == 0);
  });
}

TEST_CASE("the messages of attention are in the trace of a trainer, with the ranks that they join", "[train][context][observe][ranks]") {
  const corpus all(30, settings.context, settings.vocabulary);
  const auto mesh = hd::parse_mesh<mesh_type>("dp=2,cp=2");
  const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 6));
  using watched = hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<3>, language_training::recompute, hd::observe::recorder>;
  hd::observe::recorder recorder(4);
  std::vector<double> losses(4);
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    hd::train::options<md::llama_config> o;
    o.model = settings;
    o.batch = 9;
    o.steps = 3;
    o.clip_norm = 0.05;
    o.threads_per_rank = 1;
    o.rows_per_rank = 20;
    o.context = "token-ring";
    hd::train::trainer<model, watched, std::remove_reference_t<decltype(world)>> trainer(world, o, when, recorder);
    losses[static_cast<std::size_t>(world.rank())] = trainer.step(all.documents()).loss;
  });
  CHECK(std::abs(losses[0] - train({.microbatches = 1, .rows = 400}).losses[0]) <= 1e-10);
  std::map<std::uint64_t, std::vector<hd::event>> flows;
  for (const hd::event& e : recorder.events())
    if (e.kind == hd::activity::send || e.kind == hd::activity::recv) flows[e.flow].push_back(e);
  CHECK(flows.size() > 2 * 2 * 2 * 2);  // shares, blocks, passes, directions
  for (const auto& [flow, ends] : flows) {
    REQUIRE(ends.size() == 2);
    CHECK(ends[0].kind != ends[1].kind);
    CHECK((ends[0].rank == ends[1].peer && ends[1].rank == ends[0].peer && ends[0].bytes == ends[1].bytes && ends[0].step == 0));
    CHECK(ends[0].rank / 2 == ends[1].rank / 2);  // of one data-parallel share: the last axis of more than one rank is cp
  }
}

TEST_CASE("plans that are made beside the step before give the same waves and the same bits", "[train][context][ranks]") {
  const corpus all(30, settings.context, settings.vocabulary), other(30, settings.context - 7, settings.vocabulary);
  const auto mesh = hd::parse_mesh<mesh_type>("dp=2,cp=2");
  const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 8));
  struct seen {
    std::vector<double> losses{};
    std::vector<std::vector<hd::plan::document_wave>> waves{};
    std::int64_t ahead = 0;
  };
  // `changing`: every other step, and none that was looked at ahead, is of another corpus.
  const auto run = [&](bool plan_ahead, bool changing) {
    std::vector<seen> ranks(4);
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      hd::train::options<md::llama_config> o;
      o.model = settings;
      o.batch = 9;
      o.steps = 5;
      o.threads_per_rank = 1;
      o.rows_per_rank = 20;
      o.context = "kv-ring,zigzag,hybrid";
      o.plan_ahead = plan_ahead;
      hd::train::trainer<model, policies, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
      seen& mine = ranks[static_cast<std::size_t>(world.rank())];
      while (trainer.steps_done() < o.steps) {
        mine.losses.push_back(trainer.step((changing && trainer.steps_done() % 2 == 1 ? other : all).documents()).loss);
        const auto waves = trainer.batches().waves();
        mine.waves.emplace_back(waves.begin(), waves.end());
      }
      mine.ahead = trainer.batches().planned_ahead();
    });
    return ranks;
  };
  for (const bool changing : {false, true}) {
    const auto with = run(true, changing), without = run(false, changing);
    for (std::size_t r = 0; r < 4; ++r) {
      CHECK(with[r].losses == without[r].losses);
      CHECK(with[r].waves == without[r].waves);
      CHECK(with[r].ahead == (changing ? 0 : 4));
      CHECK(without[r].ahead == 0);
    }
  }
}

TEST_CASE("what a planner throws beside a step is the error of the step that it plans for", "[train][context][error]") {
  // The documents of the second step hold one that is longer than the model's context.
  corpus all(18, settings.context, settings.vocabulary);
  for (const bool plan_ahead : {false, true}) {
    std::vector<std::int64_t> done(2, -1);
    const auto mesh = hd::parse_mesh<mesh_type>("cp=2");
    const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 9));
    const auto run = [&] {
      hd::launch<hd::threads>(mesh, [&](auto& world) {
        hd::train::options<md::llama_config> o;
        o.model = settings;
        o.batch = 9;
        o.steps = 3;
        o.threads_per_rank = 1;
        o.rows_per_rank = 20;
        o.plan_ahead = plan_ahead;
        hd::train::trainer<model, policies, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
        with_a_long_one data{all.documents()};
        while (trainer.steps_done() < o.steps) {
          trainer.step(data);
          done[static_cast<std::size_t>(world.rank())] = trainer.steps_done();
        }
      });
    };
    CHECK_THROWS_WITH(run(), Catch::Matchers::Contains("document 12 has 41 tokens; expected at most the model's context, 40"));
    CHECK(done == std::vector<std::int64_t>{1, 1});
  }
}

TEST_CASE("what is kept of attention takes the memory of the model, and only the rest of it is sent again", "[train][context][ranks]") {
  const corpus all(30, settings.context, settings.vocabulary);
  const auto mesh = hd::parse_mesh<mesh_type>("cp=4");
  const hd::schedule::tabled when(train_test::table_named("gpipe", 1, 8));  // no backward follows its forward, but for the last
  constexpr std::int64_t rows = 16, width = 16, heads = 4;
  struct seen {
    std::int64_t saved = 0, sent = 0, again = 0, forward = 0;
  };
  const auto run = [&](const char* recompute) {
    std::vector<seen> ranks(4);
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      hd::train::options<md::llama_config> o;
      o.model = settings;
      o.batch = 9;
      o.threads_per_rank = 1;
      o.rows_per_rank = rows;
      o.recompute = recompute;
      hd::train::trainer<model, policies, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
      auto& group = world.template along<hd::cp>();
      seen& mine = ranks[static_cast<std::size_t>(world.rank())];
      const std::int64_t before = group.counters().bytes_sent();
      trainer.step(all.documents());
      mine.sent = group.counters().bytes_sent() - before;
      mine.saved = trainer.saved_activation_bytes() / trainer.plan().storage.slots(0);
      const auto waves = trainer.batches().waves();
      for (std::size_t w = 0; w < waves.size(); ++w) {
        std::vector<hd::context_document> documents;
        for (const auto& d : waves[w].documents) {
          const std::int64_t length = trainer.batches().lengths()[static_cast<std::size_t>(d.document)];
          documents.push_back({length, d.ranks, hd::masks::causal{}.slices(length)});
        }
        const hd::context_cut cut = hd::cut_documents<hd::split::zigzag>(documents, 4);
        const auto sent = [&](const hd::context_cut& c) {
          return bytes_sent(hd::make_context_table<hd::carrier::kv_ring>(c, hd::context_pass::forward), {4, 2, 4, 4, 8, 8}, world.rank()).total();
        };
        mine.forward += sent(cut);
        mine.again += sent(without_tail(cut, 1, 2));
      }
    });
    return ranks;
  };
  const auto none = run(""), full = run("full"), half = run("full,keep-tail 1/2"), whole = run("full,keep-tail 1/1");
  // Outputs and their log-sum-exp, of so many rows in each of two blocks; both are whole cache lines.
  constexpr auto kept_bytes = [](std::int64_t of) { return 2 * of * (width + heads) * 8; };
  constexpr hd::attention_recompute formula{settings.context, 2, width, 13, 31};
  static_assert(formula.kept_bytes(rows, 8, 0.5) + 2 * rows / 2 * heads * 8 == kept_bytes(rows / 2));
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(half[r].saved - full[r].saved == kept_bytes(rows / 2));
    CHECK(whole[r].saved - full[r].saved == kept_bytes(rows));
    REQUIRE(full[r].again > 0);
    const std::int64_t all_again = full[r].sent - none[r].sent, half_again = half[r].sent - none[r].sent;
    CHECK(whole[r].sent == none[r].sent);
    CHECK(all_again == 2 * full[r].forward);
    CHECK(half_again == 2 * full[r].again);
    CHECK(half_again < all_again);
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

TEST_CASE("packs of documents give the losses and gradients of single documents", "[train][context][packing][ranks]") {
  const packing_documents documents;
  const hd::io::packed_documents packs(documents, {.context = settings.context, .seed = 4, .held_out = 4}, settings.vocabulary);
  const std::int64_t n = packs.order().packs();
  REQUIRE((n >= 5 && packs.order().pieces() > 3 * n && packs.order().filled() > 0.8));
  hd::train::options<md::llama_config> o;
  o.model = settings;
  o.steps = 2;
  o.clip_norm = 0.05;
  o.threads_per_rank = 1;
  const auto run = [&](std::int64_t batch, std::int64_t rows, int microbatches, const char* mesh, const packing_source& data) {
    o.batch = batch;
    o.rows_per_rank = rows;
    return language_training::train_on<mesh_type, model, hd::zero<3>, language_training::recompute>(o, mesh, "1f1b", microbatches,
                                                                                                   data);
  };
  // Each document by itself: a microbatch has room for the longest, and the epoch is one step.
  std::int64_t singles = 0;
  for (std::int64_t p = 0; p < n; ++p) singles += packs.order().pack(p).count;
  const outcome alone = run(singles, settings.context, static_cast<int>(singles), "", {packs, packing_source::alone});
  REQUIRE(alone.norms[0] > 0.05);
  // No more microbatches than packs are needed.
  for (const char* mesh : {"", "dp=2", "cp=2", "dp=2,cp=2"}) {
    INFO("mesh '" << mesh << "'");
    const bool shared = std::string(mesh).find("cp") != std::string::npos;
    const outcome packed = run(n, settings.context + (shared ? 12 : 0), static_cast<int>(n), mesh, {packs, packing_source::packed});
    CHECK(language_training::relative_difference(packed.losses, alone.losses) <= 1e-12);
    CHECK(language_training::relative_difference(packed.norms, alone.norms) <= 1e-12);
    CHECK(language_training::relative_difference(packed.weights, alone.weights) <= 1e-11);
  }
  // Without masks it is another loss.
  const outcome joined = run(n, settings.context, static_cast<int>(n), "", {packs, packing_source::joined});
  CHECK(std::abs(joined.losses[0] - alone.losses[0]) > 1e-5);
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
