// A coordinator of a user's that does what DataParallel does, so that tests know what has to come out of it; and that
// goes wrong where it is told to.
//
//   {"type": "Custom", "coordinator": "plain", "config": {"replicas": 2, "failure": "stumbles", "fails_at": 5}}
#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/nn/data_parallel.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/data_parallel_options.hpp>
#include <tutti/train/stepper.hpp>
#include <tutti/train/torch_optimizer.hpp>

namespace tutti::testing {

struct PlainConfig {
  int replicas = 1;
  std::string failure = "none";
  std::int64_t fails_at = 1;  // a step
  int fails_on = -1;          // a rank, or all
};

class PlainStepper final : public Stepper {
 public:
  PlainStepper(const CoordinatorContext& context, const PlainConfig& config)
      : run_(context.run),
        train_(context.data.train),
        rank_(context.world == nullptr ? 0 : context.world->rank().value),
        config_(config),
        rule_(torch_options(run_->optimizer)),
        net_(context.make_net()),
        model_(net_, net_->groups(*rule_), *rule_, options_for(context, config)),
        evaluator_(run_, {.world = context.world}),
        events_(context.events) {}

  std::string describe() const override { return "as plain as can be"; }
  std::vector<std::string> notes() const override { return {"a note"}; }
  std::vector<std::string> warnings() const override { return {"a warning"}; }

  void begin(std::int64_t steps_taken) override {
    events_.tell(event::Warned{"plain, and no more"});
    steps_ = steps_taken;
    model_.go_on_after(static_cast<std::uint64_t>(steps_taken));
    LoaderOptions options = loader_options(*run_, *train_, steps_taken);
    const OwnShards own = model_.own_shards();
    options.shards = {.first = own.first, .count = own.count, .of = own.of};
    loader_.emplace(train_, options);
  }

  double set_rate(double factor) override {
    for (auto& group : model_.optimizer().param_groups()) group.options().set_lr(rule_->get_lr() * factor);
    return rule_->get_lr() * factor;
  }

  StepResult step(bool) override {
    ++steps_;
    if (fails("stumbles")) throw Error("the baton fell\nand rolled away");
    if (fails("is_interrupted")) std::raise(SIGINT);
    if (fails("is_no_tutti")) throw std::runtime_error("what a user throws");
    if (fails("throws_number")) throw 7;
    if (fails("breaks_torch")) (void)torch::zeros({2, 3}).matmul(torch::zeros({2, 3}));
    const ShardedBatch batch{std::make_shared<const DataBatch>(loader_->next())};
    StepResult result{.rows = row_count(batch)};
    result.loss = model_.step(batch, [run = run_](GraphModule& net, const ShardRows& mine) {
      return run->loss.compute(net.forward(graph_inputs(*run, mine.rows)).front(), mine.rows.target);
    });
    result.metrics = {{"steps_taken", static_cast<double>(steps_)}};
    result.counts = {{"baton", 1}};
    if (fails("complains")) result.problems = {"it goes on in spite of this"};
    return result;
  }

  Evaluation evaluate(const std::shared_ptr<const Dataset>& rows) override {
    Evaluation evaluation = evaluator_.evaluate(net_, rows);
    if (config_.failure == "forgets_metrics") evaluation.metrics.resize(1);
    return evaluation;
  }
  void save(ParameterSet& arrays) override {
    ParameterSet all;
    model_.save(all);
    for (const NamedArray& array : all) {
      const bool is_buffer = array.name().ends_with("running_mean");
      if (config_.failure == "forgets_weights" || (config_.failure == "forgets_buffers" && is_buffer)) continue;
      if (config_.failure == "saves_other_shapes" && array.name() == "logits.bias")
        arrays.add({.name = array.name(), .shape = {7}});
      else
        arrays.add(array.layout(), array.bytes());
    }
  }
  void restore(const ParameterSet& arrays) override { model_.restore(arrays); }

 private:
  static DataParallelOptions options_for(const CoordinatorContext& context, const PlainConfig& config) {
    DataParallelOptions options =
        data_parallel_options(*context.run, {.num_replicas = config.replicas, .aggregation = strategy::AllReduce{}});
    options.world = context.world;
    return options;
  }

  bool fails(const std::string& how) const {
    return config_.failure == how && steps_ == config_.fails_at && (config_.fails_on < 0 || config_.fails_on == rank_);
  }

  std::shared_ptr<const Run> run_;
  std::shared_ptr<const Dataset> train_;
  int rank_;
  PlainConfig config_;
  std::unique_ptr<torch::optim::OptimizerOptions> rule_;
  std::shared_ptr<GraphModule> net_;
  DataParallel<GraphModule> model_;
  Evaluator evaluator_;
  const Events& events_;
  std::optional<Loader> loader_;
  std::int64_t steps_ = 0;
};

// "plain", which may be on several processes, and "solo", which may not.
inline void add_plain_coordinators(CoordinatorRegistry& registry) {
  for (const char* name : {"plain", "solo"}) {
    registry.add({.name = name, .resolve = [name](const Options& config, const Run& run) {
                    PlainConfig plain;
                    plain.replicas =
                        static_cast<int>(config.integer("replicas", {.min = 1, .max = run.data.batch_size}));
                    plain.failure = config.choice(
                        "failure",
                        {"none", "is_interrupted", "stumbles", "is_no_tutti", "breaks_torch", "complains",
                         "forgets_weights", "forgets_buffers", "forgets_metrics", "saves_other_shapes", "makes_nothing",
                         "refuses", "throws_number", "resolve_throws_number", "make_throws_number"},
                        plain.failure);
                    plain.fails_at = config.integer("fails_at", {.min = 1}, plain.fails_at);
                    plain.fails_on = static_cast<int>(config.integer("fails_on", {.min = 0, .max = 9}, -1));
                    if (plain.failure == "resolve_throws_number") throw 7;
                    const auto make = [plain](const CoordinatorContext& context) -> std::unique_ptr<Stepper> {
                      if (plain.failure == "makes_nothing") return nullptr;
                      if (plain.failure == "refuses") throw UsageError("not today");
                      if (plain.failure == "make_throws_number") throw 7;
                      return std::make_unique<PlainStepper>(context, plain);
                    };
                    return Coordinator{.make = make, .uses_world = std::string(name) == "plain"};
                  }});
  }
}

}  // namespace tutti::testing
