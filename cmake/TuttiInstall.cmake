# What `cmake --install` puts in place: every layer with its headers, the program, and a package for find_package(tutti).
#
#   find_package(tutti 0.1 REQUIRED)
#   target_link_libraries(mine PRIVATE tutti::tutti)       # or one layer, such as tutti::collective
#   target_link_libraries(its_plugin PRIVATE tutti::plugin)     # for `tutti train --plugin`
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY TUTTI_LAYER_TARGETS)
add_library(tutti_all_layers INTERFACE)
add_library(tutti::tutti ALIAS tutti_all_layers)
set_target_properties(tutti_all_layers PROPERTIES EXPORT_NAME tutti)
target_link_libraries(tutti_all_layers INTERFACE ${layers})

# What plugins are compiled with: headers, and none of the libraries, which are in the program that loads them.
set(plugin)
if(TUTTI_WITH_TORCH)
  set(plugin tutti_plugin)
  add_library(tutti_plugin INTERFACE)
  add_library(tutti::plugin ALIAS tutti_plugin)
  set_target_properties(tutti_plugin PROPERTIES EXPORT_NAME plugin)
  target_compile_features(tutti_plugin INTERFACE cxx_std_20)
  target_include_directories(tutti_plugin INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(tutti_plugin SYSTEM INTERFACE ${TUTTI_TORCH_HEADERS})
  target_link_libraries(tutti_plugin INTERFACE fmt::fmt nlohmann_json::nlohmann_json)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(TARGETS ${layers} EXPORT tutti_targets FILE_SET HEADERS)
install(TARGETS tutti_all_layers ${plugin} EXPORT tutti_targets)
install(EXPORT tutti_targets NAMESPACE tutti:: FILE tuttiTargets.cmake DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break what the one before it promised.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
        DESTINATION ${package_dir})
