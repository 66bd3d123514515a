// Runs whose replicas have all parameters to themselves: mixed with those of neighbours, or brought together every so
// many steps.
#include <tutti/train/trainer.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/coordinate/outer_optimizer.hpp>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/strategy/mixing.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/footprint.hpp>

#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"
#include "support/usage_error.hpp"

namespace tutti::replica_mixing_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about
using ::testing::HasSubstr;

Json decentralized(int replicas, const std::string& topology) {
  return {{"type", "DataParallel"},
          {"num_replicas", replicas},
          {"aggregation", {{"method", "Decentralized"}, {"topology", topology}}}};
}

Json every(int replicas, int steps, const Json& outer = nullptr) {
  Json strategy{{"type", "DataParallel"},
                {"num_replicas", replicas},
                {"aggregation", {{"method", "AllReduce"}}},
                {"sync_every", steps}};
  if (!outer.is_null()) strategy["outer"] = outer;
  return strategy;
}

// Nothing is drawn in a step, and nothing runs along: plain loops can follow it.
Json plain_run(const std::filesystem::path& output, const Json& strategy) {
  Json run = small_run(output);
  run["graph"] = Json::parse(R"({"inputs": {"point": [4]}, "nodes": [
      {"id": "hidden", "op": "linear", "inputs": ["point"], "units": 6},
      {"id": "act", "op": "tanh", "inputs": ["hidden"]},
      {"id": "logits", "op": "linear", "inputs": ["act"], "units": 3}], "outputs": ["logits"]})");
  run["graph"]["strategy"] = strategy;
  run["optimizer"] = {{"name", "sgd"}, {"lr", 0.1}};
  run["metrics"] = {"accuracy"};
  return run;
}

// The same by hand: replicas that each take a step of plain gradient descent on their rows.
class ByHand {
 public:
  explicit ByHand(const tutti::Run& run)
      : run_(run), data_(open_data(run)), sampler_({.rows = data_.train->size(), .batch_size = 10, .seed = run.seed}) {
    const auto& parallel = std::get<strategy::DataParallel>(run.graph.effective_strategy());
    for (std::int64_t i = 0; i < parallel.num_replicas; ++i)
      nets_.push_back(std::make_shared<GraphModule>(run.graph, run.seed));
  }

  void step(std::int64_t step) {
    const std::vector<std::int64_t> rows = sampler_.rows_of(step).numbers;
    for (std::size_t r = 0; r < nets_.size(); ++r) {
      std::vector<std::int64_t> own;
      for (std::size_t i = r; i < rows.size(); i += nets_.size()) own.push_back(rows[i]);
      const DataRows batch = data_.train->rows(own);
      const torch::Tensor output = nets_[r]->forward(graph_inputs(run_, batch)).front();
      nets_[r]->zero_grad();
      run_.loss.compute(output, batch.target).loss.backward();
      const torch::NoGradGuard no_gradients;
      for (torch::Tensor& parameter : nets_[r]->parameters()) parameter.sub_(0.1 * parameter.grad());
    }
  }

  std::vector<std::shared_ptr<GraphModule>>& nets() { return nets_; }

  torch::Tensor mean(const std::string& name) const {
    torch::Tensor sum;
    for (const auto& net : nets_) {
      const torch::Tensor its = net->named_parameters()[name].detach().to(torch::kFloat64);
      sum = sum.defined() ? sum + its : its;
    }
    return sum / static_cast<double>(nets_.size());
  }

 private:
  const tutti::Run& run_;
  DataSplits data_;
  Sampler sampler_;
  std::vector<std::shared_ptr<GraphModule>> nets_;
};

void expect_close(const ParameterSet& arrays, const std::string& name, const torch::Tensor& expected) {
  const torch::Tensor its = tensor_of(arrays.at(name)).to(torch::kFloat64);
  EXPECT_LT((its - expected.to(torch::kFloat64)).abs().max().item<double>(), 2e-6) << name;
}

TEST(Decentralized, MixesParametersAsTheMatrixSays) {
  const ScratchFolder scratch;
  for (const char* topology : {"ring", "complete", "exponential", "torus", "random"}) {
    SCOPED_TRACE(topology);
    const tutti::Run run = read_small(plain_run(scratch / topology, decentralized(5, topology)));
    const Trained trained = train_small(run);
    const auto& parallel = std::get<strategy::DataParallel>(run.graph.effective_strategy());
    const MixingMatrix mixing(std::get<strategy::Decentralized>(parallel.aggregation).topology,
                              {.replicas = 5, .seed = run.seed});
    ByHand by_hand(run);
    for (std::int64_t step = 0; step < 14; ++step) {
      by_hand.step(step);
      std::vector<std::map<std::string, torch::Tensor>> mixed(5);
      for (int i = 0; i < 5; ++i) {
        for (const MixingWeight& its : mixing.row(i)) {
          for (const auto& item : by_hand.nets()[static_cast<std::size_t>(its.replica)]->named_parameters()) {
            const torch::Tensor part = its.weight * item.value().detach().to(torch::kFloat64);
            torch::Tensor& sum = mixed[static_cast<std::size_t>(i)][item.key()];
            sum = sum.defined() ? sum + part : part;
          }
        }
      }
      const torch::NoGradGuard no_gradients;
      for (std::size_t i = 0; i < 5; ++i) {
        for (auto& item : by_hand.nets()[i]->named_parameters()) item.value().copy_(mixed[i][item.key()]);
      }
    }
    const ParameterSet arrays = arrays_in(trained.result.last_checkpoint);
    for (const auto& item : by_hand.nets()[0]->named_parameters()) {
      expect_close(arrays, item.key(), by_hand.mean(item.key()));
      for (std::size_t r = 0; r < 5; ++r)
        expect_close(arrays, "replica/" + std::to_string(r) + "/" + item.key(),
                     by_hand.nets()[r]->named_parameters()[item.key()].detach());
    }
  }
}

TEST(StepsByThemselves, ChangeWhatReplicasHaveInCommonAsTheOuterRuleSays) {
  const ScratchFolder scratch;
  for (const Json& outer :
       {Json({{"method", "FedAvg"}}), Json({{"method", "FedAvgM"}, {"momentum", 0.9}, {"lr", 0.7}, {"nesterov", true}}),
        Json({{"method", "FedAdam"}, {"lr", 0.05}})}) {
    SCOPED_TRACE(outer.dump());
    const tutti::Run run = read_small(plain_run(scratch / outer["method"].get<std::string>(), every(3, 4, outer)));
    const Trained trained = train_small(run);
    ByHand by_hand(run);
    ParameterSet common;
    for (const auto& item : by_hand.nets()[0]->named_parameters())
      add_tensor(common, item.key(), item.value().detach());
    const auto& parallel = std::get<strategy::DataParallel>(run.graph.effective_strategy());
    OuterOptimizer optimizer(
        std::visit([](const auto& its) { return strategy::FederatedAggregation(its); }, parallel.outer));
    for (std::int64_t step = 0; step < 14; ++step) {
      by_hand.step(step);
      if ((step + 1) % 4 != 0) continue;
      Change change;
      for (const NamedArray& array : common) {
        const torch::Tensor its = (by_hand.mean(array.name()) - tensor_of(array).to(torch::kFloat64)).contiguous();
        change.emplace_back(its.data_ptr<double>(), its.data_ptr<double>() + its.numel());
      }
      optimizer.step(common, change);
      const torch::NoGradGuard no_gradients;
      for (const auto& net : by_hand.nets()) {
        for (auto& item : net->named_parameters()) item.value().copy_(tensor_of(common.at(item.key())));
      }
    }
    // The last two steps were taken alone: what is read is the mean.
    const ParameterSet arrays = arrays_in(trained.result.last_checkpoint);
    for (const NamedArray& array : common) {
      expect_close(arrays, array.name(), by_hand.mean(array.name()));
      expect_close(arrays, "outer/common/" + array.name(), tensor_of(array));
    }
  }
}

TEST(StepsByThemselves, AreNotStepsOfTheMean) {
  const ScratchFolder scratch;
  Json document = plain_run(scratch / "local", every(2, 2));
  document["train"] = {{"steps", 2}};
  document["data"]["rows"] = 60;
  const Trained local = train_small(read_small(document));
  // Two steps of each replica, and the mean of both, are not two steps of the mean.
  document["output"] = (scratch / "together").string();
  document["graph"]["strategy"] = data_parallel(2);
  const Trained together = train_small(read_small(document));
  const auto weights = [](const Trained& its) {
    return tensor_of(arrays_in(its.result.last_checkpoint).at("hidden.weight"));
  };
  EXPECT_FALSE(weights(local).equal(weights(together)));
}

// On threads and on processes, without a break and with one at any step, and with more or fewer processes after it.
TEST(ReplicaMixing, HasTheSameBitsWhereverReplicasAreAndAfterAResume) {
  const ScratchFolder scratch;
  int number = 0;
  const auto name = [&] { return scratch / std::to_string(number++); };
  for (const Json& strategy : {decentralized(4, "ring"), decentralized(5, "exponential"), decentralized(4, "random")}) {
    SCOPED_TRACE(strategy.dump());
    Json document = small_run(name());
    document["graph"]["strategy"] = strategy;
    document["data"]["drop_last"] = true;  // two rows for batch norm in each place
    const ParameterSet whole = arrays_in(train_small(read_small(document)).result.last_checkpoint);
    for (const int processes : {2, 3}) {
      document["output"] = name().string();
      EXPECT_EQ(arrays_in(train_small(read_small(document), {.processes = processes}).result.last_checkpoint), whole)
          << processes << " processes";
    }
    for (const std::int64_t at : {1, 6, 13}) {
      document["output"] = name().string();
      (void)train_small(read_small(document), {.interrupt_at = at});
      EXPECT_EQ(arrays_in(train_small(read_small(document), {.processes = 2, .resume = true}).result.last_checkpoint),
                whole)
          << "from step " << at;
    }
  }
}

TEST(ReplicaMixing, GoesOnWithTheSameBitsBetweenTwoMeetings) {
  const ScratchFolder scratch;
  int number = 0;
  for (const int processes : {1, 2}) {
    for (const Json& outer : {Json(), Json({{"method", "FedAvgM"}, {"lr", 0.7}, {"nesterov", true}})}) {
      Json document = small_run(scratch / std::to_string(number++));
      document["graph"]["strategy"] = every(4, 3, outer);
      const ParameterSet whole =
          arrays_in(train_small(read_small(document), {.processes = processes}).result.last_checkpoint);
      for (const std::int64_t at : {2, 6, 7}) {
        document["output"] = (scratch / std::to_string(number++)).string();
        (void)train_small(read_small(document), {.processes = processes, .interrupt_at = at});
        EXPECT_EQ(
            arrays_in(
                train_small(read_small(document), {.processes = processes, .resume = true}).result.last_checkpoint),
            whole)
            << outer.dump() << " on " << processes << " from step " << at;
      }
    }
  }
}

TEST(ReplicaMixing, LeavesPrivateParametersToTheirReplicas) {
  const ScratchFolder scratch;
  for (const Json& strategy : {decentralized(3, "complete"), every(3, 2)}) {
    SCOPED_TRACE(strategy.dump());
    Json document = small_run(scratch / strategy["aggregation"]["method"].get<std::string>());
    document["graph"]["strategy"] = strategy;
    document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
    const ParameterSet arrays = arrays_in(train_small(read_small(document)).result.last_checkpoint);
    const auto of = [&](int replica, const std::string& name) {
      return tensor_of(arrays.at("replica/" + std::to_string(replica) + "/" + name));
    };
    EXPECT_FALSE(of(1, "body.wide.weight").equal(of(2, "body.wide.weight")));
    EXPECT_TRUE(of(1, "hidden.weight").equal(of(2, "hidden.weight")));  // they have just been brought together
  }
}

// On ranks that each have a loss of their own. Returns what each has failed with.
std::vector<std::string> train_each(int processes, const Json& document,
                                    const std::function<void(int rank)>& before_loss) {
  std::vector<std::string> failures(static_cast<std::size_t>(processes));
  run_ranks(processes, [&](Communicator& world) {
    const int rank = world.rank().value;
    Registry registry;
    registry.losses.add(
        {.name = "own", .resolve = [&](const Options&, const ValueSpec&, const DataDescription&) {
           return Loss{.compute = [&before_loss, rank](const torch::Tensor& output, const torch::Tensor& target) {
             before_loss(rank);
             return torch::cross_entropy_loss(output, target);
           }};
         }});
    try {
      (void)train(read_small(document, registry), Events(), {.world = &world});
    } catch (const ToldElsewhere&) {
      failures[static_cast<std::size_t>(rank)] = "told elsewhere";
    } catch (const Error& error) {
      failures[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return failures;
}

// On processes they say nothing to each other between two meetings: one comes to the next before another has begun.
TEST(StepsByThemselves, WaitForNobodyBetweenTwoMeetings) {
  const ScratchFolder scratch;
  for (const int accumulate : {1, 2}) {
    const int alone = 4 * accumulate;
    Json document = plain_run(scratch / std::to_string(accumulate), every(2, 4));
    document["loss"] = "own";
    document["train"] = {{"steps", 3 * alone}, {"accumulate", accumulate}, {"evaluate_every", 1000}};
    std::mutex mutex;
    std::condition_variable changed;
    int begun = 0;  // by the first
    bool has_waited = false;
    bool has_seen_all = false;
    const auto failures = train_each(2, document, [&](int rank) {
      std::unique_lock lock(mutex);
      if (rank == 0) {
        ++begun;
        changed.notify_all();
      } else if (!std::exchange(has_waited, true)) {
        has_seen_all = changed.wait_for(lock, std::chrono::seconds(20), [&] { return begun == alone; });
      }
    });
    EXPECT_EQ(failures, std::vector<std::string>(2));
    EXPECT_TRUE(has_seen_all);
  }
}

// The others hear of it where they would have met.
TEST(StepsByThemselves, EndForAllWhereOneFails) {
  const ScratchFolder scratch;
  for (const int failing : {0, 1, 2}) {
    Json document = plain_run(scratch / std::to_string(failing), every(3, 10));
    document["loss"] = "own";
    document["train"] = {{"steps", 40}, {"evaluate_every", 1000}};
    std::atomic<int> calls = 0;
    const std::vector<std::string> failures = train_each(3, document, [&](int rank) {
      if (rank == failing && ++calls == 14) throw Error("no more of this");
    });
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(failures[static_cast<std::size_t>(rank)],
                rank == failing ? "step 14: no more of this" : "told elsewhere");
  }
}

TEST(StepsByThemselves, HearOfAnInterruptionWhereTheyMeet) {
  const ScratchFolder scratch;
  int number = 0;
  // The seventh step is the last one of an epoch, which ends with an evaluation: all hear of it there, too.
  for (const bool has_evaluation : {false, true}) {
    for (const int processes : {1, 2}) {
      Json document = plain_run(scratch / std::to_string(number++), every(4, 5));
      if (!has_evaluation) document["train"]["evaluate_every"] = 1000;
      const Trained trained = train_small(read_small(document), {.processes = processes, .interrupt_at = 7});
      EXPECT_EQ(trained.result.reason, event::RunEnded::Reason::interrupted);
      EXPECT_EQ(trained.result.step, processes == 1 ? 7 : has_evaluation ? 8 : 10);
    }
  }
}

// Running statistics follow replica 0 wherever somebody looks at them; those of a private layer are each replica's own.
TEST(StepsByThemselves, HaveTheSameRunningStatisticsOnAnyNumberOfProcesses) {
  const ScratchFolder scratch;
  int number = 0;
  for (const bool is_private : {false, true}) {
    ParameterSet one;
    for (const int processes : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(processes) + (is_private ? " processes, private" : " processes"));
      Json document = small_run(scratch / std::to_string(number++));
      document["graph"]["strategy"] = every(3, 4);
      document["optimizer"] = {{"name", "sgd"}, {"lr", 0}};  // sums of parameters round otherwise
      document["data"]["drop_last"] = true;
      if (is_private) document["graph"]["nodes"][1]["strategy"] = {{"type", "Local"}};
      const Trained trained = train_small(read_small(document), {.processes = processes});
      ParameterSet arrays = arrays_in(trained.result.last_checkpoint);
      if (processes == 1) one = arrays;
      EXPECT_EQ(arrays.names(), one.names());
      int statistics = 0;
      for (const NamedArray& array : arrays) {
        if (array.name().find("running_") == std::string::npos) continue;
        EXPECT_TRUE(tensor_of(array).equal(tensor_of(one.at(array.name())))) << array.name();
        ++statistics;
      }
      EXPECT_EQ(statistics, is_private ? 8 : 2);
    }
  }
}

// Weight decay, gradients that are clipped, classes that weigh differently, and a head that the loss does not depend
// on.
TEST(ReplicaMixing, OfOneReplicaIsLocal) {
  const ScratchFolder scratch;
  int number = 0;
  const auto trained_with = [&](const Json& strategy) {
    Json document = plain_run(scratch / std::to_string(number++), strategy);
    document["optimizer"] = {{"name", "adamw"}, {"lr", 0.01}, {"weight_decay", 0.3}};
    document["train"] = {{"steps", 14}, {"clip_norm", 0.2}};
    document["loss"] = {{"name", "cross_entropy"}, {"class_weights", {1, 2, 0.5}}};
    Json& graph = document["graph"];
    graph["nodes"].push_back({{"id", "second"}, {"op", "linear"}, {"inputs", {"act"}}, {"units", 2}});
    graph["outputs"] = {"logits", "second"};
    return arrays_in(train_small(read_small(document)).result.last_checkpoint);
  };
  const ParameterSet local = trained_with({{"type", "Local"}});
  const Json server{{"type", "DataParallel"}, {"num_replicas", 1}, {"aggregation", {{"method", "ParameterServer"}}}};
  for (const Json& strategy : {decentralized(1, "ring"), every(1, 3), server}) {
    const ParameterSet its = trained_with(strategy);
    // A mean is made of changes, which are rounded.
    const double tolerance = strategy.contains("sync_every") ? 1e-6 : 0;
    for (const char* name : {"hidden.weight", "hidden.bias", "logits.weight", "second.weight", "second.bias"}) {
      const torch::Tensor difference = tensor_of(its.at(name)) - tensor_of(local.at(name));
      EXPECT_LE(difference.abs().max().item<double>(), tolerance) << name << ", " << strategy.dump();
    }
  }
  // However many there are, nobody touches the head.
  for (const Json& strategy : {decentralized(3, "ring"), every(3, 3)})
    EXPECT_TRUE(tensor_of(trained_with(strategy).at("second.weight")).equal(tensor_of(local.at("second.weight"))));
}

// Each clips the gradient of its own rows, and weighs these by their classes, before any mean is taken.
TEST(ReplicaMixing, ClipsAndWeighsEachReplicasOwnGradient) {
  const ScratchFolder scratch;
  Json document = plain_run(scratch / "run", every(2, 1000));
  document["train"] = {{"steps", 1}, {"clip_norm", 0.05}};
  document["loss"] = {{"name", "cross_entropy"}, {"class_weights", {1, 3, 0.5}}};
  const tutti::Run run = read_small(document);
  const ParameterSet arrays = arrays_in(train_small(run).result.last_checkpoint);
  Sampler sampler({.rows = 68, .batch_size = 10, .seed = run.seed});
  const DataSplits data = open_data(run);
  for (std::size_t r = 0; r < 2; ++r) {
    std::vector<std::int64_t> own;
    const std::vector<std::int64_t> rows = sampler.rows_of(0).numbers;
    for (std::size_t i = r; i < rows.size(); i += 2) own.push_back(rows[i]);
    GraphModule net(run.graph, run.seed);
    const DataRows batch = data.train->rows(own);
    run.loss.compute(net.forward(graph_inputs(run, batch)).front(), batch.target).loss.backward();
    double squares = 0;
    for (const torch::Tensor& parameter : net.parameters()) squares += parameter.grad().pow(2).sum().item<double>();
    ASSERT_GT(std::sqrt(squares), 0.05);
    for (const auto& item : net.named_parameters()) {
      const torch::Tensor expected =
          item.value().detach() - 0.1 * 0.05 / (std::sqrt(squares) + 1e-6) * item.value().grad();
      expect_close(arrays, "replica/" + std::to_string(r) + "/" + item.key(), expected);
    }
  }
}

// What is frozen is the same everywhere, and stays at home.
TEST(ReplicaMixing, SendsNothingThatIsFrozen) {
  const ScratchFolder scratch;
  int number = 0;
  constexpr double kTrained = 4.0 * (3 * 6 + 3);
  for (const Json& strategy : {decentralized(3, "complete"), every(3, 2)}) {
    for (const int processes : {1, 2}) {
      Json document = plain_run(scratch / std::to_string(number++), strategy);
      document["graph"]["nodes"][0]["frozen"] = true;
      const tutti::Run run = read_small(document);
      const Trained trained = train_small(run, {.processes = processes});
      double bytes = 0;
      for (const event::StepEnded& step : trained.told->of<event::StepEnded>()) {
        for (const NamedNumber& count : step.counts) bytes += count.name == "bytes_exchanged" ? count.value : 0;
      }
      EXPECT_EQ(bytes, strategy.contains("sync_every") ? 7 * 2 * 2 * kTrained : 14 * 6 * kTrained) << strategy.dump();
      EXPECT_EQ(bytes, 14 * footprint_of(run).moved.value_or(0));
      GraphModule before(run.graph, run.seed);
      expect_close(arrays_in(trained.result.last_checkpoint), "hidden.weight",
                   before.named_parameters()["hidden.weight"]);
      document["train"]["steps"] = 20;
      EXPECT_EQ(train_small(read_small(document), {.processes = 3 - processes, .resume = true}).result.step, 20);
    }
  }
}

TEST(ReplicaMixing, TellsItsNeighboursTheSpectralGapAndBytes) {
  const ScratchFolder scratch;
  const Trained ring = train_small(read_small(plain_run(scratch / "ring", decentralized(4, "ring"))));
  EXPECT_THAT(ring.told->of<event::RunStarted>()[0].engine, HasSubstr("topology ring: spectral gap 0.667"));
  const auto bytes_of = [](const event::StepEnded& step) {
    for (const NamedNumber& count : step.counts) {
      if (count.name == "bytes_exchanged") return count.value;
    }
    return -1.0;
  };
  constexpr double kParameters = 4.0 * (6 * 4 + 6 + 3 * 6 + 3);
  // Each hears two others, wherever these are.
  EXPECT_EQ(bytes_of(ring.told->of<event::StepEnded>()[3]), 8 * kParameters);
  for (const int processes : {2, 3}) {
    const Json document = plain_run(scratch / ("ring" + std::to_string(processes)), decentralized(4, "ring"));
    const Trained spread = train_small(read_small(document), {.processes = processes});
    EXPECT_EQ(bytes_of(spread.told->of<event::StepEnded>()[3]), 8 * kParameters) << processes << " processes";
  }
  const tutti::Run run = read_small(plain_run(scratch / "alone", every(3, 5)));
  EXPECT_EQ(footprint_of(run).moved, 2 * 2 * kParameters / 5);
  const Trained alone = train_small(run);
  EXPECT_EQ(bytes_of(alone.told->of<event::StepEnded>()[3]), 0);
  EXPECT_EQ(bytes_of(alone.told->of<event::StepEnded>()[4]), 2 * 2 * kParameters);
}

TEST(StepsByThemselves, SayWhereTheyEndWithoutAMeeting) {
  const ScratchFolder scratch;
  int number = 0;
  const auto warning = [&](int steps, std::int64_t accumulate) {
    Json document = plain_run(scratch / std::to_string(number++), every(2, steps));
    document["train"]["accumulate"] = accumulate;
    const auto warned = train_small(read_small(document)).told->of<event::Warned>();
    return warned.empty() ? "" : warned[0].sentence;
  };
  EXPECT_EQ(warning(7, 1), "");
  EXPECT_EQ(warning(7, 2), "");
  EXPECT_EQ(warning(4, 1),
            "replicas meet every 4 steps: the last 2 of 14 they take alone, and what is kept is their mean");
  EXPECT_EQ(warning(3, 2),
            "replicas meet every 6 steps: the last 2 of 14 they take alone, and what is kept is their mean");
  EXPECT_EQ(warning(1000, 1), "replicas meet every 1000 steps: in 14 they never do, and what is kept is their mean");
}

// What replicas do with each other is a part of what is learnt; how many there are, and how they add up, is none.
TEST(ReplicaMixing, WarnsWhereReplicasGoOnInAnotherWay) {
  const ScratchFolder scratch;
  int number = 0;
  const auto told = [&](const Json& before, const Json& after) {
    Json document = plain_run(scratch / std::to_string(number++), before);
    (void)train_small(read_small(document), {.interrupt_at = 7});
    document["graph"]["strategy"] = after;
    std::string all;
    for (const event::Warned& warned : train_small(read_small(document), {.resume = true}).told->of<event::Warned>())
      all += warned.sentence;
    return all;
  };
  const std::string changed = "the run file has changed since the checkpoint was written: graph.strategy.";
  const Json local{{"type", "Local"}};
  const Json server{{"type", "DataParallel"}, {"num_replicas", 2}, {"aggregation", {{"method", "ParameterServer"}}}};
  EXPECT_EQ(told(data_parallel(2), data_parallel(3)), "");
  EXPECT_EQ(told(data_parallel(2), data_parallel(2, {{"algorithm", "Ring"}})), "");
  EXPECT_EQ(told(data_parallel(2), server), "");
  EXPECT_EQ(told(local, data_parallel(2)), "");
  EXPECT_EQ(told(every(2, 7), every(2, 7)), "");
  EXPECT_EQ(told(data_parallel(2), data_parallel(2, {{"compression", "Float16"}})), changed + "aggregation");
  EXPECT_EQ(told(decentralized(3, "ring"), decentralized(3, "complete")), changed + "aggregation");
  EXPECT_EQ(told(every(2, 7), data_parallel(2)), changed + "sync_every");
  EXPECT_EQ(told(every(2, 7), every(2, 7, {{"method", "FedAvgM"}})), changed + "outer");
  EXPECT_EQ(told(local, every(2, 7)), changed + "sync_every");
}

TEST(SynchronousParameterServer, ComputesWhatAllReduceDoes) {
  const ScratchFolder scratch;
  for (const int processes : {1, 2}) {
    Json document = small_run(scratch / ("server" + std::to_string(processes)));
    document["graph"]["strategy"] = {
        {"type", "DataParallel"}, {"num_replicas", 3}, {"aggregation", {{"method", "ParameterServer"}}}};
    const Trained server = train_small(read_small(document), {.processes = processes});
    document["output"] = (scratch / ("centralized" + std::to_string(processes))).string();
    document["graph"]["strategy"] = data_parallel(3, {{"algorithm", "Centralized"}});
    const Trained all_reduce = train_small(read_small(document), {.processes = processes});
    EXPECT_EQ(arrays_in(server.result.last_checkpoint), arrays_in(all_reduce.result.last_checkpoint));
  }
}

TEST(StepsByThemselves, RefuseAnEngineThatIsNotThere) {
  const ScratchFolder scratch;
  Json strategy = every(2, 3);
  strategy["aggregation"]["algorithm"] = "Gloo";
  EXPECT_EQ(usage_error([&] { (void)train_small(read_small(plain_run(scratch / "run", strategy))); }),
            "algorithm: Gloo is for processes, and replicas are threads of one");
}

}  // namespace
}  // namespace tutti::replica_mixing_test
