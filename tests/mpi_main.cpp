// The main program of tests that mpirun starts: every process runs all of them. The first one reports, and those in which
// something failed.
#include "catch_session.hpp"
#include "transport.hpp"

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

namespace {

// What a process prints goes to a file without a name, and from there to stderr if a test failed in it.
class kept_output {
 public:
  kept_output() : file_(std::tmpfile()) {
    if (file_ != nullptr) ::dup2(::fileno(file_), 1);
  }
  bool opened() const { return file_ != nullptr; }
  void show(int rank) {
    std::fflush(stdout);
    std::rewind(file_);
    std::string text = "heddle: what process " + std::to_string(rank) + " reports:\n";
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) text += static_cast<char>(c);
    std::fputs(text.c_str(), stderr);
  }

 private:
  std::FILE* file_;
};

}  // namespace

int main(int argc, char** argv) {
  const heddle::mpi_session session(argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::optional<kept_output> kept;
  if (rank != 0 && !kept.emplace().opened()) return 2;
  int failed = Catch::Session().run(argc, argv), any = 0;
  if (rank != 0 && failed != 0) kept->show(rank);
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return any;
}
