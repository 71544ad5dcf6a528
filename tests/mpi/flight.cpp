// Flight files of processes:
//   heddle_mpi_flight run FOLDER FAULT CULPRIT checked|unchecked     under mpirun -n 4
//   heddle_mpi_flight read FOLDER                                    prints kind, culprits and the text
#include "observe/flight_steps.hpp"

#include <heddle/comm/mpi.hpp>
#include <heddle/observe/flight_report.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace hd = heddle;

int main(int argc, char** argv) try {
  const std::string what = argc > 2 ? argv[1] : "";
  if (what == "read") {
    const auto report = hd::observe::report_of(hd::observe::read_flights(argv[2]));
    std::printf("%s", std::string(to_string(report.what)).c_str());
    for (const int r : report.culprits) std::printf(" %d", r);
    std::printf("\n%s\n", report.text.c_str());
    return 0;
  }
  if (what != "run" || argc < 6) return 2;
  hd::launch_options options;
  options.flight = argv[2];
  options.flight_calls = 16;
  options.timeout = std::chrono::seconds(30);
  if (std::string(argv[5]) == "unchecked") options.check = hd::checking::off;
  return hd::launch<hd::mpi, flight_steps::grid>(
      argc, argv, options, [&](auto& world) { flight_steps::steps(world, std::atoi(argv[4]), argv[3]); });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
