# Run by cpack before it packs: a Debian package brings its copyright and its changelog, and no second copy of the licence.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(documents "${CPACK_TEMPORARY_INSTALL_DIRECTORY}${CPACK_PACKAGING_INSTALL_PREFIX}/share/doc")
  file(REMOVE_RECURSE "${documents}/heddle")
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/copyright" DESTINATION "${documents}/libheddle-dev")
  execute_process(COMMAND gzip -9nc "${CMAKE_CURRENT_LIST_DIR}/changelog" OUTPUT_FILE "${documents}/libheddle-dev/changelog.gz" COMMAND_ERROR_IS_FATAL ANY)
  file(CHMOD "${documents}/libheddle-dev/changelog.gz" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endif()
