# cmake -DPAGE=README.md -DEXAMPLE=example.cpp -P same.cmake: the first program of the page is the example, from its first
cmake_minimum_required(VERSION 3.25)
# #include on.
include("${CMAKE_CURRENT_LIST_DIR}/blocks.cmake")
heddle_blocks("${PAGE}" block)
file(READ "${EXAMPLE}" example)
string(FIND "${example}" "#include" at)
string(SUBSTRING "${example}" ${at} -1 example)
# What lets the example run as processes too is not for the page.
string(REPLACE "#include \"transport.hpp\"\n\n" "" example "${example}")
string(REPLACE "int main(int argc, char** argv) {\n  on::begin(argc, argv);\n" "int main() {\n" example "${example}")
if(NOT block_0 STREQUAL example)
  message(FATAL_ERROR "${PAGE} shows another program than ${EXAMPLE}")
endif()
