// heddle/plan/impl/experts_svg.hpp: bodies of heddle/plan/experts_svg.hpp.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/plan/experts_svg.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

HEDDLE_INLINE std::string experts_svg(const expert_placement& p, const expert_counts& counts,
                                      const std::string& title) {
  constexpr double box = 26, left = 76, top = 92, gap = 18;
  const double share = local_share_of(p, counts);
  const int each = p.experts / p.ranks;
  svg_drawing out;
  out.words(24, 34, title, 15, "#111111", "start", true);
  out.words(24, 54, rounded_text(100 * share, 1) + " % of activations are local; darker: more of the expert's", 12,
            "#333333");
  for (int r = 0; r < p.ranks; ++r)
    out.words(left + r * (each * box + gap), top - 10, text_of({"rank ", r}), 11, "#333333");
  for (int l = 0; l < p.layers; ++l) {
    std::vector<double> local(static_cast<std::size_t>(p.experts), 0.0), all = local;
    const int* rank = p.rank_of_expert.data() + static_cast<std::size_t>(l) * static_cast<std::size_t>(p.experts);
    for (int t = 0; t < counts.tokens; ++t)
      for (int e = 0; e < p.experts; ++e) {
        const double n = counts.row(l, t)[e];
        all[static_cast<std::size_t>(e)] += n;
        if (rank[e] == p.rank_of_token[static_cast<std::size_t>(t)]) local[static_cast<std::size_t>(e)] += n;
      }
    const double y = top + l * (box + 4);
    out.words(left - 10, y + 17, text_of({"layer ", l}), 11, "#333333", "end");
    const std::vector<int> order = p.order(l);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto e = static_cast<std::size_t>(order[i]);
      const double part = all[e] > 0 ? local[e] / all[e] : 0;
      const double x =
          left + box * static_cast<double>(i) + gap * static_cast<double>(i / static_cast<std::size_t>(each));
      out.rect(x, y, box - 3, box - 3, "#eef1f4", 3);
      if (all[e] > 0) out.rect(x, y, box - 3, box - 3, "#1f5580", 3, " opacity=\"" + svg_number(part) + "\"");
      out.words(x + (box - 3) / 2, y + 16, text_of({order[i]}), 10, part > 0.5 ? "#ffffff" : "#111111", "middle");
    }
  }
  return out.text("", 20, "#ffffff");
}

}  // namespace heddle::inline v0::plan
