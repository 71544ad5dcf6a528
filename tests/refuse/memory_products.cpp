// refuse: heddle: products_in<bf16> needs a backend with products of bf16 and casts from float to it (half_product_facet, cast_facet<bf16>); with this one leave it out of precision<...>
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using backend = hd::testing::checked_backend<hd::compute::host<>>;
struct without_halves : backend {
  using backend::backend;
  const char* half_product_name() const = delete;
};
using precision = hd::precision<hd::weights_in<hd::bf16>, hd::products_in<hd::bf16>>;
hd::strategy<mesh, backend, precision> fine;
hd::strategy<mesh, without_halves, precision> odd;
