#include <tutti/strategy/training_strategy.hpp>

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/usage_error.hpp>

namespace tutti::strategy {
namespace {

using nlohmann::ordered_json;
using testing::usage_error;

TrainingStrategy from_json(const ordered_json& json) {
  return training_strategy_from_json(JsonDocument::parse(json.dump(), "run.json").root());
}

ordered_json plain() { return to_json(Federated{.num_clients = 20, .rounds = 3}); }

std::vector<Federated> every_kind() {
  std::vector<Federated> all;
  for (const FederatedAggregation& rule : std::vector<FederatedAggregation>{
           FedAvg{}, FedProx{.mu = 0.5}, FedYogi{.lr = 0.5}, FedAvgM{.momentum = 0.5}, FedAdam{.lr = 0.5},
           FedAdagrad{.tau = 0.5}, Median{}, TrimmedMean{.fraction = 0.25}, Krum{.byzantine = 2},
           MultiKrum{.byzantine = 2, .keep = 3}, Bulyan{.byzantine = 1}, NormClipping{.max_norm = 3}}) {
    for (const ClientSelection& selection : std::vector<ClientSelection>{
             All{}, Random{.fraction = 0.5}, ByCapability{{"a"}}, PowerOfChoice{.fraction = 0.25, .candidates = 0.5}}) {
      all.push_back({.num_clients = 20, .rounds = 3, .aggregation = rule, .client_selection = selection});
    }
  }
  for (const FederatedRound& round : std::vector<FederatedRound>{
           Synchronous{.replies = 8, .ask_beyond = 2, .deadline = 1.5, .late = Discount{.factor = 0.25}},
           Synchronous{.too_few = TooFew::end, .max_repeats = 0}, Buffered{},
           Buffered{.replies = 4, .concurrency = 8, .staleness_exponent = 1, .max_staleness = 9}})
    all.push_back({.num_clients = 20, .round = round});
  all.push_back({.local = {.epochs = 5}});
  all.push_back({.local = {.steps = 7}});
  all.push_back({.compression = Float16{}});
  all.push_back({.compression = TopK{.fraction = 0.5}, .max_update_norm = 2.5, .threads = 3});
  return all;
}

TEST(FederatedStrategy, IsReadAsItIsWritten) {
  for (const Federated& its : every_kind()) {
    SCOPED_TRACE(to_json(its).dump());
    EXPECT_EQ(from_json(to_json(its)), TrainingStrategy(its));
    EXPECT_EQ(usage_error([&] { validate(its); }), "(no error)");
  }
}

TEST(FederatedStrategy, LeavesOutWhatHoldsItsDefault) {
  EXPECT_EQ(plain().dump(), R"({"type":"Federated","num_clients":20,"rounds":3,"aggregation":{"method":"FedAvg"},)"
                            R"("client_selection":{"method":"All"}})");
  EXPECT_EQ(to_json(Federated{.aggregation = FedAdam{}}).at("aggregation").dump(), R"({"method":"FedAdam"})");
  EXPECT_EQ(to_json(Federated{.round = Buffered{}}).at("round").dump(), R"({"method":"Buffered"})");
}

TEST(FederatedStrategy, IsToldInALine) {
  EXPECT_EQ(to_string(Federated{.num_clients = 20,
                                .aggregation = TrimmedMean{},
                                .client_selection = Random{.fraction = 0.5},
                                .round = Synchronous{.deadline = 30, .late = Discount{.factor = 0.25}},
                                .local = {.epochs = 5},
                                .compression = TopK{.fraction = 0.5}}),
            "Federated: 20 clients, 1 round, TrimmedMean, Random (fraction 0.5), Synchronous (deadline 30.0, late "
            "Discount (factor 0.25)), 5 epochs a client, TopK:0.5");
}

TEST(FederatedStrategy, RefusesWhatCannotBe) {
  const std::vector<std::pair<ordered_json, std::string>> cases = {
      {{{"round", {{"method", "Synchronous"}, {"replies", 21}}}},
       "round.replies: expected at most as many as there are"},
      {{{"round", {{"method", "Buffered"}, {"concurrency", 21}}}}, "round.concurrency: expected at most as many as"},
      {{{"round", {{"method", "Buffered"}, {"replies", 0}}}}, "round.replies: expected a whole number from 1"},
      {{{"round", {{"method", "Synchronous"}, {"too_few", "wait"}}}}, "round.too_few: expected \"repeat\" or \"end\""},
      {{{"round", {{"method", "Synchronous"}, {"late", {{"method", "Discount"}, {"factor", 0}}}}}},
       "round.late.factor: expected"},
      {{{"round", {{"method", "Synchronous"}, {"dedline", 3}}}}, "deadline"},
      {{{"local", {{"epochs", 1}, {"steps", 2}}}}, "local.steps: there are epochs, too"},
      {{{"local", {{"epochs", 0}}}}, "local.epochs: expected a whole number from 1"},
      {{{"local", 5}}, R"(local: expected how long a client trains in a round, as in {"epochs": 5})"},
      {{{"compression", {{"PowerSgd", 2}}}}, "compression: PowerSgd is for replicas"},
      {{{"compression", "PowerSgd"}},
       "compression: expected a compression: \"NoCompression\", {\"TopK\": 0.01}, \"Float16\" or \"BFloat16\""},
      {{{"compression", "Zip"}},
       "compression: expected a compression: \"NoCompression\", {\"TopK\": 0.01}, \"Float16\" or \"BFloat16\""},
      {{{"aggregation", {{"method", "TrimmedMean"}, {"fraction", 0.5}}}}, "aggregation.fraction: expected"},
      {{{"aggregation", {{"method", "Krum"}}}}, "aggregation: missing key \"byzantine\""},
      {{{"aggregation", {{"method", "NormClipping"}, {"max_norm", 0}}}}, "aggregation.max_norm: expected"},
      {{{"client_selection", {{"method", "PowerOfChoice"}, {"fraction", 0.5}, {"candidates", 0.25}}}},
       "candidates: expected candidates of at least the fraction"},
      {{{"max_update_norm", -1}}, "max_update_norm: expected"},
      {{{"threads", 2000}}, "threads: expected"},
  };
  for (const auto& [changed, why] : cases) {
    ordered_json json = plain();
    json.update(changed);
    SCOPED_TRACE(json.dump());
    const std::string error = usage_error([&] { from_json(json); });
    EXPECT_NE(error.find(why), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace tutti::strategy
