// heddle/comm/mpi/datatype.hpp: MPI datatypes of elements, and counts above an int's range.
#pragma once

#include <heddle/comm/mpi/api.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

/// MPI's own type for `T`: arithmetic types and `std::byte`; `MPI_DATATYPE_NULL` for all others, which travel as bytes.
template <class T>
inline MPI_Datatype mpi_datatype() noexcept {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) {
    return MPI_FLOAT;
  } else if constexpr (std::is_same_v<U, double>) {
    return MPI_DOUBLE;
  } else if constexpr (std::is_same_v<U, long double>) {
    return MPI_LONG_DOUBLE;
  } else if constexpr (std::is_same_v<U, std::byte>) {
    return MPI_BYTE;
  } else if constexpr (std::is_integral_v<U> && !std::is_same_v<U, bool> && sizeof(U) <= 8) {
    constexpr bool sign = std::is_signed_v<U>;
    if constexpr (sizeof(U) == 1)
      return sign ? MPI_INT8_T : MPI_UINT8_T;
    else if constexpr (sizeof(U) == 2)
      return sign ? MPI_INT16_T : MPI_UINT16_T;
    else if constexpr (sizeof(U) == 4)
      return sign ? MPI_INT32_T : MPI_UINT32_T;
    else
      return sign ? MPI_INT64_T : MPI_UINT64_T;
  } else {
    return MPI_DATATYPE_NULL;
  }
}

namespace detail {

template <class T>
inline constexpr bool has_mpi_datatype =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, long double> ||
    std::is_same_v<T, std::byte> || (std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8);

// A type of MPI's that is freed at the end of its scope.
class owned_datatype {
 public:
  owned_datatype() = default;
  explicit owned_datatype(MPI_Datatype type) : type_(type) {}
  owned_datatype(owned_datatype&& other) noexcept : type_(std::exchange(other.type_, MPI_DATATYPE_NULL)) {}
  owned_datatype& operator=(owned_datatype&& other) noexcept {
    std::swap(type_, other.type_);
    return *this;
  }
  ~owned_datatype() {
    if (type_ != MPI_DATATYPE_NULL && mpi_usable()) MPI_Type_free(&type_);
  }
  MPI_Datatype get() const noexcept { return type_; }
  void commit() { mpi_check(MPI_Type_commit(&type_), "MPI_Type_commit"); }

  static owned_datatype contiguous(int count, MPI_Datatype of) {
    MPI_Datatype made = MPI_DATATYPE_NULL;
    mpi_check(MPI_Type_contiguous(count, of, &made), "MPI_Type_contiguous");
    return owned_datatype(made);
  }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

// MPI's type that stands for `unit<T>` of itself per element: T's own, or bytes.
template <class T>
MPI_Datatype wire_datatype() noexcept {
  if constexpr (has_mpi_datatype<T>)
    return mpi_datatype<T>();
  else
    return MPI_BYTE;
}
template <class T>
inline constexpr std::int64_t wire_units = has_mpi_datatype<T> ? 1 : static_cast<std::int64_t>(sizeof(T));

// `elements` elements as one datatype: for counts that an int cannot hold. `limit` is what a count may be at most.
template <class T>
owned_datatype block_datatype(std::int64_t elements, std::int64_t limit) {
  const std::int64_t count = elements * wire_units<T>;
#if MPI_VERSION >= 4
  (void)limit;
  MPI_Datatype all = MPI_DATATYPE_NULL;
  mpi_check(MPI_Type_contiguous_c(count, wire_datatype<T>(), &all), "MPI_Type_contiguous_c");
  owned_datatype made(all);
#else
  const std::int64_t whole = count / limit, rest = count % limit;
  const owned_datatype piece = owned_datatype::contiguous(static_cast<int>(limit), wire_datatype<T>());
  owned_datatype made = owned_datatype::contiguous(static_cast<int>(whole), piece.get());
  if (rest != 0) {
    const owned_datatype tail = owned_datatype::contiguous(static_cast<int>(rest), wire_datatype<T>());
    MPI_Aint lower = 0, extent = 0;
    mpi_check(MPI_Type_get_extent(wire_datatype<T>(), &lower, &extent), "MPI_Type_get_extent");
    int lengths[2] = {1, 1};
    MPI_Aint places[2] = {0, static_cast<MPI_Aint>(whole * limit) * extent};
    MPI_Datatype types[2] = {made.get(), tail.get()};
    MPI_Datatype all = MPI_DATATYPE_NULL;
    mpi_check(MPI_Type_create_struct(2, lengths, places, types, &all), "MPI_Type_create_struct");
    made = owned_datatype(all);
  }
#endif
  made.commit();
  return made;
}

// A number of elements as MPI takes it.
struct mpi_amount {
  int count = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
};

// Calls `use(amount)` with a count that MPI can hold, or with 1 of a type of its own. The type may be freed before what
// uses it is complete: MPI keeps it.
template <class T, class Use>
decltype(auto) with_amount(std::int64_t elements, int limit, Use&& use) {
  if (elements * wire_units<T> <= limit) [[likely]]
    return use(mpi_amount{static_cast<int>(elements * wire_units<T>), wire_datatype<T>()});
  const owned_datatype block = block_datatype<T>(elements, limit);
  return use(mpi_amount{1, block.get()});
}

}  // namespace detail
}  // namespace heddle::inline v0
