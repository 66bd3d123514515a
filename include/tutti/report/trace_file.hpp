// Where the time of a run went, rank by rank, as a file for https://ui.perfetto.dev or chrome://tracing.
//
//   events.add(std::make_shared<TraceFile>("trace.json"));
//
// Each rank is a process there ("rank 0"), each kind of span a thread of it ("compute"). Spans of one rank and kind
// must nest or follow each other.
//
// Spans go to disk as they come, but for the last few, into a file beside it; when the run ends, or with this object
// where it ends in an error, that becomes trace.json. What is told after the end of the run is left out.
#pragma once

#include <filesystem>
#include <memory>

#include <tutti/base/events.hpp>

namespace tutti {

// A file that cannot be written is an Error that names it and the reason: at once where it cannot be made.
class TraceFile : public Observer {
 public:
  explicit TraceFile(std::filesystem::path file);
  ~TraceFile() override;

  void on(const Event& event) override;

 private:
  class Writer;

  std::unique_ptr<Writer> writer_;  // nothing after the end
};

}  // namespace tutti
