// heddle/tensor.hpp: memory spaces, sharded tensors and redistribution of them.
#pragma once

#include <heddle/tensor/async_jobs.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/box_table.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/exchange_step.hpp>
#include <heddle/tensor/global_runs.hpp>
#include <heddle/tensor/gradient.hpp>
#include <heddle/tensor/halo_exchange.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/tensor/huge_pages.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/ordered_sum.hpp>
#include <heddle/tensor/random.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/redistribute_async.hpp>
#include <heddle/tensor/runs.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/staged_rows.hpp>
#include <heddle/tensor/sum_among.hpp>
#include <heddle/tensor/sum_among_in_order.hpp>
#include <heddle/tensor/tensor_sink.hpp>
#include <heddle/tensor/tensor_source.hpp>
#include <heddle/tensor/transfer.hpp>
#include <heddle/tensor/view.hpp>
