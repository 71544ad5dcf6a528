// heddle/train/impl/host_saves.hpp: the list of parts of saves that are compiled once.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/train/progress.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/saved_parameter.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// As HEDDLE_HOST_TRAINING.
#define HEDDLE_HOST_SAVES(KIND, T)                                                                                  \
  KIND template void write_parts<T>(io::part_writer&, std::string_view, const saved_parameter&, std::span<const T>, \
                                    std::int64_t);                                                                  \
  KIND template void read_parts<T>(const io::checkpoint_reader&, std::string_view, const saved_parameter&,          \
                                   std::span<T>, std::int64_t)
#define HEDDLE_THREADS_SAVES(KIND)                                                                                     \
  KIND template save_result finish_save<threads_communicator>(                                                         \
      threads_communicator&, progress&, io::rank_file, const std::filesystem::path&, const save_facts&, io::manifest); \
  KIND template std::string fault_of_files<threads_communicator>(threads_communicator&,                                \
                                                                 const io::detail::save_files&);                       \
  KIND template std::string fault_of_opening<threads_communicator>(                                                    \
      threads_communicator&, const io::detail::save_files&, const std::string&, const std::string&, const save_facts&, \
      std::optional<io::checkpoint_reader>&);                                                                          \
  KIND template std::string fault_of_reading<threads_communicator>(                                                    \
      threads_communicator&, const io::detail::save_files&, std::string, const io::checkpoint_reader&, bool);          \
  KIND template std::string find_save<threads_communicator>(threads_communicator&, const std::filesystem::path&,       \
                                                            std::vector<std::string>&, const io::failed_saves&)

namespace heddle::inline v0::train::detail {

HEDDLE_HOST_SAVES(extern, float);
HEDDLE_HOST_SAVES(extern, double);
HEDDLE_THREADS_SAVES(extern);

}  // namespace heddle::inline v0::train::detail
