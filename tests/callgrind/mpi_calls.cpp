// Calls of the MPI transport, and the same by hand: callgrind.py counts the instructions of each.
#include <heddle/comm/mpi.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

namespace hd = heddle;

constexpr int times = 5;

struct buffers {
  std::vector<float> in, out;
  std::vector<std::int64_t> counts;
  std::vector<int> int_counts;
};

// What is counted: `times` calls, named by what, by whom and how many bytes.
template <class Call, int Bytes>
[[gnu::noinline]] void counted(Call call) {
  for (int i = 0; i < times; ++i) call();
}

#define HEDDLE_TEST_CALL(name, ...)                                 \
  struct name {                                                     \
    hd::mpi_communicator& c;                                        \
    buffers& b;                                                     \
    [[gnu::always_inline]] void operator()() const {                \
      [[maybe_unused]] const int n = static_cast<int>(b.in.size()); \
      [[maybe_unused]] const MPI_Comm comm = c.native();            \
      __VA_ARGS__;                                                  \
    }                                                               \
  }

HEDDLE_TEST_CALL(all_reduce_bare, MPI_Allreduce(b.in.data(), b.out.data(), n, MPI_FLOAT, MPI_SUM, comm));
HEDDLE_TEST_CALL(all_reduce_ours, c.all_reduce(b.in, b.out, hd::plus{}));
HEDDLE_TEST_CALL(all_gather_bare, MPI_Allgather(b.in.data(), n, MPI_FLOAT, b.out.data(), n, MPI_FLOAT, comm));
HEDDLE_TEST_CALL(all_gather_ours, c.all_gather(b.in, b.out));
// By hand from the same arguments: MPI wants counts and offsets as int.
HEDDLE_TEST_CALL(all_to_all_v_bare, {
  const std::size_t p = b.counts.size();
  int* const k = b.int_counts.data();
  int sent = 0, received = 0;
  for (std::size_t r = 0; r < p; ++r) {
    k[r] = static_cast<int>(b.counts[r]);
    k[p + r] = sent;
    sent += k[r];
    k[2 * p + r] = static_cast<int>(b.counts[r]);
    k[3 * p + r] = received;
    received += k[2 * p + r];
  }
  MPI_Alltoallv(b.in.data(), k, k + p, MPI_FLOAT, b.out.data(), k + 2 * p, k + 3 * p, MPI_FLOAT, comm);
});
HEDDLE_TEST_CALL(all_to_all_v_ours, c.all_to_all_v(b.in, b.counts, b.out, b.counts));
HEDDLE_TEST_CALL(messages_bare, {
  MPI_Request r;
  MPI_Status s;
  MPI_Irecv(b.out.data(), n, MPI_FLOAT, 0, 0, comm, &r);
  MPI_Send(b.in.data(), n, MPI_FLOAT, 0, 0, comm);
  MPI_Wait(&r, &s);
});
HEDDLE_TEST_CALL(messages_ours, {
  auto r = c.irecv(b.out, 0);
  c.send(b.in, 0);
  r.wait();
});
HEDDLE_TEST_CALL(send_recv_bare, {
  MPI_Status s;
  MPI_Send(b.in.data(), n, MPI_FLOAT, 0, 0, comm);
  MPI_Recv(b.out.data(), n, MPI_FLOAT, 0, 0, comm, &s);
});
HEDDLE_TEST_CALL(send_recv_ours, {
  c.send(b.in, 0);
  c.recv(b.out, 0);
});

template <int Bytes, class... Calls>
void each(hd::mpi_communicator& c) {
  buffers b;
  b.in.resize(Bytes / sizeof(float), 1.0f);
  b.out.resize(b.in.size());
  b.counts = {static_cast<std::int64_t>(b.in.size())};
  b.int_counts.resize(4);
  (Calls{c, b}(), ...);  // what only the first call does
  (counted<Calls, Bytes>(Calls{c, b}), ...);
}

template <int Bytes>
void all_calls(hd::mpi_communicator& c) {
  each<Bytes, all_reduce_bare, all_reduce_ours, all_gather_bare, all_gather_ours, all_to_all_v_bare, all_to_all_v_ours,
       messages_bare, messages_ours>(c);
}

int main(int argc, char** argv) {
  hd::launch_options options;
  options.check = hd::checking::off;
  options.timeout = std::chrono::milliseconds(0);
  return hd::launch<hd::mpi, hd::mesh<hd::axis<hd::dp, 1>>>(argc, argv, options, [](auto& world) {
    hd::mpi_communicator& c = world.all();
    all_calls<8>(c);
    all_calls<1024>(c);
    all_calls<1048576>(c);
    each<8, send_recv_bare, send_recv_ours>(c);  // larger ones would wait for each other
    each<256, send_recv_bare, send_recv_ours>(c);
  });
}
