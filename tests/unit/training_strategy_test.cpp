#include <tutti/strategy/training_strategy.hpp>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/sample.hpp>
#include <support/usage_error.hpp>

namespace tutti::strategy {
namespace {

using nlohmann::ordered_json;
using testing::usage_error;

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TrainingStrategy from_json(std::string_view text) {
  return training_strategy_from_json(JsonDocument::parse(text, "run.json").root());
}

std::string json_error(std::string_view text) {
  return usage_error([&] { from_json(text); });
}

std::string validation_error(const TrainingStrategy& strategy) {
  return usage_error([&] { validate(strategy); });
}

struct Forms {
  TrainingStrategy strategy;
  std::string json;
  std::string text;
};

std::vector<Partition> two_partitions() {
  return {{.node_ids = {"conv1", "body.conv2"}, .target = WorkerId{"w0"}}, {.node_ids = {"fc"}, .target = Tag{"gpu"}}};
}

DataParallel two_replicas(GradientAggregation aggregation = AllReduce{}) {
  return {.num_replicas = 2, .aggregation = std::move(aggregation)};
}

// Every alternative of every kind, and every field of tutti's own.
const std::vector<Forms>& every_form() {
  const std::string partitions = R"("partitions":[{"node_ids":["conv1","body.conv2"],"target":{"WorkerId":"w0"}},)"
                                 R"({"node_ids":["fc"],"target":{"Tag":"gpu"}}])";
  static const std::vector<Forms> forms = {
      {Local{}, R"({"type":"Local"})", "Local"},

      {DataParallel{}, R"({"type":"DataParallel","num_replicas":1,"aggregation":{"method":"AllReduce"}})",
       "DataParallel: 1 replica, AllReduce"},
      {DataParallel{.num_replicas = 65536},
       R"({"type":"DataParallel","num_replicas":65536,"aggregation":{"method":"AllReduce"}})",
       "DataParallel: 65536 replicas, AllReduce"},
      {two_replicas(AllReduce{.algorithm = Tree{.arity = 4}, .compression = TopK{.fraction = 0.25}}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":)"
       R"({"method":"AllReduce","algorithm":{"Tree":4},"compression":{"TopK":0.25}}})",
       "DataParallel: 2 replicas, AllReduce (algorithm Tree:4, compression TopK:0.25)"},
      {two_replicas(AllReduce{.algorithm = Gloo{}}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce","algorithm":"Gloo"}})",
       "DataParallel: 2 replicas, AllReduce (algorithm Gloo)"},
      {two_replicas(AllReduce{.compression = BFloat16{}}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce","compression":"BFloat16"}})",
       "DataParallel: 2 replicas, AllReduce (compression BFloat16)"},
      {two_replicas(AllReduce{.logical_shards = 2}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce","logical_shards":2}})",
       "DataParallel: 2 replicas, AllReduce (logical_shards 2)"},
      {two_replicas(AllReduce{.logical_shards = 65536}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce","logical_shards":65536}})",
       "DataParallel: 2 replicas, AllReduce (logical_shards 65536)"},
      {two_replicas(ParameterServer{}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"ParameterServer"}})",
       "DataParallel: 2 replicas, ParameterServer"},
      {two_replicas(ParameterServer{.consistency = Consistency::bounded_staleness, .max_staleness = 0}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":)"
       R"({"method":"ParameterServer","consistency":"bounded_staleness","max_staleness":0}})",
       "DataParallel: 2 replicas, ParameterServer (consistency bounded_staleness, max_staleness 0)"},
      {two_replicas(
           ParameterServer{.consistency = Consistency::asynchronous, .rate_exponent = 0.5, .delay_compensation = 0.04}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"ParameterServer",)"
       R"("consistency":"asynchronous","rate_exponent":0.5,"delay_compensation":0.04}})",
       "DataParallel: 2 replicas, ParameterServer (consistency asynchronous, rate_exponent 0.5, "
       "delay_compensation 0.04)"},
      {two_replicas(ParameterServer{.consistency = Consistency::lock_free}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"ParameterServer","consistency":"lock_free"}})",
       "DataParallel: 2 replicas, ParameterServer (consistency lock_free)"},
      {two_replicas(Decentralized{}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"Decentralized","topology":"ring"}})",
       "DataParallel: 2 replicas, Decentralized (topology ring)"},
      {two_replicas(Decentralized{Topology::complete}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"Decentralized","topology":"complete"}})",
       "DataParallel: 2 replicas, Decentralized (topology complete)"},
      {two_replicas(Decentralized{Topology::exponential}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"Decentralized","topology":"exponential"}})",
       "DataParallel: 2 replicas, Decentralized (topology exponential)"},
      {two_replicas(Decentralized{Topology::torus}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"Decentralized","topology":"torus"}})",
       "DataParallel: 2 replicas, Decentralized (topology torus)"},
      {two_replicas(Decentralized{Topology::random}),
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"Decentralized","topology":"random"}})",
       "DataParallel: 2 replicas, Decentralized (topology random)"},
      {two_replicas(Decentralized{Topology::ring, /*gossip=*/true}),
       R"({"type":"DataParallel","num_replicas":2,)"
       R"("aggregation":{"method":"Decentralized","topology":"ring","gossip":true}})",
       "DataParallel: 2 replicas, Decentralized (topology ring, gossip true)"},
      {DataParallel{.num_replicas = 2, .aggregation = AllReduce{}, .sync_every = 50},
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce"},"sync_every":50})",
       "DataParallel: 2 replicas, AllReduce, every 50 steps"},
      {DataParallel{.num_replicas = 2,
                    .aggregation = AllReduce{},
                    .sync_every = 50,
                    .outer = FedAvgM{.momentum = 0.8, .lr = 0.7, .nesterov = true}},
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce"},"sync_every":50,)"
       R"("outer":{"method":"FedAvgM","momentum":0.8,"lr":0.7,"nesterov":true}})",
       "DataParallel: 2 replicas, AllReduce, every 50 steps by FedAvgM (momentum 0.8, lr 0.7, nesterov true)"},

      {ModelParallel{two_partitions(), DataStore{}},
       R"({"type":"ModelParallel",)" + partitions + R"(,"communication":{"protocol":"DataStore"}})",
       "ModelParallel: 2 partitions, DataStore"},
      {ModelParallel{two_partitions(), Direct{}},
       R"({"type":"ModelParallel",)" + partitions + R"(,"communication":{"protocol":"Direct"}})",
       "ModelParallel: 2 partitions, Direct"},
      {ModelParallel{two_partitions(), Direct{}, /*recompute=*/true},
       R"({"type":"ModelParallel",)" + partitions + R"(,"communication":{"protocol":"Direct"},"recompute":true})",
       "ModelParallel: 2 partitions, Direct, recomputed"},
      {ModelParallel{.partitions = {}, .communication = Direct{}, .auto_partition = {.workers = 3}},
       R"({"type":"ModelParallel","auto_partition":{"workers":3},"communication":{"protocol":"Direct"}})",
       "ModelParallel: partitions to be found for 3 workers, Direct"},
      {ModelParallel{two_partitions(), DataStore{.path = "shared/store"}},
       R"({"type":"ModelParallel",)" + partitions +
           R"(,"communication":{"protocol":"DataStore","path":"shared/store"}})",
       "ModelParallel: 2 partitions, DataStore (path shared/store)"},
      {ModelParallel{two_partitions(), Pipeline{.micro_batch_size = 16}},
       R"({"type":"ModelParallel",)" + partitions +
           R"(,"communication":{"protocol":"Pipeline","micro_batch_size":16}})",
       "ModelParallel: 2 partitions, Pipeline (micro_batch_size 16)"},
      {ModelParallel{two_partitions(), Pipeline{.micro_batch_size = kMaxInt, .schedule = Schedule::gpipe}},
       R"({"type":"ModelParallel",)" + partitions +
           R"(,"communication":{"protocol":"Pipeline","micro_batch_size":2147483647,"schedule":"gpipe"}})",
       "ModelParallel: 2 partitions, Pipeline (micro_batch_size 2147483647, schedule gpipe)"},
      {ModelParallel{two_partitions(), Pipeline{.schedule = Schedule::interleaved}},
       R"({"type":"ModelParallel",)" + partitions +
           R"(,"communication":{"protocol":"Pipeline","micro_batch_size":1,"schedule":"interleaved"}})",
       "ModelParallel: 2 partitions, Pipeline (micro_batch_size 1, schedule interleaved)"},

      {Federated{},
       R"({"type":"Federated","num_clients":1,"rounds":1,"aggregation":{"method":"FedAvg"},)"
       R"("client_selection":{"method":"All"}})",
       "Federated: 1 client, 1 round, FedAvg, All"},
      {Federated{.num_clients = 100'000'000,
                 .rounds = kMaxInt,
                 .aggregation = FedProx{.mu = 0.5},
                 .client_selection = Random{.fraction = 1}},
       R"({"type":"Federated","num_clients":100000000,"rounds":2147483647,"aggregation":{"method":"FedProx","mu":0.5},)"
       R"("client_selection":{"method":"Random","fraction":1.0}})",
       "Federated: 100000000 clients, 2147483647 rounds, FedProx (mu 0.5), Random (fraction 1.0)"},
      {Federated{.num_clients = 10,
                 .rounds = 3,
                 .aggregation = FedYogi{},
                 .client_selection = ByCapability{.required_tags = {"gpu", "wifi"}},
                 .inner = two_replicas()},
       R"({"type":"Federated","num_clients":10,"rounds":3,)"
       R"("aggregation":{"method":"FedYogi","beta1":0.9,"beta2":0.99,"tau":0.001},)"
       R"("client_selection":{"method":"ByCapability","required_tags":["gpu","wifi"]},)"
       R"("inner":{"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce"}}})",
       "Federated: 10 clients, 3 rounds, FedYogi (beta1 0.9, beta2 0.99, tau 0.001), "
       R"(ByCapability (required_tags ["gpu","wifi"]), each DataParallel: 2 replicas, AllReduce)"},
      {Federated{.aggregation = FedYogi{.beta1 = 0, .beta2 = 0, .tau = 1e-9}, .client_selection = ByCapability{}},
       R"({"type":"Federated","num_clients":1,"rounds":1,)"
       R"("aggregation":{"method":"FedYogi","beta1":0.0,"beta2":0.0,"tau":1e-09},)"
       R"("client_selection":{"method":"ByCapability","required_tags":[]}})",
       "Federated: 1 client, 1 round, FedYogi (beta1 0.0, beta2 0.0, tau 1e-09), ByCapability (required_tags [])"},

      {PopulationBased{.population_size = 8, .generations = 20},
       R"({"type":"PopulationBased","population_size":8,"generations":20,)"
       R"("exploit":{"method":"Truncation","fraction":0.2},"explore":{"method":"Perturbation","factor":0.2}})",
       "PopulationBased: 8 members, 20 generations of 1 epoch, Truncation (fraction 0.2), Perturbation (factor 0.2)"},
      {PopulationBased{.population_size = 1'000'000,
                       .generations = kMaxInt,
                       .exploit = Binary{.threshold = 0},
                       .explore = Resample{},
                       .inner = two_replicas(AllReduce{.logical_shards = 4})},
       R"({"type":"PopulationBased","population_size":1000000,"generations":2147483647,)"
       R"("exploit":{"method":"Binary","threshold":0.0},"explore":{"method":"Resample"},)"
       R"("inner":{"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce","logical_shards":4}}})",
       "PopulationBased: 1000000 members, 2147483647 generations of 1 epoch, Binary (threshold 0.0), Resample, "
       "each DataParallel: 2 replicas, AllReduce (logical_shards 4)"},
      {PopulationBased{.exploit = WelchTTest{.significance = 0.01, .scores = 5},
                       .explore = Noise{.sigma = 0.25, .resample = 0.1},
                       .generation = {.steps = 50},
                       .copy = {MemberPart::weights},
                       .pace = Pace::asynchronous,
                       .threads = 2,
                       .idle = 0},
       R"({"type":"PopulationBased","population_size":1,"generations":1,)"
       R"("exploit":{"method":"WelchTTest","significance":0.01,"scores":5},)"
       R"("explore":{"method":"Noise","sigma":0.25,"resample":0.1},"generation":{"steps":50},"copy":["weights"],)"
       R"("pace":"asynchronous","threads":2,"idle":0})",
       "PopulationBased: 1 member, 1 generation of 50 steps, asynchronous, WelchTTest (significance 0.01, scores 5), "
       "Noise (sigma 0.25, resample 0.1)"},
      {PopulationBased{.exploit = None{}, .generation = {.epochs = 3}},
       R"({"type":"PopulationBased","population_size":1,"generations":1,"exploit":{"method":"None"},)"
       R"("explore":{"method":"Perturbation","factor":0.2},"generation":{"epochs":3}})",
       "PopulationBased: 1 member, 1 generation of 3 epochs, None, Perturbation (factor 0.2)"},

      {Custom{.coordinator = "gossip"}, R"({"type":"Custom","coordinator":"gossip","config":{}})", "Custom: gossip"},
      {Custom{.coordinator = "gossip", .config = R"({"z":[1,2.5,"é"],"a":null})"},
       R"({"type":"Custom","coordinator":"gossip","config":{"z":[1,2.5,"é"],"a":null}})", "Custom: gossip"},
      {Custom{.coordinator = "gossip", .config = "null"}, R"({"type":"Custom","coordinator":"gossip","config":null})",
       "Custom: gossip"},
  };
  return forms;
}

TEST(TrainingStrategy, IsTheSameInJsonAndOneLine) {
  for (const auto& [strategy, json, text] : every_form()) {
    SCOPED_TRACE(json);
    EXPECT_EQ(to_json(strategy).dump(), json);
    EXPECT_EQ(to_string(strategy), text);
    EXPECT_TRUE(from_json(json) == strategy);
    EXPECT_EQ(to_json(from_json(json)).dump(), json);
    EXPECT_EQ(validation_error(strategy), "(no error)");
  }
}

TEST(TrainingStrategy, IsEqualToItselfAlone) {
  for (const Forms& one : every_form()) {
    for (const Forms& other : every_form()) EXPECT_EQ(one.strategy == other.strategy, &one == &other) << one.json;
  }
}

TEST(TrainingStrategy, IsLocalByDefault) { EXPECT_TRUE(TrainingStrategy{} == TrainingStrategy(Local{})); }

TEST(TrainingStrategy, HasTheNameOfItsType) {
  std::set<std::string> names;
  for (const auto& [strategy, json, text] : every_form()) {
    EXPECT_EQ(name_of(strategy), ordered_json::parse(json).at("type"));
    names.emplace(name_of(strategy));
  }
  EXPECT_EQ(names.size(), std::variant_size_v<TrainingStrategy>);
}

TEST(TrainingStrategy, IsDistributedUnlessLocal) {
  for (const auto& [strategy, json, text] : every_form()) EXPECT_EQ(is_distributed(strategy), text != "Local") << text;
}

TEST(TrainingStrategy, ReadsKeysInAnyOrderAndWholeNumbersForAnyNumber) {
  EXPECT_TRUE(
      from_json(R"({"aggregation": {"mu": 1, "method": "FedProx"}, "rounds": 3, "num_clients": 2,
                            "client_selection": {"fraction": 1, "method": "Random"}, // all, in another order
                            "type": "Federated"})") ==
      TrainingStrategy(Federated{
          .num_clients = 2, .rounds = 3, .aggregation = FedProx{.mu = 1}, .client_selection = Random{.fraction = 1}}));
}

TEST(TrainingStrategy, TakesOwnFieldsThatHoldTheirDefaultsAndLeavesThemOut) {
  struct Case {
    std::string given;
    std::string written;
  };
  const std::vector<Case> cases = {
      {R"({"type": "DataParallel", "num_replicas": 2, "aggregation":
           {"method": "AllReduce", "algorithm": "Auto", "compression": "NoCompression", "logical_shards": 0}})",
       R"({"type":"DataParallel","num_replicas":2,"aggregation":{"method":"AllReduce"}})"},
      {R"({"type": "ModelParallel", "partitions": [{"node_ids": ["a"], "target": {"WorkerId": "w0"}}],
           "communication": {"protocol": "Pipeline", "micro_batch_size": 4, "schedule": "1f1b"}})",
       R"({"type":"ModelParallel","partitions":[{"node_ids":["a"],"target":{"WorkerId":"w0"}}],)"
       R"("communication":{"protocol":"Pipeline","micro_batch_size":4}})"},
      {R"({"type": "Federated", "num_clients": 2, "rounds": 1, "aggregation": {"method": "FedAvg"},
           "client_selection": {"method": "All"}, "inner": {"type": "Local"}})",
       R"({"type":"Federated","num_clients":2,"rounds":1,"aggregation":{"method":"FedAvg"},)"
       R"("client_selection":{"method":"All"}})"},
      {R"({"type": "PopulationBased", "population_size": 2, "generations": 1, "exploit": {"method": "Binary",
           "threshold": 0.5}, "explore": {"method": "Resample"}, "inner": {"type": "Local"}})",
       R"({"type":"PopulationBased","population_size":2,"generations":1,"exploit":{"method":"Binary","threshold":0.5},)"
       R"("explore":{"method":"Resample"}})"},
  };
  for (const auto& [given, written] : cases) EXPECT_EQ(to_json(from_json(given)).dump(), written);
}

TEST(TrainingStrategy, HasAnEmptyConfigUnlessOneIsGiven) {
  const TrainingStrategy strategy = from_json(R"({"type": "Custom", "coordinator": "gossip"})");
  EXPECT_TRUE(strategy == TrainingStrategy(Custom{.coordinator = "gossip", .config = "{}"}));
  EXPECT_EQ(to_json(strategy).dump(), R"({"type":"Custom","coordinator":"gossip","config":{}})");
}

TEST(TrainingStrategy, WritesAConfigWithoutBlanksAndComments) {
  const Custom custom{.coordinator = "gossip", .config = "{ \"peers\": [ 1, 2 ] /* for now */ }"};
  EXPECT_EQ(to_json(custom).dump(), R"({"type":"Custom","coordinator":"gossip","config":{"peers":[1,2]}})");
  EXPECT_EQ(validation_error(custom), "(no error)");
}

// --- refusals ---

struct Refusal {
  std::string json;  // with an @ at the place that the message names
  std::string message;
};

void expect_refusals(const std::vector<Refusal>& refusals) {
  for (const auto& [json, message] : refusals) {
    const std::size_t place = json.find('@');
    ASSERT_NE(place, json.npos) << json;
    EXPECT_EQ(json_error(std::string(json).erase(place, 1)), fmt::format("run.json:1:{}: {}", place + 1, message))
        << json;
  }
}

TEST(TrainingStrategyRefuses, ATypeThatIsNone) {
  const std::string types = R"("Local", "DataParallel", "ModelParallel", "Federated", "PopulationBased" or "Custom")";
  expect_refusals({
      {R"(@"Local")", "expected an object with the key \"type\": " + types + ", found \"Local\""},
      {"@null", "expected an object with the key \"type\": " + types + ", found null"},
      {"@[]", "expected an object with the key \"type\": " + types + ", found an empty array"},
      {"@{}", "missing key \"type\": " + types},
      {R"(@{"num_replicas": 2})", "missing key \"type\": " + types},
      {R"(@{"Type": "Local"})", "missing key \"type\": " + types + "; is \"Type\" meant to be it?"},
      {R"(@{"type\n": "Local"})", "missing key \"type\": " + types + "; is \"type\\n\" meant to be it?"},
      {R"({"type": @3})", "type: expected one of " + types + ", found 3"},
      {R"({"type": @"Sequential"})", "type: expected one of " + types + ", found \"Sequential\""},
      {R"({"type": @"data_parallel"})",
       "type: expected one of " + types + ", found \"data_parallel\"; did you mean \"DataParallel\"?"},
      {R"({"type": "Local", @"type": "Local"})", "the key \"type\" is given twice, first at run.json:1:2"},
      {R"({"type": "Local", @"num_replicas": 2})", "unknown key \"num_replicas\"; known is \"type\""},
  });
}

std::string with_aggregation(const std::string& aggregation) {
  return R"({"type": "DataParallel", "num_replicas": 4, "aggregation": )" + aggregation + "}";
}

TEST(TrainingStrategyRefuses, AWrongDataParallel) {
  const std::string methods = R"("AllReduce", "ParameterServer" or "Decentralized")";
  expect_refusals({
      {R"(@{"type": "DataParallel", "num_replicas": 4})", "missing key \"aggregation\""},
      {R"(@{"type": "DataParallel", "aggregation": {"method": "AllReduce"}})", "missing key \"num_replicas\""},
      {R"(@{"type": "DataParallel", "num_replica": 4, "aggregation": {"method": "AllReduce"}})",
       "missing key \"num_replicas\"; is \"num_replica\" meant to be it?"},
      {R"({"type": "DataParallel", "num_replicas": @0})",
       "num_replicas: expected a whole number from 1 to 65536, found 0"},
      {R"({"type": "DataParallel", "num_replicas": @65537})",
       "num_replicas: expected a whole number from 1 to 65536, found 65537"},
      {R"({"type": "DataParallel", "num_replicas": @2.5})",
       "num_replicas: expected a whole number from 1 to 65536, found 2.5"},
      {R"({"type": "DataParallel", "num_replicas": @1e30})",
       "num_replicas: expected a whole number from 1 to 65536, found 1e30"},
      {R"({"type": "DataParallel", "num_replicas": @"2"})",
       "num_replicas: expected a whole number from 1 to 65536, found \"2\""},
      {with_aggregation(R"(@"AllReduce")"),
       "aggregation: expected an object with the key \"method\": " + methods + ", found \"AllReduce\""},
      {with_aggregation("@{}"), "aggregation: missing key \"method\": " + methods},
      {with_aggregation(R"(@{"type": "AllReduce"})"), "aggregation: missing key \"method\": " + methods},
      {with_aggregation(R"({"method": @"allreduce"})"),
       "aggregation.method: expected one of " + methods + ", found \"allreduce\"; did you mean \"AllReduce\"?"},
      {with_aggregation(R"({"method": @"FedAvg"})"),
       "aggregation.method: expected one of " + methods + ", found \"FedAvg\""},
      {with_aggregation(R"({"method": "AllReduce"}, @"seed": 1)"),
       "unknown key \"seed\"; known are \"type\", \"num_replicas\", \"aggregation\", \"sync_every\" and "
       "\"outer\""},
  });
}

TEST(TrainingStrategyRefuses, AWrongAllReduce) {
  expect_refusals({
      {with_aggregation(R"({"method": "AllReduce", @"algoritm": "Ring"})"),
       "aggregation: unknown key \"algoritm\"; did you mean \"algorithm\"?"},
      {with_aggregation(R"({"method": "AllReduce", @"topology": "ring"})"),
       "aggregation: unknown key \"topology\"; known are \"method\", \"algorithm\", \"compression\" and "
       "\"logical_shards\""},
      {with_aggregation(R"({"method": "AllReduce", "algorithm": {"Tree": @0}})"),
       "aggregation.algorithm.Tree: expected a whole number of at least 1, found 0"},
      {with_aggregation(R"({"method": "AllReduce", "algorithm": @"ring"})"),
       "aggregation.algorithm: expected an all-reduce strategy: \"Auto\", \"Centralized\", {\"Tree\": 2}, "
       "\"Ring\", \"SharedSlices\", \"RecursiveDoubling\", \"HalvingDoubling\" or \"Gloo\"; found \"ring\", did you "
       "mean \"Ring\"?"},
      {with_aggregation(R"({"method": "AllReduce", "compression": {"TopK": @2}})"),
       "aggregation.compression.TopK: expected a number above 0 and at most 1, found 2"},
      {with_aggregation(R"({"method": "AllReduce", "compression": @null})"),
       "aggregation.compression: expected a compression: \"NoCompression\", {\"TopK\": 0.01}, \"Float16\", "
       "\"BFloat16\" or {\"PowerSgd\": 2}, found null"},
      {with_aggregation(R"({"method": "AllReduce", "logical_shards": @-1})"),
       "aggregation.logical_shards: expected a whole number from 0 to 65536, found -1"},
      {with_aggregation(R"({"method": "AllReduce", "logical_shards": @65537})"),
       "aggregation.logical_shards: expected a whole number from 0 to 65536, found 65537"},
      {with_aggregation(R"({"method": "AllReduce", "logical_shards": @3})"),
       "aggregation.logical_shards: expected at least one for each of 4 replicas, found 3"},
      {with_aggregation(R"({"method": "AllReduce", "logical_shards": @8, "algorithm": "Ring"})"),
       "aggregation.logical_shards: the same bits on any number of replicas need the algorithm Auto and no "
       "compression, found Ring and NoCompression"},
      {with_aggregation(R"({"method": "AllReduce", "logical_shards": @8, "compression": {"TopK": 0.5}})"),
       "aggregation.logical_shards: the same bits on any number of replicas need the algorithm Auto and no "
       "compression, found Auto and TopK:0.5"},
  });
}

TEST(TrainingStrategyRefuses, StepsByThemselvesThatCannotBe) {
  const auto with = [](const std::string& aggregation, const std::string& more) {
    return R"({"type": "DataParallel", "num_replicas": 2, "aggregation": )" + aggregation + ", " + more + "}";
  };
  const std::string all_reduce = R"({"method": "AllReduce"})";
  expect_refusals({
      {with(all_reduce, R"("sync_every": @0)"), "sync_every: expected a whole number from 1 to 2147483647, found 0"},
      {with(all_reduce, R"("outer": @{"method": "FedAvgM"})"),
       "outer: it says what becomes of replicas that take steps by themselves, and needs a sync_every above 1"},
      {with(all_reduce, R"("sync_every": 5, "outer": {"method": @"Median"})"),
       "outer.method: expected one of \"FedAvg\", \"FedYogi\", \"FedAvgM\", \"FedAdam\" or \"FedAdagrad\", found "
       "\"Median\""},
      {with(R"({"method": "ParameterServer"})", R"("sync_every": @5)"),
       "sync_every: replicas that take steps by themselves need the aggregation AllReduce"},
      {with(R"({"method": "AllReduce", "compression": "Float16"})", R"("sync_every": @5)"),
       "sync_every: replicas that take steps by themselves need an aggregation without compression and logical_shards"},
      {with(R"({"method": "AllReduce", "logical_shards": 2})", R"("sync_every": @5)"),
       "sync_every: replicas that take steps by themselves need an aggregation without compression and logical_shards"},
  });
}

TEST(TrainingStrategyRefuses, AWrongAggregationWithoutAllReduce) {
  const std::string topologies = R"("ring", "complete", "exponential", "torus" or "random")";
  expect_refusals({
      {with_aggregation(R"({"method": "ParameterServer", @"algorithm": "Ring"})"),
       "aggregation: unknown key \"algorithm\"; known are \"method\", \"consistency\", \"max_staleness\", "
       "\"rate_exponent\" and \"delay_compensation\""},
      {with_aggregation(R"({"method": "ParameterServer", "consistency": @"bounded"})"),
       "aggregation.consistency: expected one of \"synchronous\", \"bounded_staleness\", \"asynchronous\" or "
       "\"lock_free\", found \"bounded\""},
      {with_aggregation(R"({"method": "ParameterServer", "max_staleness": @3})"),
       "aggregation.max_staleness: it belongs to the consistency bounded_staleness, found synchronous"},
      {with_aggregation(R"({"method": "ParameterServer", "consistency": "lock_free", "rate_exponent": @1})"),
       "aggregation.rate_exponent: gradients have an age with the consistency bounded_staleness or asynchronous, found "
       "lock_free"},
      {with_aggregation(R"(@{"method": "Decentralized"})"), "aggregation: missing key \"topology\""},
      {with_aggregation(R"({"method": "Decentralized", "topology": @"Ring"})"),
       "aggregation.topology: expected one of " + topologies + ", found \"Ring\"; did you mean \"ring\"?"},
      {with_aggregation(R"({"method": "Decentralized", "topology": @"star"})"),
       "aggregation.topology: expected one of " + topologies + ", found \"star\""},
      {with_aggregation(R"({"method": "Decentralized", "topology": @{"method": "ring"}})"),
       "aggregation.topology: expected one of " + topologies + ", found an object"},
  });
}

std::string with_partitions(const std::string& partitions) {
  return R"({"type": "ModelParallel", "communication": {"protocol": "Direct"}, "partitions": )" + partitions + "}";
}

std::string with_target(const std::string& target) {
  return with_partitions(R"([{"node_ids": ["a"], "target": )" + target + "}]");
}

TEST(TrainingStrategyRefuses, WrongPartitions) {
  const std::string either = R"(expected {"WorkerId": "w0"} or {"Tag": "gpu"}, one of the two, found )";
  expect_refusals({
      {R"(@{"type": "ModelParallel", "communication": {"protocol": "Direct"}})", "missing key \"partitions\""},
      {R"({"type": "ModelParallel", "communication": {"protocol": "Direct"}, "auto_partition": @{}})",
       "auto_partition: missing key \"workers\""},
      {R"({"type": "ModelParallel", "communication": {"protocol": "Direct"}, "auto_partition": @2})",
       R"(auto_partition: expected how many workers, as in {"workers": 2}, found 2)"},
      {R"({"type": "ModelParallel", "communication": {"protocol": "Direct"}, "auto_partition": {"workers": @0}})",
       "auto_partition.workers: expected a whole number from 1 to 1024, found 0"},
      {R"({"type": "ModelParallel", "communication": {"protocol": "Direct"}, "auto_partition": @{"workers": 2},
           "partitions": [{"node_ids": ["a"], "target": {"WorkerId": "w0"}}]})",
       "auto_partition: it finds partitions, and there are some; expected one of the two"},
      {R"({"type": "ModelParallel", "communication": {"protocol": "DataStore", "path": @""}, "auto_partition": {"workers": 2}})",
       "communication.path: expected a string that is not empty, found \"\""},
      {with_partitions("@{}"), "partitions: expected an array, found an empty object"},
      {with_partitions("@[]"), "partitions: expected at least one partition, found an empty array"},
      {with_partitions(R"([@"a"])"), "partitions[0]: expected an object, found \"a\""},
      {with_partitions(R"([@{"node_ids": ["a"]}])"), "partitions[0]: missing key \"target\""},
      {with_partitions(R"([@{"target": {"Tag": "gpu"}}])"), "partitions[0]: missing key \"node_ids\""},
      {with_partitions(R"([{"node_ids": @[], "target": {"Tag": "gpu"}}])"),
       "partitions[0].node_ids: expected at least one node id, found an empty array"},
      {with_partitions(R"([{"node_ids": @"a", "target": {"Tag": "gpu"}}])"),
       "partitions[0].node_ids: expected an array, found \"a\""},
      {with_partitions(R"([{"node_ids": ["a", @""], "target": {"Tag": "gpu"}}])"),
       "partitions[0].node_ids[1]: expected a string that is not empty, found \"\""},
      {with_partitions(R"([{"node_ids": [@7], "target": {"Tag": "gpu"}}])"),
       "partitions[0].node_ids[0]: expected a string that is not empty, found 7"},
      {with_partitions(R"([{"node_ids": ["a", "b", @"a"], "target": {"Tag": "gpu"}}])"),
       "partitions[0].node_ids[2]: expected another node than at partitions[0].node_ids[0], found \"a\""},
      {with_partitions(R"([{"node_ids": ["a", "b"], "target": {"Tag": "x"}}, )"
                       R"({"node_ids": ["c", @"b"], "target": {"Tag": "y"}}])"),
       "partitions[1].node_ids[1]: expected another node than at partitions[0].node_ids[1], found \"b\""},
      {with_partitions(R"([{"node_ids": ["a"], "target": {"Tag": "gpu"}, @"targets": 1}])"),
       "partitions[0]: unknown key \"targets\"; did you mean \"target\"?"},
      {with_target("@\"w0\""), "partitions[0].target: " + either + "\"w0\""},
      {with_target("@{}"), "partitions[0].target: " + either + "an empty object"},
      {with_target(R"(@{"WorkerId": "w0", "Tag": "gpu"})"), "partitions[0].target: " + either + "an object"},
      {with_target(R"({@"worker_id": "w0"})"),
       "partitions[0].target: unknown key \"worker_id\"; did you mean \"WorkerId\"?"},
      {with_target(R"({@"Host": "w0"})"),
       "partitions[0].target: unknown key \"Host\"; known are \"WorkerId\" and \"Tag\""},
      {with_target(R"({"WorkerId": @""})"),
       "partitions[0].target.WorkerId: expected a string that is not empty, found \"\""},
      {with_target(R"({"Tag": @["gpu"]})"),
       "partitions[0].target.Tag: expected a string that is not empty, found an array of 1"},
  });
}

std::string with_communication(const std::string& communication) {
  return R"({"type": "ModelParallel", "partitions": [{"node_ids": ["a"], "target": {"Tag": "gpu"}}], )"
         R"("communication": )" +
         communication + "}";
}

TEST(TrainingStrategyRefuses, AWrongCommunication) {
  const std::string protocols = R"("DataStore", "Direct" or "Pipeline")";
  expect_refusals({
      {with_communication("@{}"), "communication: missing key \"protocol\": " + protocols},
      {with_communication(R"(@{"method": "Direct"})"), "communication: missing key \"protocol\": " + protocols},
      {with_communication(R"({"protocol": @"direct"})"),
       "communication.protocol: expected one of " + protocols + ", found \"direct\"; did you mean \"Direct\"?"},
      {with_communication(R"({"protocol": "Direct", @"micro_batch_size": 1})"),
       "communication: unknown key \"micro_batch_size\"; known is \"protocol\""},
      {with_communication(R"(@{"protocol": "Pipeline"})"), "communication: missing key \"micro_batch_size\""},
      {with_communication(R"({"protocol": "Pipeline", "micro_batch_size": @0})"),
       "communication.micro_batch_size: expected a whole number from 1 to 2147483647, found 0"},
      {with_communication(R"({"protocol": "Pipeline", "micro_batch_size": @2147483648})"),
       "communication.micro_batch_size: expected a whole number from 1 to 2147483647, found 2147483648"},
      {with_communication(R"({"protocol": "Pipeline", "micro_batch_size": 4, "schedule": @"1F1B"})"),
       "communication.schedule: expected one of \"gpipe\", \"1f1b\" or \"interleaved\", found \"1F1B\"; did you "
       "mean \"1f1b\"?"},
      {with_communication(R"({"protocol": "Pipeline", "micro_batch_size": 4, "schedule": @0})"),
       "communication.schedule: expected one of \"gpipe\", \"1f1b\" or \"interleaved\", found 0"},
  });
}

// Counts, an aggregation, a selection, and what comes after them.
std::string federated(const std::string& counts, const std::string& aggregation = R"({"method": "FedAvg"})",
                      const std::string& selection = R"({"method": "All"})", const std::string& rest = "") {
  return fmt::format(R"({{"type": "Federated", {}, "aggregation": {}, "client_selection": {}{}}})", counts, aggregation,
                     selection, rest);
}

constexpr const char* kCounts = R"("num_clients": 2, "rounds": 1)";

TEST(TrainingStrategyRefuses, AWrongFederated) {
  const std::string clients = "expected a whole number from 1 to 100000000, found ";
  const std::string rounds = "expected a whole number from 1 to 2147483647, found ";
  const std::string inner_types = R"("Local" or "DataParallel")";
  const auto with_inner = [](const std::string& inner) {
    return federated(kCounts, R"({"method": "FedAvg"})", R"({"method": "All"})", ", \"inner\": " + inner);
  };
  expect_refusals({
      {federated(R"("num_clients": @0, "rounds": 1)"), "num_clients: " + clients + "0"},
      {federated(R"("num_clients": @100000001, "rounds": 1)"), "num_clients: " + clients + "100000001"},
      {federated(R"("num_clients": @true, "rounds": 1)"), "num_clients: " + clients + "true"},
      {federated(R"("num_clients": 2, "rounds": @0)"), "rounds: " + rounds + "0"},
      {federated(R"("num_clients": 2, "rounds": @2147483648)"), "rounds: " + rounds + "2147483648"},
      {"@" + federated(R"("num_clients": 2)"), "missing key \"rounds\""},
      {R"(@{"type": "Federated", "num_clients": 2, "rounds": 1, "client_selection": {"method": "All"}})",
       "missing key \"aggregation\""},
      {R"(@{"type": "Federated", "num_clients": 2, "rounds": 1, "aggregation": {"method": "FedAvg"}})",
       "missing key \"client_selection\""},
      {with_inner(R"({"type": @"Federated"})"), "inner.type: expected " + inner_types + ", found \"Federated\""},
      {with_inner(R"(@{"method": "Local"})"), "inner: missing key \"type\": " + inner_types},
      {with_inner(R"(@"Local")"),
       "inner: expected an object with the key \"type\": " + inner_types + ", found \"Local\""},
      {with_inner(R"({"type": "DataParallel", "num_replicas": @0})"),
       "inner.num_replicas: expected a whole number from 1 to 65536, found 0"},
  });
}

TEST(TrainingStrategyRefuses, AWrongFederatedAggregation) {
  const std::string methods =
      R"("FedAvg", "FedProx", "FedYogi", "FedAvgM", "FedAdam", "FedAdagrad", "Median", "TrimmedMean", "Krum", )"
      R"("MultiKrum", "Bulyan" or "NormClipping")";
  const std::string decay = "expected a number of at least 0 and below 1, found ";
  const auto with = [](const std::string& aggregation) { return federated(kCounts, aggregation); };
  expect_refusals({
      {with("@{}"), "aggregation: missing key \"method\": " + methods},
      {with(R"({"method": @"FedAverage"})"),
       "aggregation.method: expected one of " + methods + ", found \"FedAverage\""},
      {with(R"({"method": @"fedavg"})"),
       "aggregation.method: expected one of " + methods + ", found \"fedavg\"; did you mean \"FedAvg\"?"},
      {with(R"({"method": "FedAvg", @"mu": 1})"), "aggregation: unknown key \"mu\"; known is \"method\""},
      {with(R"(@{"method": "FedProx"})"), "aggregation: missing key \"mu\""},
      {with(R"({"method": "FedProx", "mu": @-0.1})"), "aggregation.mu: expected a number of at least 0, found -0.1"},
      {with(R"({"method": "FedProx", "mu": @"1"})"), "aggregation.mu: expected a number of at least 0, found \"1\""},
      {with(R"({"method": "FedYogi", "beta1": @1, "beta2": 0, "tau": 1})"), "aggregation.beta1: " + decay + "1"},
      {with(R"({"method": "FedYogi", "beta1": @-1, "beta2": 0, "tau": 1})"), "aggregation.beta1: " + decay + "-1"},
      {with(R"({"method": "FedYogi", "beta1": 0, "beta2": @1.5, "tau": 1})"), "aggregation.beta2: " + decay + "1.5"},
      {with(R"({"method": "FedYogi", "beta1": 0, "beta2": @-1, "tau": 1})"), "aggregation.beta2: " + decay + "-1"},
      {with(R"({"method": "FedYogi", "beta1": 0, "beta2": 0, "tau": @0})"),
       "aggregation.tau: expected a number above 0, found 0"},
      {with(R"(@{"method": "FedYogi", "beta1": 0, "beta2": 0})"), "aggregation: missing key \"tau\""},
  });
}

TEST(TrainingStrategyRefuses, AWrongClientSelection) {
  const std::string methods = R"("All", "Random", "ByCapability" or "PowerOfChoice")";
  const std::string share = "expected a number above 0 and at most 1, found ";
  const auto with = [](const std::string& selection) {
    return federated(kCounts, R"({"method": "FedAvg"})", selection);
  };
  expect_refusals({
      {with("@{}"), "client_selection: missing key \"method\": " + methods},
      {with(R"({"method": @"random"})"),
       "client_selection.method: expected one of " + methods + ", found \"random\"; did you mean \"Random\"?"},
      {with(R"({"method": "All", @"fraction": 1})"), "client_selection: unknown key \"fraction\"; known is \"method\""},
      {with(R"(@{"method": "Random"})"), "client_selection: missing key \"fraction\""},
      {with(R"({"method": "Random", "fraction": @0})"), "client_selection.fraction: " + share + "0"},
      {with(R"({"method": "Random", "fraction": @1.01})"), "client_selection.fraction: " + share + "1.01"},
      {with(R"(@{"method": "ByCapability"})"), "client_selection: missing key \"required_tags\""},
      {with(R"({"method": "ByCapability", "required_tags": @"gpu"})"),
       "client_selection.required_tags: expected an array, found \"gpu\""},
      {with(R"({"method": "ByCapability", "required_tags": [@""]})"),
       "client_selection.required_tags[0]: expected a string that is not empty, found \"\""},
      {with(R"({"method": "ByCapability", "required_tags": ["gpu", @null]})"),
       "client_selection.required_tags[1]: expected a string that is not empty, found null"},
      {with(R"({"method": "ByCapability", "required_tags": ["gpu", "x", @"gpu"]})"),
       "client_selection.required_tags[2]: expected another tag than at required_tags[0], found \"gpu\""},
  });
}

std::string population(const std::string& counts,
                       const std::string& exploit = R"({"method": "Binary", "threshold": 0})",
                       const std::string& explore = R"({"method": "Resample"})", const std::string& rest = "") {
  return fmt::format(R"({{"type": "PopulationBased", {}, "exploit": {}, "explore": {}{}}})", counts, exploit, explore,
                     rest);
}

TEST(TrainingStrategyRefuses, AWrongPopulation) {
  const std::string counts = R"("population_size": 2, "generations": 1)";
  const std::string binary = R"({"method": "Binary", "threshold": 0})";
  const std::string share = "expected a number above 0 and at most 1, found ";
  const auto exploit = [&](const std::string& json) { return population(counts, json); };
  const auto explore = [&](const std::string& json) { return population(counts, binary, json); };
  const auto more = [&](const std::string& fields) {
    return population(counts, binary, R"({"method": "Resample"})", fields);
  };
  expect_refusals({
      {population(R"("population_size": @0, "generations": 1)"),
       "population_size: expected a whole number from 1 to 1000000, found 0"},
      {population(R"("population_size": @1000001, "generations": 1)"),
       "population_size: expected a whole number from 1 to 1000000, found 1000001"},
      {population(R"("population_size": 2, "generations": @0)"),
       "generations: expected a whole number from 1 to 2147483647, found 0"},
      {population(R"("population_size": 2, "generations": @99999999999999999999)"),
       "generations: expected a whole number of at most 2147483647, found 99999999999999999999"},
      {"@" + population(R"("population_size": 2)"), "missing key \"generations\""},
      {exploit("@{}"), "exploit: missing key \"method\": \"Truncation\", \"Binary\", \"WelchTTest\" or \"None\""},
      {exploit(R"({"method": @"truncation"})"),
       "exploit.method: expected one of \"Truncation\", \"Binary\", \"WelchTTest\" or \"None\", found \"truncation\"; "
       "did you mean "
       "\"Truncation\"?"},
      {exploit(R"(@{"method": "Truncation"})"), "exploit: missing key \"fraction\""},
      {exploit(R"({"method": "Truncation", "fraction": @0})"), "exploit.fraction: " + share + "0"},
      {exploit(R"({"method": "Truncation", "fraction": @2})"), "exploit.fraction: " + share + "2"},
      {exploit(R"({"method": "Binary", "threshold": @-1})"),
       "exploit.threshold: expected a number of at least 0, found -1"},
      {exploit(R"(@{"method": "Binary", "fraction": 1})"), "exploit: missing key \"threshold\""},
      {explore("@[]"),
       "explore: expected an object with the key \"method\": \"Perturbation\", \"Resample\" or \"Noise\", found an "
       "empty array"},
      {explore(R"({"method": @"Perturb"})"),
       "explore.method: expected one of \"Perturbation\", \"Resample\" or \"Noise\", found \"Perturb\""},
      {explore(R"({"method": "Perturbation", "factor": @0})"), "explore.factor: " + share + "0"},
      {explore(R"({"method": "Perturbation", "factor": @1.5})"), "explore.factor: " + share + "1.5"},
      {explore(R"({"method": "Resample", @"factor": 1})"), "explore: unknown key \"factor\"; known is \"method\""},
      {population(counts, binary, R"({"method": "Resample"})", R"(, "inner": {"type": @"Custom"})"),
       "inner.type: expected \"Local\" or \"DataParallel\", found \"Custom\""},
      {more(R"(, "copy": @[])"), "copy: expected at least one part, found an empty array"},
      {more(R"(, "copy": ["weights", @"weights"])"),
       "copy[1]: expected another part than at copy[0], found \"weights\""},
      {more(R"(, "copy": @["optimizer_state"])"),
       "copy: the state of an optimizer belongs to weights; expected these, too"},
      {more(R"(, "pace": @"slow")"), "pace: expected \"in_step\" or \"asynchronous\", found \"slow\""},
      {more(R"(, "generation": @5)"), "generation: expected how long a generation is, as in {\"epochs\": 5}, found 5"},
      {more(R"(, "generation": {"epochs": 1, "steps": @5})"),
       "generation.steps: there are epochs, too; expected one of the two"},
      {exploit(R"({"method": "WelchTTest", "scores": @1})"),
       "exploit.scores: expected a whole number from 2 to 1000000, found 1"},
      {population(R"("population_size": 2, "generations": 3)", binary, R"({"method": "Resample"})",
                  R"(, "generation": {"epochs": @1000000000})"),
       "generation.epochs: expected at most 2147483647 epochs in all generations, found 3000000000"},
      {explore(R"({"method": "Noise", "sigma": @0})"),
       "explore.sigma: expected a number above 0 and at most 1000, found 0"},
      {explore(R"({"method": "Noise", "sigma": @1e308})"),
       "explore.sigma: expected a number above 0 and at most 1000, found 1e308"},
      {explore(R"({"method": "Noise", "sigma": 1, "resample": @2})"),
       "explore.resample: expected a number from 0 to 1, found 2"},
  });
}

TEST(TrainingStrategyRefuses, AWrongCustom) {
  expect_refusals({
      {R"(@{"type": "Custom"})", "missing key \"coordinator\""},
      {R"({"type": "Custom", "coordinator": @""})", "coordinator: expected a string that is not empty, found \"\""},
      {R"({"type": "Custom", "coordinator": @{}})",
       "coordinator: expected a string that is not empty, found an empty object"},
      {R"({"type": "Custom", "coordinator": "x", @"confg": 1})", "unknown key \"confg\"; did you mean \"config\"?"},
  });
}

TEST(TrainingStrategyRefuses, WithTheWholePathInALargerDocument) {
  const JsonValue root = JsonDocument::parse(R"({"graph":
  {"strategy": {"type": "ModelParallel", "communication": {"protocol": "Direct"},
    "partitions": [{"node_ids": ["a"], "target": {"Tag": "x"}},
                   {"node_ids": ["a"], "target": {"Tag": "y"}}]}}})",
                                             "run.json")
                             .root();
  EXPECT_EQ(usage_error([&] { training_strategy_from_json(root.at("graph").at("strategy")); }),
            "run.json:4:34: graph.strategy.partitions[1].node_ids[0]: expected another node than at "
            "partitions[0].node_ids[0], found \"a\"");
}

// --- values made in C++ ---

TEST(TrainingStrategy, IsValidatedAsJsonIs) {
  struct Case {
    TrainingStrategy strategy;
    std::string message;
  };
  const Partition one = {.node_ids = {"a"}, .target = WorkerId{"w0"}};
  const std::vector<Case> cases = {
      {DataParallel{.num_replicas = 0}, "DataParallel: num_replicas: expected a whole number from 1 to 65536, found 0"},
      {DataParallel{.num_replicas = std::numeric_limits<std::int64_t>::min()},
       "DataParallel: num_replicas: expected a whole number from 1 to 65536, found -9223372036854775808"},
      {two_replicas(AllReduce{.algorithm = Tree{.arity = 0}}),
       "DataParallel: aggregation.algorithm.Tree: expected a whole number of at least 1, found 0"},
      {two_replicas(AllReduce{.compression = TopK{.fraction = kNan}}),
       "DataParallel: aggregation.compression.TopK: expected a finite number, found nan"},
      {two_replicas(AllReduce{.logical_shards = 1}),
       "DataParallel: aggregation.logical_shards: expected at least one for each of 2 replicas, found 1"},
      {two_replicas(AllReduce{.algorithm = Ring{}, .logical_shards = 4}),
       "DataParallel: aggregation.logical_shards: the same bits on any number of replicas need the algorithm Auto "
       "and no compression, found Ring and NoCompression"},
      {two_replicas(Decentralized{static_cast<Topology>(99)}),
       "DataParallel: aggregation.topology: expected one of \"ring\", \"complete\", \"exponential\", \"torus\" or "
       "\"random\", found 99"},
      {ModelParallel{}, "ModelParallel: missing key \"partitions\""},
      {ModelParallel{{Partition{}}},
       "ModelParallel: partitions[0].node_ids: expected at least one node id, found an empty array"},
      {ModelParallel{{Partition{.node_ids = {"a"}, .target = {}}}},
       "ModelParallel: partitions[0].target.WorkerId: expected a string that is not empty, found \"\""},
      {ModelParallel{{one, one}},
       "ModelParallel: partitions[1].node_ids[0]: expected another node than at partitions[0].node_ids[0], found "
       "\"a\""},
      {ModelParallel{{one}, Pipeline{.micro_batch_size = -1}},
       "ModelParallel: communication.micro_batch_size: expected a whole number from 1 to 2147483647, found -1"},
      {ModelParallel{{Partition{.node_ids = {"\xff"}, .target = Tag{"x"}}}},
       "ModelParallel: a string in it is not UTF-8"},
      {Federated{.num_clients = 0}, "Federated: num_clients: expected a whole number from 1 to 100000000, found 0"},
      {Federated{.aggregation = FedProx{.mu = kInfinity}},
       "Federated: aggregation.mu: expected a finite number, found inf"},
      {Federated{.aggregation = FedYogi{.tau = -1}},
       "Federated: aggregation.tau: expected a number above 0, found -1.0"},
      {Federated{.client_selection = ByCapability{{"a", "a"}}},
       "Federated: client_selection.required_tags[1]: expected another tag than at required_tags[0], found \"a\""},
      {Federated{.inner = DataParallel{.num_replicas = 0}},
       "Federated: inner.num_replicas: expected a whole number from 1 to 65536, found 0"},
      {PopulationBased{.exploit = Binary{.threshold = kNan}},
       "PopulationBased: exploit.threshold: expected a finite number, found nan"},
      {PopulationBased{.explore = Perturbation{.factor = 2}},
       "PopulationBased: explore.factor: expected a number above 0 and at most 1, found 2.0"},
      {Custom{}, "Custom: coordinator: expected a string that is not empty, found \"\""},
      {Custom{.coordinator = "x", .config = ""}, "Custom.config:1:1: expected a value, found the end of the document"},
      {Custom{.coordinator = "x", .config = "{]"}, "Custom.config:1:2: expected a key in double quotes, found ']'"},
      {Custom{.coordinator = "x", .config = std::string(512, '[') + std::string(512, ']')},
       "Custom: expected at most 512 levels of nesting, found more"},
  };
  for (const auto& [strategy, message] : cases) {
    EXPECT_EQ(validation_error(strategy), message);
    EXPECT_THAT(to_string(strategy), ::testing::StartsWith(std::string(name_of(strategy))));
  }
}

// --- what may be inside what ---

TEST(TrainingStrategyInside, IsAllowedWhereItMeansSomething) {
  const std::set<std::pair<std::string, std::string>> allowed = {
      {"DataParallel", "Local"}, {"Federated", "Local"}, {"ModelParallel", "DataParallel"}};
  for (const Forms& outer : every_form()) {
    for (const Forms& inner : every_form()) {
      SCOPED_TRACE(inner.text + " inside " + outer.text);
      const std::string outer_name(name_of(outer.strategy));
      const std::string inner_name(name_of(inner.strategy));
      const auto reason = why_not_inside(outer.strategy, inner.strategy);
      EXPECT_EQ(!reason, &outer == &inner || allowed.contains({outer_name, inner_name}));
      if (!reason) continue;
      const std::string another = outer_name == inner_name ? "a different " : "";
      EXPECT_THAT(*reason, ::testing::StartsWith(inner_name + " cannot be inside " + another + outer_name + ": "));
    }
  }
}

TEST(TrainingStrategyInside, SaysWhyNot) {
  const auto reason = [](const TrainingStrategy& outer, const TrainingStrategy& inner) {
    return why_not_inside(outer, inner).value_or("(it can)");
  };
  EXPECT_EQ(reason(Local{}, DataParallel{}),
            "DataParallel cannot be inside Local: nothing else can, one worker trains all of it");
  EXPECT_EQ(reason(DataParallel{}, Federated{}),
            "Federated cannot be inside DataParallel: only Local can, for parameters that are private to each replica");
  EXPECT_EQ(reason(DataParallel{}, two_replicas()),
            "DataParallel cannot be inside a different DataParallel: only Local can, for parameters that are private "
            "to each replica");
  EXPECT_EQ(reason(ModelParallel{}, Local{}),
            "Local cannot be inside ModelParallel: only DataParallel can, for a stage that is replicated");
  EXPECT_EQ(reason(Federated{}, DataParallel{}),
            "DataParallel cannot be inside Federated: only Local can, for parameters that stay on the client; the "
            "strategy of each client is the field \"inner\"");
  EXPECT_EQ(reason(PopulationBased{}, DataParallel{}),
            "DataParallel cannot be inside PopulationBased: nothing else can, the strategy of each member is the field "
            "\"inner\"");
  EXPECT_EQ(reason(Custom{}, Local{}),
            "Local cannot be inside Custom: nothing else can, its coordinator trains all of it");
}

// --- whole documents ---

TEST(TrainingStrategyDocs, HaveExamplesThatAreWrittenAsTheyAreRead) {
  std::ifstream file(TUTTI_STRATEGIES_PAGE);
  const std::string page(std::istreambuf_iterator<char>(file), {});
  std::set<std::string> types;
  const std::string begin = "```json\n";
  for (std::size_t at = page.find(begin); at != page.npos; at = page.find(begin, at + 1)) {
    const std::string text = page.substr(at + begin.size(), page.find("```", at + 1) - at - begin.size());
    SCOPED_TRACE(text);
    ASSERT_EQ(json_error(text), "(no error)");
    EXPECT_EQ(to_json(from_json(text)), ordered_json::parse(text));
    types.emplace(name_of(from_json(text)));
  }
  EXPECT_EQ(types.size(), std::variant_size_v<TrainingStrategy>);
}

// Somewhere in `root`, which it may be itself.
ordered_json& any_value(ordered_json& root, std::mt19937& random) {
  ordered_json* value = &root;
  while (value->is_structured() && !value->empty() && random() % 4 != 0)
    value = &*std::next(value->begin(), static_cast<std::ptrdiff_t>(random() % value->size()));
  return *value;
}

// One value deleted, replaced, or given a second time.
void mutate(ordered_json& root, std::mt19937& random) {
  static const ordered_json kOthers = ordered_json::parse(
      R"([null, true, -1, 0, 1, 2, 2.5, 1e30, 65537, "", "a", "Local", "DataParallel", "AllReduce", "FedProx", "ring",
          "1f1b", "Tree", [], {}, ["a", "a"], {"Tag": "gpu"}, {"TopK": 0.5}, {"type": "Local"}, {"method": "All"},
          {"protocol": "Pipeline"}])");
  static const std::vector<std::string> kKeys = {"type",   "method",         "protocol", "num_replicas", "inner", "mu",
                                                 "config", "logical_shards", "schedule", "WorkerId",     "x",     ""};
  ordered_json& value = any_value(root, random);
  const auto member = [&] { return std::next(value.begin(), static_cast<std::ptrdiff_t>(random() % value.size())); };
  const ordered_json other = random() % 2 == 0 ? kOthers[random() % kOthers.size()] : any_value(root, random);
  switch (random() % 4) {
    case 0:
      if (value.is_structured() && !value.empty()) value.erase(member());
      break;
    case 1: value = other; break;
    case 2:
      if (value.is_object()) value[kKeys[random() % kKeys.size()]] = other;
      break;
    default:
      if (value.is_array()) value.push_back(value.empty() ? other : ordered_json(*member()));
  }
}

// The same with a piece of the text.
std::string mutated(std::string text, std::mt19937& random) {
  const std::size_t where = random() % text.size();
  const std::string piece = text.substr(where, 1 + random() % 12);
  switch (random() % 3) {
    case 0: return text.erase(where, piece.size());
    case 1: return text.insert(where, piece);
    default: return text.replace(random() % text.size(), piece.size(), piece);
  }
}

TEST(TrainingStrategyProperty, MutatedDocumentsAreReadOrRefusedWithTheirPlace) {
  int taken = 0;
  int refused = 0;
  for (const Forms& form : every_form()) {
    for (unsigned seed = 0; seed < 600; seed += testing::kEveryWhereSanitized) {
      std::mt19937 random(seed);
      ordered_json root = ordered_json::parse(form.json);
      for (unsigned edits = random() % 4; edits > 0; --edits) mutate(root, random);
      const std::string text = random() % 4 == 0 ? mutated(root.dump(), random) : root.dump();
      SCOPED_TRACE(fmt::format("seed {} of {}:\n{}", seed, form.json, text));
      std::optional<TrainingStrategy> strategy;
      const std::string message = usage_error([&] { strategy = from_json(text); });
      if (strategy) {
        ++taken;
        ASSERT_TRUE(from_json(to_json(*strategy).dump()) == *strategy);
        ASSERT_EQ(validation_error(*strategy), "(no error)");
      } else {
        ++refused;
        ASSERT_THAT(message, ::testing::MatchesRegex("run.json:[0-9]+:[0-9]+: .+"));
      }
    }
  }
  EXPECT_GT(taken, 1000 / testing::kEveryWhereSanitized);
  EXPECT_GT(refused, 1000 / testing::kEveryWhereSanitized);
}

}  // namespace
}  // namespace tutti::strategy
