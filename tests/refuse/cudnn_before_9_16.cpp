// refuse: heddle/compute/cudnn needs cuDNN 9.16 or later: cudnn.h is older
#include <cudnn.h>
#undef CUDNN_VERSION
#define CUDNN_VERSION 91500
#include <heddle/compute/cudnn/graph.hpp>
