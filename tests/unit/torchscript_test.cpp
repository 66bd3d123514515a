// A TorchScript that PyTorch exported, trained here and there: what tests/vectors/make_vectors.py wrote.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/graph/graph_builder.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/data_parallel.hpp>

#include "support/large_batch.hpp"
#include "support/torch_nets.hpp"
#include "support/usage_error.hpp"

namespace tutti::torchscript_test {
namespace {

using nlohmann::ordered_json;
using testing::Batch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::large_step;
using testing::mse;
using ::testing::StartsWith;
using testing::usage_error;

const std::string kScript = TUTTI_VECTORS "/script_net.pt";

const ordered_json& vectors() {
  static const ordered_json document = ordered_json::parse(std::ifstream(TUTTI_VECTORS "/script_net.json"));
  return document;
}

torch::Tensor tensor_of(const ordered_json& vector) {
  return torch::tensor(vector.at("values").get<std::vector<float>>()).view(vector.at("shape").get<Shape>());
}

std::vector<Batch> batches() {
  std::vector<Batch> all;
  for (const ordered_json& its : vectors().at("batches"))
    all.push_back({tensor_of(its.at("rows")), tensor_of(its.at("targets"))});
  return all;
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

std::vector<double> train(GraphModule& module) {
  torch::optim::SGD optimizer(module.parameters(), sgd());
  std::vector<double> losses;
  for (const Batch& batch : batches()) losses.push_back(large_step(module, optimizer, batch, mse));
  return losses;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(found.size(), 20);
  ASSERT_EQ(expected.size(), 20);
  for (std::size_t step = 0; step < found.size(); ++step)
    EXPECT_NEAR(found[step], expected[step], tolerance) << "step " << step;
}

GraphBuilder graph_of(const std::string& file, const Shape& row = {4}) {
  return GraphBuilder().input("rows", row).node("net", "torchscript", {"rows"}, {{"file", file}}).output("net");
}

std::shared_ptr<GraphModule> script_alone() { return std::make_shared<GraphModule>(graph_of(kScript).build()); }

// A file for one test of one process.
class ScratchFile {
 public:
  ScratchFile()
      : path_(std::filesystem::path(::testing::TempDir()) / ("tutti_script_" + std::to_string(::getpid()) + ".pt")) {}
  ~ScratchFile() { std::filesystem::remove(path_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// --- as in PyTorch ---

TEST(TorchScript, TrainsAsInPyTorch) {
  const auto module = script_alone();
  // The second layer's weight is the first one's.
  EXPECT_THAT(module->named_parameters().keys(),
              ElementsAre("net.hidden.weight", "net.hidden.bias", "net.again.bias", "net.norm.weight", "net.norm.bias",
                          "net.out.weight", "net.out.bias"));
  EXPECT_THAT(module->named_buffers().keys(), ElementsAre("net.scale", "net.seen", "net.steps"));
  expect_near(train(*module), vectors().at("losses"), 1e-4);
  const auto buffers = module->named_buffers();
  EXPECT_TRUE(torch::allclose(buffers["net.seen"], tensor_of(vectors().at("seen")), 1e-5, 1e-6)) << buffers["net.seen"];
  EXPECT_EQ(buffers["net.steps"].item<std::int64_t>(), vectors().at("steps"));
  for (const auto& item : buffers) EXPECT_FALSE(item.value().requires_grad()) << item.key();
}

TEST(TorchScript, TrainsAsInPyTorchBetweenOtherNodes) {
  const Graph graph = GraphBuilder()
                          .input("rows", {4})
                          .node("before", "linear", {"rows"}, {{"units", 4}})
                          .node("net", "torchscript", {"before"}, {{"file", kScript}})
                          .node("behind", "silu", {"net"})
                          .output("behind")
                          .build();
  EXPECT_EQ(graph.nodes()[1].resolved.output.shape, (Shape{3}));
  EXPECT_EQ(graph.nodes()[2].resolved.output.shape, (Shape{3}));
  GraphModule module(graph);
  {
    const torch::NoGradGuard no_gradients;
    auto parameters = module.named_parameters();
    for (const char* name : {"weight", "bias"})
      parameters[std::string("before.") + name].copy_(tensor_of(vectors().at("before").at(name)));
  }
  expect_near(train(module), vectors().at("losses_between"), 1e-4);
}

// The file was saved for evaluation; the modules of a graph begin in training.
TEST(TorchScript, IsInTheModeOfItsGraph) {
  const auto module = script_alone();
  const torch::Tensor rows = batches().front().data;
  const torch::Tensor seen = module->named_buffers()["net.seen"];
  EXPECT_TRUE(module->is_training());
  module->forward(rows);
  const torch::Tensor once = 0.1 * rows.mean(0);
  EXPECT_TRUE(torch::allclose(seen, once));
  module->eval();
  module->forward(rows);
  EXPECT_TRUE(torch::allclose(seen, once));
  module->train();
  module->forward(rows);
  EXPECT_TRUE(torch::allclose(seen, 1.9 * once));
}

// --- copies ---

TEST(TorchScript, HasClonesThatAreTheSameAndIndependent) {
  const auto module = script_alone();
  train(*module);
  const auto copy = testing::copy_of(module);
  testing::expect_same_bits(*copy, *module);
  const testing::Contents before = testing::contents_of(*module);
  const torch::Tensor rows = batches().front().data;
  module->eval();
  copy->eval();
  const torch::Tensor output = module->forward(rows);
  EXPECT_TRUE(torch::equal(copy->forward(rows), output));

  copy->train();
  EXPECT_FALSE(module->is_training());
  train(*copy);
  EXPECT_EQ(copy->named_buffers()["net.steps"].item<std::int64_t>(), 40);
  copy->eval();
  testing::expect_same_bits(testing::contents_of(*module), before);
  EXPECT_TRUE(torch::equal(module->forward(rows), output));
  EXPECT_FALSE(torch::allclose(copy->forward(rows), output, 1e-3, 1e-3));
}

TEST(TorchScript, HasClonesWhateverBecameOfItsFile) {
  const ScratchFile file;
  std::filesystem::copy_file(kScript, file.path(), std::filesystem::copy_options::overwrite_existing);
  const auto module = std::make_shared<GraphModule>(graph_of(file.path()).build());
  std::filesystem::remove(file.path());
  testing::expect_same_bits(*testing::copy_of(module), *module);
}

TEST(TorchScript, TrainsOnTwoReplicasAsOnOne) {
  const auto losses_on = [](int replicas) {
    DataParallel parallel(script_alone(), sgd(), {.replicas = replicas});
    std::vector<double> losses;
    for (const Batch& batch : batches()) losses.push_back(parallel.step(batch, mse));
    return losses;
  };
  const std::vector<double> losses = losses_on(1);
  expect_near(losses, vectors().at("losses"), 1e-4);
  expect_near(losses_on(2), losses, 1e-5);
}

// --- what cannot be ---

TEST(TorchScript, RefusesFilesThatAreNotThere) {
  EXPECT_EQ(
      usage_error([] { graph_of("/no/such/net.pt").build(); }),
      "graph:1:98: graph.net.file: there is no file '/no/such/net.pt', neither beside the run file nor where this "
      "runs");
}

TEST(TorchScript, RefusesFilesThatAreNone) {
  const ScratchFile file;
  std::ofstream(file.path()) << "weights";
  EXPECT_THAT(usage_error([&] { graph_of(file.path()).build(); }),
              StartsWith("graph:1:98: graph.net.file: '" + file.path() + "' is no TorchScript: "));
}

TEST(TorchScript, RefusesRowsOfAnotherWidth) {
  const std::string error = usage_error([] { graph_of(kScript, {5}).build(); });
  EXPECT_THAT(error, StartsWith("graph:1:42: graph.net: it failed on rows of zeros: "));
  EXPECT_THAT(error, HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4)"));
  const auto module = script_alone();
  EXPECT_EQ(usage_error([&] {
              module->forward(torch::zeros({2, 5}));
            }),
            "the input 'rows': expected rows of [4] of float32, found Float [2, 5]");
}

}  // namespace
}  // namespace tutti::torchscript_test
