// What a run measured, for TensorBoard: `tensorboard --logdir runs`.
//
//   events.add(std::make_shared<TensorBoardFile>("runs/first"));
//
// Tags are train/loss, train/lr and train/<metric>, which are means over the steps since the point before, weighted by
// their rows; and <split>/loss and <split>/<metric> for each evaluation. Steps that no point told yet are told at
// checkpoints and at the end. Of a population, each generation is a point of population/best_score and others.
//
// Each run that starts writes a file of its own, events.out.tfevents.<seconds>.<host>.<process>.<number>. Where it goes
// on from step k, the file says so, and TensorBoard leaves out what earlier files of the folder tell of later steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include <tutti/base/events.hpp>

namespace tutti {

struct TensorBoardFileOptions {
  std::int64_t every_steps = 10;           // a point at each step that this divides
  std::function<double()> wall_time = {};  // in seconds since 1970; without one, the system's
};

// A folder that is not there is made. A write that fails is an Error that names the file and the reason.
class TensorBoardFile : public Observer {
 public:
  explicit TensorBoardFile(std::filesystem::path folder, TensorBoardFileOptions options = {});
  ~TensorBoardFile() override;

  void on(const Event& event) override;

 private:
  class Writer;

  std::unique_ptr<Writer> writer_;
};

}  // namespace tutti
