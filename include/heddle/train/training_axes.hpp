// heddle/train/training_axes.hpp: axes that split samples, and axes of gradient sums.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/pipeline/optional_members.hpp>

#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::train::detail {

// What an axis does in a layout whose mesh may not have it: then ranks along it do the same.
template <class Layout, class Tag>
consteval axis_role role_on() {
  using mesh_type = typename Layout::mesh_type;
  if constexpr (mesh_type::template has<Tag>)
    return Layout::table.use[mesh_type::template position<Tag>].role;
  else
    return axis_role::identical;
}

// Carries stage and axis into the compiler's message.
template <bool Ok, class Stage, class Axis>
inline constexpr bool axis_of_stage = Ok;

/// What the axes of a mesh are for a stage; nothing is known by name but the pipeline's. All in the mesh's order.
/// `samples` split a step's samples (dimension 0 of the stage's `samples`), `context` of them those whose ranks have other rows of the
/// same documents, `shares` the others; `gradients` are those over which gradients
/// are summed (the dual of the weights of any bucket is partial), `of_buckets` has them bucket by bucket; `inside` are the
/// others but the pipeline, `beside` those that do not split samples.
template <class Stage, class Mesh, class Pipeline>
struct training_axes {
  using role = axis_role;
  using buckets = model::of_stage::buckets<Stage>;
  using samples_layout = model::of_stage::samples<Stage, Mesh>;

  template <class Tag>
  static constexpr bool is_pipeline = std::is_same_v<Tag, Pipeline>;
  template <class Tag>
  static constexpr bool splits_samples = !is_pipeline<Tag> && role_on<samples_layout, Tag>() == role::sharded;
  // Whether the weights of any bucket have this role along an axis.
  template <class Tag, class... Weights>
  static consteval bool any_is(role r, type_list<Weights...>) {
    return ((role_on<Weights, Tag>() == r) || ...);
  }
  template <class Weights, class Tag>
  static constexpr bool sums = !is_pipeline<Tag> && role_on<dual<Weights>, Tag>() == role::partial;
  template <class Tag, class... Weights>
  static consteval bool any_sums(type_list<Weights...>) {
    return (sums<Weights, Tag> || ...);
  }
  template <class Tag>
  static constexpr bool sums_gradients = any_sums<Tag>(buckets{});
  template <class Tag>
  static constexpr bool splits_context = splits_samples<Tag> && model::of_stage::splits_context<Stage, Tag>;
  template <class Tag>
  static constexpr bool repeats_loss = !is_pipeline<Tag> && role_on<typename Stage::loss, Tag>() == role::identical;
  template <class Tag>
  static constexpr bool is_known = is_pipeline<Tag> || splits_samples<Tag> || model::of_stage::names_axis<Stage, Tag>;

  template <bool Keep, class Tag>
  using kept = std::conditional_t<Keep, type_list<Tag>, type_list<>>;
  template <class Tags>
  struct lists;
  template <class... Tags>
  struct lists<type_list<Tags...>> {
    using samples = joined_lists<type_list<>, kept<splits_samples<Tags>, Tags>...>;
    using context = joined_lists<type_list<>, kept<splits_context<Tags>, Tags>...>;
    using shares = joined_lists<type_list<>, kept<splits_samples<Tags> && !splits_context<Tags>, Tags>...>;
    using gradients = joined_lists<type_list<>, kept<sums_gradients<Tags>, Tags>...>;
    using inside = joined_lists<type_list<>, kept<!is_pipeline<Tags> && !sums_gradients<Tags>, Tags>...>;
    using beside = joined_lists<type_list<>, kept<!is_pipeline<Tags> && !splits_samples<Tags>, Tags>...>;
    using repeats = joined_lists<type_list<>, kept<repeats_loss<Tags>, Tags>...>;
  };
  template <class Weights, class Tags>
  struct sums_of;
  template <class Weights, class... Tags>
  struct sums_of<Weights, type_list<Tags...>> {
    using type = joined_lists<type_list<>, kept<sums<Weights, Tags>, Tags>...>;
  };
  template <class Buckets>
  struct by_bucket;
  template <class... Weights>
  struct by_bucket<type_list<Weights...>> {
    using type = type_list<typename sums_of<Weights, typename Mesh::tags>::type...>;
  };
  using all = lists<typename Mesh::tags>;
  using samples = typename all::samples;
  using context = typename all::context;
  using shares = typename all::shares;
  using gradients = typename all::gradients;
  using of_buckets = typename by_bucket<buckets>::type;
  using inside = typename all::inside;
  using beside = typename all::beside;
  using repeats = typename all::repeats;

  template <class... Tags>
  static consteval bool checked(type_list<Tags...>) {
    (..., [] {
      constexpr int extent = Mesh::template axis_of<Tags>::fixed_size;
      constexpr bool named = is_known<Tags> || extent == 1 || extent == dynamic;
      static_assert(
          axis_of_stage<named, Stage, Tags>,
          "heddle: the mesh has an axis that the model's stage does not name, in flat_weights or in samples: "
          "ranks along it would do the same work twice; name it there, or give the trainer the world.sub<...>() "
          "of the other axes");
      constexpr bool copies = any_is<Tags>(role::identical, buckets{});
      constexpr bool summed = !splits_samples<Tags> || extent == 1 || !copies;
      constexpr bool whole = is_pipeline<Tags> || !any_is<Tags>(role::partial, buckets{});
      static_assert(
          axis_of_stage<summed, Stage, Tags>,
          "heddle: an axis splits the samples, but the stage's flat_weights are identical along it, so gradients "
          "would not be summed over it; make the weights replicated there");
      static_assert(
          axis_of_stage<whole, Stage, Tags>,
          "heddle: the stage's flat_weights are partial over an axis; a trainer steps weights that are whole, split "
          "or varying on each rank");
      constexpr bool once = !splits_samples<Tags> || extent == 1 || copies;  // or refused above
      constexpr bool counted_once = once || !repeats_loss<Tags>;
      static_assert(axis_of_stage<counted_once, Stage, Tags>,
                    "heddle: an axis splits the samples, but the stage's loss is identical along it; make the loss "
                    "partial<plus> there");
    }());
    static_assert(axis_of_stage<loss_layout<typename Stage::loss>, Stage, Pipeline>,
                  "heddle: a trainer's loss must be a sum (partial<plus>) over the axes that split samples, and along "
                  "others a sum or one computation (identical): copies would be counted once each, in the loss and in "
                  "every gradient");
    return true;
  }
  static constexpr bool ok = [] {
    if constexpr (requires { Stage::is_refused; })
      return true;  // it stands in for one that has had its error
    else
      return checked(typename Mesh::tags{});
  }();

  // Whether an axis of several ranks beside the pipeline's cuts the weights of the first bucket, which has most of them.
  template <class... Tags, class Weights, class... More>
  static consteval bool cuts_weights(type_list<Tags...>, type_list<Weights, More...>) {
    return ((!is_pipeline<Tags> && Mesh::template axis_of<Tags>::fixed_size > 1 &&
             (role_on<Weights, Tags>() == role::sharded || role_on<Weights, Tags>() == role::varying)) ||
            ...);
  }
  // Refuses a rule of an optimizer that needs `Whole` matrices where no rank has one.
  template <class Rule, bool Whole>
  static consteval bool rule_fits() {
    constexpr bool fits = !Whole || !cuts_weights(typename Mesh::tags{}, buckets{});
    static_assert(
        axis_of_stage<fits, Stage, Rule>,
        "heddle: the rule of this optimizer acts on whole matrices, and an axis of the mesh cuts the weights, "
        "so that no rank has one: give the ranks of that axis (tp, say) to dp or pp, or take a rule of single "
        "elements, such as the default");
    return true;
  }

  /// Errors: `config_error` for an axis of several ranks that the stage does not name.
  static void require_known(const Mesh& mesh) { require_known(mesh, typename Mesh::tags{}); }

 private:
  template <class... Tags>
  static void require_known(const Mesh& mesh, type_list<Tags...>) {
    (..., [&] {
      if constexpr (!is_known<Tags>)
        if (const int n = mesh.template extent<Tags>(); n > 1)
          throw config_error(
              "heddle: the mesh has " + std::to_string(n) + " ranks along the axis " +
              axis_names(type_list<Tags>{}).front() +
              ", which the model's stage does not name, in flat_weights or in samples: they would do the "
              "same work; name it there, or give the trainer the world.sub<...>() of the other axes");
    }());
  }
};

// This rank's group along the axes of a list.
template <class World, class... Tags>
decltype(auto) group_along(World& world, type_list<Tags...>) {
  return world.template along_if<Tags...>();
}
// The same on the control plane.
template <class World, class... Tags>
auto& control_along(World& world, type_list<Tags...>) {
  return world.template control_along_if<Tags...>();
}
// The world ranks of this group.
template <class Mesh, class... Tags>
std::vector<int> members_along([[maybe_unused]] const Mesh& mesh, int rank, type_list<Tags...>) {
  if constexpr (sizeof...(Tags) > 0)
    return group<Tags...>(mesh, rank);
  else
    return {rank};
}
// The ranks of such a group.
template <class Mesh, class... Tags>
int size_along([[maybe_unused]] const Mesh& mesh, type_list<Tags...>) {
  return (1 * ... * mesh.template extent_or_one<Tags>());
}
// Whether this rank is the first along each of these axes.
template <class Mesh, class... Tags>
bool is_first_along([[maybe_unused]] const Mesh& mesh, [[maybe_unused]] int rank, type_list<Tags...>) {
  return (true && ... && (mesh.template coordinate<Tags>(rank) == 0));
}

}  // namespace heddle::inline v0::train::detail
