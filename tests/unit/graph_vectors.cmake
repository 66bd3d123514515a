# What tests/vectors/make_vectors.py wrote.
if(TUTTI_WITH_TORCH)
  tutti_test(unit/operator_vectors_test LINKS tutti_graph TORCH)
  tutti_test(unit/torchscript_test LINKS tutti_graph TORCH)
  set_source_files_properties(unit/operator_vectors_test.cpp unit/torchscript_test.cpp PROPERTIES
                              COMPILE_DEFINITIONS TUTTI_VECTORS="${CMAKE_CURRENT_SOURCE_DIR}/vectors")
endif()
