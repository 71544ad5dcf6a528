// heddle/comm/impl/launcher.hpp: bodies of heddle/comm/launcher.hpp.
#pragma once

#include <heddle/comm/launcher.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

namespace detail {

class launcher_reader {
 public:
  launcher_reader(environment_variables from, bool strict) : from_(from), strict_(strict) {}

  // Null where a variable is not set, or empty.
  const char* text(const char* name) const {
    const char* const value = from_ != nullptr ? from_(name) : std::getenv(name);
    return value == nullptr || *value == '\0' ? nullptr : value;
  }

  process_place read() const {
    process_place found = read_set({"HEDDLE_RANK", "HEDDLE_RANK", "HEDDLE_RANKS", "HEDDLE_LOCAL_RANK"});
    if (found.rank < 0) found = of_launchers();
    if (const char* const at = text("HEDDLE_RENDEZVOUS"))
      found.meeting = at;
    else if (found.launcher == "torchrun")
      found.meeting = of_master();
    return found;
  }

 private:
  struct variables {
    const char *launcher, *rank, *size, *local;
  };

  process_place of_launchers() const {
    process_place found;
    constexpr variables sets[] = {
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}};
    for (const variables& names : sets) {
      const bool srun = &names == &sets[3];
      if (srun && text(names.size) == nullptr) continue;  // a batch script has SLURM_PROCID, too
      const process_place next = read_set(names);
      if (next.rank < 0) continue;
      if (found.size > 1 && next.size > 1 && !srun && (next.rank != found.rank || next.size != found.size) && strict_) {
        std::string message = "heddle: two launchers say which process this is: ";
        (message += started_as(found)) += ", and ";
        (message += started_as(next)) += "; set HEDDLE_RANK and HEDDLE_RANKS to say which is right";
        throw config_error(message);
      }
      if (found.rank < 0 || (found.size == 1 && next.size > 1)) found = next;
    }
    return found;
  }

  process_place read_set(const variables& names) const {
    const bool rank = text(names.rank) != nullptr, size = text(names.size) != nullptr;
    const bool torch = std::string_view(names.launcher) == "torchrun";
    if (!rank && !size) return {};
    if (!rank || !size)
      return fault({"heddle: ", rank ? names.rank : names.size, " is set, but ", rank ? names.size : names.rank,
                    rank ? " is not: how many ranks are there?" : " is not: which rank is this?"});
    if (torch && text("MASTER_ADDR") == nullptr)
      return fault({"heddle: RANK and WORLD_SIZE are set, but MASTER_ADDR is not: where do the ranks meet?"});
    process_place place;
    const int r = number(names.rank, 0), n = number(names.size, 1), local = number(names.local, 0);
    if (r < 0 || n < 0 || (local < 0 && text(names.local) != nullptr)) return {};
    if (r >= n)
      return fault({"heddle: the environment variable ", names.rank, " should be below ", names.size, ", which is ",
                    text(names.size), "; it is ", text(names.rank)});
    place.launcher = names.launcher;
    place.rank = r;
    place.size = n;
    place.local_rank = local;
    return place;
  }

  std::string of_master() const {
    if (text("MASTER_PORT") == nullptr) {
      fault({"heddle: MASTER_ADDR is set, but MASTER_PORT is not: where do the ranks meet?"});
      return {};
    }
    const char* const agent = text("TORCHELASTIC_USE_AGENT_STORE");
    const bool held = agent != nullptr && (std::string_view(agent) == "True" || std::string_view(agent) == "1");
    const int port = number("MASTER_PORT", 1, 65535 - (held ? 1 : 0));
    if (port < 0) return {};
    std::string at = "tcp://";
    ((at += text("MASTER_ADDR")) += ':') += std::to_string(port + (held ? 1 : 0));
    return at;
  }

  // -1 where it is not set, or is wrong and nobody is to be told.
  int number(const char* name, int least, int most = (1 << 24) - 1) const {
    const char* const value = text(name);
    if (value == nullptr) return -1;
    char* end = nullptr;
    const long found = std::strtol(value, &end, 10);
    if (*end == '\0' && found >= least && found <= most) return static_cast<int>(found);
    fault({"heddle: the environment variable ", name, " should be a number from ", least, " to ", most, ", it is \"",
           value, '"'});
    return -1;
  }

  process_place fault(std::initializer_list<message_part> parts) const {
    if (strict_) throw config_error(text_of(parts));
    return {};
  }

  environment_variables from_;
  bool strict_;
};

HEDDLE_INLINE process_place launcher_seen(environment_variables from) {
  return launcher_reader(from, false).read();
}

HEDDLE_INLINE bool runs_alone(environment_variables from) {
  const char* const value = launcher_reader(from, true).text("HEDDLE_ALONE");
  const std::string_view word = value == nullptr ? "0" : value;
  if (word == "0" || word == "1") return word == "1";
  std::string message = "heddle: the environment variable HEDDLE_ALONE should be 0 or 1, it is \"";
  (message += word) += '"';
  throw config_error(message);
}

HEDDLE_INLINE std::string started_as(const process_place& place) {
  std::string text = "started as process ";
  ((text += std::to_string(place.rank)) += " of ") += std::to_string(place.size);
  return (text += " by ") += place.launcher == "HEDDLE_RANK" ? "HEDDLE_RANK and HEDDLE_RANKS" : place.launcher;
}

HEDDLE_INLINE void require_alone(environment_variables from) {
  const process_place place = launcher_seen(from);
  if (place.size <= 1 || runs_alone(from) || processes_are_joined != nullptr) return;
  std::string text = "heddle: ";
  text += started_as(place);
  text += ", but its ranks are threads of each process: use hd::mpi, or set HEDDLE_ALONE=1 to run a job in each";
  throw config_error(text);
}

}  // namespace detail

HEDDLE_INLINE process_place launcher_place(environment_variables from) {
  return detail::launcher_reader(from, true).read();
}

}  // namespace heddle::inline v0
