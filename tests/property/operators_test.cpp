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

// What an option says for each dimension.
std::vector<std::int64_t> sizes_of(const testing::Json& options, const char* key, std::size_t count,
                                   std::int64_t otherwise) {
  if (!options.contains(key)) return std::vector<std::int64_t>(count, otherwise);
  if (options[key].is_array()) return options[key].get<std::vector<std::int64_t>>();
  return std::vector<std::int64_t>(count, options[key].get<std::int64_t>());
}

// Does libtorch compute this convolution or pooling? Of other operators nothing is known.
std::optional<bool> is_taken_by_torch(const std::string& op, const testing::OperatorCase& its) {
  const bool is_pool = op.starts_with("max_pool") || op.starts_with("avg_pool");
  if (!is_pool && !op.starts_with("conv")) return std::nullopt;
  const testing::Json& options = its.options;
  const std::size_t count = op.ends_with("1d") ? 1 : 2;
  const auto sizes = [&](const char* key, std::int64_t otherwise) { return sizes_of(options, key, count, otherwise); };
  const torch::Tensor x = torch::zeros(with_rows(2, its.inputs[0].shape));
  const auto kernel = sizes("kernel", 1);
  const auto dilation = sizes("dilation", 1);
  torch::Tensor y;
  try {
    if (is_pool) {
      const auto stride = options.contains("stride") ? sizes("stride", 1) : kernel;
      const bool is_ceil = options.value("ceil", false);
      if (op.starts_with("max"))
        y = (count == 1 ? torch::max_pool1d(x, kernel, stride, sizes("padding", 0), dilation, is_ceil)
                        : torch::max_pool2d(x, kernel, stride, sizes("padding", 0), dilation, is_ceil));
      else
        y = (count == 1 ? torch::avg_pool1d(x, kernel, stride, sizes("padding", 0), is_ceil)
                        : torch::avg_pool2d(x, kernel, stride, sizes("padding", 0), is_ceil));
      return y.numel() > 0;  // one of nothing is of no use
    }
    const std::int64_t groups = options.value("groups", std::int64_t{1});
    const std::int64_t filters = options["filters"].get<std::int64_t>();
    const std::int64_t channels = its.inputs[0].shape[0];
    const bool is_transposed = op.starts_with("conv_transpose");
    Shape weight = is_transposed ? Shape{channels, filters / groups} : Shape{filters, channels / groups};
    weight.insert(weight.end(), kernel.begin(), kernel.end());
    if (filters % groups != 0) return false;
    const bool is_named = options.contains("padding") && options["padding"].is_string();
    const std::string name = is_named ? options["padding"].get<std::string>() : "";
    const torch::Tensor w = torch::zeros(weight);
    if (is_named) {
      y = (count == 1 ? torch::conv1d(x, w, {}, sizes("stride", 1), name, dilation, groups)
                      : torch::conv2d(x, w, {}, sizes("stride", 1), name, dilation, groups));
    } else {
      const std::vector<std::int64_t> more = sizes("output_padding", 0);
      y = torch::convolution(x, w, {}, sizes("stride", 1), sizes("padding", 0), dilation, is_transposed, more, groups);
    }
    return y.numel() > 0;
  } catch (const c10::Error&) {
    return false;
  }
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
    EXPECT_NE(is_taken_by_torch(op, its), true) << error.what();  // nothing is refused that would go
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
