#include "graph_member.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <tutti/data/subset.hpp>

#include "run_values.hpp"
#include "stretch.hpp"

namespace tutti::detail {
namespace {

class GraphMember final : public PopulationMember {
 public:
  GraphMember(std::shared_ptr<const MemberGround> ground, const MemberTask& task)
      : ground_(std::move(ground)),
        stretch_(run_of(task), task.state ? ground_->going_on : ground_->training),
        steps_per_epoch_(steps_per_epoch(stretch_.run(), ground_->training.data.train->size())) {}

  void load(const MemberState& state) override {
    ParameterSet all = state.weights;
    for (const NamedArray& array : state.optimizer) all.add(array.layout(), array.bytes());
    stretch_.go_on_from(all, /*with_optimizer=*/!state.optimizer.empty());
  }

  void train(const MemberTask& task) override {
    const RunPhase phase = phase_of_generation(ground_->strategy, task.generation);
    stretch_.begin(steps_of({phase}, {steps_per_epoch_}).front());
    while (!stretch_.is_over()) {
      task.go_on();
      stretch_.set_rate();
      try {
        (void)stretch_.step(/*is_interrupted=*/false);
      } catch (const c10::Error& error) {
        throw Error(error.what_without_backtrace());
      }
    }
  }

  MemberScore evaluate() override {
    const std::shared_ptr<const Dataset>& rows = ground_->training.data.validation;
    const Evaluation all = stretch_.stepper().evaluate(rows);
    MemberScore score{.value = score_of(all), .samples = {}, .measured = {{"loss", all.loss}}};
    score.measured.insert(score.measured.end(), all.metrics.begin(), all.metrics.end());
    if (const auto* test = std::get_if<strategy::WelchTTest>(&ground_->strategy.exploit)) {
      const std::int64_t parts = std::min(test->scores, rows->size());
      for (std::int64_t part = 0; part < parts; ++part) {
        std::vector<std::int64_t> numbers;
        for (std::int64_t row = part; row < rows->size(); row += parts) numbers.push_back(row);
        score.samples.push_back(
            score_of(stretch_.stepper().evaluate(std::make_shared<SubsetDataset>(rows, std::move(numbers)))));
      }
    }
    return score;
  }

  MemberState save() override {
    ParameterSet all;
    stretch_.save(all);
    return {.weights = part_of_state(all, true), .optimizer = part_of_state(all, false)};
  }

 private:
  std::shared_ptr<const Run> run_of(const MemberTask& task) const {
    Run run = run_of_member(*ground_->training.run, task.hyper_parameters);
    run.seed = task.seed;
    return std::make_shared<const Run>(std::move(run));
  }

  double score_of(const Evaluation& evaluation) const {
    const std::string& by = ground_->training.run->train.best_by;
    const auto metric = std::ranges::find(evaluation.metrics, by, &NamedNumber::name);
    return metric == evaluation.metrics.end() ? evaluation.loss : metric->value;
  }

  std::shared_ptr<const MemberGround> ground_;
  Stretch stretch_;
  std::int64_t steps_per_epoch_;
};

}  // namespace

MemberGround::MemberGround(const Training& population)
    : options{.from = population.options.from},
      training{.run = population.run,
               .data = population.data,
               .events = nobody,
               .options = options,
               .weights = population.weights},
      going_on{.run = training.run, .data = training.data, .events = nobody, .options = options},
      strategy(std::get<strategy::PopulationBased>(population.run->graph.effective_strategy())) {}

RunPhase phase_of_generation(const strategy::PopulationBased& strategy, std::int64_t generation) {
  const bool by_steps = strategy.generation.steps > 0;
  const std::int64_t length = by_steps ? strategy.generation.steps : strategy.generation.epochs;
  return {.epochs = by_steps ? 0 : length,
          .steps = by_steps ? length : 0,
          .after = (generation - 1) * length,
          .of = strategy.generations * length};
}

std::unique_ptr<PopulationMember> make_graph_member(const std::shared_ptr<const MemberGround>& ground,
                                                    const MemberTask& task) {
  return std::make_unique<GraphMember>(ground, task);
}

}  // namespace tutti::detail
