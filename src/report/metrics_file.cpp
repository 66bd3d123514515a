#include <tutti/report/metrics_file.hpp>

#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>

#include "event_json.hpp"
#include "output_file.hpp"
#include "step_means.hpp"

namespace tutti {
namespace {

using Json = nlohmann::ordered_json;

struct Kept {
  std::string lines;
  Json last = Json::object();
  bool is_all = true;
};

// The lines of steps up to `last_step`.
Kept lines_to_keep(const std::filesystem::path& file, std::int64_t last_step) {
  Kept kept;
  std::ifstream stream(file, std::ios::binary);
  std::string line;
  while (std::getline(stream, line)) {
    const bool is_whole = !stream.eof();
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = json.is_object() ? json.find("step") : json.end();
    if (is_whole && json.is_object() && step != json.end() && step->is_number_integer() &&
        step->get<std::int64_t>() <= last_step) {
      kept.lines += line + '\n';
      kept.last = std::move(json);
    } else {
      kept.is_all = false;
    }
  }
  return kept;
}

}  // namespace

class MetricsFile::Writer {
 public:
  Writer(const std::filesystem::path& folder, MetricsFileOptions options)
      : path_(folder / "metrics.jsonl"), options_(options) {
    if (options_.every_steps < 1)
      throw UsageError(fmt::format("MetricsFile: every_steps must be at least 1, and is {}", options_.every_steps));
  }

  void on(const event::RunStarted& run) {
    file_.reset();
    detail::make_folder(path_.parent_path());
    last_loss_ = std::numeric_limits<double>::quiet_NaN();
    if (run.first_step == 0) {
      file_.emplace(path_, detail::OutputFile::Mode::replace);
    } else {
      go_on_after(run.first_step);
      file_.emplace(path_, detail::OutputFile::Mode::append);
    }
    means_.start(run.first_seconds);
  }

  void on(const event::StepEnded& step) {
    means_.add(step);
    if (step.step % options_.every_steps == 0) write_steps();
  }

  void on(const event::EvaluationEnded& evaluation) {
    Json line{
        {"step", evaluation.step}, {"epoch", evaluation.epoch}, {"seconds", evaluation.seconds}, {"loss", last_loss_}};
    if (!means_.empty()) add_steps(means_.take(), line);
    line[evaluation.split + "_loss"] = evaluation.loss;
    for (const NamedNumber& metric : evaluation.metrics)
      line.emplace(evaluation.split + "_" + metric.name, metric.value);
    write(line);
  }

  void on(const event::MemberEvaluated&) {}
  void on(const event::GenerationWentOn&) {}

  void on(const event::GenerationEnded& generation) {
    write({{"step", generation.generation},
           {"seconds", generation.seconds},
           {"best_score", generation.best_score},
           {"median_score", generation.median_score},
           {"took_over", generation.took_over},
           {"failed", generation.failed}});
  }

  void on(const event::CheckpointWritten&) { write_steps(); }
  void on(const event::RunEnded&) { write_steps(); }
  void on(const event::Warned&) {}
  void on(const event::SpanEnded&) {}

 private:
  void go_on_after(std::int64_t step) {
    Kept kept = lines_to_keep(path_, step);
    if (!kept.is_all) {
      write_file(path_, kept.lines);
    }
    const auto loss = kept.last.find("loss");
    if (loss != kept.last.end() && loss->is_number()) last_loss_ = loss->get<double>();
  }

  void add_steps(const detail::StepMeans::Means& means, Json& line) {
    last_loss_ = means.loss;
    line["loss"] = means.loss;
    line["lr"] = means.lr;
    line["rows_per_second"] = means.rows_per_second;
    for (const NamedNumber& metric : means.metrics) line.emplace("train_" + metric.name, metric.value);
    for (const NamedNumber& count : means.counts) line.emplace(count.name, count.value);
  }

  void write_steps() {
    if (means_.empty()) return;
    const detail::StepMeans::Means means = means_.take();
    Json line{{"step", means.step}, {"epoch", means.epoch}, {"seconds", means.seconds}};
    add_steps(means, line);
    write(line);
  }

  void write(const Json& line) {
    if (!file_) throw UsageError(fmt::format("{}: the run has to be told as started before its steps", path_.string()));
    file_->write(detail::json_line(line) + '\n');
    file_->flush();
  }

  std::filesystem::path path_;
  MetricsFileOptions options_;
  std::optional<detail::OutputFile> file_;
  detail::StepMeans means_;
  double last_loss_ = 0;
};

MetricsFile::MetricsFile(std::filesystem::path folder, MetricsFileOptions options)
    : writer_(std::make_unique<Writer>(folder, options)) {}

MetricsFile::~MetricsFile() = default;

void MetricsFile::on(const Event& event) {
  std::visit([this](const auto& its) { writer_->on(its); }, event);
}

}  // namespace tutti
