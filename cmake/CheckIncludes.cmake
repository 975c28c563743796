cmake_minimum_required(VERSION 3.25)
# The include table of the design, checked on every source file:  cmake -DROOT=path/to/tree -P cmake/CheckIncludes.cmake
# Quoted includes are project files, written from the project's root ("shard/norm.h") or as "tessera/x.h"; examples, tools and tests may also name a
# file of their own folder. Angle brackets are everything else.

# folder: what its quoted includes may begin with
set(may_include_include/tessera tessera)
set(may_include_core tessera core)
set(may_include_shard tessera core shard)
set(may_include_comm tessera core comm)
set(may_include_runtime tessera core shard runtime)
set(may_include_tools tessera tools)
set(may_include_examples tessera examples)
set(may_include_bench tessera core shard comm bench)
set(may_include_tests tessera core shard comm runtime tools examples bench tests)

# foreign headers: where they may be named (regular expressions over header, then over the file's path)
set(foreign
  "^(mpi|pmpi)\\.h$"                  "^(include/tessera/backends/mpi\\.h|comm/mpi/.*|tests/.*)$"
  "^nccl\\.h$"                        "^(include/tessera/backends/nccl\\.h|comm/nccl/.*|tests/.*)$"
  "^(cuda|cublas).*\\.h$"             "^(include/tessera/backends/cuda\\.h|core/cuda/.*|comm/nccl/.*|shard/cuda/.*|examples/gpt/.*|tests/.*)$"
  "^(Eigen|unsupported|CLI)/"         "^(examples|tools|bench|tests)/"
  "^benchmark/"                       "^bench/"
  "^doctest/"                         "^tests/"
  "^hwy/"                             "^(core|shard|comm|bench|tests)/"
  "^(fmt|nlohmann)/|^xxhash\\.h$"     "^(core|shard|comm|runtime|tools|examples|bench|tests)/")

file(GLOB_RECURSE files RELATIVE "${ROOT}"
     "${ROOT}/include/*.h" "${ROOT}/core/*" "${ROOT}/shard/*" "${ROOT}/comm/*" "${ROOT}/runtime/*" "${ROOT}/tools/*" "${ROOT}/examples/*"
     "${ROOT}/bench/*" "${ROOT}/tests/*")
list(FILTER files INCLUDE REGEX "\\.(h|cpp|cu)$")
# A program of somebody else's.
list(FILTER files EXCLUDE REGEX "^tests/consumer/")

set(problems)
set(count 0)
foreach(file IN LISTS files)
  math(EXPR count "${count} + 1")
  string(REGEX MATCH "^(include/tessera|[a-z]+)" folder "${file}")
  file(STRINGS "${ROOT}/${file}" lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line IN LISTS lines)
    if(line MATCHES "include[ \t]*\"([^\"]+)\"")
      set(header "${CMAKE_MATCH_1}")
      string(REGEX MATCH "^[^/]+" top "${header}")
      get_filename_component(own "${ROOT}/${file}" DIRECTORY)
      if(header MATCHES "(^|/)\\.\\.?/")
        list(APPEND problems "${file}: \"${header}\" is a relative path; write it from the project's root")
      elseif(top IN_LIST may_include_${folder} AND header MATCHES "/")
        if(top STREQUAL "tessera" AND NOT EXISTS "${ROOT}/include/${header}")
          list(APPEND problems "${file}: there is no public header \"${header}\"")
        elseif(folder STREQUAL "include/tessera" AND NOT file MATCHES "/backends/" AND header MATCHES "^tessera/backends/")
          list(APPEND problems "${file}: only backends/ may include \"${header}\"")
        endif()
      elseif(folder MATCHES "^(examples|tools|tests)$" AND EXISTS "${own}/${header}")
        # its own folder
      elseif(folder STREQUAL "examples" AND EXISTS "${ROOT}/examples/${header}")
        # examples/ is on their include path
      else()
        list(APPEND problems "${file}: ${folder} may not include \"${header}\" (only: ${may_include_${folder}})")
      endif()
    elseif(line MATCHES "include[ \t]*<([^>]+)>")
      set(header "${CMAKE_MATCH_1}")
      set(rules ${foreign})
      while(rules)
        list(POP_FRONT rules pattern places)
        if(header MATCHES "${pattern}" AND NOT file MATCHES "${places}")
          list(APPEND problems "${file}: <${header}> may not be named here")
        endif()
      endwhile()
      # Public headers take the standard library, whose headers have neither a folder nor an extension.
      if(folder STREQUAL "include/tessera" AND NOT header MATCHES "^[a-z_]+$" AND NOT file MATCHES "^include/tessera/backends/")
        list(APPEND problems "${file}: a public header may not include <${header}>")
      endif()
      if(header MATCHES "^(tessera|core|shard|comm|runtime)/")
        list(APPEND problems "${file}: <${header}> is our own; use quotes")
      endif()
    else()
      list(APPEND problems "${file}: not understood: ${line}")
    endif()
  endforeach()
endforeach()

if(count EQUAL 0)
  message(FATAL_ERROR "no source files under '${ROOT}'")
endif()
if(problems)
  list(JOIN problems "\n  " text)
  message(FATAL_ERROR "The include table does not hold:\n  ${text}")
endif()
message(STATUS "The include table holds for ${count} files")
