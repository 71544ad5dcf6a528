// heddle/model/elastic_llama.hpp: Llama whose ranks hold runs of whole tensors.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/llama.hpp>

#include <cstdint>
#include <numeric>
#include <string>

namespace heddle::inline v0::model {

/// Hidden units of which each rank's part of a matrix begins at a multiple of `page_bytes` of memory, so that it can be given back: the least number from `units` on. Those that
/// are added have weights of zero, and change no output. Units: `row_bytes` of the weights of one hidden unit; `ranks`: of the largest degree.
/// Errors: `config_error` for numbers below 1.
/// Source: Gyges, arXiv:2509.19729 (weight padding); the rule is a reconstruction.
constexpr std::int64_t padded_units(std::int64_t units, std::int64_t row_bytes, std::int64_t page_bytes,
                                    std::int64_t ranks) {
  if (units < 1 || row_bytes < 1 || page_bytes < 1 || ranks < 1)
    throw config_error(
        "heddle: padded_units: units, bytes of a row, bytes of a page and ranks should be at least 1, got " +
        std::to_string(units) + ", " + std::to_string(row_bytes) + ", " + std::to_string(page_bytes) + " and " +
        std::to_string(ranks));
  const std::int64_t step = std::lcm(row_bytes, page_bytes) / row_bytes * ranks;
  return (units + step - 1) / step * step;
}
static_assert(padded_units(27648, 2 * 5120, std::int64_t{2} << 20, 4) == 28672);

/// Llama with the last weights of attention and MLP [in, out], so that those of some heads and hidden units are one run of memory (`infer::elastic`). Parameters and numbers are Llama's;
/// these two are transposed in files.
template <class T, class How = megatron<>>
struct elastic_llama : described<elastic_llama<T, How>, T, batch<T>, llama_config, How> {
  static constexpr auto describe(const llama_config& c) {
    using layers::storage;
    using attention = layers::grouped_attention<false, false, false, storage::out_in, layers::no_adapter, false,
                                                layers::head_norm, storage::in_out>;
    using to_hidden = layers::linear<dims<dim::width>, dims<dim::ffn>, false, storage::out_in>;
    using from_hidden = layers::linear<dims<dim::ffn>, dims<dim::width>, false, storage::in_out>;
    const double s = c.initial_deviation;
    return layers::describe_llama_with<attention>(
        c, layers::gated<compute::silu>("mlp", to_hidden("gate_proj", {c.width}, {c.ffn}, s),
                                        to_hidden("up_proj", {c.width}, {c.ffn}, s),
                                        from_hidden("down_proj", {c.ffn}, {c.width}, s)));
  }
};

}  // namespace heddle::inline v0::model
