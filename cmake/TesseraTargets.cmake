# Targets and the functions that folders use:
#
#   tessera_folder(core SOURCES a.cpp b.cpp HEADERS x.h)                 object library tessera_core, joined into `tessera`
#   tessera_folder(comm_mpi SOURCES ... LIBRARY tessera_mpi LINK MPI::MPI_C)
#   tessera_example(train_gpt SOURCES main.cpp NATIVE block.cpp LINK Eigen3::Eigen [MPI])   build/examples/train_gpt
#   tessera_bench(step SOURCES step.cpp [NATIVE ...] [LINK ...] [MPI])   build/bench/bench_step
#
# NATIVE sources are compiled for this machine (TESSERA_NATIVE). They must not instantiate arithmetic of our public headers: the linker keeps one
# copy of an inline function, and the library's must stay portable.

# How our own code is compiled. Linked PRIVATE into everything here, never exported.
add_library(tessera_warnings INTERFACE)
target_compile_options(tessera_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(tessera_warnings INTERFACE -Wno-restrict)  # sees overlaps in std::string's + that are not there (GCC's PR 105651)
endif()

add_library(tessera_options INTERFACE)
target_compile_features(tessera_options INTERFACE cxx_std_20)
# No contraction: vector body and tail, and every instruction set, give the same bits. No errno: math functions vectorise.
target_compile_options(tessera_options INTERFACE -ffp-contract=off -fno-math-errno)
target_compile_definitions(tessera_options INTERFACE
  $<$<BOOL:${TESSERA_POISON}>:TESSERA_POISON> $<$<BOOL:${TESSERA_PLANTED_FAULTS}>:TESSERA_PLANTED_FAULTS>)
target_link_libraries(tessera_options INTERFACE tessera_warnings Threads::Threads)
if(TESSERA_SANITIZE STREQUAL "address")
  target_compile_options(tessera_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tessera_options INTERFACE -fsanitize=address,undefined)
elseif(TESSERA_SANITIZE STREQUAL "thread")
  target_compile_options(tessera_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(tessera_options INTERFACE -fsanitize=thread)
elseif(TESSERA_SANITIZE)
  message(FATAL_ERROR "TESSERA_SANITIZE is '${TESSERA_SANITIZE}': use address, thread or nothing")
endif()

# Libraries used inside, never in public headers: their headers. What fmt has to compile, core/fmt.cpp compiles.
add_library(tessera_third_party INTERFACE)
target_link_libraries(tessera_third_party INTERFACE nlohmann_json::nlohmann_json)
target_include_directories(tessera_third_party SYSTEM INTERFACE
  "${TESSERA_XXHASH_INCLUDE_DIR}" "${TESSERA_HIGHWAY_INCLUDE_DIR}" $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)

# Programs link fmt as a library, like anybody: header-only costs seconds in each file. There is none for the target of a cross build.
add_library(tessera_fmt INTERFACE)
if(CMAKE_CROSSCOMPILING)
  target_link_libraries(tessera_fmt INTERFACE fmt::fmt-header-only)
else()
  target_link_libraries(tessera_fmt INTERFACE fmt::fmt)
endif()

# What others link. A consumer gets the include folder, C++20 and Threads, and nothing else.
add_library(tessera STATIC)
add_library(Tessera::tessera ALIAS tessera)
set_target_properties(tessera PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME tessera)
target_compile_features(tessera INTERFACE cxx_std_20)
target_link_libraries(tessera INTERFACE Threads::Threads)
if(TESSERA_WITH_MPI)
  add_library(tessera_mpi STATIC)
  add_library(Tessera::mpi ALIAS tessera_mpi)
  set_target_properties(tessera_mpi PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME mpi)
  target_link_libraries(tessera_mpi INTERFACE tessera MPI::MPI_C)
endif()

function(tessera_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY" "SOURCES;HEADERS;LINK")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "tessera_folder(${name}): give SOURCES [HEADERS] [LIBRARY] [LINK]; not understood: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT arg_LIBRARY)
    set(arg_LIBRARY tessera)
  endif()
  add_library(tessera_${name} OBJECT ${arg_SOURCES})
  target_sources(tessera_${name} PRIVATE FILE_SET private_headers TYPE HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${arg_HEADERS})
  target_include_directories(tessera_${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(tessera_${name} PRIVATE tessera_options tessera_third_party ${arg_LINK})
  # Hidden and position independent, so that a shared library of somebody else's can hold us without showing us.
  set_target_properties(tessera_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                        POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
  # Objects, not the target: a static library would export a dependency on it.
  target_sources(${arg_LIBRARY} PRIVATE $<TARGET_OBJECTS:tessera_${name}>)
endfunction()

# Flags for this machine, on single source files.
function(tessera_native_sources)
  if(TESSERA_NATIVE AND NOT CMAKE_CROSSCOMPILING)
    set_property(SOURCE ${ARGV} APPEND PROPERTY COMPILE_OPTIONS -march=native)
  endif()
endfunction()

function(_tessera_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "MPI" "NAME;FOLDER" "SOURCES;NATIVE;LINK")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "${target}: give SOURCES [NATIVE] [LINK] [MPI]; not understood: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  add_executable(${target} ${arg_SOURCES} ${arg_NATIVE})
  if(arg_NATIVE)
    tessera_native_sources(${arg_NATIVE})
  endif()
  target_link_libraries(${target} PRIVATE tessera_options ${arg_LINK} Tessera::tessera)
  if(arg_MPI AND TESSERA_WITH_MPI)
    target_link_libraries(${target} PRIVATE Tessera::mpi)
    target_compile_definitions(${target} PRIVATE TESSERA_WITH_MPI)
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_NAME} CXX_EXTENSIONS OFF
                        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${arg_FOLDER}")
endfunction()

# MPI: link Tessera::mpi and define TESSERA_WITH_MPI where it was built; the program works without it.
function(tessera_example name)
  _tessera_program(${name} NAME ${name} FOLDER examples ${ARGN})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/examples")
endfunction()

function(tessera_bench name)
  _tessera_program(bench_${name} NAME bench_${name} FOLDER bench ${ARGN})
  target_include_directories(bench_${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(bench_${name} PRIVATE tessera_third_party tessera_fmt)
endfunction()
