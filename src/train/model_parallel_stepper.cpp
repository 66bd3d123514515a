#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <tutti/data/loader.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/memory.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/sync/worker_team.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_store.hpp>
#include <tutti/transport/folder.hpp>
#include <tutti/transport/threads.hpp>

#include "evaluation_rows.hpp"
#include "stage_worker.hpp"
#include "training.hpp"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;
using SpanKind = event::SpanEnded::Kind;

// The workers of this process: all of them, on a thread each, or the one that the process is. Threads that miss the
// deadline still use it when the run has failed.
struct Workers {
  std::optional<FolderForNow> above_store;
  std::vector<Communicator> worlds;  // of threads
  std::vector<std::unique_ptr<StageChannel>> channels;
  std::shared_ptr<Ground> ground = std::make_shared<Ground>();
  std::vector<std::unique_ptr<StageWorker>> workers;
};

// What went wrong with the workers, in the order in which it did: a reason comes before what others have heard of it.
class Failures {
 public:
  void add_reason(std::exception_ptr error) { add(reasons_, std::move(error)); }
  void add_lost_peer(std::exception_ptr error) { add(lost_, std::move(error)); }
  void add_heard(std::exception_ptr error) { add(heard_, std::move(error)); }

  void rethrow() const {
    const std::lock_guard lock(mutex_);
    for (const auto* errors : {&reasons_, &lost_, &heard_}) {
      if (!errors->empty()) std::rethrow_exception(errors->front());
    }
  }

 private:
  void add(std::vector<std::exception_ptr>& errors, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    errors.push_back(std::move(error));
  }

  mutable std::mutex mutex_;  // who is late may fail later
  std::vector<std::exception_ptr> reasons_;
  std::vector<std::exception_ptr> lost_;
  std::vector<std::exception_ptr> heard_;  // from another worker
};

// Evenly long parts of time in which each worker did something else than wait.
event::StepTimes times_of(const std::vector<StepSpan>& spans, std::size_t workers, double seconds) {
  event::StepTimes times;
  for (const StepSpan& span : spans) {
    const double its = std::chrono::duration<double>(span.end - span.begin).count();
    if (span.kind == SpanKind::compute) times.compute += its;
    if (span.kind == SpanKind::communication) times.communication += its;
  }
  const auto count = static_cast<double>(workers);
  times.compute /= count;
  times.communication /= count;
  times.waiting = std::max(0.0, seconds - times.compute - times.communication);
  return times;
}

class ModelParallelStepper final : public Stepper {
 public:
  explicit ModelParallelStepper(const Training& training)
      : run_(training.run),
        data_(training.data),
        world_(training.options.world != nullptr && training.options.world->size() > 1 ? training.options.world
                                                                                       : nullptr),
        plan_(std::make_shared<const PipelinePlan>(*run_)),
        mine_(std::make_shared<Workers>()) {
    set_up_blas();
    keep_freed_memory();
    const int first = world_ == nullptr ? 0 : world_->rank().value;
    const int count = world_ == nullptr ? plan_->workers() : 1;
    if (world_ == nullptr)
      connect_threads(count);
    else
      mine_->channels.push_back(make_transport_channel(world_->transport()));
    for (int i = 0; i < count; ++i) {
      const auto place = static_cast<std::size_t>(i);
      mine_->workers.push_back(
          std::make_unique<StageWorker>(run_, plan_,
                                        StageWorkerOptions{.worker = first + i,
                                                           .world = world_ == nullptr ? mine_->worlds[place] : *world_,
                                                           .channel = *mine_->channels[place],
                                                           .ground = mine_->ground}));
      needs_rows_ = needs_rows_ || plan_->needs_rows(first + i);
      if (!training.weights) continue;
      try {
        mine_->workers.back()->fill(*training.weights);
      } catch (const UsageError& error) {
        throw UsageError(
            fmt::format("{} has not the weights of this graph: {}", training.options.from.string(), error.what()));
      }
    }
    // The caller's thread watches: whoever hangs is one of the others.
    team_ = std::make_unique<WorkerTeam>(1 + count, [] { use_one_thread(); });
  }

  std::string describe() const override {
    const auto& strategy = std::get<strategy::ModelParallel>(run_->graph.effective_strategy());
    return fmt::format("{} workers, {}; {} stages; {}", plan_->workers(),
                       world_ == nullptr ? "threads of one process" : "a process each", plan_->cut().stages.size(),
                       describe(strategy.communication));
  }

  void begin(std::int64_t steps_taken) override {
    const LoaderOptions options = loader_options(*run_, *data_.train, steps_taken);
    sampler_.emplace(options.sampler);
    next_step_ = steps_taken;
    if (needs_rows_) loader_.emplace(data_.train, options);
  }

  double set_rate(double factor) override {
    double rate = 0;
    for (const auto& worker : mine_->workers) rate = worker->set_rate(factor);
    return rate;
  }

  StepResult step(bool is_interrupted) override {
    const Clock::time_point began = Clock::now();
    const auto batch = std::make_shared<WorkerBatch>();
    if (loader_) {
      const DataBatch loaded = loader_->next();
      batch->rows = loaded.rows_of_all;
      batch->data = loaded.rows_of_shard(0);
    } else {
      batch->rows = static_cast<std::int64_t>(sampler_->rows_of(next_step_).numbers.size());
    }
    ++next_step_;
    const Clock::time_point loaded_at = Clock::now();
    const auto reports = std::make_shared<std::vector<WorkerReport>>(mine_->workers.size());
    run_workers([mine = mine_, batch, reports, is_interrupted](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      (*reports)[w] = mine->workers[w]->step(*batch, is_interrupted);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - loaded_at).count();
    WorkerReport& first = reports->front();
    StepResult result{.loss = first.loss,
                      .rows = batch->rows,
                      .metrics = std::move(first.metrics),
                      .is_interrupted = first.is_interrupted};
    for (std::size_t w = 0; w < reports->size(); ++w) {
      std::vector<StepSpan>& spans = (*reports)[w].spans;
      const int worker = spans.empty() ? static_cast<int>(w) : spans.front().replica;
      if (loader_) result.spans.push_back({worker, SpanKind::data, "load", began, loaded_at});
      std::move(spans.begin(), spans.end(), std::back_inserter(result.spans));
    }
    result.times = times_of(result.spans, reports->size(), seconds);
    result.times.data = std::chrono::duration<double>(loaded_at - began).count();
    return result;
  }

  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override {
    const auto found = std::make_shared<std::vector<Evaluation>>(mine_->workers.size());
    const std::int64_t batches = (rows->size() + rows_at_once(*run_) - 1) / rows_at_once(*run_);
    run_workers(
        [mine = mine_, rows, found](int worker) {
          const auto w = static_cast<std::size_t>(worker);
          (*found)[w] = mine->workers[w]->evaluate(*rows);
        },
        1 + batches / kEvaluatedAtOnce);
    return found->front();
  }

  void save(ParameterSet& arrays) override {
    std::vector<ParameterSet> sets(mine_->workers.size());
    for (std::size_t w = 0; w < sets.size() && world_ == nullptr; ++w) mine_->workers[w]->save(sets[w]);
    if (world_ != nullptr) sets = mine_->workers.front()->gather_states();
    for (const ParameterSet& set : sets) {
      for (const NamedArray& array : set) arrays.add(array.layout(), array.bytes());
    }
  }

  void restore(const ParameterSet& arrays) override {
    for (const auto& worker : mine_->workers) worker->restore(arrays);
  }

 private:
  // As processes do, where they pass everything on through files.
  void connect_threads(int count) {
    const CommunicatorOptions options{.deadline = run_->train.deadline};
    const std::optional<DataStoreFolder> store = data_store_of(*run_);
    if (!store) {
      for (std::unique_ptr<Transport>& transport : make_threads_world(count, {.waits_awake = false}))
        mine_->worlds.emplace_back(std::move(transport), options);
      mine_->channels = make_thread_channels(count);
      return;
    }
    mine_->above_store.emplace(store->path.parent_path());
    const auto join = [&](int worker, const std::function<void()>& on_call = {}) {
      return join_folder({.folder = store->path,
                          .is_own_folder = store->is_own,
                          .rank = Rank{worker},
                          .size = count,
                          .on_call = on_call});
    };
    // The others come when the first one has the folder: otherwise they would come to another job that has it.
    std::vector<std::future<std::unique_ptr<Transport>>> joining;
    const auto call_others = [&] {
      for (int worker = 1; worker < count; ++worker)
        joining.push_back(std::async(std::launch::async, [&join, worker] { return join(worker); }));
    };
    mine_->worlds.emplace_back(join(0, call_others), options);
    for (auto& transport : joining) mine_->worlds.emplace_back(transport.get(), options);
    for (Communicator& world : mine_->worlds) mine_->channels.push_back(make_transport_channel(world.transport()));
  }

  std::string describe(const strategy::CommunicationProtocol& communication) const {
    if (const auto store = data_store_of(*run_))
      return fmt::format("everything through files in {}", store->path.string());
    const auto* pipeline = std::get_if<strategy::Pipeline>(&communication);
    if (pipeline == nullptr) return "the whole batch goes from worker to worker";
    return fmt::format("micro-batches of {} rows, {}", pipeline->micro_batch_size, schedule_name(pipeline->schedule));
  }

  // Each of so many parts has the run's deadline.
  void run_workers(const std::function<void(int)>& f, std::int64_t parts = 1) {
    const OneThread one_thread;
    const auto failures = std::make_shared<Failures>();
    // Who waits for another gives up at the deadline, asks who is to blame, and the others give up then; only who hangs
    // is later than that.
    constexpr std::chrono::milliseconds kToTell{1500};
    try {
      team_->run_others(
          [f, failures, ground = mine_->ground](int member) {
            const Ground::Stay stay(*ground);
            try {
              f(member - 1);
            } catch (const PeerError& error) {
              if (error.kind() == FailureKind::cancelled)
                failures->add_heard(std::current_exception());
              else
                failures->add_lost_peer(std::current_exception());
            } catch (...) {
              failures->add_reason(std::current_exception());
            }
          },
          run_->train.deadline * parts + kToTell);
    } catch (const PeerError& late) {
      give_up(late, *failures);
    }
    failures->rethrow();
  }

  // Some do not come back, or not in time: what they stand on may be gone when they do.
  [[noreturn]] void give_up(const PeerError& late, const Failures& failures) {
    // Who waits for others is about to come back, and knows better whom to blame.
    constexpr std::chrono::seconds kToComeBack{10};
    mine_->ground->give_up(Deadline::after(kToComeBack));
    std::vector<std::string> who;
    for (const Rank member : late.ranks()) {
      const int worker = member.value - 1 + (world_ == nullptr ? 0 : world_->rank().value);
      if (member.value == 0) continue;
      const std::string on = mine_->workers[static_cast<std::size_t>(member.value - 1)]->at_work_on();
      who.push_back(fmt::format("worker '{}' is late{}{}", plan_->cut().workers[static_cast<std::size_t>(worker)].id,
                                on.empty() ? "" : " with ", on));
    }
    const std::string sentence = fmt::format("{}: it has not ended its part within {} s", fmt::join(who, ", "),
                                             std::chrono::duration<double>(run_->train.deadline).count());
    if (world_ != nullptr && !world_->broken()) world_->cancel(sentence);
    for (const auto& channel : mine_->channels) channel->give_up();
    failures.rethrow();
    throw Error(sentence);
  }

  std::shared_ptr<const Run> run_;
  DataSplits data_;
  Communicator* world_;
  std::shared_ptr<const PipelinePlan> plan_;
  std::shared_ptr<Workers> mine_;
  std::unique_ptr<WorkerTeam> team_;
  bool needs_rows_ = false;
  std::optional<Loader> loader_;
  std::optional<Sampler> sampler_;
  std::int64_t next_step_ = 0;
};

// The last batch of an epoch is smaller, and so may its last micro-batch be.
std::vector<std::int64_t> batch_sizes(const Run& run, std::int64_t rows) {
  std::vector<std::int64_t> sizes{std::min(run.data.batch_size, rows)};
  const std::int64_t last = run.data.options.drop_last ? 0 : rows % run.data.batch_size;
  if (last > 0) sizes.push_back(last);
  return sizes;
}

void refuse_what_fails_later(const Run& run, std::int64_t rows) {
  const PipelinePlan plan(run);
  for (const std::int64_t size : batch_sizes(run, rows)) {
    const bool is_last = size != run.data.batch_size && rows > size;
    const std::string hint = is_last ? R"(; "drop_last": true leaves the last batch of an epoch out)" : "";
    try {
      (void)plan.order(plan.micro_batches(size));
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("a batch of {} rows: {}{}", size, error.what(), hint));
    }
    const std::int64_t micro = plan.micro_batch_rows(size);
    const std::int64_t least = size % micro == 0 ? micro : size % micro;
    for (std::size_t n = 0; n < run.graph.nodes().size(); ++n) {
      const GraphNode& node = run.graph.nodes()[n];
      if (node.op != "batch_norm" || node.resolved.output.shape.size() != 1) continue;
      if (least / plan.cut().stages[plan.cut().stage_of[n]].replicas > 1) continue;
      throw UsageError(
          fmt::format("a batch of {} rows has a micro-batch of {}, and '{}' (batch_norm) needs at least 2 in "
                      "one place{}",
                      size, least, node.path, hint));
    }
  }
}

}  // namespace

std::unique_ptr<Stepper> make_model_parallel_stepper(const Training& training) {
  refuse_what_fails_later(*training.run, training.data.train->size());
  return std::make_unique<ModelParallelStepper>(training);
}

}  // namespace tutti::detail
