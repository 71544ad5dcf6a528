// heddle/model/impl/kept_blocks.hpp: bodies of heddle/model/kept_blocks.hpp.
#pragma once

#include <heddle/model/kept_blocks.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

namespace heddle::inline v0::model {

HEDDLE_INLINE kept_blocks parse_blocks(std::string_view text, int all) {
  const auto fail = [&](const std::string& what) {
    throw config_error("heddle: blocks '" + shown_name(text) + "': " + what);
  };
  const auto number = [&](std::string_view digits) {
    int n = -1;
    const auto [end, wrong] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    const bool whole = end == digits.data() + digits.size() && !digits.empty() && digits.front() != '-';
    if (!whole || (wrong != std::errc() && wrong != std::errc::result_out_of_range))
      fail("expected numbers and ranges with commas between them, as in 0-3,8-11, got '" + shown_name(digits) + "'");
    if (wrong != std::errc() || n >= all)
      fail("block " + shown_name(digits) + " is beyond the model, whose " + std::to_string(all) + " blocks are 0 to " +
           std::to_string(all - 1));
    return n;
  };
  kept_blocks kept{.numbers = {}, .all = all};
  for (std::string_view rest = text;;) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const std::size_t dash = part.find('-');
    const int first = number(part.substr(0, dash));
    const int last = dash == part.npos ? first : number(part.substr(dash + 1));
    const bool begun = !kept.numbers.empty();
    if (begun && first <= kept.numbers.back() && last >= kept.numbers.front())
      if (const auto twice = std::find_if(kept.numbers.begin(), kept.numbers.end(),
                                          [&](int block) { return block >= first && block <= last; });
          twice != kept.numbers.end())
        fail("block " + std::to_string(*twice) + " is named twice");
    if (last < first || (begun && first < kept.numbers.back()))
      fail("block " + std::to_string(last < first ? last : first) + " is named behind block " +
           std::to_string(last < first ? first : kept.numbers.back()) + "; blocks keep their order");
    for (int block = first; block <= last; ++block) kept.numbers.push_back(block);
    if (part.size() == rest.size()) return kept;
    rest.remove_prefix(part.size() + 1);
  }
}

namespace detail {
// Where each `every`-th block is of a second kind: the same number for the kept ones.
inline int every_of_kept(const kept_blocks& kept, int every) {
  const auto is_second = [&](int block) { return (block + 1) % every == 0; };
  const auto first = std::find_if(kept.numbers.begin(), kept.numbers.end(), is_second);
  const int of_kept = static_cast<int>(first - kept.numbers.begin()) + 1;
  for (std::size_t k = 0; k < kept.numbers.size(); ++k)
    if (is_second(kept.numbers[k]) != ((static_cast<int>(k) + 1) % of_kept == 0))
      throw config_error("heddle: one block in " + std::to_string(every) +
                         " of this model is of a kind of its own, and the blocks that are kept have "
                         "them in no such order: block " +
                         std::to_string(kept.numbers[k]) + " would be number " + std::to_string(k) +
                         ", of the other kind");
  return of_kept;
}
}  // namespace detail

HEDDLE_INLINE hugging_face_model with_blocks(hugging_face_model about, std::string_view text) {
  if (text.empty()) return about;
  std::visit(
      [&](auto& config) {
        about.kept = parse_blocks(text, config.layers);
        if constexpr (requires { config.global_every; })
          config.global_every = detail::every_of_kept(about.kept, config.global_every);
        if constexpr (requires { config.still_every; })
          config.still_every = detail::every_of_kept(about.kept, config.still_every);
        if constexpr (requires { config.dense_ffn; })  // the leading blocks without experts
          config.dense =
              static_cast<int>(std::lower_bound(about.kept.numbers.begin(), about.kept.numbers.end(), config.dense) -
                               about.kept.numbers.begin());
        config.layers = static_cast<int>(about.kept.numbers.size());
      },
      about.config);
  return about;
}

}  // namespace heddle::inline v0::model
