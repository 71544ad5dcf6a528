// Who started this process: all sets of variables, halves of sets, contradictions; threads are no job of several processes.
#include "catch.hpp"

#include <heddle/comm/launcher.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/error.hpp>

#include <cstdlib>
#include <map>
#include <string>

namespace {

namespace hd = heddle;
using launcher_variables = std::map<std::string, std::string>;

const launcher_variables* launcher_table = nullptr;
const char* launcher_value(const char* name) {
  const auto found = launcher_table->find(name);
  return found == launcher_table->end() ? nullptr : found->second.c_str();
}

// "torchrun 1/4 1 tcp://node:29500", or the error.
std::string launcher_said(const launcher_variables& variables) {
  launcher_table = &variables;
  try {
    const hd::process_place p = hd::launcher_place(&launcher_value);
    if (p.rank < 0) return "nobody " + p.meeting;
    return p.launcher + ' ' + std::to_string(p.rank) + '/' + std::to_string(p.size) + ' ' +
           std::to_string(p.local_rank) + ' ' + p.meeting;
  } catch (const hd::config_error& e) {
    return e.what();
  }
}

launcher_variables launcher_both(launcher_variables a, const launcher_variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("launchers are known by their variables, and half a set is named", "[comm][launcher]") {
  const launcher_variables ours{{"HEDDLE_RANK", "2"}, {"HEDDLE_RANKS", "3"}, {"HEDDLE_LOCAL_RANK", "0"}};
  const launcher_variables torch{
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "n"}, {"MASTER_PORT", "29500"}};
  const launcher_variables open{
      {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
  const launcher_variables mpich{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  const launcher_variables slurm{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "1"}};
  const launcher_variables meet{{"HEDDLE_RENDEZVOUS", "file:///x"}};
  const launcher_variables held{{"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  struct row {
    launcher_variables variables;
    std::string said;
  };
  for (const row& r :
       {row{{}, "nobody "},
        {ours, "HEDDLE_RANK 2/3 0 "},
        {torch, "torchrun 1/4 1 tcp://n:29500"},
        {launcher_both(torch, held), "torchrun 1/4 1 tcp://n:29501"},
        {launcher_both(torch, meet), "torchrun 1/4 1 file:///x"},
        {open, "mpirun 0/2 0 "},
        {mpich, "mpiexec 1/2 -1 "},
        {slurm, "srun 3/8 1 "},
        {meet, "nobody file:///x"},
        // a batch script of Slurm's without srun, and variables that stand alone in many images
        {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, "nobody "},
        {{{"MASTER_ADDR", "n"}, {"MASTER_PORT", "1"}, {"LOCAL_RANK", "0"}}, "nobody "},
        {{{"RANK", ""}, {"WORLD_SIZE", ""}}, "nobody "},
        // several: HEDDLE_RANK wins, srun yields, one process yields to several, equals agree
        {launcher_both(ours, launcher_both(torch, open)), "HEDDLE_RANK 2/3 0 "},
        {launcher_both(open, slurm), "mpirun 0/2 0 "},
        {launcher_both(slurm, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "n"}}), "srun 3/8 1 "},
        // srun --mpi=pmi2 sets MPICH's variables, but no local rank; mpiexec, which srun may have started, has one
        {launcher_both(mpich, {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "0"}}),
         "srun 1/2 0 "},
        {launcher_both(mpich, {{"MPI_LOCALRANKID", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}),
         "mpiexec 1/2 1 "},
        {launcher_both(mpich, slurm), "mpiexec 1/2 -1 "},
        {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
         "mpirun 1/2 -1 "}})
    CHECK(launcher_said(r.variables) == r.said);
  for (const row& r :
       {row{{{"HEDDLE_RANK", "0"}}, "HEDDLE_RANK is set, but HEDDLE_RANKS is not"},
        {{{"HEDDLE_RANKS", "2"}}, "HEDDLE_RANKS is set, but HEDDLE_RANK is not: which rank"},
        {{{"RANK", "0"}}, "RANK is set, but WORLD_SIZE is not: how many"},
        {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set, but RANK is not"},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not: where"},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n"}}, "MASTER_PORT is not"},
        {{{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE is not"},
        {{{"PMI_SIZE", "2"}}, "PMI_SIZE is set, but PMI_RANK is not"},
        {{{"SLURM_STEP_NUM_TASKS", "2"}}, "SLURM_STEP_NUM_TASKS is set, but SLURM_PROCID is not"},
        {{{"HEDDLE_RANK", "zero"}, {"HEDDLE_RANKS", "2"}},
         "HEDDLE_RANK should be a number from 0 to 16777215, it is \"zero\""},
        {{{"HEDDLE_RANK", "2"}, {"HEDDLE_RANKS", "2"}},
         "HEDDLE_RANK should be below HEDDLE_RANKS, which is 2; it is 2"},
        {{{"PMI_RANK", "-1"}, {"PMI_SIZE", "2"}}, "PMI_RANK should be a number"},
        {{{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}}, "PMI_SIZE should be a number from 1"},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n"}, {"MASTER_PORT", "x"}},
         "MASTER_PORT should be a number from 1 to 65535, it is \"x\""},
        {launcher_both(torch, open), "started as process 1 of 4 by torchrun, and started as process 0 of 2 by mpirun"},
        {launcher_both(open, mpich), "started as process 0 of 2 by mpirun, and started as process 1 of 2 by mpiexec"}})
    CHECK_THAT(launcher_said(r.variables), Catch::Matchers::Contains(r.said));
}

TEST_CASE("threads refuse to be one of several processes", "[comm][launcher]") {
  const auto launcher_refusal = [](const launcher_variables& variables) -> std::string {
    launcher_table = &variables;
    try {
      hd::detail::require_alone(&launcher_value);
      return "";
    } catch (const hd::config_error& e) {
      return e.what();
    }
  };
  const launcher_variables two{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  CHECK(launcher_refusal(two) ==
        "heddle: started as process 1 of 2 by mpiexec, but its ranks are threads of each process: use hd::mpi, or set "
        "HEDDLE_ALONE=1 to run a job in each");
  CHECK(launcher_refusal(launcher_both(two, {{"HEDDLE_ALONE", "1"}})).empty());
  CHECK(!launcher_refusal(launcher_both(two, {{"HEDDLE_ALONE", "0"}})).empty());
  CHECK_THAT(launcher_refusal(launcher_both(two, {{"HEDDLE_ALONE", "yes"}})),
             Catch::Matchers::Contains("HEDDLE_ALONE should be 0 or 1, it is \"yes\""));
  // Nobody is refused for half a set, nonsense, one process, or a batch script.
  for (const launcher_variables& alone : {launcher_variables{},
                                          {{"RANK", "0"}},
                                          {{"RANK", "0"}, {"WORLD_SIZE", "2"}},
                                          {{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}},
                                          {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
                                          {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}})
    CHECK(launcher_refusal(alone).empty());
  // Contradictions are several processes all the same.
  CHECK(!launcher_refusal(launcher_both(two, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})).empty());

  if (hd::detail::launcher_seen().size > 1) return;  // these tests are themselves under a launcher
  using launcher_mesh = hd::mesh<hd::axis<hd::dp, 2>>;
  int ran = 0;
  const auto body = [&](auto& world) { if (world.rank() == 0) ++ran; };
  ::setenv("HEDDLE_RANK", "0", 1);
  ::setenv("HEDDLE_RANKS", "2", 1);
  const bool joined = hd::detail::processes_are_joined != nullptr;
  if (!joined) CHECK_THROWS_AS((hd::launch<hd::threads, launcher_mesh>(body)), hd::config_error);
  CHECK(ran == 0);
  ::setenv("HEDDLE_ALONE", "1", 1);
  CHECK(hd::launch<hd::threads, launcher_mesh>(body) == 0);
  CHECK(ran == 1);
  for (const char* name : {"HEDDLE_RANK", "HEDDLE_RANKS", "HEDDLE_ALONE"}) ::unsetenv(name);
}
