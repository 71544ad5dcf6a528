// refuse: heddle: settle<From, To> combines contributions over tp, with one all_reduce
#include <heddle/model/tensor_parallel.hpp>

namespace hd = heddle;
using plan = hd::model::tensor_parallel<hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>>;
struct group {
  int size() const { return 2; }
  template <class Op>
  void all_reduce(std::span<float>, Op) {}
};
void gather(group& g, std::span<float> x) { hd::model::settle<plan::columns, plan::rows>(g, x); }
