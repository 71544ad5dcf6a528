// heddle/compute/cudnn/graph.hpp: operation graphs and plans of cuDNN 9 (not run on a GPU).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/tensor/cuda/stream.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if !__has_include(<cudnn.h>)
#error \
    "heddle/compute/cudnn needs cuDNN 9.16 or later: link the CMake target heddle::cudnn, or add the folder of cudnn.h to the include path"
#endif
#include <cudnn.h>

#if CUDNN_VERSION < 91600
#error "heddle/compute/cudnn needs cuDNN 9.16 or later: cudnn.h is older"
#endif

namespace heddle::inline v0::compute::detail::on_cudnn {

/// Whether cuDNN says that it has nothing for a graph, which is no mistake.
constexpr bool has_none(cudnnStatus_t status) noexcept {
  return CUDNN_STATUS_CATEGORY(static_cast<int>(status)) == static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED);
}
/// Whether it has nothing because a part of the installation is missing or does not fit the others.
constexpr bool lacks_library(cudnnStatus_t status) noexcept {
  return status == CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER ||
         status == CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART ||
         status == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING ||
         status == CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE;
}

/// What cuDNN says about the calls that it refused last on this thread; it forgets that then.
inline std::string last_words() {
  std::array<char, 4096> words{};
  cudnnGetLastErrorString(words.data(), words.size());
  return words.data();
}

/// The call, the device, the status and cuDNN's own words.
inline cuda_error refusal(cudnnStatus_t status, std::string_view call, int device, const std::string& words) {
  std::string text =
      "heddle: " + std::string(call) + " on CUDA device " + std::to_string(device) + ": " + cudnnGetErrorString(status);
  if (!words.empty()) text += ": " + words;
  return cuda_error(text);
}
inline cuda_error refusal(cudnnStatus_t status, std::string_view call, int device) {
  return refusal(status, call, device, last_words());
}
/// Errors: `cuda_error`.
inline void require(cudnnStatus_t status, std::string_view call, int device) {
  if (status != CUDNN_STATUS_SUCCESS) [[unlikely]]
    throw refusal(status, call, device);
}

/// A descriptor of cuDNN's backend interface.
class descriptor {
 public:
  descriptor(cudnnBackendDescriptorType_t type, int device) : device_(device) {
    require(cudnnBackendCreateDescriptor(type, &it_), "cudnnBackendCreateDescriptor", device);
  }
  descriptor(descriptor&& other) noexcept : it_(std::exchange(other.it_, nullptr)), device_(other.device_) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(it_, other.it_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~descriptor() {
    if (it_ != nullptr) static_cast<void>(cudnnBackendDestroyDescriptor(it_));
  }

  cudnnBackendDescriptor_t get() const noexcept { return it_; }

  template <class T>
  descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const T> values) {
    require(cudnnBackendSetAttribute(it_, name, type, static_cast<std::int64_t>(values.size()), values.data()),
            "cudnnBackendSetAttribute", device_);
    return *this;
  }
  descriptor& set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
    return set<std::int64_t>(name, CUDNN_TYPE_INT64, values);
  }
  descriptor& set(cudnnBackendAttributeName_t name, const descriptor& other) {
    const std::array all{other.get()};
    return set<cudnnBackendDescriptor_t>(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, all);
  }
  /// One value of these types, of which cuDNN has names.
  template <class T>
    requires(!std::is_same_v<T, descriptor>)
  descriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return set<T>(name, type_of<T>(), std::span<const T>(&value, 1));
  }

  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(it_); }
  descriptor&& finalize(std::string_view what) && {
    if (const cudnnStatus_t status = try_finalize(); status != CUDNN_STATUS_SUCCESS) [[unlikely]]
      throw refusal(status, "cudnnBackendFinalize of " + std::string(what), device_);
    return std::move(*this);
  }

 private:
  template <class T>
  static constexpr cudnnBackendAttributeType_t type_of() {
    if constexpr (std::is_same_v<T, std::int64_t>) return CUDNN_TYPE_INT64;
    if constexpr (std::is_same_v<T, std::int32_t>) return CUDNN_TYPE_INT32;
    if constexpr (std::is_same_v<T, bool>) return CUDNN_TYPE_BOOLEAN;
    if constexpr (std::is_same_v<T, void*>) return CUDNN_TYPE_VOID_PTR;
    if constexpr (std::is_same_v<T, cudnnHandle_t>) return CUDNN_TYPE_HANDLE;
    if constexpr (std::is_same_v<T, cudnnDataType_t>) return CUDNN_TYPE_DATA_TYPE;
    if constexpr (std::is_same_v<T, cudnnPointwiseMode_t>) return CUDNN_TYPE_POINTWISE_MODE;
    if constexpr (std::is_same_v<T, cudnnReduceTensorOp_t>) return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
    if constexpr (std::is_same_v<T, cudnnBackendHeurMode_t>) return CUDNN_TYPE_HEUR_MODE;
  }

  cudnnBackendDescriptor_t it_ = nullptr;
  int device_;
};

/// A device that is described (JSON, as cuDNN writes it), which need not be there: for advice.
inline descriptor device_properties(std::string_view json) {
  descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, 0);
  properties.set<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json);
  return std::move(properties).finalize("the properties of a device");
}

using extents = std::array<std::int64_t, 4>;
/// Strides of elements that lie one behind the other, the last index first.
constexpr extents packed(const extents& n) noexcept {
  return {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
}

/// A tensor of a graph: its number there, sizes and element type.
struct graph_tensor {
  std::size_t place;
  extents sizes;
};

/// An execution plan, and the bytes that it works in.
struct execution_plan {
  descriptor it;
  std::int64_t workspace;
};

/// An operation graph that is put together. Tensors have four dimensions; those without memory (`between`) are packed and of float,
/// unless it is said otherwise. Operations compute in float.
class operation_graph {
 public:
  explicit operation_graph(int device) : device_(device) {}

  /// A tensor in memory, whose address is given with `id` when the plan runs. Addresses and strides are multiples of 16 bytes.
  graph_tensor in_memory(std::int64_t id, cudnnDataType_t type, const extents& sizes, const extents& strides) {
    return add(id, type, sizes, strides, false, false);
  }
  /// A float that is read from the host's memory when the plan is run.
  graph_tensor number(std::int64_t id) { return add(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true); }
  graph_tensor between(const extents& sizes, const extents& strides, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return add(next_++, type, sizes, strides, true, false);
  }
  graph_tensor between(const extents& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return between(sizes, packed(sizes), type);
  }

  /// c = a b, over the last two dimensions.
  void multiply(const graph_tensor& a, const graph_tensor& b, const graph_tensor& c) {
    descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR, device_);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    const descriptor& kept = keep(std::move(how).finalize("a kind of product"));
    descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, device_);
    operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a))
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b))
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c))
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kept);
    operations_.push_back(std::move(operation).finalize("a product"));
  }
  /// y = mode(x), mode(x, b), or for a choice mode(x, b, t): x where t is true, else b. Sizes of 1 in b hold for all. `axis`: of indices.
  void pointwise(cudnnPointwiseMode_t mode, const graph_tensor& x, const graph_tensor& y,
                 const graph_tensor* b = nullptr, const graph_tensor* t = nullptr,
                 cudnnDataType_t computed = CUDNN_DATA_FLOAT, std::int64_t axis = -1) {
    descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, device_);
    how.set(CUDNN_ATTR_POINTWISE_MODE, mode).set(CUDNN_ATTR_POINTWISE_MATH_PREC, computed);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
    const descriptor& kept = keep(std::move(how).finalize("a kind of operation element by element"));
    descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, device_);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kept)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x))
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
    if (b != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(*b));
    if (t != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(*t));
    operations_.push_back(std::move(operation).finalize("an operation element by element"));
  }
  /// The same with a result between, of the sizes of x.
  graph_tensor applied(cudnnPointwiseMode_t mode, const graph_tensor& x) {
    const graph_tensor y = between(x.sizes);
    pointwise(mode, x, y);
    return y;
  }
  graph_tensor applied(cudnnPointwiseMode_t mode, const graph_tensor& x, const graph_tensor& b) {
    const graph_tensor y = between(x.sizes);
    pointwise(mode, x, y, &b);
    return y;
  }
  /// y = the sums or largest elements of x over the dimensions in which y is smaller.
  void reduce(cudnnReduceTensorOp_t mode, const graph_tensor& x, const graph_tensor& y) {
    descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, device_);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, mode).set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    const descriptor& kept = keep(std::move(how).finalize("a kind of reduction"));
    descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, device_);
    operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x))
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y))
        .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kept);
    operations_.push_back(std::move(operation).finalize("a reduction"));
  }
  /// x with these sizes and strides: here its last two dimensions in the other order.
  graph_tensor transposed(const graph_tensor& x, const extents& strides, cudnnDataType_t type) {
    const graph_tensor y = between({x.sizes[0], x.sizes[1], x.sizes[3], x.sizes[2]}, strides, type);
    descriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, device_);
    operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x)).set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
    operations_.push_back(std::move(operation).finalize("a change of shape"));
    return y;
  }

  /// The kinds of kernels that cuDNN advises for a device, the best first; nothing where it has none. `device`: a `cudnnHandle_t`, or the properties
  /// of one that is described. Errors: `cuda_error` for all other refusals.
  template <class Device>
  std::vector<descriptor> advised(const Device& device) const {
    constexpr bool is_here = std::is_same_v<Device, cudnnHandle_t>;
    std::vector<cudnnBackendDescriptor_t> all;
    for (const descriptor& operation : operations_) all.push_back(operation.get());
    descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, device_);
    graph.set<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, all);
    if constexpr (is_here) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, device);
    if (refused(graph.try_finalize(), "cudnnBackendFinalize of an operation graph")) return {};
    descriptor advice(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, device_);
    advice.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph).set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
    if constexpr (!is_here) advice.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    if (refused(advice.try_finalize(), "cudnnBackendFinalize of advice on engines")) return {};
    std::vector<descriptor> engines;
    std::array<cudnnBackendDescriptor_t, most_advised> places{};
    for (cudnnBackendDescriptor_t& place : places)
      place = engines.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, device_).get();
    std::int64_t count = 0;
    static_cast<void>(last_words());  // of earlier calls
    const cudnnStatus_t asked =
        cudnnBackendGetAttribute(advice.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 most_advised, &count, places.data());
    if (refused(asked, "cudnnBackendGetAttribute of advice on engines")) return {};
    if (count == 0) require_libraries();
    while (static_cast<std::int64_t>(engines.size()) > count) engines.pop_back();
    return engines;
  }
  /// The first of them that cuDNN makes a plan with; nothing where it has none for these sizes.
  /// Errors: `cuda_error` for all other refusals, such as a driver or a library that is missing.
  std::optional<execution_plan> plan(cudnnHandle_t handle) const {
    std::optional<cuda_error> lacking;
    for (const descriptor& engine : advised(handle)) {
      descriptor it(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, device_);
      it.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine).set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
      constexpr std::string_view call = "cudnnBackendFinalize of an execution plan";
      const cudnnStatus_t status = it.try_finalize();
      if (lacks_library(status) && !lacking) lacking.emplace(refusal(status, call, device_));
      if (refused(status, call)) continue;
      std::int64_t workspace = 0, one = 0;
      require(cudnnBackendGetAttribute(it.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &one,
                                       &workspace),
              "cudnnBackendGetAttribute of the size of a workspace", device_);
      return execution_plan{std::move(it), workspace};
    }
    if (lacking) throw *lacking;
    return std::nullopt;
  }

 private:
  static constexpr int most_advised = 8;

  /// Whether cuDNN has none. Errors: `cuda_error` for what is neither that nor done.
  bool refused(cudnnStatus_t status, std::string_view call) const {
    if (has_none(status)) return true;
    require(status, call, device_);
    return false;
  }
  // cuDNN tries what it advises, and advises nothing where the driver or a library that compiles kernels is missing: it says so in words alone.
  void require_libraries() const {
    const std::string words = last_words();
    for (const char* const part : {"RUNTIME_PREREQUISITE_MISSING", "SUBLIBRARY_UNAVAILABLE"})
      if (words.find(part) != std::string::npos)
        throw refusal(CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
                      "cudnnBackendGetAttribute of advice on engines", device_, words);
  }
  graph_tensor add(std::int64_t id, cudnnDataType_t type, const extents& sizes, const extents& strides, bool between,
                   bool by_value) {
    descriptor it(CUDNN_BACKEND_TENSOR_DESCRIPTOR, device_);
    it.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const std::int64_t>(sizes))
        .set(CUDNN_ATTR_TENSOR_STRIDES, std::span<const std::int64_t>(strides))
        .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16})
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, between)
        .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
    tensors_.push_back(std::move(it).finalize("a tensor"));
    return {tensors_.size() - 1, sizes};
  }
  const descriptor& at(const graph_tensor& x) const { return tensors_[x.place]; }
  const descriptor& keep(descriptor&& it) { return kinds_.emplace_back(std::move(it)); }

  int device_;
  std::int64_t next_ = 1000;  // ids of tensors between; those in memory have smaller ones
  std::vector<descriptor> tensors_, kinds_, operations_;
};

}  // namespace heddle::inline v0::compute::detail::on_cudnn
