// Every operator beside PyTorch's own layers: what tests/vectors/make_vectors.py wrote.
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/graph/graph_module.hpp>

#include "support/operator_cases.hpp"

namespace tutti::operator_vectors_test {
namespace {

using testing::Json;
using Tensors = std::map<std::string, torch::Tensor>;

// Of numbers up to 1, and in proportion of larger ones.
constexpr double kTolerance = 1e-10;

const Json& cases() {
  static const Json document = Json::parse(std::ifstream(TUTTI_VECTORS "/operators.json"));
  return document.at("cases");
}

bool is_int64(const Json& vector) { return vector.contains("type"); }

torch::Tensor tensor_of(const Json& vector) {
  const auto shape = vector.at("shape").get<Shape>();
  if (is_int64(vector)) return torch::tensor(vector.at("values").get<std::vector<std::int64_t>>()).view(shape);
  return torch::tensor(vector.at("values").get<std::vector<double>>(), torch::kFloat64).view(shape);
}

Tensors tensors_of(const Json& vectors) {
  Tensors tensors;
  for (const auto& item : vectors.items()) tensors.emplace(item.key(), tensor_of(item.value()));
  return tensors;
}

// The only node's, without its name.
Tensors of_node(const torch::OrderedDict<std::string, torch::Tensor>& named) {
  Tensors tensors;
  for (const auto& item : named) tensors.emplace(item.key().substr(std::string("node.").size()), item.value());
  return tensors;
}

std::vector<std::string> names_of(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

void fill(const Tensors& tensors, const Tensors& values) {
  ASSERT_EQ(names_of(tensors), names_of(values));
  const torch::NoGradGuard no_gradients;
  for (const auto& [name, tensor] : tensors) {
    ASSERT_EQ(tensor.sizes(), values.at(name).sizes()) << name;
    tensor.copy_(values.at(name));
  }
}

void expect_close(const torch::Tensor& found, const torch::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const torch::Tensor apart = (found - expected).abs().to(torch::kFloat64) / expected.abs().clamp_min(1);
  EXPECT_LE(apart.max().item<double>(), kTolerance) << what << " is\n" << found << "\nexpected\n" << expected;
}

testing::OperatorCase node_of(const Json& its) {
  testing::OperatorCase node{.inputs = {}, .options = its.at("options")};
  for (const Json& input : its.at("inputs")) {
    const auto shape = input.at("shape").get<Shape>();
    node.inputs.push_back({.shape = Shape(shape.begin() + 1, shape.end()),
                           .type = is_int64(input) ? ValueType::int64 : ValueType::float32});
  }
  return node;
}

void check(const Json& its) {
  GraphModule module(testing::graph_of(its.at("op"), node_of(its)).build());
  module.to(torch::kFloat64);
  module.train(its.at("mode") == "train");
  const Tensors parameters = of_node(module.named_parameters());
  const Tensors buffers = of_node(module.named_buffers());
  ASSERT_NO_FATAL_FAILURE(fill(parameters, tensors_of(its.at("parameters"))));
  ASSERT_NO_FATAL_FAILURE(fill(buffers, tensors_of(its.at("buffers"))));
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> floats;
  for (const Json& input : its.at("inputs")) {
    inputs.push_back(tensor_of(input));
    if (!is_int64(input)) floats.push_back(inputs.back().set_requires_grad(true));
  }

  const torch::Tensor output = module.forward(inputs).front();
  expect_close(output, tensor_of(its.at("output")), "the output");
  for (const auto& [name, expected] : tensors_of(its.at("buffers_after")))
    expect_close(buffers.at(name), expected, "the buffer " + name);
  ASSERT_EQ(output.requires_grad(), its.contains("weights"));
  if (!output.requires_grad()) return;

  (output * tensor_of(its.at("weights"))).sum().backward();
  for (std::size_t i = 0; i < floats.size(); ++i)
    expect_close(floats[i].grad(), tensor_of(its.at("input_gradients").at(i)),
                 "the gradient of input " + std::to_string(i));
  for (const auto& [name, expected] : tensors_of(its.at("parameter_gradients")))
    expect_close(parameters.at(name).grad(), expected, "the gradient of " + name);
}

TEST(OperatorVectors, AreWhatOperatorsGive) {
  for (const Json& its : cases()) {
    SCOPED_TRACE(its.at("op").get<std::string>() + " " + its.at("options").dump() + ", mode " +
                 its.at("mode").get<std::string>());
    check(its);
  }
}

TEST(OperatorVectors, AreThereForEveryOperator) {
  std::map<std::string, int> count;
  for (const Json& its : cases()) ++count[its.at("op")];
  for (const std::string& name : OperatorRegistry().names()) {
    if (name == "torchscript") continue;  // torchscript_test
    EXPECT_GE(count[name], 2) << name;
  }
}

}  // namespace
}  // namespace tutti::operator_vectors_test
