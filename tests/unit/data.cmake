# What needs no torch is tested without loading it.
tutti_test(unit/data_prefetch_test LINKS tutti_base)

if(TUTTI_WITH_TORCH)
  find_package(ZLIB REQUIRED)
  foreach(name augment client_split csv npy sampler split)
    tutti_test(unit/data_${name}_test LINKS tutti_data ONE_THREAD)
    if(TARGET unit_data_${name}_test)
      target_link_options(unit_data_${name}_test PRIVATE -Wl,--as-needed)
    endif()
  endforeach()
  tutti_test(unit/data_tests LINKS tutti_train ZLIB::ZLIB TORCH
             SOURCES unit/data_dataset_test.cpp unit/data_examples_test.cpp unit/data_inputs_test.cpp unit/data_loader_test.cpp unit/data_options_test.cpp
                     unit/data_sources_test.cpp)
  target_compile_definitions(unit_data_tests PRIVATE TUTTI_EXAMPLES="${PROJECT_SOURCE_DIR}/examples")
  if(NOT TUTTI_SANITIZE)
    tutti_program(npz_worker SOURCES unit/npz_worker.cpp LINKS tutti_data)
    add_test(NAME ${TUTTI_TEST_PREFIX}npz COMMAND ${CMAKE_CURRENT_LIST_DIR}/npz_test.sh $<TARGET_FILE:npz_worker>)
    set_tests_properties(${TUTTI_TEST_PREFIX}npz PROPERTIES LABELS unit TIMEOUT 300)
  endif()
endif()
