# Torch by its files: Debian's TorchConfig.cmake brings every library that libtorch was built with, and flags of its own.
find_path(TUTTI_C10D_HEADERS torch/csrc/distributed/c10d/ProcessGroupGloo.hpp REQUIRED)
find_path(TUTTI_GLOO_HEADERS gloo/context.h REQUIRED)
# The C++ interface: <torch/nn/module.h> and the like.
find_path(TUTTI_TORCH_HEADERS torch/nn/module.h PATH_SUFFIXES torch/csrc/api/include REQUIRED)
find_library(TUTTI_TORCH_LIBRARY torch_cpu REQUIRED)
find_library(TUTTI_C10_LIBRARY c10 REQUIRED)
find_library(TUTTI_GLOO_LIBRARY gloo REQUIRED)
