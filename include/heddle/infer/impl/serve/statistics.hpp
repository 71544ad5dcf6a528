// heddle/infer/impl/serve/statistics.hpp: the histograms of a served engine, and their text.
#pragma once

#include <heddle/infer/serve/statistics.hpp>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

HEDDLE_INLINE void histogram::observe(double value, std::int64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<std::size_t>(at - bounds_.begin())] += times;
  sum_ += value * static_cast<double>(times);
}

HEDDLE_INLINE std::int64_t histogram::count() const noexcept {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

HEDDLE_INLINE std::vector<std::int64_t> histogram::cumulative() const {
  std::vector<std::int64_t> out(counts_.size());
  std::partial_sum(counts_.begin(), counts_.end(), out.begin());
  return out;
}

HEDDLE_INLINE void serve_statistics::first_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  first_.observe(seconds);
}

HEDDLE_INLINE void serve_statistics::next_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  next_.observe(seconds);
}

HEDDLE_INLINE void serve_statistics::ended(finish_reason reason, double seconds, std::int64_t prompt_tokens,
                                           std::int64_t answer_tokens) {
  const std::scoped_lock lock(mutex_);
  ++reasons_.at(static_cast<std::size_t>(reason));
  whole_.observe(seconds);
  prompt_.observe(static_cast<double>(prompt_tokens));
  answer_.observe(static_cast<double>(answer_tokens));
}

HEDDLE_INLINE void serve_statistics::refused() {
  const std::scoped_lock lock(mutex_);
  ++refused_;
}

HEDDLE_INLINE void serve_statistics::publish(const engine_counts& counts) {
  const std::scoped_lock lock(mutex_);
  counts_ = counts;
}

HEDDLE_INLINE engine_counts serve_statistics::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

HEDDLE_INLINE void serve_statistics::set_conditions(std::vector<std::pair<std::string, bool>> conditions) {
  const std::scoped_lock lock(mutex_);
  conditions_ = std::move(conditions);
}

HEDDLE_INLINE std::int64_t serve_statistics::ended(finish_reason reason) const {
  const std::scoped_lock lock(mutex_);
  return reasons_.at(static_cast<std::size_t>(reason));
}

namespace detail {

// Metrics as text; each line has the label of the model.
class prometheus_text {
 public:
  explicit prometheus_text(std::string_view model) {
    label_ = "model_name=\"";
    for (const char c : model) {
      if (c == '\n') {
        label_ += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') label_ += '\\';
      label_ += c;
    }
    label_ += '"';
    out_.precision(15);
  }
  void head(std::string_view name, std::string_view type, std::string_view help) {
    out_ << "# HELP heddle:" << name << ' ' << help << "\n# TYPE heddle:" << name << ' ' << type << '\n';
  }
  template <class Number>
  void line(std::string_view name, Number value, std::string_view more = {}) {
    out_ << "heddle:" << name << '{' << label_ << more << "} " << value << '\n';
  }
  template <class Number>
  void metric(std::string_view name, std::string_view type, std::string_view help, Number value) {
    head(name, type, help);
    line(name, value);
  }
  void metric(std::string_view name, std::string_view help, const histogram& h) {
    head(name, "histogram", help);
    const std::string base(name);
    const std::vector<std::int64_t> counts = h.cumulative();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::ostringstream bound;
      if (i < h.bounds().size())
        bound << h.bounds()[i];
      else
        bound << "+Inf";
      line(base + "_bucket", counts[i], ",le=\"" + bound.str() + "\"");
    }
    line(base + "_sum", h.sum());
    line(base + "_count", counts.back());
  }
  std::string text() const { return out_.str(); }

 private:
  std::string label_{};
  std::ostringstream out_{};
};

}  // namespace detail

HEDDLE_INLINE std::string serve_statistics::to_text(std::string_view model, std::int64_t waiting) const {
  const std::scoped_lock lock(mutex_);
  detail::prometheus_text out(model);
  const cache_counts& c = counts_.cache;
  out.metric("num_requests_running", "gauge", "Requests whose rows are in the cache.", counts_.running);
  out.metric("num_requests_waiting", "gauge", "Requests that wait for room.", waiting);
  out.metric("kv_cache_usage_perc", "gauge", "Part of the blocks of the cache that sequences hold; 1 is all.",
             c.blocks > 0 ? static_cast<double>(c.used) / static_cast<double>(c.blocks) : 0.0);
  out.metric("num_preemptions_total", "counter", "Requests that gave their blocks back and were computed again.",
             counts_.preemptions);
  out.metric("prefix_cache_queries_total", "counter", "Tokens that were looked up in the cache.", c.looked_up);
  out.metric("prefix_cache_hits_total", "counter", "Tokens that were found in the cache.", c.found);
  out.metric("prompt_tokens_total", "counter", "Tokens of prompts of requests that began.", counts_.prompt_tokens);
  out.metric("generation_tokens_total", "counter", "Tokens of answers.", counts_.answer_tokens);
  out.metric("spec_decode_num_draft_tokens_total", "counter", "Tokens that speculation proposed.",
             counts_.proposed_tokens);
  out.metric("spec_decode_num_accepted_tokens_total", "counter", "Proposed tokens that became part of an answer.",
             counts_.accepted_tokens);
  out.head(
      "spec_decode_num_accepted_tokens_per_pos_total", "counter",
      "Proposed tokens that became part of an answer, by how far behind its last token they were proposed, from 0 on.");
  std::size_t positions = counts_.accepted_at.size();
  while (positions > 1 && counts_.accepted_at[positions - 1] == 0) --positions;
  for (std::size_t i = 0; i < positions; ++i)
    out.line("spec_decode_num_accepted_tokens_per_pos_total", counts_.accepted_at[i],
             ",position=\"" + std::to_string(i) + "\"");
  out.metric("engine_steps_total", "counter", "Steps of the engine.", counts_.steps);
  out.metric("engine_rows_total", "counter", "Rows of all steps.", counts_.rows);
  out.metric("requests_refused_total", "counter",
             "Calls that were told to come again: too many requests wait, or constrained answers take too much.",
             refused_);
  out.head("request_success_total", "counter", "Requests that ended, by their reason.");
  for (const finish_reason r :
       {finish_reason::stop, finish_reason::length, finish_reason::cancelled, finish_reason::error})
    out.line("request_success_total", reasons_.at(static_cast<std::size_t>(r)),
             ",finished_reason=\"" + std::string(infer::to_string(r)) + "\"");
  if (!conditions_.empty()) {
    out.head("condition", "gauge", "Whether a condition of the runbook holds.");
    for (const auto& [name, holds] : conditions_) out.line("condition", holds ? 1 : 0, ",name=\"" + name + "\"");
  }
  out.metric("time_to_first_token_seconds", "Time from submission to the first token.", first_);
  out.metric("inter_token_latency_seconds", "Time between tokens of a request.", next_);
  out.metric("e2e_request_latency_seconds", "Time from submission to the end of a request.", whole_);
  out.metric("request_prompt_tokens", "Tokens of prompts.", prompt_);
  out.metric("request_generation_tokens", "Tokens of answers.", answer_);
  return out.text();
}

}  // namespace heddle::inline v0::infer
