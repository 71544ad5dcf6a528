// heddle/train/step_graph.hpp: a training step as a graph, by rank or by device.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::train::detail {

// A communicator of ranks whose queues can be captured together: its ranks take turns, and one launches for all.
template <class C, class Queue>
concept captures_together = requires(C& c, Queue& q, typename C::turns& turns) {
  c.in_order_of(q).once([](Queue&) {});
  c.by_turns(turns, [] {});
  typename Queue::graph::joint_capture;
};

/// The graph of one rank.
template <class Queue>
class own_step_graph {
 public:
  template <class Communicator>
  explicit own_step_graph(Communicator&) noexcept {}

  /// What `give()` gives to the queue. Errors: those of `graph::capture`.
  template <class Give>
  void capture(Queue& queue, Give&& give) {
    graph_ = {};  // its memory goes back first
    graph_ = Queue::graph::capture(queue, give);
  }
  /// After what the queue was given before.
  void launch(Queue& queue) { graph_.launch(queue); }
  /// Gives the graph back, and its memory with it; whether there was one.
  bool drop() noexcept {
    const bool was_here = graph_.operations() > 0;
    graph_ = {};
    return was_here;
  }
  std::size_t operations() const noexcept { return graph_.operations(); }

 private:
  typename Queue::graph graph_{};
};

/// One graph for all ranks of a communicator (`captures_together`). Rank 0 begins the capture and ends it, since CUDA has both on one thread; the
/// other ranks' queues join. Ranks run by turns meanwhile, since CUDA does not synchronize calls that add to one graph. All calls are collectives.
template <class Communicator, class Queue>
class shared_step_graph {
  using graph_type = typename Queue::graph;
  using capture_type = typename graph_type::joint_capture;

 public:
  explicit shared_step_graph(Communicator& all)
      : all_(&all), of_all_(all.shared_with_all(all.rank() == 0 ? std::make_shared<state>() : nullptr)) {}

  /// What `give()` gives to the queue on each rank. Errors: those of `graph::capture`. An error of any rank ends the world, and the capture has
  /// ended when it leaves this call.
  template <class Give>
  void capture(Queue& queue, Give&& give) {
    state& s = *of_all_;
    if (all_->size() == 1) {
      s.graph = {};  // its memory goes back first
      s.graph = graph_type::capture(queue, give);
    } else {
      all_->by_turns(s.turns, [&] {
        const open_capture mine(s, all_->rank() == 0, queue);
        all_->barrier();  // it has begun
        if (!mine.leads()) s.capture->join(queue);
        give();
        all_->barrier();  // all ranks have given
        if (mine.leads()) {
          s.graph = s.capture->end();
          s.capture.reset();  // it knows the others' queues, which may end from the next barrier on
        }
        all_->barrier();  // no queue is captured any more
      });
    }
    operations_ = s.graph.operations();
  }
  /// After what all queues were given before; the queues go on when it is done.
  void launch(Queue& queue) {
    graph_type& graph = of_all_->graph;
    if (all_->size() == 1) return graph.launch(queue);
    all_->in_order_of(queue).once([&graph](Queue& first) { graph.launch(first); });
  }
  /// Of all ranks.
  std::size_t operations() const noexcept { return operations_; }
  /// Rank 0 gives the graph back, which the queues of all have done: each rank has waited for its own before it calls this, or an error ends the world.
  /// Returns when it has, on all ranks together; whether there was one.
  bool drop() {
    if (std::exchange(operations_, 0) == 0) return false;
    if (all_->rank() == 0) of_all_->graph = {};
    if (all_->size() > 1) all_->barrier();
    return true;
  }

 private:
  struct state {
    typename Communicator::turns turns{};
    std::unique_ptr<capture_type> capture{};  // while there is one; made and ended by rank 0
    graph_type graph{};
  };
  // Rank 0 begins a capture, and ends it before its turn ends, whatever happens.
  class open_capture {
   public:
    open_capture(state& of, bool leads, Queue& queue) : of_(of), leads_(leads) {
      if (!leads) return;
      of.graph = {};
      of.capture = std::make_unique<capture_type>(queue);
    }
    open_capture(const open_capture&) = delete;
    open_capture& operator=(const open_capture&) = delete;
    ~open_capture() {
      if (leads_) of_.capture.reset();
    }
    bool leads() const noexcept { return leads_; }

   private:
    state& of_;
    bool leads_;
  };

  Communicator* all_;
  std::shared_ptr<state> of_all_;
  std::size_t operations_ = 0;
};

template <class Communicator, class Queue>
struct step_graph_of {
  using type = own_step_graph<Queue>;
};
template <class Communicator, class Queue>
  requires captures_together<Communicator, Queue>
struct step_graph_of<Communicator, Queue> {
  using type = shared_step_graph<Communicator, Queue>;
};
/// What a rank of the communicator captures and launches.
template <class Communicator, class Queue>
using step_graph = typename step_graph_of<Communicator, Queue>::type;

}  // namespace heddle::inline v0::train::detail
