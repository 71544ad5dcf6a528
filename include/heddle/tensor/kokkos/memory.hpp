// heddle/tensor/kokkos/memory.hpp: the memory of a Kokkos execution space.
#pragma once

#include <heddle/core/device_runtime.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/kokkos/instance.hpp>
#include <heddle/tensor/kokkos/staging.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <Kokkos_Core.hpp>

namespace heddle::inline v0 {

/// Kokkos was finalized while a queue, or memory that it gave, was still in use.
struct kokkos_finalized : memory_error {
  using memory_error::memory_error;
};

namespace detail {

struct adopting;  // in view.hpp

// Named, since a lambda for devices may not be in a private function; these run on the host only.
struct kokkos_copy_block {
  std::byte* to;
  const std::byte* from;  // nothing: zeros
  std::size_t bytes, block;
  void operator()(std::int64_t b) const {
    const std::size_t begin = static_cast<std::size_t>(b) * block;
    const std::size_t n = bytes - begin < block ? bytes - begin : block;
    if (from != nullptr)
      std::memcpy(to + begin, from + begin, n);
    else
      std::memset(to + begin, 0, n);
  }
};
struct kokkos_exclusive_sum {
  using value_type = std::int64_t;
  const std::int64_t* in;
  std::int64_t* out;
  KOKKOS_FUNCTION void operator()(std::int64_t i, std::int64_t& sum, bool last) const {
    const std::int64_t own = in[i];
    if (last) out[i] = sum;
    sum += own;
  }
};
// Copies (or zeros: `from` nullptr) in memory of the host, in the order of this instance and by its threads. Kokkos' own deep_copy
// shares large copies among the threads of the default host instance, whatever instance it is given; Threads would refuse that on
// a rank's thread.
template <class ExecSpace>
void kokkos_copy_on_host(const ExecSpace& exec, void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t block = 1 << 16;
  const kokkos_copy_block work{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, block};
  if (bytes <= block || exec.concurrency() == 1) {
    exec.fence();
    kokkos_copy_block{work.to, work.from, bytes, bytes}(0);
  } else {
    const auto blocks = static_cast<std::int64_t>((bytes + block - 1) / block);
    Kokkos::parallel_for("heddle::copy",
                         Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(exec, 0, blocks), work);
  }
}

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
      } else {
        tell_of_end();
      }
    } catch (const std::exception& e) {  // of the device, or no memory for the text
      tell(e.what());
    }
  }
  // Memory of somebody else, after all that the queue was given. What Kokkos no longer frees stays.
  void give_back(std::shared_ptr<void> owner) noexcept {
    try {
      if (Kokkos::is_initialized()) {
        exec_->fence();
      } else {
        static_cast<void>(new std::shared_ptr<void>(std::move(owner)));
        tell_of_end();
      }
    } catch (const std::exception& e) {
      tell(e.what());
    }
  }
  void require_alive() const {
    if (!Kokkos::is_initialized()) [[unlikely]]
      throw kokkos_finalized(text_of_end());
  }

  static constexpr bool on_host = std::is_same_v<typename ExecSpace::memory_space, Kokkos::HostSpace>;

 private:
  // Apart, since g++ 12 warns of the exchange where it inlines it behind a pointer that it takes for null.
  [[gnu::noinline]] void tell_of_end() {
    if (!told_.exchange(true)) tell(text_of_end());
  }
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
  /// Whose devices these are, for libraries for messages that may take their memory.
  static constexpr device_runtime runtime = detail::kokkos_device<ExecSpace>::runtime;
  /// Whether kernels run on cores of the host: memory that both sides use may belong to a device.
  static constexpr bool kernels_run_on_host =
      Kokkos::SpaceAccessibility<ExecSpace, Kokkos::HostSpace>::accessible && host_accessible;

  template <std::size_t Alignment>
  class allocation {
   public:
    allocation() = default;
    allocation(allocation&& other) noexcept
        : instance_(std::move(other.instance_)),
          memory_(std::exchange(other.memory_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          owner_(std::move(other.owner_)) {}
    allocation& operator=(allocation&& other) noexcept {
      if (this == &other) return *this;
      release();
      instance_ = std::move(other.instance_);
      memory_ = std::exchange(other.memory_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      owner_ = std::move(other.owner_);
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
    friend struct heddle::v0::detail::adopting;
    allocation(std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance, std::size_t bytes)
        : instance_(std::move(instance)), memory_(instance_->allocate(bytes)), bytes_(bytes) {}
    void release() noexcept {
      if (memory_ == nullptr) return;
      void* const memory = std::exchange(memory_, nullptr);
      if (owner_ != nullptr)
        instance_->give_back(std::move(owner_));
      else
        instance_->release(memory, bytes_);
    }
    std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance_{};
    void* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::shared_ptr<void> owner_{};  // of memory that is somebody else's
  };

  /// An instance of the execution space. It moves, does not copy. Memory is released when all that the queue that gave it was
  /// given to do is done; who works on it through another queue waits for that one first. Copies must not overlap.
  /// Errors: `kokkos_not_initialized` where a queue is made before Kokkos::initialize; `kokkos_instance_error` where one of Threads
  /// is made on another thread than the one that initialized Kokkos; `layout_error` for copies of another size, and for those that
  /// overlap in memory of the host; `kokkos_error` for what Kokkos itself throws; `kokkos_finalized` from each call after
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
      auto* const at = first_element(x);
      const std::size_t bytes = bytes_of(x);
      if (bytes == 0) return;
      if constexpr (on_host)
        detail::kokkos_call("zero", [&] { detail::kokkos_copy_on_host(instance(), at, nullptr, bytes); });
      // In words where it can be: Kokkos fills element by element.
      else if (bytes % sizeof(std::uint64_t) == 0 && reinterpret_cast<std::uintptr_t>(at) % alignof(std::uint64_t) == 0)
        detail::kokkos_call("zero", [&] {
          Kokkos::deep_copy(instance(), row<std::uint64_t, kokkos_space>(at, bytes / sizeof(std::uint64_t)),
                            std::uint64_t{0});
        });
      else
        detail::kokkos_call("zero", [&] {
          Kokkos::deep_copy(instance(), row<unsigned char, kokkos_space>(at, bytes), static_cast<unsigned char>(0));
        });
    }
    template <class From, class To>
      requires(elements_in<From, kokkos_memory> || elements_in<From, host_memory>) &&
              (elements_in<To, kokkos_memory> || elements_in<To, host_memory>) &&
              std::same_as<element_of<From>, element_of<To>>
    void copy(const From& from, To&& to) {
      instance_->require_alive();
      const std::size_t n = element_count(from), room = element_count(to);
      if (n != room) heddle::v0::detail::throw_copy_of(n, room);
      const void* const source = first_element(from);
      void* const target = first_element(to);
      if (n == 0 || source == target) return;  // Kokkos 5.2 refuses to copy a View onto itself
      const std::size_t bytes = bytes_of(to);
      if constexpr (on_host || (elements_in<From, host_memory> && elements_in<To, host_memory>)) {
        const auto a = reinterpret_cast<std::uintptr_t>(source), b = reinterpret_cast<std::uintptr_t>(target);
        if (a < b + bytes && b < a + bytes)
          throw layout_error(
              "heddle: copy: the elements that are copied and those that are written should not overlap: " +
              std::to_string(bytes) + " bytes each, " + std::to_string(a < b ? b - a : a - b) + " apart");
      }
      detail::kokkos_call("copy", [&] {
        if constexpr (on_host)
          detail::kokkos_copy_on_host(instance(), target, source, bytes);
        else
          Kokkos::deep_copy(instance(), row<unsigned char, space_for<To>>(first_element(to), bytes),
                            row<const unsigned char, space_for<From>>(first_element(from), bytes_of(from)));
      });
    }
    /// Memory of the host for copies of messages, pinned where Kokkos has such, one for each of two slots, which is kept and grows: for one
    /// user at a time.
    void* staging(std::size_t slot, std::size_t bytes) {
      instance_->require_alive();
      return detail::kokkos_call("memory for messages", [&] { return staging_.at(slot, bytes); });
    }
    /// `f` with host views of these, when all that the queue was given before is done.
    template <class F, class... T, class... Shape>
      requires host_accessible
    void run(F&& f, const view<T, Shape, kokkos_memory>&... views) {
      wait();
      std::forward<F>(f)(view<T, Shape>(views.address(), views.shape())...);
    }
    /// body(i) for each i in [0, n), by threads of the instance (`launches_kernels`).
    template <class Body>
    friend void launch_each(queue& q, std::int64_t n, const Body& body) {
      q.instance_->require_alive();
      if (n <= 0) return;
      static const std::string name("heddle::launch_each");  // not a new one for each launch
      detail::kokkos_call("a kernel", [&] {
        Kokkos::parallel_for(name, Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(q.instance(), 0, n),
                             body);
      });
    }
    /// out[i] = in[0] + ... + in[i - 1], on the instance.
    friend void exclusive_sum(queue& q, std::int64_t n, const std::int64_t* in, std::int64_t* out) {
      q.instance_->require_alive();
      detail::kokkos_call("a scan", [&] {
        Kokkos::parallel_scan("heddle::exclusive_sum",
                              Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<std::int64_t>>(q.instance(), 0, n),
                              detail::kokkos_exclusive_sum{in, out});
      });
    }
    /// Whether one thread runs all kernels: the one that launches them.
    static constexpr bool has_one_thread = detail::kokkos_is_serial<ExecSpace>;
    /// Whether work on so many elements is for the calling thread alone: where the instance has no other, and where two would share less
    /// than the host's backend gives to two. To wake others and wait for them takes as long, and far longer where they wait for a core.
    bool is_for_this_thread(std::int64_t elements) const
      requires kernels_run_on_host
    {
      constexpr std::int64_t of_one_thread = 1 << 14;
      if constexpr (has_one_thread)
        return true;
      else
        return elements < 2 * of_one_thread || instance().concurrency() == 1;
    }
    /// `work()` on the calling thread, after all that the queue was given. Tools are told of a kernel.
    template <class Work>
    void on_this_thread(const Work& work)
      requires kernels_run_on_host
    {
      if (Kokkos::Tools::profileLibraryLoaded()) [[unlikely]] {
        launch_each(*this, 1, [&work](std::int64_t) { work(); });
        return wait();
      }
      wait();
      work();
    }
    /// Fences the instance.
    void wait() {
      instance_->require_alive();
      detail::kokkos_call("wait", [&] { instance().fence(); });
    }

   private:
    friend struct heddle::v0::detail::adopting;
    static constexpr bool on_host = detail::kokkos_instance<ExecSpace>::on_host;
    template <class Make>
    static auto make(Make exec) {
      if (!Kokkos::is_initialized())
        throw kokkos_not_initialized("heddle: a queue of " + std::string(ExecSpace::name()) +
                                     " needs Kokkos, which is not initialized: call Kokkos::initialize, or declare a "
                                     "Kokkos::ScopeGuard, before the first tensor or backend, and end them before it");
      return std::make_shared<detail::kokkos_instance<ExecSpace>>(
          detail::kokkos_instance_for_this_thread<ExecSpace>(exec));
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
      return element_count(x) * sizeof(*first_element(x));
    }

    std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance_;
    detail::kokkos_staging<typename detail::kokkos_device<ExecSpace>::pinned> staging_{};
  };

 private:
  template <std::size_t Alignment>
  static allocation<Alignment> make_allocation(std::shared_ptr<detail::kokkos_instance<ExecSpace>> instance,
                                               std::size_t bytes) {
    return {std::move(instance), bytes};
  }
};

}  // namespace heddle::inline v0
