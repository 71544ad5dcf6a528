// tests/train/paper_rank_test.cpp: a step on paper has the calls and bytes of communicators, the memory and the operations of a step that runs.
#include "catch.hpp"
#include "paper_comparison.hpp"
#include "random_tokens.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/products.hpp>

namespace {
namespace paper_rank_test {

namespace hd = heddle;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using checked = hd::testing::checked_backend<hd::compute::host<>>;
constexpr int context = 12, words = 509;
using samples = train_test::random_tokens<context, words>;

template <class Model, class Backend, int Zero, class... More>
void compare(const paper_comparison::strategy_text& s, const typename Model::config& config) {
  paper_comparison::compare<Model, hd::strategy<mesh_type, hd::zero<Zero>, Backend, hd::schedule::named,
                                                hd::activations::recompute<>, More...>>(
      s, config, samples{},
      hd::type_list<hd::type_list<dp>, hd::type_list<tp>, hd::type_list<pp>, hd::type_list<dp, tp>>{});
}

md::llama_config small_llama() {
  return {.layers = 4, .heads = 8, .kv_heads = 8, .width = 64, .ffn = 170, .context = context, .vocabulary = words};
}

TEST_CASE("a step on paper sends and holds what a GPT-2's does", "[train][paper][ranks]") {
  const md::gpt2_config c{.layers = 4, .heads = 8, .width = 64, .context = context, .vocabulary = words};
  compare<md::gpt2<float>, checked, 0>({"dp=2,pp=2,tp=2", "1f1b", 4, "none"}, c);
  compare<md::gpt2<float>, checked, 0>({"dp=4,pp=2", "zb-h1", 2, "full", 19}, c);
  compare<md::gpt2<float>, checked, 0>({"tp=8", "gpipe", 8, "none"}, c);
}

TEST_CASE("a step on paper sends and holds what a Llama's does", "[train][paper][ranks]") {
  using model = md::llama<float>;
  compare<model, hd::compute::host<>, 1>({"dp=2,pp=2,tp=2", "interleaved:2", 4, "none"}, small_llama());
  compare<model, hd::compute::host<>, 1>({"dp=2,tp=4", "1f1b", 2, "full", 10}, small_llama());
  compare<model, hd::compute::host<>, 1>({"pp=4,tp=2", "zb-h1", 8, "full"}, small_llama());
  compare<model, checked, 2>({"dp=4,pp=2", "interleaved:2", 2, "none"}, small_llama());
  compare<model, hd::compute::host<>, 2, hd::reduce_beside>({"dp=2,pp=2,tp=2", "interleaved:2", 4, "none"},
                                                            small_llama());
  compare<model, checked, 2>({"dp=2,pp=2,tp=2", "1f1b", 4, "full", 8}, small_llama());
}

TEST_CASE("a step on paper sends and holds what a Qwen's does", "[train][paper][ranks]") {
  compare<md::qwen3<float>, checked, 3>({"dp=8", "1f1b", 2, "full", 17}, md::qwen3_config(small_llama()));
  compare<md::qwen3<float>, checked, 3>({"dp=2,pp=2,tp=2", "interleaved:2", 4, "none"},
                                        md::qwen3_config(small_llama()));
}

TEST_CASE("a step on paper sends and holds what one whose rows are split over tp does", "[train][paper][ranks]") {
  using model = md::llama<float, md::megatron_sequence<>>;
  compare<model, hd::compute::host<>, 1>({"dp=2,pp=2,tp=2", "1f1b", 4, "none"}, small_llama());
  compare<model, hd::compute::host<>, 1>({"pp=2,tp=4", "zb-h1", 2, "full", 8}, small_llama());
}

TEST_CASE("a step on paper sends and holds what one of reduced types does", "[train][paper][ranks]") {
  using model = md::llama<float>;
  using products = hd::precision<hd::products_in<hd::bf16>>;
  using gradients = hd::precision<hd::gradients_in<hd::bf16>, hd::moments_in<hd::bf16>>;
  compare<model, hd::compute::host<>, 1, products>({"dp=2,pp=2,tp=2", "1f1b", 4, "none", 8}, small_llama());
  compare<model, checked, 2, gradients>({"dp=4,pp=2", "1f1b", 4, "none", 16}, small_llama());
  // Weights and activations in bf16, gradients, masters and moments in float.
  using masters = hd::precision<hd::masters_in<float>, hd::moments_in<float>>;
  compare<md::llama<hd::bf16>, hd::compute::host<>, 1, masters>({"dp=2,pp=2,tp=2", "1f1b", 4, "none", 8},
                                                                small_llama());
}
}  // namespace paper_rank_test
}  // namespace
