// heddle/infer/elastic.hpp: instances of a model that merge and split while they serve.
#pragma once

#include <heddle/comm/gathered_words.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/elastic_blocks.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/hand_over.hpp>
#include <heddle/infer/handed_words.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/mesh/axis.hpp>
#include <heddle/model/language_parameters.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/give_back.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Where an instance of more ranks finds its parts of the weights. `shared`: where they lie in the whole ones. `released`: so, too, and the pages of the other parts are given back to the
/// system until its ranks, which have them, send them again: at the next change, or before it in pieces (`elastic::bring_weights`). `copied`: in a copy besides.
enum class elastic_weights : unsigned char { shared, released, copied };

namespace detail {
template <bool Ok, int... Degrees>
inline constexpr bool degrees_divide_each_other = Ok;
template <bool Ok, class Backend>
inline constexpr bool cache_lies_by_head = Ok;
template <bool Ok, class Model>
inline constexpr bool keeps_rows_alone = Ok;
template <bool Ok, class Model>
inline constexpr bool trains_all = Ok;
constexpr bool degrees_are_chained(std::span<const int> degrees) noexcept {
  for (std::size_t i = 0; i < degrees.size(); ++i)
    if (degrees[i] < 1 || (i == 0 ? degrees[i] != 1 : degrees[i] <= degrees[i - 1] || degrees[i] % degrees[i - 1] != 0))
      return false;
  return true;
}
}  // namespace detail

/// Instances of one model on the ranks of a world, all of the same degree at a time: at degree d each `d` neighbours are one instance, split over `tp`, with one engine, on the first of
/// them. `transform` changes the degree between two steps: requests go on with their keys and values, of which each rank sends those heads that another is to have, layer by layer through a
/// buffer of one tensor. Weights of all degrees lie in one memory, and so do the blocks of the cache (`cache_order::by_head`).
///
/// `Degrees`: 1 and others that each divide the next; the last is the number of ranks or divides it. All ranks call constructor, `transform` and `finish` together; the ranks of an
/// instance that do not lead call `follow` instead of `submit` and `step`. A transform that fails on a rank ends all ranks, as the error leaves the body of `launch`.
/// Errors: `config_error` for a cache that is not by_head, key and value heads that the largest degree does not divide, and without `elastic_weights::copied` for a parameter
/// of which the part of a rank is not one run (`model::elastic_llama` has none).
/// Source: Gyges (Amoeba), arXiv:2509.19729.
template <class Model, class World, class Backend, int... Degrees>
class elastic {
 public:
  using runner_type = model_runner<Model, World, Backend>;
  using stage_type = typename runner_type::stage_type;
  using engine_type = engine<runner_type>;
  using config_type = typename Model::config;
  using T = typename Model::scalar;
  using space = typename stage_type::space;
  static constexpr std::array<int, sizeof...(Degrees)> degrees{Degrees...};
  static constexpr int most_degree = degrees.back();
  static_assert(detail::degrees_divide_each_other<detail::degrees_are_chained(degrees), Degrees...>,
                "heddle: elastic: degrees should be 1 and others that each divide the next; take 1, 2, 4");
  static_assert(detail::cache_lies_by_head<requires { requires Backend::takes_blocks_by_head; }, Backend>,
                "heddle: elastic: heads of a block should be one run: take a backend whose attention reads a cache "
                "by_head, such as compute::host");
  static_assert(detail::keeps_rows_alone<!stage_type::keeps::has_states, Model>,
                "heddle: elastic: blocks of the cache move, not states that layers keep; take a model whose layers "
                "keep keys and values alone");
  static_assert(
      detail::trains_all<!model::language_parameters<T, typename stage_type::layouts, typename stage_type::description,
                                                     space>::buckets::freezes,
                         Model>,
      "heddle: elastic: all degrees lie in the trained weights of one; frozen parameters lie elsewhere: take "
      "a model that trains all");

  /// `cache.blocks`: of each rank as an instance of its own. `max_rows`: of a step of an instance. `options`: of the engine of each instance, the same on all ranks.
  elastic(const config_type& config, World& world, Backend& backend, cache_extent cache, std::int64_t max_rows,
          elastic_weights how = elastic_weights::shared, engine_options options = {})
      : world_(&world),
        backend_(&backend),
        extent_{world.size(), most_degree, cache.blocks},
        how_(how),
        seed_(options.seed),
        most_running_((std::min)(options.max_running, engine_type::batching::rows_per_step(max_rows))) {
    if (cache.order != cache_order::by_head)
      throw config_error(
          "heddle: elastic: the heads of a block should be one run; expected cache_order::by_head, got by_token");
    if (world.size() % most_degree != 0)
      throw config_error("heddle: elastic: the ranks should be instances of the largest degree, " +
                         std::to_string(most_degree) + ", got " + std::to_string(world.size()) + " ranks");
    for (const int d : degrees) {
      for (int first = 0; first < world.size(); first += d) {
        std::vector<int> ranks(static_cast<std::size_t>(d));
        std::iota(ranks.begin(), ranks.end(), first);
        if (auto w = world.on(typename World::mesh_type{d}, ranks))
          worlds_.push_back(std::make_unique<World>(std::move(*w)));
      }
      cache_extent own = cache;
      own.blocks = cache.blocks * d;
      const bool copies = d > 1 && how == elastic_weights::copied;
      runners_.push_back(
          std::make_unique<runner_type>(config, *worlds_.back(), backend, own, max_rows, stage_memory::lent));
      stage_type& stage = runners_.back()->stage();
      if (d == 1) {
        weights_ = buffer<T, space>(stage.queue(), stage.flat_elements(), "the weights of elastic instances");
        cached_ = buffer<T, space>(stage.queue(), stage.cache_bytes() / static_cast<std::int64_t>(sizeof(T)),
                                   "the cache of elastic instances");
        require_heads(stage);
      } else if (copies) {
        copies_.push_back(buffer<T, space>(stage.queue(), stage.flat_elements(), "a copy of the weights of a degree"));
      } else {
        stage.lie_in(runners_.front()->stage());
      }
      stage.lend_weights(row_of(copies ? copies_.back() : weights_));
      stage.lend_cache(row_of(cached_));
      if (leads(d)) engines_.push_back(std::make_unique<engine_type>(*runners_.back(), options));
    }
  }
  elastic(const elastic&) = delete;
  elastic& operator=(const elastic&) = delete;
  ~elastic() {
    if (!finished_)
      for (auto& r : runners_) r->abandon();
  }

  /// The whole model, as an instance of one rank has it: for its weights, `initialize` or `model::read_parameters`. Call `weights_written` afterwards, at degree 1.
  stage_type& stage() noexcept { return runners_.front()->stage(); }
  void weights_written() {
    stage().weights_written();
    std::size_t copy = 0;
    for (std::size_t i = 1; i < runners_.size(); ++i) {
      stage_type& to = runners_[i]->stage();
      if (how_ == elastic_weights::copied) {
        T* const memory = copies_[copy++].address();
        for (std::size_t p = 0; p < to.parameters().size(); ++p)
          model::for_each_run(to.parameters()[p], [&](std::int64_t global, std::int64_t local, std::int64_t n) {
            std::copy_n(weights_.address() + stage().parameters()[p].offset + global, n,
                        memory + to.parameters()[p].offset + local);
          });
      }
      to.weights_written();
    }
  }
  int degree() const noexcept { return degrees[at_]; }
  /// Whether this rank has the engine of its instance now.
  bool leads() const noexcept { return leads(degree()); }
  /// Most tokens of a prompt and its answer together now.
  std::int64_t context() const { return engine_now().context(); }
  engine_counts counts() const { return engine_now().counts(); }
  /// Bytes of keys and values that this rank has sent to others, and stretches of memory that they were.
  std::int64_t bytes_sent() const noexcept { return bytes_sent_; }
  std::int64_t runs_sent() const noexcept { return runs_sent_; }
  /// The most bytes that a transform has taken on this rank beside what is there between two: no more than a layer of the cache.
  std::int64_t peak_bytes() const noexcept { return peak_bytes_; }
  /// Bytes of weights whose pages the system got at the last change (`elastic_weights::released`).
  std::int64_t given_back_bytes() const noexcept { return given_back_; }
  /// Bytes of weights that are held besides the whole ones.
  std::int64_t copied_bytes() const noexcept {
    std::size_t n = 0;
    for (const auto& c : copies_) n += c.size();
    return static_cast<std::int64_t>(n * sizeof(T));
  }

  /// On a rank that leads: as those of an engine. Numbers of requests stay the same across transforms, and so do answers: one gets as many tokens as the degree has room for at which its
  /// request came. Errors: as `engine::submit`; `request_error` for a mask, which is a function.
  request_id submit(request r) {
    if (r.mask) throw request_error("mask", "it cannot go to another rank when instances merge or split");
    const request_id id =
        ++last_id_ * static_cast<request_id>(world_->size()) + static_cast<request_id>(world_->rank());
    if (!r.sampling.seed) r.sampling.seed = counter_random(seed_, 0).integer(id);
    if (const std::int64_t room = context() - std::ssize(r.prompt); room > 0)
      r.max_tokens = (std::min)(r.max_tokens, room);
    names_[engine_now().submit(std::move(r))] = id;
    return id;
  }
  bool cancel(request_id id) {
    for (const auto& [own, name] : names_)
      if (name == id) return engine_now().cancel(own);
    return false;
  }
  bool idle() const { return due_.empty() && engine_now().idle(); }
  std::span<const event> step() {
    events_.clear();
    std::swap(events_, due_);
    take_events(events_);
    return events_;
  }
  /// On the other ranks: computes what the leader asks for until the next transform, in which it takes part (true), or `finish` (false).
  bool follow() {
    for (;;) {
      if (runners_[at_]->follow() == followed::finished) return end(), false;
      asked what;
      worlds_[at_]->control().broadcast(std::span<std::int64_t>(what), 0);
      if (what[1] == 0) return change(static_cast<int>(what[0])), true;
      take_weights(what[1]);
    }
  }
  /// On a rank that leads, between two steps of a merged instance whose weights are `elastic_weights::released`: its ranks send one another about so many bytes of the weights that they
  /// lack, so that a split that comes later sends the rest alone and pauses for that much less. Returns the bytes that are left; 0 where none lack. Other instances take no part.
  /// Errors: `config_error` for fewer bytes than an element has, and on a rank that follows.
  std::int64_t bring_weights(std::int64_t bytes) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    if (bytes < size)
      throw config_error("heddle: elastic: weights come in pieces of at least one element of " + std::to_string(size) +
                         " bytes, got " + std::to_string(bytes));
    engine_now();
    if (lacking_ > 0) {
      tell({0, bytes / size});
      take_weights(bytes / size);
    }
    return lacking_ * size;
  }
  /// Between two steps, on all ranks that lead: instances are of degree `to` from now on. Waits for the other ranks.
  /// Errors: `config_error` for a degree that is not one of `Degrees`, or not the same on all ranks, and for a request that has no room afterwards; then nothing has changed.
  void transform(int to) {
    tell({to, 0});
    change(to);
  }
  /// On all ranks that lead: the end; `follow` returns false on the others.
  void finish() {
    runners_[at_]->finish();
    end();
  }

 private:
  static row_view<T, space> row_of(buffer<T, space>& b) {
    return row_at<space>(b.address(), static_cast<std::int64_t>(b.size()));
  }
  using asked = std::array<std::int64_t, 2>;  // a degree, or how many elements of weights to bring
  void tell(asked what) {
    if (degree() == 1) return;
    runners_[at_]->interrupt();
    worlds_[at_]->control().broadcast(std::span<std::int64_t>(what), 0);
  }
  bool leads(int degree) const noexcept { return world_->rank() % degree == 0; }
  engine_type& engine_now() const {
    if (!leads())
      throw config_error("heddle: elastic: rank " + std::to_string(world_->rank()) + " follows at degree " +
                         std::to_string(degree()) + "; the first rank of its instance has the engine");
    return *engines_[at_];
  }
  static void require_heads(const stage_type& stage) {
    stage.visit_cached_columns([&](int layer, int, const std::vector<std::int64_t>& all, const auto&, const auto&) {
      if (all[0] % most_degree != 0)
        throw config_error("heddle: elastic: heads of keys and values should divide over the largest degree, " +
                           std::to_string(most_degree) + "; layer " + std::to_string(layer) + " has " +
                           std::to_string(all[0]));
    });
  }
  void end() {
    finished_ = true;
    for (std::size_t i = 0; i < runners_.size(); ++i) {
      if (i == at_) continue;
      if (leads(degrees[i]))
        runners_[i]->finish();
      else
        while (runners_[i]->follow() != followed::finished) {
        }
    }
  }
  void take_events(std::vector<event>& to) {
    for (event e : engine_now().step()) {
      const auto own = names_.find(e.id);
      const bool ends = e.finish != finish_reason::none;
      e.id = own->second;
      to.push_back(std::move(e));
      if (ends) names_.erase(own);
    }
  }

  void change(int to) {
    const auto find = std::find(degrees.begin(), degrees.end(), to);
    const auto next = static_cast<std::size_t>(find - degrees.begin());
    require_agreement(to, find != degrees.end());
    if (next == at_) return;
    std::vector<std::int64_t> words;
    if (leads()) {
      for (handed_sequence& h : engine_now().hand_over_all()) {
        h.id = names_.at(h.id);
        detail::add_words(words, h);
      }
      while (!engine_now().idle()) take_events(due_);
      names_.clear();
    }
    const gathered_words all = gather_words(world_->control(), words);
    std::vector<handed_sequence> requests;
    std::vector<elastic_blocks> blocks;
    const std::int64_t block_rows = stage().cache().block_rows;
    for (int r = 0; r < world_->size(); ++r) {
      const auto mine = all.of(r);
      for (const std::int64_t* at = mine.data(); at != mine.data() + mine.size();) {
        handed_sequence& h = requests.emplace_back(detail::handed_in_words(at));
        const std::int64_t most = std::ssize(h.asked.prompt) + h.asked.max_tokens;  // `submit` bounds it
        blocks.push_back({r / degree(), detail::blocks_of_tokens(most, block_rows), h.blocks});
      }
    }
    if (to > degree()) {  // more than may run at once: they are computed again, so that nothing of theirs moves
      std::vector<std::int64_t> running(static_cast<std::size_t>(world_->size()));
      for (elastic_blocks& b : blocks)
        if (!b.blocks.empty() && ++running[static_cast<std::size_t>(b.instance * degree() / to)] > most_running_)
          b.blocks.clear();
    }
    elastic_placement placed;
    try {
      placed = place_elastic(extent_, degree(), to, blocks);
    } catch (const config_error&) {  // on all ranks alike: back to where they were
      if (leads()) adopt(requests, blocks);
      throw;
    }
    move(placed.moves);
    if (how_ == elastic_weights::released) move_weights(next);
    at_ = next;
    if (leads()) adopt(requests, placed.requests);
  }
  void require_agreement(int to, bool is_one) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(world_->size()));
    const std::int64_t mine = to;
    world_->control().all_gather(std::span<const std::int64_t>(&mine, 1), std::span<std::int64_t>(all));
    for (std::size_t r = 0; r < all.size(); ++r)
      if (all[r] != all[0])
        throw config_error("heddle: elastic: all ranks should ask for one degree; rank 0 asks for " +
                           std::to_string(all[0]) + ", rank " + std::to_string(r) + " for " + std::to_string(all[r]));
    if (is_one) return;
    std::string known;
    for (const int d : degrees) known += (known.empty() ? "" : ", ") + std::to_string(d);
    throw config_error("heddle: elastic: the degree should be one of " + known + ", got " + std::to_string(to));
  }
  void adopt(const std::vector<handed_sequence>& requests, const std::vector<elastic_blocks>& to) {
    for (const bool runs : {true, false})
      for (std::size_t i = 0; i < requests.size(); ++i)
        if (to[i].instance == world_->rank() / degree() && to[i].blocks.empty() != runs)
          names_[engine_now().adopt_into(requests[i], to[i].blocks)] = requests[i].id;
  }
  // The next elements that this rank or another of the instance lacks, each from the rank that has it, in place.
  void take_weights(std::int64_t elements) {
    for (auto& group = worlds_[at_]->template along<tp>(); elements > 0 && lacking_ > 0;) {
      weights_part& next = parts_[part_];
      const std::int64_t n = (std::min)(elements, next.count);
      group.broadcast(std::span<T>(weights_.address() + next.begin, static_cast<std::size_t>(n)), next.owner);
      next.begin += n, next.count -= n, elements -= n, lacking_ -= n;
      if (next.count == 0) ++part_;
    }
  }
  // All parts come from the ranks of the instance; then those that the next degree does not read go.
  void move_weights(std::size_t next) {
    take_weights(lacking_);
    parts_.clear();
    part_ = 0, given_back_ = 0;
    const auto& whole = stage().parameters();
    const auto& own = runners_[next]->stage().parameters();
    auto& control = worlds_[next]->control();
    std::vector<std::int64_t> counts(static_cast<std::size_t>(control.size()));
    for (std::size_t p = 0; p < own.size(); ++p) {
      if (own[p].count == whole[p].count) continue;
      control.all_gather(std::span<const std::int64_t>(&own[p].count, 1), std::span<std::int64_t>(counts));
      std::int64_t begin = whole[p].offset;
      for (int r = 0; r < control.size(); begin += counts[static_cast<std::size_t>(r++)])
        parts_.push_back({begin, counts[static_cast<std::size_t>(r)], r});
      lacking_ += whole[p].count;
      const auto give = [&](std::int64_t from, std::int64_t to) {
        given_back_ += static_cast<std::int64_t>(heddle::v0::detail::give_back_pages(
            weights_.address() + from, static_cast<std::size_t>(to - from) * sizeof(T)));
      };
      give(whole[p].offset, own[p].offset);
      give(own[p].offset + own[p].count, whole[p].offset + whole[p].count);
    }
  }
  // Tensor by tensor: what leaves is read before anything is written.
  void move(const std::vector<unit_move>& moves) {
    if (moves.empty()) return;
    const int me = world_->rank();
    const auto ranks = static_cast<std::size_t>(world_->size());
    std::vector<std::int64_t> send(ranks), receive(ranks), leaving, arriving;
    for (int r = 0; r < world_->size(); ++r)
      for (const unit_move& m : moves) {
        if (m.from_rank == me && m.to_rank == r) {
          ++send[static_cast<std::size_t>(r)];
          leaving.push_back(m.from);
        }
        if (m.to_rank == me && m.from_rank == r) {
          ++receive[static_cast<std::size_t>(r)];
          arriving.push_back(m.to);
        }
      }
    buffer<T, space> out, in;
    stage().visit_cache([&](int, int, const auto& view) {
      T* const begin = first_element(view);
      const std::int64_t n = view.extent(0) * view.extent(1) / (extent_.blocks * most_degree);
      const auto bytes = static_cast<std::int64_t>(sizeof(T)) * n;
      const auto most = [&](const auto& units) { return std::ssize(units) * n; };
      if (static_cast<std::int64_t>(out.size()) < most(leaving))
        out = buffer<T, space>(stage().queue(), most(leaving), "heads of a cache that leave");
      if (static_cast<std::int64_t>(in.size()) < most(arriving))
        in = buffer<T, space>(stage().queue(), most(arriving), "heads of a cache that arrive");
      std::vector<std::int64_t> sent = send, received = receive;
      for (auto* const all : {&sent, &received})
        for (std::int64_t& x : *all) x *= n;
      for (std::size_t i = 0; i < leaving.size(); ++i)
        std::copy_n(begin + leaving[i] * n, n, out.address() + static_cast<std::int64_t>(i) * n);
      world_->template along<tp>().all_to_all_v(
          std::span<const T>(out.address(), static_cast<std::size_t>(most(leaving))), sent,
          std::span<T>(in.address(), static_cast<std::size_t>(most(arriving))), received);
      for (std::size_t i = 0; i < arriving.size(); ++i)
        std::copy_n(in.address() + static_cast<std::int64_t>(i) * n, n, begin + arriving[i] * n);
      peak_bytes_ = (std::max)(peak_bytes_, static_cast<std::int64_t>((out.size() + in.size()) * sizeof(T)));
      const std::int64_t others = std::ssize(leaving) - send[static_cast<std::size_t>(me)];
      runs_sent_ += others;
      bytes_sent_ += others * bytes;
    });
  }

  World* world_;
  Backend* backend_;
  elastic_extent extent_;
  elastic_weights how_;
  std::uint64_t seed_;
  std::int64_t most_running_;
  std::vector<std::unique_ptr<World>> worlds_{};  // of this rank's instance at each degree
  buffer<T, space> weights_{}, cached_{};
  std::vector<buffer<T, space>> copies_{};
  std::vector<std::unique_ptr<runner_type>> runners_{};
  std::vector<std::unique_ptr<engine_type>> engines_{};
  std::size_t at_ = 0;  // in `degrees`
  bool finished_ = false;
  request_id last_id_ = 0;
  std::map<request_id, request_id> names_{};  // of the requests of this rank's engine
  std::vector<event> events_{}, due_{};
  std::int64_t bytes_sent_ = 0, runs_sent_ = 0, peak_bytes_ = 0, given_back_ = 0;
  struct weights_part {
    std::int64_t begin = 0, count = 0;
    int owner = 0;
  };
  std::vector<weights_part>
      parts_{};  // of the weights, in their order; from `part_` on they are where their owner is alone
  std::size_t part_ = 0;
  std::int64_t lacking_ = 0;  // elements of those
};

}  // namespace heddle::inline v0::infer
