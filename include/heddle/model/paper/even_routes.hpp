// heddle/model/paper/even_routes.hpp: even routes of rows to experts, on paper.
#pragma once

#include <heddle/core/split.hpp>
#include <heddle/model/layers/exchange_routes.hpp>
#include <heddle/model/layers/exchange_tables.hpp>
#include <heddle/model/paper/memory.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::model::layers::detail {

// On paper no router says which experts rows choose: all get the same number, the first ones a row more where it does not
// divide. Every member of a group is taken to have as many rows as this one.
template <>
class exchange_routes<paper_memory> {
  using queue_type = paper_memory::queue;
  template <class T>
  using row = row_view<T, paper_memory>;

 public:
  static void reserve(queue_type&, const routing_extents&) noexcept {}
  static constexpr std::int64_t bytes() noexcept { return 0; }

  template <class Ids>
  matrix_view<const std::int32_t, paper_memory> numbers_of(queue_type&, const exchange_tables& t, const Ids& kept) {
    choices_ = kept.size();
    return {kept.address(), dynamic_shape<2>(kept.extent(0), kept.extent(1) * t.copies)};
  }
  template <class Group, class T>
  void count(queue_type& queue, Group& group, exchange_tables& t, row<const std::int64_t> offsets, bool asks,
             matrix_view<T, paper_memory>, std::int64_t own) {
    const auto copies = static_cast<std::size_t>(t.copies);
    const balanced_split even{choices_, static_cast<std::int64_t>(t.reached.size() / copies)};
    for (std::size_t i = 0; i < t.reached.size(); ++i)
      if (t.reached[i] >= 0)
        t.wanted[static_cast<std::size_t>(t.reached[i])] = even.size(static_cast<std::int64_t>(i / copies));
    t.count_sent();
    const auto first = static_cast<std::size_t>(t.first[static_cast<std::size_t>(group.rank())]);
    t.counts.clear();
    for (std::size_t m = 0; m < t.first.size(); ++m)
      for (std::size_t e = 0; e < static_cast<std::size_t>(own); ++e) t.counts.push_back(t.wanted[first + e]);
    if (!asks) return;
    t.in.assign(t.first.size(), own);
    const auto of = [&](std::size_t n) {
      return row_at<paper_memory>(const_cast<std::int64_t*>(offsets.address()), static_cast<std::int64_t>(n));
    };
    send_blocks<std::int64_t, paper_memory>(queue, group, of(t.wanted.size()), t.held, of(t.counts.size()), t.in);
  }
  static row<const std::int64_t> arrange(queue_type&, exchange_tables& t, std::int64_t own, std::int64_t /*least*/) {
    t.count_received(own);
    return row_at<paper_memory>(static_cast<const std::int64_t*>(nullptr), own + 1);
  }
  static row<const std::int32_t> order(const exchange_tables& t) noexcept { return rows_of(t); }
  static row<const std::int32_t> back(const exchange_tables& t) noexcept { return rows_of(t); }

 private:
  static row<const std::int32_t> rows_of(const exchange_tables& t) noexcept {
    return row_at<paper_memory>(static_cast<const std::int32_t*>(nullptr), t.rows_received());
  }
  std::int64_t choices_ = 0;
};

}  // namespace heddle::inline v0::model::layers::detail
