// The same GPT-2 and Llama with the rows of the residual stream split over tp: losses, gradients and logits equal those of one
// rank, in double, and every all_gather and reduce_scatter is counted, with its elements.
#include "parallel_training.hpp"
#include "sent_bytes.hpp"

#include <heddle/model/qwen.hpp>
#include <heddle/model/with_chunked_loss.hpp>

using namespace model_test;

namespace {

using gpt2 = md::gpt2<double, md::megatron_sequence<>>;
using qwen = md::qwen3<double, md::megatron_sequence<>>;

// 5 rows a sample: parts of tp are uneven and begin inside of samples.
const model_case<gpt2::config> usual{
    {.layers = 3, .heads = 4, .width = 12, .context = 5, .vocabulary = 17, .initial_deviation = 0.3}, 5, {2, 0, 1}};
// Fewer rows, heads and words than ranks along tp: some ranks hold none.
const model_case<gpt2::config> scarce{
    {.layers = 2, .heads = 2, .width = 6, .context = 3, .vocabulary = 3, .initial_deviation = 0.3}, 3, {1}};

// Layouts, as the rules of a sharding give them.
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using layouts = md::layouts<mesh, md::megatron_sequence<>>;
template <class... D>
using edge = layouts::edge<md::dims<D...>>;
using width = md::dims<hd::dim::width>;
using units = md::dims<hd::dim::ffn>;

}  // namespace

TEST_CASE("an axis splits the rows of activations of which it splits nothing else", "[model][law]") {
  STATIC_REQUIRE(std::is_same_v<edge<hd::dim::width>, hd::layout<mesh, hd::shard<0, dp, tp>>>);
  STATIC_REQUIRE(std::is_same_v<edge<>, hd::layout<mesh, hd::shard<0, dp, tp>>>);
  STATIC_REQUIRE(std::is_same_v<edge<hd::dim::ffn>, hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, tp>>>);
  STATIC_REQUIRE(std::is_same_v<layouts::edge<width, units>, hd::layout<mesh, hd::shard<0, dp>, hd::identical<tp>>>);
  // What a product takes, makes and leaves: all_gather, reduce_scatter, and the same two backward.
  using up = md::product_layouts<layouts, width, units, layouts::parameter<md::dims<hd::dim::width, hd::dim::ffn>>>;
  using down = md::product_layouts<layouts, units, width, layouts::parameter<md::dims<hd::dim::ffn, hd::dim::width>>>;
  STATIC_REQUIRE(std::is_same_v<up::x_taken, layouts::edge<width, units>>);
  STATIC_REQUIRE(std::is_same_v<up::dx_made, hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>>);
  STATIC_REQUIRE(std::is_same_v<down::made, hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>>);
  STATIC_REQUIRE(std::is_same_v<down::x_taken, down::x_edge>);
  using md::layers::detail::rows_moved, md::layers::detail::settlement;
  STATIC_REQUIRE(rows_moved<up::x_edge, up::x_taken>::what == settlement::gather);
  STATIC_REQUIRE(rows_moved<down::made, down::y>::what == settlement::scatter);
  STATIC_REQUIRE(rows_moved<hd::dual<down::y>, hd::dual<down::made>>::what == settlement::gather);
  STATIC_REQUIRE(rows_moved<up::dx_made, hd::dual<up::x_edge>>::what == settlement::scatter);
  // Who sees the rows of a rank only has a gradient that is a sum over tp.
  using norm = md::layers::parameter<md::layers::weight, width>;
  using bias = md::layers::parameter<md::layers::bias, units>;
  STATIC_REQUIRE(std::is_same_v<md::detail::summed_axes_of<layouts, norm>, hd::type_list<dp, tp>>);
  STATIC_REQUIRE(std::is_same_v<md::detail::summed_axes_of<layouts, bias>, hd::type_list<dp>>);
  STATIC_REQUIRE(std::is_same_v<md::detail::summed_axes_of<layouts>, hd::type_list<dp>>);
  // Over one rank nothing is split, and nothing gathered.
  using alone = md::layouts<hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 1>>, md::megatron_sequence<>>;
  STATIC_REQUIRE(layouts::splits_rows<width>);
  STATIC_REQUIRE_FALSE(layouts::splits_rows<width, units>);
  STATIC_REQUIRE_FALSE(alone::splits_rows<width>);
  STATIC_REQUIRE(rows_moved<alone::edge<width>, alone::edge<width, units>>::what == settlement::nothing);
}

TEST_CASE("rows are cut as evenly as possible, as their layout says", "[model][law]") {
  using any = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
  using any_layouts = md::layouts<any, md::megatron_sequence<>>;
  for (int parts = 1; parts <= 5; ++parts)
    for (std::int64_t rows = 0; rows <= 12; ++rows) {
      const any on(1, parts);
      const any_layouts::edge<md::dims<>> layout{on};
      std::int64_t next = 0;
      for (int rank = 0; rank < parts; ++rank) {
        const auto own = md::rows_on_rank<any_layouts, width>(on, rank, rows);
        CHECK(own.first == next);
        CHECK(own.count == layout.local_shape(hd::dynamic_shape<1>(rows), rank).extent(0));
        CHECK(md::rows_on_rank<any_layouts, units>(on, rank, rows).count == rows);
        next += own.count;
      }
      CHECK(next == rows);
    }
}

TEST_CASE("rows split over tp train the one-rank model", "[model][parallel][ranks]") {
  const auto [replicas, stages, parts] = GENERATE(
      table<int, int, int>({{1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {1, 2, 2}, {2, 1, 2}, {1, 3, 3}, {2, 2, 2}, {3, 2, 2}}));
  const bool apart = GENERATE(false, true);
  CAPTURE(replicas, stages, parts, apart);
  compare_with_one_rank<gpt2>(any_mesh(replicas, stages, parts), usual, apart);
}

TEST_CASE("ranks without rows", "[model][parallel][ranks]") {
  const auto [stages, parts] = GENERATE(table<int, int>({{1, 4}, {2, 4}, {4, 2}}));
  const bool apart = GENERATE(false, true);
  CAPTURE(stages, parts, apart);
  compare_with_one_rank<gpt2>(any_mesh(1, stages, parts), scarce, apart);
}

TEST_CASE("a Qwen-3, whose head norms are summed over tp as well, with rows split over tp",
          "[model][parallel][ranks][qwen]") {
  const md::llama_config sizes{.layers = 3,
                               .heads = 4,
                               .kv_heads = 2,
                               .width = 10,
                               .ffn = 7,
                               .context = 5,
                               .vocabulary = 17,
                               .theta = 50,
                               .initial_deviation = 0.3,
                               .head_elements = 6};
  const model_case<qwen::config> shape{sizes, 5, {2, 0, 1}};
  const auto [replicas, stages, parts] = GENERATE(table<int, int, int>({{1, 1, 3}, {2, 1, 2}, {1, 2, 2}}));
  const bool apart = GENERATE(false, true);
  CAPTURE(replicas, stages, parts, apart);
  compare_with_one_rank<qwen>(any_mesh(replicas, stages, parts), shape, apart, any_mesh(1, 1, 1));
}

TEST_CASE("a block sends the bytes of two all_gathers and two reduce_scatters each way", "[model][parallel][counts]") {
  const int parts = GENERATE(2, 3);
  CAPTURE(parts);
  const std::int64_t stream = 15 * 12 * 8;  // 15 rows of 12 channels: 8 + 7 over two ranks
  const auto of_block = [&](const auto& more, const auto& fewer, std::size_t verb) { return more[verb] - fewer[verb]; };
  const auto split = bytes_of<gpt2>(3, parts), one_less = bytes_of<gpt2>(2, parts);
  const std::int64_t each = (parts - 1) * stream;  // of one all_gather or one reduce_scatter, of all ranks together
  CHECK(of_block(split, one_less, 0) == 4 * each);
  CHECK(of_block(split, one_less, 1) == 4 * each);
  CHECK(of_block(split, one_less, 2) == 2 * each);
  // With whole rows: two all_reduces each way, whose textbook form is the same in one.
  const auto whole = bytes_of<md::gpt2<double>>(3, parts), whole_less = bytes_of<md::gpt2<double>>(2, parts);
  CHECK(of_block(whole, whole_less, 0) == 4 * each);
  CHECK(of_block(whole, whole_less, 1) == 4 * each);
  CHECK(of_block(whole, whole_less, 2) == 0);
  // Embedding and head, with the three all_reduces of numbers per token.
  const std::int64_t ends = each + each + 3 * 2 * (parts - 1) * 15 * 8;
  CHECK(split[0] == 3 * 4 * each + ends);
  CHECK(split[1] == 3 * 4 * each + each);
  CHECK(split[2] == 3 * 2 * each + 2 * each);
}

TEST_CASE("a head that makes some logits at a time, with rows that are split", "[model][parallel][ranks]") {
  using chunked = md::with_chunked_loss<gpt2, 3>;
  const bool apart = GENERATE(false, true);
  compare_with_one_rank<chunked, gpt2>(any_mesh(1, 1, 3), usual, apart);
  compare_with_one_rank<chunked, gpt2>(any_mesh(1, 2, 2), usual, apart);
  compare_with_one_rank<chunked, gpt2>(any_mesh(1, 1, 4), scarce, apart);
}
