#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>
#include <tutti/collective/collectives.hpp>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_parallel_options.hpp>
#include <tutti/train/torch_optimizer.hpp>

#include "private_names.hpp"
#include "replica_mixer.hpp"
#include "shard_metrics.hpp"
#include "trained_names.hpp"
#include "training.hpp"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;
using SpanKind = event::SpanEnded::Kind;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

class DataParallelStepper final : public Stepper {
 public:
  explicit DataParallelStepper(const Training& training)
      : run_(training.run),
        data_(training.data),
        world_(training.options.world),
        rule_(torch_options(run_->optimizer)),
        net_(made_net(*run_, training.weights, training.options.from)),
        options_(options_for(*run_, *net_, world_)),
        model_(net_, net_->groups(*rule_), *rule_, options_),
        has_private_(private_names(run_->graph) != nullptr),
        goes_alone_(world_ != nullptr && takes_steps_alone(*run_)),
        evaluator_(run_, {.threads = local_replicas(), .world = has_private_ ? nullptr : world_}) {
    for (const torch::optim::OptimizerParamGroup& group : model_.optimizer().param_groups())
      rates_.push_back(group.options().get_lr());
    if (!has_replica_mixer(*run_)) return;
    mixer_ = make_replica_mixer(*run_, own_parameters());
    mean_net_ = made_net(*run_, training.weights, training.options.from);
  }

  std::string describe() const override {
    if (!mixer_) return model_.describe();
    return fmt::format("{} replicas{}, each with parameters of its own; {}", options_.replicas,
                       world_ == nullptr ? "" : fmt::format(" on {} processes", world_->size()), mixer_->describe());
  }

  void begin(std::int64_t steps_taken) override {
    model_.go_on_after(static_cast<std::uint64_t>(steps_taken));
    const OwnShards own = model_.own_shards();
    LoaderOptions options = loader_options(*run_, *data_.train, steps_taken);
    options.shards = {.first = own.first, .count = own.count, .of = own.of};
    loader_.emplace(data_.train, options);
  }

  double set_rate(double factor) override {
    std::vector<torch::optim::OptimizerParamGroup>& groups = model_.optimizer().param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates_[i] * factor);
    return rule_->get_lr() * factor;
  }

  StepResult step(bool is_interrupted) override {
    const Clock::time_point began = Clock::now();
    const ShardedBatch batch{std::make_shared<const DataBatch>(loader_->next())};
    const Clock::time_point loaded = Clock::now();
    const OwnShards own = model_.own_shards();
    const auto metrics = std::make_shared<ShardMetrics>(static_cast<std::size_t>(own.of), run_->metrics.size());
    StepResult result;
    result.rows = row_count(batch);
    result.loss = model_.step(batch, [run = run_, metrics](GraphModule& module, const ShardRows& mine) {
      const torch::Tensor output = module.forward(graph_inputs(*run, mine.rows)).front();
      metrics->measure(*run, mine.shard, output.detach(), mine.rows.target);
      return run->loss.compute(output, mine.rows.target);
    });
    result.is_interrupted = is_interrupted;
    if (world_ != nullptr && !goes_alone_) {  // each shard's numbers are one process's, and 0 elsewhere
      std::vector<double>& numbers = metrics->sums();
      numbers.push_back(is_interrupted ? 1 : 0);
      all_reduce(*world_, numbers);
      result.is_interrupted = numbers.back() > 0;
      numbers.pop_back();
    }
    for (std::size_t m = 0; m < run_->metrics.size(); ++m)
      result.metrics.push_back({run_->metrics[m].name, value_of(run_->metrics[m].metric, metrics->total(m))});
    // Nobody else may have heard of what this process wants.
    wants_to_end_ |= is_interrupted;
    if (goes_alone_) result.is_interrupted = has_heard_end_;
    if (mixer_ && model_.report().updated) mix(result);
    std::vector<StepSpan> spans = model_.report().spans;
    spans.insert(spans.end(), result.spans.begin(), result.spans.end());
    result.spans = std::move(spans);
    result.times = times_of(result.spans);
    result.times.data = seconds_between(began, loaded);
    add_loading(result.spans, began, loaded);
    return result;
  }

  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override {
    come_together();
    if (mixer_) fill_mean_net();
    const std::shared_ptr<GraphModule>& net = mixer_ ? mean_net_ : net_;
    if (world_ == nullptr || !has_private_) return evaluator_.evaluate(net, rows);
    // With replica 0's private parameters, which the first process has: it evaluates, and the others hear of it.
    Evaluation evaluation;
    std::vector<double> numbers(1 + run_->metrics.size());
    if (world_->rank() == Rank{0}) {
      evaluation = evaluator_.evaluate(net, rows);
      numbers[0] = evaluation.loss;
      for (std::size_t m = 0; m < evaluation.metrics.size(); ++m) numbers[1 + m] = evaluation.metrics[m].value;
    }
    broadcast(*world_, numbers);
    evaluation = {.rows = rows->size(), .loss = numbers[0], .metrics = {}};
    for (std::size_t m = 0; m < run_->metrics.size(); ++m)
      evaluation.metrics.push_back({run_->metrics[m].name, numbers[1 + m]});
    return evaluation;
  }

  // Where replicas have parameters of their own, their mean is what others read, and what the first has goes by its
  // number.
  void save(ParameterSet& arrays) override {
    if (!mixer_) return model_.save(arrays);
    come_together();
    ParameterSet state;
    model_.save(state);
    const ParameterSet mean = mixer_->mean();
    if (state.empty()) return;
    for (const NamedArray& array : state) {
      if (const NamedArray* its = mean.find(array.name())) {
        arrays.add(its->layout(), its->bytes());
      } else {
        arrays.add(array.layout(), array.bytes());
        if (mean.find(optimized_name(array.name())) == nullptr) continue;
      }
      arrays.add({kFirstReplica + array.name(), array.shape(), array.type()}, array.bytes());
    }
    mixer_->save(arrays);
  }
  void restore(const ParameterSet& arrays) override {
    model_.restore(arrays);
    if (mixer_) mixer_->restore(arrays);
  }

 private:
  inline static const std::string kFirstReplica = "replica/0/";

  // "hidden.weight" of "optimizer/momentum/hidden.weight"; nothing of other arrays.
  static std::string optimized_name(const std::string& name) {
    const std::string prefix = "optimizer/";
    const std::size_t slash = name.starts_with(prefix) ? name.find('/', prefix.size()) : std::string::npos;
    return slash == std::string::npos ? std::string() : name.substr(slash + 1);
  }

  OwnParameters own_parameters() const {
    const std::function<bool(const std::string&)> stays = private_names(run_->graph);
    const std::set<std::string> trained = trained_names(run_->graph);
    OwnParameters own{.replicas = options_.replicas, .first = model_.own_shards().first, .world = world_};
    for (int r = 0; r < model_.own_shards().count; ++r) {
      std::vector<torch::Tensor>& tensors = own.tensors.emplace_back();
      for (const auto& [name, tensor] : model_.private_parameters(r)) {
        if (!trained.contains(name) || (stays && stays(name))) continue;
        if (r == 0) own.names.push_back(name);
        tensors.push_back(tensor);
      }
    }
    return own;
  }

  void mix(StepResult& result) {
    const OwnShards own = model_.own_shards();
    const auto note = [&](SpanKind kind, const char* name, Clock::time_point began) {
      for (int r = own.first; r < own.first + own.count; ++r)
        result.spans.push_back({r, kind, name, began, Clock::now()});
    };
    const std::int64_t updates = static_cast<std::int64_t>(model_.steps_taken()) / run_->train.accumulate;
    if (goes_alone_ && mixer_->meets_after(updates)) {
      const Clock::time_point came = Clock::now();
      come_together();
      result.is_interrupted = has_heard_end_;
      note(SpanKind::waiting, "for other processes", came);
    }
    const Clock::time_point began = Clock::now();
    result.counts.push_back({"bytes_exchanged", mixer_->after_update(updates)});
    note(SpanKind::communication, "mix", began);
  }

  // Where processes take steps alone, who is ahead waits for all others here, once after a step. One that has failed or
  // is lost ends this at once.
  void come_together() {
    if (!goes_alone_ || together_after_ == model_.steps_taken()) return;
    double wants_to_end = wants_to_end_ ? 1 : 0;
    all_reduce(*world_, std::span(&wants_to_end, 1), {.deadline = deadline_for_others(*run_)});
    has_heard_end_ = wants_to_end > 0;
    model_.share_buffers();
    together_after_ = model_.steps_taken();
  }

  // On all processes alike, but for what is private, which is replica 0's where somebody looks at it.
  void fill_mean_net() {
    ParameterSet all = mixer_->mean();
    ParameterSet rest;
    add_module(rest, *net_);
    for (const NamedArray& array : rest) {
      if (all.find(array.name()) == nullptr) all.add(array.layout(), array.bytes());
    }
    fill_module(all, *mean_net_);
  }

  static DataParallelOptions options_for(const Run& run, const GraphModule& net, Communicator* world) {
    DataParallelOptions options = replica_options(run, net);
    options.world = world;
    return options;
  }

  int local_replicas() const {
    if (world_ == nullptr) return options_.replicas;
    return static_cast<int>(
        chunk(static_cast<std::size_t>(options_.replicas), world_->size(), world_->rank().value).count);
  }

  // All replicas of the process wait for its rows.
  static void add_loading(std::vector<StepSpan>& spans, Clock::time_point began, Clock::time_point loaded) {
    std::vector<StepSpan> all;
    int last = -1;
    for (const StepSpan& span : spans) {
      if (span.replica != last) all.push_back({span.replica, SpanKind::data, "load", began, loaded});
      last = span.replica;
      all.push_back(span);
    }
    spans = std::move(all);
  }

  // Of a replica, on the average.
  static event::StepTimes times_of(const std::vector<StepSpan>& spans) {
    event::StepTimes times;
    int replicas = 0;
    int last = -1;
    for (const StepSpan& span : spans) {
      const double seconds = seconds_between(span.begin, span.end);
      if (span.kind == SpanKind::compute) times.compute += seconds;
      if (span.kind == SpanKind::communication) times.communication += seconds;
      if (span.kind == SpanKind::waiting) times.waiting += seconds;
      if (span.replica != last) ++replicas;
      last = span.replica;
    }
    for (double* sum : {&times.compute, &times.communication, &times.waiting}) *sum /= std::max(replicas, 1);
    return times;
  }

  std::shared_ptr<const Run> run_;
  DataSplits data_;
  Communicator* world_;
  std::unique_ptr<torch::optim::OptimizerOptions> rule_;
  std::shared_ptr<GraphModule> net_;
  DataParallelOptions options_;
  DataParallel<GraphModule> model_;
  bool has_private_;
  bool goes_alone_;             // processes hear of each other where they meet, and not in each step
  bool wants_to_end_ = false;   // this process
  bool has_heard_end_ = false;  // any, as all know
  std::optional<std::uint64_t> together_after_;
  Evaluator evaluator_;
  std::vector<double> rates_;  // of each group of parameters, before any schedule
  std::optional<Loader> loader_;
  std::unique_ptr<ReplicaMixer> mixer_;  // where replicas have all parameters to themselves
  std::shared_ptr<GraphModule> mean_net_;
};

}  // namespace

// Batch norm over single numbers needs two rows of them. That is said now, not at the end of the first epoch.
void refuse_rows_alone(const Run& run, std::int64_t rows) {
  const auto* parallel = std::get_if<strategy::DataParallel>(&run.graph.effective_strategy());
  const auto* all_reduce = parallel == nullptr ? nullptr : std::get_if<strategy::AllReduce>(&parallel->aggregation);
  const DataParallelOptions options{.replicas = parallel == nullptr ? 1 : static_cast<int>(parallel->num_replicas),
                                    .logical_shards = all_reduce == nullptr ? 0 : all_reduce->logical_shards};
  const std::int64_t shards = options.logical_shards > 0 ? options.logical_shards : options.replicas;
  const std::int64_t last = run.data.options.drop_last ? 0 : rows % run.data.batch_size;
  for (const auto& [batch, which] :
       {std::pair(std::min(run.data.batch_size, rows), "a batch"), std::pair(last, "the last batch of an epoch")}) {
    if (batch == 0 || (batch >= shards && batch / shards > 1)) continue;
    for (const GraphNode& node : run.graph.nodes()) {
      if (node.op != "batch_norm" || node.resolved.output.shape.size() != 1) continue;
      throw UsageError(fmt::format(
          "{} has {} {}{}, and '{}' (batch_norm) needs at least 2 in one place{}", which, batch,
          batch == 1 ? "row" : "rows",
          parallel != nullptr
              ? fmt::format(", dealt out to {} {}", shards, options.logical_shards > 0 ? "shards" : "replicas")
              : "",
          node.path, batch == last ? R"(; "drop_last": true leaves it out)" : "; take a larger batch_size"));
    }
  }
}

std::unique_ptr<Stepper> make_data_parallel_stepper(const Training& training) {
  refuse_rows_alone(*training.run, training.data.train->size());
  return std::make_unique<DataParallelStepper>(training);
}

}  // namespace tutti::detail
