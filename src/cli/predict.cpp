// `tutti predict runs/first`: what a run has learnt to say of rows.
#include <filesystem>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>
#include <tutti/data/data_options.hpp>
#include <tutti/nn/blas.hpp>
#include <tutti/train/batch.hpp>
#include <tutti/train/predictions.hpp>

#include "cli/command_line.hpp"
#include "cli/split_rows.hpp"
#include "cli/trained_run.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
void run_predict(Arguments arguments) {
  TrainedRun trained("predict");
  std::string split = "test";
  std::string input;
  std::string to;
  CommandLine line("Computes what a run has learnt to say of rows: of classes the likeliest, of numbers these.",
                   "tutti predict");
  trained.add_to(line);
  const CommandOption split_option =
      line.option("--split", split, "rows of the run's own data: train, validation or test");
  line.option("--input", input, "rows of this file: .npy, or of the kind that the run's data is")
      .excludes(split_option);
  line.option("--to", to,
              "write to this file: .csv, or .npy for the first output as it is; without it, a table is printed");
  if (!line.parse(arguments)) return;
  const std::string extension = std::filesystem::path(to).extension().string();
  if (!to.empty() && extension != ".csv" && extension != ".npy")
    throw UsageError(fmt::format("--to: expected a file that ends in .csv or .npy, found {}", to));

  refuse_unless_split(split);
  trained.load();
  set_up_blas();
  const std::shared_ptr<const Run>& run = trained.run();
  const std::shared_ptr<const Dataset> rows =
      input.empty() ? rows_of_split(open_data(*run), split)
                    : open_inputs(run->data.opened_by, run->data.options, run->seed, input);
  const std::string text = extension == ".npy"
                               ? prediction_npy(run, trained.module(), *rows)
                               : prediction_table(run, trained.module(), *rows, {.has_target = input.empty()});
  if (to.empty()) {
    fmt::print("{}", text);
  } else {
    write_file(to, text);
    fmt::print("{}: {} rows, with {}\n", to, rows->size(), trained.file().string());
  }
}

}  // namespace tutti::cli
