# Toolchain for aarch64 on Debian, to see that everything compiles there. Our dependencies are header-only, and their CMake packages (fmt's lies
# in a folder named after the host's processor) say nothing that depends on it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
file(GLOB _fmt /usr/lib/*/cmake/fmt)
if(_fmt)
  list(GET _fmt 0 fmt_DIR)
  set(fmt_DIR "${fmt_DIR}" CACHE PATH "")
endif()
