// heddle/layout/plan_sizes.hpp: elements that ranks hold between the steps of a plan.
#pragma once

#include <heddle/layout/plan_problem.hpp>

#include <cstdint>

namespace heddle::inline v0 {
namespace detail {

// Shares of the tensor, as a fraction of `whole_`.
class plan_sizes {
 protected:
  constexpr explicit plan_sizes(const plan_problem& p) : p_(p) {
    for (unsigned a = 0; a < p.axes; ++a) world_ *= p.extents[a];
    exact_ = world_ <= most_places && p.intervals == ~std::uint64_t{0};
    whole_ = world_ * world_ * world_;  // so that nearly all shares of it are whole numbers
  }

  struct lists {
    unsigned length[planned_dims]{};
    unsigned axis[planned_dims][planned_axes]{};
  };
  constexpr double extent(unsigned a) const { return p_.extents[a]; }
  constexpr double local(const planned_state& s) const {
    double l = whole_;
    for (unsigned a = 0; a < p_.axes; ++a)
      if (s.role(a) == planned_sharded) l /= extent(a);
    return l;
  }
  constexpr lists lists_of(const planned_state& s) const {
    lists l;
    for (unsigned a = 0; a < p_.axes; ++a) {
      if (s.role(a) != planned_sharded) continue;
      l.axis[s.dim(a)][s.level(a)] = a;
      ++l.length[s.dim(a)];
    }
    return l;
  }
  constexpr bool less(double a, double b) const {
    const double tolerance = (a > 0 ? a : -a) * 1e-9;
    return a < b - tolerance;
  }

  // What a rank holds of `s` and of `t` both, on average over the ranks. Where that is not known it is taken as if the cuts had
  // nothing to do with each other, or, for a bound, as much as can be.
  constexpr double kept(const planned_state& s, const planned_state& t, bool most) {
    work_ += 20 * static_cast<int>(p_.axes + p_.dims);
    const lists ls = lists_of(s), lt = lists_of(t);
    double share = whole_;
    unsigned dims[planned_dims]{}, first[planned_dims]{}, end_s[planned_dims]{}, end_t[planned_dims]{}, count = 0;
    double cells_s[planned_dims]{}, cells_t[planned_dims]{};
    for (unsigned d = 0; d < p_.dims; ++d) {
      unsigned i = 0;
      for (; i < ls.length[d] && i < lt.length[d]; ++i) {
        const unsigned a = ls.axis[d][i];
        if (a != lt.axis[d][i] || s.split(a) != t.split(a)) break;
        share /= extent(a);
      }
      double rest_s = 1, rest_t = 1;
      bool intervals = true;
      for (unsigned k = i; k < ls.length[d]; ++k) {
        const unsigned a = ls.axis[d][k];
        rest_s *= extent(a);
        intervals = intervals && (p_.intervals >> s.split(a) & 1u) != 0;
      }
      for (unsigned k = i; k < lt.length[d]; ++k) {
        const unsigned a = lt.axis[d][k];
        rest_t *= extent(a);
        intervals = intervals && (p_.intervals >> t.split(a) & 1u) != 0;
      }
      if (i == ls.length[d] || i == lt.length[d] || !intervals) {
        const bool known = i == ls.length[d] || i == lt.length[d];
        share /= known || !most ? rest_s * rest_t : rest_s > rest_t ? rest_s : rest_t;
        continue;
      }
      dims[count] = d;
      first[count] = i;
      end_s[count] = ls.length[d];
      end_t[count] = lt.length[d];
      cells_s[count] = rest_s;
      cells_t[count] = rest_t;
      ++count;
    }
    if (count == 0) return share;
    // The last cut of a dimension does not count if the other side does not cut over that axis: on average its parts keep alike.
    unsigned in_s = 0, in_t = 0;
    for (bool dropped = true; dropped;) {
      dropped = false;
      in_s = in_t = 0;
      for (unsigned c = 0; c < count; ++c) {
        for (unsigned k = first[c]; k < end_s[c]; ++k) in_s |= 1u << ls.axis[dims[c]][k];
        for (unsigned k = first[c]; k < end_t[c]; ++k) in_t |= 1u << lt.axis[dims[c]][k];
      }
      for (unsigned c = 0; c < count; ++c) {
        for (; end_s[c] > first[c] && (in_t >> ls.axis[dims[c]][end_s[c] - 1] & 1u) == 0; --end_s[c], dropped = true) {
          const double e = extent(ls.axis[dims[c]][end_s[c] - 1]);
          share /= e;
          cells_s[c] /= e;
        }
        for (; end_t[c] > first[c] && (in_s >> lt.axis[dims[c]][end_t[c] - 1] & 1u) == 0; --end_t[c], dropped = true) {
          const double e = extent(lt.axis[dims[c]][end_t[c] - 1]);
          share /= e;
          cells_t[c] /= e;
        }
      }
    }
    const unsigned joint = in_s | in_t;
    double places = 1;
    for (unsigned a = 0; a < p_.axes; ++a)
      if (joint >> a & 1u) places *= extent(a);
    const bool known = places <= most_places;
    for (unsigned c = 0; c < count; ++c)
      share /= known || !most ? cells_s[c] * cells_t[c] : cells_s[c] > cells_t[c] ? cells_s[c] : cells_t[c];
    if (!known || joint == 0) return share;
    work_ += static_cast<int>(places) * static_cast<int>(8 + 8 * count + 8 * p_.axes);
    int at[planned_axes]{};
    double sum = 0;
    for (;;) {
      double overlap = 1;
      for (unsigned c = 0; c < count && overlap > 0; ++c) {
        const unsigned d = dims[c];
        double i = 0, j = 0;
        for (unsigned k = first[c]; k < end_s[c]; ++k) i = i * extent(ls.axis[d][k]) + at[ls.axis[d][k]];
        for (unsigned k = first[c]; k < end_t[c]; ++k) j = j * extent(lt.axis[d][k]) + at[lt.axis[d][k]];
        const double from_s = i * cells_t[c], from_t = j * cells_s[c];
        const double to_s = from_s + cells_t[c], to_t = from_t + cells_s[c];
        const double begin = from_s > from_t ? from_s : from_t, end = to_s < to_t ? to_s : to_t;
        overlap *= end > begin ? end - begin : 0;
      }
      sum += overlap;
      unsigned a = 0;
      for (; a < p_.axes; ++a) {
        if ((joint >> a & 1u) == 0) continue;
        if (++at[a] < p_.extents[a]) break;
        at[a] = 0;
      }
      if (a == p_.axes) break;
    }
    return share * sum / places;
  }

  static constexpr int most_places = 256;  // of so many ranks it is worth looking at each
  plan_problem p_;
  double world_ = 1, whole_ = 1;
  bool exact_ = false;     // whether `kept` knows
  std::int64_t work_ = 0;  // done so far, roughly in steps of clang's constant evaluation
};

}  // namespace detail
}  // namespace heddle::inline v0
