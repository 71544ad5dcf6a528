// heddle/model/masked.hpp: masked language models: LLaDA, Dream, SDAR, and others.
#pragma once

#include <heddle/model/described.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/reach.hpp>

#include <cstdint>

namespace heddle::inline v0::model {

/// `Base` whose tokens see what `Reach` says instead of those before them: parameters, names, sharding and strategies
/// are those of `Base`. It is trained on
/// masked tokens (`train::masked_targets`) and decoded by `infer::diffusion`. `Shifted`: the row of a token predicts
/// the token behind it, and not that at its own place.
template <class Base, class Reach = everything, bool Shifted = false>
struct masked : detail::described_as<masked<Base, Reach, Shifted>, Base> {
  using reach = Reach;
  static constexpr bool shifted = Shifted;
  /// `adapt`: adapters, for `with_lora`; or nothing.
  static constexpr auto describe(const typename Base::config& c, auto... adapt)
    requires requires { Base::describe(c, adapt...); }
  {
    return Base::describe(c, adapt...);
  }
};

/// LLaDA: a Llama whose tokens see all others. Source: Nie et al. 2025, arXiv:2502.09992; GSAI-ML/LLaDA-8B.
template <class T, class How = megatron<>>
using llada = masked<llama<T, How>, everything>;
/// Dream: a Qwen 2 whose tokens see all others, and whose rows predict the token behind theirs. Source: Ye et al. 2025,
/// arXiv:2508.15487.
template <class T, class How = megatron<>>
using dream = masked<qwen2<T, How>, everything, true>;
/// SDAR: a Qwen 3 whose tokens see their block of `Rows` tokens and those before it. Source: Cheng et al. 2025,
/// arXiv:2510.06303.
template <class T, std::int64_t Rows = 4, class How = megatron<>>
using sdar = masked<qwen3<T, How>, blocks<Rows>>;

}  // namespace heddle::inline v0::model
