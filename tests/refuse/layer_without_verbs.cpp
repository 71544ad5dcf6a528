// refuse: heddle: a layer needs a verb forward(b, x, y)
#include <heddle/comm/threads.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>
#include <heddle/train/make_trainer.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
using hd::model::dims;
namespace dim = hd::dim;
struct own : ly::leaf {
  const char* name = "";
};
struct net : hd::model::described<net, double, hd::model::pair_batch<double>, hd::model::network_config> {
  static auto describe(const config& c) {
    using in = ly::linear<dims<dim::features>, dims<dim::width>>;
    using out = ly::linear<dims<dim::width>, dims<dim::outputs>>;
    return ly::network(in("in", {c.inputs}, {c.width}, 0.1), "block.", c.layers,
                       ly::residual(ly::layer_norm<>("norm", c.width, 1e-5), own{}),
                       ly::squared_error(out("out", {c.width}, {c.outputs}, 0.1)));
  }
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
void train(const hd::train::options<net::config>& o, const hd::io::pairs<double, double>& data) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<mesh>>(net{}, world, o);
    trainer.run(data);
  });
}
