// refuse: heddle: products_in<P> takes bf16, float8 and float8_rows; without it products are of the model's scalar
#include <heddle/train/precision.hpp>
#include <heddle/train/products.hpp>

namespace hd = heddle;
hd::precision<hd::products_in<float>> plain;
