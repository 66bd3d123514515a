// A file that takes the place of another at once: whoever opens the path finds the old content or all of the new.
//
//   ReplacingFile file("metrics.jsonl");
//   file.write("{}\n");
//   file.commit();
//
// It is written beside its target, under the same name with ".tmp" after it. Without commit() the target stays as it
// was.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "output_file.hpp"

namespace tutti::detail {

class ReplacingFile {
 public:
  explicit ReplacingFile(std::filesystem::path target);
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;
  ~ReplacingFile();

  void write(std::string_view bytes) { file_->write(bytes); }
  void commit();

 private:
  std::filesystem::path target_;
  std::optional<OutputFile> file_;  // nothing once it is committed
};

}  // namespace tutti::detail
