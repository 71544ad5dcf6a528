// tests/train/context_gpt2_test.cpp: documents that ranks share train the GPT-2 of one rank: learned positions, tied weights, policies as types.
#include "document_training.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/testing/checked_backend.hpp>

#include <stdexcept>
#include <string>

using namespace document_training;

namespace {

namespace md = heddle::model;
constexpr md::gpt2_config settings{.layers = 2, .heads = 4, .width = 16, .context = 40, .vocabulary = 31};
template <class Context, class... Policies>
outcome train(const setup& s) {
  return document_training::train<md::gpt2<double, md::megatron_context<hd::dp, hd::tp, hd::cp, Context>>, hd::zero<2>,
                                  Policies...>(settings, s);
}
// Keys go to all ranks at once, those that are needed or not.
struct every_rank {
  using kind = hd::carrier_kind;
  static constexpr std::string_view name = "every-rank";
  static constexpr void forward(hd::context_builder& b, std::span<const int> ranks) { spread(b, ranks); }
  static constexpr void backward(hd::context_builder& b, std::span<const int> ranks) { spread(b, ranks); }
  static constexpr void spread(hd::context_builder& b, std::span<const int> ranks) {
    for (const int owner : ranks)
      for (const int here : ranks) {
        b.move(0, owner, here, hd::context_kind::keys, owner);
        b.attend(1, here, here, owner);
        if (b.pass() == hd::context_pass::backward) b.give_back(2, here, owner, hd::context_kind::of_keys, owner);
      }
  }
};
// Forgets to give gradients of keys back.
struct forgetful : every_rank {
  static constexpr std::string_view name = "forgetful";
  static constexpr void backward(hd::context_builder& b, std::span<const int> ranks) {
    for (const int owner : ranks)
      for (const int here : ranks) {
        b.move(0, owner, here, hd::context_kind::keys, owner);
        b.attend(1, here, here, owner);
      }
  }
};

struct half_a_ring : hd::carrier::kv_ring {
  static constexpr std::string_view name = "half-a-ring";
  static constexpr void backward(hd::context_builder& b, std::span<const int> ranks) { forgetful::backward(b, ranks); }
};

// Refuses steps in which the sum of lengths is odd.
struct even_planner {
  using kind = hd::document_planner_kind;
  static std::vector<hd::plan::document_wave> plan(std::span<const std::int64_t> lengths, int ranks, std::int64_t rows,
                                                   const hd::plan::sequence_costs&, hd::plan::balance) {
    std::int64_t sum = 0;
    for (const std::int64_t n : lengths) sum += n;
    if (sum % 2 != 0) throw std::runtime_error("the planner wants an even number of tokens, not " + std::to_string(sum));
    return hd::plan::whole_axis(lengths, ranks, rows);
  }
};
// Documents of 2 tokens, and behind the first 20 of 3.
struct even_at_first {
  std::int64_t documents() const { return 40; }
  std::int64_t length(std::int64_t d) const { return d < 20 ? 2 : 3; }
  void fill(std::int64_t d, std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = targets[i] = static_cast<std::int32_t>((d + first + static_cast<std::int64_t>(i)) % settings.vocabulary);
  }
};

}  // namespace

TEST_CASE("an error of the planner arrives at the step that it plans for, beside the step before or not", "[train][context][error]") {
  using model = md::gpt2<double, md::megatron_context<hd::dp, hd::tp, hd::cp, hd::context<even_planner>>>;
  for (const bool plan_ahead : {true, false}) {
    std::vector<std::int64_t> done(2, 0), ahead(2, 0);
    const auto mesh = hd::parse_mesh<mesh_type>("cp=2");
    const hd::schedule::tabled when(train_test::table_named("1f1b", 1, 1));
    CHECK_THROWS_WITH(hd::launch<hd::threads>(mesh,
                                              [&](auto& world) {
                                                hd::train::options<md::gpt2_config> o;
                                                o.model = settings;
                                                o.batch = 9;
                                                o.steps = 4;
                                                o.rows_per_rank = 20;
                                                o.threads_per_rank = 1;
                                                o.plan_ahead = plan_ahead;
                                                hd::train::trainer<model, hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<2>>,
                                                                   std::remove_reference_t<decltype(world)>>
                                                    trainer(world, o, when);
                                                while (trainer.steps_done() < o.steps) {
                                                  trainer.step(even_at_first{});
                                                  done[static_cast<std::size_t>(world.rank())] = trainer.steps_done();
                                                  ahead[static_cast<std::size_t>(world.rank())] = trainer.batches().planned_ahead();
                                                }
                                              }),
                      Catch::Matchers::Contains("the planner wants an even number of tokens, not 25"));
    CHECK(done == std::vector<std::int64_t>(2, 2));
    CHECK(ahead == std::vector<std::int64_t>(2, plan_ahead ? 1 : 0));
  }
}

TEST_CASE("a GPT-2 trained on documents that ranks share is that of one rank, in double", "[train][context][ranks]") {
  using mine = hd::context<every_rank, hd::split::balanced, hd::planner::hybrid>;
  const outcome serial = train<mine>({.microbatches = 1, .rows = 400});
  REQUIRE(serial.norms[0] > 0.05);
  for (const setup& s : {setup{"cp=8", "", "1f1b", 6, 12}, setup{"dp=2,cp=2,tp=2", "", "gpipe", 6, 20},
                         setup{"pp=2,cp=3", "", "zb-h1", 6, 20}}) {
    INFO(s.mesh << ", " << s.schedule << ", " << s.microbatches << " microbatches");
    check_same(train<mine>(s), serial);
  }
}

TEST_CASE("a GPT-2 is trained on documents in memory that the host may not touch, with the bits of the host's", "[train][context][memory][ranks]") {
  using checked = hd::testing::checked_backend<hd::compute::host<>>;
  using mine = hd::context<every_rank, hd::split::balanced, hd::planner::hybrid>;
  const auto there = [](const setup& s) { return train<mine, language_training::recompute, checked>(s); };
  for (setup s : {setup{"cp=3", "", "1f1b", 6, 20}, setup{"cp=2,pp=2", "", "zb-h1", 6, 20}}) {
    INFO(s.mesh << ", " << s.schedule);
    const outcome expected = train<mine>(s), got = there(s);
    CHECK(got.losses == expected.losses);
    CHECK(got.norms == expected.norms);
    CHECK(got.weights == expected.weights);
    s.again = "full,keep-tail 1/2";
    check_same(there(s), expected);
  }
}

TEST_CASE("a carrier of one's own that is wrong is refused before the step", "[train][context][error]") {
  const setup s{.mesh = "cp=2", .microbatches = 6, .rows = 20};
  CHECK_THROWS_WITH(train<hd::context<hd::backward<forgetful>>>(s),
                    Catch::Matchers::Contains("the carrier forgetful is wrong"));
  // It has the forward pass of a carrier of the library, and a backward pass of its own.
  CHECK_THROWS_WITH(train<hd::context<half_a_ring>>(s), Catch::Matchers::Contains("the carrier half-a-ring is wrong"));
}
