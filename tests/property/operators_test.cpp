// Every operator's shapes against what really comes out, over random options.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/graph/graph_module.hpp>

#include "support/operator_cases.hpp"

namespace tutti::operators_test {
namespace {

constexpr std::uint64_t kCases = 60;

torch::Tensor draw_input(const ValueSpec& spec, std::int64_t rows) {
  std::vector<std::int64_t> sizes{rows};
  sizes.insert(sizes.end(), spec.shape.begin(), spec.shape.end());
  if (spec.type == ValueType::int64) return torch::zeros(sizes, torch::kInt64);
  return torch::randn(sizes).set_requires_grad(true);
}

// One case; whether it was possible.
bool check(const std::string& op, std::uint64_t number) {
  testing::CaseDraws draws(number);
  const testing::OperatorCase its = testing::operator_cases().at(op)(draws);
  const GraphBuilder builder = testing::graph_of(op, its);
  SCOPED_TRACE(op + " " + its.options.dump() + ", case " + std::to_string(number));
  std::optional<Graph> graph;
  try {
    graph = builder.build();
  } catch (const UsageError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("graph:")) << error.what();
    EXPECT_NE(std::string(error.what()).find("graph.node"), std::string::npos) << error.what();
    return false;
  }
  GraphModule module(*graph, number);
  for (const bool is_training : {true, false}) {
    module.train(is_training);
    for (const std::int64_t rows : {2, 5}) {
      std::vector<torch::Tensor> inputs;
      for (const ValueSpec& input : its.inputs) inputs.push_back(draw_input(input, rows));
      const torch::Tensor output = module.forward(inputs).front();
      std::vector<std::int64_t> expected{rows};
      const Shape& shape = graph->nodes().front().resolved.output.shape;
      expected.insert(expected.end(), shape.begin(), shape.end());
      EXPECT_EQ(output.sizes().vec(), expected);
      EXPECT_EQ(output.scalar_type() == torch::kInt64, graph->nodes().front().resolved.output.type == ValueType::int64);
      if (!output.requires_grad()) continue;
      module.zero_grad();
      output.sum().backward();
      for (const auto& item : module.named_parameters()) {
        EXPECT_TRUE(item.value().grad().defined()) << item.key();
        EXPECT_TRUE(torch::isfinite(item.value().grad()).all().item<bool>()) << item.key();
      }
    }
  }
  return true;
}

TEST(Operators, GiveTheShapesThatTheySay) {
  torch::manual_seed(1);
  for (const auto& [op, draw] : testing::operator_cases()) {
    int possible = 0;
    for (std::uint64_t number = 0; number < kCases; ++number) possible += check(op, number) ? 1 : 0;
    EXPECT_GE(possible, 10) << op;
  }
}

TEST(Operators, AreAllHere) {
  for (const std::string& name : OperatorRegistry().names()) {
    if (name == "torchscript") continue;
    EXPECT_TRUE(testing::operator_cases().contains(name)) << name;
  }
}

}  // namespace
}  // namespace tutti::operators_test
