// tests/compute/gemms.hpp: the libraries of matrix products that this build can be tested with.
#pragma once

#include <heddle/compute/host/portable.hpp>
#if __has_include(<dnnl.h>)
#include <heddle/compute/host/onednn.hpp>
#define HEDDLE_TEST_ONEDNN , heddle::compute::onednn
#else
#define HEDDLE_TEST_ONEDNN
#endif
#if __has_include(<cblas.h>)
#include <heddle/compute/host/cblas.hpp>
#define HEDDLE_TEST_CBLAS , heddle::compute::cblas
#else
#define HEDDLE_TEST_CBLAS
#endif
#if __has_include(<dnnl.h>) && __has_include(<cblas.h>)
#define HEDDLE_TEST_BOTH , heddle::compute::basic_onednn<heddle::compute::cblas>
#else
#define HEDDLE_TEST_BOTH
#endif

#define HEDDLE_TEST_GEMMS heddle::compute::portable HEDDLE_TEST_ONEDNN HEDDLE_TEST_CBLAS HEDDLE_TEST_BOTH
