// heddle/core/config.hpp: the required language level, and settings that units must share.
#pragma once

#if defined(_MSVC_LANG)
#if _MSVC_LANG < 202002L
#error "heddle needs C++20: /std:c++20"
#endif
#elif __cplusplus < 202002L
#error "heddle needs C++20: g++ -std=c++20, clang++ -std=c++20, nvcc -std=c++20"
#endif

// What older ones say instead is errors about types that are not literal, or about arguments that are not deduced.
#if defined(__clang__)
#if !defined(__apple_build_version__) && __clang_major__ < 17
#error "heddle needs g++ 12 or clang 17, or a later one: this clang is older"
#endif
#elif defined(__GNUC__) && __GNUC__ < 12
#error "heddle needs g++ 12 or clang 17, or a later one: this g++ is older"
#endif

/// Whether indices are checked where views and buffers are read by index: `-DHEDDLE_CHECK_BOUNDS=1`. An index out of range is
/// then a `layout_error`, otherwise undefined. Off unless it is defined, and then no instruction of it is there. It changes
/// inline functions, so all files of one program must agree (the one definition rule).
#if !defined(HEDDLE_CHECK_BOUNDS)
#define HEDDLE_CHECK_BOUNDS 0
#endif

/// Whether backends check what their kernels are given: that sizes fit together, and that indices in memory of the host are in range.
/// On unless it is defined as 0, for programs that have run with it: what does not fit is then undefined, where it was a
/// `layout_error`, and no instruction of the checks is there. Layouts, operators and configurations are checked all the same.
/// All files of one program must agree, as about HEDDLE_CHECK_BOUNDS.
#if !defined(HEDDLE_CHECK_ARGUMENTS)
#define HEDDLE_CHECK_ARGUMENTS 1
#endif

/// Marks a function that host and device code may both call. Empty outside CUDA and HIP compilation.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define HEDDLE_HD __host__ __device__
#else
#define HEDDLE_HD
#endif

/// Marks a function whose body is in an impl/ header. Header-only, which is the default, that header follows the
/// declaration and the function is inline. With HEDDLE_SEPARATE_COMPILATION defined the bodies are left out, and are
/// compiled once: in the CMake target heddle::compiled, which defines the macro, or in the one file of a program that
/// includes heddle/impl.hpp. All units of a program, and its precompiled headers, must agree.
#if defined(HEDDLE_SEPARATE_COMPILATION)
#define HEDDLE_INLINE
#else
#define HEDDLE_INLINE inline
#endif

// What all units of a program (or of a shared library) must agree on. Each unit brings a section with a symbol that names
// what it was compiled with, and a reference to that symbol. The sections of all units form one group, and linkers keep
// one section of a group: a unit that was compiled otherwise lacks its symbol, and the linker names it. There are no
// instructions; a unit's reference is a byte of read-only data. With link-time optimization the assembler refuses it, as
// far as it sees the units in one partition. Linkers of other formats than ELF are not asked.
#if defined(__ELF__) && defined(__GNUC__) && !defined(__CUDA_ARCH__)
#define HEDDLE_UNITS_AGREE(subject, value, symbol)                                                \
  __asm__(".ifdef .L" subject "\n.if .L" subject " - " value "\n.error \"" symbol                 \
          " is not true of all of them\"\n.endif\n.else\n"                                        \
          ".set .L" subject ", " value                                                            \
          "\n"                                                                                    \
          ".pushsection .rodata." subject ",\"aG\",%progbits," subject                            \
          ",comdat\n"                                                                             \
          ".hidden " symbol "\n.globl " symbol "\n" symbol                                        \
          ":\n.byte 0\n.popsection\n"                                                             \
          ".pushsection .rodata.heddle_units,\"aR\",%progbits\n.reloc ., BFD_RELOC_NONE, " symbol \
          "\n.byte 0\n.popsection\n.endif")
#if defined(HEDDLE_SEPARATE_COMPILATION)
HEDDLE_UNITS_AGREE("heddle_units_compilation", "1", "heddle_units_are_separately_compiled");
#else
HEDDLE_UNITS_AGREE("heddle_units_compilation", "0", "heddle_units_were_compiled_header_only");
#endif
#if HEDDLE_CHECK_BOUNDS
HEDDLE_UNITS_AGREE("heddle_units_check_bounds", "1", "heddle_units_have_HEDDLE_CHECK_BOUNDS_1");
#else
HEDDLE_UNITS_AGREE("heddle_units_check_bounds", "0", "heddle_units_have_HEDDLE_CHECK_BOUNDS_0");
#endif
#if HEDDLE_CHECK_ARGUMENTS
HEDDLE_UNITS_AGREE("heddle_units_check_arguments", "1", "heddle_units_have_HEDDLE_CHECK_ARGUMENTS_1");
#else
HEDDLE_UNITS_AGREE("heddle_units_check_arguments", "0", "heddle_units_have_HEDDLE_CHECK_ARGUMENTS_0");
#endif
#undef HEDDLE_UNITS_AGREE
#endif
