// tests/tensor/counting_world.hpp: a world of threads that follows the textbook algorithms and counts what each rank sends.
// Slow and simple on purpose: the bytes of a plan are checked against elements that were really read from another rank.
#pragma once

#include <heddle/mesh/mesh.hpp>

#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace counting {

struct group_state {
  explicit group_state(int n) : size(n), together(n), pointers(static_cast<std::size_t>(n)), sent(static_cast<std::size_t>(n)) {}
  int size;
  std::barrier<> together;
  std::vector<const void*> pointers;
  std::vector<std::atomic<std::int64_t>> sent;  // bytes that others read from each rank
};

class communicator {
 public:
  communicator(std::shared_ptr<group_state> state, int rank) : state_(std::move(state)), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const { return state_->size; }
  std::int64_t bytes_sent() const { return state_->sent[static_cast<std::size_t>(rank_)]; }

  template <class T>
  void all_gather_v(std::span<const T> in, std::span<T> out, std::span<const std::int64_t> counts) {
    publish(in.data());
    std::int64_t at = 0;
    for (int s = 0; s < size(); ++s) {
      read<T>(s, 0, counts[index(s)], out.data() + at);
      at += counts[index(s)];
    }
    state_->together.arrive_and_wait();
  }
  template <class T>
  void all_gather(std::span<const T> in, std::span<T> out) {
    const std::vector<std::int64_t> counts(index(size()), static_cast<std::int64_t>(in.size()));
    all_gather_v(in, out, std::span<const std::int64_t>(counts));
  }

  template <class T>
  void all_to_all_v(std::span<const T> in, std::span<const std::int64_t> send_counts, std::span<T> out,
                    std::span<const std::int64_t> recv_counts) {
    struct offer {
      const T* data;
      std::vector<std::int64_t> counts;
    } mine{in.data(), {send_counts.begin(), send_counts.end()}};
    publish(&mine);
    std::int64_t at = 0;
    for (int s = 0; s < size(); ++s) {
      const auto& theirs = *static_cast<const offer*>(state_->pointers[index(s)]);
      std::int64_t begin = 0;
      for (int r = 0; r < rank_; ++r) begin += theirs.counts[index(r)];
      mismatch_ = mismatch_ || theirs.counts[index(rank_)] != recv_counts[index(s)];
      copy(s, theirs.data + begin, theirs.counts[index(rank_)], out.data() + at);
      at += recv_counts[index(s)];
    }
    mismatch_ = mismatch_ || at != static_cast<std::int64_t>(out.size());
    state_->together.arrive_and_wait();
  }
  template <class T>
  void all_to_all(std::span<const T> in, std::span<T> out) {
    const std::vector<std::int64_t> counts(index(size()), static_cast<std::int64_t>(in.size()) / size());
    all_to_all_v(in, std::span<const std::int64_t>(counts), out, std::span<const std::int64_t>(counts));
  }

  template <class T, class Op>
  void reduce_scatter_v(std::span<const T> in, std::span<T> out, std::span<const std::int64_t> counts, Op op) {
    publish(in.data());
    std::int64_t begin = 0;
    for (int r = 0; r < rank_; ++r) begin += counts[index(r)];
    std::vector<T> theirs(out.size());
    for (int s = 0; s < size(); ++s) {
      read<T>(s, begin, counts[index(rank_)], theirs.data());
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = s == 0 ? theirs[i] : op(out[i], theirs[i]);
    }
    state_->together.arrive_and_wait();
  }
  template <class T, class Op>
  void reduce_scatter(std::span<const T> in, std::span<T> out, Op op) {
    const std::vector<std::int64_t> counts(index(size()), static_cast<std::int64_t>(out.size()));
    reduce_scatter_v(in, out, std::span<const std::int64_t>(counts), op);
  }

  template <class T, class Op>
  void all_reduce(std::span<const T> in, std::span<T> out, Op op) {
    std::vector<std::int64_t> counts;
    const auto n = static_cast<std::int64_t>(in.size());
    for (int s = 0; s < size(); ++s) counts.push_back(n / size() + (s < n % size() ? 1 : 0));
    std::vector<T> own(index(counts[index(rank_)]));
    reduce_scatter_v(in, std::span<T>(own), std::span<const std::int64_t>(counts), op);
    all_gather_v(std::span<const T>(own), out, std::span<const std::int64_t>(counts));
  }
  template <class T, class Op>
  void all_reduce(std::span<T> inout, Op op) {
    const std::vector<T> in(inout.begin(), inout.end());
    all_reduce(std::span<const T>(in), inout, op);
  }

  bool mismatch() const { return mismatch_; }

 private:
  template <class N>
  static std::size_t index(N i) {
    return static_cast<std::size_t>(i);
  }
  void publish(const void* p) {
    state_->pointers[index(rank_)] = p;
    state_->together.arrive_and_wait();
  }
  template <class T>
  void copy(int from, const T* source, std::int64_t count, T* target) {
    for (std::int64_t i = 0; i < count; ++i) target[i] = source[i];
    if (from != rank_) state_->sent[index(from)] += count * static_cast<std::int64_t>(sizeof(T));
  }
  template <class T>
  void read(int from, std::int64_t begin, std::int64_t count, T* target) {
    copy(from, static_cast<const T*>(state_->pointers[index(from)]) + begin, count, target);
  }

  std::shared_ptr<group_state> state_;
  int rank_;
  bool mismatch_ = false;
};

template <class Mesh>
class world {
 public:
  using groups = std::map<std::pair<std::size_t, int>, std::shared_ptr<group_state>>;
  world(const Mesh& mesh, int rank, const groups& all) : mesh_(mesh), rank_(rank) {
    for (std::size_t a = 0; a < Mesh::rank; ++a) {
      const std::array<std::size_t, 1> axis{a};
      along_.emplace_back(all.at({a, heddle::detail::group_color(mesh.extents(), axis, rank)}),
                          heddle::detail::mesh_coordinate(mesh.extents(), a, rank));
    }
  }
  int rank() const { return rank_; }
  const Mesh& mesh() const { return mesh_; }
  template <class Tag>
  communicator& along() {
    return along_[Mesh::template position<Tag>];
  }
  std::int64_t bytes_sent() const {
    std::int64_t n = 0;
    for (const auto& c : along_) n += c.bytes_sent();
    return n;
  }
  bool mismatch() const {
    for (const auto& c : along_)
      if (c.mismatch()) return true;
    return false;
  }

 private:
  Mesh mesh_;
  int rank_;
  std::vector<communicator> along_;
};

/// Runs `body(world)` on each rank of the mesh, each in a thread. A body must not throw: others would wait for it forever.
template <class Mesh>
void run(const Mesh& mesh, const std::function<void(world<Mesh>&)>& body) {
  typename world<Mesh>::groups groups;
  for (std::size_t a = 0; a < Mesh::rank; ++a)
    for (int r = 0; r < mesh.size(); ++r) {
      const std::array<std::size_t, 1> axis{a};
      auto& g = groups[{a, heddle::detail::group_color(mesh.extents(), axis, r)}];
      if (!g) g = std::make_shared<group_state>(mesh.extents()[a]);
    }
  std::vector<std::thread> threads;
  for (int r = 0; r < mesh.size(); ++r)
    threads.emplace_back([&, r] {
      world<Mesh> w(mesh, r, groups);
      body(w);
    });
  for (auto& t : threads) t.join();
}

}  // namespace counting
