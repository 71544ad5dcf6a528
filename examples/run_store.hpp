// examples/run_store.hpp: the store that a name of saves means, where it is no folder's; opened by run_store.cpp, so
// that programs do not compile what speaks to it.
#pragma once

#include <heddle/io/store.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tool {

/// Whether a name of saves is that of a store, "s3://BUCKET/PREFIX".
inline bool names_store(std::string_view name) {
  return name.starts_with("s3://");
}

/// The store of this name; none for a folder's. Errors: `config_error` for a store without keys, or where the program
/// was built without the component curl.
std::unique_ptr<heddle::io::store> open_store(const std::string& name);

/// The step of the newest save in a store, 0 without one. Errors: as `training_saves::steps_saved` of a folder.
std::int64_t steps_saved(const heddle::io::store& store, bool resume);

}  // namespace tool

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)  // a program that is compiled as one file
#include "run_store.cpp"
#endif
