// Runs whose replicas do not wait for each other, in an order that the test sets: who waits for whom, how old gradients
// are, and what becomes of them then.
#include <tutti/train/trainer.hpp>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <tutti/graph/graph_module.hpp>
#include <tutti/nn/tensor_set.hpp>

#include "support/scratch_folder.hpp"
#include "support/train_runs.hpp"

namespace tutti::asynchronous_staleness_test {
namespace {

using namespace tutti::testing;  // NOLINT: what this file is about

// Counts how often each of two replicas has begun a loss, and holds them up. The first to come is the slow one.
class Turns {
 public:
  struct Wait {
    int before = 1;      // its so manieth loss
    int of_other = 0;    // until the other one has begun so many
    bool looks = false;  // whether it begins more, for a while
  };

  Turns(const Wait& slow, const Wait& quick) : slow_{.wait = slow}, quick_{.wait = quick} {}

  void take() {
    std::unique_lock lock(mutex_);
    if (slow_one_ == std::thread::id()) slow_one_ = std::this_thread::get_id();
    const bool is_slow = slow_one_ == std::this_thread::get_id();
    Replica& its = is_slow ? slow_ : quick_;
    const Replica& other = is_slow ? quick_ : slow_;
    ++its.losses;
    changed_.notify_all();
    if (its.losses != its.wait.before) return;
    const auto until = [&](int losses) { return [&other, losses] { return other.losses >= losses; }; };
    // Where it never is, the test fails rather than hangs.
    changed_.wait_for(lock, std::chrono::seconds(20), until(its.wait.of_other));
    if (its.wait.looks) changed_.wait_for(lock, std::chrono::milliseconds(100), until(its.wait.of_other + 1));
    its.found = other.losses;
  }

  // How many losses the other had begun when the wait was over.
  int found_by_slow() const { return slow_.found; }

 private:
  struct Replica {
    Wait wait;
    int losses = 0;
    int found = 0;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread::id slow_one_;
  Replica slow_, quick_;
};

constexpr double kRate = 0.5;  // of the run file
constexpr int kRows = 12;

// Two replicas with a row each in a step, all rows alike, and a loss whose gradient is the same wherever parameters
// are: what they become tells how much each gradient counted.
Json linear_run(const std::filesystem::path& output, const Json& aggregation, int steps) {
  Json run = Json::parse(R"({"seed": 1, "data": {"source": "ones", "batch_size": 2},
    "graph": {"inputs": {"x": [1]}, "nodes": [{"id": "out", "op": "linear", "inputs": ["x"], "units": 1}],
              "outputs": ["out"]},
    "loss": "mean", "optimizer": {"name": "sgd", "lr": 0.5}})");
  run["graph"]["strategy"] = {{"type", "DataParallel"}, {"num_replicas", 2}, {"aggregation", aggregation}};
  run["train"] = {{"steps", steps}, {"evaluate_every", 1000}};
  run["output"] = output.string();
  return run;
}

tutti::Run read_in_turns(const Json& document, const std::shared_ptr<Turns>& turns) {
  Registry registry;
  registry.data_sources.add({.name = "ones", .resolve = [](const Options&) {
                               const auto rows = std::make_shared<TensorDataset>(
                                   std::vector{torch::ones({kRows, 1})}, torch::zeros({kRows, 1}, torch::kFloat32));
                               return DataSource{
                                   .description = {.inputs = {{"x", {.shape = {1}}}}, .target = {.shape = {1}}},
                                   .open = [rows] { return DataSplits{.train = rows}; }};
                             }});
  registry.losses.add({.name = "mean", .resolve = [turns](const Options&, const ValueSpec&, const DataDescription&) {
                         return Loss{.compute = [turns](const torch::Tensor& output, const torch::Tensor&) {
                           turns->take();
                           return output.mean();
                         }};
                       }});
  return read_small(document, registry);
}

Trained train_in_turns(const Json& document, const std::shared_ptr<Turns>& turns) {
  return train_small(read_in_turns(document, turns));
}

double counted(const Trained& trained, const std::string& name) {
  double sum = 0;
  for (const event::StepEnded& step : trained.told->of<event::StepEnded>()) {
    for (const NamedNumber& count : step.counts) {
      if (count.name == name) sum += count.value;
    }
  }
  return sum;
}

Json server(const std::string& consistency, const Json& more = Json::object()) {
  Json aggregation{{"method", "ParameterServer"}, {"consistency", consistency}};
  aggregation.update(more);
  return aggregation;
}

// The slow one is at its first loss. The quick one takes as many as it may, and then waits.
TEST(AsynchronousStaleness, IsBoundedAsMaxStalenessSays) {
  const ScratchFolder scratch;
  for (const int bound : {0, 1, 3}) {
    const auto turns = std::make_shared<Turns>(Turns::Wait{.of_other = bound + 1, .looks = true}, Turns::Wait{});
    const Json aggregation = server("bounded_staleness", {{"max_staleness", bound}});
    const Trained trained = train_in_turns(linear_run(scratch / std::to_string(bound), aggregation, 8), turns);
    EXPECT_EQ(trained.result.step, 8);
    EXPECT_EQ(turns->found_by_slow(), bound + 1);
  }
}

TEST(AsynchronousStaleness, HasNoBoundWhereNobodyWaitsAndIsCounted) {
  const ScratchFolder scratch;
  const auto turns = std::make_shared<Turns>(Turns::Wait{.of_other = 8}, Turns::Wait{});
  const Trained trained = train_in_turns(linear_run(scratch / "run", server("asynchronous"), 8), turns);
  EXPECT_GE(turns->found_by_slow(), 8);
  // The eighth of the quick one, and those after it, may come before or after the first of the slow one.
  EXPECT_GE(counted(trained, "staleness_4_to_7") + counted(trained, "staleness_8_to_15"), 1);
  EXPECT_GE(counted(trained, "staleness_0"), 7);
}

// Three gradients of the quick one, one of the slow one that is three versions old, and one of each in either order.
TEST(AsynchronousStaleness, ScalesAndCorrectsGradientsAsTheirAgesSay) {
  const ScratchFolder scratch;
  int number = 0;
  for (const double exponent : {0.0, 0.5, 1.0}) {
    for (const double compensation : {0.0, 0.4}) {
      SCOPED_TRACE("rate_exponent " + std::to_string(exponent) + ", delay_compensation " +
                   std::to_string(compensation));
      const auto turns = std::make_shared<Turns>(Turns::Wait{.of_other = 4}, Turns::Wait{.before = 4, .of_other = 2});
      const Json aggregation =
          server("asynchronous", {{"rate_exponent", exponent}, {"delay_compensation", compensation}});
      const Json document = linear_run(scratch / std::to_string(number++), aggregation, 3);
      const Trained trained = train_in_turns(document, turns);
      const double zeros = counted(trained, "staleness_0");
      ASSERT_TRUE(zeros == 3 || zeros == 4) << zeros;
      EXPECT_EQ(counted(trained, "staleness_2_to_3"), zeros == 3 ? 1 : 2);
      // Of which version each was: the last two are of the fourth and the fifth.
      const std::vector<std::size_t> bases =
          zeros == 3 ? std::vector<std::size_t>{0, 1, 2, 0, 3, 4} : std::vector<std::size_t>{0, 1, 2, 0, 4, 3};
      std::vector<double> versions{0};
      for (const std::size_t base : bases) {
        const double now = versions.back();
        const auto age = static_cast<double>(versions.size() - 1 - base);
        const double gradient = 1 + compensation * (now - versions[base]);
        versions.push_back(now - kRate / 2 * std::pow(1 + age, -exponent) * gradient);  // half of a batch
      }
      const ParameterSet arrays = arrays_in(trained.result.last_checkpoint);
      GraphModule before(read_in_turns(document, turns).graph, 1);
      for (const auto& item : before.named_parameters())
        EXPECT_NEAR(tensor_of(arrays.at(item.key())).item<double>() - item.value().item<double>(), versions.back(),
                    1e-5)
            << item.key();
    }
  }
}

}  // namespace
}  // namespace tutti::asynchronous_staleness_test
