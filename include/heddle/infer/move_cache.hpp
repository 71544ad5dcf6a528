// heddle/infer/move_cache.hpp: moves cache rows between the ranks of two model_runners.
#pragma once

#include <heddle/comm/gathered_words.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/infer/cache_extent.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// The cached columns of one tensor of one layer on a rank: `extents` from `start` on of `logical`.
struct cached_columns {
  int layer = 0, tensor = 0;
  std::vector<std::int64_t> logical{}, start{}, extents{};
  friend bool operator==(const cached_columns&, const cached_columns&) = default;
};
/// Those of a rank, where rows leave and where they arrive.
struct columns_of_rank {
  std::vector<cached_columns> from{}, to{};
};

namespace detail {
inline std::int64_t columns_in(const cached_columns& c) noexcept {
  std::int64_t n = 1;
  for (const std::int64_t e : c.extents) n *= e;
  return n;
}
template <bool OfStates, class Stage>
std::vector<cached_columns> columns_of_stage(const Stage* stage) {
  std::vector<cached_columns> all;
  if (stage != nullptr)
    stage->template visit_cached_columns<OfStates>([&](int layer, int tensor, std::vector<std::int64_t> logical,
                                                       std::vector<std::int64_t> extents,
                                                       std::vector<std::int64_t> start) {
      all.push_back({layer, tensor, std::move(logical), std::move(start), std::move(extents)});
    });
  return all;
}
inline void add_words(std::vector<std::int64_t>& to, const std::vector<cached_columns>& all) {
  to.push_back(std::ssize(all));
  for (const cached_columns& c : all) {
    to.insert(to.end(), {c.layer, c.tensor, std::ssize(c.logical)});
    for (const auto* part : {&c.logical, &c.start, &c.extents}) to.insert(to.end(), part->begin(), part->end());
  }
}
inline std::vector<cached_columns> columns_in_words(const std::int64_t*& at) {
  std::vector<cached_columns> all(static_cast<std::size_t>(*at++));
  for (cached_columns& c : all) {
    c.layer = static_cast<int>(*at++);
    c.tensor = static_cast<int>(*at++);
    const std::int64_t dims = *at++;
    for (auto* part : {&c.logical, &c.start, &c.extents}) {
      part->assign(at, at + dims);
      at += dims;
    }
  }
  return all;
}
inline std::string columns_text(const cached_columns* c) {
  if (c == nullptr) return "none";
  std::string text;
  for (const std::int64_t n : c->logical) text += (text.empty() ? "" : " x ") + std::to_string(n);
  return text;
}
// Errors: `config_error` for tensors that one side alone has, or of two shapes.
inline void require_same_columns(std::span<const columns_of_rank> ranks) {
  const auto find = [&](bool from, const cached_columns& of) -> const cached_columns* {
    for (const columns_of_rank& r : ranks)
      for (const cached_columns& c : from ? r.from : r.to)
        if (c.layer == of.layer && c.tensor == of.tensor) return &c;
    return nullptr;
  };
  for (const bool from : {true, false})
    for (const columns_of_rank& r : ranks)
      for (const cached_columns& c : from ? r.from : r.to) {
        const cached_columns* const other = find(!from, c);
        if (other != nullptr && other->logical == c.logical) continue;
        throw config_error("heddle: cache_mover: both pools should run the same model; tensor " +
                           std::to_string(c.tensor) + " of layer " + std::to_string(c.layer) +
                           " of the cache has columns " + columns_text(from ? &c : other) + " where rows leave, and " +
                           columns_text(from ? other : &c) + " where they arrive");
      }
}
}  // namespace detail

/// The route of `rows` rows between ranks that hold these columns: as `model::parameter_route`, a tensor of the cache being [rows, columns...] and each rank's
/// tensors one behind the other. Nothing is sent: its counts are those of `cache_mover::move`.
inline model::parameter_route route_of_rows(std::span<const columns_of_rank> ranks, int rank, std::int64_t rows,
                                            model::route_sizes sizes = {}) {
  std::vector<model::boxes_of_rank> boxes(ranks.size());
  const auto add = [&](const std::vector<cached_columns>& all, std::vector<model::parameter_box>& to) {
    std::int64_t offset = 0;
    for (const cached_columns& c : all) {
      const std::int64_t n = detail::columns_in(c);
      if (n == 0 || rows == 0) continue;
      model::parameter_box b{
          std::to_string(c.layer) + "." + std::to_string(c.tensor), c.logical, c.start, c.extents, offset, 0};
      b.logical.insert(b.logical.begin(), rows);
      b.start.insert(b.start.begin(), 0);
      b.extents.insert(b.extents.begin(), rows);
      to.push_back(std::move(b));
      offset += rows * n;
    }
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    add(ranks[r].from, boxes[r].from);
    add(ranks[r].to, boxes[r].to);
  }
  return {boxes, rank, sizes};
}

/// Brings rows of the cache from the ranks of one `model_runner` to those of another, on another mesh: each rank gets the columns that it lacks from a rank that
/// has them, straight. `World`: of all ranks of both, which may overlap; `From` and `To`: their stages (`model_runner::stage_type`), null on ranks without.
/// Units: bytes of `move` are rows x columns that arrive on each rank, summed over layers and tensors, less what a rank of both keeps; copies (latents) are sent to
/// each rank that is to have one. States that layers keep of a sequence go along as one row of their columns.
/// Errors: `config_error` on all ranks, naming layer and tensor, for runners of other models.
/// Source: Zhong et al., "DistServe", OSDI 2024, section 4.3, arXiv:2401.09670 (hand-over between pools of other degrees).
template <class World, class Backend, class From, class To = From>
class cache_mover {
 public:
  using T = typename From::T;
  using space = typename From::space;
  static_assert(
      std::is_same_v<T, typename To::T>,
      "heddle: cache_mover: rows that arrive are not converted; both runners should have elements of one type");

  /// On all ranks of the world together.
  cache_mover(World& world, Backend& backend, From* from, To* to)
      : world_(&world), backend_(&backend), from_(from), to_(to) {
    for (const auto* const stage : {from_, to_})
      if (stage != nullptr && stage->cache().order == cache_order::by_head)
        throw config_error("heddle: cache_mover: rows that leave and arrive should lie by_token, got a cache by_head");
    gather<false>(rows_);
    if constexpr (has_states) gather<true>(states_);
  }

  /// What each rank of the world holds of a row.
  std::span<const columns_of_rank> ranks() const noexcept { return rows_.ranks; }
  /// Bytes that this rank has sent to others.
  std::int64_t bytes_sent() const noexcept { return bytes_sent_; }

  /// On rank 0, while the others call `follow`: row `from[i]` of one cache becomes row `to[i]` of the other, and one state the other, where there are some (-1: none).
  /// Errors: `config_error` for lists of two lengths.
  void lead(std::span<const std::int64_t> from, std::span<const std::int64_t> to, std::int64_t from_state = -1,
            std::int64_t to_state = -1) {
    if (from.size() != to.size())
      throw config_error("heddle: cache_mover: each row that leaves should have a place to arrive; got " +
                         std::to_string(from.size()) + " rows and " + std::to_string(to.size()) + " places");
    head_ = {std::ssize(from), from_state, to_state};
    lists_.assign(from.begin(), from.end());
    lists_.insert(lists_.end(), to.begin(), to.end());
    move();
  }
  /// On the other ranks: what `lead` does.
  void follow() { move(); }

 private:
  static constexpr bool has_states = From::keeps::has_states;
  template <class E>
  using row_of = row_view<E, space>;
  // Rows of this rank, packed tensor by tensor: a source or a target of a route.
  template <class E>
  struct packed_rows {
    using element = E;
    using space = typename From::space;
    row_of<E> packed;
    std::vector<row_of<E>> rows() const { return {packed}; }
    void written() const noexcept {}
  };
  // What all ranks hold of rows, or of states, and the last route of some.
  struct ways {
    std::vector<columns_of_rank> ranks{};
    std::optional<model::parameter_route> route{};
    std::int64_t rows = -1;
  };

  template <bool OfStates>
  void gather(ways& w) {
    std::vector<std::int64_t> words;
    detail::add_words(words, detail::columns_of_stage<OfStates>(from_));
    detail::add_words(words, detail::columns_of_stage<OfStates>(to_));
    const gathered_words all = gather_words(world_->control(), words);
    const std::int64_t* at = all.words.data();
    for (int r = 0; r < world_->size(); ++r) {
      columns_of_rank c;
      c.from = detail::columns_in_words(at);
      c.to = detail::columns_in_words(at);
      w.ranks.push_back(std::move(c));
    }
    detail::require_same_columns(w.ranks);
  }
  void move() {
    auto& control = world_->control();
    control.broadcast(std::span<std::int64_t>(head_), 0);
    lists_.resize(2 * static_cast<std::size_t>(head_[0]));
    control.broadcast(std::span<std::int64_t>(lists_), 0);
    const std::span<const std::int64_t> lists = lists_;
    const auto rows = static_cast<std::size_t>(head_[0]);
    const auto of_cache = [](auto& stage, const auto& f) { stage.visit_cache(f); };
    carry<T>(rows_, lists.first(rows), lists.last(rows), of_cache);
    if constexpr (has_states) {
      const auto of_states = [](auto& stage, const auto& f) { stage.visit_states(f); };
      const std::span<const std::int64_t> head = head_;
      if (head_[1] >= 0 && head_[2] >= 0)
        carry<sum_of_type<T>>(states_, head.subspan(1, 1), head.subspan(2, 1), of_states);
    }
  }
  // `visit`: of the tensors with these rows.
  template <class E, class Visit>
  void carry(ways& w, std::span<const std::int64_t> from, std::span<const std::int64_t> to, const Visit& visit) {
    const std::int64_t rows = std::ssize(from);
    if (rows == 0) return;
    if (rows != w.rows) {
      w.route.emplace(route_of_rows(w.ranks, world_->rank(), rows,
                                    {static_cast<std::int64_t>(sizeof(E)), model::usual_bucket_bytes<space>}));
      w.rows = rows;
    }
    auto& queue = compute::queue_of(*backend_);
    const columns_of_rank& own = w.ranks[static_cast<std::size_t>(world_->rank())];
    buffer<E, space> leaving(queue, rows * columns(own.from), "rows of a cache that leave");
    buffer<E, space> arriving(queue, rows * columns(own.to), "rows of a cache that arrive");
    if (from_ != nullptr)
      each_run(*from_, from, leaving.address(), visit,
               [&](E* cached, E* packed, std::int64_t n) { copy(cached, packed, n); });
    queue.wait();
    w.route->run(*world_, *backend_, packed_rows<E>{at(leaving)}, packed_rows<E>{at(arriving)});
    if (to_ != nullptr)
      each_run(*to_, to, arriving.address(), visit,
               [&](E* cached, E* packed, std::int64_t n) { copy(packed, cached, n); });
    queue.wait();
    bytes_sent_ += w.route->bytes();
  }
  static std::int64_t columns(const std::vector<cached_columns>& all) {
    std::int64_t n = 0;
    for (const cached_columns& c : all) n += detail::columns_in(c);
    return n;
  }
  template <class E>
  static row_of<E> at(buffer<E, space>& b) {
    return row_at<space>(b.address(), static_cast<std::int64_t>(b.size()));
  }
  template <class E>
  void copy(const E* from, E* to, std::int64_t n) {
    compute::queue_of(*backend_).copy(row_at<space>(from, n), row_at<space>(to, n));
  }
  // f(elements of the cache, elements of the packed rows, their number) for each run of rows that follow one another.
  template <class Stage, class E, class Visit, class F>
  static void each_run(Stage& stage, std::span<const std::int64_t> rows, E* packed, const Visit& visit, const F& f) {
    visit(stage, [&](int, int, const auto& view) {
      const std::int64_t columns = view.extent(1);
      E* const cached = first_element(view);
      for (std::size_t i = 0, next = 0; columns > 0 && i < rows.size(); i = next) {
        for (next = i + 1; next < rows.size() && rows[next] == rows[next - 1] + 1;) ++next;
        const std::int64_t n = static_cast<std::int64_t>(next - i) * columns;
        f(cached + rows[i] * columns, packed, n);
        packed += n;
      }
    });
  }

  World* world_;
  Backend* backend_;
  From* from_;
  To* to_;
  ways rows_{}, states_{};
  std::array<std::int64_t, 3> head_{};  // rows, the state that leaves, where it arrives
  std::vector<std::int64_t> lists_{};   // rows that leave, then where they arrive
  std::int64_t bytes_sent_ = 0;
};
template <class World, class Backend, class From, class To>
cache_mover(World&, Backend&, From*, To*) -> cache_mover<World, Backend, From, To>;

}  // namespace heddle::inline v0::infer
