// examples/run_store.cpp: buckets for the saves of tools; compiled once, or within a program's one unit (HEDDLE_EXAMPLE_ONE_UNIT).
#include "run_store.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/io/store_saves.hpp>
#if defined(HEDDLE_EXAMPLE_CURL)
#include <heddle/io/s3/store.hpp>
#endif

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#if defined(HEDDLE_EXAMPLE_ONE_UNIT)
#define HEDDLE_RUN_STORE_INLINE inline
#else
#define HEDDLE_RUN_STORE_INLINE
#endif

namespace tool {

HEDDLE_RUN_STORE_INLINE std::unique_ptr<heddle::io::store> open_store(const std::string& name) {
  if (!names_store(name)) return nullptr;
#if defined(HEDDLE_EXAMPLE_CURL)
  return std::make_unique<heddle::io::s3_store>(name);
#else
  throw heddle::config_error("heddle: '" + heddle::shown_name(name) +
                             "' is a bucket, and this program was built without the component curl (libcurl 7.88 and "
                             "pugixml), which reads and writes it; give a folder");
#endif
}

HEDDLE_RUN_STORE_INLINE std::int64_t steps_saved(const heddle::io::store& store, bool resume) {
  std::vector<std::string> skipped;
  const auto found = heddle::io::latest(store, &skipped);
  if (!found) heddle::io::require_readable({std::nullopt, skipped}, store.where(""));
  if (found && !resume)
    throw heddle::config_error("heddle: '" + store.where("") + "' holds a save of step " + std::to_string(found->step) +
                               "; give --resume to go on from it, or another prefix");
  return found ? found->step : 0;
}

}  // namespace tool
