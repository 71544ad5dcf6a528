// refuse: heddle: files hold bf16, f16, float, double and the integers of 8 to 64 bits; convert first
#include <heddle/io/dtype.hpp>

constexpr auto name = heddle::io::dtype_name<bool>();
