# Builds for every Linux with glibc 2.28 or later (manylinux_2_28), on SHOAL_TARGET=x86_64 or aarch64:
# Zig is Clang with the headers and symbols of old C libraries. Its C++ library is linked into the core.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{SHOAL_TARGET})
set(zig $ENV{SHOAL_ZIG})
set(CMAKE_CXX_COMPILER ${zig} c++ -target $ENV{SHOAL_TARGET}-linux-gnu.2.28)
set(CMAKE_CXX_ARCHIVE_CREATE "${zig} ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "${zig} ranlib <TARGET>")
# Zig exports the symbols of its C++ library, which other libraries of the process might then use.
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/core.map")
