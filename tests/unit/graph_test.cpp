// Graphs as values: what they are read into, their strategies, and what is refused where.
#include <tutti/graph/graph.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <tutti/graph/graph_builder.hpp>

#include "support/usage_error.hpp"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

Graph read(const std::string& text) {
  return Graph::from_json(JsonDocument::parse("{\"graph\": " + text + "}", "run.json").root().at("graph"));
}

std::string refused(const std::string& text) {
  return testing::usage_error([&] { (void)read(text); });
}

// A graph of these nodes, with an image as its input, and the last one as its output.
std::string with_nodes(const std::string& nodes, const std::string& outputs = R"("last")") {
  return R"({"inputs": {"image": [1, 8, 8]}, "nodes": [)" + nodes + R"(], "outputs": [)" + outputs + "]}";
}

std::vector<std::string> paths_of(const Graph& graph) {
  std::vector<std::string> paths;
  for (const GraphNode& node : graph.nodes()) paths.push_back(node.path);
  return paths;
}

TEST(Graph, InfersShapesAndParameters) {
  const Graph graph = read(R"({
    "inputs": {"image": [1, 28, 28]},
    "nodes": [
      {"id": "conv", "op": "conv2d", "inputs": ["image"], "filters": 8, "kernel": 3},  // comments are allowed
      {"id": "flat", "op": "flatten", "inputs": ["conv"]},
      {"id": "logits", "op": "linear", "inputs": ["flat"], "units": 10}],
    "outputs": ["logits"]})");
  EXPECT_THAT(paths_of(graph), ElementsAre("conv", "flat", "logits"));
  EXPECT_EQ(graph.nodes()[0].resolved.output.shape, (Shape{8, 26, 26}));
  EXPECT_EQ(graph.nodes()[1].resolved.output.shape, (Shape{8 * 26 * 26}));
  ASSERT_EQ(graph.parameters().size(), 4u);
  EXPECT_EQ(graph.parameters()[2].path, "logits.weight");
  EXPECT_EQ(graph.parameters()[2].shape, (Shape{10, 8 * 26 * 26}));
  EXPECT_THAT(graph.warnings(), IsEmpty());
  EXPECT_FALSE(graph.is_distributed());
}

TEST(Graph, ComputesNodesInTheOrderOfTheDocumentAsFarAsItCan) {
  const Graph graph = read(with_nodes(R"(
    {"id": "last", "op": "add", "inputs": ["b", "a"]},
    {"id": "b", "op": "tanh", "inputs": ["a"]},
    {"id": "c", "op": "relu", "inputs": ["image"]},
    {"id": "a", "op": "relu", "inputs": ["c"]})"));
  EXPECT_THAT(paths_of(graph), ElementsAre("c", "a", "b", "last"));
}

TEST(Graph, SubgraphsAreNodesWithNodes) {
  const std::string block = R"("op": "graph", "nodes": [{"id": "act", "op": "relu", "inputs": ["x"]},
       {"id": "inner", "op": "graph", "inputs": ["act", "x"], "nodes": [
         {"id": "sum", "op": "add", "inputs": ["act", "x"]}], "outputs": ["sum"]}], "outputs": ["inner", "act"])";
  const Graph graph = read(with_nodes(R"({"id": "one", "inputs": {"x": "image"}, )" + block +
                                      R"(}, {"id": "two", "inputs": {"x": "one.inner"}, )" + block +
                                      R"(}, {"id": "last", "op": "add", "inputs": ["two.inner", "one.act"]})"));
  EXPECT_THAT(paths_of(graph), ElementsAre("one.act", "one.inner.sum", "two.act", "two.inner.sum", "last"));
  ASSERT_EQ(graph.subgraphs().size(), 5u);
  EXPECT_EQ(graph.subgraphs()[2].path, "one.inner");
  EXPECT_EQ(graph.nodes()[3].inputs, (std::vector<std::size_t>{3, 2}));
}

TEST(Graph, ValuesMayPassThroughSubgraphs) {
  const Graph graph = read(with_nodes(R"({"id": "pass", "op": "graph", "inputs": ["image"], "nodes": [],
      "outputs": ["image"]}, {"id": "last", "op": "relu", "inputs": ["pass"]})"));
  EXPECT_EQ(graph.nodes().front().inputs, (std::vector<std::size_t>{0}));
}

TEST(Graph, WarnsOfWhatNothingUses) {
  const Graph graph = read(R"({"inputs": {"image": [4], "other": [4]}, "nodes": [
      {"id": "last", "op": "relu", "inputs": ["image"]}, {"id": "lost", "op": "linear", "inputs": ["image"], "units": 3}],
      "outputs": ["last"]})");
  EXPECT_THAT(graph.warnings(),
              ElementsAre("the node 'lost' is not computed: no output needs it", "no output needs the input 'other'",
                          "nothing is trained: no parameter that an output needs is free to change"));
  EXPECT_THAT(graph.parameters(), IsEmpty());
}

TEST(Graph, ChecksWhatNothingUses) {
  const auto with_unused = [](const std::string& options) {
    return refused(with_nodes(R"({"id": "last", "op": "relu", "inputs": ["image"]}, {"id": "lost", )" + options +
                              R"(}, {"id": "more", "op": "flatten", "inputs": ["lost"]})"));
  };
  EXPECT_EQ(with_unused(R"("op": "linear", "inputs": ["image"], "units": 3)"), "(no error)");
  EXPECT_THAT(with_unused(R"("op": "linear", "inputs": ["image"], "unit": 3)"), HasSubstr("graph.lost: missing key"));
  EXPECT_THAT(with_unused(R"("op": "add", "inputs": ["image"])"), HasSubstr("graph.lost.inputs: add takes at least 2"));
  EXPECT_THAT(with_unused(R"("op": "conv2d", "inputs": ["image"], "filters": 4, "kernel": 9)"),
              HasSubstr("graph.lost: nothing is left of an input"));
  EXPECT_THAT(with_unused(R"("op": "linear", "inputs": ["image"], "units": 3, "init": "big")"),
              HasSubstr("graph.lost.init: expected"));
}

TEST(Graph, AParameterOfANodeThatNothingUsesCanBeAnothers) {
  const Graph graph = read(with_nodes(R"({"id": "lost", "op": "linear", "inputs": ["image"], "units": 8},
      {"id": "last", "op": "linear", "inputs": ["image"], "units": 8, "tied": {"weight": "lost.weight"}})"));
  std::vector<std::string> paths;
  for (const GraphParameter& parameter : graph.parameters()) paths.push_back(parameter.path);
  EXPECT_THAT(paths, ElementsAre("lost.weight", "last.bias"));
}

// A chain of subgraphs that each hand on what the one before does, and as many nodes.
TEST(Graph, OfThousandsOfNodesIsReadInLinearTime) {
  constexpr int kNodes = 20'000;
  Json nodes = Json::array();
  std::string before = "image";
  for (int i = 0; i < kNodes; ++i) {
    const std::string id = "n" + std::to_string(i);
    if (i % 2 == 0) {
      nodes.push_back({{"id", id}, {"op", "relu"}, {"inputs", {before}}});
    } else {
      nodes.push_back(
          {{"id", id}, {"op", "graph"}, {"inputs", {{"x", before}}}, {"nodes", Json::array()}, {"outputs", {"x"}}});
    }
    before = id;
  }
  nodes.push_back({{"id", "last"}, {"op", "linear"}, {"inputs", {before}}, {"units", 2}});
  const Graph graph = read(Json{{"inputs", {{"image", {4}}}}, {"nodes", nodes}, {"outputs", {"last"}}}.dump());
  EXPECT_EQ(graph.nodes().size(), kNodes / 2 + 1u);
  EXPECT_EQ(graph.value(graph.outputs().front().value).shape, Shape{2});
}

TEST(Graph, RefusesWhatCannotBeAndNamesThePlace) {
  struct Case {
    std::string text, message;
  };
  const auto node = [](const std::string& options) { return with_nodes(R"({"id": "last", )" + options + "}"); };
  const std::vector<Case> cases{
      {"[]", "graph: expected a graph: an object with inputs, nodes and outputs, found an empty array"},
      {R"({"nodes": [], "outputs": []})", "graph: "},
      {R"({"inputs": {}, "nodes": [], "outputs": []})", "graph.inputs: a graph has at least one input"},
      {R"({"inputs": {"x": [0]}, "nodes": [], "outputs": ["x"]})", "graph.inputs.x[0]: expected a whole number from 1"},
      {R"({"inputs": {"x": [1000000000, 1000000000]}, "nodes": [], "outputs": ["x"]})",
       "graph.inputs.x: a row of the shape [1000000000, 1000000000] fits no machine"},
      {R"({"inputs": {"x": 3}, "nodes": [], "outputs": ["x"]})", "graph.inputs.x: expected the shape of a row"},
      {R"({"inputs": {"x": {"shape": [3], "type": "int"}}, "nodes": [], "outputs": ["x"]})", "graph.inputs.x.type: "},
      {R"({"inputs": {"x": [3]}, "nodes": [], "outputs": []})", "graph.outputs: a graph has at least one output"},
      {R"({"inputs": {"x": [3]}, "nodes": [], "outputs": ["x", "x"]})",
       "graph.outputs[1]: the output 'x' is there twice"},
      {R"({"inputs": {"x": [3]}, "nodes": [], "outputs": ["x"], "strateg": {}})", "strateg"},
      {node(R"("op": "relu")"), "graph.last: "},
      {node(R"("op": "rellu", "inputs": ["image"])"),
       "graph.last.op: there is no operator 'rellu'; did you mean 'relu'?"},
      {node(R"("op": "qqqq", "inputs": ["image"])"),
       "graph.last.op: there is no operator 'qqqq'; expected one of adap"},
      {node(R"("op": "relu", "inputs": ["imag"])"),
       "graph.last.inputs[0]: there is no node or input 'imag'; did you mean 'image'?"},
      {node(R"("op": "relu", "inputs": ["image.x"])"),
       "graph.last.inputs[0]: the input 'image' is one value: expected 'image'"},
      {node(R"("op": "relu", "inputs": [])"), "graph.last.inputs: relu takes 1 input, found 0"},
      {node(R"("op": "add", "inputs": ["image"])"), "graph.last.inputs: add takes at least 2 inputs, found 1"},
      {node(R"("op": "attention", "heads": 1, "inputs": ["image", "image", "image", "image"])"),
       "graph.last.inputs: attention takes 1 to 3 inputs, found 4"},
      {node(R"("op": "relu", "inputs": ["last"])"), "graph.last: nodes go round in a cycle: last -> last"},
      {node(R"("op": "linear", "inputs": ["image"])"), "graph.last: "},
      {node(R"("op": "linear", "inputs": ["image"], "units": 0)"),
       "graph.last.units: expected a whole number from 1 to"},
      {node(R"("op": "linear", "inputs": ["image"], "units": 3, "unit": 4)"), "did you mean"},
      {node(R"("op": "conv2d", "inputs": ["image"], "filters": 4, "kernel": 9)"),
       "graph.last: nothing is left of an input of the shape [1, 8, 8]"},
      {node(R"("op": "conv1d", "inputs": ["image"], "filters": 4, "kernel": 3)"),
       "graph.last: expected an input of 2 dimensions (channels and length), found the shape [1, 8, 8]"},
      {node(R"("op": "conv2d", "inputs": ["image"], "filters": 4, "kernel": [3])"),
       "graph.last.kernel: expected 2 of them, or one number for all, found 1"},
      {node(R"("op": "conv2d", "inputs": ["image"], "filters": 4, "kernel": 3, "groups": 3)"),
       "graph.last.groups: expected a divisor of 1 channels and of 4 filters, found 3"},
      {node(R"("op": "embedding", "inputs": ["image"], "entries": 4, "units": 2)"),
       "graph.last: expected numbers of entries, an input of int64, found [1, 8, 8] of float32"},
      {node(R"("op": "linear", "inputs": ["image"], "units": 1000000000000)"), "graph.last.units: expected"},
      {node(R"("op": "graph", "inputs": ["image"], "nodes": [], "outputs": ["nothing"])"),
       "graph.last.outputs[0]: there is no node or input 'nothing'"},
      {node(R"("op": "graph", "inputs": ["last"], "nodes": [], "outputs": ["last"])"),
       "'last' is what it is made of: a cycle"},
      {with_nodes(
           R"({"id": "last", "op": "relu", "inputs": ["image"]}, {"id": "last", "op": "relu", "inputs": ["image"]})"),
       "graph.nodes[1].id: there is a node 'last' already"},
      {with_nodes(R"({"id": "image", "op": "relu", "inputs": ["image"]})"),
       "graph.nodes[0].id: an input has the name 'image' already"},
      {with_nodes(R"({"id": "a.b", "op": "relu", "inputs": ["image"]})"),
       "expected a name of letters, digits, _ and -"},
      {with_nodes(R"({"id": "outputs", "op": "relu", "inputs": ["image"]})"), "is a key of a graph"},
      {with_nodes(R"({"id": "op", "op": "relu", "inputs": ["image"]})"), "is a key of a graph"},
      {with_nodes(R"({"id": "last", "op": "relu", "inputs": ["a"]}, {"id": "a", "op": "relu", "inputs": ["b"]},
                     {"id": "b", "op": "relu", "inputs": ["a"]})"),
       "graph.a: nodes go round in a cycle: a -> b -> a"},
      {with_nodes(R"({"id": "body", "op": "graph", "inputs": ["image"], "nodes": [{"id": "a", "op": "relu",
                     "inputs": ["imag"]}], "outputs": ["a"]}, {"id": "last", "op": "relu", "inputs": ["body"]})"),
       "graph.body.a.inputs[0]: there is no node or input 'imag'; did you mean 'image'?"},
      {with_nodes(R"({"id": "body", "op": "graph", "inputs": ["image"], "nodes": [{"id": "a", "op": "relu",
                     "inputs": ["image"]}], "outputs": ["a", "image"]}, {"id": "last", "op": "relu", "inputs": ["body"]})"),
       "graph.last.inputs[0]: the graph 'body' has several outputs: expected one of 'body.a', 'body.image'"},
      {with_nodes(R"({"id": "body", "op": "graph", "inputs": ["image"], "nodes": [], "outputs": ["image"], "p": 3},
                     {"id": "last", "op": "relu", "inputs": ["body"]})"),
       "graph.body: unknown key \"p\""},
      {with_nodes(R"({"id": "a", "op": "reshape", "inputs": ["image"], "shape": [64]},
                     {"id": "last", "op": "add", "inputs": ["image", "a"]})"),
       "graph.last: inputs of the shapes [1, 8, 8] and [64] do not fit"},
      {with_nodes(R"({"id": "last", "op": "mean", "inputs": ["image"], "dim": [0, -3]})"),
       "graph.last.dim[1]: dimension 0 is there twice"},
      {with_nodes(R"({"id": "last", "op": "hardtanh", "inputs": ["image"], "min": 2})"),
       "graph.last: expected a min below max, found 2 and 1"},
      {with_nodes(R"({"id": "last", "op": "batch_norm", "inputs": ["image"], "init": "zeros"})"),
       "graph.last.init: this node has no weights of two dimensions or more"},
      {with_nodes(R"({"id": "last", "op": "reshape", "inputs": ["image"], "shape": [-1, 5]})"),
       "graph.last.shape: expected a shape for the 64 elements of [1, 8, 8], found [-1, 5]"}};
  for (const Case& one : cases) {
    EXPECT_THAT(refused(one.text), HasSubstr(one.message)) << one.text;
    EXPECT_THAT(refused(one.text), ::testing::StartsWith("run.json:")) << one.text;
  }
}

// --- parameters ---

TEST(Graph, ParametersAreFrozenInitialisedAndTied) {
  const Graph graph = read(R"({"inputs": {"tokens": {"shape": [5], "type": "int64"}}, "nodes": [
      {"id": "embed", "op": "embedding", "inputs": ["tokens"], "entries": 11, "units": 4, "init": {"normal": 0.02}},
      {"id": "hidden", "op": "linear", "inputs": ["embed"], "units": 4, "frozen": true,
       "init": {"weight": "orthogonal", "bias": "zeros"}},
      {"id": "more", "op": "linear", "inputs": ["hidden"], "units": 4, "lr_factor": 0.1, "init": "kaiming_normal"},
      {"id": "logits", "op": "linear", "inputs": ["more"], "units": 11, "tied": {"weight": "embed.weight"}}],
      "outputs": ["logits"]})");
  std::vector<std::string> paths;
  for (const GraphParameter& parameter : graph.parameters()) paths.push_back(parameter.path);
  EXPECT_THAT(paths,
              ElementsAre("embed.weight", "hidden.weight", "hidden.bias", "more.weight", "more.bias", "logits.bias"));
  EXPECT_EQ(graph.nodes()[3].parameters, (std::vector<std::size_t>{0, 5}));
  EXPECT_EQ(graph.parameters()[0].initial, Initializer(initializer::Normal{0.02}));
  EXPECT_EQ(graph.parameters()[1].initial, Initializer(initializer::Orthogonal{}));
  EXPECT_EQ(graph.parameters()[2].initial, Initializer(initializer::Constant{0}));
  EXPECT_EQ(graph.parameters()[3].initial, Initializer(initializer::Kaiming{.is_normal = true}));
  EXPECT_TRUE(graph.parameters()[1].is_frozen);
  EXPECT_FALSE(graph.parameters()[3].is_frozen);
  EXPECT_EQ(graph.parameters()[4].lr_factor, 0.1);
}

TEST(Graph, RefusesInitialisersAndTiesThatCannotBe) {
  const auto refused_with = [](const std::string& options, const std::string& first = "") {
    return refused(with_nodes(R"({"id": "flat", "op": "flatten", "inputs": ["image"]},
        {"id": "first", "op": "linear", "inputs": ["flat"], "units": 64)" +
                              first + R"(}, {"id": "last", "op": "linear", "inputs": ["first"], "units": 64)" +
                              options + "}"));
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"(, "init": "normall")", "graph.last.init: expected"},
      {R"(, "init": {"wight": "zeros"})", "did you mean"},
      {R"(, "init": {"bias": "orthogonal"})", "graph.last.init.bias: it is for weights of two dimensions"},
      {R"(, "init": {"uniform": [1, 0]})", "graph.last.init.uniform[1]: expected"},
      {R"(, "init": {"normal": -1})", "graph.last.init.normal: expected"},
      {R"(, "init": 3)", "graph.last.init: expected zeros, ones"},
      {R"(, "frozen": 1)", "graph.last.frozen: expected"},
      {R"(, "lr_factor": -1)", "graph.last.lr_factor: expected"},
      {R"(, "tied": {"weight": "frist.weight"})", "there is no parameter 'frist.weight'; did you mean 'first.weight'?"},
      {R"(, "tied": {"weight": "first.bias"})",
       "'last.weight' of the shape [64, 64] cannot be 'first.bias' of the shape [64]"},
      {R"(, "tied": {"weight": "last.weight"})", "'last.weight' is tied to itself"},
      {R"(, "tied": "first", "frozen": true)", "differ in frozen or lr_factor"},
      {R"(, "tied": {"weights": "first.weight"})", "did you mean"},
      {R"(, "tied": {"weight": "first.weight"}, "init": "zeros")",
       "graph.last.init: the weights of this node are tied, and hold what the others do"},
      {R"(, "tied": "first", "init": {"bias": "zeros"})",
       "graph.last.init.bias: it is tied, and holds what the other one does"}};
  for (const auto& [options, message] : cases) EXPECT_THAT(refused_with(options), HasSubstr(message)) << options;
  EXPECT_EQ(refused_with(R"(, "tied": "first")"), "(no error)");
  EXPECT_THAT(refused_with(R"(, "tied": {"weight": "first.weight"})", R"(, "tied": {"weight": "last.weight"})"),
              HasSubstr("is tied to itself"));
}

// --- strategies ---

std::string nested(const std::string& outer, const std::string& inner) {
  return R"({"inputs": {"image": [4]}, "nodes": [{"id": "body", "op": "graph", "inputs": ["image"], "nodes": [
      {"id": "deep", "op": "graph", "inputs": ["image"], "nodes": [{"id": "act", "op": "relu", "inputs": ["image"]}],
       "outputs": ["act"])" +
         inner + R"(}], "outputs": ["deep"]}, {"id": "last", "op": "relu", "inputs": ["body"]}],
      "outputs": ["last"])" +
         outer + "}";
}

const char* const kReplicated =
    R"(, "strategy": {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}})";
const char* const kPrivate = R"(, "strategy": {"type": "Local"})";

TEST(Graph, StrategiesAreInheritedNodeByNode) {
  const Graph graph = read(nested(kReplicated, kPrivate));
  EXPECT_EQ(name_of(graph.effective_strategy()), "DataParallel");
  EXPECT_EQ(name_of(graph.effective_strategy("last")), "DataParallel");
  EXPECT_EQ(name_of(graph.effective_strategy("body")), "DataParallel");
  EXPECT_EQ(name_of(graph.effective_strategy("body.deep")), "Local");
  EXPECT_EQ(name_of(graph.effective_strategy("body.deep.act")), "Local");
  EXPECT_TRUE(graph.is_distributed());
  EXPECT_EQ(testing::usage_error([&] { (void)graph.effective_strategy("body.dep"); }),
            "there is no node 'body.dep'; did you mean 'body.deep'?");
  EXPECT_EQ(name_of(read(nested("", "")).effective_strategy("body.deep.act")), "Local");
}

TEST(Graph, StrategiesAreSetAndWritten) {
  Graph graph = read(nested("", ""));
  const Graph replicated = graph.with_strategy(strategy::DataParallel{.num_replicas = 3});
  EXPECT_FALSE(graph.is_distributed());
  EXPECT_EQ(name_of(replicated.effective_strategy("body.deep.act")), "DataParallel");
  graph = replicated;
  graph.set_strategy(strategy::Local{}, "body.deep");
  EXPECT_EQ(name_of(graph.effective_strategy("body.deep.act")), "Local");
  EXPECT_EQ(name_of(graph.effective_strategy("body")), "DataParallel");
  const Graph again = read(graph.to_json().dump());
  EXPECT_EQ(name_of(again.effective_strategy("body.deep.act")), "Local");
  EXPECT_EQ(again.effective_strategy(), TrainingStrategy(strategy::DataParallel{.num_replicas = 3}));
  EXPECT_EQ(again.to_json(), graph.to_json());
}

TEST(Graph, RefusesStrategiesThatCannotBeInsideEachOther) {
  EXPECT_THAT(refused(nested(kPrivate, kReplicated)),
              HasSubstr("graph.body.deep.strategy: the subgraph 'body.deep' has the strategy DataParallel inside the "
                        "graph: DataParallel cannot be inside Local"));
  EXPECT_THAT(refused(nested("", kReplicated)), HasSubstr("DataParallel cannot be inside Local"));
  Graph graph = read(nested(kReplicated, kPrivate));
  EXPECT_THAT(
      testing::usage_error([&] { graph.set_strategy(strategy::PopulationBased{}); }),
      HasSubstr("the subgraph 'body.deep' has the strategy Local inside the graph: Local cannot be inside Pop"));
  EXPECT_THAT(testing::usage_error([&] { graph.set_strategy(strategy::Federated{}, "body.deep"); }),
              HasSubstr("Federated cannot be inside DataParallel"));
  EXPECT_THAT(testing::usage_error([&] { graph.set_strategy(strategy::DataParallel{.num_replicas = 0}); }),
              HasSubstr("num_replicas"));
  EXPECT_THAT(testing::usage_error([&] { graph.set_strategy(strategy::Local{}, "bod"); }),
              HasSubstr("there is no subgraph 'bod'; did you mean 'body'?"));
  EXPECT_EQ(name_of(graph.effective_strategy()), "DataParallel");
}

TEST(Graph, ParametersThatArePrivateToEachReplicaAreTiedAmongThemselvesAlone) {
  const auto tied_to = [](const std::string& to, const std::string& strategy = kReplicated) {
    const auto linear = [](const std::string& id, const std::string& options = "") {
      return R"({"id": ")" + id + R"(", "op": "linear", "inputs": ["image"], "units": 4)" + options + "}";
    };
    const std::string own = R"("op": "graph", "inputs": ["image"], "strategy": {"type": "Local"}, "nodes": [)";
    return R"({"inputs": {"image": [4]}, "nodes": [)" + linear("all") + R"(, {"id": "mine", )" + own + linear("a") +
           "," + linear("b", R"(, "tied": ")" + to + R"(")") + R"(], "outputs": ["a", "b"]},
           {"id": "sum", "op": "add", "inputs": ["all", "mine.a", "mine.b"]}], "outputs": ["sum"])" +
           strategy + "}";
  };
  EXPECT_EQ(refused(tied_to("mine.a")), "(no error)");
  EXPECT_THAT(refused(tied_to("all")),
              HasSubstr("graph.mine.b.tied: 'mine.b.weight' is private to each replica or client, and 'all.weight' is "
                        "shared by all"));
  EXPECT_EQ(refused(tied_to("all", "")), "(no error)");
  Graph graph = read(tied_to("all", ""));
  EXPECT_FALSE(graph.is_private(graph.nodes()[1]));
  EXPECT_THAT(testing::usage_error([&] { graph.set_strategy(strategy::DataParallel{.num_replicas = 2}); }),
              HasSubstr("'all.weight' is one parameter of the nodes 'all' and 'mine.b'"));
  EXPECT_FALSE(graph.is_distributed());
  graph = read(tied_to("mine.a"));
  EXPECT_FALSE(graph.is_private(graph.nodes()[0]));
  EXPECT_TRUE(graph.is_private(graph.nodes()[1]));
}

TEST(Graph, RefusesPartitionsOfNodesThatAreNotThereOrThereTwice) {
  const auto cut = [](const std::string& id, const std::string& first = "last") {
    return nested(R"(, "strategy": {"type": "ModelParallel", "partitions": [{"node_ids": [")" + first + R"(", ")" + id +
                      R"("], "target": {"WorkerId": "w0"}}], "communication": {"protocol": "Direct"}})",
                  "");
  };
  EXPECT_THAT(refused(cut("body.deep.act", "body")),
              HasSubstr("graph.strategy.partitions[0].node_ids[1]: the node 'body.deep.act' is in 'body', which "
                        "partitions[0] has"));
  EXPECT_THAT(refused(cut("body.deep", "body.deep.act")),
              HasSubstr("the subgraph 'body.deep' holds 'body.deep.act', which partitions[0] has"));
  Graph graph = read(nested("", ""));
  EXPECT_EQ(testing::usage_error([&] {
              graph.set_strategy(
                  strategy::ModelParallel{.partitions = {{.node_ids = {"last"}, .target = strategy::WorkerId{"w0"}},
                                                         {.node_ids = {"bodi"}, .target = strategy::WorkerId{"w1"}}}});
            }),
            "ModelParallel: partitions[1].node_ids[0]: there is no node 'bodi'; did you mean 'body'?");
  EXPECT_EQ(refused(cut("body.deep.act")), "(no error)");
  EXPECT_EQ(refused(cut("body")), "(no error)");
  EXPECT_THAT(refused(cut("body.deep.acts")),
              HasSubstr("graph.strategy.partitions[0].node_ids[1]: there is no node 'body.deep.acts'; did you mean "
                        "'body.deep.act'?"));
}

// --- in C++ ---

TEST(GraphBuilder, MakesTheSameGraphAsAFile) {
  const Graph built = GraphBuilder()
                          .input("tokens", {5}, ValueType::int64)
                          .node("embed", "embedding", {"tokens"}, {{"entries", 11}, {"units", 4}})
                          .graph("body", {"embed"}, GraphBuilder().node("act", "relu", {"embed"}).output("act"))
                          .node("logits", "linear", {"body"}, {{"units", 11}, {"tied", {{"weight", "embed.weight"}}}})
                          .output("logits")
                          .with_strategy(strategy::DataParallel{.num_replicas = 2})
                          .build();
  const Graph file = read(R"({"inputs": {"tokens": {"shape": [5], "type": "int64"}}, "nodes": [
      {"id": "embed", "op": "embedding", "inputs": ["tokens"], "entries": 11, "units": 4},
      {"id": "body", "op": "graph", "inputs": ["embed"], "nodes": [{"id": "act", "op": "relu", "inputs": ["embed"]}],
       "outputs": ["act"]},
      {"id": "logits", "op": "linear", "inputs": ["body"], "units": 11, "tied": {"weight": "embed.weight"}}],
      "outputs": ["logits"], "strategy": {"type": "DataParallel", "num_replicas": 2, "aggregation": {"method": "AllReduce"}}})");
  EXPECT_EQ(built.to_json(), file.to_json());
  EXPECT_EQ(paths_of(built), paths_of(file));
}

TEST(GraphBuilder, NamesTheInputsOfASubgraph) {
  const auto around = [](const auto& add_body) {
    GraphBuilder builder;
    builder.input("image", {4}).node("stem", "relu", {"image"});
    add_body(builder);
    return builder.output("body").build();
  };
  const Graph named = around([](GraphBuilder& builder) {
    builder.graph("body",
                  GraphBuilder().takes("x", "stem").takes("y", "image").node("sum", "add", {"x", "y"}).output("sum"));
  });
  EXPECT_THAT(paths_of(named), ElementsAre("stem", "body.sum"));
  EXPECT_EQ(named.nodes()[1].inputs, (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(read(named.to_json().dump()).to_json(), named.to_json());
  const auto refused_body = [&](const GraphBuilder& body) {
    return testing::usage_error([&] { (void)around([&](GraphBuilder& builder) { builder.graph("body", body); }); });
  };
  EXPECT_THAT(refused_body(GraphBuilder().output("image")), HasSubstr("takes nothing: name its inputs with takes()"));
  EXPECT_THAT(refused_body(GraphBuilder().input("image", {4}).output("image")), HasSubstr("it declares none"));
  EXPECT_THAT(testing::usage_error([] { (void)GraphBuilder().takes("x", "a").takes("x", "b"); }),
              HasSubstr("there is an input 'x' already"));
}

TEST(GraphBuilder, MakesAGraphWithoutNodes) {
  const Graph graph = GraphBuilder().input("x", {4}).output("x").build();
  EXPECT_THAT(graph.nodes(), IsEmpty());
  EXPECT_THAT(graph.warnings(), ElementsAre(HasSubstr("nothing is trained")));
}

TEST(GraphBuilder, RefusesWhatCannotBe) {
  const auto linear = [](const Json& options) {
    return testing::usage_error(
        [&] { (void)GraphBuilder().input("x", {4}).node("y", "linear", {"x"}, options).output("y").build(); });
  };
  EXPECT_THAT(linear({{"units", "many"}}), HasSubstr("graph.y.units: expected a whole number"));
  EXPECT_THAT(linear(Json::array({1})), HasSubstr("the options of the node 'y' are no object: [1]"));
  EXPECT_THAT(linear({{"units", 3}, {"op", "relu"}}), HasSubstr("the options of the node 'y' have 'op' once more"));
  EXPECT_THAT(linear({{"units", "\xff"}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(testing::usage_error([] { (void)GraphBuilder().build(); }), HasSubstr("graph"));
  EXPECT_THAT(testing::usage_error([] { (void)GraphBuilder().input("x", {4}).input("x", {5}); }),
              HasSubstr("there is an input 'x' already"));
  EXPECT_THAT(testing::usage_error([] {
                (void)GraphBuilder().input("x", {4}).graph("g", {"x"}, GraphBuilder().input("x", {4}).output("x"));
              }),
              HasSubstr("it declares none"));
}

// --- operators of one's own ---

TEST(OperatorRegistry, TakesOperatorsOfItsUsers) {
  OperatorRegistry operators;
  operators.add({.name = "twice", .resolve = [](const Options& options, std::span<const ValueSpec> inputs) {
                   (void)options.boolean("really", true);
                   return OperatorRegistry().find("relu")->resolve(options, inputs);
                 }});
  operators.add({.name = "idle", .resolve = [](const Options&, std::span<const ValueSpec> inputs) {
                   return Operator{.output = inputs[0]};
                 }});
  operators.add({.name = "picky", .resolve = [](const Options&, std::span<const ValueSpec>) -> Operator {
                   throw UsageError("it takes pairs");
                 }});
  operators.add({.name = "broken", .resolve = [](const Options&, std::span<const ValueSpec>) -> Operator {
                   throw std::out_of_range("beyond the end\nand more");
                 }});
  const auto add_with = [&](const std::string& name, const std::vector<ParameterSpec>& parameters) {
    operators.add(
        {.name = name, .resolve = [parameters](const Options&, std::span<const ValueSpec> inputs) {
           return Operator{
               .output = inputs[0],
               .parameters = parameters,
               .compute =
                   OperatorRegistry().find("relu")->resolve(Options(JsonDocument::parse("{}").root()), inputs).compute};
         }});
  };
  add_with("unset", {{.name = "factor", .shape = {1}}});
  add_with("doubled", {{"a", {1}, initializer::Constant{}}, {"a", {1}, initializer::Constant{}}});
  add_with("dotted", {{"a.", {1}, initializer::Constant{}}});
  const auto refused_op = [&](const std::string& op) {
    return testing::usage_error(
        [&] { (void)GraphBuilder().input("x", {4}).node("y", op, {"x"}).output("y").build(operators); });
  };
  EXPECT_THAT(refused_op("idle"), HasSubstr("graph.y: the operator 'idle' does not say how to compute"));
  EXPECT_THAT(refused_op("unset"), HasSubstr("graph.y: the operator 'unset' does not say what its parameter 'factor'"));
  EXPECT_THAT(refused_op("doubled"), HasSubstr("graph.y: the operator 'doubled' has a parameter or buffer 'a'"));
  EXPECT_THAT(refused_op("dotted"), HasSubstr("has a parameter or buffer 'a.' that is no name"));
  EXPECT_THAT(refused_op("picky"), ::testing::EndsWith(": graph.y: it takes pairs"));
  EXPECT_THAT(refused_op("broken"), ::testing::EndsWith(": graph.y: beyond the end"));
  const GraphBuilder builder = GraphBuilder().input("x", {4}).node("y", "twice", {"x"}, {{"really", true}}).output("y");
  EXPECT_EQ(builder.build(operators).nodes().front().op, "twice");
  EXPECT_THAT(testing::usage_error([&] { (void)builder.build(); }), HasSubstr("there is no operator 'twice'"));
  const auto add = [&](const std::string& name) {
    return testing::usage_error([&] { operators.add({.name = name, .resolve = operators.find("relu")->resolve}); });
  };
  EXPECT_EQ(add("twice"), "the operator 'twice' is there already");
  EXPECT_EQ(add("graph"), "the operator 'graph' is there already");
  EXPECT_EQ(add("a b"), "operator: a name is made of letters, digits and _, found 'a b'");
  EXPECT_EQ(testing::usage_error([&] { operators.add({.name = "nothing", .resolve = nullptr}); }),
            "the operator 'nothing' has no function");
}

}  // namespace
}  // namespace tutti
