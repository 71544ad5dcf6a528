// heddle/core/config.hpp: the language level heddle needs, and the one macro device code needs.
#pragma once

#if defined(_MSVC_LANG)
#if _MSVC_LANG < 202002L
#error "heddle needs C++20: /std:c++20"
#endif
#elif __cplusplus < 202002L
#error "heddle needs C++20: g++ -std=c++20, clang++ -std=c++20, nvcc -std=c++20"
#endif

/// Whether indices are checked where views and buffers are read by index: `-DHEDDLE_CHECK_BOUNDS=1`. An index out of range is
/// then a `layout_error`, otherwise undefined. Off unless it is defined, and then no instruction of it is there. It changes
/// inline functions, so all files of one program must agree (the one definition rule).
#if !defined(HEDDLE_CHECK_BOUNDS)
#define HEDDLE_CHECK_BOUNDS 0
#endif

/// Marks a function that host and device code may both call. Empty outside CUDA compilation.
#if defined(__CUDACC__)
#define HEDDLE_HD __host__ __device__
#else
#define HEDDLE_HD
#endif
