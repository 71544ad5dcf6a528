// refuse: heddle: flow::chain: each part but the first takes the value of the one before, once; give it flow::before<...>(shape), or make a flow::graph
#include <heddle/comm/threads.hpp>
#include <heddle/train/flow.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/op.hpp>

namespace hd = heddle;
using hd::sbp::B, hd::sbp::S;
using ranks = hd::mesh<hd::axis<hd::dp, 4>>;
using pair = hd::mesh<hd::axis<hd::tp, 2>>;
constexpr auto product = [](auto w, auto x) { return hd::einsum<"bi,io->bo">(hd::auto_redistribute{}, x, w); };
constexpr auto loss = [](auto x) { return hd::mean(x); };
const auto weight = hd::flow::weight<B>(hd::shape{4, 6});
const auto input = hd::flow::input<B>(hd::shape{8, 4});
const auto passed = hd::flow::before<B>(hd::shape{8, 6});
void make(hd::world<hd::threads, ranks>& w, hd::compute::host<>& b) {
  using left = hd::flow::placement<pair, 0>;
  using right = hd::flow::placement<pair, 2>;
  hd::flow::chain(w, b, 4, 0, hd::flow::on<left>(product, weight, input), hd::flow::on<right>(loss, input));
}
