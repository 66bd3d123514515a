# What `cmake --install` puts in place: every layer with its headers, the program, and a package for find_package(tutti).
#
#   find_package(tutti 0.1 REQUIRED)
#   target_link_libraries(mine PRIVATE tutti::tutti)       # or one layer, such as tutti::collective
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY TUTTI_LAYER_TARGETS)
add_library(tutti_all_layers INTERFACE)
add_library(tutti::tutti ALIAS tutti_all_layers)
set_target_properties(tutti_all_layers PROPERTIES EXPORT_NAME tutti)
target_link_libraries(tutti_all_layers INTERFACE ${layers})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(TARGETS ${layers} EXPORT tutti_targets FILE_SET HEADERS)
install(TARGETS tutti_all_layers EXPORT tutti_targets)
install(EXPORT tutti_targets NAMESPACE tutti:: FILE tuttiTargets.cmake DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break what the one before it promised.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
        DESTINATION ${package_dir})
