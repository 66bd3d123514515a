// Elastic averaging (Zhang, Choromanska, LeCun: Deep learning with elastic averaging SGD, 2015): replicas on threads,
// each with parameters of its own, explore by themselves. Every so many steps each is drawn towards a centre, and the
// centre towards them. The centre is what is evaluated.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <tutti/nn/data_parallel.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/nn/tensor_set.hpp>
#include <tutti/sync/worker_team.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/data_parallel_options.hpp>
#include <tutti/train/plugin.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace {

using namespace tutti;  // NOLINT: that is what it is about

struct Elastic {
  int replicas = 2;
  double pull = 0.2;       // how much of the way a replica goes to the centre, and the centre to a replica
  std::int64_t every = 4;  // steps
};

// A network with an optimizer: one of DataParallel's, alone. It brings clipping, accumulation, dropout with a stream
// of random numbers of its own, and checkpoints.
struct Replica {
  Replica(std::shared_ptr<GraphModule> its_net, const torch::optim::OptimizerOptions& rule,
          const DataParallelOptions& options)
      : net(std::move(its_net)), model(net, net->groups(rule), rule, options) {}

  std::shared_ptr<GraphModule> net;
  DataParallel<GraphModule> model;
  double loss = 0;
  std::int64_t rows = 0;
};

class ElasticAveraging final : public Stepper {
 public:
  ElasticAveraging(const CoordinatorContext& context, const Elastic& elastic)
      : run_(context.run),
        data_(context.data),
        elastic_(elastic),
        centre_(context.make_net()),
        rule_(torch_options(run_->optimizer)),
        team_(elastic.replicas, use_one_thread),
        evaluator_(run_, {.threads = elastic.replicas}) {
    for (int r = 0; r < elastic_.replicas; ++r) {
      DataParallelOptions options =
          data_parallel_options(*run_, {.num_replicas = 1, .aggregation = strategy::AllReduce{}});
      options.seed += static_cast<std::uint64_t>(r);
      replicas_.push_back(
          std::make_shared<Replica>(std::dynamic_pointer_cast<GraphModule>(centre_->clone()), *rule_, options));
    }
    for (const auto& group : replicas_[0]->model.optimizer().param_groups()) rates_.push_back(group.options().get_lr());
  }

  std::string describe() const override {
    return fmt::format("elastic averaging of {} replicas on threads, every {} steps, by {}", elastic_.replicas,
                       elastic_.every, elastic_.pull);
  }

  void begin(std::int64_t steps_taken) override {
    steps_ = steps_taken;
    for (const auto& replica : replicas_) replica->model.go_on_after(static_cast<std::uint64_t>(steps_taken));
    // Of each batch a replica has every so many-th row.
    LoaderOptions options = loader_options(*run_, *data_.train, steps_taken);
    options.shards = {.first = 0, .count = elastic_.replicas, .of = elastic_.replicas};
    loader_.emplace(data_.train, options);
  }

  double set_rate(double factor) override {
    for (const auto& replica : replicas_) {
      auto& groups = replica->model.optimizer().param_groups();
      for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates_[i] * factor);
    }
    return rule_->get_lr() * factor;
  }

  StepResult step(bool) override {
    // What threads work on is shared with them: one that misses the deadline still does when the run has ended.
    const auto batch = std::make_shared<const DataBatch>(loader_->next());
    team_.run([run = run_, replicas = replicas_, batch](int r) { train(*run, *replicas[r], *batch, r); },
              run_->train.deadline);
    if (++steps_ % elastic_.every == 0) average();
    StepResult result{.rows = batch->rows_of_all};
    for (const auto& replica : replicas_)
      result.loss += replica->loss * static_cast<double>(replica->rows) / static_cast<double>(result.rows);
    return result;
  }

  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override {
    return evaluator_.evaluate(centre_, rows);
  }

  // The centre under the names of the network; replicas under those that `tutti eval --replica 1` looks for.
  void save(ParameterSet& arrays) override {
    add_module(arrays, *centre_);
    for (int r = 0; r < elastic_.replicas; ++r) {
      ParameterSet own;
      replicas_[r]->model.save(own);
      for (const NamedArray& array : own) arrays.add(renamed(array, prefix_of(r) + array.name()), array.bytes());
    }
  }

  void restore(const ParameterSet& arrays) override {
    fill_module(arrays, *centre_);
    for (int r = 0; r < elastic_.replicas; ++r) {
      ParameterSet own;
      for (const NamedArray& array : arrays) {
        if (array.name().starts_with(prefix_of(r)))
          own.add(renamed(array, array.name().substr(prefix_of(r).size())), array.bytes());
      }
      replicas_[r]->model.restore(own);
    }
  }

 private:
  static std::string prefix_of(int r) { return fmt::format("replica/{}/", r); }
  static ParameterLayout renamed(const NamedArray& array, const std::string& name) {
    return {.name = name, .shape = array.shape(), .type = array.type()};
  }

  static void train(const Run& run, Replica& replica, const DataBatch& batch, int r) {
    const DataRows rows = batch.rows_of_shard(r);
    replica.rows = row_count(rows);
    if (replica.rows == 0) return;  // the last batch of an epoch may be small
    replica.loss = replica.model.step(rows, [&run](GraphModule& net, const DataRows& mine) {
      return run.loss.compute(net.forward(graph_inputs(run, mine)).front(), mine.target);
    });
  }

  // All at once: where the replicas stand, not who comes first, says where the centre goes.
  void average() {
    const torch::NoGradGuard no_gradients;
    auto centres = tensors_of(*centre_);
    std::vector<std::vector<torch::Tensor>> others;
    for (const auto& replica : replicas_) others.push_back(tensors_of(*replica->net));
    for (std::size_t i = 0; i < centres.size(); ++i) {
      if (!centres[i].is_floating_point()) continue;
      torch::Tensor drawn = torch::zeros_like(centres[i]);
      for (const auto& its : others) {
        const torch::Tensor difference = elastic_.pull * (its[i] - centres[i]);
        its[i].sub_(difference);
        drawn.add_(difference);
      }
      centres[i].add_(drawn);
    }
  }

  // Parameters, and buffers such as the statistics of batch norm.
  static std::vector<torch::Tensor> tensors_of(const GraphModule& net) {
    std::vector<torch::Tensor> tensors = net.parameters();
    for (const torch::Tensor& buffer : net.buffers()) tensors.push_back(buffer);
    return tensors;
  }

  std::shared_ptr<const Run> run_;
  DataSplits data_;
  Elastic elastic_;
  std::shared_ptr<GraphModule> centre_;
  std::unique_ptr<torch::optim::OptimizerOptions> rule_;
  std::vector<std::shared_ptr<Replica>> replicas_;
  std::vector<double> rates_;  // of each group of parameters, before any schedule
  WorkerTeam team_;
  Evaluator evaluator_;
  std::optional<Loader> loader_;
  std::int64_t steps_ = 0;
};

}  // namespace

TUTTI_PLUGIN(registry) {
  registry.coordinators.add(
      {.name = "elastic_averaging", .resolve = [](const Options& config, const Run& run) {
         Elastic elastic;
         elastic.replicas =
             static_cast<int>(config.integer("replicas", {.min = 1, .max = run.data.batch_size}, elastic.replicas));
         // Beyond, the centre would overshoot.
         const double most = 1.0 / elastic.replicas;
         elastic.pull = config.number("pull", {.min = 0, .max = most}, std::min(elastic.pull, most));
         elastic.every = config.integer("every", {.min = 1}, elastic.every);
         return Coordinator{.make = [elastic](const CoordinatorContext& context) {
           return std::make_unique<ElasticAveraging>(context, elastic);
         }};
       }});
}
