// heddle/observe/flight_report.hpp: reads flight files: which rank others wait for, and why.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::observe {

/// One call that a flight file kept.
struct flight_record {
  std::uint64_t number = 0;   ///< of all calls of its rank
  std::int64_t call = 0;      ///< the how manieth collective of its group; 0 of a message
  std::string operation;      ///< "all_reduce of 8 float with plus in step 13"
  std::string name, element;  ///< of that, "all_reduce" and "float"
  std::int64_t count = 0;     ///< elements; -1 where every rank may have another number
  std::int64_t mark = -1;
  std::int64_t seconds_inside = 0;  ///< as long as is known, in whole seconds
  std::size_t group = 0;            ///< of the rank's groups
  int peer = -1;                    ///< world rank of the other side of a message
  bool receives = false;
  int tag = 0;
  bool inside = false;     ///< the rank has not left it
  std::uint64_t what = 0;  ///< a number of all that must be equal on all ranks, without the mark
};
/// A group of ranks with calls of its own.
struct flight_group_record {
  std::string name;
  std::vector<int> members;  ///< world ranks
  bool operator==(const flight_group_record&) const = default;
};
/// What the file of one rank says.
struct rank_flight {
  enum class end : unsigned char { running, returned, failed, lost };
  int rank = -1, ranks = 0;
  std::int64_t run_ns = 0;       ///< when the run began, nanoseconds since 1970
  std::int64_t last_ns = 0;      ///< its last sign of life, on the same clock
  std::uint64_t calls_made = 0;  ///< of which the last are kept
  end ended = end::running;      ///< `lost`: the process of this host is gone
  std::string host, problem;
  std::vector<flight_group_record> groups;
  std::vector<flight_record> calls;  ///< in the order in which they were entered
};

/// A file that could not be read, and why.
struct unread_flight {
  std::string file, why;
};
/// The flight files of a launch.
struct flights {
  std::vector<rank_flight> ranks;  ///< ascending
  std::vector<unread_flight> unread;
};

/// What one file holds. `alive(pid, host, boot)` is asked of a rank whose body has not ended; without it this system is.
/// Errors: `io_error` for what is no flight file, of another version, cut, or with sizes beyond its end; `name` stands in the text.
HEDDLE_INLINE rank_flight read_flight(std::span<const std::byte> file, std::string_view name);
/// The files "rank-N.flight" of a folder. A file that cannot be read is listed, the others are read.
/// Errors: `io_error` for a folder that cannot be read or holds none; `config_error` where they are of two runs, with both times.
HEDDLE_INLINE flights read_flights(const std::string& folder);

/// What happened.
struct flight_report {
  enum class kind : unsigned char {
    agreed,     ///< nobody waits for anybody
    missing,    ///< a rank's body has ended, with an error or without, while others wait for it
    disagreed,  ///< ranks made different calls at the same place
    skipped,    ///< a rank left out or doubled one of equal calls
    circle,     ///< ranks wait for each other
    silent,     ///< a rank is in no call while others wait for it: it computes, or hangs elsewhere
    lost,       ///< the process of a rank is gone
    undecided   ///< who is waited for has no file, too few calls are kept, or as many ranks swapped calls as did not
  };
  kind what = kind::agreed;
  std::string group;          ///< name of the communicator, where there is one
  std::int64_t number = 0;    ///< of the collective in the group
  std::vector<int> culprits;  ///< world ranks
  std::vector<int> victims;   ///< ranks that wait, for a culprit or for another victim
  std::string text;           ///< all of it in sentences
};
/// "skipped"
HEDDLE_INLINE std::string_view to_string(flight_report::kind what);

/// The verdict over the files of a launch. Where ranks disagree, what most of them did counts as right.
HEDDLE_INLINE flight_report report_of(const flights& all);

/// Ranks as cells, by colour: running, waiting, silent, lost or ended; `labels` as "dp=0, pp=1", or none.
HEDDLE_INLINE std::string hang_svg(const flights& all, const flight_report& report,
                                   std::span<const std::string> labels = {});

}  // namespace heddle::inline v0::observe

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/observe/impl/flight_report.hpp>
#endif
