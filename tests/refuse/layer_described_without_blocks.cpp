// refuse: heddle: describe(config) returns layers::network(in, name, count, block, out) or a layers::language_model of embedding, blocks and head
#include <heddle/comm/threads.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/model/layers/linear.hpp>
#include <heddle/model/network.hpp>
#include <heddle/train/make_trainer.hpp>

namespace hd = heddle;
using hd::model::dims;
namespace dim = hd::dim;
struct net : hd::model::described<net, double, hd::model::pair_batch<double>, hd::model::network_config> {
  static auto describe(const config& c) {
    return hd::model::layers::linear<dims<dim::features>, dims<dim::outputs>>("f", {c.inputs}, {c.outputs}, 0.1);
  }
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
void train(const hd::train::options<net::config>& o, const hd::io::pairs<double, double>& data) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<mesh>>(net{}, world, o);
    trainer.run(data);
  });
}
