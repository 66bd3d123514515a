// What bench_coordinator starts to train networks: runs of tutti in this process, with what it takes to measure them.
//
//   coordinator_runs slow <run.json> <consistency> <epochs>
//     two replicas, of which the first sleeps with each of its shards, four times as long as it computes
//   coordinator_runs sent <run.json> <sync_every> <epochs>
//     two replicas that exchange messages, whose bytes are counted
//
// A line of JSON is told: gradients in a second, losses of evaluations by the rows that they came after, accuracy, how
// long it slept for a shard, and bytes: all, and those of gradients or parameters from the first step to the last.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <time.h>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/collective/run_ranks.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/transport/threads.hpp>

namespace tutti::bench {
namespace {

using Json = nlohmann::ordered_json;

// Makes the first thread that computes with it in training five times slower: it looks how long its first shards keep
// its core busy, and sleeps four times as long with each of the others.
class Drag {
 public:
  void slow_down() {
    if (!at::GradMode::is_enabled()) return;
    std::thread::id nobody;
    slow_.compare_exchange_strong(nobody, std::this_thread::get_id());
    if (slow_.load() != std::this_thread::get_id()) return;
    if (shards_.size() < kMeasured) {
      const double now = busy_seconds();
      if (last_ > 0) shards_.push_back(now - last_);
      last_ = now;
      if (shards_.size() == kMeasured) {
        std::ranges::nth_element(shards_, shards_.begin() + kMeasured / 2);
        pause_ = 4 * shards_[kMeasured / 2];
      }
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause_));
    }
  }

  // Once nobody computes with it any more; 0 where there were too few shards.
  double pause() const { return pause_; }

 private:
  static constexpr std::size_t kMeasured = 41;

  static double busy_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  std::atomic<std::thread::id> slow_ = {};
  // Of the slow thread:
  double last_ = 0;
  std::vector<double> shards_;
  double pause_ = 0;
};

OperatorType drag_operator(const std::shared_ptr<Drag>& drag) {
  return {.name = "drag", .resolve = [drag](const Options&, std::span<const ValueSpec> inputs) {
            return Operator{.output = inputs[0], .compute = [drag](const OperatorCall& call) {
                              drag->slow_down();
                              return call.inputs[0];
                            }};
          }};
}

struct SentBytes {
  std::atomic<std::uint64_t> all = 0;
  std::atomic<std::uint64_t> in_long_messages = 0;  // in steps gradients and parameters: losses and metrics are short
};

class Watch : public Observer {
 public:
  explicit Watch(const SentBytes* sent = nullptr) : sent_(sent) {}

  void on(const Event& event) override {
    if (const auto* step = std::get_if<event::StepEnded>(&event)) {
      if (sent_ != nullptr) (steps_ == 0 ? first_sent_ : last_sent_) = sent_->in_long_messages;
      rows_ += step->rows;
      seconds_ = step->seconds;
      ++steps_;
    }
    if (const auto* evaluation = std::get_if<event::EvaluationEnded>(&event)) {
      evaluations_.push_back({rows_, evaluation->loss});
      accuracy_ = evaluation->metrics.front().value;
    }
  }

  Json told() const {
    Json told{{"steps", steps_}, {"seconds", seconds_}, {"evaluations", evaluations_}, {"accuracy", accuracy_}};
    if (sent_ != nullptr) {
      told["bytes"] = sent_->all.load();
      told["step_bytes"] = last_sent_ - first_sent_;
    }
    return told;
  }

 private:
  std::int64_t rows_ = 0;
  std::int64_t steps_ = 0;
  double seconds_ = 0;
  double accuracy_ = 0;
  const SentBytes* sent_;
  std::uint64_t first_sent_ = 0;  // when the first step had ended
  std::uint64_t last_sent_ = 0;
  Json evaluations_ = Json::array();
};

// Counts what is sent.
class CountingTransport final : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> its, SentBytes& bytes) : its_(std::move(its)), bytes_(bytes) {}

  Rank rank() const override { return its_->rank(); }
  int size() const override { return its_->size(); }
  Locality locality(Rank peer) const override { return its_->locality(peer); }
  SendTicket start_send(Rank to, Tag tag, std::span<const std::byte> payload) override {
    bytes_.all += payload.size();
    if (payload.size() > kEagerBytes) bytes_.in_long_messages += payload.size();
    return its_->start_send(to, tag, payload);
  }
  void finish_send(SendTicket ticket, Deadline deadline) override { its_->finish_send(ticket, deadline); }
  void cancel_send(SendTicket ticket) noexcept override { its_->cancel_send(ticket); }
  Delivery receive(Rank from, Tag tag, Deadline deadline) override { return its_->receive(from, tag, deadline); }
  void expect(Rank from, Tag tag) override { its_->expect(from, tag); }
  void abort(Failure failure) noexcept override { its_->abort(std::move(failure)); }
  std::optional<Failure> failure() const override { return its_->failure(); }
  void depart(std::string_view why) noexcept override { its_->depart(why); }
  Rank held_up_by(Rank peer) const override { return its_->held_up_by(peer); }
  SharedBoard* shared_board() override { return nullptr; }
  EngineCalls* engine_calls() override { return its_->engine_calls(); }
  std::unique_ptr<Transport> regroup(std::span<const Rank> members, Deadline deadline) override {
    return std::make_unique<CountingTransport>(its_->regroup(members, deadline), bytes_);
  }

 private:
  std::unique_ptr<Transport> its_;
  SentBytes& bytes_;
};

Run read(Json document, const Json& strategy, int epochs, const std::shared_ptr<Drag>& drag = nullptr) {
  document["graph"]["strategy"] = strategy;
  document["train"]["epochs"] = epochs;
  Registry registry;
  if (drag) {
    for (Json& node : document["graph"]["nodes"]) {
      if (node["id"] == "act1") node["inputs"] = {"drag"};
    }
    document["graph"]["nodes"].push_back({{"id", "drag"}, {"op", "drag"}, {"inputs", {"hidden1"}}});
    registry.operators.add(drag_operator(drag));
  }
  return read_run(JsonDocument::parse(document.dump(), "run.json").root(), registry);
}

Json slow(Json document, const std::string& consistency, int epochs) {
  // Momentum adds to what old gradients do by themselves, and has to be another one for each of both.
  document["optimizer"] = {{"name", "sgd"}, {"lr", 0.5}};
  document["train"]["evaluate_every"] = 20;
  document["checkpoints"] = {{"every", 1'000'000}, {"keep_best", false}};
  const Json strategy{{"type", "DataParallel"},
                      {"num_replicas", 2},
                      {"aggregation", {{"method", "ParameterServer"}, {"consistency", consistency}}}};
  const auto drag = std::make_shared<Drag>();
  const Run run = read(std::move(document), strategy, epochs, drag);
  const auto watch = std::make_shared<Watch>();
  Events events;
  events.add(watch);
  (void)train(run, events);
  Json told = watch->told();
  told["pause"] = drag->pause();
  return told;
}

Json sent(Json document, int sync_every, int epochs) {
  document["train"]["evaluate_every"] = 1'000'000;  // at the end alone
  document["checkpoints"] = {{"every", 1'000'000}, {"keep_best", false}};
  Json strategy{{"type", "DataParallel"}, {"num_replicas", 2}, {"aggregation", {{"method", "AllReduce"}}}};
  if (sync_every > 1) {
    strategy["sync_every"] = sync_every;
    strategy["outer"] = {{"method", "FedAvgM"}, {"lr", 0.4}, {"momentum", 0.8}, {"nesterov", true}};
  }
  const Run run = read(std::move(document), strategy, epochs);
  SentBytes bytes;
  const auto watch = std::make_shared<Watch>(&bytes);
  std::vector<std::unique_ptr<Transport>> world = make_threads_world(2, {.shared_memory = false});
  std::vector<std::exception_ptr> failures(2);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          run_rank(std::make_unique<CountingTransport>(std::move(world[rank]), bytes), [&](Communicator& its) {
            Events events;
            if (rank == 0) events.add(watch);
            (void)train(run, events, {.world = &its});
          });
        } catch (...) {
          failures[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return watch->told();
}

int run(const std::vector<std::string>& words) {
  if (words.size() < 4) throw UsageError("expected slow or sent, a run file, and what follows");
  const std::filesystem::path scratch =
      std::filesystem::temp_directory_path() / fmt::format("coordinator_runs.{}", ::getpid());
  Json document = JsonDocument::read_file(words[1]).root().raw();
  document["output"] = scratch.string();
  const Json told = words[0] == "slow" ? slow(document, words[2], std::stoi(words[3]))
                                       : sent(document, std::stoi(words[2]), std::stoi(words[3]));
  std::filesystem::remove_all(scratch);
  fmt::print("{}\n", told.dump());
  return 0;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) try {
  return tutti::bench::run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  fmt::print(stderr, "coordinator_runs: {}\n", error.what());
  return 1;
}
