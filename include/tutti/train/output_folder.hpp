// The folder that a run writes to. One run at a time has it; what an earlier one left there is not lost.
//
//   OutputFolder folder("runs/first");         // a UsageError where another run is writing there
//   folder.begin_anew();                       // an earlier run's files are now in runs/first.1
//   folder.checkpoints();
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tutti {

class OutputFolder {
 public:
  // Makes the folder where it is not there.
  explicit OutputFolder(std::filesystem::path folder);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

  // Where there are checkpoints of an earlier run, all that is in the folder is put into one beside it, under the next
  // free name, which is returned; but for what is in use already, where that is in the folder.
  std::optional<std::filesystem::path> begin_anew(const std::optional<std::filesystem::path>& in_use = {});

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

 private:
  void open();

  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace tutti
