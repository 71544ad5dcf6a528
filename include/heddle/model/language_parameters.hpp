// heddle/model/language_parameters.hpp: the parameters of a language model that one rank holds.
#pragma once

#include <heddle/compute/rounded_weights.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/model/layer.hpp>
#include <heddle/model/layers/block_kinds.hpp>
#include <heddle/model/layers/placed.hpp>
#include <heddle/model/parameter_buckets.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/model/stage_layers.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// The parameters of one pipeline stage in flat buffers, bucket by bucket, and in a bucket in the order of the description. A stage with both the embedding and a
/// tied head has one token embedding with one gradient. A tied head without the embedding has a copy of it behind the other
/// parameters, or uses that of another stage of this rank (`lender`), with a gradient of its own outside the flat buffer.
/// The flat buffers may be the caller's, and may be away (`lend_weights`, `lend_gradients`).
/// Parameters that the description freezes (`layers::partly_trained`) lie in a buffer of their own, with a table of their own and without
/// gradients.
template <class T, class Layouts, class Description, memory_space Space = host_memory>
class language_parameters {
 public:
  using mesh_type = typename Layouts::mesh_type;
  /// Of gradients.
  using sum = sum_of_type<T>;
  using placer = layers::placer<T, Layouts>;
  using buckets =
      trained_buckets<Layouts, layers::trained_of<Description>,
                      std::remove_cvref_t<decltype(std::declval<Description&>().in)>,
                      layers::kinds_of_block<std::remove_cvref_t<decltype(std::declval<Description&>().block)>,
                                             std::remove_cvref_t<decltype(std::declval<Description&>().other)>>,
                      std::remove_cvref_t<decltype(std::declval<Description&>().out)>>;
  static constexpr bool tied = std::remove_cvref_t<decltype(std::declval<Description&>().out)>::tied;

  /// Fills in the places of the parameters in `at`.
  template <class Places>
  language_parameters(typename Space::queue& queue, Places& at, const Description& of, const mesh_type& mesh, int rank,
                      stage_layers part, const language_parameters* lender)
      : language_parameters(&queue, at, of, mesh, rank, part, lender, lender != nullptr) {}
  /// The places and sizes alone, without memory, for predictions. `lent`: another stage of the rank has the embedding.
  template <class Places>
  language_parameters(Places& at, const Description& of, const mesh_type& mesh, int rank, stage_layers part, bool lent)
      : language_parameters(nullptr, at, of, mesh, rank, part, nullptr, lent) {}
  /// As those of `parameter_store`, and the tied weight with them.
  template <class Backend>
  void lend_weights(Backend& backend, row_view<T, Space> weights) {
    const bool stay = stay_;
    if (stay) weights_stay(backend, false);
    store_.lend_weights(weights);
    find_tied();
    if (stay) weights_stay(backend, true);
  }
  /// Tells a backend that keeps what it makes of weights (`compute::weight_keeper`) that from now on whoever writes them says so
  /// (`weights_written`), or that this has ended.
  template <class Backend>
  void weights_stay(Backend& backend, bool stay) {
    if constexpr (compute::weight_keeper<Backend, T>) {
      stay_ = stay;
      for (auto* store : {&store_, &frozen_}) {
        const row_view<const T, Space> all = std::as_const(*store).weights();
        if (stay)
          backend.weights_stay(all);
        else
          backend.weights_go(all);
      }
    }
  }
  template <class Backend>
  void weights_written(Backend& backend) noexcept {
    if constexpr (compute::weight_keeper<Backend, T>) backend.weights_written(std::as_const(store_).weights());
  }
  /// Parameters from now on are looked for where they lie in `whole`'s (`parameter_store::lie_in`). `at`: the places of this stage's. Before weights are lent.
  template <class Places>
  void lie_in(Places& at, stage_layers part, const language_parameters& whole) {
    std::array<std::map<std::int64_t, std::int64_t>, layers::most_buckets> moved;
    const auto note = [&](auto& store, std::size_t first, std::size_t end, const auto& others) {
      std::vector<std::int64_t> before;
      for (const parameter& p : store.table()) before.push_back(p.offset);
      store.lie_in(others);
      for (std::size_t k = first; k < end; ++k)
        for (std::size_t i = 0; i < before.size(); ++i) moved[k][before[i]] = store.table()[i].offset;
    };
    note(store_, 0, buckets::count, whole.store_);
    if constexpr (buckets::freezes) note(frozen_, buckets::count, buckets::count + 1, whole.frozen_);
    const auto now = [&](std::size_t k, std::int64_t offset) {
      const auto found = moved[k].find(offset);
      return found == moved[k].end() ? offset : found->second;
    };
    const std::array<std::int64_t, layers::most_buckets> none{};
    const auto blocks = blocks_;
    for (auto& begins : blocks_)
      for (std::size_t k = 0; k < begins.size(); ++k) begins[k] = now(k, begins[k]);
    placer::move_parameters(at.in, none, none, now);
    placer::move_parameters(at.out, none, none, now);
    at.each_kind(part.first, part.count, [&](const auto&, int layer) {
      const auto l = static_cast<std::size_t>(layer - part.first);
      at.with_block(layer, [&](auto& block) { placer::move_parameters(block, blocks[l], blocks_[l], now); });
    });
    layers::copy_parameter_places(at.out, at.brief_out);
  }
  void lend_gradients(row_view<sum, Space> gradients) {
    store_.lend_gradients(gradients);
    find_tied();
  }
  /// Tells the layers of a run where the parameters are; null where they are away.
  template <class Run>
  void place(Run& run) noexcept {
    place(run, [](std::size_t) { return std::int64_t{0}; });
  }
  /// The same for those of block `layer` of the stage.
  template <class Run>
  void place_block(Run& run, int layer) noexcept {
    place(run, [of = blocks_.data() + layer](std::size_t k) { return (*of)[k]; });
  }

  parameter_store<T, Space>& store() noexcept { return store_; }
  const parameter_store<T, Space>& store() const noexcept { return store_; }
  void initialize(typename Space::queue& queue, std::uint64_t seed) {
    store_.initialize(queue, seed);
    if constexpr (buckets::freezes) frozen_.initialize(queue, seed);
  }
  /// The frozen parameters.
  parameter_store<T, Space>& frozen() noexcept { return frozen_; }
  const parameter_store<T, Space>& frozen() const noexcept { return frozen_; }
  /// Elements of each bucket in the flat buffers.
  const std::array<std::int64_t, buckets::count>& bucket_elements() const noexcept { return bucket_elements_; }
  /// The token embedding where the head is tied, and its gradient; empty where neither end is here.
  matrix_view<const T, Space> tied_weight() const noexcept {
    return lender_ != nullptr ? lender_->tied_weight() : matrix_view<const T, Space>(tied_weight_, tied_shape_);
  }
  row_view<sum, Space> tied_gradient() const noexcept { return tied_gradient_; }
  /// The embedding's share of the gradient, in the flat buffer, where the head's is apart from it (`stage_layers::tied_apart`).
  row_view<sum, Space> table_gradient() noexcept { return store_.gradient(tied_at_); }
  /// Elements of the tied gradient, wherever it lies; none where the embedding is frozen.
  std::int64_t tied_elements() const noexcept { return trains_table ? tied_shape_.size() : 0; }
  /// Whether the head uses the token embedding of another stage.
  bool borrows() const noexcept { return own_gradient_.size() > 0; }
  /// The first word of this rank's part of the vocabulary, of the head and of the embedding.
  std::int64_t first_word() const noexcept { return first_word_; }
  std::int64_t first_input_word() const noexcept { return first_input_word_; }

 private:
  struct part_of_words {
    std::int64_t first, count;
  };
  static part_of_words words_of(const mesh_type& mesh, int rank, std::int64_t vocabulary) {
    const typename Layouts::template parameter<dims<dim::vocabulary>> split{mesh};
    const auto all = dynamic_shape<1>(vocabulary);
    return {split.local_offset(all, rank)[0], split.local_shape(all, rank).extent(0)};
  }

  // Without a queue nothing is allocated.
  template <class Places>
  language_parameters(typename Space::queue* queue, Places& at, const Description& of, const mesh_type& mesh, int rank,
                      stage_layers part, [[maybe_unused]] const language_parameters* lender,
                      [[maybe_unused]] bool lent) {
    const auto allocate = [&] {
      if (queue == nullptr) return;
      store_.allocate(*queue, part.lent_weights, part.lent_gradients);
      if constexpr (buckets::freezes) frozen_.allocate(*queue, part.lent_frozen, true);
    };
    const placer place(mesh, rank);
    const bool counted = part.replica == 0, has_in = part.has_embedding(), has_out = part.has_head();
    constexpr int of_in = layers::parameter_tensors<typename Places::in_layer>;
    constexpr int of_block = layers::parameter_tensors<typename Places::block_layer>;
    bool is_tied = false;
    if constexpr (tied) is_tied = of.out.is_tied;
    const bool copies_table = is_tied && has_out && !has_in && !lent;
    blocks_.resize(static_cast<std::size_t>(part.count));
    for (std::size_t k = 0; k < buckets::count + (buckets::freezes ? 1 : 0); ++k) {
      auto& store = k < buckets::count ? store_ : frozen_;
      const std::int64_t begin = store.size();
      const auto add = [&](auto& layer, const std::string& name, int id) {
        place.template add_parameters<buckets>(layer, store, name, id, counted, k);
      };
      if (has_in) add(at.in, "", 0);
      for (int l = 0; l < part.count; ++l) {
        std::string name = of.block_name;
        name += std::to_string(part.first + l);
        name += '.';
        const std::size_t first = store.table().size();
        at.with_block(part.first + l, [&](auto& block) {
          auto more = block;  // all blocks of a kind lie alike: only the first is placed
          add(is_first_of_kind(at, part, l) ? block : more, name, of_in + of_block * (part.first + l));
        });
        if (first < store.table().size()) blocks_[static_cast<std::size_t>(l)][k] = store.table()[first].offset;
      }
      if (has_out) add(at.out, "", of_in + of_block * static_cast<int>(of.count));
      if constexpr (tied) {
        const auto table = of.in.parameters().template get<0>();
        if (copies_table && k == buckets::template of<std::remove_const_t<decltype(table)>>) {
          tied_at_ = store.table().size();
          place.add_tied_copy(table, store, of.in.name, counted);
        }
      }
      if (k < buckets::count) bucket_elements_[k] = store.size() - begin;
    }
    at.each_kind(part.first, part.count, [&](const auto&, int layer) {
      at.with_block(layer, [&](auto& block) {
        placer::shift_parameters(block, blocks_[static_cast<std::size_t>(layer - part.first)]);
      });
    });
    layers::copy_parameter_places(at.out, at.brief_out);
    if constexpr (requires { of.in.vocabulary; })
      first_word_ = first_input_word_ = words_of(mesh, rank, of.in.vocabulary).first;
    if constexpr (requires { of.out.vocabulary; }) first_word_ = words_of(mesh, rank, of.out.vocabulary).first;
    if constexpr (!tied) {
      allocate();
    } else {
      const auto table = of.in.parameters().template get<0>();
      if (is_tied && of.out.vocabulary != table.extents[0])
        throw config_error("heddle: a tied head of " + std::to_string(of.out.vocabulary) +
                           " words cannot use a token embedding of " + std::to_string(table.extents[0]));
      const bool borrows = lent && has_out && !has_in, apart = part.tied_apart && has_in && has_out;
      allocate();
      if (!is_tied || (!has_in && !has_out)) return;
      tied_shape_ = dynamic_shape<2>(words_of(mesh, rank, table.extents[0]).count, table.extents[1]);
      if (queue == nullptr) return;
      if (borrows) lender_ = lender;
      if ((borrows || apart) && trains_table) {
        own_gradient_ = buffer<sum, Space>(*queue, tied_shape_.size(), "the gradient of a tied embedding");
        tied_gradient_ = elements_of(own_gradient_.view());
      }
      find_tied();
    }
  }

  // Whether no earlier block of the stage is of the kind of block `layer`.
  template <class Places>
  static bool is_first_of_kind(const Places& at, stage_layers part, int layer) {
    bool first = false;
    at.each_kind(part.first, part.count, [&](const auto&, int l) { first = first || l == part.first + layer; });
    return first;
  }
  template <class Run, class Offset>
  void place(Run& run, Offset&& offset) noexcept {
    T* const weights = first_element(store_.weights());
    sum* const gradients = first_element(store_.gradients());
    if constexpr (buckets::freezes)
      run.weights[buckets::count] = first_element(frozen_.weights()) + offset(buckets::count);
    for (std::size_t k = 0; k < buckets::count; ++k) {
      run.weights[k] = weights == nullptr ? nullptr : weights + offset(k);
      run.gradients[k] = gradients == nullptr ? nullptr : gradients + offset(k);
    }
  }

  void find_tied() {
    if (tied_shape_.size() == 0 || lender_ != nullptr) return;
    if constexpr (!trains_table) {
      const bool frozen = first_element(frozen_.weights()) != nullptr;
      tied_weight_ = frozen ? first_element(frozen_.weight(tied_at_)) : nullptr;
      return;
    }
    const bool weights = first_element(store_.weights()) != nullptr;
    const bool gradients = first_element(store_.gradients()) != nullptr;
    tied_weight_ = weights ? first_element(store_.weight(tied_at_)) : nullptr;
    if (own_gradient_.size() == 0)
      tied_gradient_ = gradients ? store_.gradient(tied_at_) : row_view<sum, Space>{};
  }

  // Whether a tied head's weight is trained.
  static constexpr bool trains_table = [] {
    if constexpr (tied) {
      using table = std::remove_cvref_t<decltype(std::declval<Description&>().in.parameters().template get<0>())>;
      return buckets::template of<table> < buckets::count;
    } else {
      return true;
    }
  }();

  parameter_store<T, Space> store_{}, frozen_{};
  std::vector<std::array<std::int64_t, layers::most_buckets>> blocks_{};  // where each begins in each bucket
  std::array<std::int64_t, buckets::count> bucket_elements_{};
  std::int64_t first_word_ = 0, first_input_word_ = 0;
  std::size_t tied_at_ = 0;  // in the table
  bool stay_ = false;        // see weights_stay
  dynamic_shape<2> tied_shape_{0, 0};
  const T* tied_weight_ = nullptr;
  const language_parameters* lender_ = nullptr;
  row_view<sum, Space> tied_gradient_{};
  buffer<sum, Space> own_gradient_{};
};

}  // namespace heddle::inline v0::model
