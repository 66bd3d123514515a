// `tutti eval runs/first`: the loss and the metrics of what a run has learnt.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/nn/one_thread.hpp>
#include <tutti/report/progress_line.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/evaluation.hpp>

#include "cli/command_line.hpp"
#include "cli/split_rows.hpp"
#include "cli/trained_run.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

void print(const Evaluation& evaluation, const std::string& split, const TrainedRun& trained) {
  std::string text = fmt::format("{} loss {}", split, format_measure(evaluation.loss));
  for (const NamedNumber& metric : evaluation.metrics)
    text += fmt::format("  {} {}", metric.name, format_measure(metric.value));
  fmt::print("{}  ({} rows, {})\n", text, evaluation.rows, trained.file().string());
}

void print_json(const Evaluation& evaluation, const std::string& split, const TrainedRun& trained) {
  nlohmann::ordered_json json{{"split", split}, {"rows", evaluation.rows}, {"loss", evaluation.loss}};
  for (const NamedNumber& metric : evaluation.metrics) json[metric.name] = metric.value;
  json["weights"] = trained.file().string();
  fmt::print("{}\n", json.dump());
}

}  // namespace

void run_eval(Arguments arguments) {
  TrainedRun trained("eval");
  std::string split = "test";
  bool is_json = false;
  CommandLine line("Evaluates what a run has learnt: its loss and its metrics.", "tutti eval");
  trained.add_to(line);
  line.option("--split", split, "train, validation or test");
  line.flag("--json", is_json, "print a JSON object");
  if (!line.parse(arguments)) return;

  refuse_unless_split(split);
  trained.load();
  set_up_blas();
  const std::shared_ptr<const Dataset> rows = rows_of_split(open_data(*trained.run()), split);
  Evaluator evaluator(trained.run(), {.threads = usable_core_count()});
  const Evaluation evaluation = evaluator.evaluate(trained.module(), rows);
  is_json ? print_json(evaluation, split, trained) : print(evaluation, split, trained);
}

}  // namespace tutti::cli
