// What a run writes so that it can go on later, with the same bits as if it had never stopped.
//
//   CheckpointFolder folder("runs/first/checkpoints", {.keep_last = 2});
//   folder.write({.state = {.step = 100}, .arrays = arrays});          // step-000000100.safetensors
//   std::vector<std::string> problems;
//   std::optional<Checkpoint> last = folder.read_last(problems);       // the newest that is whole
//
// A checkpoint is a safetensors file with a checksum: parameters and buffers under their own names, what else the next
// step depends on under names with a slash (docs/train.md), and the rest as JSON in the metadata. It does not
// depend on the number of replicas or processes. `last.safetensors` and `best.safetensors` are links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/base/parameter_store.hpp>
#include <tutti/train/best.hpp>
#include <tutti/train/run.hpp>

namespace tutti {

struct TrainState {
  std::int64_t step = 0;
  double seconds = 0;  // of training
  BestState best = {};
  std::string blas = {};  // the kernels: others may give other bits
  std::string run = {};   // the resolved run file, as text
};

struct Checkpoint {
  TrainState state;
  ParameterSet arrays;                         // without what clients keep
  std::vector<ArrayOnDemand> of_clients = {};  // to be written
  std::filesystem::path file = {};             // that it was read from
};

// Reads one file, whole, and believes nothing that its checksum does not say; an Error says what is wrong with it.
Checkpoint read_checkpoint(const std::filesystem::path& file);
// What clients keep, array by array.
void read_clients(const std::filesystem::path& file,
                  const std::function<void(const ParameterLayout& layout, std::span<const std::byte> bytes)>& take);

// Parameters and buffers alone, out of a checkpoint or of a safetensors file of another origin.
ParameterSet weights_in(const std::filesystem::path& file, int replica = 0);
// Those of a replica that has parameters of its own, where it is not the first. A UsageError where there is none.
ParameterSet weights_of_replica(const ParameterSet& arrays, int replica);

struct CheckpointFile {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Which steps can go, of those there are, in ascending order: not the last ones, nor the best.
std::vector<std::int64_t> checkpoints_to_remove(const std::vector<std::int64_t>& steps, const RunCheckpoints& policy,
                                                std::int64_t best_step);

// One thread, and one process, at a time.
class CheckpointFolder {
 public:
  // Made when something is written.
  CheckpointFolder(std::filesystem::path folder, RunCheckpoints policy);

  std::filesystem::path write(const Checkpoint& checkpoint);
  // In ascending order of steps.
  std::vector<CheckpointFile> files() const;
  // The newest that is whole; sentences about those that are not are added to `problems`. Nothing where there is none.
  std::optional<Checkpoint> read_last(std::vector<std::string>& problems) const;

 private:
  std::filesystem::path folder_;
  RunCheckpoints policy_;
};

}  // namespace tutti
