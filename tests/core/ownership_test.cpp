#include "catch.hpp"

#include <heddle/core/file_descriptor.hpp>
#include <heddle/core/ownership.hpp>

#include <fcntl.h>

#include <type_traits>
#include <utility>

namespace {

struct counted final {
  int* ended = nullptr;
  explicit counted(int& count) : ended(&count) {}
  counted(counted&& other) noexcept : ended(std::exchange(other.ended, nullptr)) {}
  counted& operator=(counted&& other) noexcept { return heddle::move_assign(*this, std::move(other)); }
  ~counted() {
    if (ended != nullptr) ++*ended;
  }
};
struct fixed : heddle::uncopyable {};
static_assert(!std::is_copy_constructible_v<fixed> && !std::is_move_constructible_v<fixed>);
static_assert(!std::is_copy_assignable_v<fixed> && std::is_default_constructible_v<fixed>);

}  // namespace

TEST_CASE("replace ends the old value once, takes the other, and leaves itself alone", "[core][ownership]") {
  int first = 0, second = 0;
  {
    counted a(first), b(second);
    a = std::move(b);
    CHECK(first == 1);
    CHECK(second == 0);
    CHECK(b.ended == nullptr);
    counted& same = a;
    a = std::move(same);
    CHECK(second == 0);
    CHECK(a.ended == &second);
  }
  CHECK(first == 1);
  CHECK(second == 1);
}

TEST_CASE("a file descriptor closes its file once", "[core][ownership]") {
  using heddle::file_descriptor;
  const int file = ::open("/dev/null", O_RDONLY);
  REQUIRE(file >= 0);
  {
    file_descriptor a(file), b(std::move(a));
    CHECK(a.file() == -1);
    CHECK(b.file() == file);
    a = std::move(b);
    CHECK(a.file() == file);
  }
  CHECK(::fcntl(file, F_GETFD) == -1);
}
