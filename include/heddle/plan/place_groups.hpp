// heddle/plan/place_groups.hpp: places pipeline groups on the pods of a cluster, exactly.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/mesh/axis.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/topology.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace heddle::inline v0::plan {

/// A job of `rows` groups of `columns` nodes each (pipelines, and their stages), and the cluster's free nodes, pod by pod.
struct group_request {
  std::vector<int> free_nodes;
  int rows = 1;
  int columns = 1;
};

/// A node of the cluster for each cell of the job.
struct group_placement {
  int pods = 0;    ///< used
  int widest = 0;  ///< the most pods that a group lies in
  /// No placement whose groups are that wide at most uses fewer pods. Less than `pods` only where there are more than 14 pods.
  int fewest = 0;
  int rows = 0, columns = 0;
  std::vector<int> pod_of;  ///< of each cell, [rows, columns]

  bool optimal() const noexcept { return fewest == pods; }
  int pod(int row, int column) const {
    return pod_of[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column)];
  }

  /// The physical rank of each rank of the mesh, for `world.renumbered` (or `world.on`, where the cluster has more). Groups lie along
  /// `Along`; ranks that differ elsewhere share nodes in the mesh's order. Pod k of the request is the cluster's k-th pod by
  /// number, and its first nodes are taken.
  /// Errors: `config_error` if the mesh's groups are not `columns` long, its ranks do not fill `rows` nodes in each column, or a pod
  /// has fewer nodes than are placed on it.
  template <class Along = pp, mesh_like Mesh>
  std::vector<int> order(const Mesh& mesh, const topology& cluster) const {
    std::vector<int> column_of;
    for (int r = 0; r < mesh.size(); ++r) column_of.push_back(mesh.template group_index<Along>(r));
    return order_of(column_of, mesh.template group_size<Along>(), cluster);
  }

 private:
  HEDDLE_INLINE std::vector<int> order_of(std::span<const int> column_of, int columns_of_mesh,
                                          const topology& cluster) const;
};

/// All placements of which none is better in both numbers, groups in fewest pods first.
struct group_placements {
  std::vector<group_placement> choices;

  /// The choice with the smallest `alpha * pods + (1 - alpha) * widest`; of equal ones that with the narrowest groups.
  /// Errors: `config_error` for an alpha outside of [0, 1].
  HEDDLE_INLINE const group_placement& best(double alpha) const;
};

/// Exact, without a solver: pods that share groups form trees, so that pods c can carry g = floor(their free nodes / columns) groups
/// in at most T pods each if and only if g (T - 1) >= |c| - 1; a dynamic program over sets of pods finds the best split into such parts.
/// Work: 3^pods for each T, up to 14 pods. With more, the largest pods are tried, and `fewest` is a bound.
/// Errors: `config_error` for numbers that are negative or zero rows or columns, and where the pods have too few free nodes.
/// Source: He et al. 2025, arXiv:2509.15940 (Arnold), whose integer program this solves.
HEDDLE_INLINE group_placements place_groups(const group_request& request);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/place_groups.hpp>
#endif
