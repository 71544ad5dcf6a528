// tests/tensor/box_trials.hpp: boxes, and whole redistributions, in a memory space whose queue launches kernels, against the host's.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/redistribute.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tensor/value_level.hpp"

namespace box_trials {

namespace hd = heddle;
namespace dt = heddle::detail;

/// A layout of three axes drawn at random over `dims` dimensions.
inline dt::axis_table<3> drawn(std::mt19937& random, int dims, bool contributing) {
  using namespace value_level;
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  dt::axis_table<3> t;
  std::array<std::size_t, 3> order{0, 1, 2};
  std::shuffle(order.begin(), order.end(), random);
  std::array<int, 8> levels{};
  const int op = below(2);
  for (const std::size_t a : order) {
    const int what = below(5);
    if (dims == 0 || what == 0) {
      t.use[a] = used(axis_role::replicated);
    } else if (what == 1 && contributing) {
      t.use[a] = contributions(op);
    } else {
      const int d = below(dims);
      switch (below(5)) {
        case 0:
          t.use[a] = split_dim<hd::split::block_cyclic<2>>(d, 1);
          break;
        case 1:
          t.use[a] = split_dim<hd::split::zigzag>(d, 2);
          break;
        case 2:
          t.use[a] = split_dim<hd::split::padded<>>(d, 3);
          break;
        default:
          t.use[a] = split_dim(d);
      }
      t.use[a].level = levels[static_cast<std::size_t>(d)]++;
    }
  }
  return t;
}

template <class T>
hd::buffer<T> some_numbers(std::mt19937& random, std::int64_t n) {
  hd::buffer<T> x(n);
  for (T& e : x) e = static_cast<T>(static_cast<int>(random() % 201) - 100) / static_cast<T>(sizeof(T) > 2 ? 7 : 1);
  return x;
}

template <class T>
bool same_bits(const hd::buffer<T>& a, const hd::buffer<T>& b) {
  return a.size() == b.size() && (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// `there` in a memory of the space, changed by `change(queue, view)`, and back.
template <class Space, class T, class Change>
hd::buffer<T> changed(typename Space::queue& q, const hd::buffer<T>& there, const Change& change) {
  hd::buffer<T, Space> x(q, static_cast<std::int64_t>(there.size()));
  q.copy(there, x);
  change(x.view());
  hd::buffer<T> out(static_cast<std::int64_t>(there.size()));
  q.copy(x, out);
  q.wait();
  return out;
}
template <class Space, class T>
hd::buffer<T, Space> brought(typename Space::queue& q, const hd::buffer<T>& x) {
  hd::buffer<T, Space> there(q, static_cast<std::int64_t>(x.size()));
  q.copy(x, there);
  return there;
}

/// Boxes between two drawn layouts of one tensor: all that ranks send to one, packed, unpacked, folded and filled around. What differs
/// from the host's, or nothing.
template <class Space, class T, std::size_t Rank>
std::string first_wrong_box(typename Space::queue& q, std::mt19937& random, const std::array<int, 3>& ranks,
                            std::int64_t largest) {
  value_level::problem<3, Rank> p{dt::mesh_numbers<3>{}, {}};
  p.mesh = dt::numbers_of(
      hd::mesh<hd::axis<hd::dp>, hd::axis<hd::cp>, hd::axis<hd::tp>>{ranks[0], ranks[1], ranks[2]}.extents());
  for (auto& e : p.extents) e = static_cast<std::int64_t>(random() % static_cast<unsigned>(largest + 1));
  const auto from = drawn(random, static_cast<int>(Rank), false), to = drawn(random, static_cast<int>(Rank), false);
  const int me = static_cast<int>(random() % static_cast<unsigned>(p.mesh.size));
  const auto mine = p.part(to, me), held = p.part(from, me);
  std::int64_t total = 0;
  std::vector<dt::memory_overlap<Rank>> in, out;
  std::vector<std::int64_t> begin;
  std::vector<char> taken(static_cast<std::size_t>(dt::elements_of(mine.stored())), 0), first;
  for (int r = 0; r < p.mesh.size; ++r) {
    in.push_back(dt::overlap_of(p.part(from, r), mine));
    bool news = true;  // one rank sends each element
    dt::for_each_run(in.back(), p.part(from, r).stored(), mine.stored(),
                     [&](std::int64_t, std::int64_t at, std::int64_t n) {
                       for (std::int64_t i = at; i < at + n; ++i)
                         news = news && taken[static_cast<std::size_t>(i)]++ == 0;
                     });
    first.push_back(news);
    out.push_back(dt::overlap_of(held, p.part(to, r)));
    begin.push_back(total);
    total += (std::max)(in.back().size(), out.back().size());
  }
  const auto source = some_numbers<T>(random, dt::elements_of(held.stored()));
  const auto packed = some_numbers<T>(random, total);
  const auto target = some_numbers<T>(random, dt::elements_of(mine.stored()));
  const auto there = brought<Space>(q, source), packed_there = brought<Space>(q, packed);
  hd::host_memory::queue here;
  const auto all_ranks = [&](auto&& f) {
    for (std::size_t r = 0; r < in.size(); ++r) f(r, in[r], out[r]);
  };

  const auto pack = [&](auto& queue, auto from_view, auto to_view) {
    using space = hd::space_of<decltype(to_view)>;
    dt::box_copies<T, space, Rank> boxes(queue, from_view, to_view);
    all_ranks([&](std::size_t r, const auto&, const auto& o) { boxes.pack(o, held.stored(), begin[r]); });
    boxes.launch();
  };
  auto expected = some_numbers<T>(random, total);
  auto got = changed<Space>(q, expected, [&](auto x) { pack(q, there.view(), x); });
  pack(here, source.view(), expected.view());
  if (!same_bits(got, expected)) return "packed";
  // A queue that copies few elements without a kernel has one for many all the same.
  constexpr bool has_both = requires { q.is_for_this_thread(1); };
  if constexpr (has_both) {
    got = changed<Space>(q, packed, [&](auto x) {
      dt::box_table table(dt::kernels_run_on_host<Space>());
      all_ranks([&](std::size_t r, const auto&, const auto& o) {
        table.add(dt::with_packed<&dt::stretch::from>(o), held.stored(), 0, o.extents(), begin[r]);
      });
      dt::launch_boxes<Space>(q, table, dt::copy_element<T>{there.address(), x.address()});
    });
    expected = changed<hd::host_memory>(here, packed, [&](auto x) { pack(here, source.view(), x); });
    if (!same_bits(got, expected)) return "packed by a kernel";
  }

  const auto unpack = [&](auto& queue, auto from_view, auto to_view) {
    using space = hd::space_of<decltype(to_view)>;
    dt::box_copies<T, space, Rank> boxes(queue, from_view, to_view);
    all_ranks([&](std::size_t r, const auto& o, const auto&) {
      if (first[r]) boxes.unpack(o, begin[r], mine.stored());
    });
    boxes.launch();
  };
  expected = changed<hd::host_memory>(here, target, [](auto) {});
  got = changed<Space>(q, target, [&](auto x) { unpack(q, packed_there.view(), x); });
  unpack(here, packed.view(), expected.view());
  if (!same_bits(got, expected)) return "unpacked";
  if constexpr (has_both) {
    got = changed<Space>(q, target, [&](auto x) {
      dt::box_table table(dt::kernels_run_on_host<Space>());
      all_ranks([&](std::size_t r, const auto& o, const auto&) {
        if (first[r]) table.add(dt::with_packed<&dt::stretch::to>(o), o.extents(), begin[r], mine.stored(), 0);
      });
      dt::launch_boxes<Space>(q, table, dt::copy_element<T>{packed_there.address(), x.address()});
    });
    if (!same_bits(got, expected)) return "unpacked by a kernel";
  }

  const auto fold = [&]<class Op>(Op, auto& queue, auto from_view, auto to_view) {
    using space = hd::space_of<decltype(to_view)>;
    dt::box_folds<Op, T, space, Rank> boxes(queue, from_view, to_view);
    for (int times = 0; times < 2; ++times)  // the same elements again
      all_ranks([&](std::size_t r, const auto& o, const auto&) { boxes.fold(o, begin[r], mine.stored()); });
    boxes.launch();
  };
  const auto folded = [&](auto op) {
    expected = changed<hd::host_memory>(here, target, [](auto) {});
    got = changed<Space>(q, target, [&](auto x) { fold(op, q, packed_there.view(), x); });
    fold(op, here, packed.view(), expected.view());
    return same_bits(got, expected);
  };
  if (!folded(hd::plus{})) return "added";
  if (!folded(hd::maximum{})) return "largest";

  const auto own = dt::overlap_of(held, mine);
  expected = changed<hd::host_memory>(here, target, [](auto) {});
  got = changed<Space>(q, target, [&](auto x) {
    dt::copy_box_and_fill<T, Space>(q, own, there.view(), held.stored(), x, mine.stored(), T(3));
  });
  dt::copy_box_and_fill<T, hd::host_memory>(here, own, source.view(), held.stored(), expected.view(), mine.stored(),
                                            T(3));
  if (!same_bits(got, expected)) return "filled around";

  expected = changed<hd::host_memory>(here, target, [](auto) {});
  got = changed<Space>(q, target,
                       [&](auto x) { dt::copy_box<T, Space>(q, own, there.view(), held.stored(), x, mine.stored()); });
  dt::copy_box<T, hd::host_memory>(here, own, source.view(), held.stored(), expected.view(), mine.stored());
  if (!same_bits(got, expected)) return "copied";
  return {};
}

/// Draws boxes of up to four dimensions.
template <class Space, class T>
std::string first_wrong(typename Space::queue& q, unsigned seed, int trials) {
  std::mt19937 random(seed);
  for (int i = 0; i < trials; ++i) {
    const std::array<int, 3> ranks{1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 2),
                                   1 + static_cast<int>(random() % 3)};
    std::string text = first_wrong_box<Space, T, 1>(q, random, ranks, 300);
    if (text.empty()) text = first_wrong_box<Space, T, 2>(q, random, ranks, 20);
    if (text.empty()) text = first_wrong_box<Space, T, 3>(q, random, ranks, 9);
    if (text.empty()) text = first_wrong_box<Space, T, 4>(q, random, ranks, 6);
#if !defined(__CUDACC__)  // nvcc warns of loops over no dimensions
    if (text.empty()) text = first_wrong_box<Space, T, 0>(q, random, ranks, 1);
#endif
    if (!text.empty()) return text + ", trial " + std::to_string(i) + " of seed " + std::to_string(seed);
  }
  return {};
}

/// Redistributions between drawn layouts, over threads: whether the bits are those of the same plans in the host's memory.
template <class Space, class T>
std::string first_wrong_plan(unsigned seed, int trials) {
  using mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::cp>, hd::axis<hd::tp>>;
  std::mt19937 random(seed);
  for (const auto& extents : {std::array<int, 3>{2, 2, 2}, {3, 1, 2}, {1, 1, 1}}) {
    const mesh m{extents[0], extents[1], extents[2]};
    std::vector<std::pair<value_level::plan<3>, std::array<std::int64_t, 3>>> jobs;
    for (int i = 0; i < trials; ++i) {
      const auto from = drawn(random, 3, true), to = drawn(random, 3, true);
      std::array<std::int64_t, 3> e{};
      for (auto& n : e) n = static_cast<std::int64_t>(random() % 8);
      if (i % 2 == 0) {
        jobs.push_back({value_level::by_hand(from, to), e});
      } else {
        const auto list =
            dt::find_steps(dt::without_unit_axes(from, extents), dt::without_unit_axes(to, extents), extents);
        jobs.push_back({{{list.steps.begin(), list.steps.end()}, {list.tables.begin(), list.tables.end()}}, e});
      }
    }
    std::vector<int> wrong(static_cast<std::size_t>(m.size()), -1);
    hd::launch<hd::threads>(m, {}, [&](auto& world) {
      typename Space::queue q;
      for (std::size_t j = 0; j < jobs.size(); ++j) {
        const auto& [plan, whole] = jobs[j];
        const value_level::problem<3, 3> p{dt::numbers_of(m.extents()), whole};
        std::mt19937 mine(seed + static_cast<unsigned>(j * 64) + static_cast<unsigned>(world.rank()));
        const auto source = some_numbers<T>(mine, dt::elements_of(p.part(plan.tables.front(), world.rank()).stored()));
        const auto expected = dt::redistribute_by_plan<value_level::operators>(
            std::span<const T>(source.data(), source.size()), plan, whole, world);
        auto there = brought<Space>(q, source);
        dt::moving_part<T, Space> part{there.view(), {}, false};
        if (j % 2 != 0) part.replace(std::move(there));
        const auto moved = dt::redistribute_by_plan<value_level::operators>(q, std::move(part), plan, whole, world);
        hd::buffer<T> got(static_cast<std::int64_t>(moved.size()));
        q.copy(moved, got);
        q.wait();
        // Padding holds anything: only elements are compared.
        const auto after = p.part(plan.tables.back(), world.rank());
        const auto all = dt::overlap_of(after, after);
        bool same = got.size() == expected.size();
        if (same)
          dt::for_each_run(all, after.stored(), after.stored(), [&](std::int64_t at, std::int64_t, std::int64_t n) {
            same = same &&
                   std::memcmp(got.data() + at, expected.data() + at, static_cast<std::size_t>(n) * sizeof(T)) == 0;
          });
        if (!same && wrong[static_cast<std::size_t>(world.rank())] < 0)
          wrong[static_cast<std::size_t>(world.rank())] = static_cast<int>(j);
      }
    });
    for (const int j : wrong)
      if (j >= 0)
        return value_level::text_of(jobs[static_cast<std::size_t>(j)].first.tables.front()) + " -> " +
               value_level::text_of(jobs[static_cast<std::size_t>(j)].first.tables.back()) + " on " + to_string(m) +
               ", job " + std::to_string(j) + " of seed " + std::to_string(seed);
  }
  return {};
}

}  // namespace box_trials
