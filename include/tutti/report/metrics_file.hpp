// What a run measured, as a file that grows by a line of JSON at a time: metrics.jsonl in its folder.
//
//   events.add(std::make_shared<MetricsFile>("runs/first", MetricsFileOptions{.every_steps = 10}));
//
//   {"step":10,"epoch":1,"seconds":0.71,"loss":2.1,"lr":0.1,"rows_per_second":1803.2,"train_accuracy":0.31}
//   {"step":10,"epoch":1,"seconds":0.71,"loss":2.1,"test_loss":1.9,"test_accuracy":0.4}
//
// A line tells the mean over the steps since the line before, weighted by their rows; `lr` is that of the last step. An
// evaluation is a line of its own, with the training loss of the same steps, or the last one known. Steps that no line
// told yet are told at checkpoints and at the end, so that nothing is lost where a run goes on later. Numbers that are
// not finite are null.
//
// Of a population, a generation is a line, and its number is the step:
//
//   {"step":3,"seconds":41.5,"best_score":0.87,"median_score":0.84,"took_over":2,"failed":0}
//
// Where a run goes on from step k, lines of steps after k are dropped first, and so is a line that was not written to
// its end: a run that was killed after its last checkpoint repeats steps, and each is told once. A new run drops all
// lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <tutti/base/events.hpp>

namespace tutti {

struct MetricsFileOptions {
  std::int64_t every_steps = 10;  // a line at each step that this divides
};

// A folder that is not there is made. A write that fails is an Error that names the file and the reason.
class MetricsFile : public Observer {
 public:
  explicit MetricsFile(std::filesystem::path folder, MetricsFileOptions options = {});
  ~MetricsFile() override;

  void on(const Event& event) override;

 private:
  class Writer;

  std::unique_ptr<Writer> writer_;
};

}  // namespace tutti
