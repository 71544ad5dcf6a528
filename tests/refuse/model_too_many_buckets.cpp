// refuse: heddle: the gradients of a language_stage's parameters are summed over more than four different sets of axes
#include <heddle/model/language_checks.hpp>

namespace hd = heddle;
namespace md = hd::model;
namespace ly = md::layers;
struct a {};
struct b {};
struct c {};
struct d {};
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<a, 2>, hd::axis<b, 2>, hd::axis<c, 2>, hd::axis<d, 2>>;
using how = hd::sharding<hd::dim::split<hd::dim::samples, hd::dp>, hd::dim::split<a, a>, hd::dim::split<b, b>,
                         hd::dim::split<c, c>, hd::dim::split<d, d>>;
// Weights that are each used together with another dimension.
template <class Met>
using weight = ly::parameter<Met, md::dims<hd::dim::width>, md::dims<>, md::dims<Met>>;
struct block : ly::leaf {
  constexpr auto parameters() const {
    return ly::list(weight<a>{"a", {8}}, weight<b>{"b", {8}}, weight<c>{"c", {8}}, weight<d>{"d", {8}});
  }
};
static_assert(md::detail::language_stage_is_possible<md::layouts<mesh, how>, ly::leaf, block, ly::leaf>::value);
