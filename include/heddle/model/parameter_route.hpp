// heddle/model/parameter_route.hpp: routes of parameters to stages on another mesh.
#pragma once

#include <heddle/comm/gathered_words.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/config.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model {

/// A box of the whole tensor `name` on a rank: `extents` from `start` on of extents `logical` (`parameter`), row-major from element `offset` of row
/// number `row` of those that the rank gives.
struct parameter_box {
  std::string name;
  std::vector<std::int64_t> logical, start, extents;
  std::int64_t offset = 0;
  int row = 0;
};
/// Those of one rank: what it holds, and what it wants.
struct boxes_of_rank {
  std::vector<parameter_box> from, to;
};
/// Those of a stage's table of parameters, whose flat buffer is row `row`.
HEDDLE_INLINE std::vector<parameter_box> parameter_boxes(std::span<const parameter> table, int row = 0);

/// What a `parameter_route` sends at a time. Units: bytes; `element_bytes` of an element of the targets.
struct route_sizes {
  std::int64_t element_bytes = 4;
  std::int64_t bucket_bytes = std::int64_t{1} << 20;
};
/// Bytes of a bucket where none are given: on the host what stays in caches while it is packed, sent and unpacked, elsewhere what keeps kernels busy.
template <class Space>
inline constexpr std::int64_t usual_bucket_bytes = std::int64_t{1} << (std::is_same_v<Space, host_memory> ? 20 : 25);

namespace detail {
template <bool Ok, class From, class To>
inline constexpr bool route_is_in_one_memory = Ok;
}  // namespace detail

/// The weights of a stage as the source or the target of a `parameter_route`; none where the pointer is null. The stage must outlive it.
template <class Stage>
class stage_weights {
 public:
  using element = typename Stage::scalar;
  using space = space_of<Stage>;

  explicit stage_weights(Stage* stage) noexcept : stage_(stage) {}
  /// The same places in another memory of as many elements, which must outlive it: `written` then tells the stage nothing.
  stage_weights(Stage* stage, row_view<element, space> memory) : stage_(stage), memory_(memory) {}
  std::vector<parameter_box> boxes() const {
    return stage_ == nullptr ? std::vector<parameter_box>{} : parameter_boxes(stage_->parameters());
  }
  std::vector<row_view<element, space>> rows() const {
    if (stage_ == nullptr) return {};
    return {memory_ ? *memory_ : row_view<element, space>(stage_->weights())};
  }
  /// Somebody has written the weights.
  void written() const {
    if (stage_ != nullptr && !memory_) of_stage::weights_written(*stage_);
  }

 private:
  Stage* stage_;
  std::optional<row_view<element, space>> memory_{};
};

/// Brings parameters from ranks that hold them to ranks that want them, whatever mesh either are on: the same ranks, some of them, or others of one
/// world. Each wanted element comes from the rank itself if it holds it, else from one rank that does: of several with the same box the one that has
/// least to send so far. So a rank receives exactly what it lacks, and nothing is gathered that nobody wants. Tensors go by their names.
///
/// It is made on all ranks together, which tell each other their boxes once; each of them then knows the counts of all before anything is sent.
/// A source has `boxes()` and `rows()`, a target the same and `written()`, and both have types `element` and `space`: `stage_weights`,
/// `train::trainer_weights`. Where generation replicas are an axis of a mesh inside of its tensor parallelism (`mesh<axis<dp>, axis<tp>, axis<replica>>`
/// over the ranks of training), a training shard is part of the generation shard of the same rank.
/// Errors: `layout_error` on all ranks, naming the parameter, for a wanted box that nobody holds all of, and for tensors of two shapes; `config_error`
/// for a bucket that holds no element.
/// Source: Sheng et al. 2024, arXiv:2409.19256, section 5 (transition of weights between training and generation).
class parameter_route {
 public:
  /// `world`: of all ranks, also of those that neither hold nor want anything.
  template <class World, class From, class To>
    requires requires(World& world) { world.control(); }
  parameter_route(World& world, const From& from, const To& to,
                  std::int64_t bucket_bytes = usual_bucket_bytes<typename To::space>)
      : parameter_route(gathered(world.control(), {from.boxes(), to.boxes()}), world.rank(),
                        {static_cast<std::int64_t>(sizeof(typename To::element)), bucket_bytes}) {}
  /// From what all ranks hold and want.
  HEDDLE_INLINE parameter_route(std::span<const boxes_of_rank> ranks, int rank, route_sizes sizes = {});

  /// Elements that a rank gets from others, gets from itself, and gives to others. Without an argument: this rank.
  std::int64_t received() const { return received(rank_); }
  std::int64_t received(int rank) const { return received_[static_cast<std::size_t>(rank)]; }
  std::int64_t kept() const { return kept(rank_); }
  std::int64_t kept(int rank) const { return kept_[static_cast<std::size_t>(rank)]; }
  std::int64_t sent() const { return sent(rank_); }
  std::int64_t sent(int rank) const { return sent_[static_cast<std::size_t>(rank)]; }
  /// Bytes that this rank gives to the exchanges.
  std::int64_t bytes() const { return sent() * sizes_.element_bytes; }
  /// Exchanges that follow one another.
  int buckets() const noexcept { return buckets_; }
  /// The most bytes that this rank sends in a bucket, and the most that it receives: what `run` needs memory for; where elements are converted, at most a
  /// bucket, and that in the source's type, too.
  std::int64_t most_outgoing_bytes() const noexcept { return most_out_ * sizes_.element_bytes; }
  std::int64_t most_incoming_bytes() const noexcept { return most_in_ * sizes_.element_bytes; }
  int ranks() const noexcept { return static_cast<int>(sent_.size()); }
  int rank() const noexcept { return rank_; }

  /// Copies what stays, and sends the rest bucket by bucket, with one `all_to_all_v` of `world.all()` for each. Called on all ranks together,
  /// with the source and the target that the route was made of; elements of another type than the target's are converted by the sender. In another space
  /// than the host's it is all in the order of the backend's queue, which it waits for; what other queues do with the weights must be done.
  /// Errors: `layout_error` if rows are shorter than the route's boxes; what the communicator throws.
  template <class World, class Backend, class From, class To>
  void run(World& world, Backend& backend, const From& from, const To& to) const;

 private:
  static constexpr std::size_t most_dims = 6;
  using places = std::array<std::int64_t, most_dims>;
  // A box in a row: `extents` of a memory of extents `memory`, from element `offset` on. Dimensions that the box fills are one with those before them.
  struct strided_box {
    int row;
    std::int64_t offset;
    places extents, memory;
  };
  // What goes to a rank, or comes from it, in a bucket; packed one behind the other.
  struct packed_box {
    int bucket, rank;
    std::int64_t number, count;
    strided_box box;
  };
  // What stays on this rank: extents of a box, and where it lies in a source and in a target.
  struct kept_box {
    int from_row, to_row;
    std::int64_t from, to, count;
    places extents, from_memory, to_memory;
  };
  class planner;

  template <class Control>
  static std::vector<boxes_of_rank> gathered(Control& all, const boxes_of_rank& mine) {
    const gathered_words words = gather_words(all, words_of(mine));
    return from_words(words.words, words.counts);
  }
  static HEDDLE_INLINE std::vector<std::int64_t> words_of(const boxes_of_rank& boxes);
  static HEDDLE_INLINE std::vector<boxes_of_rank> from_words(std::span<const std::int64_t> words,
                                                             std::span<const std::int64_t> counts);
  // Errors: `layout_error`.
  HEDDLE_INLINE void require_elements(const char* what, std::span<const std::int64_t> wanted,
                                      std::span<const std::size_t> given) const;
  template <class Rows>
  void require_rows(const char* what, std::span<const std::int64_t> wanted, const Rows& rows) const {
    std::vector<std::size_t> given;
    for (const auto& r : rows) given.push_back(element_count(r));
    require_elements(what, wanted, given);
  }

  // Elements of a row that a box takes, as a box of a memory that begins where the row does: the offset is a place along the last dimension, which
  // nothing fills.
  static heddle::v0::detail::memory_overlap<most_dims> overlap(const strided_box& b) {
    heddle::v0::detail::memory_overlap<most_dims> o;
    for (std::size_t d = 0; d < most_dims; ++d) {
      const std::int64_t at = d + 1 == most_dims ? b.offset : 0;
      o.along[d] = heddle::v0::detail::stretch_list({at, at, b.extents[d]});
    }
    return o;
  }
  static heddle::v0::detail::memory_overlap<most_dims> overlap(const places& extents) {
    heddle::v0::detail::memory_overlap<most_dims> o;
    for (std::size_t d = 0; d < most_dims; ++d) o.along[d] = heddle::v0::detail::stretch_list({0, 0, extents[d]});
    return o;
  }
  // f(box, element of the packed ones) for each of `boxes`, packed one behind the other, that lies in row `row`.
  template <class F>
  static void each_in_row(std::span<const packed_box> boxes, int row, F&& f) {
    std::int64_t at = 0;
    for (const packed_box& b : boxes) {
      if (b.box.row == row) f(b.box, at);
      at += b.count;
    }
  }
  template <class T, class Space>
  static void pack(typename Space::queue& queue, std::span<const packed_box> boxes,
                   const std::vector<row_view<T, Space>>& rows, vector_view<std::remove_const_t<T>, Space> to) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      heddle::v0::detail::box_copies<std::remove_const_t<T>, Space, most_dims> copies(queue, view_of<Space>(rows[r]),
                                                                                      to);
      each_in_row(boxes, static_cast<int>(r),
                  [&](const strided_box& b, std::int64_t at) { copies.pack(overlap(b), b.memory, at); });
      copies.launch();
    }
  }
  template <class T, class Space>
  static void unpack(typename Space::queue& queue, std::span<const packed_box> boxes, vector_view<const T, Space> from,
                     const std::vector<row_view<T, Space>>& rows) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      heddle::v0::detail::box_copies<T, Space, most_dims> copies(queue, from, view_of<Space>(rows[r]));
      each_in_row(boxes, static_cast<int>(r),
                  [&](const strided_box& b, std::int64_t place) { copies.unpack(overlap(b), place, b.memory); });
      copies.launch();
    }
  }
  template <class Space, class Row>
  static auto view_of(const Row& row) noexcept {
    using T = element_of<const Row>;
    return vector_view<T, Space>(first_element(row),
                                 heddle::v0::detail::row_shape(static_cast<std::int64_t>(element_count(row))));
  }
  template <class S, class T, class Space, class Comm, class Backend, class From, class To>
  void exchange(Comm& all, Backend& backend, const From& from, const To& to) const;
  // The elements of a row from one on.
  template <class Space, class Row>
  static auto behind(const Row& row, std::int64_t first) noexcept {
    const auto all = view_of<Space>(row);
    return heddle::v0::detail::within(all, first, all.size() - first);
  }
  // Those of a bucket.
  static std::span<const packed_box> in_bucket(const std::vector<packed_box>& all, int bucket) {
    const auto first = std::partition_point(all.begin(), all.end(), [&](const auto& b) { return b.bucket < bucket; });
    const auto last = std::partition_point(first, all.end(), [&](const auto& b) { return b.bucket == bucket; });
    return {first, last};
  }
  static std::int64_t add_counts(std::span<const packed_box> boxes, std::vector<std::int64_t>& counts) {
    std::int64_t sum = 0;
    for (const packed_box& b : boxes) counts[static_cast<std::size_t>(b.rank)] += b.count, sum += b.count;
    return sum;
  }

  int rank_;
  route_sizes sizes_;
  int buckets_ = 0;
  std::vector<std::int64_t> received_, kept_, sent_;  // of each rank
  std::vector<packed_box> out_, in_;                  // bucket by bucket, there rank by rank
  std::vector<kept_box> stays_;
  std::vector<std::int64_t> source_rows_, target_rows_;  // elements that each row must have
  std::int64_t most_out_ = 0, most_in_ = 0, most_kept_ = 0;
};

/// What this rank keeps, receives and sends.
HEDDLE_INLINE std::string to_string(const parameter_route& r);

template <class World, class Backend, class From, class To>
void parameter_route::run(World& world, Backend& backend, const From& from, const To& to) const {
  using space = typename To::space;
  using S = std::remove_const_t<typename From::element>;
  using T = typename To::element;
  constexpr bool in_one_memory =
      std::is_same_v<space, typename From::space> && std::is_same_v<space, space_of<Backend>>;
  static_assert(detail::route_is_in_one_memory<in_one_memory, From, To>,
                "heddle: a parameter_route runs in one memory space, that of its backend: the source and the target "
                "lie in another one");
  if constexpr (in_one_memory) {
    if constexpr (std::is_same_v<S, T>)
      exchange<S, T, space>(world.all(), backend, from, to);
    else if constexpr (compute::require_facet<parameter_route, compute::cast_facet<T>, Backend, S>())
      exchange<S, T, space>(world.all(), backend, from, to);
  }
}

template <class S, class T, class Space, class Comm, class Backend, class From, class To>
void parameter_route::exchange(Comm& all, Backend& backend, const From& from, const To& to) const {
  using heddle::v0::detail::within;
  constexpr bool converts = !std::is_same_v<S, T>;
  const auto sources = from.rows();
  const auto targets = to.rows();
  require_rows("source", source_rows_, sources);
  require_rows("target", target_rows_, targets);
  auto& queue = compute::queue_of(backend);
  buffer<S, Space> read(queue, converts ? (std::max)(most_out_, most_kept_) : 0, "parameters to convert");
  buffer<T, Space> outgoing(queue, converts ? (std::max)(most_out_, most_kept_) : most_out_, "parameters to send");
  buffer<T, Space> incoming(queue, most_in_, "parameters to receive");
  const auto convert = [&](std::int64_t n) {
    if constexpr (converts)
      compute::cast(backend, row_at<Space>(static_cast<const S*>(read.address()), n),
                    row_at<Space>(outgoing.address(), n));
  };
  for (const kept_box& b : stays_) {
    const auto o = overlap(b.extents);
    const vector_view<const S, Space> source = behind<Space>(sources[static_cast<std::size_t>(b.from_row)], b.from);
    const vector_view<T, Space> target = behind<Space>(targets[static_cast<std::size_t>(b.to_row)], b.to);
    if constexpr (converts) {
      heddle::v0::detail::pack_box<S, Space>(queue, o, source, b.from_memory, within(read.view(), 0, b.count));
      convert(b.count);
      heddle::v0::detail::unpack_box<T, Space>(queue, o, within(outgoing.view(), 0, b.count), target, b.to_memory);
    } else {
      heddle::v0::detail::copy_box<T, Space>(queue, o, source, b.from_memory, target, b.to_memory);
    }
  }
  std::vector<std::int64_t> sent, received;
  for (int k = 0; k < buckets(); ++k) {
    const auto out = in_bucket(out_, k), in = in_bucket(in_, k);
    sent.assign(static_cast<std::size_t>(ranks()), 0);
    received.assign(sent.size(), 0);
    const std::int64_t leaves = add_counts(out, sent), comes = add_counts(in, received);
    if constexpr (converts)
      pack<typename From::element, Space>(queue, out, sources, read.view());
    else
      pack<typename From::element, Space>(queue, out, sources, outgoing.view());
    convert(leaves);
    const vector_view<const T, Space> packed = outgoing.view();
    heddle::v0::all_to_all_v(queue, all, within(packed, 0, leaves), sent, within(incoming.view(), 0, comes), received);
    unpack<T, Space>(queue, in, incoming.view(), targets);
  }
  to.written();
  queue.wait();
}

}  // namespace heddle::inline v0::model

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/model/impl/parameter_route.hpp>
#endif
