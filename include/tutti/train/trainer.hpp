// Trains what a run file describes: reads the data, makes or resumes the model, carries the strategy out, evaluates,
// and writes checkpoints.
//
//   Events events;
//   events.add(std::make_shared<ProgressReport>());
//   TrainResult result = train(read_run(document.root()), events);
//
// The trainer owns the life of a run; a strategy supplies its `fit`. What happens is told as events, on rank 0 where
// there are several processes. Everything goes to the run's output folder: run.json, the run file with all that it left
// out, and checkpoints/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/base/events.hpp>
#include <tutti/collective/communicator.hpp>
#include <tutti/train/best.hpp>
#include <tutti/train/evaluation.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

struct TrainOptions {
  // Processes that train together; replicas are spread over them evenly. All are given the same run.
  Communicator* world = nullptr;
  // Go on from the newest checkpoint of the output folder that is whole; begin where there is none.
  bool resume = false;
  // Begin with the weights of this safetensors file: a checkpoint, or one of another origin.
  std::filesystem::path from = {};
  // Asked after each step; where any process says yes, the run writes a checkpoint and ends.
  std::function<bool()> is_interrupted = {};
  // Tell what each replica did when, as spans.
  bool trace = false;
};

struct TrainResult {
  event::RunEnded::Reason reason = event::RunEnded::Reason::finished;
  std::int64_t step = 0;
  std::int64_t steps = 0;     // of the whole run
  std::string unit = "step";  // what people call one of them
  double seconds = 0;
  BestState best = {};
  std::filesystem::path last_checkpoint = {};
};

// What a process throws that is one of several, and failed with all of them or because of another: that one tells.
class ToldElsewhere : public Error {
 public:
  using Error::Error;
};

// A UsageError for what cannot be trained: Local on several processes, a coordinator that refuses, weights
// that do not fit; nothing was written then. Any other failure is an Error, and the last checkpoint stays.
TrainResult train(const Run& run, const Events& events, const TrainOptions& options = {});

// A sentence about why nothing can train the run on so many processes; nothing where something can.
std::optional<std::string> why_not_trainable(const Run& run, int processes);

// Whether what is learnt depends on who is faster, as far as the strategies of tutti are concerned; otherwise the same
// run learns the same, to the bit.
bool bits_depend_on_timing(const Run& run);

}  // namespace tutti
