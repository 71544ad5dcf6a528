// refuse: heddle: a class that is assigned by replacement is final, as a base is not replaced
#include <heddle/core/ownership.hpp>

#include <utility>

struct open_to_all {
  open_to_all(open_to_all&&) noexcept {}
  open_to_all& operator=(open_to_all&& other) noexcept { return heddle::move_assign(*this, std::move(other)); }
};

int main() {}
