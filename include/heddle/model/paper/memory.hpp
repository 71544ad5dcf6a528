// heddle/model/paper/memory.hpp: a memory space without bytes that counts its use.
#pragma once

#include <heddle/compute/attention_slices.hpp>
#include <heddle/core/error.hpp>
#include <heddle/tensor/memory_space.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// A memory space with nothing behind it: allocations have an address of their own and are counted, no byte of them exists.
/// What a queue copies to the host is zero. Of what it copies from there, masks of attention are kept, as operations follow from them. All queues that `beside()` makes count together.
struct paper_memory {
  static constexpr bool host_accessible = false;
  static constexpr bool routes_evenly = true;  ///< no number says which experts rows choose: equally many take each

 private:
  struct counts {
    std::int64_t held = 0, most = 0;
    std::uintptr_t next = std::uintptr_t{1} << 40;  // the next address: no two of one queue are alike
    std::map<std::uintptr_t, std::vector<compute::attention_slice>> slices{};  // that were copied there
  };

 public:
  template <std::size_t>
  class allocation {
   public:
    allocation() = default;
    allocation(allocation&& other) noexcept
        : of_(std::move(other.of_)), bytes_(std::exchange(other.bytes_, 0)), at_(std::exchange(other.at_, 0)) {}
    allocation& operator=(allocation&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      std::swap(at_, other.at_);
      return *this;
    }
    ~allocation() {
      if (of_ == nullptr) return;
      of_->held -= bytes_;
      of_->slices.erase(at_);
    }
    void* address() const noexcept { return reinterpret_cast<void*>(at_); }

   private:
    friend struct paper_memory;
    allocation(std::shared_ptr<counts> of, std::int64_t bytes, std::uintptr_t at)
        : of_(std::move(of)), bytes_(bytes), at_(at) {}
    std::shared_ptr<counts> of_{};
    std::int64_t bytes_ = 0;
    std::uintptr_t at_ = 0;
  };

  class queue {
   public:
    /// Another queue of the same memory. Nothing waits: all is done when it is asked for.
    queue beside() const { return *this; }
    struct event {};
    static event record() noexcept { return {}; }
    static void after(event) noexcept {}
    template <std::size_t Alignment>
    allocation<Alignment> allocate(std::size_t bytes) {
      counts& c = *counts_;
      const auto n = static_cast<std::int64_t>(bytes);
      c.held += n;
      c.most = (std::max)(c.most, c.held);
      const std::uintptr_t at = c.next;
      c.next += (bytes + Alignment) / Alignment * Alignment;
      return make<Alignment>(counts_, n, at);
    }
    template <class X>
      requires elements_in<X, paper_memory>
    static void zero(X&&) noexcept {}
    /// Errors: `layout_error` if the sizes differ.
    template <class From, class To>
      requires(elements_in<From, paper_memory> || elements_in<From, host_memory>) &&
              (elements_in<To, paper_memory> || elements_in<To, host_memory>) &&
              std::same_as<element_of<From>, element_of<To>>
    void copy(const From& from, To&& to) const {
      const std::size_t n = element_count(to);
      if (element_count(from) != n) heddle::detail::throw_copy_of(element_count(from), n);
      if constexpr (std::is_same_v<space_of<To>, host_memory>)
        std::fill_n(first_element(to), n, element_of<To>{});
      else if constexpr (std::is_same_v<std::remove_const_t<element_of<To>>, compute::attention_slice> &&
                         std::is_same_v<space_of<From>, host_memory>)
        counts_->slices[address_of(first_element(to))].assign(first_element(from), first_element(from) + n);
    }
    /// Query-key pairs of `n` slices that lie at an address; -1 where they were not copied there from the host.
    std::int64_t pairs_of(const compute::attention_slice* at, std::int64_t n) const {
      const auto found = counts_->slices.find(address_of(at));
      if (found == counts_->slices.end() || std::ssize(found->second) < n) return -1;
      std::int64_t pairs = 0;
      for (std::int64_t i = 0; i < n; ++i) pairs += found->second[static_cast<std::size_t>(i)].area();
      return pairs;
    }
    static void wait() noexcept {}
    /// Host code that kernels stand for elsewhere: nothing runs.
    template <class F, class... Rows>
    static void run(F&&, const Rows&...) noexcept {}

    /// Bytes that are allocated now, and the most so far.
    std::int64_t bytes() const noexcept { return counts_->held; }
    std::int64_t most_bytes() const noexcept { return counts_->most; }

   private:
    static std::uintptr_t address_of(const void* at) noexcept { return reinterpret_cast<std::uintptr_t>(at); }
    std::shared_ptr<counts> counts_ = std::make_shared<counts>();
  };

 private:
  template <std::size_t Alignment>
  static allocation<Alignment> make(std::shared_ptr<counts> of, std::int64_t bytes, std::uintptr_t at) {
    return {std::move(of), bytes, at};
  }
};

}  // namespace heddle::inline v0::model
