// refuse: heddle: dim::sequence is split between the embedding and the head of a language model
#include <heddle/model/language_checks.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>

namespace hd = heddle;
namespace ly = hd::model::layers;
namespace dim = hd::dim;
using hd::model::dims;
using how = hd::sharding<dim::split<dim::ffn, hd::tp>, dim::split<dim::sequence, hd::tp>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, how>;
using in = ly::linear<dims<dim::features>, dims<dim::width>>;
using out = ly::linear<dims<dim::width>, dims<dim::outputs>>;
static_assert(hd::model::detail::language_stage_is_possible<layouts, in, ly::rms_norm<>, out>::value);
