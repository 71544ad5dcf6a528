// tests/train/folder.hpp: a folder that is there while a test runs, the same for all of its processes.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "transport.hpp"

namespace train_test {

struct folder {
  std::filesystem::path path;
  explicit folder(const std::string& name) {
    int id = ::getpid();
    transport_test::tell(id, 0);
    path = std::filesystem::temp_directory_path() / ("heddle-train-" + name + "-" + std::to_string(id));
    remove();
  }
  ~folder() { remove(); }
  void remove() const {
    if (transport_test::process() == 0) std::filesystem::remove_all(path);
    bool done = true;
    transport_test::tell(done, 0);
  }
};

}  // namespace train_test
