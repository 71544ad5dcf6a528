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
