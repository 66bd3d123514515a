// Federated runs: what a client computes is what one worker would, layers stay where they belong, and runs go on to the
// bit.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/functional/loss.h>
#include <tutti/base/random.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/footprint.hpp>

#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"
#include "support/usage_error.hpp"

namespace tutti::federated_train_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using ::testing::Contains;
using ::testing::HasSubstr;

// All of them in each round, unless it is said otherwise.
Json federated(int clients, int rounds, const Json& rest = Json::object()) {
  Json strategy{{"type", "Federated"},
                {"num_clients", clients},
                {"rounds", rounds},
                {"aggregation", {{"method", "FedAvg"}}},
                {"client_selection", {{"method", "All"}}}};
  strategy.update(rest);
  return strategy;
}

Json federated_run(const std::filesystem::path& output, const Json& strategy) {
  Json run = small_run(output);
  run["train"] = Json::object();
  run["data"]["drop_last"] = true;  // batch norm needs two rows
  run["graph"]["strategy"] = strategy;
  return run;
}

Json& node_of(Json& run, const std::string& id) {
  for (Json& node : run["graph"]["nodes"]) {
    if (node["id"] == id) return node;
    if (node["op"] != "graph") continue;
    for (Json& inner : node["nodes"]) {
      if (inner["id"] == id) return inner;
    }
  }
  throw Error("there is no node " + id);
}

// Parameters and buffers, and nothing else.
ParameterSet weights_after(const Json& document, int client = 0) {
  return weights_in(train_small(read_small(document)).result.last_checkpoint, client);
}

ParameterSet weights_at_first(const Json& document) {
  const auto run = read_small(document);
  ParameterSet weights;
  add_module(weights, GraphModule(run.graph, run.seed));
  return weights;
}

double largest_difference(const ParameterSet& a, const ParameterSet& b) {
  double largest = 0;
  for (const NamedArray& array : a) {
    if (array.type() != DataType::float32) continue;
    const auto mine = array.values<float>();
    const auto theirs = b.at(array.name()).values<float>();
    for (std::size_t i = 0; i < mine.size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(mine[i]) - theirs[i]));
  }
  return largest;
}

// The same arrays, in whatever order, and the same numbers up to what rounding makes of them.
void expect_alike(const ParameterSet& found, const ParameterSet& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const NamedArray& array : expected) {
    ASSERT_EQ(found.at(array.name()).layout(), array.layout());
    if (array.type() != DataType::int64) continue;
    EXPECT_TRUE(std::ranges::equal(found.at(array.name()).bytes(), array.bytes())) << array.name();
  }
  EXPECT_LT(largest_difference(found, expected), 1e-5);
}

// --- a client ---

TEST(FederatedTrain, OneClientInOneRoundLearnsWhatOneWorkerWould) {
  const ScratchFolder scratch;
  const std::vector<Json> optimizers{{{"name", "sgd"}, {"lr", 0.1}},
                                     {{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}, {"weight_decay", 0.01}},
                                     {{"name", "adam"}, {"lr", 0.01}}};
  for (const Json& optimizer : optimizers) {
    for (const int epochs : {1, 3}) {
      for (const int batch : {7, 10, 100}) {
        for (const bool is_plain : {true, false}) {
          SCOPED_TRACE(optimizer.dump() + ", " + std::to_string(epochs) + " epochs, batches of " +
                       std::to_string(batch) + (is_plain ? "" : ", clipped, frozen, without the last rows"));
          Json alone = small_run(scratch / "alone");
          alone["graph"]["strategy"] = {{"type", "Local"}};
          alone["optimizer"] = optimizer;
          alone["data"]["batch_size"] = batch;
          alone["data"]["shuffle"] = false;
          alone["train"] = {{"epochs", epochs}};
          node_of(alone, "drop")["p"] = 0;
          node_of(alone, "hidden")["bias"] = false;  // batch norm takes it out again: only rounding would be left of it
          if (!is_plain) {
            alone["train"]["clip_norm"] = 0.5;
            alone["data"]["drop_last"] = batch < 68;
            node_of(alone, "hidden")["frozen"] = true;
          }
          Json together = alone;
          together["output"] = (scratch / "together").string();
          together["train"].erase("epochs");
          together["graph"]["strategy"] = federated(1, 1, {{"local", {{"epochs", epochs}}}});
          expect_alike(weights_after(together), weights_after(alone));
        }
      }
    }
  }
}

TEST(FederatedTrain, ATiedLayerIsOneParameterOfClients) {
  const ScratchFolder scratch;
  Json alone = Json::parse(R"({"seed": 5, "data": {"source": "points", "batch_size": 10, "shuffle": false},
    "graph": {"inputs": {"point": [4]}, "nodes": [
        {"id": "first", "op": "linear", "inputs": ["point"], "units": 4},
        {"id": "act", "op": "tanh", "inputs": ["first"]},
        {"id": "second", "op": "linear", "inputs": ["act"], "units": 4, "tied": "first"},
        {"id": "logits", "op": "linear", "inputs": ["second"], "units": 3}], "outputs": ["logits"]},
    "loss": "cross_entropy", "optimizer": {"name": "sgd", "lr": 0.1}, "train": {"epochs": 2}})");
  alone["output"] = (scratch / "alone").string();
  Json together = alone;
  together["output"] = (scratch / "together").string();
  together["train"] = Json::object();
  together["graph"]["strategy"] = federated(1, 1, {{"local", {{"epochs", 2}}}});
  expect_alike(weights_after(together), weights_after(alone));
}

TEST(FederatedTrain, FedProxPullsAClientBackToTheServersModel) {
  const ScratchFolder scratch;
  constexpr double kMu = 0.7;
  constexpr double kRate = 0.1;
  Json document = Json::parse(R"({"seed": 5, "data": {"source": "points", "batch_size": 16, "shuffle": false},
    "graph": {"inputs": {"point": [4]}, "nodes": [{"id": "logits", "op": "linear", "inputs": ["point"], "units": 3}],
              "outputs": ["logits"]},
    "loss": "cross_entropy", "train": {}})");
  document["optimizer"] = {{"name", "sgd"}, {"lr", kRate}};
  document["output"] = (scratch / "run").string();
  document["graph"]["strategy"] =
      federated(1, 1, {{"aggregation", {{"method", "FedProx"}, {"mu", kMu}}}, {"local", {{"steps", 12}}}});
  const ParameterSet found = weights_after(document);

  // The same by hand.
  const auto run = read_small(document);
  const DataSplits data = open_data(run);
  GraphModule net(run.graph, run.seed);
  std::vector<torch::Tensor> at_first;
  for (const torch::Tensor& parameter : net.parameters()) at_first.push_back(parameter.detach().clone());
  std::int64_t row = 0;
  for (int step = 0; step < 12; ++step) {
    std::vector<std::int64_t> numbers;
    for (; std::ssize(numbers) < 16 && row < data.train->size(); ++row) numbers.push_back(row);
    if (row == data.train->size()) row = 0;
    const DataRows rows = data.train->rows(numbers);
    torch::Tensor loss = torch::nn::functional::cross_entropy(net.forward(rows.inputs.front()), rows.target);
    for (std::size_t i = 0; i < at_first.size(); ++i)
      loss = loss + kMu / 2 * (net.parameters()[i] - at_first[i]).square().sum();
    loss.backward();
    const torch::NoGradGuard no_gradients;
    for (torch::Tensor& parameter : net.parameters()) {
      parameter.sub_(parameter.grad(), kRate);
      parameter.mutable_grad().reset();
    }
  }
  ParameterSet expected;
  add_module(expected, net);
  EXPECT_LT(largest_difference(found, expected), 1e-5);
  document["graph"]["strategy"]["aggregation"] = {{"method", "FedAvg"}};
  EXPECT_GT(largest_difference(weights_after(document), expected), 1e-2);
}

TEST(FederatedTrain, AClientMayHaveReplicas) {
  const ScratchFolder scratch;
  const Json replicas = data_parallel(2, {{"logical_shards", 4}});
  for (const Json& optimizer :
       {Json{{"name", "sgd"}, {"lr", 0.05}, {"momentum", 0.9}}, Json{{"name", "adam"}, {"lr", 0.01}}}) {
    Json alone = small_run(scratch / "alone");
    alone["graph"]["strategy"] = replicas;
    alone["optimizer"] = optimizer;
    alone["data"]["shuffle"] = false;
    alone["train"] = {{"epochs", 2}, {"clip_norm", 1}};
    node_of(alone, "drop")["p"] = 0;
    Json together = alone;
    together["output"] = (scratch / "together").string();
    together["train"].erase("epochs");
    together["graph"]["strategy"] = federated(1, 1, {{"local", {{"epochs", 2}}}, {"inner", replicas}});
    const ParameterSet found = weights_after(together);
    const ParameterSet expected = weights_after(alone);
    for (const char* name : {"hidden.weight", "body.wide.weight", "logits.bias", "body.norm.running_mean",
                             "body.norm.running_var", "body.norm.num_batches_tracked"})
      EXPECT_TRUE(std::ranges::equal(found.at(name).bytes(), expected.at(name).bytes())) << name;
  }
  // With replicas or without, a client learns the same, FedProx included.
  for (const double mu : {0.0, 0.5}) {
    Json document =
        federated_run(scratch / "run", federated(3, 2, {{"aggregation", {{"method", "FedProx"}, {"mu", mu}}}}));
    document["graph"]["nodes"][1]["nodes"][0] = {{"id", "norm"}, {"op", "tanh"}, {"inputs", {"hidden"}}};
    node_of(document, "drop")["p"] = 0;
    const ParameterSet one = weights_after(document);
    const double loss = train_small(read_small(document)).told->of<event::StepEnded>().back().loss;
    document["graph"]["strategy"]["inner"] = data_parallel(3);
    EXPECT_LT(largest_difference(weights_after(document), one), 1e-5);
    EXPECT_NEAR(train_small(read_small(document)).told->of<event::StepEnded>().back().loss, loss, 1e-5);
  }
}

TEST(FederatedTrain, ClientsWithReplicasGoAstrayAsOthersDo) {
  const ScratchFolder scratch;
  for (const Json& inner :
       {Json{{"type", "Local"}}, data_parallel(2), data_parallel(2, {{"compression", "Float16"}})}) {
    SCOPED_TRACE(inner.dump());
    Json document =
        federated_run(scratch / "run",
                      federated(3, 2, {{"inner", inner}, {"round", {{"method", "Synchronous"}, {"too_few", "end"}}}}));
    document["optimizer"] = {{"name", "sgd"}, {"lr", 1e30}};
    std::string why;
    try {
      (void)train_small(read_small(document));
    } catch (const Error& error) {
      why = error.what();
    }
    EXPECT_THAT(why, HasSubstr("from 3 that were asked (0 failed, 3 refused)"));
    EXPECT_THAT(why, HasSubstr("is the learning rate too large?"));
  }
}

// Exported networks have such masks among their buffers.
TEST(FederatedTrain, ABufferMayHaveInfiniteNumbers) {
  const ScratchFolder scratch;
  torch::jit::Module script("Masked");
  script.register_buffer("mask", torch::tensor({0.0F, -INFINITY, 0.0F, 0.0F, -INFINITY, 0.0F}));
  script.define("def forward(self, x):\n  return torch.softmax(x + self.mask, 1)\n");
  script.save((scratch / "masked.pt").string());
  for (const Json& inner : {Json{{"type", "Local"}}, data_parallel(2)}) {
    for (const Json& compression : {Json("NoCompression"), Json("Float16"), Json{{"TopK", 0.5}}}) {
      for (const bool is_personal : {false, true}) {
        SCOPED_TRACE(inner.dump() + compression.dump() + (is_personal ? " personal" : ""));
        Json document =
            federated_run(scratch / "run", federated(3, 3, {{"inner", inner}, {"compression", compression}}));
        document["graph"]["nodes"][1]["nodes"][0] = {
            {"id", "norm"}, {"op", "torchscript"}, {"inputs", {"hidden"}}, {"file", (scratch / "masked.pt").string()}};
        if (is_personal) document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
        const ParameterSet first = weights_at_first(document);
        const ParameterSet after = weights_after(document);
        EXPECT_TRUE(std::ranges::equal(after.at("body.norm.mask").bytes(), first.at("body.norm.mask").bytes()));
        for (const char* name : {"hidden.weight", "body.wide.weight"})
          EXPECT_FALSE(std::ranges::equal(after.at(name).bytes(), first.at(name).bytes())) << name;
      }
    }
  }
}

TEST(FederatedTrain, GroupsLearnInTheirOwnWay) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(2, 1));
  document["data"]["rows"] = 40;  // as many for each, and so the same weight
  document["clients"] = {{{"count", 1},
                          {"tags", {"quick"}},
                          {"batch_size", 5},
                          {"epochs", 2},
                          {"optimizer", {{"name", "adam"}, {"lr", 0.01}}},
                          {"schedule", "cosine"}},
                         {{"optimizer", {{"name", "sgd"}, {"lr", 0}}}}};
  const ParameterSet first = weights_at_first(document);
  const ParameterSet both = weights_after(document);
  document["graph"]["strategy"]["client_selection"] = {{"method", "ByCapability"}, {"required_tags", {"quick"}}};
  const ParameterSet one = weights_after(document);
  EXPECT_GT(largest_difference(one, first), 0.01);
  // What the other does not change halves what the one does.
  for (const char* name : {"hidden.weight", "body.wide.weight", "logits.bias"}) {
    const auto at_first = first.at(name).values<float>();
    for (std::size_t i = 0; i < at_first.size(); ++i) {
      EXPECT_NEAR(both.at(name).values<float>()[i], (at_first[i] + one.at(name).values<float>()[i]) / 2, 1e-6) << name;
    }
  }
  // Each of its settings counts.
  for (const char* key : {"batch_size", "epochs", "optimizer", "schedule"}) {
    Json other = document;
    other["clients"][0].erase(key);
    EXPECT_GT(largest_difference(weights_after(other), one), 1e-4) << key;
  }
}

TEST(FederatedTrain, AGroupsRateIsTimesTheFactorOfALayerWhateverTheRunsOwnRateIs) {
  const ScratchFolder scratch;
  for (const bool has_replicas : {false, true}) {
    Json document = federated_run(scratch / "run", federated(2, 1));
    if (has_replicas) document["graph"]["strategy"]["inner"] = data_parallel(2);
    node_of(document, "hidden")["lr_factor"] = 0;
    document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};
    document["clients"] = {{{"optimizer", {{"name", "sgd"}, {"lr", 0.5}}}}};
    const ParameterSet first = weights_at_first(document);
    const ParameterSet after = weights_after(document);
    EXPECT_TRUE(std::ranges::equal(after.at("hidden.weight").bytes(), first.at("hidden.weight").bytes()));
    EXPECT_FALSE(std::ranges::equal(after.at("logits.weight").bytes(), first.at("logits.weight").bytes()));
  }
}

// --- whole runs ---

struct Case {
  std::string name;
  Json strategy = Json::object();
  Json rest = Json::object();  // of the run file
};

Json run_of(const Case& its, const std::filesystem::path& output, int rounds, int threads) {
  Json document = federated_run(
      output,
      federated(6, rounds, {{"client_selection", {{"method", "Random"}, {"fraction", 0.5}}}, {"threads", threads}}));
  document["graph"]["strategy"].update(its.strategy);
  for (const auto& [key, value] : its.rest.items()) {
    if (value.is_object() && document.contains(key))
      document[key].update(value);
    else
      document[key] = value;
  }
  if (its.name.find("personal") != std::string::npos) document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
  return document;
}

const std::vector<Case> kCases{
    {"plain"},
    {"personal layers", {{"aggregation", {{"method", "FedAvgM"}}}}},
    {"personal layers that clients evaluate",
     {{"compression", {{"TopK", 0.3}}}},
     {{"data", {{"client_test", 0.3}}}, {"train", {{"evaluate_every", 2}}}}},
    {"replicas with personal layers",
     {{"inner", data_parallel(2, {{"compression", "Float16"}})},
      {"aggregation", {{"method", "FedProx"}, {"mu", 0.1}}}}},
    {"adaptive", {{"aggregation", {{"method", "FedAdam"}, {"lr", 0.01}}}, {"compression", "Float16"}}},
    {"by loss",
     {{"client_selection", {{"method", "PowerOfChoice"}, {"fraction", 0.34}, {"candidates", 0.67}}}},
     {{"data", {{"client_split", {{"method", "Dirichlet"}, {"alpha", 0.5}}}}}}},
    {"robust",
     {{"client_selection", {{"method", "All"}}}, {"aggregation", {{"method", "MultiKrum"}, {"byzantine", 1}}}}},
    {"stragglers",
     {{"round",
       {{"method", "Synchronous"},
        {"replies", 2},
        {"ask_beyond", 1},
        {"late", {{"method", "Discount"}}},
        {"max_repeats", 50}}}},
     {{"clients",
       {{{"count", 3}, {"speed", {{"method", "Uniform"}, {"min", 1}, {"max", 50}}}, {"dropout", 0.2}},
        {{"failure", 0.2}}}}}},
    {"asynchronous with personal layers",
     {{"round", {{"method", "Buffered"}, {"replies", 2}, {"concurrency", 4}}}},
     {{"clients", {{{"speed", {{"method", "LogNormal"}, {"median", 10}, {"sigma", 1}}}}}}}},
};

TEST(FederatedTrain, TheSameBitsOnAnyNumberOfThreadsAndAfterAnInterruption) {
  for (const Case& its : kCases) {
    SCOPED_TRACE(its.name);
    const ScratchFolder scratch;
    const ParameterSet once =
        arrays_in(train_small(read_small(run_of(its, scratch / "a", 5, 1))).result.last_checkpoint);
    EXPECT_EQ(arrays_in(train_small(read_small(run_of(its, scratch / "b", 5, 3))).result.last_checkpoint), once);
    for (const std::int64_t at : {1, 2, 4}) {
      SCOPED_TRACE("interrupted in round " + std::to_string(at));
      const std::filesystem::path folder = scratch / ("c" + std::to_string(at));
      const auto run = read_small(run_of(its, folder, 5, 2));
      const Trained begun = train_small(run, {.interrupt_at = at});
      EXPECT_EQ(begun.result.step, at);
      const Trained ended = train_small(run, {.resume = true});
      EXPECT_EQ(ended.result.step, 5);
      EXPECT_EQ(arrays_in(ended.result.last_checkpoint), once);
    }
  }
}

TEST(FederatedTrain, TheResolvedRunIsTheSameRun) {
  for (const Case& its : kCases) {
    SCOPED_TRACE(its.name);
    const ScratchFolder scratch;
    const Trained trained = train_small(read_small(run_of(its, scratch / "run", 3, 2)));
    Json resolved = Json::parse(content_of(scratch / "run" / "run.json"));
    EXPECT_EQ(*read_small(resolved).resolved, resolved);
    resolved["output"] = (scratch / "again").string();
    EXPECT_EQ(arrays_in(train_small(read_small(resolved)).result.last_checkpoint),
              arrays_in(trained.result.last_checkpoint));
  }
}

// How many clients there are is in the strategy alone, unless groups count them.
TEST(FederatedTrain, TheResolvedRunCanBeGivenMoreClients) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(6, 1));
  const auto counts_with = [&](const Json& clients) {
    if (!clients.is_null()) document["clients"] = clients;
    Json resolved = *read_small(document).resolved;
    resolved["graph"]["strategy"]["num_clients"] = 8;
    std::vector<std::int64_t> counts;
    for (const ClientGroup& group : read_small(resolved).clients) counts.push_back(group.count);
    return counts;
  };
  EXPECT_EQ(counts_with(nullptr), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(counts_with({{{"speed", 3}}}), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(counts_with({{{"count", 4}}, {{"speed", 3}}}), (std::vector<std::int64_t>{4, 4}));
  EXPECT_THAT(usage_error([&] {
                (void)counts_with({{{"count", 4}}, {{"count", 2}}});
              }),
              HasSubstr("the groups have 6 clients, and num_clients is 8"));
}

TEST(FederatedTrain, TheScheduleOfTheRateReachesItsEndAfterTheLastRound) {
  const ScratchFolder scratch;
  const auto rates_with = [&](const char* schedule) {
    Json document = federated_run(scratch / "run", federated(3, 4));
    document["optimizer"] = {{"name", "sgd"}, {"lr", 1}};
    document["schedule"] = {{"name", schedule}};
    std::vector<double> rates;
    for (const auto& round : train_small(read_small(document)).told->of<event::StepEnded>()) rates.push_back(round.lr);
    return rates;
  };
  const auto linear = rates_with("linear");
  const auto cosine = rates_with("cosine");
  ASSERT_EQ(linear.size(), 4U);
  ASSERT_EQ(cosine.size(), 4U);
  for (std::size_t round = 0; round < 4; ++round) {
    EXPECT_NEAR(linear[round], 1 - static_cast<double>(round) / 4, 1e-12);
    EXPECT_NEAR(cosine[round], (1 + std::cos(std::acos(-1.0) * static_cast<double>(round) / 4)) / 2, 1e-12);
  }
}

TEST(FederatedTrain, EveryRuleLearns) {
  const ScratchFolder scratch;
  const std::vector<Json> rules{{{"method", "FedAvg"}},
                                {{"method", "FedProx"}, {"mu", 0.01}},
                                {{"method", "FedYogi"}, {"beta1", 0.9}, {"beta2", 0.99}, {"tau", 0.001}, {"lr", 0.05}},
                                {{"method", "FedAvgM"}},
                                {{"method", "FedAdam"}, {"lr", 0.05}},
                                {{"method", "FedAdagrad"}},
                                {{"method", "Median"}},
                                {{"method", "TrimmedMean"}},
                                {{"method", "Krum"}, {"byzantine", 1}},
                                {{"method", "MultiKrum"}, {"byzantine", 1}},
                                {{"method", "Bulyan"}, {"byzantine", 1}},
                                {{"method", "NormClipping"}, {"max_norm", 1}}};
  for (const Json& rule : rules) {
    SCOPED_TRACE(rule.dump());
    Json document = federated_run(scratch / "run", federated(8, 15, {{"aggregation", rule}}));
    document["data"]["rows"] = 400;
    document["train"] = {{"evaluate_every", 15}};
    const auto evaluations = train_small(read_small(document)).told->of<event::EvaluationEnded>();
    ASSERT_EQ(evaluations.size(), 1u);
    EXPECT_GT(evaluations.front().metrics.front().value, 0.7);
  }
}

TEST(FederatedTrain, HostileClientsSpoilAMeanAndNotWhatBearsThem) {
  const ScratchFolder scratch;
  const auto accuracy_with = [&](const Json& rule) {
    Json document = federated_run(scratch / "run", federated(10, 15, {{"aggregation", rule}}));
    document["data"]["rows"] = 400;
    document["train"] = {{"evaluate_every", 15}};
    document["clients"] = {{{"count", 8}}, {{"update_factor", -10}}};
    return train_small(read_small(document)).told->of<event::EvaluationEnded>().back().metrics.front().value;
  };
  EXPECT_THROW((void)accuracy_with({{"method", "FedAvg"}}), Error);  // in the end there are no numbers left
  EXPECT_GT(accuracy_with({{"method", "TrimmedMean"}}), 0.7);
  EXPECT_GT(accuracy_with({{"method", "Krum"}, {"byzantine", 2}}), 0.7);
  EXPECT_GT(accuracy_with({{"method", "MultiKrum"}, {"byzantine", 2}}), 0.7);
}

// --- layers of one's own ---

TEST(FederatedTrain, PersonalLayersStayWithTheirClient) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(3, 4));
  document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
  document["data"]["client_test"] = 0.25;
  const Trained trained = train_small(read_small(document));
  const ParameterSet arrays = arrays_in(trained.result.last_checkpoint);
  std::vector<ParameterSet> of_clients;
  for (int client = 0; client < 3; ++client) of_clients.push_back(weights_in(trained.result.last_checkpoint, client));
  for (const char* name : {"body.wide.weight", "body.norm.running_mean"}) {
    for (int client = 0; client < 3; ++client) {
      const NamedArray& own = arrays.at("client/" + std::to_string(client) + "/state/" + name);
      EXPECT_TRUE(std::ranges::equal(of_clients[static_cast<std::size_t>(client)].at(name).bytes(), own.bytes()));
    }
    EXPECT_FALSE(std::ranges::equal(of_clients[0].at(name).bytes(), of_clients[1].at(name).bytes())) << name;
    EXPECT_TRUE(std::ranges::equal(arrays.at(name).bytes(), of_clients[0].at(name).bytes())) << name;
  }
  EXPECT_TRUE(std::ranges::equal(of_clients[2].at("hidden.weight").bytes(), of_clients[0].at("hidden.weight").bytes()));
  EXPECT_EQ(usage_error([&] { (void)weights_in(trained.result.last_checkpoint, 3); }),
            "there is no client 3, expected 0 to 2");
  // The server has no whole model, so clients tell the best.
  EXPECT_EQ(trained.result.best.of, "clients accuracy");
  for (const auto& evaluation : trained.told->of<event::EvaluationEnded>())
    EXPECT_TRUE(evaluation.split == "clients" || !evaluation.is_best);
}

TEST(FederatedTrain, SaysWhyAClientHasNoLayersOfItsOwn) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run",
                                federated(6, 1, {{"client_selection", {{"method", "Random"}, {"fraction", 0.34}}}}));
  const auto shared = train_small(read_small(document)).result.last_checkpoint;
  EXPECT_EQ(usage_error([&] { (void)weights_in(shared, 5); }),
            "the run has no layers that stay on clients: all of them have the server's");
  EXPECT_EQ(usage_error([&] { (void)weights_in(shared, 6); }), "there is no client 6, expected 0 to 5");
  document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
  const auto personal = train_small(read_small(document)).result.last_checkpoint;
  int never_asked = 0;
  for (int client = 1; client < 6; ++client) {
    const std::string why = usage_error([&] { (void)weights_in(personal, client); });
    if (why == "client " + std::to_string(client) + " was never asked, so that it has no layers of its own yet")
      ++never_asked;
    else
      EXPECT_EQ(why, "(no error)");
  }
  EXPECT_GE(never_asked, 3);  // two were asked
}

TEST(FederatedTrain, FedProxLeavesPersonalLayersAlone) {
  // With a client's shared layers frozen by the rate, only its own move: as far whatever mu is.
  const ScratchFolder scratch;
  for (const Json& inner : {Json{{"type", "Local"}}, data_parallel(2)}) {
    std::vector<ParameterSet> found;
    for (const double mu : {0.0, 5.0}) {
      Json document = federated_run(
          scratch / "run", federated(2, 1, {{"aggregation", {{"method", "FedProx"}, {"mu", mu}}}, {"inner", inner}}));
      document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
      node_of(document, "hidden")["lr_factor"] = 0;
      node_of(document, "logits")["lr_factor"] = 0;
      found.push_back(weights_after(document, 1));
    }
    EXPECT_LT(largest_difference(found[0], found[1]), 1e-6);
    Json document = federated_run(scratch / "run", federated(2, 1));
    EXPECT_GT(largest_difference(found[0], weights_at_first(document)), 1e-3);
  }
}

TEST(FederatedTrain, ClientsTellTheBestWhereTheServerHasNoRows) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(3, 30));
  document["data"]["test_rows"] = 0;
  document["data"]["client_test"] = 0.25;
  document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};
  document["train"] = {{"early_stopping", {{"patience", 2}}}};
  const Trained trained = train_small(read_small(document));
  EXPECT_EQ(trained.result.best.of, "clients accuracy");
  EXPECT_GT(trained.result.best.step, 0);
  EXPECT_EQ(trained.result.reason, event::RunEnded::Reason::stopped_early);
  for (const auto& evaluation : trained.told->of<event::EvaluationEnded>()) EXPECT_EQ(evaluation.split, "clients");
  // Where the server has some, it tells.
  document["data"]["test_rows"] = 30;
  EXPECT_EQ(train_small(read_small(document)).result.best.of, "test accuracy");
}

TEST(FederatedTrain, RefusesToStopEarlyWhereNothingIsEvaluated) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(8, 2));
  document["data"]["rows"] = 8;
  document["data"]["test_rows"] = 0;
  document["train"] = {{"early_stopping", {{"patience", 2}}}};
  const auto why = [&] { return usage_error([&] { (void)train_small(read_small(document)); }); };
  EXPECT_EQ(
      why(),
      "train.early_stopping: nothing is ever evaluated, because the data has no rows to validate or to test with, "
      "and clients keep none for that (data.client_test)");
  document["data"]["client_test"] = 0.2;
  EXPECT_EQ(why(),
            "train.early_stopping: nothing that tells the best is ever evaluated, because no client has rows left to "
            "evaluate with");
  EXPECT_FALSE(std::filesystem::exists(scratch / "run"));
}

TEST(FederatedTrain, ClientsWithOneRowHaveNoneToEvaluateWith) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(8, 2));
  document["data"]["rows"] = 8;
  document["data"]["client_test"] = 0.2;
  document["graph"]["nodes"][1]["nodes"][0] = {{"id", "norm"}, {"op", "tanh"}, {"inputs", {"hidden"}}};
  const Trained trained = train_small(read_small(document));
  EXPECT_EQ(trained.result.step, 2);
  std::vector<std::string> warnings;
  for (const auto& warned : trained.told->of<event::Warned>()) warnings.push_back(warned.sentence);
  EXPECT_THAT(warnings, Contains(HasSubstr("each of 8 clients has one row")));
}

// --- what does not fit ---

TEST(FederatedTrain, RefusesTheCheckpointOfAnotherRun) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(6, 4, {{"compression", {{"TopK", 0.5}}}}));
  document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
  (void)train_small(read_small(document), {.interrupt_at = 2});
  Json fewer = document;
  fewer["graph"]["strategy"]["num_clients"] = 4;
  EXPECT_THAT(usage_error([&] { (void)train_small(read_small(fewer), {.resume = true}); }),
              HasSubstr("is of a client that is not there"));
  Json alone = small_run(scratch / "run");
  EXPECT_THAT(usage_error([&] { (void)train_small(read_small(alone), {.resume = true}); }),
              HasSubstr("the checkpoint is of a federated run, and this is Local"));
  // Nothing is lost by that.
  EXPECT_EQ(train_small(read_small(document), {.resume = true}).result.step, 4);
  // Nor of a run without clients.
  Json local = small_run(scratch / "local");
  (void)train_small(read_small(local), {.interrupt_at = 2});
  Json clients = federated_run(scratch / "local", federated(6, 4));
  EXPECT_THAT(usage_error([&] { (void)train_small(read_small(clients), {.resume = true}); }),
              HasSubstr("the checkpoint is not of this run"));
}

TEST(FederatedTrain, SaysWhatOfTheStrategyHasChangedSinceTheCheckpoint) {
  struct Change {
    Json strategy;
    std::string told;  // nothing, where it is empty
  };
  const std::vector<Change> changes{
      {{{"rounds", 4}}, ""},
      {{{"threads", 1}}, ""},
      {{{"max_update_norm", 0}}, ""},  // as it was
      {{{"local", {{"epochs", 1}}}}, ""},
      {{{"aggregation", {{"method", "FedAvgM"}}}}, "aggregation"},
      {{{"local", {{"epochs", 2}}}}, "local"},
      {{{"compression", "Float16"}}, "compression"},
      {{{"round", {{"method", "Synchronous"}, {"replies", 3}}}}, "round"},
      {{{"client_selection", {{"method", "Random"}, {"fraction", 0.5}}}}, "client_selection"},
      {{{"inner", data_parallel(2)}}, "inner"},
      {{{"max_update_norm", 1000}}, "max_update_norm"},
      {{{"num_clients", 7}}, "num_clients"},
      {{{"threads", 1}, {"local", {{"steps", 2}}}, {"max_update_norm", 1000}}, "local, graph.strategy.max_update_norm"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.strategy.dump());
    const ScratchFolder scratch;
    (void)train_small(read_small(federated_run(scratch / "run", federated(6, 3))), {.interrupt_at = 1});
    const Trained resumed =
        train_small(read_small(federated_run(scratch / "run", federated(6, 3, change.strategy))), {.resume = true});
    auto warned = resumed.told->of<event::Warned>();
    std::erase_if(warned,
                  [](const event::Warned& its) { return its.sentence.find("has changed") == std::string::npos; });
    ASSERT_EQ(warned.size(), change.told.empty() ? 0U : 1U);
    if (change.told.empty()) continue;
    EXPECT_EQ(warned[0].sentence,
              "the run file has changed since the checkpoint was written: graph.strategy." + change.told);
  }
}

TEST(FederatedTrain, GoesOnWithAnotherRuleOfTheServer) {
  const ScratchFolder scratch;
  const Json before{{"aggregation", {{"method", "FedAvgM"}}}};
  const Json after{{"aggregation", {{"method", "FedAdam"}, {"lr", 0.01}}}};
  (void)train_small(read_small(federated_run(scratch / "run", federated(6, 3, before))), {.interrupt_at = 2});
  const Trained resumed =
      train_small(read_small(federated_run(scratch / "run", federated(6, 3, after))), {.resume = true});
  EXPECT_EQ(resumed.result.step, 3);
  std::vector<std::string> warnings;
  for (const auto& warned : resumed.told->of<event::Warned>()) warnings.push_back(warned.sentence);
  EXPECT_THAT(
      warnings,
      Contains("the server's rule was FedAvgM before, and is FedAdam from now on: what it remembers begins anew"));
}

TEST(FederatedTrain, BeginsWithTheWeightsThatItIsGiven) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "first", federated(3, 2));
  const Trained first = train_small(read_small(document));
  document["output"] = (scratch / "second").string();
  document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};
  node_of(document, "drop")["p"] = 0;
  const Trained second = train_small(read_small(document), {.from = first.result.last_checkpoint});
  const ParameterSet before = weights_in(first.result.last_checkpoint);
  const ParameterSet after = weights_in(second.result.last_checkpoint);
  for (const char* name : {"hidden.weight", "body.wide.bias", "logits.weight"})
    EXPECT_TRUE(std::ranges::equal(before.at(name).bytes(), after.at(name).bytes())) << name;
}

TEST(FederatedTrain, FindsWhatCannotBeCarriedOutWhereTheFileIsRead) {
  const ScratchFolder scratch;
  const auto why = [&](const Json& strategy) {
    return usage_error([&] { (void)read_small(federated_run(scratch / "run", federated(6, 2, strategy))); });
  };
  const Json tagged{{"method", "ByCapability"}, {"required_tags", {"gpu"}}};
  EXPECT_THAT(why({{"client_selection", tagged}}), HasSubstr("graph.strategy: none of 6 clients has all of"));
  EXPECT_THAT(why({{"aggregation", {{"method", "Krum"}, {"byzantine", 2}}}}), HasSubstr("graph.strategy: "));
  EXPECT_THAT(why({{"round", {{"method", "Synchronous"}, {"replies", 7}}}}),
              HasSubstr("graph.strategy.round.replies: "));
  EXPECT_THAT(why({{"round", {{"method", "Synchronous"}, {"replies", 5}}},
                   {"client_selection", {{"method", "Random"}, {"fraction", 0.5}}}}),
              HasSubstr("graph.strategy: a round needs 5 updates, and asks 3 clients"));
  EXPECT_THAT(why({{"round", {{"method", "Buffered"}, {"replies", 2}}},
                   {"client_selection", {{"method", "PowerOfChoice"}, {"fraction", 0.2}}}}),
              HasSubstr("graph.strategy: PowerOfChoice"));
  EXPECT_THAT(usage_error([&] {
                Json document = federated_run(scratch / "run", federated(6, 2));
                document["data"]["client_split"] = {{"method", "Files"}};
                (void)read_small(document);
              }),
              HasSubstr("data.client_split: expected a file for each of 6 clients, found 1"));
  EXPECT_THAT(why({{"aggregation", {{"method", "TrimmedMean"}, {"fraction", 1e-30}}}}),
              HasSubstr("expected at least 1e+30 updates, of which 1e-30 leaves one out, found 6"));
  EXPECT_THAT(why({{"inner", data_parallel(99)}}),
              HasSubstr("data.batch_size: expected a row for each of 99 replicas"));
  EXPECT_THAT(usage_error([&] {
                Json document = federated_run(scratch / "run", federated(6, 2, {{"inner", data_parallel(3)}}));
                document["clients"] = {{{"count", 2}}, {{"batch_size", 2}}};
                (void)read_small(document);
              }),
              HasSubstr("clients[1].batch_size: expected a row for each of 3 replicas, found 2"));
  EXPECT_THAT(usage_error([&] {
                Json document = federated_run(scratch / "run", federated(6, 2));
                document["data"]["client_split"] = {{"method", "Shards"}, {"per_client", 1000000}};
                (void)train_small(read_small(document));
              }),
              HasSubstr("data.client_split: "));
}

TEST(FederatedTrain, WarnsOfRoundsThatWillBeRepeated) {
  const ScratchFolder scratch;
  Json document = federated_run(scratch / "run", federated(6, 2));
  const auto warnings = [&] { return read_small(document).warnings; };
  EXPECT_TRUE(warnings().empty());
  document["clients"] = {{{"dropout", 0.1}}};
  EXPECT_THAT(warnings(), Contains(HasSubstr("such rounds are repeated")));
  // There is nobody beyond all of them.
  document["graph"]["strategy"]["client_selection"] = {{"method", "Random"}, {"fraction", 1}};
  document["graph"]["strategy"]["round"] = {{"method", "Synchronous"}, {"ask_beyond", 2}};
  EXPECT_THAT(warnings(), Contains(HasSubstr("such rounds are repeated")));
  document["graph"]["strategy"]["round"] = {{"method", "Synchronous"}, {"replies", 4}};
  EXPECT_TRUE(warnings().empty());
  document["clients"] = {{{"count", 6}}};
  document["graph"]["strategy"]["round"] = {{"method", "Synchronous"}, {"deadline", 4}};
  EXPECT_THAT(warnings(), Contains(HasSubstr("its deadline may leave some out")));
  document["graph"]["strategy"].erase("round");
  document["graph"]["strategy"]["max_update_norm"] = 5;
  EXPECT_THAT(warnings(), Contains(HasSubstr("max_update_norm may refuse some")));
}

TEST(FederatedTrain, WarnsOfAPullThatIsTooStrong) {
  const ScratchFolder scratch;
  Json document =
      federated_run(scratch / "run", federated(6, 2, {{"aggregation", {{"method", "FedProx"}, {"mu", 3}}}}));
  document["optimizer"] = {{"name", "sgd"}, {"lr", 0.5}};
  EXPECT_TRUE(read_small(document).warnings.empty());
  document["clients"] = {{{"count", 3}}, {{"optimizer", {{"name", "sgd"}, {"lr", 1}}}}};
  EXPECT_THAT(read_small(document).warnings, Contains(HasSubstr("with a learning rate of 1 and mu 3")));
  document["clients"][1]["optimizer"]["name"] = "adam";
  EXPECT_TRUE(read_small(document).warnings.empty());
}

TEST(FederatedTrain, WarnsOfBatchesOfOneRowAndSaysWhatHelps) {
  // Of 23 rows the two clients have 12 and 11.
  const ScratchFolder scratch;
  const auto warning_with = [&](int rows, int batch, bool drop_last, const Json& local) -> std::string {
    Json document = federated_run(scratch / "run", federated(2, 1, {{"local", local}}));
    document["data"]["rows"] = rows;
    document["data"]["batch_size"] = batch;
    document["data"]["drop_last"] = drop_last;
    document["graph"]["strategy"]["round"] = {{"method", "Synchronous"}, {"replies", 1}, {"too_few", "end"}};
    const auto told = std::make_shared<Told>();
    Events events;
    events.add(told);
    try {
      (void)train(read_small(document), events, {});
    } catch (const Error&) {  // of clients that fail, as the warning says
    }
    for (const event::Warned& warned : told->of<event::Warned>()) {
      if (warned.sentence.find("(batch_norm)") != std::string::npos) return warned.sentence;
    }
    return "";
  };
  const Json epoch{{"epochs", 1}};
  EXPECT_EQ(warning_with(23, 5, false, epoch),
            "'body.norm' (batch_norm) needs at least 2 rows, and 1 of 2 clients have a batch of 1: these will fail (1 "
            "at the end of an epoch, where \"drop_last\": true in data leaves it out)");
  EXPECT_EQ(warning_with(23, 5, true, epoch), "");
  EXPECT_EQ(warning_with(23, 5, false, {{"steps", 2}}), "");  // it never comes to that batch
  for (const bool drop_last : {false, true}) {
    EXPECT_THAT(warning_with(3, 5, drop_last, epoch),
                HasSubstr("1 of 2 clients have a batch of 1: these will fail (1 with one row in all, which drop_last "
                          "keeps: fewer clients"));
    EXPECT_THAT(warning_with(23, 1, drop_last, epoch), HasSubstr("these will fail (2 with a batch_size of 1)"));
  }
}

TEST(FederatedTrain, TellsBeforehandWhatTravels) {
  const ScratchFolder scratch;
  for (const Json& compression : {Json(nullptr), Json("Float16"), Json{{"TopK", 0.3}}}) {
    SCOPED_TRACE(compression.dump());
    Json document = federated_run(scratch / "run", federated(6, 1));
    if (!compression.is_null()) document["graph"]["strategy"]["compression"] = compression;
    document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
    const auto run = read_small(document);
    double moved = 0;
    const auto steps = train_small(run).told->of<event::StepEnded>();
    for (const NamedNumber& count : steps.front().counts) {
      if (count.name == "bytes_up" || count.name == "bytes_down") moved += count.value;
    }
    EXPECT_EQ(footprint_of(run).moved, moved);
    // A buffer that is filled by the same clients twice.
    document["graph"]["strategy"]["round"] = {{"method", "Buffered"}, {"replies", 12}};
    EXPECT_EQ(footprint_of(read_small(document)).moved, 2 * moved);
  }
}

}  // namespace
}  // namespace tutti::federated_train_test
