// Calls of the MPI transport, and the same by hand: callgrind.py counts the instructions of each on rank 0.
#include <heddle/comm/mpi.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace hd = heddle;

struct buffers {
  std::vector<float> in, out;
  std::vector<std::int64_t> send_counts, recv_counts;
  std::vector<int> ints;  // counts and offsets of both kinds
};

// What is counted: one call, named by what, by whom, how many bytes and the how-manieth.
template <class Call, int Bytes, int Time>
[[gnu::noinline]] void counted(Call call) {
  call();
}

#define HEDDLE_TEST_CALL(name, ...)                                 \
  struct name {                                                     \
    hd::mpi_communicator& c;                                        \
    buffers& b;                                                     \
    int peer;                                                       \
    bool first;                                                     \
    [[gnu::always_inline]] void operator()() const {                \
      [[maybe_unused]] const int n = static_cast<int>(b.in.size()); \
      [[maybe_unused]] const MPI_Comm comm = c.native();            \
      __VA_ARGS__;                                                  \
    }                                                               \
  }

HEDDLE_TEST_CALL(all_reduce_bare, MPI_Allreduce(b.in.data(), b.out.data(), n, MPI_FLOAT, MPI_SUM, comm));
HEDDLE_TEST_CALL(all_reduce_ours, c.all_reduce(b.in, b.out, hd::plus{}));
HEDDLE_TEST_CALL(all_reduce_in_place_bare, MPI_Allreduce(MPI_IN_PLACE, b.in.data(), n, MPI_FLOAT, MPI_SUM, comm));
HEDDLE_TEST_CALL(all_reduce_in_place_ours, c.all_reduce(b.in, hd::plus{}));
HEDDLE_TEST_CALL(all_gather_bare, MPI_Allgather(b.in.data(), n, MPI_FLOAT, b.out.data(), n, MPI_FLOAT, comm));
HEDDLE_TEST_CALL(all_gather_ours, c.all_gather(b.in, b.out));
// By hand from the same arguments: MPI wants counts and offsets as int.
HEDDLE_TEST_CALL(all_to_all_v_bare, {
  const std::size_t p = b.send_counts.size();
  int* const k = b.ints.data();
  int sent = 0, received = 0;
  for (std::size_t r = 0; r < p; ++r) {
    k[r] = static_cast<int>(b.send_counts[r]);
    k[p + r] = sent;
    sent += k[r];
    k[2 * p + r] = static_cast<int>(b.recv_counts[r]);
    k[3 * p + r] = received;
    received += k[2 * p + r];
  }
  MPI_Alltoallv(b.in.data(), k, k + p, MPI_FLOAT, b.out.data(), k + 2 * p, k + 3 * p, MPI_FLOAT, comm);
});
HEDDLE_TEST_CALL(all_to_all_v_ours, c.all_to_all_v(b.in, b.send_counts, b.out, b.recv_counts));
// Counts and offsets are there already, of the kind that MPI wants.
HEDDLE_TEST_CALL(all_to_all_v_ready_bare, {
  const std::size_t p = b.send_counts.size();
  int* const k = b.ints.data();
  MPI_Alltoallv(b.in.data(), k, k + p, MPI_FLOAT, b.out.data(), k + 2 * p, k + 3 * p, MPI_FLOAT, comm);
});
HEDDLE_TEST_CALL(messages_bare, {
  MPI_Request r;
  MPI_Status s;
  MPI_Irecv(b.out.data(), n, MPI_FLOAT, peer, 0, comm, &r);
  MPI_Send(b.in.data(), n, MPI_FLOAT, peer, 0, comm);
  MPI_Wait(&r, &s);
});
HEDDLE_TEST_CALL(messages_ours, {
  auto r = c.irecv(std::span(b.out.data(), b.in.size()), peer);
  c.send(b.in, peer);
  r.wait();
});
HEDDLE_TEST_CALL(send_recv_bare, {
  MPI_Status s;
  if (first) MPI_Send(b.in.data(), n, MPI_FLOAT, peer, 0, comm);
  MPI_Recv(b.out.data(), n, MPI_FLOAT, peer, 0, comm, &s);
  if (!first) MPI_Send(b.in.data(), n, MPI_FLOAT, peer, 0, comm);
});
HEDDLE_TEST_CALL(send_recv_ours, {
  if (first) c.send(b.in, peer);
  c.recv(std::span(b.out.data(), b.in.size()), peer);
  if (!first) c.send(b.in, peer);
});

// Several times, with time for the other rank to do its part first: little is counted of waiting for it.
template <int Bytes, class Call, int... Times>
void several(hd::mpi_communicator& c, const Call& call, std::integer_sequence<int, Times...>) {
  call();  // what only the first does
  const auto once = [&]<int Time>(std::integral_constant<int, Time>) {
    if (c.size() > 1 && c.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(8));
    counted<Call, Bytes, Time>(call);
  };
  (once(std::integral_constant<int, Times>{}), ...);
}

template <int Bytes, class... Calls>
void each(hd::mpi_communicator& c, std::size_t outs) {
  const std::size_t p = static_cast<std::size_t>(c.size());
  buffers b;
  b.in.resize(Bytes / sizeof(float), 1.0f);
  b.out.resize(outs * b.in.size());
  const std::int64_t part = static_cast<std::int64_t>(b.in.size() / p);
  b.send_counts.assign(p, part);
  b.recv_counts.assign(p, part);
  b.ints.resize(4 * p);
  (several<Bytes>(c, Calls{c, b, (c.rank() + 1) % c.size(), c.rank() == 0}, std::make_integer_sequence<int, 5>{}), ...);
}

template <int Bytes>
void all_calls(hd::mpi_communicator& c) {
  each<Bytes, all_reduce_bare, all_reduce_ours, all_reduce_in_place_bare, all_reduce_in_place_ours, all_to_all_v_bare,
       all_to_all_v_ours, all_to_all_v_ready_bare, messages_bare, messages_ours>(c, 1);
  each<Bytes, all_gather_bare, all_gather_ours>(c, static_cast<std::size_t>(c.size()));
  if (c.size() > 1 || Bytes <= 256) each<Bytes, send_recv_bare, send_recv_ours>(c, 1);  // no rank waits for itself
}

int main(int argc, char** argv) {
  const hd::mpi_session session(argc, argv);
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  hd::launch_options options;
  options.check = hd::checking::off;
  return hd::launch<hd::mpi>(argc, argv, hd::mesh<hd::axis<hd::dp>>{ranks}, options, [](auto& world) {
    hd::mpi_communicator& c = world.all();
    all_calls<8>(c);
    all_calls<256>(c);
    all_calls<65536>(c);
    all_calls<1048576>(c);
  });
}
