// heddle/train/context_batches.hpp: documents of a step on one rank, as microbatches.
#pragma once

#include <heddle/context/check.hpp>
#include <heddle/context/kept_tail.hpp>
#include <heddle/context/program.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/split.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/model/context_batch.hpp>
#include <heddle/model/pipeline/companion.hpp>
#include <heddle/model/recompute_plan.hpp>
#include <heddle/plan/document_waves.hpp>
#include <heddle/plan/sequence_costs.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/train/context_policies.hpp>
#include <heddle/train/same_options.hpp>
#include <heddle/train/stage_parts.hpp>
#include <heddle/train/step_batches.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

namespace detail {

// Documents as a trainer reads them: of a `document_source`, or samples of one length, each a document.
template <class Data>
class documents_of {
 public:
  explicit documents_of(const Data& data) noexcept : data_(data) {}
  // Calls f(id) of the documents that are number `i` of the endless order of training, or held-out number `i`: one, or those of a pack.
  template <class F>
  void each_id(std::int64_t i, bool held_out, F&& f) const {
    if constexpr (requires { data_.train_pack(i), data_.validation_pack(i); }) {
      const auto pack = held_out ? data_.validation_pack(i) : data_.train_pack(i);
      for (std::int64_t k = 0; k < pack.count; ++k) f(pack.first + k);
    } else {
      f(id(i, held_out));
    }
  }
  // Document number `i` of the endless order of training, or held-out document `i`.
  std::int64_t id(std::int64_t i, bool held_out) const {
    if constexpr (document_source<Data>) {
      if (held_out) {
        if constexpr (requires { data_.validation_document(i); }) return data_.validation_document(i);
      } else if constexpr (requires { data_.train_document(i); }) {
        return data_.train_document(i);
      }
      return i % static_cast<std::int64_t>(data_.documents());
    } else {
      return i;
    }
  }
  std::int64_t length(std::int64_t id) const {
    if constexpr (document_source<Data>)
      return static_cast<std::int64_t>(data_.length(id));
    else
      return static_cast<std::int64_t>(data_.context());
  }
  void fill(std::int64_t id, bool held_out, std::int64_t first, std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const {
    if constexpr (document_source<Data>) {
      data_.fill(id, first, inputs, targets);
    } else {
      std::vector<std::int32_t> sample(static_cast<std::size_t>(2 * data_.context()));
      const std::span<std::int32_t> all(sample);
      const auto n = static_cast<std::size_t>(data_.context());
      if (held_out)
        data_.fill_validation({id, 1}, all.first(n), all.last(n));
      else
        data_.fill_train({id, 1}, all.first(n), all.last(n));
      std::copy_n(all.begin() + first, inputs.size(), inputs.begin());
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(n) + first, targets.size(), targets.begin());
    }
  }

 private:
  const Data& data_;
};

// A number that tells plans, and the documents that they are for, apart.
inline std::uint64_t checksum_of(std::span<const std::int64_t> lengths, std::span<const plan::document_wave> waves) {
  io::checksum64 sum;
  sum.update(std::as_bytes(lengths));
  for (std::size_t w = 0; w < waves.size(); ++w)
    for (const plan::placed_document& d : waves[w].documents) {
      const std::array<std::int64_t, 3> place{static_cast<std::int64_t>(w), d.document, std::ssize(d.ranks)};
      sum.update(std::as_bytes(std::span(place))).update(std::as_bytes(std::span(d.ranks)));
    }
  return sum.value();
}
// Whether a number is the same on all ranks of a group, whose communicator it refers to.
class same_on_all {
 public:
  template <class Group>
  explicit same_on_all(Group& group)
      : group_(&group), ask_([](void* g, std::uint64_t x) {
          std::array<std::uint64_t, 2> both{x, ~x};
          static_cast<Group*>(g)->all_reduce(std::span<std::uint64_t>(both), maximum{});
          return both[0] == ~both[1];
        }) {}
  bool operator()(std::uint64_t x) const { return ask_(group_, x); }

 private:
  void* group_;
  bool (*ask_)(void*, std::uint64_t);
};

// What a token of a transformer takes forward and backward, in numbers that only compare documents. Source: Kaplan et al. 2020,
// arXiv:2001.08361, section 2.1.
template <class Config>
plan::sequence_costs costs_of_sizes(const Config& c) {
  plan::sequence_costs costs;
  if constexpr (requires { c.width, c.layers; }) {
    const double width = static_cast<double>(c.width), layers = static_cast<double>(c.layers);
    costs.linear = 72 * layers * width * width * 1e-12;
    costs.square = 6 * layers * width * 1e-12;
  } else {
    costs.linear = 1;
  }
  return costs;
}

}  // namespace detail

/// The microbatches of a step whose samples are documents: the planner's waves, each with this rank's rows of its documents and the
/// programs of their attention. All ranks that share documents plan alike, which one number checks.
template <class T, class Context>
class step_batches<model::context_batch<T, Context>> {
 public:
  using batch_type = model::context_batch<T, Context>;
  using input = std::int32_t;
  using target = std::int32_t;
  using balance = plan::balance;

  /// `max_rows`: of one microbatch; `ranks`: this rank's group along the axis of the context split; `kept`: of the outputs of
  /// attention that are dropped, where some are.
  template <class Ranks, class Options>
  step_batches(schedule::table_view t, const stage_parts& parts, int pipeline_rank, std::int64_t max_rows, Ranks& ranks,
               const Options& options, balance by, model::row_share kept = {})
      : settings_(settings_of_context<Context>::make(options.context)),
        group_(ranks),
        costs_(options.costs == nullptr ? detail::costs_of_sizes(options.model) : *options.costs),
        balance_(by),
        kept_(kept),
        rank_(ranks.rank()),
        ranks_(ranks.size()),
        rows_(max_rows),
        context_(options.model.context),
        microbatches_(static_cast<std::size_t>(t.microbatches())),
        batches_(microbatches_.size()) {
    costs_.validate();
    require_same_options(ranks, "costs=" + to_string(costs_));
    const auto mark = [&](int part) {
      for (const int s : parts.stages_of(part))
        for (int i = 0; i < t.microbatches() && t.rank_of(s) == pipeline_rank; ++i)
          if (t.handles(s, i)) (part == 0 ? of(i).begins : of(i).ends) = true;
    };
    mark(0);
    if (parts.parts() > 1)
      mark(parts.parts() - 1);
    else
      for (microbatch& m : microbatches_) m.ends = m.begins;
  }
  step_batches(const step_batches&) = delete;
  step_batches& operator=(const step_batches&) = delete;

  /// Rows of a microbatch: `options.rows_per_rank`, or those of its documents if all had the whole context.
  template <class Options>
  static std::int64_t most_samples(const Options& o, int shares, int microbatches, int context_ranks) {
    if (o.rows_per_rank > 0) return o.rows_per_rank;
    const std::int64_t documents = balanced_split{balanced_split{o.batch, shares}.largest(), microbatches}.largest();
    return documents * plan::tokens_of_share(o.model.context, context_ranks);
  }

  std::span<const batch_type> all() const noexcept { return batches_; }
  /// Tokens of the step that was loaded last, over all ranks.
  std::int64_t targets_of_step() const noexcept { return tokens_; }
  /// The waves of that step on the ranks of this one's documents, and the lengths of these.
  std::span<const plan::document_wave> waves() const noexcept { return waves_; }
  std::span<const std::int64_t> lengths() const noexcept { return lengths_; }

  /// Loads the documents of a step: `step` of all ranks, of which those that share rows with this one have `share`.
  /// Errors: `config_error` for a document longer than the context, or than its ranks have room for, and for too few microbatches.
  template <sample_source<batch_type> Data>
  void load(const Data& data, detail::block_of_samples step, detail::block_of_samples share) {
    const detail::documents_of<Data> documents(data);
    const documents_of_step those = documents_in(documents, step, share);
    plan_of_step planned;
    if (ahead_.is_for(those)) {
      planned = std::exchange(ahead_, {});
      if (planned.error) std::rethrow_exception(planned.error);
      ++planned_ahead_;
    } else {
      planned = plan_for(those);
    }
    if (!group_(detail::checksum_of(those.lengths, planned.waves)))
      throw comm_error("heddle: ranks that share documents have different documents, or another plan for them; data and planner "
                       "must be the same on all");
    if (planned.waves.size() > microbatches_.size())
      throw config_error("heddle: the documents of this step need " + std::to_string(planned.waves.size()) +
                         " microbatches of " + std::to_string(rows_) + " rows on each of " + std::to_string(ranks_) +
                         " ranks; options.microbatches is " + std::to_string(microbatches_.size()));
    tokens_ = those.tokens;
    lengths_ = those.lengths;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      fill(documents, false, i < planned.waves.size() ? planned.waves[i] : plan::document_wave{}, those.ids,
           std::move(planned.placed[i]), microbatches_[i], batches_[i]);
      batches_[i].loss_scale = static_cast<decltype(batches_[i].loss_scale)>(1.0 / static_cast<double>((std::max)(tokens_, std::int64_t{1})));
    }
    waves_ = std::move(planned.waves);
  }

  /// Does `work` while a thread plans another step, the next one: its `load` finds waves and programs made if it has the same
  /// documents. What planning throws, that `load` throws.
  template <sample_source<batch_type> Data, class Work>
  void plan_beside(const Data& data, detail::block_of_samples step, detail::block_of_samples share, Work&& work) {
    if (!planner_) planner_ = std::make_unique<model::companion>();
    ahead_ = {};
    planner_->together(std::forward<Work>(work), [&] {
      try {
        ahead_.documents = documents_in(detail::documents_of<Data>(data), step, share);
        ahead_ = plan_for(ahead_.documents);
      } catch (...) {
        ahead_.error = std::current_exception();
      }
    });
  }
  /// Of how many steps the plan was there when they began.
  std::int64_t planned_ahead() const noexcept { return planned_ahead_; }

  /// Held-out document `first`, on all ranks; or none. It takes the place of the step's first microbatch.
  template <sample_source<batch_type> Data>
  batch_type held_out(const Data& data, std::int64_t first, std::int64_t count) {
    const detail::documents_of<Data> documents(data);
    std::vector<std::int64_t> ids, lengths;
    for (std::int64_t i = first; i < first + count; ++i)
      documents.each_id(i, true, [&](std::int64_t id) {
        ids.push_back(id);
        lengths.push_back(checked_length(id, documents.length(id)));
      });
    std::vector<plan::document_wave> waves = plan::whole_axis(lengths, ranks_, rows_);
    if (waves.size() > 1)
      throw config_error("heddle: held-out pack " + std::to_string(first) + " needs more than the " + std::to_string(rows_) +
                         " rows that a microbatch has on each of " + std::to_string(ranks_) + " ranks");
    waves.resize(1);
    microbatch& m = microbatches_.front();
    const bool begins = std::exchange(m.begins, true), ends = std::exchange(m.ends, true);
    batch_type b;
    fill(documents, true, waves.front(), ids, place(waves.front(), lengths), m, b);
    m.begins = begins, m.ends = ends;
    return b;
  }
  /// How many held-out documents one microbatch has.
  static constexpr std::int64_t held_out_at_once(std::int64_t /*max_samples*/) noexcept { return 1; }

  /// `check(batch, begins, ends)` of those that enter the model on this rank, leave it, or both.
  template <class Check>
  void check_ends(Check&& check) const {
    for (std::size_t i = 0; i < batches_.size(); ++i)
      if (microbatches_[i].begins || microbatches_[i].ends)
        check(batches_[i], bool{microbatches_[i].begins}, bool{microbatches_[i].ends});
  }
  /// How many targets count, of the microbatches that leave the model on this rank: negative ids are ignored.
  double counted_targets() const {
    double n = 0;
    for (std::size_t i = 0; i < batches_.size(); ++i)
      if (microbatches_[i].ends) n += counted_targets(batches_[i].targets);
    return n;
  }
  static double counted_targets(std::span<const target> targets) {
    return static_cast<double>(std::count_if(targets.begin(), targets.end(), [](target id) { return id >= 0; }));
  }
  template <class Data>
  void require_fitting(const Data& data) const {
    if constexpr (!document_source<Data>)
      if (data.context() > context_)
        throw config_error("heddle: the data has samples of " + std::to_string(data.context()) +
                           " tokens, the model a context of " + std::to_string(context_));
  }

 private:
  struct microbatch {
    model::context_programs programs{};
    std::vector<std::int32_t> tokens{}, targets{}, positions{};
    bool begins = false, ends = false;
  };
  // The documents of a step, of all ranks, and of those that share this rank's.
  struct documents_of_step {
    std::int64_t tokens = 0;
    std::vector<std::int64_t> ids{}, lengths{};
    friend bool operator==(const documents_of_step&, const documents_of_step&) = default;
  };
  struct placed_wave {
    context_cut cut{};
    model::context_programs programs{};
  };
  struct plan_of_step {
    documents_of_step documents{};
    std::vector<plan::document_wave> waves{};
    std::vector<placed_wave> placed{};  // of each microbatch; none where nothing is planned
    std::exception_ptr error{};
    bool is_for(const documents_of_step& d) const { return (error || !placed.empty()) && documents == d; }
  };
  microbatch& of(int i) { return microbatches_[static_cast<std::size_t>(i)]; }
  template <class Documents>
  documents_of_step documents_in(const Documents& documents, detail::block_of_samples step,
                                 detail::block_of_samples share) const {
    documents_of_step those;
    for (std::int64_t i = step.first; i < step.first + step.count; ++i)
      documents.each_id(i, false, [&](std::int64_t id) {
        const std::int64_t length = checked_length(id, documents.length(id));
        those.tokens += length;
        if (i < share.first || i >= share.first + share.count) return;
        those.ids.push_back(id);
        those.lengths.push_back(length);
      });
    return those;
  }
  plan_of_step plan_for(documents_of_step those) const {
    plan_of_step planned;
    planned.waves = settings_.plan(those.lengths, ranks_, rows_, costs_, balance_);
    plan::require_waves(planned.waves, those.lengths, ranks_, rows_);
    planned.placed.resize(batches_.size());
    for (std::size_t i = 0; i < planned.placed.size(); ++i)
      planned.placed[i] = place(i < planned.waves.size() ? planned.waves[i] : plan::document_wave{}, those.lengths);
    planned.documents = std::move(those);
    return planned;
  }
  std::int64_t checked_length(std::int64_t document, std::int64_t length) const {
    if (length < 0 || length > context_)
      throw config_error("heddle: document " + std::to_string(document) + " has " + std::to_string(length) +
                         " tokens; expected at most the model's context, " + std::to_string(context_));
    if (plan::tokens_of_share(length, ranks_) > rows_)
      throw config_error("heddle: document " + std::to_string(document) + " has " + std::to_string(length) +
                         " tokens; " + std::to_string(ranks_) + " ranks with rows_per_rank = " + std::to_string(rows_) +
                         " have room for " + std::to_string(ranks_ * rows_));
    return length;
  }
  context_program program_of(const context_carrier& carrier, const context_cut& cut, context_pass pass) const {
    const context_table table = make_context_table(carrier, cut, pass);
    if (!detail::is_known(carrier))
      if (const context_fault fault = check_context(table); !fault.ok())
        throw config_error("heddle: the carrier " + std::string(carrier.name) + " is wrong: " + to_string(fault));
    return lower_context(table, rank_);
  }

  placed_wave place(const plan::document_wave& wave, std::span<const std::int64_t> lengths) const {
    std::vector<context_document> placed;
    for (const plan::placed_document& d : wave.documents) {
      const std::int64_t length = lengths[static_cast<std::size_t>(d.document)];
      placed.push_back({length, d.ranks, settings_.mask(length)});
    }
    placed_wave w{settings_.cut(std::move(placed), ranks_), {}};
    w.programs = {program_of(settings_.forward, w.cut, context_pass::forward),
                  program_of(settings_.backward, w.cut, context_pass::backward)};
    if (kept_.any()) {
      w.programs.again = program_of(settings_.forward, without_tail(w.cut, kept_.part, kept_.of), context_pass::forward);
      w.programs.kept = kept_.of_rows(w.programs.forward.rows);
    }
    return w;
  }
  template <class Documents>
  void fill(const Documents& documents, bool held_out, const plan::document_wave& wave, std::span<const std::int64_t> ids,
            placed_wave&& placed, microbatch& m, batch_type& b) {
    const context_cut& cut = placed.cut;
    m.programs = std::move(placed.programs);
    const auto rows = static_cast<std::size_t>(m.programs.forward.rows);
    m.positions.resize(rows);
    m.tokens.resize(m.begins || m.ends ? rows : 0);
    m.targets.resize(m.tokens.size());
    std::vector<std::int32_t> inputs, targets;
    for (const context_piece& p : cut.pieces) {
      if (p.home != rank_) continue;
      for (std::int64_t i = 0; i < p.count; ++i)
        m.positions[static_cast<std::size_t>(p.row + i)] = static_cast<std::int32_t>(p.first + i * p.stride);
      if (m.tokens.empty()) continue;
      const auto run = static_cast<std::size_t>((p.count - 1) * p.stride + 1);
      inputs.resize(run);
      targets.resize(run);
      const std::int64_t document = wave.documents[static_cast<std::size_t>(p.document)].document;
      documents.fill(ids[static_cast<std::size_t>(document)], held_out, p.first, std::span<std::int32_t>(inputs),
                     std::span<std::int32_t>(targets));
      for (std::int64_t i = 0; i < p.count; ++i) {
        m.tokens[static_cast<std::size_t>(p.row + i)] = inputs[static_cast<std::size_t>(i * p.stride)];
        m.targets[static_cast<std::size_t>(p.row + i)] = targets[static_cast<std::size_t>(i * p.stride)];
      }
    }
    b.tokens = m.tokens;
    b.targets = m.targets;
    b.positions = m.positions;
    b.programs = &m.programs;
    b.samples = static_cast<int>(rows);
  }

  context_settings settings_;
  detail::same_on_all group_;
  plan::sequence_costs costs_;
  plan::balance balance_;
  model::row_share kept_;
  int rank_, ranks_;
  std::int64_t rows_, context_;
  std::int64_t tokens_ = 0;
  std::vector<microbatch> microbatches_;
  std::vector<batch_type> batches_;
  std::vector<std::int64_t> lengths_{};
  std::vector<plan::document_wave> waves_{};
  std::int64_t planned_ahead_ = 0;
  plan_of_step ahead_{};                       // of the next step, once its planner is done
  std::unique_ptr<model::companion> planner_;  // last: it uses all of the above
};

}  // namespace heddle::inline v0::train
