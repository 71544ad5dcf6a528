// heddle/compute/kernel_list.hpp: the kernels of a backend as one list, for backends that stand before another one.
#pragma once

/// Every kernel that such a backend passes on and that is not described as an operation (compute/op.hpp), each once:
/// `PLAIN(name)`, `OF_VALUES(name)` and `OF_TYPE(name)` say what callers name besides its arguments: nothing, values
/// (`matmul<transpose::no, transpose::yes>`), or a type. A kernel that is added here is there in all of them
/// (`testing::checked_backend`, `model::paper_backend`).
#define HEDDLE_EACH_KERNEL(PLAIN, OF_VALUES, OF_TYPE) \
  OF_VALUES(matmul)                                   \
  OF_VALUES(matmul_add_bias)                          \
  OF_VALUES(matmul_add_bias_gelu)                     \
  OF_VALUES(matmul_gelu_backward)                     \
  OF_VALUES(matmul_add_bias_backward)                 \
  OF_VALUES(grouped_matmul)                           \
  PLAIN(grouped_matmul_backward_weight)
