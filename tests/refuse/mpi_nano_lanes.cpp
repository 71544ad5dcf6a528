// refuse: heddle: nano_runner: lanes are ranks that share memory, and ranks of MPI are processes; take hd::threads
#include <heddle/comm/mpi.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/nano_runner.hpp>
#include <heddle/model/llama.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::infer::lane, 2>, hd::axis<hd::tp, 2>>;
using model = hd::model::llama<float>;

int main(int argc, char** argv) {
  return hd::launch<hd::mpi, mesh>(argc, argv, [](auto& world) {
    hd::compute::host<> kernels;
    hd::infer::nano_runner<model, hd::world<hd::mpi, mesh>, hd::compute::host<>> lanes(model::config{}, world, kernels,
                                                                                       {8, 4}, 16, {});
  });
}
