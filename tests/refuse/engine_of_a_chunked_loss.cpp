// refuse: heddle: engines read all logits of a row: give them the model without with_chunked_loss, which has the same parameters
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/with_chunked_loss.hpp>

namespace hd = heddle;
using model = hd::model::with_chunked_loss<hd::model::gpt2<float>, 64>;
struct world {
  hd::mesh<> mesh() const { return {}; }
};
using stage = hd::infer::cached_stage<model, world, hd::compute::host<>>;
constexpr int rows = stage::head_rows;

int main() {}
