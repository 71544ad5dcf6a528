// refuse: heddle: a redistribution changes a dimension that an axis of one rank splits by a policy which reorders or pads the elements of one part; leave
#include <heddle/layout/redistribution.hpp>

namespace hd = heddle;
using hd::dp, hd::tp;

struct backwards {
  using kind = hd::split_kind;
  using even = hd::split::balanced;
  using i64 = std::int64_t;
  static constexpr bool contiguous = false;
  static constexpr bool fits(i64, i64) { return true; }
  static constexpr i64 size(i64 n, i64 p, i64 r) { return even::size(n, p, r); }
  static constexpr i64 stored(i64 n, i64 p, i64 r) { return size(n, p, r); }
  static constexpr i64 owner(i64 n, i64 p, i64 g) { return even::owner(n, p, g); }
  static constexpr i64 to_local(i64 n, i64 p, i64 g) {
    return size(n, p, owner(n, p, g)) - 1 - even::to_local(n, p, g);
  }
  static constexpr i64 to_global(i64 n, i64 p, i64 r, i64 l) { return even::to_global(n, p, r, size(n, p, r) - 1 - l); }
  static constexpr i64 run(i64, i64, i64, i64) { return 1; }
};

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 1>>;
using from = hd::layout<mesh, hd::shard<0, backwards, tp>>;
using to = hd::layout<mesh>;
constexpr auto plan = hd::redistribution<from, to>;
