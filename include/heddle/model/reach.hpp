// heddle/model/reach.hpp: reaches of language models: the tokens of its text that a row sees.
#pragma once

#include <cstdint>

namespace heddle::inline v0::model {

/// A row sees the tokens up to its own: what a model without a member type `reach` does.
struct earlier {};
/// A row sees all tokens of its text, also those behind it: a masked model, such as LLaDA.
struct everything {};
/// A row sees the tokens up to the end of its block of `Rows`: a model that fills a block at once, such as SDAR.
template <std::int64_t Rows>
struct blocks {
  static_assert(Rows > 0, "heddle: blocks<Rows>: a block has at least one row");
  static constexpr std::int64_t rows = Rows;
};

namespace detail {
template <class Model>
struct reach_in {
  using type = earlier;
};
template <class Model>
  requires requires { typename Model::reach; }
struct reach_in<Model> {
  using type = typename Model::reach;
};
template <class Model>
  requires(
      !requires { typename Model::reach; } && requires { typename Model::base; })
struct reach_in<Model> : reach_in<typename Model::base> {};
}  // namespace detail

/// Rows of a block of a reach: 0 for `earlier`, -1 for `everything`.
template <class Reach>
inline constexpr std::int64_t reach_rows = 0;
template <>
inline constexpr std::int64_t reach_rows<everything> = -1;
template <std::int64_t Rows>
inline constexpr std::int64_t reach_rows<blocks<Rows>> = Rows;

/// The length of a text whose rows, seeing those before them, have as many pairs for each row as rows of a text of n tokens have with this reach; n is to be a multiple of a block's
/// rows. Operations of attention follow from it.
template <class Reach>
constexpr std::int64_t causal_length(std::int64_t n) noexcept {
  constexpr std::int64_t rows = reach_rows<Reach>;
  const std::int64_t all = 2 * n - 1;
  return rows == 0 || n <= 0 ? n : rows < 0 || rows > n ? all : n + rows - 1;
}

/// What rows of a model see: its member type `reach`, that of the model it was made of, or `earlier`.
template <class Model>
using reach_of = typename detail::reach_in<Model>::type;

}  // namespace heddle::inline v0::model
