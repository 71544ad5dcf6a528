// heddle/context/execute.hpp: runs a rank's program: messages, attention, folds.
#pragma once

#include <heddle/compute/ops/on_rows.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/growing_room.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/context/program.hpp>
#include <heddle/context/queued_messages.hpp>
#include <heddle/context/shape.hpp>
#include <heddle/context/started_messages.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

namespace detail {
template <class T, class Space, class Communicator>
struct messages_in {
  using type = queued_messages<T, Space, Communicator>;
};
template <class T, class Communicator>
struct messages_in<T, host_memory, Communicator> {
  using type = started_context_messages<Communicator>;
};
}  // namespace detail

/// Attention of the documents whose rows lie on the ranks of a communicator, as tables say: each rank gives its own
/// rows and gets their outputs, or gradients. Results are the same bits in every run, whatever the order in which
/// messages arrive: they are folded in the order of the table, in `sum_of_type<T>`. It keeps memory from call to call,
/// and serves one call at a time.
///
/// Operands of messages are counted as bytes: `context_shape::row_bytes` times the rows. Messages take the tags
/// [first_tag, first_tag + 4). A communicator that takes events (`ranks.record(event)`) is told of each message, from
/// when it is started until it is known to be over, and of each call of the kernel: in the host's memory, where the host sees both.
///
/// In memory of a device, calls return when the backend's queue has what they do. A round's messages go out as one group, in the
/// order of a queue beside the backend's where it has such, over communicators of their own: executors are made by all ranks
/// together. A program stays as it is until somebody waits for the queue.
///
/// Errors (compile time): the backend lacks sliced attention or `ops::on_rows`; the messages of the communicator do not go in the
/// order of its queue.
template <class T, class Backend, message_carrier Communicator>
class context_executor {
 public:
  using space = space_of<Backend>;
  using sum = sum_of_type<T>;
  template <class U>
  using heads = compute::head_rows<U, space>;
  template <class U>
  using numbers = compute::head_numbers<U, space>;

  context_executor(Backend& backend, Communicator& ranks, int first_tag = 0)
      : backend_(backend), ranks_(ranks), messages_(make_messages(backend, ranks, first_tag)) {}

  /// Forward: out and the log-sum-exp of the rank's rows.
  /// Shapes: q, out [rows, query heads, head_dim], k, v [rows, key heads, head_dim], lse [query heads, rows].
  /// Errors: `layout_error` if sizes are not those of the program; `config_error` if heads cannot be cut into its
  /// parts.
  void attend(const context_program& program, heads<const T> q, heads<const T> k, heads<const T> v, sum scale,
              heads<T> out, row_view<sum, space> lse) {
    tensors x{q, k, v, {}, out, lse, {}, {}, {}, scale};
    run(program, context_pass::forward, x);
  }

  /// Backward: gradients of the rank's rows, from those of the output, and the output and log-sum-exp of the forward
  /// pass.
  void attend_backward(const context_program& program, heads<const T> dout, heads<const T> q, heads<const T> k,
                       heads<const T> v, heads<const T> out, row_view<const sum, space> lse, sum scale, heads<T> dq,
                       heads<T> dk, heads<T> dv) {
    // Neither is written backward.
    const heads<T> output{const_cast<T*>(out.data), out.rows, out.heads, out.head_dim, out.stride};
    const auto logarithms = row_at<space>(const_cast<sum*>(first_element(lse)), static_cast<std::int64_t>(lse.size()));
    tensors x{q, k, v, dout, output, logarithms, dq, dk, dv, scale};
    run(program, context_pass::backward, x);
  }

  /// Copies rows, and numbers of heads, as the executor's calls do: in their order.
  void copy(const heads<const T>& from, const heads<T>& to) {
    on_rows(to.rows, to.width(), compute::detail::copied_rows<T, T, space>{from, to});
  }
  void copy(const numbers<const sum>& from, const numbers<sum>& to) {
    on_rows(to.rows, to.heads, compute::detail::copied_numbers<sum, space>{from, to});
  }

  /// How events name the ranks of the communicator: by these world ranks.
  void name_ranks(std::vector<int> world_ranks) { messages_.name_ranks(std::move(world_ranks)); }

  /// Calls and bytes of the communicator, on a device of those that the executor has made.
  auto counters() const { return messages_.counters(); }
  /// Bytes that it has kept for messages, partial results and the rank's own accumulators.
  std::int64_t room_bytes() const noexcept { return bytes_; }

 private:
  static constexpr bool on_host = std::is_same_v<space, host_memory>;
  using messages = typename detail::messages_in<T, space, Communicator>::type;
  static messages make_messages(Backend& backend, Communicator& ranks, int first_tag) {
    if constexpr (on_host)
      return messages(ranks, first_tag);
    else
      return messages(compute::queue_of(backend), ranks, first_tag);
  }

  struct tensors {
    heads<const T> q, k, v, dout;
    heads<T> out;
    row_view<sum, space> lse;
    heads<T> dq, dk, dv;
    sum scale;
  };
  // A partial result: what is added up, and forward the logarithms.
  struct result_rows {
    heads<sum> values, more_values;  // the second: gradients of values
    numbers<sum> lse;
  };

  void check(const context_program& p, context_pass pass, const tensors& x) {
    const auto same = [](const char* what, std::int64_t expected, std::int64_t got) {
      if (expected != got)
        throw layout_error(text_of({"heddle: context_executor: ", what, " should be ", expected, ", got ", got}));
    };
    if (p.pass != pass) {
      throw layout_error(text_of({"heddle: context_executor: the program is for the ", to_string(p.pass),
                                  " pass, not the ", to_string(pass), " one"}));
    }
    same("the rank", p.rank, ranks_.rank());
    // Arrays, because nvcc loses lists of aggregates.
    const std::array<std::int64_t, 4> rows{x.q.rows, x.k.rows, x.v.rows, x.out.rows};
    for (const std::int64_t n : rows) same("rows of a tensor", p.rows, n);
    same("head_dim of the keys", x.q.head_dim, x.k.head_dim);
    same("heads of the values", x.k.heads, x.v.heads);
    same("heads of the output", x.q.heads, x.out.heads);
    same("head_dim of the output", x.v.head_dim, x.out.head_dim);
    same("numbers of lse", p.rows * x.q.heads, static_cast<std::int64_t>(x.lse.size()));
    if (pass == context_pass::backward) {
      same("rows of dout", p.rows, x.dout.rows);
      same("columns of dout", x.out.width(), x.dout.width());
      same("columns of dq", x.q.width(), x.dq.width());
      same("columns of dk", x.k.width(), x.dk.width());
      same("columns of dv", x.v.width(), x.dv.width());
      const std::array<std::int64_t, 3> made{x.dq.rows, x.dk.rows, x.dv.rows};
      for (const std::int64_t n : made) same("rows of a gradient", p.rows, n);
    }
    require_parts(shape_, p.parts);
  }

  void run(const context_program& p, context_pass pass, const tensors& x) {
    if constexpr (compute::facet_list<compute::sliced_attention_facet,
                                      compute::context_facet>::template required<context_executor, Backend, T>()) {
      shape_ = {x.q.heads, x.k.heads, x.q.head_dim, x.v.head_dim, sizeof(T), sizeof(sum)};
      check(p, pass, x);
      program_ = &p;
      take_room();
      typename messages::call now(messages_, row_at<space>(room_, travelling_));
      for (std::size_t k = 0; k < p.rounds.size(); ++k) round(p.rounds[k], static_cast<int>(k), x, now);
      now.finish();
      finish(x);
    }
  }

  void round(const context_round& r, int number, const tensors& x, typename messages::call& now) {
    now.before(number);
    for (const context_message& m : r.receives) now.receive(m, buffer(m.rows.buffer).what, bytes_of(m.rows));
    now.ready(number);
    for (const context_transfer& c : r.packs) pack(c, x);
    for (const context_message& m : r.sends) now.send(m, buffer(m.rows.buffer).what, bytes_of(m.rows));
    now.launch(number);
    for (const int b : r.fills) fill(b);
    for (const context_call& c : r.calls) {
      const std::int64_t begin = messages::observes ? now_ns() : 0;
      if (program_->pass == context_pass::forward)
        call(c, x);
      else
        call_backward(c, x);
      now.attended(begin);
    }
    now.after(number);
    if (!r.calls.empty()) add_results(r.calls.back(), r.late_of_queries, r.late_of_keys);
    for (const context_transfer& f : r.folds) fold(f);
  }

  // ---- where things lie
  const context_buffer& buffer(int b) const { return program_->buffers[static_cast<std::size_t>(b)]; }
  std::int64_t row_bytes(context_kind what) const { return shape_.row_bytes(what, program_->pass, program_->parts); }
  bool is_own(int b) const { return buffer(b).slot < 0; }
  std::byte* address(const context_range& r) const {
    const context_buffer& b = buffer(r.buffer);
    return room_ + slot_at_[static_cast<std::size_t>(b.slot)] + r.row * row_bytes(b.what);
  }
  row_view<std::byte, space> bytes_of(const context_range& r) const {
    return row_at<space>(address(r), r.rows * row_bytes(buffer(r.buffer).what));
  }
  template <class U>
  U* as(const context_range& r, std::int64_t elements = 0) const {
    return reinterpret_cast<U*>(address(r)) + elements;
  }
  // Some heads of some rows of a tensor.
  template <class U>
  static heads<U> some(heads<U> t, std::int64_t row, std::int64_t rows, std::int64_t head, std::int64_t count) {
    return {rows == 0 ? t.data : t.row(row, head), rows, count, t.head_dim, t.stride};
  }
  std::int64_t q_heads() const { return shape_.queries_in(program_->parts); }
  std::int64_t k_heads() const { return shape_.keys_in(program_->parts); }
  heads<const T> queries_at(const context_range& r, const tensors& x) const {
    const int part = buffer(r.buffer).part;
    if (is_own(r.buffer)) return some(x.q, r.row, r.rows, part * q_heads(), q_heads());
    return {as<const T>(r), r.rows, q_heads(), shape_.head_dim, stride_of(context_kind::queries)};
  }
  heads<const T> gradients_at(const context_range& r, const tensors& x) const {
    const int part = buffer(r.buffer).part;
    if (is_own(r.buffer)) return some(x.dout, r.row, r.rows, part * q_heads(), q_heads());
    return {as<const T>(r, q_heads() * shape_.head_dim), r.rows, q_heads(), shape_.value_dim,
            stride_of(context_kind::queries)};
  }
  heads<const T> outputs_at(const context_range& own, const tensors& x) const {
    return some(heads<const T>(x.out), own.row, own.rows, buffer(own.buffer).part * q_heads(), q_heads());
  }
  heads<const T> keys_at(const context_range& r, const tensors& x, bool values) const {
    const int part = buffer(r.buffer).part;
    if (is_own(r.buffer))
      return some(values ? x.v : x.k, r.row, r.rows, shape_.first_key_head(part, program_->parts), k_heads());
    return {as<const T>(r, values ? k_heads() * shape_.head_dim : 0), r.rows, k_heads(),
            values ? shape_.value_dim : shape_.head_dim, stride_of(context_kind::keys)};
  }
  std::int64_t stride_of(context_kind what) const { return row_bytes(what) / static_cast<std::int64_t>(sizeof(T)); }
  // The numbers behind rows of queries that came: which 0 is lse, which 1 the product of output and gradient.
  numbers<sum> numbers_of(const context_range& r, int which) const {
    std::byte* const at = address(r) + shape_.numbers_at(program_->parts);
    return {reinterpret_cast<sum*>(at) + which * q_heads(), r.rows, q_heads(),
            row_bytes(context_kind::queries) / static_cast<std::int64_t>(sizeof(sum)), 1};
  }
  // Of rows of this rank, or of a call's results.
  numbers<sum> numbers_in(const row_view<sum, space>& lse, std::int64_t all, const context_range& r, std::int64_t head,
                          std::int64_t count) const {
    return {first_element(lse) + head * all + r.row, r.rows, count, 1, all};
  }
  numbers<sum> own_numbers(const tensors& x, const context_range& r) const {
    return numbers_in(x.lse, program_->rows, r, buffer(r.buffer).part * q_heads(), q_heads());
  }
  numbers<sum> numbers_of_call(const context_range& r, std::int64_t all) const {
    return {call_lse_ + r.row, r.rows, q_heads(), 1, all};
  }
  result_rows results_at(const context_range& r) const {
    const context_buffer& b = buffer(r.buffer);
    const bool own = is_own(r.buffer), forward = program_->pass == context_pass::forward;
    const std::int64_t d = shape_.head_dim, e = shape_.value_dim;
    if (b.what == context_kind::of_queries) {
      const std::int64_t all = own ? shape_.query_heads : q_heads(), first = own ? b.part * q_heads() : 0;
      const std::int64_t width = forward ? e : d, stride = all * (forward ? e + 1 : d);
      sum* const base = own ? own_queries_ + r.row * stride : as<sum>(r);
      return {{base + first * width, r.rows, q_heads(), width, stride},
              {},
              {base + all * width + first, r.rows, q_heads(), stride, 1}};
    }
    const std::int64_t all = own ? shape_.key_heads : k_heads();
    const std::int64_t first = own ? shape_.first_key_head(b.part, program_->parts) : 0, stride = all * (d + e);
    sum* const base = own ? own_keys_ + r.row * stride : as<sum>(r);
    return {{base + first * d, r.rows, k_heads(), d, stride},
            {base + all * d + first * e, r.rows, k_heads(), e, stride},
            {}};
  }

  // ---- memory
  void take_room() {
    const context_program& p = *program_;
    std::int64_t bytes = 0;
    const auto take = [&](std::int64_t n) {
      const std::int64_t at = bytes;
      bytes += (n + 63) / 64 * 64;
      return at;
    };
    slot_at_.clear();
    for (const context_slot& s : p.slots) slot_at_.push_back(take(s.rows * row_bytes(s.what)));
    const bool forward = p.pass == context_pass::forward;
    const std::int64_t own_width = shape_.query_heads * (forward ? shape_.value_dim + 1 : shape_.head_dim);
    const std::int64_t key_width = forward ? 0 : shape_.key_heads * (shape_.head_dim + shape_.value_dim);
    travelling_ = bytes;
    const std::int64_t queries = take(p.rows * own_width * static_cast<std::int64_t>(sizeof(sum)));
    const std::int64_t keys = take(p.rows * key_width * static_cast<std::int64_t>(sizeof(sum)));
    bytes_ = bytes;
    std::int64_t q = 0, k = 0;
    for (const context_round& r : p.rounds)
      for (const context_call& c : r.calls) {
        q = (std::max)(q, c.queries.rows);
        k = (std::max)(k, c.keys.rows);
      }
    const auto element = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t out = take(q * q_heads() * shape_.value_dim * element);
    const std::int64_t lse = take(q * q_heads() * static_cast<std::int64_t>(sizeof(sum)));
    const std::int64_t dq = take(forward ? 0 : q * q_heads() * shape_.head_dim * element);
    const std::int64_t dk = take(forward ? 0 : k * k_heads() * shape_.head_dim * element);
    const std::int64_t dv = take(forward ? 0 : k * k_heads() * shape_.value_dim * element);
    room_ = keeper_.of(compute::queue_of(backend_), bytes + 64, "messages of context parallelism");
    own_queries_ = reinterpret_cast<sum*>(room_ + queries);
    own_keys_ = reinterpret_cast<sum*>(room_ + keys);
    call_out_ = reinterpret_cast<T*>(room_ + out);
    call_lse_ = reinterpret_cast<sum*>(room_ + lse);
    call_dq_ = reinterpret_cast<T*>(room_ + dq);
    call_dk_ = reinterpret_cast<T*>(room_ + dk);
    call_dv_ = reinterpret_cast<T*>(room_ + dv);
    zero({own_queries_, p.rows, 1, own_width, own_width});
    zero({own_keys_, p.rows, 1, key_width, key_width});
    if (forward)
      for (int i = 0; i < p.parts; ++i)
        nothing_seen({static_cast<int>(context_kind::of_queries) * p.parts + i, 0, p.rows});
    if constexpr (!on_host) copy_slices();
  }
  // The slices of all calls, in their order.
  void copy_slices() {
    std::int64_t count = 0;
    for (const context_round& r : program_->rounds)
      for (const context_call& c : r.calls) count += std::ssize(c.slices);
    auto& queue = compute::queue_of(backend_);
    next_slices_ = slices_.of(queue, count + 1, "slices of context parallelism");
    compute::attention_slice* at = next_slices_;
    for (const context_round& r : program_->rounds)
      for (const context_call& c : r.calls) {
        queue.copy(std::span<const compute::attention_slice>(c.slices), row_at<space>(at, std::ssize(c.slices)));
        at += c.slices.size();
      }
  }
  // On a device those of the next call, which this is.
  row_view<const compute::attention_slice, space> slices_of(const context_call& c) {
    if constexpr (on_host)
      return c.slices;
    else
      return row_at<space>(
          static_cast<const compute::attention_slice*>(std::exchange(next_slices_, next_slices_ + c.slices.size())),
          std::ssize(c.slices));
  }
  void nothing_seen(const context_range& r) {
    const numbers<sum> lse = results_at(r).lse;
    on_rows(lse.rows, lse.heads,
            compute::detail::filled_numbers<sum, space>{-std::numeric_limits<sum>::infinity(), lse});
  }
  void fill(int b) {
    const context_range all{b, 0, buffer(b).rows};
    const std::int64_t width = row_bytes(buffer(b).what) / static_cast<std::int64_t>(sizeof(sum));
    zero({as<sum>(all), all.rows, 1, width, width});
    if (program_->pass == context_pass::forward) nothing_seen(all);
  }

  // ---- kernels
  // Rows that have so many elements.
  template <class Body>
  void on_rows(std::int64_t rows, std::int64_t width, const Body& body) {
    if (rows > 0 && width > 0) compute::run_on_rows(backend_, rows, width, body);
  }
  void zero(const heads<sum>& to) { on_rows(to.rows, to.width(), compute::detail::cleared_rows<sum, space>{to}); }
  template <class U>
  void add(const heads<U>& from, const heads<sum>& to) {
    on_rows(to.rows, to.width(), compute::detail::added_rows<U, sum, space>{from, to});
  }
  void round_to(const heads<sum>& from, const heads<T>& to) {
    on_rows(to.rows, to.width(), compute::detail::copied_rows<sum, T, space>{from, to});
  }

  // ---- messages
  void pack(const context_transfer& c, const tensors& x) {
    const context_range to{c.to, c.to_row, c.from.rows};
    if (!is_own(c.from.buffer)) {
      const row_view<std::byte, space> from = bytes_of(c.from);
      compute::queue_of(backend_).copy(row_view<const std::byte, space>(from), bytes_of(to));
      return;
    }
    const context_kind what = buffer(c.to).what;
    const bool keys = what == context_kind::keys;
    const auto place = [&](std::int64_t first, const heads<const T>& of) {
      return heads<T>{as<T>(to, first), of.rows, of.heads, of.head_dim, stride_of(what)};
    };
    const heads<const T> first = keys ? keys_at(c.from, x, false) : queries_at(c.from, x);
    copy(first, place(0, first));
    if (!keys && program_->pass == context_pass::forward) return;
    const heads<const T> second = keys ? keys_at(c.from, x, true) : gradients_at(c.from, x);
    copy(second, place(first.width(), second));
    if (keys) return;
    copy(own_numbers(x, c.from), numbers_of(to, 0));
    on_rows(second.rows * second.heads, second.head_dim,
            compute::detail::products_of_heads<T, sum, space>{second, outputs_at(c.from, x), numbers_of(to, 1)});
  }

  // ---- attention
  void call(const context_call& c, const tensors& x) {
    const heads<T> out{call_out_, c.queries.rows, q_heads(), shape_.value_dim, q_heads() * shape_.value_dim};
    const auto lse = row_at<space>(call_lse_, c.queries.rows * q_heads());
    compute::run<compute::ops::attention>(backend_, queries_at(c.queries, x), keys_at(c.keys, x, false),
                                          keys_at(c.keys, x, true), slices_of(c), x.scale, out, lse,
                                          compute::key_pages_in<space>{});
    for (const context_transfer& f : c.of_queries) {
      const result_rows to = results_at({f.to, f.to_row, f.from.rows});
      merge_partials(backend_, to.values, to.lse, heads<const T>(some(out, f.from.row, f.from.rows, 0, q_heads())),
                     numbers<const sum>(numbers_of_call(f.from, c.queries.rows)));
    }
  }

  void call_backward(const context_call& c, const tensors& x) {
    const std::int64_t n = c.queries.rows, e = shape_.value_dim;
    const heads<const T> dout = gradients_at(c.queries, x);
    heads<const T> out{call_out_, n, q_heads(), e, q_heads() * e};
    const numbers<sum> lse = numbers_of_call({0, 0, n}, n);
    if (is_own(c.queries.buffer)) {
      out = outputs_at(c.queries, x);
      copy(own_numbers(x, c.queries), lse);
    } else {
      on_rows(n * q_heads(), e,
              compute::detail::outputs_of_products<T, sum, space>{
                  dout, numbers_of(c.queries, 1), {call_out_, n, q_heads(), e, q_heads() * e}});
      copy(numbers_of(c.queries, 0), lse);
    }
    const auto [dq, dk, dv] = results_of(c);
    compute::run<compute::ops::attention_backward>(backend_, dout, queries_at(c.queries, x), keys_at(c.keys, x, false),
                                                   keys_at(c.keys, x, true), out,
                                                   row_at<space>(static_cast<const sum*>(call_lse_), n * q_heads()),
                                                   slices_of(c), x.scale, dq, dk, dv, compute::key_pages_in<space>{});
    add_results(c, c.of_queries, c.of_keys);
  }
  // Of a backward call: gradients of its queries, keys and values.
  std::array<heads<T>, 3> results_of(const context_call& c) const {
    const std::int64_t d = shape_.head_dim, e = shape_.value_dim;
    return {heads<T>{call_dq_, c.queries.rows, q_heads(), d, q_heads() * d},
            heads<T>{call_dk_, c.keys.rows, k_heads(), d, k_heads() * d},
            heads<T>{call_dv_, c.keys.rows, k_heads(), e, k_heads() * e}};
  }
  void add_results(const context_call& c, std::span<const context_transfer> of_queries,
                   std::span<const context_transfer> of_keys) {
    const auto [dq, dk, dv] = results_of(c);
    for (const context_transfer& f : of_queries)
      add(some(dq, f.from.row, f.from.rows, 0, q_heads()), results_at({f.to, f.to_row, f.from.rows}).values);
    for (const context_transfer& f : of_keys) {
      const result_rows to = results_at({f.to, f.to_row, f.from.rows});
      add(some(dk, f.from.row, f.from.rows, 0, k_heads()), to.values);
      add(some(dv, f.from.row, f.from.rows, 0, k_heads()), to.more_values);
    }
  }
  // Of a partial result that came.
  void fold(const context_transfer& f) {
    const result_rows to = results_at({f.to, f.to_row, f.from.rows}), from = results_at(f.from);
    if (program_->pass == context_pass::forward) {
      merge_partials(backend_, to.values, to.lse, heads<const sum>(from.values), numbers<const sum>(from.lse));
    } else {
      add(from.values, to.values);
      if (to.more_values.data != nullptr) add(from.more_values, to.more_values);
    }
  }

  void finish(const tensors& x) {
    const std::int64_t rows = program_->rows, q = shape_.query_heads, k = shape_.key_heads;
    const std::int64_t d = shape_.head_dim, e = shape_.value_dim;
    if (program_->pass == context_pass::forward) {
      round_to({own_queries_, rows, q, e, q * (e + 1)}, x.out);
      copy(numbers<sum>{own_queries_ + q * e, rows, q, q * (e + 1), 1}, numbers_in(x.lse, rows, {0, 0, rows}, 0, q));
    } else {
      round_to({own_queries_, rows, q, d, q * d}, x.dq);
      round_to({own_keys_, rows, k, d, k * (d + e)}, x.dk);
      round_to({own_keys_ + k * d, rows, k, e, k * (d + e)}, x.dv);
    }
  }

  Backend& backend_;
  Communicator& ranks_;
  compute::detail::growing_room<std::byte, space> keeper_{};
  compute::detail::growing_room<compute::attention_slice, space> slices_{};
  messages messages_;  // ends before what it moves
  // Of the call that runs.
  context_shape shape_{};
  const context_program* program_ = nullptr;
  std::byte* room_ = nullptr;
  std::vector<std::int64_t> slot_at_{};
  sum *own_queries_ = nullptr, *own_keys_ = nullptr;
  T *call_out_ = nullptr, *call_dq_ = nullptr, *call_dk_ = nullptr, *call_dv_ = nullptr;
  sum* call_lse_ = nullptr;
  std::int64_t bytes_ = 0, travelling_ = 0;
  compute::attention_slice* next_slices_ = nullptr;
};

}  // namespace heddle::inline v0
