// tests/train/context_gpt2_test.cpp: documents that ranks share train the GPT-2 of one rank: learned positions, tied weights, policies as types.
#include "document_training.hpp"

#include <heddle/model/gpt2.hpp>

using namespace document_training;

namespace {

namespace md = heddle::model;
constexpr md::gpt2_config settings{.layers = 2, .heads = 4, .width = 16, .context = 40, .vocabulary = 31};
template <class Context>
outcome train(const setup& s) {
  return document_training::train<md::gpt2<double, md::megatron_context<hd::dp, hd::tp, hd::cp, Context>>, hd::zero<2>>(
      settings, s);
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

}  // namespace

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

TEST_CASE("a carrier of one's own that is wrong is refused before the step", "[train][context][error]") {
  const setup s{.mesh = "cp=2", .microbatches = 6, .rows = 20};
  CHECK_THROWS_WITH(train<hd::context<hd::backward<forgetful>>>(s),
                    Catch::Matchers::Contains("the carrier forgetful is wrong"));
  // It has the forward pass of a carrier of the library, and a backward pass of its own.
  CHECK_THROWS_WITH(train<hd::context<half_a_ring>>(s), Catch::Matchers::Contains("the carrier half-a-ring is wrong"));
}
