// refuse: heddle: products_in<bf16> is of models whose scalar is float, in which products are added up
#include <heddle/train/products.hpp>
#include <heddle/train/optimizer_of_strategy.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>, hd::precision<hd::products_in<hd::bf16>>>;
using odd = hd::train::detail::optimizer_under<double, strategy>;
