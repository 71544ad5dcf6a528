// refuse: heddle: products_in<float8> needs the host's memory or a backend with products of scaled operands (compute::scaled_product_facet), products_in<float8_rows> with a scale for each row (compute::row_scaled_product_facet)
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using on_device = hd::testing::checked_backend<hd::compute::host<>>;
using strategy =
    hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>, on_device, hd::precision<hd::products_in<hd::float8_rows>>>;
using backend = strategy::backend;
