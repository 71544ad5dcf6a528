// Messages and bytes that ranks send by every algorithm that heddle has, counted by the transport: those of the table, and
// those of the closed formulas of the literature, which know nothing of tables.
#include <heddle/collective/collectives.hpp>

#include <optional>

#include "comm/support.hpp"

using namespace comm_test;
using hd::comm_operation;

namespace {

struct algorithm {
  comm_operation what;
  const hd::detail::round_source* source;
  hd::round_table (*rounds)(int ranks, int root);
};

template <comm_operation What, class... As>
void add_algorithms(std::vector<algorithm>& all, hd::type_list<As...>) {
  const auto add = [&]<class A>(hd::type_list<A>) {
    if constexpr (hd::detail::offers_anywhere<A, What>())
      all.push_back({What, &hd::detail::round_source_of<A, What>, &A::template rounds<What>});
  };
  (add(hd::type_list<As>{}), ...);
}
const std::vector<algorithm>& everything() {
  static const std::vector<algorithm> all = [] {
    std::vector<algorithm> made;
    const auto add = [&]<comm_operation... Whats>() { (add_algorithms<Whats>(made, hd::known_algorithms{}), ...); };
    using enum comm_operation;
    add.template operator()<all_reduce, reduce, broadcast, reduce_scatter, all_gather, all_to_all, gather, scatter,
                            scan, exclusive_scan>();
    return made;
  }();
  return all;
}

// What one rank, or all of them together, send. Units: messages, elements.
struct sent {
  std::int64_t messages = 0, elements = 0;
  friend sent operator+(const sent& a, const sent& b) { return {a.messages + b.messages, a.elements + b.elements}; }
  friend bool operator==(const sent&, const sent&) = default;
};

int log2_up(int p) {
  int k = 0;
  while ((1 << k) < p) ++k;
  return k;
}
int lowest_bit(int v) {
  return v & -v;
}

// The formulas for ranks that hold blocks of m elements; n = p m are those of a whole vector.
struct formulas {
  int p = 1, root = 0;
  std::int64_t n = 1, m = 1;
  int up = log2_up(p), down = (1 << up) == p ? up : up - 1;  // log2 p, rounded up and down
  int core = 1 << down, extra = p - core;                    // the largest power of two, and the ranks beside it
  bool power_of_two = extra == 0;

  // reduce_scatter and all_gather.
  std::optional<sent> half(std::string_view name, int r) const {
    const sent least{p - 1, (p - 1) * m}, logarithmic{up, (p - 1) * m};
    if (name == "ring" || name == "direct" || name == "pairwise" || name == "scattered<32>") return least;
    if (name == "bidirectional_ring") return sent{p == 2 ? 1 : p % 2 == 0 ? p : p - 1, (p - 1) * m};
    if (name == "bruck" || name == "pat" || name == "swing" || name == "recursive_doubling") return logarithmic;
    if (name == "recursive_halving") {  // ranks beside the power of two give their vector away and get a block
      if (r >= 2 * extra) return sent{down, (p - 1) * m};
      return r % 2 == 0 ? sent{1, n} : sent{down + 1, (p - 1) * m};
    }
    for (const int g : {2, 4, 8})
      if (const int nodes = p / g; name == "hierarchical<" + std::to_string(g) + ", ring, ring>")
        return sent{g - 1 + nodes - 1, (g - 1) * nodes * m + (nodes - 1) * m};
    return {};
  }

  // The binomial tree: rank root + v has v's lowest bit of ranks below it.
  int below(int v) const { return v == 0 ? p - 1 : (std::min)(lowest_bit(v), p - v) - 1; }
  int children(int v) const {
    int count = 0;
    for (int bit = 1; v + bit < p && (v == 0 || bit < lowest_bit(v)); bit *= 2) ++count;
    return count;
  }
  sent up_the_tree(int r, std::int64_t elements_each) const {  // a message for everything below and oneself
    const int v = (r - root + p) % p;
    return v == 0 ? sent{} : sent{1, (below(v) + 1) * elements_each};
  }
  sent down_the_tree(int r, std::int64_t elements_each) const {
    const int v = (r - root + p) % p;
    return {children(v), below(v) * elements_each};
  }

  // How far a prefix travels from rank r: 1, 2, 4, ...
  int doublings(int r) const {
    int count = 0;
    for (int step = 1; r + step < p; step *= 2) ++count;
    return count;
  }

  static std::string_view inner(std::string_view name) {
    const std::size_t at = name.find('<');
    return at == std::string_view::npos ? name : name.substr(at + 1, name.size() - at - 2);
  }

  // What rank r sends; nothing if only the sum over the ranks has a formula (`all_ranks`), or neither.
  std::optional<sent> of_rank(comm_operation what, std::string_view name, int r) const {
    switch (what) {
      case comm_operation::all_reduce:
        if (name == "recursive_doubling") {
          const int messages = r >= 2 * extra ? down : r % 2 == 0 ? 1 : down + 1;
          return sent{messages, messages * n};
        }
        if (name == "rabenseifner") {
          const sent inside{2 * down, 2 * (n - n / core)};
          if (r >= 2 * extra) return inside;
          return r % 2 == 0 ? sent{1, n} : inside + sent{1, n};
        }
        if (name == "dyadic") return power_of_two ? std::optional(sent{up, up * n}) : std::nullopt;
        for (const int g : {2, 4, 8})
          if (const int nodes = p / g; name == "hierarchical<" + std::to_string(g) + ", ring, ring>")
            return sent{2 * (g - 1 + nodes - 1), 2 * (n - n / g) + 2 * (n / g - n / g / nodes)};
        if (name.starts_with("double_tree")) return {};
        if (const auto once = half(name, r)) return *once + *once;
        return {};
      case comm_operation::reduce:
        if (name == "binomial" || name == "dyadic") return r == root ? sent{} : sent{1, n};
        if (name.starts_with("reduce_scatter_gather"))
          if (const auto scattered = half(inner(name), r)) return *scattered + up_the_tree(r, m);
        return {};
      case comm_operation::broadcast:
        if (name == "binomial") {
          const int messages = children((r - root + p) % p);
          return sent{messages, messages * n};
        }
        if (name.starts_with("scatter_all_gather"))
          if (const auto gathered = half(inner(name), r)) return *gathered + down_the_tree(r, m);
        return {};
      case comm_operation::reduce_scatter:
        if (name == "reduce_then_scatter") return (r == 0 ? sent{} : sent{1, n}) + down_the_tree(r, m);
        return half(name, r);
      case comm_operation::all_gather:
        return half(name, r);
      case comm_operation::all_to_all: {
        if (name == "bruck") {
          sent all{up, 0};
          for (int way = 1; way < p; ++way)
            for (int bit = 1; bit <= way; bit *= 2) all.elements += (way & bit) != 0 ? m : 0;
          return all;
        }
        for (const int g : {2, 4, 8})
          if (const int nodes = p / g; name == "hierarchical_all_to_all<" + std::to_string(g) + ">")
            return sent{g + nodes - 2, ((g - 1) * nodes + (nodes - 1) * g) * m};
        if (name == "grid_all_to_all") {
          int side = 1;
          while (side * side < p) ++side;
          if (side * side != p) return {};
          return sent{2 * (side - 1), 2 * (side - 1) * side * m};
        }
        return half(name, r);
      }
      case comm_operation::gather:
        return up_the_tree(r, m);
      case comm_operation::scatter:
        return down_the_tree(r, m);
      case comm_operation::scan:
        return sent{doublings(r), doublings(r) * n};
      case comm_operation::exclusive_scan: {  // one further first, then as scan without rank 0
        const int messages = (r + 1 < p ? 1 : 0) + (r > 0 ? doublings(r) : 0);
        return sent{messages, messages * n};
      }
      default:
        return {};
    }
  }

  // What all ranks send together, where no formula says what each of them does.
  std::optional<sent> all_ranks(comm_operation what, std::string_view name) const {
    for (const int chunks : {1, 8})  // two trees with half of the vector each
      if (name == "double_tree<" + std::to_string(chunks) + ">") {
        const int ways = what == comm_operation::all_reduce ? 2 : 1;
        return sent{ways * 2 * chunks * (p - 1), ways * (p - 1) * n};
      }
    return {};
  }
  // Without a formula for this number of ranks: the fixed tree's exchanges, and grids whose last row is shorter.
  static bool irregular(comm_operation what, std::string_view name) {
    return (what == comm_operation::all_reduce && name == "dyadic") || name == "grid_all_to_all";
  }
};

// What the counters of one rank say about one call.
struct seen {
  std::int64_t messages = 0, bytes = 0, received = 0, received_bytes = 0, collectives = 0;
};

bool is_cut(comm_operation what) {
  using enum comm_operation;
  return what == all_reduce || what == reduce || what == broadcast || what == scan || what == exclusive_scan;
}
bool is_rooted(comm_operation what) {
  using enum comm_operation;
  return what == reduce || what == broadcast || what == gather || what == scatter;
}

// The definition: pieces of pieces, the first ones one element longer. `m`: elements of a block, p m of a vector.
std::int64_t elements_of(const hd::round_table& table, int item, std::int64_t vector, std::int64_t m) {
  const int block = item / table.parts, part = item % table.parts;
  const std::int64_t n = is_cut(table.what) ? vector / table.blocks + (block < vector % table.blocks ? 1 : 0) : m;
  return n / table.parts + (part < n % table.parts ? 1 : 0);
}

// All algorithms on p ranks. `m`: elements of a block; `vector`: of a vector.
void counts(int p, int root, std::int64_t m, std::int64_t vector, bool even) {
  std::vector<std::vector<seen>> by_rank(static_cast<std::size_t>(p));
  launch(line{p}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const std::vector<int> x(static_cast<std::size_t>((std::max)(m * p, vector)), 1);
    std::vector<int> y(x.size());
    for (const algorithm& a : everything()) {
      if (!a.source->offers(p)) continue;
      const hd::comm_counters before = c.counters();
      hd::execute_rounds<int>(c, a.rounds(p, is_rooted(a.what) ? root : 0), x.data(), y.data(),
                              is_cut(a.what) ? hd::block_sizes::vector(vector) : hd::block_sizes::equal(m), hd::plus{});
      const hd::comm_counters after = c.counters();
      by_rank[static_cast<std::size_t>(c.rank())].push_back(
          {after.messages_sent() - before.messages_sent(), after.bytes_sent() - before.bytes_sent(),
           after.messages_received() - before.messages_received(), after.bytes_received() - before.bytes_received(),
           after.collectives() - before.collectives()});
    }
  });
  share(by_rank);

  std::size_t at = 0;
  std::string wrong;
  const auto expect = [&](bool ok, const algorithm& a, int r, const char* what) {
    if (ok || wrong.size() > 500) return;
    wrong += to_string(a.what);
    wrong += " by ";
    wrong += a.source->name;
    wrong += ", rank " + std::to_string(r) + " of " + std::to_string(p) + ", root " + std::to_string(root);
    wrong += ": ";
    wrong += what;
    wrong += "\n";
  };
  for (const algorithm& a : everything()) {
    if (!a.source->offers(p)) continue;
    const int here = is_rooted(a.what) ? root : 0;
    const hd::round_table table = a.rounds(p, here);
    const formulas f{p, here, p * m, m};
    sent together;
    for (int r = 0; r < p; ++r) {
      const seen& got = by_rank[static_cast<std::size_t>(r)][at];
      seen listed;
      for (const hd::round_transfer& t : table.transfers) {
        std::int64_t bytes = 0;
        for (const int i : table.view().items_of(t)) bytes += elements_of(table, i, vector, m) * 4;
        listed.messages += t.from == r;
        listed.bytes += t.from == r ? bytes : 0;
        listed.received += t.to == r;
        listed.received_bytes += t.to == r ? bytes : 0;
      }
      expect(got.messages == listed.messages && got.bytes == listed.bytes, a, r, "sends other than the table");
      expect(got.received == listed.received && got.received_bytes == listed.received_bytes, a, r,
             "receives other than the table");
      expect(got.collectives == 0, a, r, "called a collective of the transport");
      together = together + sent{got.messages, got.bytes / 4};
      if (!even) continue;
      if (const auto formula = f.of_rank(a.what, a.source->name, r))
        expect(*formula == sent{got.messages, got.bytes / 4}, a, r, "sends other than the formula");
      else
        expect(f.all_ranks(a.what, a.source->name) || f.irregular(a.what, a.source->name), a, r, "has no formula");
    }
    if (const auto formula = f.all_ranks(a.what, a.source->name); formula && even)
      expect(*formula == together, a, -1, "all ranks send other than the formula");
    ++at;
  }
  CHECK(wrong == "");
}

}  // namespace

TEST_CASE("messages and bytes of every algorithm are those of its table and of its formula",
          "[comm][rounds][formula]") {
  // 32 elements in a block: all algorithms cut them, and the vector of all blocks, evenly.
  for (const int p : rank_counts({1, 2, 3, 4, 5, 6, 7, 8}))
    for (const int root : {0, p - 1}) counts(p, root, 32, 32 * p, true);
}
TEST_CASE("messages and bytes of every algorithm are those of its table where nothing is even",
          "[comm][rounds][formula]") {
  for (const int p : rank_counts({3, 4, 6, 8}))
    for (const std::int64_t n : {0, 5, 37}) counts(p, p / 2, n, n, false);
}
TEST_CASE("messages and bytes are those of table and formula at every root of up to 16 ranks",
          "[comm][rounds][formula][slow]") {
  for (const int p : rank_counts(16))
    for (int root = 0; root < p; ++root) counts(p, root, 32, 32 * p, true);
}
