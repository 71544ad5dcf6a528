// tests/train/context_mixtral_test.cpp: documents that ranks share train the Mixtral of one rank, with experts on ranks of their own.
#include "document_training.hpp"

#include <heddle/model/mixtral.hpp>

using namespace document_training;

namespace {

namespace md = heddle::model;
// Rows of documents along cp, experts along ep, whose ranks have other documents.
using how = hd::sharding<hd::dim::split<hd::dim::samples, hd::dp>, hd::dim::split<hd::dim::samples, hd::ep>,
                         hd::dim::split<hd::dim::heads, hd::tp>, hd::dim::split<hd::dim::ffn, hd::tp>,
                         hd::dim::split<hd::dim::vocabulary, hd::tp>, hd::dim::split<hd::dim::experts, hd::ep>,
                         hd::dim::split<hd::dim::sequence, hd::cp, hd::context<>>>;
constexpr md::mixtral_config settings{{.layers = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .width = 12,
                                       .ffn = 7,
                                       .context = 24,
                                       .vocabulary = 31,
                                       .initial_deviation = 0.3,
                                       .head_elements = 4},
                                      5,
                                      2};
// Documents of 13 to 24 tokens: no two of them fit into a wave of 24, and a microbatch is one document on any mesh.
struct one_a_wave {
  std::int64_t documents() const { return 16; }
  std::int64_t length(std::int64_t d) const { return 13 + d * 7 % 12; }
  void fill(std::int64_t d, std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    const hd::counter_random random(23, static_cast<std::uint64_t>(d));
    const auto token = [&](std::int64_t at) {
      return static_cast<std::int32_t>(random.integer(static_cast<std::uint64_t>(at)) % static_cast<std::uint64_t>(settings.vocabulary));
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = token(first + static_cast<std::int64_t>(i));
      targets[i] = token(first + static_cast<std::int64_t>(i) + 1);
    }
  }
  std::int64_t validation_samples() const { return 2; }
};
outcome train_balanced(const char* mesh, const char* context, int microbatches, std::int64_t rows, double balance) {
  hd::train::options<md::mixtral_config> o;
  o.model = settings;
  o.model.balance = balance;
  o.batch = 8;
  o.steps = 3;
  o.clip_norm = 0.05;
  o.threads_per_rank = 1;
  o.context = context;
  o.rows_per_rank = rows;
  return language_training::train_on<mesh_type, md::mixtral<double, how>, hd::zero<1>>(o, mesh, "1f1b", microbatches, one_a_wave{});
}
outcome train(const setup& s) { return document_training::train<md::mixtral<double, how>, hd::zero<1>>(settings, s); }

}  // namespace

TEST_CASE("a Mixtral trained on documents that ranks share is that of one rank, in double", "[train][context][ranks]") {
  const outcome serial = train({.microbatches = 1, .rows = 240});
  REQUIRE(serial.norms[0] > 0.05);
  const setup runs[] = {
      {"cp=4,ep=2", "token-ring,zigzag,whole", "1f1b", 8, 8},
      {"cp=3", "kv-ring,zigzag,hybrid", "gpipe", 9, 10},
      {"dp=2,cp=2,tp=2", "gather,striped,flex", "1f1b", 6, 14},
      {"pp=2,cp=2,ep=2", "burst,contiguous,hybrid", "zb-h1", 6, 14},
  };
  for (const setup& s : runs) {
    INFO(s.mesh << ", " << s.context << ", " << s.schedule << ", " << s.microbatches << " microbatches");
    check_same(train(s), serial);
  }
}

TEST_CASE("how evenly experts are chosen counts over all ranks that share a document", "[train][context][ranks]") {
  const outcome serial = train_balanced("", "", 8, 24, 2.0), without = train_balanced("", "", 8, 24, 0.0);
  REQUIRE(language_training::relative_difference(serial.weights, without.weights) > 1e-4);
  check_same(train_balanced("cp=4,ep=2", "token-ring,zigzag,whole", 4, 6, 2.0), serial);
  check_same(train_balanced("dp=2,cp=3", "kv-ring,striped,whole", 4, 8, 2.0), serial);
}
