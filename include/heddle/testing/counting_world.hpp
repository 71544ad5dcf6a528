// heddle/testing/counting_world.hpp: a world of threads that counts bytes and calls.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/mesh/mesh.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace testing {

/// Worlds that count. Slow and simple on purpose: bytes of a plan are checked against elements that were really read from
/// another rank, by algorithms that share nothing with the transports.
namespace counting {

/// A call of a rank: which ranks take part, what it is, how many elements, and the other side of a message or the root of a broadcast.
struct call {
  const void* group = nullptr;  ///< the same for all ranks that take part, another for each plane
  const char* what = "";
  std::int64_t elements = 0;
  int peer = -1;  ///< within the group
  int tag = 0;
  int rank = 0;   ///< of the caller, within the group
  int ranks = 1;  ///< of the group
};

// One lock for a whole world: whoever waits, waits for a change of anything.
/// What the ranks of one world share: a lock, what failed first, and the groups.
struct shared_state {
  std::mutex lock;
  std::condition_variable changed;
  bool ended = false;
  std::exception_ptr first;
  int failed_rank = -1;
  int stuck_rank = -1;
  std::string stuck_text;
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<struct group_state>> groups;
  std::vector<std::int64_t> sent;                   // bytes that others got from each rank of the world
  std::vector<std::vector<call>> calls;             // of each rank, touched by it alone
  std::vector<std::string> waiting;                 // what each rank of the world waits for; "" if it runs
  std::vector<char> returned;                       // ranks whose body is over
  std::vector<std::weak_ptr<void>> work_under_way;  // what a higher room keeps for each rank; touched by the rank alone
  std::chrono::milliseconds timeout{10'000};

  void end(int rank, std::exception_ptr why) {
    const std::lock_guard hold(lock);
    if (!first || rank == stuck_rank) {  // what it waits for says more than that others were ended
      first = std::move(why);
      failed_rank = rank;
    }
    ended = true;
    changed.notify_all();
  }
  // A rank's body is over: who waits for it will not wait for ever.
  void leave(int rank) {
    const std::lock_guard hold(lock);
    returned[static_cast<std::size_t>(rank)] = 1;
    changed.notify_all();
  }
  // Waits as rank `rank` of the world, for ranks `on`: until `ready`, or until they have all left, or too much time passed.
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& hold, int rank, const std::string& what, std::span<const int> on,
            Ready ready) {
    std::string& mine = waiting[static_cast<std::size_t>(rank)];
    mine = what;
    const auto limit = std::chrono::steady_clock::now() + timeout;
    const auto left = [&] {
      return std::any_of(on.begin(), on.end(), [&](int r) { return returned[static_cast<std::size_t>(r)] != 0; });
    };
    const bool in_time = changed.wait_until(hold, limit, [&] { return ended || ready() || left(); });
    if (!ready()) give_up(rank, in_time);
    mine.clear();
  }
  // As rank `rank`, under the lock: what it needs will never come.
  [[noreturn]] void give_up(int rank, bool in_time) {
    if (ended && rank != stuck_rank)
      throw aborted_error("heddle: a counting world was ended by the failure of another rank");
    if (!ended) stuck_text = stuck(in_time);
    stuck_rank = rank;
    ended = true;  // before this rank's memory goes: nobody may get through and read it
    changed.notify_all();
    throw aborted_error(stuck_text);
  }
  // Under the lock.
  std::string stuck(bool in_time) const {
    std::string text = "heddle: counting world: ";
    if (!in_time) {
      text += "nothing came for ";
      text += std::to_string(timeout.count());
      text += " ms; ";
    }
    for (std::size_t r = 0; r < waiting.size(); ++r) {
      if (r > 0) text += ", ";
      text += "rank ";
      text += std::to_string(r);
      text += returned[r] != 0 ? " has returned" : waiting[r].empty() ? " runs" : " waits in ";
      if (returned[r] == 0) text += waiting[r];
    }
    return text;
  }
};

/// What the ranks of one group share while they meet.
struct group_state {
  explicit group_state(std::size_t n) : pointers(n), tickets(n) {}
  std::vector<const void*> pointers;
  std::size_t arrived = 0;
  std::uint64_t generation = 0;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> mail;  // from, to, tag
  std::vector<std::int64_t> tickets;                                             // by rank, touched by it alone
};

/// A started message. A send is done at once: the bytes are kept until they are fetched.
class request {
 public:
  request() = default;
  explicit request(std::function<bool(bool)> finish) : finish_(std::move(finish)) {}
  request(request&& other) noexcept : finish_(std::exchange(other.finish_, nullptr)) {}
  request& operator=(request&& other) noexcept {
    finish_ = std::exchange(other.finish_, nullptr);
    return *this;
  }
  void wait() {
    if (finish_) finish_(true);
    finish_ = nullptr;
  }
  bool test() {
    if (finish_ && finish_(false)) finish_ = nullptr;
    return !finish_;
  }

 private:
  std::function<bool(bool)> finish_;
};

/// The calls of a communicator that redistributions and queues of them use.
class communicator {
 public:
  using request = counting::request;

  communicator(std::shared_ptr<shared_state> all, std::shared_ptr<group_state> group, std::vector<int> members,
               int rank)
      : all_(std::move(all)), group_(std::move(group)), members_(std::move(members)), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  /// 0, 1, 2, ... on each rank of the group, whoever asks; ranks that ask in the same order get the same numbers.
  std::int64_t ticket() { return group_->tickets[index(rank_)]++; }
  /// Where a higher room keeps what all communicators of the rank share.
  std::weak_ptr<void>& work_under_way() { return all_->work_under_way[index(members_[index(rank_)])]; }

  void barrier() {
    note("barrier", 0);
    arrive();
  }

 private:
  void arrive() {
    std::unique_lock hold(all_->lock);
    if (all_->ended) throw aborted_error("heddle: a counting world was ended by the failure of another rank");
    const std::uint64_t now = group_->generation;
    if (++group_->arrived == members_.size()) {
      group_->arrived = 0;
      ++group_->generation;
      all_->changed.notify_all();
    } else {
      all_->wait(hold, members_[index(rank_)], ranks_text(), members_, [&] { return group_->generation != now; });
    }
  }

 public:
  template <class In>
  void send(In&& in, int to, int tag = 0) {
    note("send", std::span(in).size(), to, tag);
    const auto bytes = std::as_bytes(std::span(in));
    const std::lock_guard hold(all_->lock);
    group_->mail[{rank_, to, tag}].emplace_back(bytes.begin(), bytes.end());
    count(rank_, to, static_cast<std::int64_t>(bytes.size()));
    all_->changed.notify_all();
  }
  template <class Out>
  void recv(Out&& out, int from, int tag = 0) {
    note("recv", std::span(out).size(), from, tag);
    fetch(std::as_writable_bytes(std::span(out)), from, tag, true);
  }
  template <class In>
  [[nodiscard]] request isend(In&& in, int to, int tag = 0) {
    send(in, to, tag);
    return {};
  }
  template <class Out>
  [[nodiscard]] request irecv(Out&& out, int from, int tag = 0) {
    note("recv", std::span(out).size(), from, tag);
    const auto bytes = std::as_writable_bytes(std::span(out));
    return request([this, bytes, from, tag](bool block) { return fetch(bytes, from, tag, block); });
  }

  template <class In, class Out, class Counts>
  void all_gather_v(In&& input, Out&& output, const Counts& counts) {
    const auto in = std::span(input);
    const auto out = std::span(output);
    note("all_gather", out.size());
    publish(in.data());
    std::int64_t at = 0;
    for (int s = 0; s < size(); ++s) {
      read(s, 0, counts[index(s)], out.data() + at);
      at += counts[index(s)];
    }
    check(at == static_cast<std::int64_t>(out.size()));
    arrive();
  }
  template <class In, class Out>
  void all_gather(In&& in, Out&& out) {
    all_gather_v(in, out, std::vector<std::int64_t>(index(size()), static_cast<std::int64_t>(std::span(in).size())));
  }

  template <class In, class Out, class Counts>
  void gather_v(In&& input, Out&& output, const Counts& counts, int root) {
    const auto in = std::span(input);
    const auto out = std::span(output);
    note("gather", 0, root);  // only the root has room for all
    publish(in.data());
    check(counts[index(rank_)] == static_cast<std::int64_t>(in.size()));
    std::int64_t at = 0;
    for (int s = 0; rank_ == root && s < size(); ++s) {
      read(s, 0, counts[index(s)], out.data() + at);
      at += counts[index(s)];
    }
    arrive();
  }

  template <class In, class SendCounts, class Out, class RecvCounts>
  void all_to_all_v(In&& input, const SendCounts& send_counts, Out&& output, const RecvCounts& recv_counts) {
    const auto in = std::span(input);
    const auto out = std::span(output);
    using value = typename decltype(out)::value_type;
    note("all_to_all", 0);  // each rank has another number
    struct offer {
      const value* data;
      std::vector<std::int64_t> counts;
    } mine{in.data(), {send_counts.begin(), send_counts.end()}};
    publish(&mine);
    std::int64_t at = 0;
    for (int s = 0; s < size(); ++s) {
      const auto& theirs = *static_cast<const offer*>(group_->pointers[index(s)]);
      std::int64_t begin = 0;
      for (int r = 0; r < rank_; ++r) begin += theirs.counts[index(r)];
      const std::int64_t n = theirs.counts[index(rank_)];
      check(n == recv_counts[index(s)]);
      copy(s, theirs.data + begin, (std::min)(n, recv_counts[index(s)]), out.data() + at);
      at += recv_counts[index(s)];
    }
    check(at == static_cast<std::int64_t>(out.size()));
    arrive();
  }
  template <class In, class Out>
  void all_to_all(In&& in, Out&& out) {
    const std::vector<std::int64_t> counts(index(size()), static_cast<std::int64_t>(std::span(in).size()) / size());
    all_to_all_v(in, counts, out, counts);
  }

  template <class In, class Out, class Counts, class Op>
  void reduce_scatter_v(In&& input, Out&& output, const Counts& counts, Op op) {
    const auto in = std::span(input);
    const auto out = std::span(output);
    using value = typename decltype(out)::value_type;
    note("reduce_scatter", in.size());
    publish(in.data());
    std::int64_t begin = 0;
    for (int r = 0; r < rank_; ++r) begin += counts[index(r)];
    check(counts[index(rank_)] == static_cast<std::int64_t>(out.size()));
    std::vector<value> theirs(out.size()), sum(out.size());
    for (int s = 0; s < size(); ++s) {
      read(s, begin, counts[index(rank_)], theirs.data());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = s == 0 ? theirs[i] : op(sum[i], theirs[i]);
    }
    arrive();  // the output may be a part of the input
    std::copy(sum.begin(), sum.end(), out.begin());
  }
  template <class In, class Out, class Op>
  void reduce_scatter(In&& in, Out&& out, Op op) {
    reduce_scatter_v(in, out,
                     std::vector<std::int64_t>(index(size()), static_cast<std::int64_t>(std::span(out).size())), op);
  }

  template <class In, class Out, class Op>
  void all_reduce(In&& input, Out&& output, Op op) {
    const auto in = std::span(input);
    const auto out = std::span(output);
    using value = typename decltype(out)::value_type;
    note("all_reduce", in.size());
    std::vector<std::int64_t> counts;
    const auto n = static_cast<std::int64_t>(in.size());
    for (int s = 0; s < size(); ++s) counts.push_back(n / size() + (s < n % size() ? 1 : 0));
    std::vector<value> own(index(counts[index(rank_)]));
    reduce_scatter_v(in, own, counts, op);
    all_gather_v(own, out, counts);
  }
  template <class InOut, class Op>
  void all_reduce(InOut&& inout, Op op) {
    const auto x = heddle::detail::elements_of(inout);
    const std::vector<typename decltype(x)::value_type> in(x.begin(), x.end());
    all_reduce(in, x, op);
  }
  template <class InOut>
  void broadcast(InOut&& inout, int root) {
    const auto x = std::span(inout);
    note("broadcast", x.size(), root);
    publish(x.data());
    if (rank_ != root) read(root, 0, static_cast<std::int64_t>(x.size()), x.data());
    arrive();
  }

  /// Whether ranks disagreed about a count.
  bool mismatch() const { return mismatch_; }

 private:
  template <class N>
  static std::size_t index(N i) {
    return static_cast<std::size_t>(i);
  }
  std::string ranks_text() const {
    std::string text = "a collective or barrier of ranks";
    for (const int r : members_) {
      text += ' ';
      text += std::to_string(r);
    }
    return text;
  }
  void note(const char* what, std::size_t elements, int peer = -1, int tag = 0) {
    all_->calls[index(members_[index(rank_)])].push_back(
        {group_.get(), what, static_cast<std::int64_t>(elements), peer, tag, rank_, static_cast<int>(members_.size())});
  }
  void check(bool agreed) { mismatch_ = mismatch_ || !agreed; }
  void publish(const void* p) {
    group_->pointers[index(rank_)] = p;
    arrive();
  }
  // Under the lock.
  void count(int from, int to, std::int64_t bytes) {
    if (from != to) all_->sent[index(members_[index(from)])] += bytes;
  }
  template <class T>
  void copy(int from, const T* source, std::int64_t n, T* target) {
    if (source != target) std::copy_n(source, n, target);  // its own part in place: others read that now
    const std::lock_guard hold(all_->lock);
    count(from, rank_, n * static_cast<std::int64_t>(sizeof(T)));
  }
  template <class T>
  void read(int from, std::int64_t begin, std::int64_t n, T* target) {
    copy(from, static_cast<const T*>(group_->pointers[index(from)]) + begin, n, target);
  }
  bool fetch(std::span<std::byte> out, int from, int tag, bool block) {
    std::unique_lock hold(all_->lock);
    auto& box = group_->mail[{from, rank_, tag}];
    const int source = members_[index(from)];
    if (block) {
      std::string what = "a receive from rank ";
      what += std::to_string(source);
      all_->wait(hold, members_[index(rank_)], what, {&source, 1}, [&] { return !box.empty(); });
    }
    if (box.empty()) {
      if (all_->ended || all_->returned[index(source)] != 0) {
        std::string& mine = all_->waiting[index(members_[index(rank_)])];
        mine = "a receive from rank ";
        mine += std::to_string(source);
        all_->give_up(members_[index(rank_)], true);
      }
      return false;
    }
    check(box.front().size() == out.size());
    std::copy_n(box.front().begin(), (std::min)(out.size(), box.front().size()), out.begin());
    box.pop_front();
    return true;
  }

  std::shared_ptr<shared_state> all_;
  std::shared_ptr<group_state> group_;
  std::vector<int> members_;
  int rank_;
  bool mismatch_ = false;
};

/// One rank's view of a counting world: what `heddle::world` offers to a redistribution, and the bytes it sent.
template <class Mesh>
class world {
 public:
  using mesh_type = Mesh;
  using communicator = counting::communicator;

  world(const Mesh& mesh, int rank, std::shared_ptr<shared_state> all)
      : mesh_(mesh), rank_(rank), all_(std::move(all)) {}
  int rank() const { return rank_; }
  int size() const { return mesh_.size(); }
  const Mesh& mesh() const { return mesh_; }
  template <class Tag>
  int coordinate() const {
    return mesh_.template coordinate<Tag>(rank_);
  }
  template <class... Tags>
  communicator& along() {
    return group_along<Tags...>(1);
  }
  communicator& all() { return all_of(typename Mesh::tags{}, 1); }
  /// The control plane, with an order and messages of its own. Its bytes are counted like the others.
  communicator& control() { return all_of(typename Mesh::tags{}, control_key); }
  template <class... Tags>
  communicator& control_along() {
    return group_along<Tags...>(control_key);
  }

  /// Bytes that other ranks got from this one so far. Meaningful after a barrier: others may still be reading.
  std::int64_t bytes_sent() const {
    const std::lock_guard hold(all_->lock);
    return all_->sent[static_cast<std::size_t>(rank_)];
  }
  /// What this rank called, in its order. Collectives that are made of others are followed by those.
  const std::vector<call>& calls() const { return all_->calls[static_cast<std::size_t>(rank_)]; }
  /// Whether this rank saw a count that another rank did not agree with.
  bool mismatch() const {
    return std::any_of(made_.begin(), made_.end(), [](const auto& m) { return m.second.mismatch(); });
  }

 private:
  static constexpr std::uint64_t control_key = 2;  // what the keys of control planes begin with, others with 1

  template <class... Tags>
  communicator& all_of(type_list<Tags...>, std::uint64_t key) {
    return group_along<Tags...>(key);
  }
  template <class... Tags>
  communicator& group_along(std::uint64_t key) {
    ((key = key * 16 + Mesh::template position<Tags>), ...);
    for (auto& [known, made] : made_)
      if (known == key) return made;
    std::vector<int> members;
    for (const int r : group<Tags...>(mesh_, rank_)) members.push_back(r);
    const std::lock_guard hold(all_->lock);
    auto& state = all_->groups[{key, mesh_.template group_color<Tags...>(rank_)}];
    if (!state) state = std::make_shared<group_state>(members.size());
    made_.emplace_back(key, communicator(all_, state, std::move(members), mesh_.template group_index<Tags...>(rank_)));
    return made_.back().second;
  }

  Mesh mesh_;
  int rank_;
  std::shared_ptr<shared_state> all_;
  std::deque<std::pair<std::uint64_t, communicator>> made_;  // references into it stay valid
};

/// Runs `body(world)` on each rank of the mesh, each in a thread.
/// Errors: what the first failing rank threw; the others are ended. `aborted_error` that says what every rank waits for if
/// one waits for a rank that has returned, or for longer than `timeout`.
template <class Mesh, class Body>
void run(const Mesh& mesh, Body&& body, std::chrono::milliseconds timeout = std::chrono::milliseconds(10'000)) {
  const auto all = std::make_shared<shared_state>();
  const auto ranks = static_cast<std::size_t>(mesh.size());
  all->sent.resize(ranks);
  all->waiting.resize(ranks);
  all->calls.resize(ranks);
  all->returned.resize(ranks);
  all->work_under_way.resize(ranks);
  all->timeout = timeout;
  std::vector<std::thread> threads;
  for (int r = 0; r < mesh.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        world<Mesh> w(mesh, r, all);
        body(w);
        all->leave(r);
      } catch (...) {
        all->end(r, std::current_exception());
      }
    });
  for (auto& t : threads) t.join();
  if (all->first) std::rethrow_exception(all->first);
}

}  // namespace counting
}  // namespace testing
}  // namespace heddle::inline v0
