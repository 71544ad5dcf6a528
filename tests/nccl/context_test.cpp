// Context tables run by ranks with a device each, over the stand-ins for NCCL and CUDA: the host's results, and one group of calls for the messages of a round.
#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/cuda/merge_partials.hpp>
#include <heddle/nccl/nccl.hpp>

#include "../cuda/emulated_launcher.hpp"
#include "catch.hpp"
#include "context/device_trials.hpp"
#include "double.hpp"

namespace context_over_nccl {
namespace {

using emulated = heddle::compute::basic_cuda<cuda_double::emulated_launcher<1>>;
TEST_CASE("every carrier attends over NCCL as on the host", "[nccl][context]") {
  using device_trials::differences;
  nccl_double::reset();
  nccl_double::devices(4);
  for (const int ranks : {1, 2, 3, 4})
    CHECK(differences<double, emulated, heddle::nccl>(ranks, {4, 2, 4, 6}, static_cast<unsigned>(ranks), 1e-11) == "");
  nccl_double::reset();
}

TEST_CASE("messages of a round go to NCCL as one group", "[nccl][context]") {
  using namespace device_trials;
  constexpr int ranks = 4;
  constexpr sizes z{4, 2, 4, 6};
  const hd::context_cut cut =
      hd::cut_documents<hd::split::zigzag>({{32, {0, 1, 2, 3}, hd::masks::causal{}.slices(32)}}, ranks);
  std::vector<rows<double>> whole(1, rows<double>(32, z));
  nccl_double::reset();
  nccl_double::devices(ranks);
  const auto groups = [&](const char* carrier) {
    const outcome o =
        compare_with_host<double, emulated, hd::nccl>(hd::named_context_carrier(carrier), cut, whole, z, 1);
    CHECK(o.messages_as_said);
    const int started = nccl_double::calls()["ncclGroupStart"];
    nccl_double::reset();
    nccl_double::devices(ranks);
    return started;
  };
  // Rounds with messages of each rank, forward and backward.
  const auto rounds = [&](const char* carrier) {
    int n = 0;
    for (const context_pass pass : {context_pass::forward, context_pass::backward})
      for (int r = 0; r < ranks; ++r)
        for (const hd::context_round& round :
             hd::lower_context(make_context_table(hd::named_context_carrier(carrier), cut, pass), r).rounds)
          n += !round.sends.empty() || !round.receives.empty();
    return n;
  };
  for (const char* carrier : {"kv-ring", "token-ring", "burst", "gather"}) {
    INFO(carrier);
    CHECK(groups(carrier) == rounds(carrier));
  }
}

}  // namespace
}  // namespace context_over_nccl
