// heddle/schedule/lower/storage.hpp: assigns slots and boundary buffers to actions.
#pragma once

#include <heddle/schedule/lower/passes.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::schedule {

/// Where one action finds its data; -1 where it has none. `saved` is a slot of the stage's saved activations: F fills
/// it, I reads it, B or W reads and frees it. `input` and `output` are boundary buffers of the rank, one tensor each:
/// F reads its input activation from `input` and writes to `output`; B and I read the gradient of their output from
/// `input` and write the gradient of their input to `output`; a receive fills `input`; a send sends `output`. Between
/// stages on one rank the producer's `output` is the consumer's `input`.
struct action_storage {
  int saved = -1;
  int input = -1;
  int output = -1;

  friend constexpr bool operator==(const action_storage& a, const action_storage& b) noexcept {
    return a.saved == b.saved && a.input == b.input && a.output == b.output;
  }
};

/// Storage of all actions of a table (same order as `table_view::actions()`), and how much of it there is.
class storage_view {
 public:
  constexpr storage_view() = default;
  constexpr storage_view(std::span<const action_storage> of, std::span<const int> slots, std::span<const int> buffers,
                         int in_flight) noexcept
      : of_(of), slots_(slots), buffers_(buffers), in_flight_(in_flight) {}

  constexpr std::span<const action_storage> actions() const noexcept { return of_; }
  /// Whether this has the sizes of a table: its actions, stages and ranks.
  constexpr bool fits(table_view t) const noexcept {
    return of_.size() == t.actions().size() && slots_.size() == static_cast<std::size_t>(t.stages()) &&
           buffers_.size() == static_cast<std::size_t>(t.ranks());
  }
  /// Storage of the k-th action of the table.
  constexpr const action_storage& operator[](int k) const noexcept { return of_[static_cast<std::size_t>(k)]; }
  /// Saved-activation slots of a stage: the largest number of its microbatches alive at the same time.
  constexpr int slots(int stage) const noexcept { return slots_[static_cast<std::size_t>(stage)]; }
  /// Boundary buffers of a rank.
  constexpr int buffers(int rank) const noexcept { return buffers_[static_cast<std::size_t>(rank)]; }
  /// Sends of a rank that may be under way: before it goes on from its n-th, its (n - sends_in_flight())-th has ended.
  constexpr int sends_in_flight() const noexcept { return in_flight_; }

 private:
  std::span<const action_storage> of_;
  std::span<const int> slots_;
  std::span<const int> buffers_;
  int in_flight_ = 0;
};

/// Storage of a static schedule, in arrays of exact size.
template <std::size_t Actions, std::size_t Ranks, std::size_t Stages>
struct static_storage {
  std::array<action_storage, Actions> actions{};
  std::array<int, Stages> slots{};
  std::array<int, Ranks> buffers{};
  int in_flight = 0;

  constexpr storage_view view() const noexcept { return {actions, slots, buffers, in_flight}; }
  constexpr operator storage_view() const noexcept { return view(); }
};

/// Storage of a table, made at run time.
struct storage {
  std::vector<action_storage> actions;
  std::vector<int> slots, buffers;
  int in_flight = 0;

  constexpr storage_view view() const noexcept { return {actions, slots, buffers, in_flight}; }
  constexpr operator storage_view() const noexcept { return view(); }
};

namespace detail {

// Numbers handed out and taken back; the one freed last, whose memory is warm, is handed out first. A number is handed
// out for the first time only when all smaller ones are taken: their count is the peak.
struct number_pool {
  int* free = nullptr;  // a stack, large enough
  int free_count = 0;
  int count = 0;
  constexpr int take() noexcept { return free_count > 0 ? free[--free_count] : count++; }
  constexpr void give(int n) noexcept { free[free_count++] = n; }
};

// What computations give back once they have ended; the two of a pair end together.
struct given_back {
  int buffers[2] = {};
  int buffer_count = 0;
  int stages[2] = {};
  int slots[2] = {};
  int slot_count = 0;
  constexpr void buffer(int n) noexcept {
    if (n >= 0) buffers[buffer_count++] = n;
  }
  constexpr void slot(int stage, int n) noexcept {
    stages[slot_count] = stage;
    slots[slot_count++] = n;
  }
  constexpr void release(number_pool& pool, number_pool* saved_pools) noexcept {
    while (buffer_count > 0) pool.give(buffers[--buffer_count]);
    while (slot_count > 0) {
      --slot_count;
      saved_pools[stages[slot_count]].give(slots[slot_count]);
    }
  }
};

// Where the data of one (stage, microbatch) lie while they wait.
struct places {
  int saved = -1;
  int input = -1;           // its input activation, received or left by a stage of the same rank
  int gradient = -1;        // the gradient of its output, likewise
  int output = -1;          // its output, until sent
  int input_gradient = -1;  // the gradient of its input, until sent
};

constexpr void assign_storage(const table_view& t, int in_flight, action_storage* out, int* slots, int* buffers) {
  const int m = t.microbatches();
  const scratch<places> places_memory(t.stages() * m);
  const scratch<number_pool> saved_pools(t.stages());
  const scratch<int> saved_stacks(t.stages() * m);
  places* const places_of = places_memory.data();
  number_pool* const saved_pool = saved_pools.data();
  for (int s = 0; s < t.stages(); ++s) saved_pool[s].free = saved_stacks.data() + s * m;
  int longest = 0;
  for (int r = 0; r < t.ranks(); ++r) longest = (std::max)(longest, t.offset(r + 1) - t.offset(r));
  const scratch<int> buffer_stack(longest);
  const scratch<int> under_way_memory(longest);
  int* const under_way = under_way_memory.data();  // buffers of all sends of a rank so far
  const action* const actions = t.actions().data();

  for (int r = 0; r < t.ranks(); ++r) {
    number_pool pool;
    pool.free = buffer_stack.data();
    int started = 0;
    int completed = 0;
    given_back ended;
    bool pair_begun = false;
    for (int k = t.offset(r); k < t.offset(r + 1); ++k) {
      const action& a = actions[k];
      action_storage& place = out[k];
      places& here = places_of[is_per_stage(a.kind) ? 0 : a.stage * m + a.microbatch];
      switch (a.kind) {
        case action_kind::forward: {
          const int next = t.next(a.stage, a.microbatch);
          place.saved = here.saved = saved_pool[a.stage].take();
          if (t.forward_only()) ended.slot(a.stage, place.saved);  // kept for the forward itself only
          place.input = here.input;
          if (next >= 0) {
            place.output = pool.take();
            (t.rank_of(next) == r ? places_of[next * m + a.microbatch].input : here.output) = place.output;
          }
          ended.buffer(place.input);
          break;
        }
        case action_kind::backward:
        case action_kind::backward_input: {
          const int previous = t.previous(a.stage, a.microbatch);
          place.saved = here.saved;
          place.input = here.gradient;
          if (previous >= 0) {
            place.output = pool.take();
            (t.rank_of(previous) == r ? places_of[previous * m + a.microbatch].gradient : here.input_gradient) =
                place.output;
          }
          ended.buffer(place.input);
          if (a.kind == action_kind::backward) ended.slot(a.stage, place.saved);
          break;
        }
        case action_kind::backward_weight:
          place.saved = here.saved;
          ended.slot(a.stage, place.saved);
          break;
        case action_kind::recv_forward:
          place.input = here.input = pool.take();
          break;
        case action_kind::recv_backward:
          place.input = here.gradient = pool.take();
          break;
        case action_kind::send_forward:
        case action_kind::send_backward:
          place.output = a.kind == action_kind::send_forward ? here.output : here.input_gradient;
          under_way[started++] = place.output;
          if (started - completed > in_flight) pool.give(under_way[completed++]);
          break;
        case action_kind::recompute:
        case action_kind::offload:
        case action_kind::reload:
          place.saved = here.saved;
          break;
        case action_kind::unshard:
        case action_kind::reshard:
        case action_kind::reduce_gradient:
        case action_kind::optimizer_step:
          break;
      }
      pair_begun = a.overlaps_next && !pair_begun;
      if (!pair_begun) ended.release(pool, saved_pool);
    }
    buffers[r] = pool.count;
  }
  for (int s = 0; s < t.stages(); ++s) slots[s] = saved_pool[s].count;
}

}  // namespace detail

/// Assigns storage to the actions of a valid table: as many slots as activations are alive, as many boundary buffers as
/// messages wait. With `sends_in_flight` = k an executor may let k sends of a rank run while it goes on, and the buffer
/// of a send is not reused before; 0 means that a send has completed when the next action starts. The two computations
/// of an overlapped pair share nothing: neither writes where the other reads or writes.
/// Errors: `schedule_error` if that number is negative.
constexpr storage assign_storage(table_view table, int sends_in_flight = 1) {
  if (sends_in_flight < 0)
    throw schedule_error("heddle: the number of sends in flight is negative: " + std::to_string(sends_in_flight));
  storage s;
  s.actions.assign(table.actions().size(), action_storage{});
  s.slots.assign(static_cast<std::size_t>(table.stages()), 0);
  s.buffers.assign(static_cast<std::size_t>(table.ranks()), 0);
  s.in_flight = sends_in_flight;
  detail::assign_storage(table, sends_in_flight, s.actions.data(), s.slots.data(), s.buffers.data());
  return s;
}

/// Storage of the lowered table of a static schedule, with passes or the usual ones, as a constexpr object of exact size.
template <schedule_policy When, int Ranks, int SendsInFlight = 1, lowering_pass... Passes>
  requires(When::is_static && Ranks > 0)
inline constexpr auto storage_of = [] {
  constexpr table_view t = lowered_to_run_of<When, Ranks, Passes...>;
  static_storage<t.actions().size(), static_cast<std::size_t>(Ranks), static_cast<std::size_t>(t.stages())> s{};
  s.in_flight = SendsInFlight;
  detail::assign_storage(t, SendsInFlight, s.actions.data(), s.slots.data(), s.buffers.data());
  return s;
}();

}  // namespace heddle::inline v0::schedule
