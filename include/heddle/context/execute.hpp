// heddle/context/execute.hpp: runs the program of a rank: messages, attention, and folds of what comes home.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/compute/context_kernels.hpp>
#include <heddle/compute/facets.hpp>
#include <heddle/compute/growing_room.hpp>
#include <heddle/context/program.hpp>
#include <heddle/context/shape.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// What carries the messages of a context table: started sends and receives of bytes, as those of a `communicator`.
template <class C>
concept message_carrier = requires(C& c, std::span<const std::byte> in, std::span<std::byte> out) {
  requires comm_request<typename C::request>;
  { c.rank() } -> std::same_as<int>;
  { c.isend(in, 0, 0) } -> std::same_as<typename C::request>;
  { c.irecv(out, 0, 0) } -> std::same_as<typename C::request>;
};

namespace detail {
template <bool Ok, class Backend>
inline constexpr bool context_runs_on_host = Ok;
// A communicator whose messages somebody watches: it takes events.
template <class C>
inline constexpr bool takes_events = requires(C& c, const event& e) { c.record(e); };
struct no_event {};
}  // namespace detail

/// Attention of the documents whose rows lie on the ranks of a communicator, as tables say: each rank gives its own
/// rows and gets their outputs, or gradients. Results are the same bits in every run, whatever the order in which
/// messages arrive: they are folded in the order of the table, in `sum_of_type<T>`. It keeps memory from call to call,
/// and serves one call at a time.
///
/// Operands of messages are counted as bytes: `context_shape::row_bytes` times the rows. Messages take the tags
/// [first_tag, first_tag + 4). A communicator that takes events (`ranks.record(event)`) is told of each message, from
/// when it is started until it is known to be over, and of each call of the kernel.
///
/// Errors (compile time): the backend lacks sliced attention or `merge_partials`, or computes in a device's memory.
template <class T, class Backend, message_carrier Communicator>
class context_executor {
 public:
  using sum = sum_of_type<T>;

  context_executor(Backend& backend, Communicator& ranks, int first_tag = 0)
      : backend_(backend), ranks_(ranks), first_tag_(first_tag) {
    static_assert(
        detail::context_runs_on_host<std::is_same_v<space_of<Backend>, host_memory>, Backend>,
        "heddle: context_executor: this backend computes in a device's memory; context tables run in the host's");
  }

  /// Forward: out and the log-sum-exp of the rank's rows.
  /// Shapes: q, out [rows, query heads, head_dim], k, v [rows, key heads, head_dim], lse [query heads, rows].
  /// Errors: `layout_error` if sizes are not those of the program; `config_error` if heads cannot be cut into its
  /// parts.
  void attend(const context_program& program, compute::head_rows<const T> q, compute::head_rows<const T> k,
              compute::head_rows<const T> v, sum scale, compute::head_rows<T> out, std::span<sum> lse) {
    tensors x{q, k, v, {}, out, lse, {}, {}, {}, scale};
    run(program, context_pass::forward, x);
  }

  /// Backward: gradients of the rank's rows, from those of the output, and the output and log-sum-exp of the forward
  /// pass.
  void attend_backward(const context_program& program, compute::head_rows<const T> dout, compute::head_rows<const T> q,
                       compute::head_rows<const T> k, compute::head_rows<const T> v, compute::head_rows<const T> out,
                       std::span<const sum> lse, sum scale, compute::head_rows<T> dq, compute::head_rows<T> dk,
                       compute::head_rows<T> dv) {
    // Neither is written backward.
    const compute::head_rows<T> output{const_cast<T*>(out.data), out.rows, out.heads, out.head_dim, out.stride};
    tensors x{q, k, v, dout, output, {const_cast<sum*>(lse.data()), lse.size()}, dq, dk, dv, scale};
    run(program, context_pass::backward, x);
  }

  /// How events name the ranks of the communicator: by these world ranks.
  void name_ranks(std::vector<int> world_ranks) { names_ = std::move(world_ranks); }

  /// Bytes that it has kept for messages, partial results and the rank's own accumulators.
  std::int64_t room_bytes() const noexcept { return bytes_; }

 private:
  template <class U>
  using heads = compute::head_rows<U>;
  using request = typename Communicator::request;

  struct tensors {
    heads<const T> q, k, v, dout;
    heads<T> out;
    std::span<sum> lse;
    heads<T> dq, dk, dv;
    sum scale;
  };
  static constexpr bool observes = detail::takes_events<Communicator>;
  struct pending {
    request what;
    int needed_in;
    [[no_unique_address]] std::conditional_t<observes, event, detail::no_event> told{};
  };
  // A partial result: what is added up, and forward the logarithms.
  struct result_rows {
    heads<sum> values, more_values;  // the second: gradients of values
    compute::head_numbers<sum> lse;
  };

  void check(const context_program& p, context_pass pass, const tensors& x) {
    const auto same = [](const char* what, std::int64_t expected, std::int64_t got) {
      if (expected != got)
        throw layout_error(
            detail::text_of({"heddle: context_executor: ", what, " should be ", expected, ", got ", got}));
    };
    if (p.pass != pass) {
      throw layout_error(detail::text_of({"heddle: context_executor: the program is for the ", to_string(p.pass),
                                          " pass, not the ", to_string(pass), " one"}));
    }
    same("the rank", p.rank, ranks_.rank());
    for (const heads<const T>& t : {x.q, x.k, x.v, heads<const T>(x.out)}) same("rows of a tensor", p.rows, t.rows);
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
      for (const heads<T>& t : {x.dq, x.dk, x.dv}) same("rows of a gradient", p.rows, t.rows);
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
      std::vector<pending> receives, sends;
      for (std::size_t k = 0; k < p.rounds.size(); ++k) round(p.rounds[k], static_cast<int>(k), x, receives, sends);
      wait_for(sends, (std::numeric_limits<int>::max)());
      wait_for(receives, (std::numeric_limits<int>::max)());
      finish(x);
    }
  }

  void round(const context_round& r, int number, const tensors& x, std::vector<pending>& receives,
             std::vector<pending>& sends) {
    wait_for(sends, number);
    for (const context_message& m : r.receives)
      receives.push_back({ranks_.irecv(bytes_of(m.rows), m.peer, tag_of(m.rows.buffer)), m.needed_in, told_of(m, false)});
    wait_for(receives, number, r.receives.size());  // of earlier rounds
    for (const context_transfer& c : r.packs) pack(c, x);
    for (const context_message& m : r.sends) {
      const std::span<const std::byte> bytes = bytes_of(m.rows);
      sends.push_back({ranks_.isend(bytes, m.peer, tag_of(m.rows.buffer)), m.needed_in, told_of(m, true)});
    }
    for (const int b : r.fills) fill(b);
    for (const context_call& c : r.calls) {
      [[maybe_unused]] const std::int64_t begin = observes ? now_ns() : 0;
      if (program_->pass == context_pass::forward)
        call(c, x);
      else
        call_backward(c, x);
      if constexpr (observes) {
        event e;
        e.name = "attention of context";
        e.begin_ns = begin;
        record(e);
      }
      for (pending& s : sends) test(s);  // some transports move nothing otherwise
      for (pending& s : receives) test(s);
    }
    wait_for(sends, number);
    wait_for(receives, number);
    if (!r.calls.empty()) add_results(r.calls.back(), r.late_of_queries, r.late_of_keys);
    for (const context_transfer& f : r.folds) fold(f);
  }
  void test(pending& p) {
    const bool over = p.what.test();
    if constexpr (observes)
      if (over) record(p.told);
  }
  // Waits for what is needed, but for the last `but` of the list.
  void wait_for(std::vector<pending>& list, int round, std::size_t but = 0) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i + but < list.size() && list[i].needed_in <= round) {
        list[i].what.wait();
        if constexpr (observes) record(list[i].told);
        continue;
      }
      if (kept != i) list[kept] = std::move(list[i]);
      ++kept;
    }
    while (list.size() > kept) list.pop_back();
  }

  // ---- what observers are told
  auto told_of([[maybe_unused]] const context_message& m, [[maybe_unused]] bool sends) {
    if constexpr (observes) {
      static constexpr const char* names[2][4] = {{"recv keys", "recv queries", "recv of queries", "recv of keys"},
                                                  {"send keys", "send queries", "send of queries", "send of keys"}};
      const auto kind = static_cast<std::size_t>(buffer(m.rows.buffer).what);
      const auto named = [&](int rank) { return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)]; };
      const int here = named(ranks_.rank()), there = named(m.peer);
      event e;
      e.kind = sends ? activity::send : activity::recv;
      e.name = names[sends ? 1 : 0][kind];
      e.peer = there;
      e.bytes = static_cast<std::int64_t>(bytes_of(m.rows).size());
      e.begin_ns = now_ns();
      // Both ends count the messages of a pair and kind alike. Flows of pipelines are lower.
      const auto way = static_cast<std::uint64_t>(sends ? here : there) << 16 |
                       static_cast<std::uint64_t>(sends ? there : here);
      const std::uint32_t number = counts_[{m.peer, static_cast<int>(kind), sends}]++ & ((1U << 29) - 1);
      e.flow = std::uint64_t{1} << 63 | way << 31 | kind << 29 | number;
      return e;
    } else {
      return detail::no_event{};
    }
  }
  void record(event& e) {
    if (e.end_ns != 0) return;
    e.end_ns = now_ns();
    ranks_.record(e);
  }

  // ---- where things lie
  const context_buffer& buffer(int b) const { return program_->buffers[static_cast<std::size_t>(b)]; }
  int tag_of(int b) const { return first_tag_ + static_cast<int>(buffer(b).what); }
  std::int64_t row_bytes(context_kind what) const { return shape_.row_bytes(what, program_->pass, program_->parts); }
  bool is_own(int b) const { return buffer(b).slot < 0; }
  std::byte* address(const context_range& r) const {
    const context_buffer& b = buffer(r.buffer);
    return room_ + slot_at_[static_cast<std::size_t>(b.slot)] + r.row * row_bytes(b.what);
  }
  std::span<std::byte> bytes_of(const context_range& r) const {
    return {address(r), static_cast<std::size_t>(r.rows * row_bytes(buffer(r.buffer).what))};
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
  heads<const T> keys_at(const context_range& r, const tensors& x, bool values) const {
    const int part = buffer(r.buffer).part;
    if (is_own(r.buffer))
      return some(values ? x.v : x.k, r.row, r.rows, shape_.first_key_head(part, program_->parts), k_heads());
    return {as<const T>(r, values ? k_heads() * shape_.head_dim : 0), r.rows, k_heads(),
            values ? shape_.value_dim : shape_.head_dim, stride_of(context_kind::keys)};
  }
  std::int64_t stride_of(context_kind what) const { return row_bytes(what) / static_cast<std::int64_t>(sizeof(T)); }
  // The numbers behind a row of queries that came: which 0 is lse, which 1 the product of output and gradient.
  sum number_of(const context_range& r, std::int64_t row, int which, std::int64_t head) const {
    const std::byte* at = address({r.buffer, r.row + row, 1}) +
                          q_heads() * (shape_.head_dim + shape_.value_dim) * static_cast<std::int64_t>(sizeof(T)) +
                          (which * q_heads() + head) * static_cast<std::int64_t>(sizeof(sum));
    sum value;
    std::memcpy(&value, at, sizeof(sum));
    return value;
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
    room_ = keeper_.of(queue_, bytes + 64, "messages of context parallelism");
    own_queries_ = reinterpret_cast<sum*>(room_ + queries);
    own_keys_ = reinterpret_cast<sum*>(room_ + keys);
    call_out_ = reinterpret_cast<T*>(room_ + out);
    call_lse_ = reinterpret_cast<sum*>(room_ + lse);
    call_dq_ = reinterpret_cast<T*>(room_ + dq);
    call_dk_ = reinterpret_cast<T*>(room_ + dk);
    call_dv_ = reinterpret_cast<T*>(room_ + dv);
    zero(own_queries_, p.rows, own_width);
    zero(own_keys_, p.rows, key_width);
    if (forward)
      for (int i = 0; i < p.parts; ++i)
        nothing_seen({static_cast<int>(context_kind::of_queries) * p.parts + i, 0, p.rows});
  }
  void nothing_seen(const context_range& r) {
    const compute::head_numbers<sum> lse = results_at(r).lse;
    for (std::int64_t row = 0; row < lse.rows; ++row)
      for (std::int64_t h = 0; h < lse.heads; ++h) *lse.at(row, h) = -std::numeric_limits<sum>::infinity();
  }
  void fill(int b) {
    const context_range all{b, 0, buffer(b).rows};
    zero(as<sum>(all), all.rows, row_bytes(buffer(b).what) / static_cast<std::int64_t>(sizeof(sum)));
    if (program_->pass == context_pass::forward) nothing_seen(all);
  }

  // f(row) for every row of so many numbers, by the threads of the backend where it has some.
  template <class F>
  void each_row(std::int64_t rows, std::int64_t numbers, F f) {
    constexpr std::int64_t grain = 1 << 14;  // numbers that are worth a thread
    const auto some = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) f(r);
    };
    if constexpr (requires { backend_.workers().split(rows, rows, 1, some); })
      backend_.workers().split(rows, grain / (std::max)(numbers, std::int64_t{1}) + 1, 1, some);
    else
      some(0, rows);
  }
  void zero(sum* first, std::int64_t rows, std::int64_t width) {
    each_row(rows, width, [&](std::int64_t r) { std::fill_n(first + r * width, width, sum(0)); });
  }

  // ---- messages
  void pack(const context_transfer& c, const tensors& x) {
    const context_range to{c.to, c.to_row, c.from.rows};
    if (!is_own(c.from.buffer)) {
      std::memcpy(address(to), address(c.from), bytes_of(to).size());
      return;
    }
    const context_kind what = buffer(c.to).what;
    const auto copy = [](std::byte*& at, const heads<const T>& t, std::int64_t row) {
      const auto n = static_cast<std::size_t>(t.width()) * sizeof(T);
      std::memcpy(at, t.row(row, 0), n);
      at += n;
    };
    const bool keys = what == context_kind::keys, forward = program_->pass == context_pass::forward;
    const heads<const T> first = keys ? keys_at(c.from, x, false) : queries_at(c.from, x);
    const heads<const T> second = keys      ? keys_at(c.from, x, true)
                                  : forward ? heads<const T>{}
                                            : gradients_at(c.from, x);
    each_row(c.from.rows, first.width() + second.width(), [&](std::int64_t row) {
      std::byte* at = address({c.to, c.to_row + row, 1});
      copy(at, first, row);
      if (second.rows > 0) copy(at, second, row);
      if (keys || forward) return;
      const std::int64_t head = buffer(c.from.buffer).part * q_heads(), own = c.from.row + row;
      for (std::int64_t h = 0; h < q_heads(); ++h) {
        const sum lse = x.lse[static_cast<std::size_t>((head + h) * program_->rows + own)];
        const sum product = dot(second.row(row, h), x.out.row(own, head + h));
        std::memcpy(at + h * static_cast<std::int64_t>(sizeof(sum)), &lse, sizeof(sum));
        std::memcpy(at + (q_heads() + h) * static_cast<std::int64_t>(sizeof(sum)), &product, sizeof(sum));
      }
    });
  }
  sum dot(const T* a, const T* b) const {
    sum product = 0;
    for (std::int64_t i = 0; i < shape_.value_dim; ++i) product += static_cast<sum>(a[i]) * static_cast<sum>(b[i]);
    return product;
  }

  // ---- attention
  void call(const context_call& c, const tensors& x) {
    const heads<T> out{call_out_, c.queries.rows, q_heads(), shape_.value_dim, q_heads() * shape_.value_dim};
    const std::span<sum> lse(call_lse_, static_cast<std::size_t>(c.queries.rows * q_heads()));
    backend_.attention(queries_at(c.queries, x), keys_at(c.keys, x, false), keys_at(c.keys, x, true),
                       std::span<const compute::attention_slice>(c.slices), x.scale, out, lse, compute::key_pages{});
    for (const context_transfer& f : c.of_queries) {
      const result_rows to = results_at({f.to, f.to_row, f.from.rows});
      const compute::head_numbers<const sum> more{call_lse_ + f.from.row, f.from.rows, q_heads(), 1, c.queries.rows};
      merge_partials(backend_, to.values, to.lse, heads<const T>(some(out, f.from.row, f.from.rows, 0, q_heads())),
                     more);
    }
  }

  void call_backward(const context_call& c, const tensors& x) {
    const std::int64_t n = c.queries.rows, e = shape_.value_dim;
    const heads<const T> dout = gradients_at(c.queries, x);
    heads<const T> out{call_out_, n, q_heads(), e, q_heads() * e};
    if (is_own(c.queries.buffer)) {
      const std::int64_t head = buffer(c.queries.buffer).part * q_heads();
      out = some(heads<const T>(x.out), c.queries.row, n, head, q_heads());
      for (std::int64_t h = 0; h < q_heads(); ++h)
        std::copy_n(x.lse.data() + (head + h) * program_->rows + c.queries.row, n, call_lse_ + h * n);
    } else {
      each_row(n, q_heads() * e, [&](std::int64_t r) {
        for (std::int64_t h = 0; h < q_heads(); ++h) {
          stand_in(dout.row(r, h), number_of(c.queries, r, 1, h), call_out_ + (r * q_heads() + h) * e);
          call_lse_[h * n + r] = number_of(c.queries, r, 0, h);
        }
      });
    }
    const auto [dq, dk, dv] = results_of(c);
    backend_.attention_backward(dout, queries_at(c.queries, x), keys_at(c.keys, x, false), keys_at(c.keys, x, true),
                                out, std::span<const sum>(call_lse_, static_cast<std::size_t>(n * q_heads())),
                                std::span<const compute::attention_slice>(c.slices), x.scale, dq, dk, dv,
                                compute::key_pages{});
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
  // An output whose product with its gradient is the given one, for kernels that take the output itself: it is no
  // longer than the output was, by Cauchy and Schwarz. Gradients are scaled by the largest of them, as squares of small
  // ones are zero.
  void stand_in(const T* gradient, sum product, T* out) const {
    const std::int64_t e = shape_.value_dim;
    sum most = 0, squares = 0;
    for (std::int64_t i = 0; i < e; ++i) most = (std::max)(most, std::abs(static_cast<sum>(gradient[i])));
    if (!(most > 0)) {
      std::fill_n(out, e, T(0));
      return;
    }
    for (std::int64_t i = 0; i < e; ++i) {
      const sum g = static_cast<sum>(gradient[i]) / most;
      squares += g * g;
    }
    const sum factor = product / most / squares;
    for (std::int64_t i = 0; i < e; ++i) out[i] = static_cast<T>(static_cast<sum>(gradient[i]) / most * factor);
  }

  template <class U>
  void add(const heads<U>& from, const heads<sum>& to) {
    each_row(to.rows, to.width(), [&](std::int64_t r) {
      for (std::int64_t h = 0; h < to.heads; ++h) {
        const U* const a = from.row(r, h);
        sum* const b = to.row(r, h);
        for (std::int64_t i = 0; i < to.head_dim; ++i) b[i] += static_cast<sum>(a[i]);
      }
    });
  }
  // Of a partial result that came.
  void fold(const context_transfer& f) {
    const result_rows to = results_at({f.to, f.to_row, f.from.rows}), from = results_at(f.from);
    if (program_->pass == context_pass::forward) {
      merge_partials(backend_, to.values, to.lse, heads<const sum>(from.values),
                     compute::head_numbers<const sum>(from.lse));
    } else {
      add(from.values, to.values);
      if (to.more_values.data != nullptr) add(from.more_values, to.more_values);
    }
  }

  void finish(const tensors& x) {
    const std::int64_t rows = program_->rows, d = shape_.head_dim, e = shape_.value_dim;
    const auto write = [&](const sum* from, std::int64_t stride, const heads<T>& to) {
      each_row(rows, to.width(), [&](std::int64_t r) {
        for (std::int64_t i = 0; i < to.width(); ++i) to.row(r, 0)[i] = static_cast<T>(from[r * stride + i]);
      });
    };
    if (program_->pass == context_pass::forward) {
      const std::int64_t stride = shape_.query_heads * (e + 1);
      write(own_queries_, stride, x.out);
      for (std::int64_t h = 0; h < shape_.query_heads; ++h)
        for (std::int64_t r = 0; r < rows; ++r)
          x.lse[static_cast<std::size_t>(h * rows + r)] = own_queries_[r * stride + shape_.query_heads * e + h];
    } else {
      const std::int64_t stride = shape_.key_heads * (d + e);
      write(own_queries_, shape_.query_heads * d, x.dq);
      write(own_keys_, stride, x.dk);
      write(own_keys_ + shape_.key_heads * d, stride, x.dv);
    }
  }

  Backend& backend_;
  Communicator& ranks_;
  int first_tag_;
  std::vector<int> names_{};
  [[no_unique_address]] std::conditional_t<observes, std::map<std::tuple<int, int, bool>, std::uint32_t>, detail::no_event> counts_{};
  // Of the call that runs.
  context_shape shape_{};
  const context_program* program_ = nullptr;
  std::byte* room_ = nullptr;
  std::vector<std::int64_t> slot_at_{};
  sum *own_queries_ = nullptr, *own_keys_ = nullptr;
  T *call_out_ = nullptr, *call_dq_ = nullptr, *call_dk_ = nullptr, *call_dv_ = nullptr;
  sum* call_lse_ = nullptr;
  std::int64_t bytes_ = 0;
  compute::detail::growing_room<std::byte, host_memory> keeper_{};
  host_memory::queue queue_{};
};

}  // namespace heddle::inline v0
