# cmake --install: headers, libraries, and a package for find_package(Tessera [COMPONENTS mpi]).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Tessera")

install(TARGETS tessera EXPORT TesseraTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION "${_package_dir}")

# A file of its own, so that a program on threads never looks for MPI.
if(TESSERA_WITH_MPI)
  install(TARGETS tessera_mpi EXPORT TesseraMpiTargets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT TesseraMpiTargets NAMESPACE Tessera:: DESTINATION "${_package_dir}")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in" "${PROJECT_BINARY_DIR}/TesseraConfig.cmake"
                              INSTALL_DESTINATION "${_package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/TesseraConfig.cmake" "${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake"
        DESTINATION "${_package_dir}")
