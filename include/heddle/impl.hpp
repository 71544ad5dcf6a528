// heddle/impl.hpp: what HEDDLE_SEPARATE_COMPILATION leaves out of all files but one, the one that includes this.
#pragma once

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#error "heddle/impl.hpp: define HEDDLE_SEPARATE_COMPILATION for this file and for all others of the program"
#endif

#include <heddle/comm/impl/call_info.hpp>
#include <heddle/comm/impl/rethrow.hpp>
#include <heddle/comm/impl/threads/group_state.hpp>
#include <heddle/comm/impl/threads/shared_state.hpp>
#include <heddle/compute/impl/host.hpp>
#include <heddle/compute/impl/host_kernels.hpp>
#include <heddle/io/impl/checkpoint.hpp>
#include <heddle/io/impl/corpus.hpp>
#include <heddle/io/impl/durable_file.hpp>
#include <heddle/io/impl/manifest.hpp>
#include <heddle/io/impl/save_folder.hpp>
#include <heddle/io/impl/tensor_file.hpp>
