// A plugin for tests: one of each that a run file can name.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <tutti/train/plugin.hpp>

#include "support/plain_coordinator.hpp"

namespace {

// TUTTI_TEST_PLUGIN_THROWS says whether, and when.
bool throws(const std::string& how) {
  const char* wanted = std::getenv("TUTTI_TEST_PLUGIN_THROWS");
  return wanted != nullptr && wanted == how;
}

// When it is loaded.
struct Nervous {
  Nervous() {
    if (throws("static")) throw std::runtime_error("the plugin has stage fright before its function");
  }
} nervous;

}  // namespace

TUTTI_PLUGIN(registry) {
  using namespace tutti;  // NOLINT: as a user would
  testing::add_plain_coordinators(registry.coordinators);
  registry.operators.add({.name = "twice", .resolve = [](const Options&, std::span<const ValueSpec> inputs) {
                            return Operator{.output = inputs[0],
                                            .compute = [](const OperatorCall& call) { return 2 * call.inputs[0]; }};
                          }});
  registry.losses.add({.name = "squares", .resolve = [](const Options&, const ValueSpec&, const DataDescription&) {
                         return Loss{[](const torch::Tensor& found, const torch::Tensor& target) {
                           return (found - target).square().mean();
                         }};
                       }});
  registry.metrics.add({.name = "largest", .resolve = [](const Options&, const ValueSpec&, const DataDescription&) {
                          return Metric{.measure = [](const torch::Tensor& found, const torch::Tensor&) {
                            return MetricSum{found.max().item<double>(), 1};
                          }};
                        }});
  registry.data_sources.add({.name = "ramp", .resolve = [](const Options& options) {
                               const std::int64_t rows = options.integer("rows", {.min = 1}, 20);
                               const auto make = [rows] {
                                 const torch::Tensor x = torch::arange(rows, torch::kFloat32).reshape({-1, 1}) / rows;
                                 return std::make_shared<TensorDataset>(std::vector{x}, 2 * x);
                               };
                               return DataSource{
                                   .description = {.inputs = {{"x", {.shape = {1}}}}, .target = {.shape = {1}}},
                                   .open = [make] { return DataSplits{.train = make(), .test = make()}; }};
                             }});
  // Once something was added: none of it may be left then.
  if (throws("sentence")) throw std::runtime_error("the plugin has stage fright");
  if (throws("number")) throw 7;
}
