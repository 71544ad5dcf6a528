// heddle/model/experts_in_order.hpp: reads experts in another order than the file's.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/read_parameters.hpp>
#include <heddle/model/stacked_parameters.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// Names for `read_parameters` that read expert order[i] of the file as expert i of its layer, and the router's rows in the same order, so that
/// ranks hold the experts of a placement (`plan::co_cluster`) and the model is the same function: only between equal scores of a router does
/// the order choose. `orders[k]`: of the k-th layer with experts. `NameOf`: the file's names. `write_parameters` writes the file's order back.
template <class NameOf = same_names>
class experts_in_order {
 public:
  /// Errors: `config_error` for orders of another number of layers or experts, and for one that takes experts of one group of a router to
  /// several.
  template <class In, class Block, class Out, class Other>
  experts_in_order(const layers::language_model<In, Block, Out, Other>& model,
                   const std::vector<std::vector<int>>& orders, NameOf name_of = {})
      : name_of_(std::move(name_of)) {
    std::size_t layer = 0;
    for (std::int64_t l = 0; l < model.count; ++l)
      model.with_block(l, [&](const auto& b) { add(b, model.block_name + std::to_string(l) + ".", orders, layer); });
    if (layer != orders.size())
      throw config_error(
          text_of({"heddle: the model has ", layer, " layers with experts, got orders for ", orders.size()}));
  }

  source_name operator()(std::string_view parameter) const {
    const auto found = moved_.find(parameter);
    if (found == moved_.end()) return name_of_(parameter);
    source_name from = name_of_(std::string_view(found->second.name));
    from.order = found->second.order;
    return from;
  }

 private:
  static void require_order(const std::vector<int>& order, std::int64_t experts, std::int64_t groups,
                            std::size_t layer) {
    std::vector<bool> seen(order.size(), false);
    bool whole = std::ssize(order) == experts;
    for (const int e : order) {
      whole = whole && e >= 0 && e < experts && !seen[static_cast<std::size_t>(e)];
      if (whole) seen[static_cast<std::size_t>(e)] = true;
    }
    if (!whole)
      throw config_error(text_of({"heddle: the order of layer ", layer, " names each of ", experts,
                                  " experts once, got one of ", order.size()}));
    const std::int64_t each = groups > 1 ? experts / groups : 0;
    for (std::size_t i = 0; each > 0 && i < order.size(); ++i) {
      const auto first = order[i - i % static_cast<std::size_t>(each)];
      if (order[i] / each != first / each)
        throw config_error(text_of({"heddle: a router that chooses among ", groups, " groups of ", each,
                                    " experts needs them to stay together; the order of layer ", layer, " has experts ",
                                    first, " and ", order[i], " in one group"}));
    }
  }
  template <class Layer>
  void add(const Layer& layer, std::string at, const std::vector<std::vector<int>>& orders, std::size_t& number) {
    if (const char* const name = layer.name; name != nullptr && *name != '\0') (at += name) += '.';
    if constexpr (requires { requires Layer::routes_rows; }) {
      const std::size_t k = number++;
      if (k >= orders.size()) return;  // said when all are counted
      const std::vector<int>& order = orders[k];
      std::int64_t groups = 1;
      if constexpr (requires { layer.router.rule.groups; }) groups = layer.router.rule.groups;
      require_order(order, layer.count, groups, k);
      layer.parameters().each([&](auto, const auto& p) {
        for (std::size_t i = 0; i < order.size(); ++i)
          moved_[name_in_stack(at + p.name, static_cast<std::int64_t>(i))] = {name_in_stack(at + p.name, order[i])};
      });
      const std::string router = at + layer.router.name + '.';
      layer.router.parameters().each([&](auto, const auto& p) {
        moved_[router + p.name] = {router + p.name, stored_as::is, rows_in_tensor::all, {order.begin(), order.end()}};
      });
    } else {
      layer.children().each([&](auto, const auto& child) { add(child, at, orders, number); });
    }
  }

  NameOf name_of_;
  std::map<std::string, source_name, std::less<>> moved_;
};

}  // namespace heddle::inline v0::model
