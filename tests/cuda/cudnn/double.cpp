#include "double.hpp"

#include "../double.hpp"

#include <heddle/core/half_precision.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace hd = heddle;
using extents = std::array<std::int64_t, 4>;

struct tensor {
  std::int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  extents sizes{}, strides{};
  bool between = false, by_value = false;
  std::int64_t count() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};
struct operation {
  cudnnBackendDescriptorType_t kind = CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
  int mode = 0;  // of pointwise operations and reductions
  std::int64_t axis = -1;
  tensor x, b, t, y;
  bool has_b = false, has_t = false;
};
using operations = std::vector<operation>;

struct attribute {
  cudnnBackendAttributeType_t type{};
  std::int64_t count = 0;
  std::vector<unsigned char> bytes;
};
struct object {
  cudnnBackendDescriptorType_t type;
  std::map<int, attribute> attributes{};
  bool final = false;
  tensor of_tensor{};
  operation of_operation{};
  std::shared_ptr<const operations> graph{};
  int engine = -1;
};

std::mutex mutex;
std::map<std::string, cudnnStatus_t> planned;
std::set<object*> objects;
std::string words;
std::atomic<int> handles{0}, plan_count{0}, run_count{0}, refused_engines{0};
std::atomic<bool> any_engine{true};
std::atomic<std::size_t> version_number{CUDNN_VERSION};
std::atomic<cudnnStatus_t> refusal{CUDNN_STATUS_NOT_SUPPORTED};

struct failure {
  cudnnStatus_t status;
  std::string why;
};
void expect(bool holds, const std::string& why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
  if (!holds) throw failure{status, why};
}
template <class F>
cudnnStatus_t call(const char* function, const F& f) {
  const std::lock_guard lock(mutex);
  words.clear();
  try {
    if (const auto at = planned.find(function); at != planned.end()) {
      const cudnnStatus_t status = at->second;
      planned.erase(at);
      throw failure{status, "as planned"};
    }
    f();
    return CUDNN_STATUS_SUCCESS;
  } catch (const failure& e) {
    words = e.why;
    return e.status;
  }
}
object& at(void* descriptor) {
  auto* const it = static_cast<object*>(descriptor);
  expect(objects.contains(it), "no such descriptor");
  return *it;
}

template <class T>
std::vector<T> all_of(const object& o, int name) {
  const auto found = o.attributes.find(name);
  expect(found != o.attributes.end(), "attribute " + std::to_string(name) + " is missing");
  std::vector<T> out(static_cast<std::size_t>(found->second.count));
  expect(found->second.bytes.size() == out.size() * sizeof(T),
         "attribute " + std::to_string(name) + " has another type");
  std::memcpy(out.data(), found->second.bytes.data(), found->second.bytes.size());
  return out;
}
template <class T>
T one_of(const object& o, int name) {
  const auto all = all_of<T>(o, name);
  expect(all.size() == 1, "attribute " + std::to_string(name) + " is one value");
  return all[0];
}
object& descriptor_of(const object& o, int name) {
  object& it = at(one_of<void*>(o, name));
  expect(it.final, "the descriptor of attribute " + std::to_string(name) + " is not finalized");
  return it;
}
tensor tensor_of(const object& o, int name) {
  const object& it = descriptor_of(o, name);
  expect(it.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR, "attribute " + std::to_string(name) + " is a tensor");
  return it.of_tensor;
}
std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT32:
      return 4;
    case CUDNN_TYPE_INT64:
      return 8;
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return sizeof(void*);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
    case CUDNN_TYPE_HEUR_MODE:
      return sizeof(int);
    default:
      throw failure{CUDNN_STATUS_BAD_PARAM, "this type of attributes is not known"};
  }
}
// What cuDNN wants to be told of what.
cudnnBackendAttributeType_t type_of_attribute(int name) {
  switch (name) {
    case CUDNN_ATTR_TENSOR_DATA_TYPE:
    case CUDNN_ATTR_MATMUL_COMP_TYPE:
    case CUDNN_ATTR_POINTWISE_MATH_PREC:
    case CUDNN_ATTR_REDUCTION_COMP_TYPE:
      return CUDNN_TYPE_DATA_TYPE;
    case CUDNN_ATTR_TENSOR_IS_VIRTUAL:
    case CUDNN_ATTR_TENSOR_IS_BY_VALUE:
      return CUDNN_TYPE_BOOLEAN;
    case CUDNN_ATTR_POINTWISE_MODE:
      return CUDNN_TYPE_POINTWISE_MODE;
    case CUDNN_ATTR_REDUCTION_OPERATOR:
      return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
    case CUDNN_ATTR_ENGINEHEUR_MODE:
      return CUDNN_TYPE_HEUR_MODE;
    case CUDNN_ATTR_OPERATIONGRAPH_HANDLE:
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
      return CUDNN_TYPE_HANDLE;
    case CUDNN_ATTR_TENSOR_DIMENSIONS:
    case CUDNN_ATTR_TENSOR_STRIDES:
    case CUDNN_ATTR_TENSOR_UNIQUE_ID:
    case CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT:
    case CUDNN_ATTR_POINTWISE_AXIS:
    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS:
      return CUDNN_TYPE_INT64;
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
      return CUDNN_TYPE_VOID_PTR;
    default:
      return CUDNN_TYPE_BACKEND_DESCRIPTOR;
  }
}

// Runs over all indices of such sizes.
template <class F>
void each(const extents& n, const F& f) {
  for (std::int64_t i = 0; i < n[0]; ++i)
    for (std::int64_t j = 0; j < n[1]; ++j)
      for (std::int64_t k = 0; k < n[2]; ++k)
        for (std::int64_t l = 0; l < n[3]; ++l) f(extents{i, j, k, l});
}
std::int64_t offset(const extents& i, const extents& strides) {
  return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3];
}
extents packed(const extents& n) {
  return {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
}

// Of one run: values of tensors, packed, by id.
struct run_of_graph {
  std::map<std::int64_t, std::vector<double>> values{};
  std::map<std::int64_t, char*> addresses{};

  static double rounded(cudnnDataType_t type, double x) {
    const auto f = static_cast<float>(x);
    if (type == CUDNN_DATA_BFLOAT16) return static_cast<double>(static_cast<float>(hd::bf16(f)));
    if (type == CUDNN_DATA_HALF) return static_cast<double>(static_cast<float>(hd::f16(f)));
    return static_cast<double>(f);
  }
  double& value(const tensor& x, const extents& i) {
    return values.at(x.id)[static_cast<std::size_t>(offset(i, packed(x.sizes)))];
  }
  // With sizes of 1 for all, and smaller ones for as many neighbours each.
  double value_for(const tensor& x, const extents& i, const extents& of) {
    extents j{};
    for (std::size_t d = 0; d < 4; ++d) j[d] = i[d] * x.sizes[d] / of[d];
    return value(x, j);
  }
  void load(const tensor& x) {
    if (values.contains(x.id)) return;
    std::vector<double>& out = values[x.id];
    out.resize(static_cast<std::size_t>(x.count()));
    const char* const from = addresses.at(x.id);
    // Statistics of gradients.
    const extents strides = x.type == CUDNN_DATA_FLOAT ? packed(x.sizes) : x.strides;
    each(x.sizes, [&](const extents& i) {
      const auto e = static_cast<std::size_t>(offset(i, strides));
      double& to = value(x, i);
      if (x.type == CUDNN_DATA_BFLOAT16)
        to = static_cast<double>(static_cast<float>(reinterpret_cast<const hd::bf16*>(from)[e]));
      else if (x.type == CUDNN_DATA_HALF)
        to = static_cast<double>(static_cast<float>(reinterpret_cast<const hd::f16*>(from)[e]));
      else
        to = static_cast<double>(reinterpret_cast<const float*>(from)[e]);
    });
  }
  void store(const tensor& x) {
    for (double& e : values.at(x.id)) e = rounded(x.type, e);
    if (x.between) return;
    char* const to = addresses.at(x.id);
    each(x.sizes, [&](const extents& i) {
      const auto e = static_cast<std::size_t>(offset(i, x.strides));
      const auto f = static_cast<float>(value(x, i));
      if (x.type == CUDNN_DATA_BFLOAT16)
        reinterpret_cast<hd::bf16*>(to)[e] = hd::bf16(f);
      else if (x.type == CUDNN_DATA_HALF)
        reinterpret_cast<hd::f16*>(to)[e] = hd::f16(f);
      else
        reinterpret_cast<float*>(to)[e] = f;
    });
  }
  double element(const operation& o, const extents& i) {
    const double x = value_for(o.x, i, o.y.sizes);
    const double b = o.has_b ? value_for(o.b, i, o.y.sizes) : 0;
    switch (o.mode) {
      case CUDNN_POINTWISE_MUL:
        return x * b;
      case CUDNN_POINTWISE_ADD:
        return x + b;
      case CUDNN_POINTWISE_SUB:
        return x - b;
      case CUDNN_POINTWISE_DIV:
        return x / b;
      case CUDNN_POINTWISE_EXP:
        return std::exp(x);
      case CUDNN_POINTWISE_LOG:
        return std::log(x);
      case CUDNN_POINTWISE_IDENTITY:
        return x;
      case CUDNN_POINTWISE_GEN_INDEX:
        return static_cast<double>(i[static_cast<std::size_t>(o.axis)]);
      case CUDNN_POINTWISE_CMP_GE:
        return x >= b ? 1 : 0;
      default:
        return value_for(o.t, i, o.y.sizes) != 0 ? x : b;  // CUDNN_POINTWISE_BINARY_SELECT
    }
  }
  void run(const operation& o) {
    load(o.x);
    if (o.has_b) load(o.b);
    if (o.has_t) load(o.t);
    values[o.y.id].assign(static_cast<std::size_t>(o.y.count()), 0);
    if (o.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
      each(o.y.sizes, [&](const extents& i) {
        double sum = 0;
        for (std::int64_t k = 0; k < o.x.sizes[3]; ++k)
          sum += value(o.x, {i[0], i[1] * o.x.sizes[1] / o.y.sizes[1], i[2], k}) *
                 value(o.b, {i[0], i[1] * o.b.sizes[1] / o.y.sizes[1], k, i[3]});
        value(o.y, i) = sum;
      });
    } else if (o.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
      each(o.y.sizes, [&](const extents& i) { value(o.y, i) = element(o, i); });
    } else if (o.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
      const bool top = o.mode == CUDNN_REDUCE_TENSOR_MAX;
      if (top) std::fill(values[o.y.id].begin(), values[o.y.id].end(), -HUGE_VAL);
      each(o.x.sizes, [&](const extents& i) {
        extents j{};
        for (std::size_t d = 0; d < 4; ++d) j[d] = i[d] * o.y.sizes[d] / o.x.sizes[d];
        double& to = value(o.y, j);
        to = top ? (std::max)(to, value(o.x, i)) : to + value(o.x, i);
      });
    } else {  // the same memory with other strides
      std::map<std::int64_t, double> memory;
      each(o.x.sizes, [&](const extents& i) { memory[offset(i, o.x.strides)] = value(o.x, i); });
      each(o.y.sizes, [&](const extents& i) { value(o.y, i) = memory.at(offset(i, o.y.strides)); });
    }
    store(o.y);
  }
};

void finalize_tensor(object& o) {
  const auto sizes = all_of<std::int64_t>(o, CUDNN_ATTR_TENSOR_DIMENSIONS),
             strides = all_of<std::int64_t>(o, CUDNN_ATTR_TENSOR_STRIDES);
  expect(sizes.size() == 4 && strides.size() == 4, "a tensor has four dimensions");
  std::copy(sizes.begin(), sizes.end(), o.of_tensor.sizes.begin());
  std::copy(strides.begin(), strides.end(), o.of_tensor.strides.begin());
  o.of_tensor.id = one_of<std::int64_t>(o, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  o.of_tensor.type = one_of<cudnnDataType_t>(o, CUDNN_ATTR_TENSOR_DATA_TYPE);
  o.of_tensor.between = one_of<unsigned char>(o, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
  o.of_tensor.by_value = one_of<unsigned char>(o, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0;
  expect(one_of<std::int64_t>(o, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) == 16, "tensors are aligned to 16 bytes");
  for (const std::int64_t n : o.of_tensor.sizes) expect(n > 0, "a tensor has elements");
}
void finalize_operation(object& o) {
  operation& made = o.of_operation;
  made.kind = o.type;
  const auto has = [&](int name) { return o.attributes.contains(name); };
  if (o.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
    made.x = tensor_of(o, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    made.b = tensor_of(o, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    made.y = tensor_of(o, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    made.has_b = true;
    expect(one_of<cudnnDataType_t>(descriptor_of(o, CUDNN_ATTR_OPERATION_MATMUL_DESC), CUDNN_ATTR_MATMUL_COMP_TYPE) ==
               CUDNN_DATA_FLOAT,
           "products are added up in float");
    expect(
        made.x.sizes[3] == made.b.sizes[2] && made.x.sizes[2] == made.y.sizes[2] && made.b.sizes[3] == made.y.sizes[3],
        "sizes of a product");
  } else if (o.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
    const object& how = descriptor_of(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    made.mode = one_of<int>(how, CUDNN_ATTR_POINTWISE_MODE);
    one_of<int>(how, CUDNN_ATTR_POINTWISE_MATH_PREC);
    if (how.attributes.contains(CUDNN_ATTR_POINTWISE_AXIS))
      made.axis = one_of<std::int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS);
    made.x = tensor_of(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    made.y = tensor_of(o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    made.has_b = has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    made.has_t = has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    if (made.has_b) made.b = tensor_of(o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    if (made.has_t) made.t = tensor_of(o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const bool two = made.mode == CUDNN_POINTWISE_MUL || made.mode == CUDNN_POINTWISE_ADD ||
                     made.mode == CUDNN_POINTWISE_SUB || made.mode == CUDNN_POINTWISE_DIV ||
                     made.mode == CUDNN_POINTWISE_CMP_GE || made.mode == CUDNN_POINTWISE_BINARY_SELECT;
    expect(made.has_b == two && made.has_t == (made.mode == CUDNN_POINTWISE_BINARY_SELECT),
           "operands of an operation element by element");
    expect((made.axis >= 0) == (made.mode == CUDNN_POINTWISE_GEN_INDEX), "the axis of indices");
    expect(made.x.sizes == made.y.sizes, "sizes of an operation element by element");
  } else if (o.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
    made.x = tensor_of(o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    made.y = tensor_of(o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    const object& how = descriptor_of(o, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    made.mode = one_of<int>(how, CUDNN_ATTR_REDUCTION_OPERATOR);
    expect(one_of<cudnnDataType_t>(how, CUDNN_ATTR_REDUCTION_COMP_TYPE) == CUDNN_DATA_FLOAT, "reductions in float");
  } else {
    made.x = tensor_of(o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    made.y = tensor_of(o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    expect(made.x.count() == made.y.count(), "a change of shape keeps the elements");
  }
}
void finalize_graph(object& o) {
  auto made = std::make_shared<operations>();
  std::set<std::int64_t> written;
  expect(one_of<void*>(o, CUDNN_ATTR_OPERATIONGRAPH_HANDLE) != nullptr, "a graph without a handle");
  for (void* const each : all_of<void*>(o, CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const object& part = at(each);
    expect(part.final, "an operation that is not finalized");
    const operation& next = made->emplace_back(part.of_operation);
    for (const auto& [is, x] : {std::pair{true, next.x}, std::pair{next.has_b, next.b}, std::pair{next.has_t, next.t}})
      expect(!is || !x.between || written.contains(x.id),
             "tensor " + std::to_string(x.id) + " is read before it is written");
    expect(written.insert(next.y.id).second, "a tensor is written twice");
  }
  o.graph = made;
}
void finalize(object& o) {
  expect(!o.final, "the descriptor is finalized");
  switch (o.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      finalize_tensor(o);
      break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      finalize_operation(o);
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      finalize_graph(o);
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      o.graph = descriptor_of(o, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).graph;
      expect(one_of<int>(o, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_A, "the mode of advice");
      expect(any_engine, "no engine has this pattern", CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const object& engine = descriptor_of(o, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
      expect(one_of<void*>(o, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != nullptr, "a plan without a handle");
      expect(engine.engine >= refused_engines, "this engine does not take that", refusal);
      o.graph = engine.graph;
      ++plan_count;
      break;
    }
    default:
      break;  // kinds of operations, properties of devices, addresses
  }
  o.final = true;
}

}  // namespace

namespace cudnn_double {
void reset() {
  const std::lock_guard lock(mutex);
  planned.clear();
  plan_count = run_count = refused_engines = 0;
  any_engine = true;
  version_number = CUDNN_VERSION;
}
int plans() {
  return plan_count;
}
int runs() {
  return run_count;
}
int open() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(objects.size()) + handles;
}
void has_engines(bool any) {
  any_engine = any;
}
void refuse_engines(int count, cudnnStatus_t status) {
  refused_engines = count;
  refusal = status;
}
void fail_next(const std::string& function, cudnnStatus_t status) {
  const std::lock_guard lock(mutex);
  planned[function] = status;
}
void version(std::size_t number) {
  version_number = number;
}
}  // namespace cudnn_double

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

extern "C" {

std::size_t cudnnGetVersion() {
  return version_number;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_BAD_PARAM) return "CUDNN_STATUS_BAD_PARAM";
  if (status == CUDNN_STATUS_EXECUTION_FAILED) return "CUDNN_STATUS_EXECUTION_FAILED";
  return "a status of the double";
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  const std::lock_guard lock(mutex);
  const std::size_t n = (std::min)(size - 1, words.size());
  std::memcpy(message, words.data(), n);
  message[n] = '\0';
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return call("cudnnCreate", [&] {
    *handle = new cudnnContext;
    ++handles;
  });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  --handles;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return call("cudnnSetStream", [&] { handle->stream = stream; });
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  return call("cudnnBackendCreateDescriptor", [&] {
    auto* const made = new object{type};
    objects.insert(made);
    *descriptor = made;
  });
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return call("cudnnBackendDestroyDescriptor", [&] {
    object& it = at(descriptor);
    objects.erase(&it);
    delete &it;
  });
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  return call("cudnnBackendSetAttribute", [&] {
    object& it = at(descriptor);
    expect(!it.final, "an attribute of a descriptor that is finalized");
    expect(type == type_of_attribute(name), "the type of attribute " + std::to_string(name));
    attribute& made = it.attributes[name];
    made.type = type;
    made.count = count;
    const auto* const bytes = static_cast<const unsigned char*>(values);
    made.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * bytes_of(type));
  });
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return call("cudnnBackendFinalize", [&] { finalize(at(descriptor)); });
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t room, std::int64_t* count,
                                       void* values) {
  return call("cudnnBackendGetAttribute", [&] {
    const object& it = at(descriptor);
    expect(it.final, "an attribute of a descriptor that is not finalized");
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
      expect(type == CUDNN_TYPE_INT64 && room == 1, "the size of a workspace");
      *static_cast<std::int64_t*>(values) = 100;
      *count = 1;
      return;
    }
    expect(name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && room >= 2, "advice");
    *count = 2;
    for (int i = 0; i < 2; ++i) {
      object& engine = at(static_cast<void**>(values)[i]);
      expect(engine.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && !engine.final, "room for an engine");
      engine.engine = i;
      engine.graph = it.graph;
      engine.final = true;
    }
  });
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return call("cudnnBackendExecute", [&] {
    const object &of = at(plan), &given = at(pack);
    expect(of.final && given.final && of.graph != nullptr, "a plan and addresses");
    const auto ids = all_of<std::int64_t>(given, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto addresses = all_of<void*>(given, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    expect(one_of<void*>(given, CUDNN_ATTR_VARIANT_PACK_WORKSPACE) != nullptr, "a workspace");
    expect(ids.size() == addresses.size() && std::set(ids.begin(), ids.end()).size() == ids.size(),
           "an address for each tensor");
    auto run = std::make_shared<run_of_graph>();
    std::set<std::int64_t> used;
    for (const operation& o : *of.graph)
      for (const auto& [is, x] :
           {std::pair{true, o.x}, std::pair{o.has_b, o.b}, std::pair{o.has_t, o.t}, std::pair{true, o.y}}) {
        if (!is || x.between) continue;
        const auto found = std::find(ids.begin(), ids.end(), x.id);
        expect(found != ids.end(), "tensor " + std::to_string(x.id) + " has no address");
        char* const address = static_cast<char*>(addresses[static_cast<std::size_t>(found - ids.begin())]);
        if (x.by_value) {
          run->values[x.id] = {static_cast<double>(*reinterpret_cast<float*>(address))};
        } else {
          expect(reinterpret_cast<std::uintptr_t>(address) % 16 == 0,
                 "tensor " + std::to_string(x.id) + " is not aligned");
          run->addresses[x.id] = address;
        }
        used.insert(x.id);
      }
    expect(used.size() == ids.size(), "an address of a tensor that the graph does not have");
    ++run_count;
    cuda_double::enqueue(handle->stream, [graph = of.graph, run] {
      run_of_graph once = *run;  // a captured run comes again
      for (const operation& o : *graph) once.run(o);
    });
  });
}
}
