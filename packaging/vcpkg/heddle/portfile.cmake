# Not run with vcpkg: tests/consume/vcpkg.cmake runs it with stand-ins for vcpkg's functions.
set(VCPKG_BUILD_TYPE release) # headers

vcpkg_download_distfile(archive
    URLS "@URL@"
    FILENAME "heddle-${VERSION}.tar.gz"
    SHA512 @SHA512@
)
vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${archive}")
vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DHEDDLE_TESTS=OFF
        -DHEDDLE_EXAMPLES=OFF
        -DHEDDLE_BENCHMARKS=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME heddle CONFIG_PATH share/cmake/heddle)
vcpkg_fixup_pkgconfig()

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
