# tutti_layer(<name> SOURCES ... [DEPENDS <layers below>] [LINKS <libraries, PRIVATE>] [EXPOSES <libraries, PUBLIC>]
#             [MAY_INCLUDE torch|mpi|grpc ...] [OWN_FLAGS])
#
# A folder is a layer and its target the fence: the target tutti_<name> (tutti::<name> to users) sees the headers of
# include/tutti/<name>/ and those of the layers it depends on. The arrows are written to build/<preset>/layers.txt, where
# checks/layering reads them, a line for each layer: `nn: sync [torch]`. A layer includes torch's, MPI's or gRPC's headers
# only where MAY_INCLUDE says so. What nearly all files include is compiled once, except for a layer with OWN_FLAGS.
set(TUTTI_LAYERS_FILE ${PROJECT_BINARY_DIR}/layers.txt)
file(WRITE ${TUTTI_LAYERS_FILE} "")

function(tutti_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 LAYER "OWN_FLAGS" "" "SOURCES;DEPENDS;LINKS;EXPOSES;MAY_INCLUDE")
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/tutti/${name}/*.hpp
       ${PROJECT_SOURCE_DIR}/include/tutti/${name}.hpp)
  set(target tutti_${name})
  add_library(${target} ${LAYER_SOURCES})
  add_library(tutti::${name} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERIFY_INTERFACE_HEADER_SETS ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tutti_flags> ${LAYER_LINKS} PUBLIC ${LAYER_EXPOSES})
  foreach(below IN LISTS LAYER_DEPENDS)
    target_link_libraries(${target} PUBLIC tutti_${below})
  endforeach()
  if(NOT LAYER_OWN_FLAGS)
    tutti_precompile(TUTTI_LAYERS_PRECOMPILED ${target} <algorithm> <cstddef> <functional> <memory> <optional> <span> <string>
                     <vector> <fmt/format.h>)
  endif()
  tutti_compile_together(${target})
  set_property(GLOBAL APPEND PROPERTY TUTTI_LAYER_TARGETS ${target})
  tutti_arrows(${name} DEPENDS ${LAYER_DEPENDS} MAY_INCLUDE ${LAYER_MAY_INCLUDE})
endfunction()

# tutti_compile_together(<target> [EXCEPT <sources>]): as one file, where the build is told to; but for sources in which a name
# means something else than in another.
function(tutti_compile_together target)
  cmake_parse_arguments(PARSE_ARGV 1 TOGETHER "" "" "EXCEPT")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TUTTI_UNITY} UNITY_BUILD_BATCH_SIZE 0)
  if(TUTTI_UNITY)
    # GCC takes a file that another one includes for a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  if(TOGETHER_EXCEPT)
    set_source_files_properties(${TOGETHER_EXCEPT} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# tutti_arrows(<folder> [DEPENDS <layers below>] [MAY_INCLUDE ...]): for a folder of src/ that is a program and no library.
function(tutti_arrows name)
  cmake_parse_arguments(PARSE_ARGV 1 LAYER "" "" "DEPENDS;MAY_INCLUDE")
  list(TRANSFORM LAYER_MAY_INCLUDE REPLACE "(.+)" "[\\1]")
  list(JOIN LAYER_DEPENDS " " arrows)
  list(JOIN LAYER_MAY_INCLUDE " " foreign)
  file(APPEND ${TUTTI_LAYERS_FILE} "${name}: ${arrows} ${foreign}\n")
endfunction()

# tutti_precompile_torch(<target>): torch's headers, compiled once: they take half a minute, and 600 MB. So all that share them
# are compiled as the library is, position-independent as for a library that is loaded.
function(tutti_precompile_torch target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  # All with the same definitions.
  target_link_libraries(${target} PRIVATE fmt::fmt)
  tutti_precompile(TUTTI_TORCH_PRECOMPILED ${target} <functional> <memory> <span> <string> <vector> <fmt/format.h> <torch/torch.h>)
endfunction()

# tutti_compile_torch_together(<target> [<files at once>]): to read torch's headers takes several seconds, even compiled, and what they
# leave to instantiate as long again, longer than most files take themselves. So those of a target are compiled as one, or so many
# at once; fewer where one file changes at a time (without TUTTI_UNITY).
function(tutti_compile_torch_together target)
  set(at_once 8)
  if(TUTTI_UNITY)
    set(at_once 0)
    if(ARGC GREATER 1)
      set(at_once ${ARGV1})
    endif()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${at_once})
endfunction()

# tutti_precompile(<group> <target> <headers>): the first target of a group compiles the headers, the others take them over.
function(tutti_precompile group target)
  get_property(first GLOBAL PROPERTY ${group})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY ${group} ${target})
  endif()
endfunction()
