// heddle/io.hpp: data sets, tokens and saved tensors.
#pragma once

#include <heddle/io/checkpoint.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/documents.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/io/durable_file.hpp>
#include <heddle/io/manifest.hpp>
#include <heddle/io/node_topology.hpp>
#include <heddle/io/output_folder.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/io/permutation.hpp>
#include <heddle/io/safetensors/block_scales.hpp>
#include <heddle/io/safetensors/dtype.hpp>
#include <heddle/io/safetensors/entry.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/io/safetensors/other_weights.hpp>
#include <heddle/io/safetensors/packed_matrix.hpp>
#include <heddle/io/save_folder.hpp>
#include <heddle/io/save_index.hpp>
#include <heddle/io/save_names.hpp>
#include <heddle/io/tensor_file.hpp>
#include <heddle/io/token_targets.hpp>
