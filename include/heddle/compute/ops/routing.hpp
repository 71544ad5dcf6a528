// heddle/compute/ops/routing.hpp: operations that choose experts and move rows to them.
#pragma once

#include <heddle/compute/kernel_arguments.hpp>
#include <heddle/compute/op.hpp>
#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace heddle::inline v0::compute {
namespace detail {
// Errors: `layout_error` for more choices than there are experts.
inline void expect_choices(const char* name, std::int64_t choices, std::int64_t experts) {
  if constexpr (!checks_arguments) return;
  if (choices > experts) [[unlikely]]
    throw layout_error("heddle: " + std::string(name) + ": at most all of the " + std::to_string(experts) +
                       " experts can be chosen, got ids of " + std::to_string(choices) + " columns");
}
inline constexpr std::int64_t most_choices = (std::numeric_limits<std::int32_t>::max)();
}  // namespace detail

namespace ops {
struct experts {};  ///< a dimension
struct choices {};  ///< those of a row
struct offsets {};  ///< where the rows of each expert begin, and where those of the last one end
struct routed {};   ///< rows as experts have them

/// The base of operations on choices of experts. Ids are checked where the host can read them.
struct choice_operation : operation {
  using dims = sizes<rows, experts, choices>;

 protected:
  static void check_ids(const char* name, const char* what, const std::int32_t* ids, std::int64_t count,
                        std::int64_t first, std::int64_t end) {
    detail::indices_within(name, what, {ids, static_cast<std::size_t>(count)}, first, end);
  }
};
/// The greatest logits of each row in descending order, equal ones by lower id, NaN first, and their weights by `Rule`
/// (`softmax_of_chosen`, `softmax_of_all`). Errors: `layout_error` for more choices than experts.
/// Source: Shazeer et al. 2017, arXiv:1701.06538.
template <class Rule>
struct top_k : choice_operation {
  static constexpr const char* name = "top_k";
  static constexpr const char* arguments[] = {"logits", "ids", "weights"};
  static constexpr std::size_t chosen_argument = 1;  // which has the ids that are chosen
  using takes = signature<in<rows, experts>, out_of<std::int32_t, rows, choices>, out<rows, choices>>;
  static constexpr std::int64_t flops(const dims& n) { return n.product(); }
  static void check(const dims& n, const void*, const void*, const void*) {
    detail::expect_choices(name, n[choices{}], n[experts{}]);
  }
};
/// Overwrites dlogits.
template <class Rule>
struct top_k_backward : choice_operation {
  static constexpr const char* name = "top_k_backward";
  static constexpr const char* arguments[] = {"logits", "ids", "weights", "dweights", "dlogits"};
  using takes = signature<in<rows, experts>, in_of<std::int32_t, rows, choices>, in<rows, choices>, in<rows, choices>,
                          out<rows, experts>>;
  static constexpr std::int64_t flops(const dims& n) { return 3 * n[rows{}] * n[experts{}]; }
  static void check_values(const dims& n, const void*, const std::int32_t* ids, const void*, const void*, const void*) {
    check_ids(name, "ids", ids, n[rows{}] * n[choices{}], 0, n[experts{}]);
  }
};
/// With c_e the choices of expert e and p the softmax of a row's logits: out += the sum over e of c_e (sum over rows of p_e). Ids of -1
/// are no choices. Source: Fedus et al. 2021, arXiv:2101.03961, equations (4) to (6).
struct expert_balance : choice_operation {
  static constexpr const char* name = "expert_balance";
  static constexpr const char* arguments[] = {"logits", "ids", "out"};
  using takes = signature<in<rows, experts>, in_of<std::int32_t, rows, choices>, total>;
  static constexpr std::int64_t flops(const dims& n) { return 5 * n[rows{}] * n[experts{}]; }
  static void check_values(const dims& n, const void*, const std::int32_t* ids, const void*) {
    check_ids(name, "ids", ids, n[rows{}] * n[choices{}], -1, n[experts{}]);
  }
};
/// Adds scale times its gradient, in which the c_e are constants, to dlogits.
struct expert_balance_backward : choice_operation {
  static constexpr const char* name = "expert_balance_backward";
  static constexpr const char* arguments[] = {"logits", "ids", "scale", "dlogits"};
  using takes = signature<in<rows, experts>, in_of<std::int32_t, rows, choices>, number, inout<rows, experts>>;
  static constexpr std::int64_t flops(const dims& n) { return 8 * n[rows{}] * n[experts{}]; }
  static void check_values(const dims& n, const void*, const std::int32_t* ids, auto, const void*) {
    check_ids(name, "ids", ids, n[rows{}] * n[choices{}], -1, n[experts{}]);
  }
};
/// The same where rows of other ranks have chosen, too: `counts` are all that have.
struct counted_balance_backward : operation {
  static constexpr const char* name = "expert_balance_backward";
  static constexpr const char* arguments[] = {"logits", "counts", "scale", "dlogits"};
  using dims = sizes<rows, experts>;
  using takes = signature<in<rows, experts>, in_sums<experts>, number, inout<rows, experts>>;
  static constexpr std::int64_t flops(const dims& n) { return 8 * n.product(); }
};
/// Choices of experts that may have `most` each: kept is ids, and -1 where the expert has `most` others that `Rule` prefers
/// (`keep_heaviest`, `keep_first`).
/// Source: Fedus et al. 2021, arXiv:2101.03961, section 2.2; Liu et al. 2025, arXiv:2504.14960 (by weight).
template <class Rule>
struct limit_choices : operation {
  static constexpr const char* name = "limit_choices";
  static constexpr const char* arguments[] = {"ids", "weights", "experts", "most", "kept"};
  using dims = sizes<rows, choices>;
  using takes = signature<in_of<std::int32_t, rows, choices>, in<rows, choices>, index, index,
                          out_of<std::int32_t, rows, choices>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
  static void check(const dims& n, const void*, const void*, std::int64_t, std::int64_t, const void*) {
    if (n.product() > detail::most_choices) [[unlikely]]
      throw layout_error("heddle: limit_choices: choices should be at most 2^31 - 1, got " +
                         std::to_string(n.product()));
  }
  static void check_values(const dims& n, const std::int32_t* ids, const void*, std::int64_t of, std::int64_t,
                           const void*) {
    detail::indices_within(name, "ids", {ids, static_cast<std::size_t>(n.product())}, -1, of);
  }
};

/// Sorts choices by expert, tokens in order: the rows of expert first_id + e are [offsets[e], offsets[e + 1]) of the routed ones, row i of
/// them is that of token sources[i], and choice j of token t is in row places(t, j). Choices of other experts have place -1, rows after the
/// last one source -1.
/// Source: Gale et al. 2022, arXiv:2211.15841 (no token dropped).
struct route : operation {
  static constexpr const char* name = "route";
  static constexpr const char* arguments[] = {"ids", "first_id", "offsets", "sources", "places"};
  using dims = sizes<rows, choices, offsets, routed>;
  using takes = signature<in_of<std::int32_t, rows, choices>, index, out_of<std::int64_t, offsets>,
                          out_of<std::int32_t, routed>, out_of<std::int32_t, rows, choices>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
  static void check(const dims& n, const void*, std::int64_t, const void*, const void*, const void*) {
    const std::int64_t all = n[rows{}] * n[choices{}];
    detail::expect(name, "elements of sources (tokens * k)", all, n[routed{}]);
    if (n[offsets{}] == 0 || all > detail::most_choices) [[unlikely]]
      throw layout_error(
          "heddle: route: offsets should have an element more than there are experts, and choices at most 2^31 - 1, "
          "got " +
          std::to_string(n[offsets{}]) + " offsets and " + std::to_string(all) + " choices");
  }
};
/// y[i] = x[sources[i]], zeros for source -1.
struct permute : operation {
  static constexpr const char* name = "permute";
  static constexpr const char* arguments[] = {"x", "sources", "y"};
  using dims = sizes<rows, routed, columns>;
  using takes = signature<in<rows, columns>, in_ids<routed>, out<routed, columns>>;
  static constexpr std::int64_t flops(const dims&) { return 0; }
  static void check_values(const dims& n, const void*, const std::int32_t* sources, const void*) {
    detail::indices_within(name, "sources", {sources, static_cast<std::size_t>(n[routed{}])}, -1, n[rows{}]);
  }
};
/// The base of operations that bring rows back to their places.
struct place_operation : operation {
  using dims = sizes<rows, choices, routed, columns>;
  static constexpr std::int64_t flops(const dims& n) { return 2 * n[rows{}] * n[choices{}] * n[columns{}]; }

 protected:
  static void check_places(const char* name, const dims& n, const std::int32_t* places) {
    detail::indices_within(name, "places", {places, static_cast<std::size_t>(n[rows{}] * n[choices{}])}, -1,
                           n[routed{}]);
  }
};
/// dx[t] = the sum over j of dy[places(t, j)].
struct permute_backward : place_operation {
  static constexpr const char* name = "permute_backward";
  static constexpr const char* arguments[] = {"dy", "places", "dx"};
  using takes = signature<in<routed, columns>, in_of<std::int32_t, rows, choices>, out<rows, columns>>;
  static void check_values(const dims& n, const void*, const std::int32_t* places, const void*) {
    check_places(name, n, places);
  }
};
/// out[t] = the sum over j of weights(t, j) y[places(t, j)].
struct unpermute : place_operation {
  static constexpr const char* name = "unpermute";
  static constexpr const char* arguments[] = {"y", "places", "weights", "out"};
  using takes =
      signature<in<routed, columns>, in_of<std::int32_t, rows, choices>, in<rows, choices>, out<rows, columns>>;
  static void check_values(const dims& n, const void*, const std::int32_t* places, const void*, const void*) {
    check_places(name, n, places);
  }
};
/// Overwrites dy, which may be y, and dweights.
struct unpermute_backward : place_operation {
  static constexpr const char* name = "unpermute_backward";
  static constexpr const char* arguments[] = {"dout", "y", "places", "weights", "dy", "dweights"};
  using takes = signature<in<rows, columns>, in<routed, columns>, in_of<std::int32_t, rows, choices>, in<rows, choices>,
                          out<routed, columns>, out<rows, choices>>;
  static void check_values(const dims& n, const void*, const void*, const std::int32_t* places, const void*,
                           const void*, const void*) {
    check_places(name, n, places);
  }
};
}  // namespace ops

/// Choice of experts, and rows to them and back.
struct routing_facet
    : operations<ops::top_k<softmax_of_chosen>, ops::top_k<softmax_of_all>, ops::top_k_backward<softmax_of_chosen>,
                 ops::top_k_backward<softmax_of_all>, ops::route, ops::permute, ops::permute_backward, ops::unpermute,
                 ops::unpermute_backward> {};
/// How evenly experts are chosen.
struct expert_balance_facet : operations<ops::expert_balance, ops::expert_balance_backward> {};
/// Experts that may have so many choices.
struct choice_limit_facet : operations<ops::limit_choices<keep_heaviest>, ops::limit_choices<keep_first>> {};

}  // namespace heddle::inline v0::compute
