# What `cpack` makes of an installed heddle: heddle-<version>.tar.gz, and libheddle-dev_<version>_all.deb.
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME heddle)
set(CPACK_PACKAGE_FILE_NAME "heddle-${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "heddle maintainers <heddle@example.org>" CACHE STRING "Who answers for the packages that cpack makes")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Header-only C++20 parallelism toolkit")
set(CPACK_PACKAGE_DESCRIPTION "Who, where, how and when are types: meshes, layouts, collectives and schedules\nof training and inference of large models on many ranks.")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_DEBIAN_PACKAGE_NAME libheddle-dev)  # as packaging/debian calls it, so that one replaces the other
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++ (>= 4:12) | clang (>= 1:17)")
if(NOT HEDDLE_COMPILED)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
endif()
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/packaging/debian/documents.cmake")  # Debian's copyright and changelog
include(CPack)
