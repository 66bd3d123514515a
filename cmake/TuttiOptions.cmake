# What a build can be told, and the flags that follow from it.
option(TUTTI_BUILD_TESTS "Build the tests" OFF)
option(TUTTI_BUILD_EXAMPLES "Build the examples" OFF)
option(TUTTI_BUILD_BENCHMARKS "Build the programs that ./bench runs, with their peers" OFF)
option(TUTTI_WITH_TORCH "Build the layers that need libtorch (c10d, nn), and what stands on them" ON)
option(TUTTI_UNITY "Compile the files of a layer that sees no torch together: quicker from nothing, slower after each change" OFF)
option(TUTTI_USE_CCACHE "Compile through ccache where it is installed" OFF)
option(TUTTI_WERROR "Treat warnings as errors" OFF)
set(TUTTI_SANITIZE "" CACHE STRING "What -fsanitize= gets, for example address,undefined")
set(TUTTI_TEST_PREFIX "" CACHE STRING "What stands before the name of each test")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET default)

if(TUTTI_USE_CCACHE)
  find_program(TUTTI_CCACHE ccache)
  if(TUTTI_CCACHE)
    # Precompiled headers need the sloppiness; without it ccache passes them by. To go by the files that the compiler read saves
    # preprocessing each source once more; a file that is edited meanwhile is noticed by its time. Paths within the repository
    # count from its top, so that another clone finds what this one compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=1
        CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TUTTI_CCACHE})
  endif()
endif()

# Flags for tutti's own code, not for its users'.
add_library(tutti_flags INTERFACE)
target_compile_options(tutti_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wconversion
                                             -Wno-sign-conversion -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tutti_flags INTERFACE -fpch-preprocess)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 warns about "text" + std::string where nothing overlaps or overflows (its bug 105651).
    target_compile_options(tutti_flags INTERFACE -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
  endif()
endif()
if(TUTTI_WERROR)
  target_compile_options(tutti_flags INTERFACE -Werror)
endif()
if(TUTTI_SANITIZE)
  # The address sanitizer finds null pointers and objects that are too small by itself.
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-sanitize=null,vptr,object-size,nonnull-attribute,returns-nonnull-attribute
                      -fno-sanitize-recover=all -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()

# tutti_leave_undefined_unchecked(<source>...): to look for undefined behaviour doubles the time to compile a file; for one in
# which nothing new would be found.
function(tutti_leave_undefined_unchecked)
  if(TUTTI_SANITIZE MATCHES "undefined")
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=undefined)
  endif()
endfunction()

# What every test of this build finds in its environment. The first finding ends a test: what follows one is noise.
set(TUTTI_TEST_ENVIRONMENT "")
if(TUTTI_SANITIZE MATCHES "address")
  list(APPEND TUTTI_TEST_ENVIRONMENT "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1")
endif()
if(TUTTI_SANITIZE MATCHES "undefined")
  list(APPEND TUTTI_TEST_ENVIRONMENT "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endif()
if(TUTTI_SANITIZE MATCHES "thread")
  list(APPEND TUTTI_TEST_ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
  # Where the kernel spreads addresses wider than this compiler's thread sanitizer knows, programs start only without that.
  if(EXISTS /proc/sys/vm/mmap_rnd_bits)
    file(READ /proc/sys/vm/mmap_rnd_bits spread)
    if(spread GREATER 28)
      set(CMAKE_CROSSCOMPILING_EMULATOR setarch -R)
    endif()
  endif()
endif()
