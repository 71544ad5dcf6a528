// tests/train/runs.hpp: whole training runs behind plain functions, so that the trainer is compiled in one file only.
#pragma once

#include <heddle/io/store.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace train_test {

/// What to train and where. Data: random tokens, the same for all.
struct setup {
  std::string mesh = "";
  std::string schedule = "1f1b";
  int microbatches = 2;
  std::vector<int> layers_per_stage = {};  // empty: even
  int layers = 3, heads = 4, width = 24, context = 12, vocabulary = 61;
  std::int64_t batch = 6, steps = 2;
  double clip = 0.5;  // clips from the first step on
  double learning_rate = 1e-3;
  int zero = 1;
  bool post_validation = false;  // with layers by cost and zero<1>, in double
  bool with_copy = false;        // with post_validation: of what a step may have to be taken back to
  bool ahead = false;            // with post_validation: steps are finished where they must be
  std::int64_t validate_every = 0;
  std::string save_to = "", resume_from = "";
  heddle::io::store* store = nullptr;  // instead of folders, in double: `save_to` and `resume_from` only say whether
  std::string peers =
      "";  // in double, zero 1, with a store: the folders of nodes, of which each rank along dp has its own
  std::string in_background = "";  // saves in double: "ends" or "reports" what fails
  std::int64_t save_every = 0;
  bool beside = false;      // numbers of somebody else in the saves, which must come back
  std::string poison = "";  // a parameter whose every weight gets this value first
  double poison_value = 0;
  std::string spoilt = "";  // a parameter of which one element changes after the first step, on this rank if it has it
  int spoilt_rank = 0;
  std::int64_t held_out = -1;     // not negative: validation samples that the data says it has
  int odd_rank = -1;              // this rank gets another seed
  std::int64_t ignore_every = 0;  // every so many targets is ignored; 0: none
  std::vector<int> order = {};    // of launched ranks on the mesh, on threads only; empty: as launched
};

/// What one rank did in the last step.
struct rank_facts {
  int pp = 0, tp = 0;
  int launched = 0;                                // the rank that it is outside of `setup::order`
  std::int64_t sends = 0, bytes_sent = 0;          // of the pipeline, by the executor
  std::int64_t comm_messages = 0, comm_bytes = 0;  // of the same step, by the communicator along pp
  std::int64_t taken_back = 0;
  int overlapped = 0;                              // pairs that ran at the same time
  std::int64_t tied_messages = 0, tied_bytes = 0;  // by the world's communicator along pp
  int peak_live = 0;
  std::int64_t max_samples = 0;
  int slots = 0;
  std::int64_t saved_bytes = 0, state_bytes = 0, parameters = 0;
  std::int64_t dp_reduced = 0, dp_gathered = 0;  // bytes this rank gave to reduce_scatter_v/all_reduce and all_gather_v
};

struct outcome {
  std::vector<double> losses, norms, validation;
  std::map<std::string, std::vector<double>> gradients;  // of the last step, whole tensors by name, before clipping
  std::map<std::string, std::vector<double>> weights;    // after the last step
  std::map<std::string, std::vector<double>> moments;    // of AdamW, then: "0 name" the first, "1 name" the second
  std::vector<rank_facts> ranks;
  std::int64_t first_step = 0;           // 0, or where a resumed run went on
  std::vector<std::int64_t> bytes_read;  // by each rank that resumed
  std::vector<std::string> faults;       // of saves in the background, of each rank
  std::int64_t saves_failed = 0;
  bool from_peers = false;                  // a run that resumed from copies of peers
  int files_moved = 0;                      // of them
  std::string why_not_peers;                // else
  std::vector<std::int64_t> peer_bytes;     // of the last copy: sent by each rank,
  std::vector<std::int64_t> message_bytes;  // as the communicator counts them
};

/// Whether there can be as many ranks here as the mesh has.
bool fits(const std::string& mesh);
/// Whether a test that would take long with processes leaves this case to threads.
bool is_spared(std::string_view schedule, int microbatches);
/// In double, and in float; portable products.
outcome train_f64(const setup& s);
outcome train_f32(const setup& s);

/// Largest difference of any element relative to the largest element of its tensor in `reference`.
double largest_error(const std::map<std::string, std::vector<double>>& got,
                     const std::map<std::string, std::vector<double>>& reference);

/// The steps of the PyTorch golden file through the trainer: losses, norms, gradients and weights per step.
struct golden_outcome {
  std::vector<double> losses, norms;
  std::vector<std::map<std::string, std::vector<double>>> gradients, weights;
};
golden_outcome train_golden_f32(const std::string& mesh, const std::string& schedule);
golden_outcome train_golden_f64(const std::string& mesh, const std::string& schedule);

}  // namespace train_test
