// heddle/comm/launcher.hpp: finds who started this process, and which of how many processes it is.
#pragma once

#include <heddle/core/config.hpp>

#include <string>

namespace heddle::inline v0 {

/// A process of a job with several processes, as its launcher describes it in environment variables.
struct process_place {
  std::string launcher{};  ///< "HEDDLE_RANK", "torchrun", "mpirun", "mpiexec" (MPICH) or "srun"; empty if none is known
  int rank = -1;           ///< -1: no launcher
  int size = 0;            ///< the number of processes
  int local_rank = -1;     ///< among the processes of this node; -1 if the launcher does not say
  std::string meeting{};   ///< "tcp://host:port" or "file:///folder"; empty if the environment does not say
};

/// Where the value of an environment variable comes from, null if it is not set: `std::getenv`, or a test's table.
using environment_variables = const char* (*)(const char* name);

/// Who started this process: HEDDLE_RANK, HEDDLE_RANKS, HEDDLE_LOCAL_RANK win, then torchrun (RANK, WORLD_SIZE,
/// LOCAL_RANK, MASTER_ADDR), Open MPI's mpirun, MPICH's mpiexec, Slurm's srun. A launcher of one process yields to one
/// of several; srun yields to all others, as it may have started them; a batch script of Slurm's is no launcher. They
/// meet at HEDDLE_RENDEZVOUS, else at torchrun's MASTER_ADDR and MASTER_PORT, plus one where its agent holds that port.
/// Errors: `config_error` naming the variable for half a set, what is no number, a rank outside the size, and two
/// launchers that say different things.
HEDDLE_INLINE process_place launcher_place(environment_variables from = nullptr);

namespace detail {

// The same without errors: half a set, or one with nonsense, is none. For transports that only ask whether they are
// alone.
HEDDLE_INLINE process_place launcher_seen(environment_variables from = nullptr);

// Whether HEDDLE_ALONE=1 says that each process runs a job of its own. Errors: `config_error` for a word other than 0
// and 1.
HEDDLE_INLINE bool runs_alone(environment_variables from = nullptr);

// "started as process 0 of 2 by mpirun".
HEDDLE_INLINE std::string started_as(const process_place& place);

// Errors: `config_error` where this process is one of several that a launcher started, HEDDLE_ALONE=1 is not set, and the
// program has no transport over processes (heddle/comm/mpi.hpp): beside that, threads are what it means.
HEDDLE_INLINE void require_alone(environment_variables from = nullptr);

// Whether processes are joined by MPI; set in programs that include heddle/comm/mpi.hpp.
inline bool (*processes_are_joined)() = nullptr;

}  // namespace detail

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/comm/impl/launcher.hpp>
#endif
