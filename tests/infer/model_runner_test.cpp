// Steps with a cache give the logits of whole prefixes: any mesh, chunking, companions, blocks and forks.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>

using namespace infer_test;

namespace {

constexpr md::gpt2_config small_gpt2{
    .layers = 3, .heads = 3, .width = 12, .context = 13, .vocabulary = 23, .initial_deviation = 0.4};
constexpr md::llama_config small_llama{.layers = 3,
                                       .heads = 6,
                                       .kv_heads = 3,
                                       .width = 12,
                                       .ffn = 17,
                                       .context = 13,
                                       .vocabulary = 23,
                                       .initial_deviation = 0.4,
                                       .head_elements = 4};

// Everything that may not change the logits, on one mesh with one size of blocks. Returns the worst difference.
template <class Model>
double worst_difference(const mesh_type& mesh, const typename Model::config& config, std::int64_t block_rows,
                        const std::vector<std::vector<std::int32_t>>& sequences, const all_logits<double>& expected,
                        std::uint64_t seed) {
  const std::int64_t blocks =
      2 * static_cast<std::int64_t>(sequences.size()) * ((config.context + block_rows - 1) / block_rows);
  const auto ranks = on_runners<Model>(mesh, config, {blocks, block_rows}, 44, seed, [&](auto& runner) {
    using driver_type = driver<std::remove_reference_t<decltype(runner)>>;
    double worst = 0;
    const auto compare = [&](const driver_type& d) {
      const double off = distance(d.found(), expected);
      if (!(off <= worst)) worst = off;
    };
    {  // token by token, one sequence after the other
      driver_type d(runner, sequences, seed);
      for (std::size_t s = 0; s < sequences.size(); ++s)
        while (d.left(s) > 0) d.feed({{s, 1}});
      compare(d);
    }
    {  // prompts at once, all together
      driver_type d(runner, sequences, seed + 1);
      std::vector<std::pair<std::size_t, std::int64_t>> all;
      for (std::size_t s = 0; s < sequences.size(); ++s) all.emplace_back(s, d.left(s));
      d.feed(all);
      compare(d);
    }
    {  // random chunks of random companions
      driver_type d(runner, sequences, seed + 2);
      const hd::counter_random random(seed, 5);
      for (std::uint64_t i = 0;; ++i) {
        std::vector<std::pair<std::size_t, std::int64_t>> some;
        std::int64_t left = 0;
        for (std::size_t s = 0; s < sequences.size(); ++s) {
          left += d.left(s);
          const auto draw = random.integer(i * 64 + s);
          const std::int64_t n = (std::min)(d.left(s), static_cast<std::int64_t>(draw / 8 % 5));
          if (draw % 3 != 0 && n > 0) some.emplace_back((s + i) % sequences.size(), 0);  // another order each time
        }
        if (left == 0) break;
        for (auto& [s, n] : some)
          n = (std::min)(d.left(s), 1 + static_cast<std::int64_t>(random.integer(i * 64 + 32 + s) % 4));
        std::erase_if(some, [](const auto& one) { return one.second == 0; });
        if (!some.empty()) d.feed(some);
      }
      compare(d);
    }
    {  // the last two sequences share a beginning: blocks and a copy
      driver_type d(runner, sequences, seed + 3);
      const std::size_t last = sequences.size() - 1;
      for (std::size_t s = 0; s < last; ++s) d.feed({{s, d.left(s)}});
      d.fork(last - 1, last, 6);
      d.feed({{last, 2}});
      d.feed({{last, d.left(last)}});
      compare(d);
    }
    return worst;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  return ranks[0];
}

template <class Model>
void check_model(const typename Model::config& config) {
  const std::uint64_t seed = 20260;
  CAPTURE(seed);
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::size_t n : {std::size_t{13}, std::size_t{1}, std::size_t{7}, std::size_t{11}, std::size_t{12}})
    sequences.push_back(random_tokens(n, static_cast<int>(config.vocabulary), seed + n));
  std::copy_n(sequences[3].begin(), 6, sequences[4].begin());
  const auto expected = logits_of_prefixes<Model>(config, seed, sequences);
  double greatest = 0;
  for (const auto& row : expected[0])
    for (const double x : row) greatest = (std::max)(greatest, std::abs(x));
  CHECK(greatest > 0.1);  // there is something to compare
  for (const auto& [stages, parts] :
       {std::pair(1, 1), std::pair(1, 2), std::pair(1, 3), std::pair(2, 1), std::pair(2, 2)})
    for (const std::int64_t block_rows :
         {std::int64_t{1}, std::int64_t{4}, static_cast<std::int64_t>(config.context)}) {
      CAPTURE(stages, parts, block_rows);
      CHECK(worst_difference<Model>(mesh_type{stages, parts}, config, block_rows, sequences, expected, seed) < 1e-10);
    }
}

}  // namespace

TEST_CASE("a Llama with a cache gives the logits of whole prefixes", "[infer]") {
  check_model<md::llama<double>>(small_llama);
}
TEST_CASE("a GPT-2 with a cache gives the logits of whole prefixes", "[infer]") {
  check_model<md::gpt2<double>>(small_gpt2);
}
TEST_CASE("a Qwen-3 with a cache gives the logits of whole prefixes", "[infer]") {
  check_model<md::qwen3<double>>(md::qwen3_config(small_llama));
}
