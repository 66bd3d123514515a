// Graphs that compute: against the same networks written by hand.
#include <tutti/graph/graph_module.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/graph/graph_builder.hpp>
#include <tutti/graph/module_operator.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/random_draws.hpp>

#include "support/torch_nets.hpp"
#include "support/usage_error.hpp"

namespace tutti::graph_module_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using torch::Tensor;

GraphBuilder mlp() {
  return GraphBuilder()
      .input("x", {4})
      .node("hidden", "linear", {"x"}, {{"units", 6}})
      .node("act", "tanh", {"hidden"})
      .node("out", "linear", {"act"}, {{"units", 3}})
      .output("out");
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

// --- what it is ---

TEST(GraphModule, ComputesWhatTheSameModuleByHandDoes) {
  GraphModule module(mlp().build(), 3);
  auto by_hand = testing::make_net<testing::Mlp>(torch::kFloat32);
  const auto named = module.named_parameters();
  {
    const torch::NoGradGuard no_gradients;
    for (auto& item : by_hand->named_parameters()) item.value().copy_(named[item.key()]);
  }
  const Tensor x = torch::randn({5, 4});
  const Tensor mine = module.forward(x);
  const Tensor theirs = by_hand->forward(x);
  EXPECT_TRUE(torch::equal(mine, theirs));
  mine.pow(2).sum().backward();
  theirs.pow(2).sum().backward();
  for (const auto& item : by_hand->named_parameters())
    EXPECT_TRUE(torch::equal(named[item.key()].grad(), item.value().grad())) << item.key();
}

TEST(GraphModule, NamesParametersByThePathsOfTheirNodes) {
  const Graph graph = GraphBuilder()
                          .input("x", {4, 6})
                          .graph("body", {"x"},
                                 GraphBuilder()
                                     .node("look", "attention", {"x"}, {{"heads", 2}})
                                     .node("norm", "layer_norm", {"look"})
                                     .output("norm"))
                          .output("body")
                          .build();
  GraphModule module(graph);
  EXPECT_THAT(names_of(module), ::testing::UnorderedElementsAre("body.look.in_proj_weight", "body.look.in_proj_bias",
                                                                "body.look.out_proj.weight", "body.look.out_proj.bias",
                                                                "body.norm.weight", "body.norm.bias"));
}

TEST(GraphModule, DrawsParametersByTheirSeedAndPathAlone) {
  const Graph small = mlp().build();
  const Graph large = GraphBuilder()
                          .input("x", {4})
                          .node("other", "linear", {"x"}, {{"units", 4}})
                          .node("hidden", "linear", {"other"}, {{"units", 6}})
                          .output("hidden")
                          .build();
  const auto weight = [](const Graph& graph, std::uint64_t seed) {
    return GraphModule(graph, seed).named_parameters()["hidden.weight"].detach().clone();
  };
  EXPECT_TRUE(torch::equal(weight(small, 7), weight(large, 7)));
  EXPECT_FALSE(torch::equal(weight(small, 7), weight(small, 8)));
}

TEST(GraphModule, RefusesInputsThatAreNotTheGraphs) {
  GraphModule module(mlp().build());
  const auto refused = [&](const std::vector<Tensor>& inputs) {
    return testing::usage_error([&] { (void)module.forward(inputs); });
  };
  EXPECT_EQ(refused({}), "the graph has 1 inputs, found 0");
  EXPECT_EQ(refused({torch::zeros({2, 5})}), "the input 'x': expected rows of [4] of float32, found Float [2, 5]");
  EXPECT_EQ(refused({torch::zeros({4}, torch::kInt64)}),
            "the input 'x': expected rows of [4] of float32, found Long [4]");
  EXPECT_EQ(refused({Tensor()}), "the input 'x': expected rows of [4] of float32, found nothing");
  GraphModule two(GraphBuilder().input("x", {4}).input("y", {4}).node("z", "add", {"x", "y"}).output("z").build());
  EXPECT_THAT(testing::usage_error([&] {
                (void)two.forward(torch::zeros({1, 4}));
              }),
              HasSubstr("2 inputs and 1 outputs"));
}

TEST(GraphModule, RefusesRowsThatDoNotBelongTogether) {
  GraphModule two(GraphBuilder().input("x", {4}).input("y", {4}).node("z", "add", {"x", "y"}).output("z").build());
  EXPECT_EQ(testing::usage_error([&] {
              (void)two.forward(std::vector<Tensor>{torch::zeros({1, 4}), torch::zeros({3, 4})});
            }),
            "the inputs 'x' and 'y' have 1 and 3 rows");
  GraphModule norm(GraphBuilder().input("x", {4}).node("y", "batch_norm", {"x"}).output("y").build());
  EXPECT_THAT(testing::usage_error([&] {
                (void)norm.forward(torch::zeros({1, 4}));
              }),
              HasSubstr("more than one value"));
  norm.eval();
  EXPECT_EQ(norm.forward(torch::zeros({1, 4})).size(0), 1);
}

TEST(GraphModule, SeveralInputsAndOutputs) {
  GraphModule module(GraphBuilder()
                         .input("x", {4})
                         .input("y", {4})
                         .node("sum", "add", {"x", "y"})
                         .node("product", "multiply", {"x", "y"})
                         .output("product")
                         .output("sum")
                         .output("x")
                         .build());
  const Tensor x = torch::randn({3, 4});
  const Tensor y = torch::randn({3, 4});
  const std::vector<Tensor> outputs = module.forward(std::vector<Tensor>{x, y});
  ASSERT_EQ(outputs.size(), 3u);
  EXPECT_TRUE(torch::equal(outputs[0], x * y));
  EXPECT_TRUE(torch::equal(outputs[1], x + y));
  EXPECT_TRUE(torch::equal(outputs[2], x));
}

// --- the order of gradients ---

// A value with consumers whose gradients differ much in size, so that the order of their sum shows in its bits.
TEST(GraphModule, GradientsOfAValueAddUpInTheOrderOfItsConsumersPaths) {
  const std::vector<std::string> names{"d", "a", "c", "b"};
  const auto graph_with = [&](const std::vector<std::string>& order) {
    GraphBuilder builder;
    builder.input("x", {64}).node("start", "linear", {"x"}, {{"units", 64}, {"bias", false}});
    for (const std::string& name : order) builder.node(name, "linear", {"start"}, {{"units", 64}, {"bias", false}});
    return builder.node("sum", "add", {"a", "b", "c", "d"}).output("sum").build();
  };
  torch::manual_seed(1);
  const Tensor x = torch::randn({16, 64});
  std::vector<Tensor> gradients;
  for (const std::vector<std::string>& order :
       {names, {"a", "b", "c", "d"}, {"d", "c", "b", "a"}, {"b", "d", "a", "c"}}) {
    GraphModule module(graph_with(order), 5);
    auto parameters = module.named_parameters();
    {
      const torch::NoGradGuard no_gradients;
      parameters["b.weight"].mul_(1e4);
      parameters["d.weight"].mul_(1e-4);
    }
    module.forward(x).pow(3).sum().backward();
    gradients.push_back(parameters["start.weight"].grad().clone());
    EXPECT_TRUE(testing::has_same_bits(gradients.back(), gradients.front()));

    // As a sum of the consumers' gradients, by path.
    const Tensor start = torch::linear(x, parameters["start.weight"].detach());
    Tensor outputs = torch::zeros({16, 64});
    for (const char* name : {"a", "b", "c", "d"})
      outputs = outputs + torch::linear(start, parameters[std::string(name) + ".weight"].detach());
    const Tensor above = 3 * outputs.pow(2);
    Tensor sum;
    for (const char* name : {"a", "b", "c", "d"}) {
      const Tensor part = torch::mm(above, parameters[std::string(name) + ".weight"].detach());
      sum = sum.defined() ? sum + part : part;
    }
    EXPECT_TRUE(torch::allclose(torch::mm(sum.t(), x), gradients.back(), 1e-4, 1e-4));
  }
}

// A block of a transformer uses what comes in twice: its gradients are added up before those of others come in.
TEST(GraphModule, AConsumerThatUsesAValueTwiceCountsAsOne) {
  torch::manual_seed(1);
  const Tensor x = torch::randn({8, 5, 16});
  std::vector<Tensor> gradients;
  for (const bool is_block_first : {true, false}) {
    GraphBuilder builder;
    builder.input("x", {5, 16}).node("start", "linear", {"x"}, {{"units", 16}});
    const auto add_block = [&] { builder.node("a", "transformer_block", {"start"}, {{"heads", 2}}); };
    if (is_block_first) add_block();
    builder.node("b", "softplus", {"start"}, {{"beta", 0.01}});
    if (!is_block_first) add_block();
    GraphModule module(builder.node("sum", "add", {"a", "b"}).output("sum").build(), 5);
    module.forward(x).pow(3).sum().backward();
    gradients.push_back(module.named_parameters()["start.weight"].grad().clone());
  }
  EXPECT_TRUE(testing::has_same_bits(gradients[0], gradients[1]));
}

TEST(GraphModule, GradientsOfATiedParameterAddUpInTheOrderOfItsNodesPaths) {
  torch::manual_seed(1);
  const Tensor x = torch::randn({16, 32});
  std::optional<Tensor> first;
  for (const std::vector<std::string>& order :
       {std::vector<std::string>{"a", "b", "c", "d"}, {"d", "c", "b", "a"}, {"c", "a", "d", "b"}}) {
    GraphBuilder builder;
    builder.input("x", {32});
    for (const std::string& name : order) {
      Json options{{"units", 32}, {"bias", false}};
      if (name != "a") options["tied"] = "a";
      builder.node(name, "linear", {"scaled_" + name}, options);
      builder.node("scale_" + name, "softplus", {"x"}, {{"beta", name == "b" ? 0.01 : 3.0}});
      builder.node("scaled_" + name, "multiply", {"scale_" + name, "x"});
    }
    GraphModule module(builder.node("sum", "add", {"a", "b", "c", "d"}).output("sum").build(), 5);
    EXPECT_EQ(names_of(module), std::vector<std::string>{"a.weight"});
    module.forward(x).pow(3).sum().backward();
    const Tensor gradient = module.parameters().front().grad().clone();
    if (!first) first = gradient;
    EXPECT_TRUE(testing::has_same_bits(gradient, *first));
  }
}

TEST(GraphModule, AnOutputThatNodesUseTooGetsAllGradients) {
  GraphModule module(GraphBuilder()
                         .input("x", {3})
                         .node("a", "linear", {"x"}, {{"units", 3}, {"bias", false}})
                         .node("b", "relu", {"a"})
                         .node("c", "tanh", {"a"})
                         .output("a")
                         .output("b")
                         .output("c")
                         .build());
  const Tensor x = torch::randn({4, 3});
  const std::vector<Tensor> outputs = module.forward(std::vector<Tensor>{x});
  (outputs[0].sum() + outputs[1].sum() + outputs[2].sum()).backward();
  const Tensor weight = module.parameters().front();
  const Tensor free = weight.detach().clone().set_requires_grad(true);
  const Tensor a = torch::linear(x, free);
  (a.sum() + torch::relu(a).sum() + torch::tanh(a).sum()).backward();
  EXPECT_TRUE(torch::allclose(weight.grad(), free.grad(), 1e-6, 1e-6));
}

// --- ties, frozen nodes, rates ---

GraphBuilder tied() {
  return GraphBuilder()
      .input("tokens", {5}, ValueType::int64)
      .node("embed", "embedding", {"tokens"}, {{"entries", 11}, {"units", 4}})
      .node("hidden", "linear", {"embed"}, {{"units", 4}, {"frozen", true}})
      .node("norm", "layer_norm", {"hidden"}, {{"lr_factor", 0.5}})
      .node("logits", "linear", {"norm"}, {{"units", 11}, {"tied", {{"weight", "embed.weight"}}}})
      .output("logits");
}

TEST(GraphModule, ATiedParameterIsOneAndAFrozenOneStays) {
  GraphModule module(tied().build(), 1);
  EXPECT_THAT(names_of(module), ::testing::UnorderedElementsAre("embed.weight", "hidden.weight", "hidden.bias",
                                                                "norm.weight", "norm.bias", "logits.bias"));
  const Tensor frozen = module.named_parameters()["hidden.weight"].detach().clone();
  const torch::optim::SGDOptions options(0.1);
  torch::optim::SGD optimizer(module.groups(options), options);
  ASSERT_EQ(optimizer.param_groups().size(), 2u);
  EXPECT_EQ(static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[1].options()).lr(), 0.05);
  EXPECT_EQ(optimizer.param_groups()[1].params().size(), 2u);
  const Tensor tokens = torch::randint(0, 11, {6, 5}, torch::kInt64);
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const Tensor loss = torch::nn::functional::cross_entropy(module.forward(tokens).flatten(0, 1), tokens.flatten());
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  EXPECT_TRUE(torch::equal(module.named_parameters()["hidden.weight"], frozen));
}

TEST(GraphModule, AClonesTiesAreThoseOfTheOriginal) {
  auto module = std::make_shared<GraphModule>(tied().build(), 1);
  module->to(torch::kFloat64);
  module->eval();
  const auto clone = std::dynamic_pointer_cast<GraphModule>(module->clone());
  ASSERT_TRUE(clone);
  EXPECT_FALSE(clone->is_training());
  testing::expect_same_bits(*clone, *module);
  const Tensor tokens = torch::randint(0, 11, {6, 5}, torch::kInt64);
  EXPECT_TRUE(torch::equal(clone->forward(tokens), module->forward(tokens)));
  clone->named_parameters()["embed.weight"].detach().zero_();
  EXPECT_EQ(names_of(*clone).size(), 6u);
  EXPECT_FALSE(torch::equal(clone->forward(tokens), module->forward(tokens)));
  EXPECT_FALSE(clone->named_parameters()["hidden.weight"].requires_grad());
}

// --- training ---

GraphBuilder noisy() {
  return GraphBuilder()
      .input("x", {4})
      .node("hidden", "linear", {"x"}, {{"units", 8}})
      .node("norm", "batch_norm", {"hidden"})
      .node("act", "relu", {"norm"})
      .node("drop", "dropout", {"act"}, {{"p", 0.3}})
      .node("out", "linear", {"drop"}, {{"units", 3}})
      .output("out");
}

TEST(GraphModule, TrainsDataParallelWithTheSameBitsOnAnyNumberOfReplicas) {
  std::optional<testing::Contents> first;
  for (const int replicas : {1, 2, 4}) {
    auto module = std::make_shared<GraphModule>(noisy().build(), 2);
    DataParallel parallel(module, torch::optim::SGDOptions(0.1).momentum(0.9),
                          {.replicas = replicas, .logical_shards = 4, .seed = 3});
    for (std::uint64_t step = 0; step < 4; ++step) {
      parallel.step(testing::draw_batch(13, step, torch::kFloat32), [](GraphModule& net, const testing::Batch& rows) {
        return torch::mse_loss(net.forward(rows.data), rows.target);
      });
    }
    const testing::Contents trained = testing::contents_of(*module);
    if (!first) first = trained;
    testing::expect_same_bits(trained, *first);
  }
}

TEST(GraphModule, WhatANodeDrawsDoesNotDependOnOthers) {
  const auto with = [](bool has_other) {
    GraphBuilder builder;
    builder.input("x", {50});
    if (has_other)
      builder.node("before", "dropout", {"x"}, {{"p", 0.4}}).node("lost", "mean", {"before"}, {{"keep", true}});
    builder.node("drop", "dropout", {"x"}, {{"p", 0.5}});
    if (has_other) builder.output("lost");
    return std::make_shared<GraphModule>(builder.output("drop").build());
  };
  const Tensor x = torch::ones({3, 50});
  const auto draw = [&](bool has_other, std::uint64_t step) {
    const RandomDraws draws({.seed = 1, .step = step});
    return with(has_other)->forward(std::vector<Tensor>{x}).back();
  };
  EXPECT_TRUE(torch::equal(draw(false, 1), draw(true, 1)));
  EXPECT_FALSE(torch::equal(draw(false, 1), draw(false, 2)));
}

// --- operators that are modules ---

struct Gate : torch::nn::Module {
  explicit Gate(std::int64_t features, std::int64_t hidden)
      : wide(register_module("wide", torch::nn::Linear(features, 2 * hidden))) {
    count = register_buffer("count", torch::zeros({1}));
  }
  Tensor forward(const Tensor& x) {
    if (is_training()) count.add_(1);
    const std::vector<Tensor> halves = wide(x).chunk(2, -1);
    return halves[0] * torch::sigmoid(halves[1]);
  }
  torch::nn::Linear wide;
  Tensor count;
};

OperatorRegistry with_gate() {
  OperatorRegistry operators;
  operators.add(module_operator(
      {.name = "gate",
       .make =
           [](const Options& options, std::span<const ValueSpec> inputs) {
             return std::make_shared<Gate>(inputs[0].shape.back(), options.integer("hidden", {.min = 1}));
           },
       .forward = [](torch::nn::Module& module,
                     std::span<const Tensor> inputs) { return static_cast<Gate&>(module).forward(inputs[0]); }}));
  return operators;
}

TEST(ModuleOperator, IsANodeWithTheModulesParameters) {
  const GraphBuilder builder = GraphBuilder()
                                   .input("x", {7, 4})
                                   .node("gate", "gate", {"x"}, {{"hidden", 5}})
                                   .node("out", "relu", {"gate"})
                                   .output("out");
  const Graph graph = builder.build(with_gate());
  EXPECT_EQ(graph.nodes().front().resolved.output.shape, (Shape{7, 5}));
  EXPECT_EQ(graph.parameters().front().path, "gate.wide.weight");
  auto module = std::make_shared<GraphModule>(graph);
  EXPECT_THAT(names_of(*module), ::testing::ElementsAre("gate.wide.weight", "gate.wide.bias"));
  EXPECT_EQ(module->named_buffers().keys(), std::vector<std::string>{"gate.count"});
  const Tensor x = torch::randn({3, 7, 4});
  module->forward(x).sum().backward();
  EXPECT_TRUE(module->parameters().front().grad().defined());
  EXPECT_EQ(module->buffers().front().item<float>(), 1);
  const auto clone = std::dynamic_pointer_cast<GraphModule>(module->clone());
  EXPECT_TRUE(torch::equal(clone->forward(x), module->forward(x)));
}

struct Twice : torch::nn::Module {
  Twice() : layer(register_module("first", torch::nn::Linear(4, 4))) { register_module("second", layer); }
  torch::nn::Linear layer;
};

TEST(ModuleOperator, ItsParametersCanBeInitialisedAndFrozen) {
  const Graph graph =
      GraphBuilder()
          .input("x", {4})
          .node("gate", "gate", {"x"}, {{"hidden", 5}, {"init", {{"wide.bias", "ones"}}}, {"frozen", true}})
          .output("gate")
          .build(with_gate());
  GraphModule module(graph);
  EXPECT_TRUE(torch::equal(module.named_parameters()["gate.wide.bias"], torch::ones({10})));
  EXPECT_FALSE(module.named_parameters()["gate.wide.weight"].requires_grad());
  EXPECT_EQ(names_of(module).size(), 2u);
}

TEST(ModuleOperator, ALayerUnderTwoNamesIsOne) {
  OperatorRegistry operators;
  operators.add(
      module_operator({.name = "twice",
                       .make = [](const Options&, std::span<const ValueSpec>) { return std::make_shared<Twice>(); },
                       .forward =
                           [](torch::nn::Module& module, std::span<const Tensor> inputs) {
                             torch::nn::Linear& layer = static_cast<Twice&>(module).layer;
                             return layer(layer(inputs[0]));
                           }}));
  const Graph graph = GraphBuilder().input("x", {4}).node("y", "twice", {"x"}).output("y").build(operators);
  EXPECT_EQ(graph.parameters().size(), 2u);
  EXPECT_EQ(GraphModule(graph).groups(torch::optim::SGDOptions(0.1)).front().params().size(), 2u);
}

TEST(ModuleOperator, ItsFirstValuesFollowFromTheSeedAndThePath) {
  const auto graph_with = [](const std::string& id) {
    return GraphBuilder().input("x", {4}).node(id, "gate", {"x"}, {{"hidden", 5}}).output(id).build(with_gate());
  };
  const auto weight = [](const Graph& graph, std::uint64_t seed) {
    (void)torch::rand({3});  // whatever was drawn before
    return GraphModule(graph, seed).parameters().front().detach().clone();
  };
  const Graph graph = graph_with("gate");
  EXPECT_TRUE(torch::equal(weight(graph, 7), weight(graph, 7)));
  EXPECT_FALSE(torch::equal(weight(graph, 7), weight(graph, 8)));
  EXPECT_FALSE(torch::equal(weight(graph, 7), weight(graph_with("other"), 7)));
}

struct HalfFrozen : torch::nn::Module {
  HalfFrozen() {
    weight = register_parameter("weight", torch::ones({4}));
    fixed = register_parameter("fixed", torch::ones({4}), /*requires_grad=*/false);
  }
  Tensor weight, fixed;
};

TEST(ModuleOperator, WhatItsModuleFrozeIsFrozenUnlessTheNodeSaysOtherwise) {
  OperatorRegistry operators;
  operators.add(module_operator(
      {.name = "half",
       .make = [](const Options&, std::span<const ValueSpec>) { return std::make_shared<HalfFrozen>(); },
       .forward =
           [](torch::nn::Module& module, std::span<const Tensor> inputs) {
             return inputs[0] * static_cast<HalfFrozen&>(module).weight + static_cast<HalfFrozen&>(module).fixed;
           }}));
  const auto frozen = [&](const Json& options) {
    const Graph graph = GraphBuilder().input("x", {4}).node("y", "half", {"x"}, options).output("y").build(operators);
    std::vector<bool> result;
    GraphModule module(graph);
    for (const GraphParameter& parameter : graph.parameters()) {
      result.push_back(parameter.is_frozen);
      EXPECT_EQ(module.named_parameters()[parameter.path].requires_grad(), !parameter.is_frozen) << parameter.path;
    }
    return result;
  };
  EXPECT_EQ(frozen(Json::object()), (std::vector{false, true}));
  EXPECT_EQ(frozen({{"frozen", false}}), (std::vector{false, false}));
  EXPECT_EQ(frozen({{"frozen", true}}), (std::vector{true, true}));
}

TEST(GraphModule, NamesTheNodeThatFails) {
  OperatorRegistry operators = with_gate();
  operators.add({.name = "refuses", .resolve = [](const Options&, std::span<const ValueSpec> inputs) {
                   return Operator{.output = inputs[0],
                                   .compute = [](const OperatorCall&) -> Tensor { throw UsageError("not today"); }};
                 }});
  const Graph graph =
      GraphBuilder()
          .input("tokens", {3}, ValueType::int64)
          .graph("body", {"tokens"},
                 GraphBuilder().node("embed", "embedding", {"tokens"}, {{"entries", 5}, {"units", 2}}).output("embed"))
          .node("last", "refuses", {"body"})
          .output("last")
          .build(operators);
  GraphModule module(graph);
  try {
    (void)module.forward(torch::full({2, 3}, 5, torch::kInt64));
    FAIL() << "an index beyond the table was taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the node 'body.embed' (embedding): index out of range in self");
  }
  EXPECT_EQ(testing::usage_error([&] {
              (void)module.forward(torch::zeros({2, 3}, torch::kInt64));
            }),
            "the node 'last' (refuses): not today");
}

TEST(GraphModule, TwoPassesInAStepDrawDifferently) {
  const Graph graph = GraphBuilder().input("x", {100}).node("drop", "dropout", {"x"}).output("drop").build();
  GraphModule module(graph);
  GraphModule other(graph);
  const Tensor ones = torch::ones({2, 100});
  const auto passes = [&] {
    const RandomDraws step({.seed = 7, .step = 3});
    return std::vector<Tensor>{module.forward(ones), module.forward(ones), other.forward(ones)};
  };
  const std::vector<Tensor> first = passes();
  const std::vector<Tensor> again = passes();
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(torch::equal(first[i], again[i]));
    EXPECT_FALSE(torch::equal(first[i], first[(i + 1) % first.size()]));
  }
}

TEST(GraphModule, ANodeCanBeEvaluatedWhileOthersAreTrained) {
  const Graph graph = GraphBuilder()
                          .input("x", {4})
                          .node("norm", "batch_norm", {"x"})
                          .node("drop", "dropout", {"norm"}, {{"p", 1}})
                          .output("drop")
                          .build();
  const auto module = std::make_shared<GraphModule>(graph);
  module->named_modules()["norm"]->eval();
  (void)module->forward(torch::randn({8, 4}));
  EXPECT_TRUE(torch::equal(module->named_buffers()["norm.running_mean"], torch::zeros({4})));
  module->train();
  module->named_modules()["drop"]->eval();
  EXPECT_GT(module->forward(torch::randn({8, 4})).abs().sum().item<float>(), 0);
  EXPECT_FALSE(torch::equal(module->named_buffers()["norm.running_mean"], torch::zeros({4})));
}

// An operator of a user's that does what it likes with its input.
Graph with_operator(const std::function<Tensor(const Tensor&)>& f) {
  OperatorRegistry operators;
  operators.add({.name = "mine", .resolve = [f](const Options&, std::span<const ValueSpec> inputs) {
                   return Operator{.output = inputs[0],
                                   .compute = [f](const OperatorCall& call) { return f(call.inputs[0]); }};
                 }});
  return GraphBuilder().input("x", {1}).node("y", "mine", {"x"}).output("y").build(operators);
}

TEST(GraphModule, HoldsOperatorsToWhatTheyPromise) {
  const auto refused = [](const std::function<Tensor(const Tensor&)>& f) {
    return testing::usage_error([&] { (void)GraphModule(with_operator(f)).forward(torch::zeros({3, 1})); });
  };
  EXPECT_EQ(refused([](const Tensor& x) { return x.relu(); }), "(no error)");
  EXPECT_EQ(refused([](const Tensor& x) { return x.squeeze(1); }),
            "the node 'y' (mine): expected 3 rows of [1] to come out, found the shape [3]");
  EXPECT_EQ(refused([](const Tensor& x) { return x.sum(0, true); }),
            "the node 'y' (mine): expected 3 rows of [1] to come out, found the shape [1, 1]");
  EXPECT_EQ(refused([](const Tensor&) { return Tensor(); }),
            "the node 'y' (mine): expected 3 rows of [1] to come out, found nothing");
  EXPECT_THAT(refused([](const Tensor& x) { return Tensor(x).add_(1); }), HasSubstr("it writes to its input"));
}

struct InPlace : torch::nn::Module {
  Tensor forward(Tensor x) { return x.relu_() + (is_training() ? 1 : 0); }
};

TEST(ModuleOperator, MayWriteToItsInputWhichOthersDoNotSee) {
  OperatorRegistry operators;
  operators.add(module_operator(
      {.name = "in_place",
       .make = [](const Options&, std::span<const ValueSpec>) { return std::make_shared<InPlace>(); },
       .forward = [](torch::nn::Module& module,
                     std::span<const Tensor> inputs) { return static_cast<InPlace&>(module).forward(inputs[0]); }}));
  const Graph graph = GraphBuilder()
                          .input("x", {2})
                          .node("a", "in_place", {"x"})
                          .node("b", "tanh", {"x"})
                          .output("a")
                          .output("b")
                          .build(operators);
  GraphModule module(graph);
  const Tensor x = torch::tensor({{-1.0f, 2.0f}});
  const Tensor before = x.clone();
  const std::vector<Tensor> outputs = module.forward(std::vector<Tensor>{x});
  EXPECT_TRUE(torch::equal(x, before));
  EXPECT_TRUE(torch::equal(outputs[1], before.tanh()));
}

TEST(Graph, IsReadWithoutDrawingFromLibtorchsGenerator) {
  torch::manual_seed(5);
  const Tensor expected = torch::rand({3});
  torch::manual_seed(5);
  (void)GraphBuilder().input("x", {4}).node("gate", "gate", {"x"}, {{"hidden", 5}}).output("gate").build(with_gate());
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

TEST(GraphModule, OfThousandsOfNodesIsMadeAndComputes) {
  GraphBuilder builder;
  builder.input("x", {1});
  std::string before = "x";
  for (int i = 0; i < 5000; ++i) {
    const std::string id = "n" + std::to_string(i);
    builder.node(id, "linear", {before}, {{"units", 1}, {"init", "ones"}, {"bias", false}});
    before = id;
  }
  GraphModule module(builder.output(before).build());
  EXPECT_TRUE(torch::equal(module.forward(torch::full({2, 1}, 3.0)), torch::full({2, 1}, 3.0)));
}

TEST(ModuleOperator, RefusesWhatFailsAtItsPlace) {
  const auto refused = [](const Json& options, const Shape& shape = {4}) {
    return testing::usage_error([&] {
      (void)GraphBuilder().input("x", shape).node("gate", "gate", {"x"}, options).output("gate").build(with_gate());
    });
  };
  EXPECT_THAT(refused({{"hidden", 0}}), HasSubstr("graph.gate.hidden: expected a whole number of at least 1"));
  EXPECT_THAT(refused({{"hidden", 2}, {"hiden", 3}}), HasSubstr("did you mean"));
  EXPECT_THAT(refused({{"hidden", 2}, {"tied", "gate"}}),
              HasSubstr("graph.gate.tied: the parameters are a module's own"));
  EXPECT_THAT(refused(Json::object()), HasSubstr("graph.gate"));
}

}  // namespace
}  // namespace tutti::graph_module_test
