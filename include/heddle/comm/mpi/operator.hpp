// heddle/comm/mpi/operator.hpp: MPI operators for heddle's, predefined or user-defined.
#pragma once

#include <heddle/comm/mpi/datatype.hpp>
#include <heddle/core/monoid.hpp>

#include <cstring>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::detail {

// MPI leaves open what MPI_MAX makes of a NaN, and heddle's maximum keeps it: only integers use MPI's.
template <class T, class Op>
inline constexpr bool has_mpi_op =
    has_mpi_datatype<T> && !std::is_same_v<T, std::byte> &&
    (std::is_same_v<Op, plus> || std::is_same_v<Op, multiplies> ||
     (std::is_integral_v<T> && (std::is_same_v<Op, maximum> || std::is_same_v<Op, minimum>)));

template <class Op>
MPI_Op predefined_mpi_op() noexcept {
  if constexpr (std::is_same_v<Op, plus>)
    return MPI_SUM;
  else if constexpr (std::is_same_v<Op, multiplies>)
    return MPI_PROD;
  else if constexpr (std::is_same_v<Op, maximum>)
    return MPI_MAX;
  else
    return MPI_MIN;
}

// MPI's user functions have no argument for the operator itself: it hangs at the datatype of the call.
struct mpi_op_slot {
  const void* op = nullptr;    // during a call
  std::exception_ptr problem;  // what the operator threw
};

// The name under which it hangs there, once per process.
inline int mpi_op_key() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    mpi_check(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &made, nullptr),
              "MPI_Type_create_keyval");
    return made;
  }();
  return key;
}

// What MPI calls: inout[i] = in[i] op inout[i]. An exception must not pass through MPI; the call throws it afterwards.
template <class T, class Op>
void call_mpi_op(void* in, void* inout, int* count, MPI_Datatype* type) {
  mpi_op_slot* slot = nullptr;
  int found = 0;
  if (MPI_Type_get_attr(*type, mpi_op_key(), static_cast<void*>(&slot), &found) != MPI_SUCCESS || found == 0) return;
  try {
    const Op& op = *static_cast<const Op*>(slot->op);
    if constexpr (alignof(T) <= alignof(std::max_align_t)) {
      const T* x = static_cast<const T*>(in);
      T* y = static_cast<T*>(inout);
      for (int i = 0; i < *count; ++i) y[i] = static_cast<T>(op(x[i], y[i]));
    } else {  // MPI's own buffers need not be aligned for it
      for (int i = 0; i < *count; ++i) {
        T x, y;
        std::memcpy(&x, static_cast<char*>(in) + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
        std::memcpy(&y, static_cast<char*>(inout) + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
        y = static_cast<T>(op(x, y));
        std::memcpy(static_cast<char*>(inout) + static_cast<std::size_t>(i) * sizeof(T), &y, sizeof(T));
      }
    }
  } catch (...) {
    if (slot->problem == nullptr) slot->problem = std::current_exception();
  }
}

// Operators made for the pairs of operator and element type that were asked for so far; freed with it.
class mpi_operators {
 public:
  struct entry {
    const void* key;
    MPI_Op op = MPI_OP_NULL;
    owned_datatype type{};
    mpi_op_slot slot{};

    explicit entry(const void* k) : key(k) {}
    entry(const entry&) = delete;
    entry& operator=(const entry&) = delete;
    ~entry() {
      if (op != MPI_OP_NULL && mpi_usable()) MPI_Op_free(&op);
    }
  };

  template <class T, class Op>
  entry& get() {
    for (const auto& e : entries_)
      if (e->key == &key_of<T, Op>) return *e;
    auto made = std::make_unique<entry>(&key_of<T, Op>);
    // Operators that commute may be regrouped and exchanged; all others keep the order of ranks.
    mpi_check(MPI_Op_create(&call_mpi_op<T, Op>, is_commutative<Op> ? 1 : 0, &made->op), "MPI_Op_create");
    made->type = owned_datatype::contiguous(static_cast<int>(sizeof(T)), MPI_BYTE);
    made->type.commit();
    mpi_check(MPI_Type_set_attr(made->type.get(), mpi_op_key(), &made->slot), "MPI_Type_set_attr");
    entries_.push_back(std::move(made));
    return *entries_.back();
  }

 private:
  template <class T, class Op>
  static constexpr char key_of = 0;  // its address tells pairs apart

  std::vector<std::unique_ptr<entry>> entries_;
};

// One reduction's operator and type. `done` throws what the operator threw.
template <class T, class Op>
class mpi_reduction {
 public:
  mpi_reduction(mpi_operators& operators, const Op& op) {
    if constexpr (!has_mpi_op<T, Op>) {
      entry_ = &operators.get<T, Op>();
      entry_->slot.op = &op;
    }
  }
  MPI_Op op() const noexcept {
    if constexpr (has_mpi_op<T, Op>)
      return predefined_mpi_op<Op>();
    else
      return entry_->op;
  }
  MPI_Datatype type() const noexcept {
    if constexpr (has_mpi_op<T, Op>)
      return mpi_datatype<T>();
    else
      return entry_->type.get();
  }
  void done() {
    if constexpr (!has_mpi_op<T, Op>) {
      entry_->slot.op = nullptr;
      if (entry_->slot.problem != nullptr) std::rethrow_exception(std::exchange(entry_->slot.problem, nullptr));
    }
  }

 private:
  mpi_operators::entry* entry_ = nullptr;
};

}  // namespace heddle::inline v0::detail
