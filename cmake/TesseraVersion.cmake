# include/tessera/version.h is a plain file, so that a header-only look at the tree sees it; it must say what project() says.
file(STRINGS "${PROJECT_SOURCE_DIR}/include/tessera/version.h" _line REGEX "kVersion = \"[^\"]*\"")
string(REGEX REPLACE ".*kVersion = \"([^\"]*)\".*" "\\1" _header_version "${_line}")
if(NOT _header_version STREQUAL PROJECT_VERSION)
  message(FATAL_ERROR "include/tessera/version.h says ${_header_version}, project() says ${PROJECT_VERSION}: make them equal")
endif()
