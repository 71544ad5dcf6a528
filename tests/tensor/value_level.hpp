// tests/tensor/value_level.hpp: redistributions between layouts that are values, and what they must give, element by element.
#pragma once

#include <heddle/tensor/redistribute.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace value_level {

namespace hd = heddle;
using hd::axis_role;
using hd::detail::axis_use;
using operators = hd::type_list<hd::plus, hd::maximum>;

template <std::size_t Axes>
struct plan {
  std::vector<hd::redistribution_step> steps{};
  std::vector<hd::detail::axis_table<Axes>> tables{};
};

inline hd::redistribution_step step(hd::step_kind kind, unsigned axes, int op) {
  hd::redistribution_step s;
  s.kind = kind;
  s.axes = axes;
  s.op = op;
  return s;
}

/// The plan without any search: reduce what must be reduced, exchange everything at once, make contributions.
template <std::size_t Axes>
plan<Axes> by_hand(const hd::detail::axis_table<Axes>& from, const hd::detail::axis_table<Axes>& to) {
  plan<Axes> p;
  auto now = from;
  p.tables.push_back(now);
  for (std::size_t a = 0; a < Axes; ++a)
    if (now.use[a].role == axis_role::partial && !(to.use[a] == now.use[a])) {
      p.steps.push_back(step(hd::step_kind::all_reduce, 1u << a, now.use[a].op));
      now.use[a] = {};
      p.tables.push_back(now);
    }
  auto target = to;
  for (std::size_t a = 0; a < Axes; ++a)
    if (to.use[a].role == axis_role::partial && !(to.use[a] == now.use[a])) target.use[a] = {};
  if (!(target == now)) {
    p.steps.push_back(step(hd::step_kind::exchange, (1u << Axes) - 1, -1));
    now = target;
    p.tables.push_back(now);
  }
  for (std::size_t a = 0; a < Axes; ++a)
    if (to.use[a].role == axis_role::partial && !(to.use[a] == now.use[a])) {
      p.steps.push_back(step(hd::step_kind::keep_on_owner, 1u << a, to.use[a].op));
      now.use[a] = to.use[a];
      p.tables.push_back(now);
    }
  return p;
}

template <std::size_t Axes, std::size_t Rank>
struct problem {
  hd::detail::mesh_numbers<Axes> mesh{};
  std::array<std::int64_t, Rank> extents{};

  hd::detail::tensor_part<Rank, Axes> part(const hd::detail::axis_table<Axes>& table, int rank) const {
    return hd::detail::part_of(hd::detail::cuts_of(table), mesh, extents, rank);
  }
  std::int64_t size() const { return hd::detail::elements_of(extents); }

  /// Calls f(flat index in the whole, index in the rank's memory) for each element, one by one.
  template <class F>
  void each(const hd::detail::axis_table<Axes>& table, int rank, F&& f) const {
    const auto p = part(table, rank);
    const auto valid = p.extents(), stored = p.stored();
    for (std::int64_t i = 0; i < p.size(); ++i) {
      std::array<std::int64_t, Rank> at{};
      std::int64_t rest = i;
      for (std::size_t d = Rank; d-- > 0; rest /= valid[d]) at[d] = rest % valid[d];
      std::int64_t global = 0, local = 0;
      for (std::size_t d = 0; d < Rank; ++d) {
        global = global * extents[d] + p.dims[d].to_global(at[d]);
        local = local * stored[d] + at[d];
      }
      f(global, local);
    }
  }

  static double padding() { return -1e9; }
  /// A contribution that depends on the element and on the place along partial axes, and on nothing else: copies agree.
  hd::buffer<double> some_part(const hd::detail::axis_table<Axes>& table, int rank) const {
    hd::buffer<double> b(hd::detail::elements_of(part(table, rank).stored()));
    for (double& x : b) x = padding();
    std::uint64_t place = 1;
    for (std::size_t a = 0; a < Axes; ++a)
      if (table.use[a].role == axis_role::partial)
        place = place * 8 + static_cast<std::uint64_t>(mesh.coordinate(a, rank));
    each(table, rank, [&](std::int64_t global, std::int64_t local) {
      const std::uint64_t h = (static_cast<std::uint64_t>(global) * 8191 + place) * 0x9e3779b97f4a7c15u;
      b[static_cast<std::size_t>(local)] = static_cast<double>(h >> 58) - 32.0;  // small whole numbers: sums are exact
    });
    return b;
  }

  /// The whole that these parts stand for, by definition. `text` says what is wrong: copies that differ, elements missing.
  std::vector<double> whole_of(const hd::detail::axis_table<Axes>& table, const std::vector<hd::buffer<double>>& parts,
                               std::string& text) const {
    std::vector<double> whole(static_cast<std::size_t>(size()), 0.0);
    std::vector<char> seen(whole.size(), 0);
    bool maxima = false;
    for (std::size_t a = 0; a < Axes; ++a)
      maxima = maxima || (table.use[a].role == axis_role::partial && table.use[a].op == 1);
    for (int pass = 0; pass < 2; ++pass)  // first the primary copies, then the others against them
      for (int r = 0; r < mesh.size; ++r) {
        bool primary = true, contributes = false;
        for (std::size_t a = 0; a < Axes; ++a) {
          const auto role = table.use[a].role;
          if (role == axis_role::partial) contributes = true;
          if ((role == axis_role::replicated || role == axis_role::identical) && mesh.coordinate(a, r) != 0)
            primary = false;
        }
        const auto& b = parts[static_cast<std::size_t>(r)];
        if (static_cast<std::int64_t>(b.size()) != hd::detail::elements_of(part(table, r).stored())) {
          text = "the part of rank " + std::to_string(r) + " has another size";
          return whole;
        }
        if (primary != (pass == 0)) continue;
        if (pass == 1 && contributes) continue;
        each(table, r, [&](std::int64_t global, std::int64_t local) {
          const auto g = static_cast<std::size_t>(global);
          const double x = b[static_cast<std::size_t>(local)];
          if (pass == 1) {
            if (whole[g] != x) text = "copies differ on rank " + std::to_string(r);
            return;
          }
          whole[g] = !seen[g] ? x : maxima ? (std::max)(whole[g], x) : whole[g] + x;
          seen[g] = 1;
        });
      }
    for (const char s : seen)
      if (s == 0) text = "an element is held by nobody";
    return whole;
  }

  /// Bytes that the rank sends in an exchange, counted element by element: who lacks an element gets it from the rank that
  /// agrees with it on every axis that splits nothing.
  std::int64_t exchange_bytes(const hd::detail::axis_table<Axes>& from, const hd::detail::axis_table<Axes>& to,
                              int rank) const {
    std::int64_t sent = 0;
    for (int r = 0; r < mesh.size; ++r) {
      bool mine = r != rank;
      for (std::size_t a = 0; a < Axes; ++a)
        mine = mine && (from.use[a].role == axis_role::sharded || mesh.coordinate(a, r) == mesh.coordinate(a, rank));
      if (!mine) continue;
      std::vector<char> wanted(static_cast<std::size_t>(size()), 0);
      each(to, r, [&](std::int64_t global, std::int64_t) { wanted[static_cast<std::size_t>(global)] = 1; });
      each(from, rank, [&](std::int64_t global, std::int64_t) { sent += wanted[static_cast<std::size_t>(global)]; });
    }
    return sent * static_cast<std::int64_t>(sizeof(double));
  }
};

inline std::string text_of(const axis_use& u) {
  switch (u.role) {
    case axis_role::replicated:
      return "R";
    case axis_role::identical:
      return "I";
    case axis_role::varying:
      return "V";
    case axis_role::partial:
      return "P" + std::to_string(u.op);
    case axis_role::sharded:
      break;
  }
  std::string text = "S" + std::to_string(u.dim) + "." + std::to_string(u.level) + "/";
  text += u.how->name;
  return text;
}
template <std::size_t Axes>
std::string text_of(const hd::detail::axis_table<Axes>& table) {
  std::string text = "(";
  for (std::size_t a = 0; a < Axes; ++a) text += (a == 0 ? "" : " ") + text_of(table.use[a]);
  return text + ")";
}

/// Appends tables to `all`: each axis of `Axes` gets each of the given uses, and where several split one dimension, in each order.
template <std::size_t Axes>
std::vector<hd::detail::axis_table<Axes>> all_tables(const std::vector<axis_use>& uses) {
  std::vector<hd::detail::axis_table<Axes>> all;
  std::array<std::size_t, Axes> pick{};
  for (;;) {
    std::array<std::size_t, Axes> order{};
    for (std::size_t a = 0; a < Axes; ++a) order[a] = a;
    do {
      hd::detail::axis_table<Axes> t;
      std::array<int, 8> levels{};
      int op = -1;
      bool ok = true;
      for (const std::size_t a : order) {
        t.use[a] = uses[pick[a]];
        if (t.use[a].role == axis_role::sharded) t.use[a].level = levels[static_cast<std::size_t>(t.use[a].dim)]++;
        if (t.use[a].role == axis_role::partial) {
          ok = ok && (op < 0 || op == t.use[a].op);
          op = t.use[a].op;
        }
      }
      for (const auto& other : all) ok = ok && !(other == t);
      if (ok) all.push_back(t);
    } while (std::next_permutation(order.begin(), order.end()));
    std::size_t a = Axes;
    for (;;) {
      if (a == 0) return all;
      --a;
      if (++pick[a] < uses.size()) break;
      pick[a] = 0;
    }
  }
}

inline axis_use used(axis_role role) {
  axis_use u;
  u.role = role;
  return u;
}
template <class Policy = hd::split::balanced>
axis_use split_dim(int dim, int position = 0) {
  axis_use u = used(axis_role::sharded);
  u.dim = dim;
  u.level = 0;
  u.split = position;
  u.how = &hd::detail::functions_of<Policy>;
  return u;
}
inline axis_use contributions(int op) {
  axis_use u = used(axis_role::partial);
  u.op = op;
  return u;
}

}  // namespace value_level
