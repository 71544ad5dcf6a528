// heddle/compute/overlapped_matmul.hpp: matrix products that overlap with messages.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::compute {

/// How finely a product is cut: each rank's block of rows travels and is multiplied in so many pieces. More pieces hide
/// more of the transfer and cost more messages; a piece should take about ten times as long to send as its latency.
struct overlap_options {
  int pieces = 1;
  /// Of the messages; several products at once on one communicator need different ones.
  int tag = 0;
};

namespace detail {

// A block of rows per rank, each cut into pieces.
class row_blocks {
 public:
  row_blocks(const char* what, std::span<const std::int64_t> rows, int ranks, int pieces) : pieces_(pieces) {
    const std::string name = std::string("heddle: ") + what;
    if (static_cast<int>(rows.size()) != ranks)
      throw layout_error(name + " needs the rows of each of " + std::to_string(ranks) + " ranks, got " +
                         std::to_string(rows.size()) + " numbers");
    if (pieces < 1) throw config_error(name + ": pieces must be at least 1, got " + std::to_string(pieces));
    begin_.push_back(0);
    for (const std::int64_t r : rows) {
      if (r < 0) throw layout_error(name + ": a rank has " + std::to_string(r) + " rows");
      begin_.push_back(begin_.back() + r);
    }
  }
  int ranks() const { return static_cast<int>(begin_.size()) - 1; }
  int pieces() const { return pieces_; }
  std::int64_t begin(int block) const { return begin_[static_cast<std::size_t>(block)]; }
  std::int64_t rows(int block) const { return begin(block + 1) - begin(block); }
  std::int64_t all() const { return begin_.back(); }
  /// Where a piece begins in its block, and its rows.
  std::int64_t piece_begin(int block, int piece) const {
    return split::balanced::to_global(rows(block), pieces_, piece, 0);
  }
  std::int64_t piece_rows(int block, int piece) const { return split::balanced::size(rows(block), pieces_, piece); }

 private:
  std::vector<std::int64_t> begin_;
  int pieces_;
};

inline void expect_extent(const char* what, const char* of, std::int64_t expected, std::int64_t got) {
  if (expected != got)
    throw layout_error(std::string("heddle: ") + what + ": " + of + ": expected " + std::to_string(expected) +
                       ", got " + std::to_string(got));
}

template <class T>
matrix_view<T> rows_of(matrix_view<T> m, std::int64_t first, std::int64_t count) {
  return {m.data() + first * m.extent(1), {count, m.extent(1)}};
}

// The request of a message that arrives as elements of T.
template <class Comm, class T>
using request_of = decltype(std::declval<Comm&>().irecv(std::declval<std::span<T>>(), 0, 0));

// All receives of a ring, step by step: `part(step, i)` is where piece i goes. None for a piece without elements.
template <class T, class Comm, class Part>
std::vector<request_of<Comm, T>> started_receives(Comm& comm, int previous, const overlap_options& options,
                                                  const Part& part) {
  std::vector<request_of<Comm, T>> started;
  started.reserve(static_cast<std::size_t>(comm.size()) * static_cast<std::size_t>(options.pieces));
  for (int step = 1; step < comm.size(); ++step)
    for (int i = 0; i < options.pieces; ++i)
      if (const auto to = part(step, i); to.size() > 0)
        started.push_back(comm.irecv(to.elements(), previous, options.tag));
  return started;
}

// Messages on the way; whatever is still there is waited for at the end.
template <class Request>
class messages_under_way {
 public:
  void add(Request r) { all_.push_back(std::move(r)); }
  // Lets transports without a thread of their own go on.
  void progress() {
    for (Request& r : all_) (void)r.test();
  }
  void wait() {
    for (Request& r : all_) r.wait();
    all_.clear();
  }

 private:
  std::vector<Request> all_;
};

}  // namespace detail

/// Gathers rows that are spread over ranks, and calls `take(first, count)` for each piece of them as soon as it is there, the
/// rank's own first. Blocks go round a ring; a piece is passed on before `take` works on it. Sends (p - 1) blocks in `pieces`
/// messages each, as a ring all_gather does. `take` is called for every row once, and never with none.
/// Shapes: x [rows[rank], k] (may be the rank's rows of `gathered`), gathered [sum of rows, k]. `rows` says how many rows each
/// rank has, the same on every rank; 0 is fine.
/// Errors: as `all_gather_matmul`.
template <class Comm, class T, class Take>
void gather_rows_for(Comm& comm, input_matrix<T> x, std::span<const std::int64_t> rows, matrix_view<T> gathered,
                     Take&& take, overlap_options options = {}, const char* name = "gather_rows_for") {
  const int p = comm.size(), me = comm.rank();
  const detail::row_blocks blocks(name, rows, p, options.pieces);
  detail::expect_extent(name, "rows of x", blocks.rows(me), x.extent(0));
  detail::expect_extent(name, "rows of gathered", blocks.all(), gathered.extent(0));
  detail::expect_extent(name, "columns of gathered", x.extent(1), gathered.extent(1));

  const auto own = detail::rows_of(gathered, blocks.begin(me), blocks.rows(me));
  if (x.data() != own.data()) std::copy_n(x.data(), x.size(), own.data());
  const int next = (me + 1) % p, previous = (me + p - 1) % p;
  const auto block_at = [&](int step) { return (me + p - step) % p; };
  const auto piece = [&](int block, int i) {
    return detail::rows_of(gathered, blocks.begin(block) + blocks.piece_begin(block, i), blocks.piece_rows(block, i));
  };

  // Every block has a place of its own: all receives can be there before the first message is.
  using request = detail::request_of<Comm, T>;
  auto arriving =
      detail::started_receives<T>(comm, previous, options, [&](int step, int i) { return piece(block_at(step), i); });
  detail::messages_under_way<request> sending;
  std::size_t arrived = 0;
  for (int step = 0; step < p; ++step)
    for (int i = 0; i < options.pieces; ++i) {
      const int block = block_at(step);
      const auto part = piece(block, i);
      if (step > 0 && part.size() > 0) arriving[arrived++].wait();
      if (step < p - 1 && part.size() > 0) sending.add(comm.isend(part.elements(), next, options.tag));
      if (part.extent(0) > 0) take(blocks.begin(block) + blocks.piece_begin(block, i), part.extent(0));
      sending.progress();
    }
  sending.wait();
}

/// Sums rows over ranks and spreads them: rank r gets its rows of the sum in `y`. `make(first, part)` makes this rank's
/// contribution to the rows from `first` on in `part`, while the sum of the ranks before it is under way; `add(a, b)` adds a to b.
/// A block's sum goes round a ring: (p - 1) blocks in `pieces` messages each, as a ring reduce_scatter sends. The sum for rank r is
/// folded in the order r + 1, r + 2, ..., r. `make` is called for every row once, and never with none.
/// Shapes: sums, arriving [sum of rows, n], work space whose contents are lost (empty for one rank); y [rows[rank], n].
/// Errors: as `matmul_reduce_scatter`.
template <class Comm, class T, class Make, class Add>
void scatter_sums_of(Comm& comm, std::span<const std::int64_t> rows, matrix_view<T> sums, matrix_view<T> arriving,
                     matrix_view<T> y, Make&& make, Add&& add, overlap_options options = {},
                     const char* name = "scatter_sums_of") {
  const int p = comm.size(), me = comm.rank();
  const std::int64_t n = y.extent(1);
  const detail::row_blocks blocks(name, rows, p, options.pieces);
  detail::expect_extent(name, "rows of y", blocks.rows(me), y.extent(0));
  if (p > 1)
    for (const auto& room : {sums, arriving}) {
      detail::expect_extent(name, "rows of the work space", blocks.all(), room.extent(0));
      detail::expect_extent(name, "columns of the work space", n, room.extent(1));
    }

  const int next = (me + 1) % p, previous = (me + p - 1) % p;
  const auto block_at = [&](int step) { return (me + 2 * p - 1 - step) % p; };
  const auto piece = [&](matrix_view<T> whole, int block, int i) {
    return detail::rows_of(whole, blocks.begin(block) + blocks.piece_begin(block, i), blocks.piece_rows(block, i));
  };
  // Every block has a place of its own, as a sum that arrives and as one that leaves.
  using request = detail::request_of<Comm, T>;
  auto to_come = detail::started_receives<T>(comm, previous, options,
                                             [&](int step, int i) { return piece(arriving, block_at(step), i); });
  detail::messages_under_way<request> leaving;
  std::size_t arrived = 0;
  for (int step = 0; step < p; ++step) {
    const int block = block_at(step);
    for (int i = 0; i < options.pieces; ++i) {
      const auto part = step == p - 1 ? detail::rows_of(y, blocks.piece_begin(me, i), blocks.piece_rows(me, i))
                                      : piece(sums, block, i);
      if (part.size() == 0) continue;
      make(blocks.begin(block) + blocks.piece_begin(block, i), part);
      if (step > 0) {
        to_come[arrived++].wait();
        add(piece(arriving, block, i).elements(), part.elements());
      }
      if (step < p - 1) leaving.add(comm.isend(part.elements(), next, options.tag));
      leaving.progress();
    }
  }
  leaving.wait();
}

/// The product of rows that are spread over ranks with a weight each rank holds: `y = gathered op(w)` where `gathered` is
/// the ranks' `x`, one below the other. Each block is multiplied while the next one is under way (`gather_rows_for`), so the
/// time is about that of the slower of transfer and product; each row of `y` is the product of one row, as without overlap.
/// It is the input side of a column-parallel layer whose activations are split along the sequence; with `TW = transpose::yes`
/// also its input gradient's.
///
/// Shapes: x [rows[rank], k] (may be the rank's rows of `gathered`), gathered [sum of rows, k], op(w) [k, n],
/// y [sum of rows, n]. `rows` says how many rows each rank has, the same on every rank; 0 is fine.
/// Errors: `layout_error` where shapes do not fit, `config_error` for `pieces < 1`, and what the communicator throws.
/// Source: Wang et al., ASPLOS 2023 (collective matmul); MegaScale, arXiv:2402.15627, section 3.2.
template <transpose TW = transpose::no, class Backend, communicator Comm, class T>
void all_gather_matmul(Backend& backend, Comm& comm, input_matrix<T> x, std::span<const std::int64_t> rows,
                       input_matrix<T> w, matrix_view<T> gathered, matrix_view<T> y, overlap_options options = {}) {
  constexpr const char* name = "all_gather_matmul";
  constexpr bool turned = TW == transpose::yes;
  detail::expect_extent(name, "rows of op(w)", x.extent(1), w.extent(turned ? 1 : 0));
  detail::expect_extent(name, "rows of y", gathered.extent(0), y.extent(0));
  detail::expect_extent(name, "columns of y", w.extent(turned ? 0 : 1), y.extent(1));
  gather_rows_for<Comm, T>(
      comm, x, rows, gathered,
      [&](std::int64_t first, std::int64_t count) {
        compute::matmul<transpose::no, TW>(backend, detail::rows_of(gathered, first, count), w,
                                           detail::rows_of(y, first, count), T(0));
      },
      options, name);
}

/// The product of split inputs, summed and spread over the ranks: rank r gets its rows of the sum over all ranks of
/// `x op(w)`. Each rank multiplies its share of a block while the sum of the ranks before it is under way (`scatter_sums_of`). It is
/// the output side of a row-parallel layer whose activations are split along the sequence. Equal to the unsplit product up to
/// rounding, and the same bits for the same mesh.
///
/// Shapes: x [sum of rows, k], op(w) [k, n], y [rows[rank], n]; `rows` and errors as in `all_gather_matmul`.
template <transpose TW = transpose::no, class Backend, communicator Comm, class T>
void matmul_reduce_scatter(Backend& backend, Comm& comm, input_matrix<T> x, std::span<const std::int64_t> rows,
                           input_matrix<T> w, matrix_view<T> y, overlap_options options = {}) {
  constexpr const char* name = "matmul_reduce_scatter";
  constexpr bool turned = TW == transpose::yes;
  const std::int64_t n = w.extent(turned ? 0 : 1), all = x.extent(0);
  detail::expect_extent(name, "rows of x", detail::row_blocks(name, rows, comm.size(), options.pieces).all(), all);
  detail::expect_extent(name, "rows of op(w)", x.extent(1), w.extent(turned ? 1 : 0));
  detail::expect_extent(name, "columns of y", n, y.extent(1));
  const std::int64_t room = comm.size() > 1 ? all : 0;
  buffer<T> work(2 * room * n);
  scatter_sums_of<Comm, T>(
      comm, rows, matrix_view<T>(work.data(), {room, n}), matrix_view<T>(work.data() + room * n, {room, n}), y,
      [&](std::int64_t first, matrix_view<T> part) {
        compute::matmul<transpose::no, TW>(backend, detail::rows_of(x, first, part.extent(0)), w, part, T(0));
      },
      [&](std::span<T> a, std::span<T> b) { run<ops::add>(backend, std::span<const T>(a), std::span<const T>(b), b); },
      options, name);
}

}  // namespace heddle::inline v0::compute
