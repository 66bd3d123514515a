// Plugins: shared libraries that add to what a run file can name, for the command `tutti train --plugin libmine.so`.
//
//   TUTTI_PLUGIN(registry) {
//     registry.coordinators.add({.name = "mine", .resolve = ...});
//     registry.operators.add(...);                    // losses, metrics and data sources as well
//   }
//
//   find_package(tutti REQUIRED)
//   add_library(mine MODULE mine.cpp)
//   target_link_libraries(mine PRIVATE tutti::plugin)     # headers alone: the program has tutti and libtorch
//
// A program of one's own needs no plugin: it adds to the Registry that it reads the run with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include <torch/version.h>
#include <tutti/base/events.hpp>
#include <tutti/base/version.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/step_span.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/run.hpp>
#include <tutti/train/stepper.hpp>

namespace tutti {

// Adds what the library has to the registry; the library stays loaded. A UsageError, and an unchanged registry, where
// there is no such file, it is no plugin, it was built for another version, or its function throws.
//
// The program has to export tutti, whole, as the command `tutti` does.
void load_plugin(const std::filesystem::path& file, Registry& registry);

namespace detail {

#define TUTTI_AS_TEXT_(tokens) #tokens
#define TUTTI_AS_TEXT(tokens) TUTTI_AS_TEXT_(tokens)

// Where the text begins in a file.
inline constexpr std::string_view kPluginMark = "tutti plugin for ";
// What a plugin and the program must agree on, as far as the preprocessor knows.
inline constexpr std::string_view kPluginVersions =
    "tutti " TUTTI_VERSION ", libtorch " TORCH_VERSION
    ", C++ ABI " TUTTI_AS_TEXT(__GXX_ABI_VERSION) "." TUTTI_AS_TEXT(_GLIBCXX_USE_CXX11_ABI);

// The types that go between the two have the same sizes: headers of the same version may still differ.
inline constexpr std::size_t kPluginSizes[] = {sizeof(Registry),
                                               sizeof(OperatorType),
                                               sizeof(Operator),
                                               sizeof(OperatorCall),
                                               sizeof(LossType),
                                               sizeof(MetricType),
                                               sizeof(DataSourceType),
                                               sizeof(DataSource),
                                               sizeof(DataSplits),
                                               sizeof(Options),
                                               sizeof(JsonValue),
                                               sizeof(ParameterSet),
                                               sizeof(Run),
                                               sizeof(Graph),
                                               sizeof(GraphNode),
                                               sizeof(GraphModule),
                                               sizeof(Coordinator),
                                               sizeof(CoordinatorType),
                                               sizeof(CoordinatorContext),
                                               sizeof(StepResult),
                                               sizeof(Evaluation),
                                               sizeof(Evaluator),
                                               sizeof(TrainingStrategy),
                                               sizeof(StepSpan),
                                               sizeof(NamedNumber),
                                               sizeof(LoaderOptions),
                                               sizeof(Loader),
                                               sizeof(DataParallelOptions),
                                               sizeof(EvaluatorOptions)};

// "tutti plugin for tutti 0.1.0, libtorch 1.13.0, C++ ABI 1017.1, layout 5f0c9a31", ended by a zero.
struct PluginStamp {
  char text[128] = {};
};

consteval PluginStamp make_plugin_stamp() {
  std::uint32_t layout = 2166136261U;
  for (const std::size_t size : kPluginSizes) layout = (layout ^ static_cast<std::uint32_t>(size)) * 16777619U;
  PluginStamp stamp;
  std::size_t length = 0;
  for (const std::string_view part : {kPluginMark, kPluginVersions, std::string_view(", layout ")}) {
    for (const char letter : part) stamp.text[length++] = letter;
  }
  for (int shift = 28; shift >= 0; shift -= 4) stamp.text[length++] = "0123456789abcdef"[(layout >> shift) & 15U];
  return stamp;
}

}  // namespace detail
}  // namespace tutti

// Once in a library: the body adds to `registry`.
#define TUTTI_PLUGIN(registry)                                                                       \
  extern "C" {                                                                                       \
  __attribute__((visibility("default"))) extern const tutti::detail::PluginStamp tutti_plugin_stamp; \
  __attribute__((used)) constinit const tutti::detail::PluginStamp tutti_plugin_stamp =              \
      tutti::detail::make_plugin_stamp();                                                            \
  __attribute__((visibility("default"))) void tutti_plugin(tutti::Registry& registry);               \
  }                                                                                                  \
  void tutti_plugin(tutti::Registry& registry)
