// heddle/tensor/kokkos/memory.hpp: the memory of a Kokkos execution space, reached through an instance of that space.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#if !__has_include(<Kokkos_Core.hpp>)
#error \
    "heddle/tensor/kokkos needs Kokkos: link the CMake target heddle::kokkos, or add the folder of Kokkos_Core.hpp to the include path"
#endif
#include <Kokkos_Core.hpp>

namespace heddle::inline v0 {

/// A queue of Kokkos memory was made where Kokkos is not initialized.
struct kokkos_not_initialized : config_error {
  using config_error::config_error;
};
/// Kokkos was finalized while a queue, or memory that it gave, was still in use.
struct kokkos_finalized : memory_error {
  using memory_error::memory_error;
};

namespace detail {

// The instance that a queue works on, kept by all memory that the queue gave.
template <class ExecSpace>
class kokkos_instance {
 public:
  explicit kokkos_instance(std::unique_ptr<ExecSpace> exec) : exec_(std::move(exec)) {}
  kokkos_instance(const kokkos_instance&) = delete;
  kokkos_instance& operator=(const kokkos_instance&) = delete;
  // An instance may not end after Kokkos did.
  ~kokkos_instance() {
    if (!Kokkos::is_initialized()) static_cast<void>(exec_.release());
  }

  const ExecSpace& exec() const noexcept { return *exec_; }

  // Memory of the host comes from the language: where Kokkos frees it, from 3.6 on, it fences all instances of all ranks.
  void* allocate(std::size_t bytes) noexcept {
    try {
      void* memory = nullptr;
      if constexpr (on_host)
        memory = ::operator new(bytes, std::nothrow);
      else
        memory = Kokkos::kokkos_malloc<typename ExecSpace::memory_space>("heddle", bytes);
      if (memory != nullptr) owned_ += static_cast<std::int64_t>(bytes);
      return memory;
    } catch (const std::exception&) {  // no memory: whoever asked says for what
      return nullptr;
    }
  }
  // After all that the queue was given. What Kokkos no longer frees stays where it is, and is told.
  void release(void* memory, std::size_t bytes) noexcept {
    try {
      if (Kokkos::is_initialized()) {
        exec_->fence();
        if constexpr (on_host)
          ::operator delete(memory);
        else
          Kokkos::kokkos_free<typename ExecSpace::memory_space>(memory);
        owned_ -= static_cast<std::int64_t>(bytes);
      } else if (!told_.exchange(true)) {
        tell(text_of_end());
      }
    } catch (const std::exception& e) {  // of the device, or no memory for the text
      tell(e.what());
    }
  }
  void require_alive() const {
    if (!Kokkos::is_initialized()) [[unlikely]]
      throw kokkos_finalized(text_of_end());
  }

 private:
  static constexpr bool on_host = std::is_same_v<typename ExecSpace::memory_space, Kokkos::HostSpace>;

  static void tell(std::string_view text) noexcept {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
    std::fflush(stderr);
  }
  std::string text_of_end() const {
    return "heddle: Kokkos was finalized too early: a queue of " + std::string(ExecSpace::name()) + " and " +
           std::to_string(owned_.load()) +
           " bytes of its memory were still in use; end all tensors, backends and queues before Kokkos::finalize "
           "(declare them after a Kokkos::ScopeGuard)";
  }

  std::unique_ptr<ExecSpace> exec_;
  std::atomic<std::int64_t> owned_{0};
  std::atomic<bool> told_{false};
};

template <class ExecSpace>
std::unique_ptr<ExecSpace> kokkos_instance_of_its_own() {
#if KOKKOS_VERSION >= 40000
  return std::make_unique<ExecSpace>(Kokkos::Experimental::partition_space(ExecSpace(), 1)[0]);
#else
  return std::make_unique<ExecSpace>();
#endif
}

}  // namespace detail

/// The memory space of a Kokkos execution space, such as `kokkos_memory<Kokkos::Serial>`. Its queue is an instance of that
/// execution space: what it is given is done in order on that instance, and to wait fences that instance and no other. Host
/// code may use the elements where it can use the memory space; there the queue runs host code, too. On a device Kokkos waits for all
/// that the device does when memory is released: keep tensors from step to step.
template <class ExecSpace>
  requires(Kokkos::is_execution_space<ExecSpace>::value)
struct kokkos_memory {
  using execution_space = ExecSpace;
  /// Kokkos' own name for this memory.
  using kokkos_space = typename ExecSpace::memory_space;
  static constexpr bool host_accessible =
      Kokkos::SpaceAccessibility<Kokkos::DefaultHostExecutionSpace, kokkos_space>::accessible;

  template <std::size_t Alignment>
  class allocation {
   public:
    allocation() = default;
    allocation(allocation&& other) noexcept
        : instance_(std::move(other.instance_)),
          memory_(std::exchange(other.memory_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    allocation& operator=(allocation&& other) noexcept {
      if (this == &other) return *this;
      release();
      instance_ = std::move(other.instance_);
      memory_ = std::exchange(other.memory_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      return *this;
    }
    ~allocation() { release(); }
    void* address() const noexcept {
      if (memory_ == nullptr) return nullptr;
      const auto at = reinterpret_cast<std::uintptr_t>(memory_);
      return static_cast<std::byte*>(memory_) + ((at + Alignment - 1) / Alignment * Alignment - at);
    }

   private:
    friend struct kokkos_memory;
    allocation(std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance, std::size_t bytes)
        : instance_(std::move(instance)), memory_(instance_->allocate(bytes)), bytes_(bytes) {}
    void release() noexcept {
      if (memory_ != nullptr) instance_->release(std::exchange(memory_, nullptr), bytes_);
    }
    std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance_{};
    void* memory_ = nullptr;
    std::size_t bytes_ = 0;
  };

  /// An instance of the execution space. It moves, does not copy. Memory is released when all that the queue that gave it was
  /// given to do is done; who works on it through another queue waits for that one first. Copies must not overlap.
  /// Errors: `kokkos_not_initialized` where a queue is made before Kokkos::initialize; `kokkos_finalized` from each call after
  /// Kokkos::finalize. Memory that outlives Kokkos is left where it is, with the text of that error on stderr.
  class queue {
   public:
    /// An instance of its own, where this Kokkos makes some (`partition_space`, from 4.0 on), else a copy of the default one.
    queue() : instance_(make([] { return detail::kokkos_instance_of_its_own<ExecSpace>(); })) {}
    /// This instance, such as one of a CUDA stream.
    explicit queue(ExecSpace instance)
        : instance_(make([&] { return std::make_unique<ExecSpace>(std::move(instance)); })) {}
    queue(queue&&) noexcept = default;
    queue& operator=(queue&&) noexcept = default;

    /// The instance, for kernels of one's own: `Kokkos::RangePolicy<ExecSpace>(queue.instance(), 0, n)`.
    const ExecSpace& instance() const noexcept { return instance_->exec(); }

    template <std::size_t Alignment>
    allocation<Alignment> allocate(std::size_t bytes) {
      instance_->require_alive();
      return make_allocation<Alignment>(instance_, bytes + Alignment);  // room to align it
    }
    template <class X>
      requires elements_in<X, kokkos_memory>
    void zero(X&& x) {
      instance_->require_alive();
      auto* const at = heddle::v0::detail::first_element(x);
      const std::size_t bytes = bytes_of(x);
      if (bytes == 0) return;
      // In words where it can be: Kokkos fills element by element.
      if (bytes % sizeof(std::uint64_t) == 0 && reinterpret_cast<std::uintptr_t>(at) % alignof(std::uint64_t) == 0)
        Kokkos::deep_copy(instance(), row<std::uint64_t, kokkos_space>(at, bytes / sizeof(std::uint64_t)),
                          std::uint64_t{0});
      else
        Kokkos::deep_copy(instance(), row<unsigned char, kokkos_space>(at, bytes), static_cast<unsigned char>(0));
    }
    template <class From, class To>
      requires(elements_in<From, kokkos_memory> || elements_in<From, host_memory>) &&
              (elements_in<To, kokkos_memory> || elements_in<To, host_memory>) &&
              std::same_as<heddle::v0::detail::element_of<From>, heddle::v0::detail::element_of<To>>
    void copy(const From& from, To&& to) {
      instance_->require_alive();
      const std::size_t n = heddle::v0::detail::count_of(from), room = heddle::v0::detail::count_of(to);
      if (n != room) heddle::v0::detail::throw_copy_of(n, room);
      const void* const source = heddle::v0::detail::first_element(from);
      const void* const target = heddle::v0::detail::first_element(to);
      if (n == 0 || source == target) return;  // Kokkos 5.2 refuses to copy a View onto itself
      Kokkos::deep_copy(
          instance(), row<unsigned char, space_for<To>>(heddle::v0::detail::first_element(to), bytes_of(to)),
          row<const unsigned char, space_for<From>>(heddle::v0::detail::first_element(from), bytes_of(from)));
    }
    /// `f` with host views of these, when all that the queue was given before is done.
    template <class F, class... T, class... Shape>
      requires host_accessible
    void run(F&& f, const view<T, Shape, kokkos_memory>&... views) {
      wait();
      std::forward<F>(f)(view<T, Shape>(views.address(), views.shape())...);
    }
    /// Fences the instance.
    void wait() {
      instance_->require_alive();
      instance().fence();
    }

   private:
    template <class Make>
    static auto make(Make exec) {
      if (!Kokkos::is_initialized())
        throw kokkos_not_initialized("heddle: a queue of " + std::string(ExecSpace::name()) +
                                     " needs Kokkos, which is not initialized: call Kokkos::initialize, or declare a "
                                     "Kokkos::ScopeGuard, before the first tensor or backend, and end them before it");
      return std::make_shared<detail::kokkos_instance<ExecSpace>>(exec());
    }
    template <class X>
    using space_for = std::conditional_t<elements_in<X, host_memory>, Kokkos::HostSpace, kokkos_space>;
    template <class Word, class Space, class T>
    static auto row(T* at, std::size_t n) {
      using word_pointer = std::conditional_t<std::is_const_v<Word>, const void*, void*>;
      return Kokkos::View<Word*, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
          static_cast<Word*>(static_cast<word_pointer>(at)), n);
    }
    template <class X>
    static std::size_t bytes_of(const X& x) {
      return heddle::v0::detail::count_of(x) * sizeof(*heddle::v0::detail::first_element(x));
    }

    std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance_;
  };

 private:
  template <std::size_t Alignment>
  static allocation<Alignment> make_allocation(std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance,
                                               std::size_t bytes) {
    return {std::move(instance), bytes};
  }
};

}  // namespace heddle::inline v0
