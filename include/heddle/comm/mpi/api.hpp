// heddle/comm/mpi/api.hpp: mpi.h, and errors of MPI as exceptions.
#pragma once

#if !__has_include(<mpi.h>)
#error "heddle/comm/mpi.hpp needs MPI: install Open MPI or MPICH and link heddle::mpi (CMake), or compile with mpicxx"
#endif

#include <heddle/comm/launcher.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

// The C++ bindings that MPI-3 removed are 35 000 lines.
#if !defined(OMPI_SKIP_MPICXX)
#define OMPI_SKIP_MPICXX 1
#endif
#if !defined(MPICH_SKIP_MPICXX)
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0::detail {

// Whether ranks are virtual: actors in one process of SimGrid's simulator (SMPI), in virtual time. A rank that waits in
// MPI lets the others run, and the simulator knows when nobody can go on.
#if defined(SMPI_H)
inline constexpr bool virtual_ranks = true;
#else
inline constexpr bool virtual_ranks = false;
#endif

[[noreturn, gnu::noinline, gnu::cold]] inline void throw_mpi_error(int code, const char* call) {
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw comm_error(
      text_of({"heddle: ", call, " failed: ",
               length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "error " + std::to_string(code)}));
}

// Every call of MPI goes through this.
inline void mpi_check(int code, const char* call) {
  if (code != MPI_SUCCESS) [[unlikely]]
    throw_mpi_error(code, call);
}

// How many bytes a message had. MPI_Get_elements_x says the same, for 100 instructions; these fields are part of the
// binary interface of both libraries.
inline std::int64_t received_bytes(const MPI_Status& status) {
#if defined(OPEN_MPI)
  return static_cast<std::int64_t>(status._ucount);
#elif defined(SMPI_H)
  // SimGrid 3.32 declares MPI_Get_elements_x and ends the program in it. It counts bytes in an int.
  return static_cast<std::int64_t>(static_cast<unsigned>(status.count));
#else
  MPI_Count bytes = 0;
  MPI_Status copy = status;
  mpi_check(MPI_Get_elements_x(&copy, MPI_BYTE, &bytes), "MPI_Get_elements_x");
  return static_cast<std::int64_t>(bytes);
#endif
}

// MPI_Test in a loop that does nothing but wait. Virtual ranks wait in MPI: SimGrid 3.32 keeps every message that ended
// in a test in a list that it searches again and again.
inline int mpi_test_while_waiting(MPI_Request* request, int* done, MPI_Status* status) {
#if defined(SMPI_H)
  *done = 1;
  return MPI_Wait(request, status);
#else
  return MPI_Test(request, done, status);
#endif
}

// Starts an all-reduce that is then waited for. Virtual ranks wait for it here: SimGrid 3.32 makes the started form of a
// message from each rank to each other one, the blocking form of two trees.
inline void mpi_start_all_reduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                                 MPI_Request* request) {
#if defined(SMPI_H)
  *request = MPI_REQUEST_NULL;
  mpi_check(MPI_Allreduce(in, out, count, type, op, comm), "MPI_Allreduce");
#else
  mpi_check(MPI_Iallreduce(in, out, count, type, op, comm, request), "MPI_Iallreduce");
#endif
}

// Processes of MPI know of each other: ranks that are threads of one of them are no job of their own.
inline const bool mpi_says_joined = (processes_are_joined = [] {
  int yes = 0;
  return MPI_Initialized(&yes) == MPI_SUCCESS && yes != 0;
}, true);

inline bool mpi_usable() {
  int yes = 0, no = 0;
  MPI_Initialized(&yes);
  MPI_Finalized(&no);
  return yes != 0 && no == 0;
}

}  // namespace heddle::inline v0::detail
