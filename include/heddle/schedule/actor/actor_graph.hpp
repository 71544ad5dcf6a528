// heddle/schedule/actor/actor_graph.hpp: graphs of tasks and buffers, as checked data.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/schedule/constexpr_scratch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// An actor is a task that acts once per round (microbatch): as soon as each of its inputs has something to read and each
/// of its outputs has a free slot. A register is what one actor writes and others read: a fixed number of slots, which
/// are the producer's credits. It takes one to write, and gets it back when all readers have read it. So slots bound the
/// rounds in flight, and they alone pace the whole graph. A queue (a thread, a stream) runs the actors bound to it one
/// at a time.
/// Source: Yuan et al. 2021, arXiv:2110.15032, section 5 (OneFlow's actors and registers).
namespace heddle::inline v0::schedule {

/// An actor of a graph. Offsets are into the links of its graph: inputs, then outputs.
struct actor_entry {
  std::string_view name;
  int queue = 0;
  int inputs = 0, outputs = 0, end = 0;
};

/// A register of a graph. `initial` slots hold a value before anything ran, which is what a feedback edge begins with.
struct register_entry {
  std::string_view name;
  int slots = 2;
  int initial = 0;
  int producer = -1;
  int readers = 0;  ///< offset into the links
  int end = 0;
};

/// A graph to look at: does not own it. Actors, registers and queues count from 0.
class actor_graph_view {
 public:
  constexpr actor_graph_view(std::span<const actor_entry> actors, std::span<const register_entry> registers,
                             std::span<const std::string_view> queues, std::span<const int> links) noexcept
      : actors_(actors), registers_(registers), queues_(queues), links_(links) {}

  constexpr int actors() const noexcept { return static_cast<int>(actors_.size()); }
  constexpr int registers() const noexcept { return static_cast<int>(registers_.size()); }
  constexpr int queues() const noexcept { return static_cast<int>(queues_.size()); }
  constexpr const actor_entry& actor(int a) const noexcept { return actors_[static_cast<std::size_t>(a)]; }
  constexpr const register_entry& reg(int r) const noexcept { return registers_[static_cast<std::size_t>(r)]; }
  constexpr std::string_view queue_name(int q) const noexcept { return queues_[static_cast<std::size_t>(q)]; }
  /// Registers that `a` reads, and that it writes.
  constexpr std::span<const int> inputs(int a) const noexcept { return links(actor(a).inputs, actor(a).outputs); }
  constexpr std::span<const int> outputs(int a) const noexcept { return links(actor(a).outputs, actor(a).end); }
  /// Actors that read `r`.
  constexpr std::span<const int> readers(int r) const noexcept { return links(reg(r).readers, reg(r).end); }
  /// Whether `a` counts its rounds by itself: each of its inputs, if any, holds a value from the start.
  constexpr bool is_source(int a) const noexcept {
    for (const int r : inputs(a))
      if (reg(r).initial == 0) return false;
    return true;
  }

 private:
  constexpr std::span<const int> links(int from, int to) const noexcept {
    return links_.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
  }

  std::span<const actor_entry> actors_;
  std::span<const register_entry> registers_;
  std::span<const std::string_view> queues_;
  std::span<const int> links_;
};

/// What can be wrong with a graph.
enum class actor_problem : std::uint8_t {
  none,
  actor_twice,       ///< two actors of one name
  unknown_register,  ///< an actor reads or writes a register that does not exist
  no_producer,       ///< a register that no actor writes
  two_producers,     ///< a register that two actors write, or one actor twice
  read_twice,        ///< an actor reads a register twice
  no_slots,          ///< a register with less than one slot
  too_many_tokens,   ///< a register with fewer slots than initial values, or less than none
  circular_wait      ///< actors wait for each other for ever
};

/// The first problem of a graph; `ok()` if there is none. In a circular wait `actor` waits for a value in, or a free slot
/// of, `reg`. `link` is the place of an unknown register among the actor's links. The names are the graph's own text.
struct actor_report {
  actor_problem what = actor_problem::none;
  int actor = -1;
  int reg = -1;
  int link = -1;
  std::string_view actor_name{};
  std::string_view register_name{};  ///< empty if it does not exist

  constexpr bool ok() const noexcept { return what == actor_problem::none; }
};

namespace detail {

// Reads as a marked graph: writer -> reader carries the initial values, reader -> writer the free slots. It runs for ever
// if and only if no circle of these edges is empty. (Commoner, Holt, Even, Pnueli 1971, "Marked directed graphs".)
struct empty_edge {
  int from = 0;
  int to = 0;
  int reg = 0;
};

constexpr actor_report circular_wait(const actor_graph_view& g) {
  std::vector<empty_edge> edges;
  for (int r = 0; r < g.registers(); ++r)
    for (const int reader : g.readers(r)) {
      if (g.reg(r).initial == 0) edges.push_back({g.reg(r).producer, reader, r});
      if (g.reg(r).initial == g.reg(r).slots) edges.push_back({reader, g.reg(r).producer, r});
    }
  // Kahn: an actor starts when no edge to it comes from one that has not. Edges by the actor they leave, to look at each once.
  const int count = static_cast<int>(edges.size());
  const scratch<int> missing(g.actors());
  const scratch<int> first(g.actors() + 1);
  const scratch<int> leaving(count);
  for (const empty_edge& e : edges) {
    ++missing[e.to];
    ++first[e.from];
  }
  for (int a = 0; a < g.actors(); ++a) first[a + 1] += first[a];
  for (int e = 0; e < count; ++e) leaving[--first[edges[static_cast<std::size_t>(e)].from]] = e;
  const scratch<int> line(g.actors());
  int in_line = 0;
  for (int a = 0; a < g.actors(); ++a)
    if (missing[a] == 0) line[in_line++] = a;
  for (int next = 0; next < in_line; ++next) {
    for (int i = first[line[next]]; i < first[line[next] + 1]; ++i)
      if (const int to = edges[static_cast<std::size_t>(leaving[i])].to; --missing[to] == 0) line[in_line++] = to;
  }
  if (in_line == g.actors()) return {};
  const auto waits_for = [&](int a) {
    for (std::size_t e = 0; e < edges.size(); ++e)
      if (edges[e].to == a && missing[edges[e].from] > 0) return static_cast<int>(e);
    return -1;
  };
  for (int a = 0; a < g.actors(); ++a) {
    if (missing[a] == 0) continue;
    int on_circle = a;  // walking backwards long enough ends on the circle itself
    for (int i = 0; i < g.actors(); ++i) on_circle = edges[static_cast<std::size_t>(waits_for(on_circle))].from;
    return {actor_problem::circular_wait, on_circle, edges[static_cast<std::size_t>(waits_for(on_circle))].reg, -1};
  }
  return {};
}

// Fills in producers and readers. The links hold inputs and outputs of all actors; the readers go behind them, from
// `first_reader` on. Unknown registers are left to the check.
constexpr void link_actors(std::span<const actor_entry> actors, std::span<register_entry> registers,
                           std::span<int> links, int first_reader) {
  const int count = static_cast<int>(registers.size());
  const auto reg = [&](int l) -> register_entry* {
    const int r = links[static_cast<std::size_t>(l)];
    return r >= 0 && r < count ? &registers[static_cast<std::size_t>(r)] : nullptr;
  };
  for (register_entry& r : registers) r.end = 0;  // the number of readers, at first
  for (std::size_t a = 0; a < actors.size(); ++a) {
    for (int l = actors[a].inputs; l < actors[a].outputs; ++l)
      if (register_entry* r = reg(l)) ++r->end;
    for (int l = actors[a].outputs; l < actors[a].end; ++l)
      if (register_entry* r = reg(l); r != nullptr && r->producer < 0) r->producer = static_cast<int>(a);
  }
  int next = first_reader;
  for (register_entry& r : registers) {
    const int readers = r.end;
    r.readers = r.end = next;
    next += readers;
  }
  for (std::size_t a = 0; a < actors.size(); ++a)
    for (int l = actors[a].inputs; l < actors[a].outputs; ++l)
      if (register_entry* r = reg(l)) links[static_cast<std::size_t>(r->end++)] = static_cast<int>(a);
}

constexpr actor_report first_actor_problem(const actor_graph_view& g) {
  const scratch<std::uint32_t> sums(g.actors());  // of names, to compare few of them letter by letter
  for (int a = 0; a < g.actors(); ++a) {
    for (const char c : g.actor(a).name) sums[a] = sums[a] * 31u + static_cast<unsigned char>(c);
    for (int b = 0; b < a; ++b)
      if (sums[a] == sums[b] && g.actor(a).name == g.actor(b).name) return {actor_problem::actor_twice, a, -1, -1};
    for (int l = 0; l < g.actor(a).end - g.actor(a).inputs; ++l) {
      const int inputs = static_cast<int>(g.inputs(a).size());
      const int r =
          l < inputs ? g.inputs(a)[static_cast<std::size_t>(l)] : g.outputs(a)[static_cast<std::size_t>(l - inputs)];
      if (r < 0 || r >= g.registers()) return {actor_problem::unknown_register, a, r, g.actor(a).inputs + l};
    }
  }
  const scratch<int> written(g.registers());
  const scratch<int> second(g.registers());  // who wrote it as the second
  for (int a = 0; a < g.actors(); ++a)
    for (const int out : g.outputs(a))
      if (++written[out] == 2) second[out] = a;
  for (int r = 0; r < g.registers(); ++r) {
    const register_entry& e = g.reg(r);
    if (e.producer < 0) return {actor_problem::no_producer, e.readers < e.end ? g.readers(r)[0] : -1, r, -1};
    if (written[r] > 1) return {actor_problem::two_producers, second[r], r, -1};
    for (int i = e.readers + 1; i < e.end; ++i)
      if (g.readers(r)[static_cast<std::size_t>(i - e.readers)] ==
          g.readers(r)[static_cast<std::size_t>(i - e.readers - 1)])
        return {actor_problem::read_twice, g.readers(r)[static_cast<std::size_t>(i - e.readers)], r, -1};
    if (e.slots < 1) return {actor_problem::no_slots, e.producer, r, -1};
    if (e.initial < 0 || e.initial > e.slots) return {actor_problem::too_many_tokens, e.producer, r, -1};
  }
  return circular_wait(g);
}

}  // namespace detail

/// The first problem of a graph: whether every register has one producer, and every circle of actors a slot to go on with.
[[nodiscard]] constexpr actor_report check_actors(const actor_graph_view& g) {
  actor_report found = detail::first_actor_problem(g);
  if (found.actor >= 0) found.actor_name = g.actor(found.actor).name;
  if (found.reg >= 0 && found.reg < g.registers()) found.register_name = g.reg(found.reg).name;
  return found;
}

/// One line that names actor and register, and what to change.
HEDDLE_INLINE std::string to_string(const actor_report& found);

/// Refuses a graph of actors that is malformed or can deadlock: see `check_actors`.
/// Errors: `schedule_error` that says what is wrong with the graph.
inline void require_actors(const actor_graph_view& g) {
  if (const actor_report found = check_actors(g); !found.ok()) throw schedule_error(to_string(found));
}

/// A graph that is made at run time.
class task_graph {
 public:
  task_graph() = default;
  task_graph(task_graph&&) = default;
  task_graph& operator=(task_graph&&) = default;

  /// Adds a register, before its actors; returns its number.
  int add_register(std::string name, int slots = 2, int initial = 0) {
    registers_.push_back({keep(std::move(name)), slots, initial, -1, 0, 0});
    linked_ = false;
    return static_cast<int>(registers_.size()) - 1;
  }
  /// Adds an actor on the queue of this name, which reads and writes the registers of these numbers; returns its number.
  int add_actor(std::string name, std::string_view queue, const std::vector<int>& inputs,
                const std::vector<int>& outputs);
  /// The graph so far; valid until something is added.
  actor_graph_view view();

 private:
  std::string_view keep(std::string name) { return names_.emplace_back(std::move(name)); }

  std::deque<std::string> names_;  // does not move its elements
  std::vector<actor_entry> actors_;
  std::vector<register_entry> registers_;
  std::vector<std::string_view> queues_;
  std::vector<int> ports_;
  std::vector<int> links_;
  bool linked_ = false;
};

/// The registers an actor reads. A register is any type; `Register::value_type` is what its slots hold.
template <class... Registers>
struct in {};
/// A register an actor writes: slots, and how many of them hold a value from the start.
template <class Register, int Slots = 2, int Initial = 0>
struct out {
  using tag = Register;
  static constexpr int slots = Slots;
  static constexpr int initial = Initial;
};
/// The queue that runs an actor; any type. Without it an actor has a queue of its own.
template <class Queue>
struct on {};

namespace detail {
template <class Part>
struct actor_part {
  static constexpr bool known = false;
  using reads = type_list<>;
  using writes = type_list<>;
  using queue = type_list<>;
};
template <class... Registers>
struct actor_part<in<Registers...>> {
  static constexpr bool known = true;
  using reads = type_list<Registers...>;
  using writes = type_list<>;
  using queue = type_list<>;
};
template <class Register, int Slots, int Initial>
struct actor_part<out<Register, Slots, Initial>> {
  static constexpr bool known = true;
  using reads = type_list<>;
  using writes = type_list<out<Register, Slots, Initial>>;
  using queue = type_list<>;
};
template <class Queue>
struct actor_part<on<Queue>> {
  static constexpr bool known = true;
  using reads = type_list<>;
  using writes = type_list<>;
  using queue = type_list<Queue>;
};

template <class Tag, class Queues>
struct queue_or {
  using type = Tag;
};
template <class Tag, class Queue, class... More>
struct queue_or<Tag, type_list<Queue, More...>> {
  using type = Queue;
};

template <class List>
struct written_registers;
template <class... Outs>
struct written_registers<type_list<Outs...>> {
  using type = type_list<typename Outs::tag...>;
};
}  // namespace detail

/// A task. `Tag` is its name, any type; `Parts` are `in`, `out` and `on`, in any order.
template <class Tag, class... Parts>
struct actor {
  static_assert(
      (detail::actor_part<Parts>::known && ...),
      "heddle: actor<name, parts...>: a part is none of in<registers...>, out<register, slots, initial>, on<queue>");
  using tag = Tag;
  using reads = joined_lists<type_list<>, typename detail::actor_part<Parts>::reads...>;
  using outs = joined_lists<type_list<>, typename detail::actor_part<Parts>::writes...>;
  using writes = typename detail::written_registers<outs>::type;
  using queue =
      typename detail::queue_or<Tag, joined_lists<type_list<>, typename detail::actor_part<Parts>::queue...>>::type;
};

namespace detail {

template <class T, class List>
inline constexpr int place_in = -1;
template <class T, class... Ts>
inline constexpr int place_in<T, type_list<Ts...>> = static_cast<int>(index_of<T, Ts...>);

template <class... Actors>
struct actor_tables {
  using outs = joined_lists<type_list<>, typename Actors::outs...>;
  using registers =
      typename written_registers<outs>::type;  // a register written twice is there twice: found by the check
  using queues = type_list<typename Actors::queue...>;
  using ports = joined_lists<type_list<>, joined_lists<typename Actors::reads, typename Actors::writes>...>;
  static constexpr std::size_t port_count = ports::size;

  std::array<actor_entry, sizeof...(Actors)> actors{};
  std::array<register_entry, outs::size> registers_{};
  std::array<std::string_view, sizeof...(Actors)> queue_names{};
  std::size_t queue_count = 0;
  std::array<int, 2 * port_count> links{};

  constexpr actor_tables() {
    const std::array<int, sizeof...(Actors)> first_of_queue{place_in<typename Actors::queue, queues>...};
    const std::array<std::string_view, sizeof...(Actors)> names{short_type_name<typename Actors::queue>()...};
    std::array<int, sizeof...(Actors)> number{};
    for (std::size_t a = 0; a < sizeof...(Actors); ++a) {
      const auto first = static_cast<std::size_t>(first_of_queue[a]);
      if (first == a) {
        number[a] = static_cast<int>(queue_count);
        queue_names[queue_count++] = names[a];
      } else {
        number[a] = number[first];
      }
    }
    std::size_t at = 0, next = 0;
    (add(at++, number, short_type_name<typename Actors::tag>(), typename Actors::reads{}, typename Actors::writes{},
         next),
     ...);
    add_registers(outs{});
    link_actors(actors, registers_, links, static_cast<int>(next));
  }

  constexpr actor_graph_view view() const noexcept {
    return {actors, registers_, std::span(queue_names).first(queue_count), links};
  }

 private:
  template <class... Reads, class... Writes>
  constexpr void add(std::size_t at, const std::array<int, sizeof...(Actors)>& queue, std::string_view name,
                     type_list<Reads...>, type_list<Writes...>, std::size_t& next) {
    actor_entry& a = actors[at];
    a.name = name;
    a.queue = queue[at];
    a.inputs = static_cast<int>(next);
    ((links[next++] = place_in<Reads, registers>), ...);
    a.outputs = static_cast<int>(next);
    ((links[next++] = place_in<Writes, registers>), ...);
    a.end = static_cast<int>(next);
  }
  template <class... Outs>
  constexpr void add_registers(type_list<Outs...>) {
    std::size_t r = 0;
    ((registers_[r++] = register_entry{short_type_name<typename Outs::tag>(), Outs::slots, Outs::initial, -1, 0, 0}),
     ...);
  }
};

// Carries actor and register into the compiler's message.
template <class Actor>
struct at_actor;
template <class Register>
struct about_register;
template <bool Ok, class... Names>
struct actor_graph_is_sound {
  static constexpr bool value = Ok;
};

template <int At, class List>
struct name_at {
  using type = void;
};
template <int At, class... Ts>
  requires(At >= 0 && At < static_cast<int>(sizeof...(Ts)))
struct name_at<At, type_list<Ts...>> {
  using type = type_at<static_cast<std::size_t>(At), Ts...>;
};

}  // namespace detail

/// A graph as a type: `actor_graph<actor<load, out<batch, 2>>, actor<mm, in<batch>, out<result>>, ...>`. Checked by the
/// compiler; `view()` is constant data. Not for anything that reaches a kernel.
template <class... Actors>
class actor_graph {
  using tables_type = detail::actor_tables<Actors...>;
  static constexpr tables_type tables{};
  static constexpr bool names_differ = all_distinct<typename Actors::tag...>;
  static constexpr actor_report found = [] {
    actor_report r = check_actors(tables.view());
    // Types may share their short name.
    if (r.what == actor_problem::actor_twice && names_differ) {
      tables_type other = tables;
      std::array<char, sizeof...(Actors) + 1> text{};
      for (std::size_t a = 0; a < sizeof...(Actors); ++a) other.actors[a].name = std::string_view(text.data(), a);
      for (char& c : text) c = 'x';
      r = check_actors(other.view());
      r.actor_name = {};  // of `other`
    }
    return r;
  }();
  template <actor_problem What>
  using sound = detail::actor_graph_is_sound<
      found.what != What,
      detail::at_actor<typename detail::name_at<found.actor, type_list<typename Actors::tag...>>::type>,
      detail::about_register<typename detail::name_at<
          found.link >= 0 ? found.link : found.reg,
          std::conditional_t<(found.link >= 0), typename tables_type::ports, typename tables_type::registers>>::type>>;

  static_assert(sound<actor_problem::actor_twice>::value,
                "heddle: actor_graph: two actors have one name; give each its own tag");
  static_assert(sound<actor_problem::unknown_register>::value,
                "heddle: actor_graph: an actor reads a register that no actor produces; add out<register> to the actor "
                "that makes it");
  static_assert(sound<actor_problem::two_producers>::value,
                "heddle: actor_graph: a register is produced twice; each register has one producer");
  static_assert(sound<actor_problem::read_twice>::value,
                "heddle: actor_graph: an actor reads one register twice; name it once");
  static_assert(sound<actor_problem::no_slots>::value,
                "heddle: actor_graph: a register needs at least one slot: out<register, slots>");
  static_assert(sound<actor_problem::too_many_tokens>::value,
                "heddle: actor_graph: a register has more initial values than slots, or less than none: out<register, "
                "slots, initial>");
  static_assert(
      sound<actor_problem::circular_wait>::value,
      "heddle: actor_graph: actors wait for each other in a circle; give its feedback register an initial value, "
      "or a slot more: out<register, slots, initial>");

 public:
  using actors = type_list<Actors...>;
  /// The tags of the registers, in the order of their numbers.
  using registers = typename tables_type::registers;
  /// `out<register, slots, initial>` of each register.
  using outs = typename tables_type::outs;

  /// The graph as data.
  static constexpr actor_graph_view view() noexcept { return tables.view(); }
  constexpr operator actor_graph_view() const noexcept { return view(); }
};

/// Slots of the buffers that a pipeline of `stages` needs so that registers never pace it.
/// Source: Oneflow-Inc/oneflow, core/job_rewriter/pipeline_buffer_pass.cpp.
namespace formula {

/// Slots at the producer's and at the reader's end of an edge between stages.
struct edge_slots {
  int source = 1;
  int destination = 1;
};

/// What a stage's forward keeps for its backward: 2 * stages; the last stage, whose backward follows at once, needs none
/// beyond the register itself.
constexpr int saved_slots(int stages, int stage) noexcept {
  return stage == stages - 1 ? 1 : 2 * stages;
}
/// An activation from stage `from` to a later stage `to`: the reader buffers as many as there are stages between.
constexpr edge_slots forward_slots(int from, int to) noexcept {
  return {1, to - from};
}
/// A gradient between neighbouring stages.
constexpr edge_slots backward_slots() noexcept {
  return {1, 1};
}

}  // namespace formula

}  // namespace heddle::inline v0::schedule

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/schedule/impl/actor/actor_graph.hpp>
#endif
