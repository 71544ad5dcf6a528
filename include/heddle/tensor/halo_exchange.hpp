// heddle/tensor/halo_exchange.hpp: refreshes the halos of a sharded tensor in place.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/comm/wait_all.hpp>
#include <heddle/layout/exchange.hpp>
#include <heddle/layout/halo.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/sharded.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The tag of the messages of halo exchanges. One's own messages take another one.
inline constexpr int halo_tag = 31'755;

namespace detail {

template <bool Ok, class... Names>
inline constexpr bool halo_can_be_exchanged = Ok;

// A box of a row-major memory as runs of equal length: `run` elements at each combination of places along the dimensions before.
template <std::size_t Rank>
class strided_box {
 public:
  strided_box(const tensor_box<Rank>& box, const std::array<std::int64_t, Rank>& memory) {
    count_.fill(1);
    std::int64_t step = 1;
    bool whole = true;  // so far the box fills the memory's last dimensions
    for (std::size_t d = Rank; d-- > 0;) {
      begin_ += box.offset[d] * step;
      size_ *= box.extent[d];
      if (whole)
        run_ *= box.extent[d];
      else
        count_[d] = box.extent[d];
      if (d < levels) stride_[d] = step;
      whole = whole && box.extent[d] == memory[d];
      step *= memory[d];
    }
  }
  std::int64_t size() const noexcept { return size_; }
  std::int64_t begin() const noexcept { return begin_; }
  bool is_one_run() const noexcept { return size_ == run_; }

  template <class T>
  void pack(const T* memory, T* packed) const {
    for_each_row([&](std::int64_t to, std::int64_t from, std::int64_t rows, std::int64_t step) {
      if (run_ == 1)  // no call per element
        for (std::int64_t i = 0; i < rows; ++i) packed[to + i] = memory[from + i * step];
      else
        for (std::int64_t i = 0; i < rows; ++i) std::copy_n(memory + from + i * step, run_, packed + to + i * run_);
    });
  }
  template <class T>
  void unpack(const T* packed, T* memory) const {
    for_each_row([&](std::int64_t from, std::int64_t to, std::int64_t rows, std::int64_t step) {
      if (run_ == 1)
        for (std::int64_t i = 0; i < rows; ++i) memory[to + i * step] = packed[from + i];
      else
        for (std::int64_t i = 0; i < rows; ++i) std::copy_n(packed + from + i * run_, run_, memory + to + i * step);
    });
  }

 private:
  static constexpr std::size_t levels = Rank < 2 ? 1 : Rank - 1;  // the last dimension is in the run

  template <class Row>
  void for_each_row(const Row& row) const {
    std::int64_t packed = 0;
    walk<0>(begin_, packed, row);
  }
  template <std::size_t D, class Row>
  void walk(std::int64_t at, std::int64_t& packed, const Row& row) const {
    if constexpr (D + 1 < levels) {
      for (std::int64_t i = 0; i < count_[D]; ++i) walk<D + 1>(at + i * stride_[D], packed, row);
    } else {
      row(packed, at, count_[D], stride_[D]);
      packed += count_[D] * run_;
    }
  }

  std::array<std::int64_t, levels> count_{}, stride_{};
  std::int64_t begin_ = 0, run_ = 1, size_ = 1;
};

// What two parts have in common where one of them is a block of the same layout without halos: a box in the memory of `held`.
template <std::size_t Rank, std::size_t Axes>
tensor_box<Rank> box_in_memory(const tensor_part<Rank, Axes>& held, const tensor_part<Rank, Axes>& block,
                               const tensor_part<Rank, Axes>& other) {
  tensor_box<Rank> box;
  for (std::size_t d = 0; d < Rank; ++d) {
    const auto& memory = held.dims[d];
    // Without a halo all three are the same part, or have nothing in common.
    const std::int64_t common = common_size(block.dims[d], other.dims[d]);
    if (common == 0) return {};
    std::int64_t first = block.dims[d].to_global(0);
    if (const std::int64_t there = other.dims[d].to_global(0); there > first) first = there;
    box.offset[d] = memory.to_local(first);
    box.extent[d] = common;
  }
  return box;
}

template <class Mesh>
[[noreturn]] void throw_halo_part(const Mesh& mine, int rank, const Mesh& other, int other_rank) {
  throw layout_error("heddle: halo_exchange: rank " + std::to_string(rank) + "'s part of a tensor on " +
                     to_string(mine) + " came to rank " + std::to_string(other_rank) + " of a world on " +
                     to_string(other) + ", or is not like the one that the exchange was made for");
}

template <layout_like Layout, class Space, class World>
consteval bool can_exchange_halo() {
  constexpr bool same =
      std::is_same_v<std::remove_cvref_t<decltype(std::declval<World&>().mesh())>, typename Layout::mesh_type>;
  static_assert(halo_can_be_exchanged<Layout::has_halo, Layout>,
                "heddle: halo_exchange: the tensor's layout has no halo; lay it out with halo<dim, width, axes...>");
  static_assert(halo_can_be_exchanged<!Layout::has_varying, Layout>,
                "heddle: halo_exchange: values that vary along an axis have no neighbours of a common meaning; say "
                "what they mean with assume<To> first");
  static_assert(halo_can_be_exchanged<host_accessible_space<Space>, Space>,
                "heddle: halo_exchange: host code may not touch this memory; redistribute from without_halo<layout> "
                "instead, in the order of a queue");
  static_assert(halo_can_be_exchanged<same, Layout>,
                "heddle: halo_exchange: the tensor's layout is on another mesh than the world; make the layout on the "
                "world's mesh, or pass the sub-world of the layout's axes");
  constexpr bool to_host = has_host_memory<std::remove_reference_t<decltype(std::declval<World&>().all())>>;
  static_assert(halo_can_be_exchanged<to_host, World>,
                "heddle: halo_exchange: this transport moves memory of a device, and the exchange packs in the host's; "
                "redistribute from without_halo<layout> instead, in the order of a queue");
  return Layout::has_halo && !Layout::has_varying && host_accessible_space<Space> && same && to_host;
}

}  // namespace detail

/// Refreshes the halos of tensors like one, in place: every rank gets what its halo copies straight from the ranks that own it.
/// `halo_exchange refresh(x, world); for (...) { step(x); refresh(x); }`: messages and memory for them are found once. Between
/// `start(x)` and `wait(x)` the rank may compute with what it owns, must not write it, and must not touch the halo. Messages
/// are of neighbours only (in two dimensions up to eight, corners included; more where halos are wider than blocks), and of
/// `halo_tag` on `world.all()`; what lies in memory as it travels is not copied. Tensors whose values the ranks change in turn
/// (`current`, `next`) share one exchange, one after the other: `wait(x)` is for the tensor that was given to `start`, which lives
/// and keeps its memory until then. In memory of a queue, whoever calls must have waited for the queue.
/// Units: each rank receives the elements of its part less those of its own block, and together they send what
/// `redistribution<without_halo<L>, L>` does: for one dimension of n elements over p ranks with n/p >= w, 2(p-1)w.
/// Errors: `layout_error` for a tensor of another layout, shape or rank, or one that was released, for a `start` while another is
/// under way, and for a `wait` for another tensor than was started; what the communicator throws, after which nothing is under way;
/// compile errors for layouts without halos, varying values, other meshes, and memory that host code may not touch.
template <class T, std::size_t Rank, layout_like Layout, class Space, class World>
class halo_exchange {
  static constexpr bool possible = detail::can_exchange_halo<Layout, Space, World>();
  using communicator_type = std::remove_reference_t<decltype(std::declval<World&>().all())>;

 public:
  using tensor = sharded<T, Rank, Layout, Space>;

  halo_exchange(const tensor& like, World& world)
      : comm_(&world.all()), layout_(like.layout()), shape_(like.shape()), rank_(like.rank()) {
    if constexpr (possible) {
      if (!(world.mesh() == layout_.mesh()) || world.rank() != rank_)
        detail::throw_halo_part(layout_.mesh(), rank_, world.mesh(), world.rank());
      find_messages();
    }
  }
  /// The exchange: `start` and `wait`.
  void operator()(tensor& x) {
    start(x);
    wait(x);
  }
  /// Begins to receive, and sends.
  void start(tensor& x) {
    if constexpr (possible) {
      require_like(x);
      if (under_way_)
        throw layout_error("heddle: halo_exchange: rank " + std::to_string(rank_) +
                           " starts an exchange while another is under way; wait for that one first, or give each "
                           "tensor an exchange of its own");
      T* const memory = x.elements().data();
      under_way_ = true;
      started_ = memory;
      unless_it_throws([&] {
        for (const message& m : in_)
          requests_.push_back(comm_->irecv(std::span<T>(place(m, memory, incoming_), count(m)), m.peer, halo_tag));
        for (const message& m : out_) {
          T* const from = place(m, memory, outgoing_);
          if (!m.box.is_one_run()) m.box.pack(memory, from);
          requests_.push_back(comm_->isend(std::span<const T>(from, count(m)), m.peer, halo_tag));
        }
      });
    }
  }
  /// Returns when the halo of the tensor that was given to `start` is there.
  void wait(tensor& x) {
    if constexpr (possible) {
      require_like(x);
      if (!under_way_ || started_ != x.elements().data())
        throw layout_error("heddle: halo_exchange: rank " + std::to_string(rank_) + " waits for a tensor " +
                           (under_way_ ? "other than the one that was started" : "while nothing is under way") +
                           "; call start(x), then wait(x) with the same tensor");
      unless_it_throws([&] { wait_all(requests_); });
      end();
      for (const message& m : in_)
        if (!m.box.is_one_run()) m.box.unpack(incoming_.data() + m.packed, x.elements().data());
    }
  }

  /// What this rank sends in one exchange.
  std::int64_t bytes_sent() const noexcept { return bytes_of(out_); }
  std::int64_t bytes_received() const noexcept { return bytes_of(in_); }
  std::size_t messages_sent() const noexcept { return out_.size(); }

 private:
  struct message {
    int peer = 0;
    detail::strided_box<Rank> box;
    std::int64_t packed = 0;  // where it lies among what is packed; nothing if it is one run
  };
  void end() noexcept {
    requests_.clear();
    under_way_ = false;
  }
  template <class F>
  void unless_it_throws(const F& f) {
    try {
      f();
    } catch (...) {
      end();
      throw;
    }
  }
  static std::size_t count(const message& m) noexcept { return static_cast<std::size_t>(m.box.size()); }
  static T* place(const message& m, T* memory, buffer<T>& packed) noexcept {
    return m.box.is_one_run() ? memory + m.box.begin() : packed.data() + m.packed;
  }
  static std::int64_t bytes_of(const std::vector<message>& messages) noexcept {
    std::int64_t n = 0;
    for (const message& m : messages) n += m.box.size() * static_cast<std::int64_t>(sizeof(T));
    return n;
  }
  static void add(std::vector<message>& to, int peer, const detail::tensor_box<Rank>& box,
                  const std::array<std::int64_t, Rank>& memory, std::int64_t& packed) {
    message m{peer, {box, memory}, packed};
    if (m.box.size() == 0) return;
    if (!m.box.is_one_run()) packed += m.box.size();
    to.push_back(m);
  }
  void find_messages() {
    const without_halo<Layout> blocks{layout_.mesh()};
    constexpr auto cuts = detail::cuts_of(without_halo<Layout>::table);
    const auto mesh = detail::numbers_of(layout_.mesh().extents());
    const auto held = layout_.part(shape_, rank_), own = blocks.part(shape_, rank_);
    std::int64_t out = 0, in = 0;
    // Beginning with the next rank, so that not all send to the first one at once.
    for (int i = 1; i < mesh.size; ++i) {
      const int peer = (rank_ + i) % mesh.size;
      if (!detail::exchanges_with(cuts, mesh, rank_, peer)) continue;
      add(out_, peer, detail::box_in_memory(held, own, layout_.part(shape_, peer)), held.stored(), out);
      add(in_, peer, detail::box_in_memory(held, blocks.part(shape_, peer), held), held.stored(), in);
    }
    outgoing_ = buffer<T>(out);
    incoming_ = buffer<T>(in);
    requests_.reserve(out_.size() + in_.size());
  }
  void require_like(const tensor& x) const {
    if (!(x.layout() == layout_) || !(x.shape() == shape_) || x.rank() != rank_)
      detail::throw_halo_part(x.layout().mesh(), x.rank(), layout_.mesh(), rank_);
    detail::require_held(x);
  }

  communicator_type* comm_;
  [[no_unique_address]] Layout layout_;
  dynamic_shape<Rank> shape_;
  int rank_;
  bool under_way_ = false;
  const T* started_ = nullptr;  // the memory of the tensor whose exchange is under way
  std::vector<message> out_, in_;
  buffer<T> outgoing_, incoming_;
  std::vector<typename communicator_type::request> requests_;  // last: they end before the buffers do
};
template <class T, std::size_t Rank, class Layout, class Space, class World>
halo_exchange(const sharded<T, Rank, Layout, Space>&, World&) -> halo_exchange<T, Rank, Layout, Space, World>;

/// Refreshes the halo of one tensor once; see `halo_exchange`, which is faster where that happens again.
template <class T, std::size_t Rank, layout_like Layout, class Space, class World>
void exchange_halo(sharded<T, Rank, Layout, Space>& x, World& world) {
  halo_exchange<T, Rank, Layout, Space, World>(x, world)(x);
}

}  // namespace heddle::inline v0
