// What a run tells to people in front of a terminal, or to whoever reads its output.
//
//   events.add(std::make_shared<ProgressReport>());
//   events.add(std::make_shared<ProgressReport>(ProgressOptions{.mode = ProgressMode::json}));
//
// On a terminal one line is written over and over (report/progress_line.hpp); evaluations, checkpoints and warnings
// scroll above it. Elsewhere these are lines among others that tell how far the run is, one every so often.
//
// Of a population, each generation is a line, and at the end its members are a table, the best ones first:
//
//   generation 3  validation accuracy best 0.8712 (member 4)  median 0.8421  2 took over  1 failed
//
// Output that cannot be written is lost, and the run goes on.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include <tutti/base/events.hpp>
#include <tutti/report/progress_line.hpp>

namespace tutti {

enum class ProgressMode {
  automatic,  // terminal where the stream is one, and plain otherwise
  terminal,
  plain,
  quiet,  // warnings and the end
  json,   // an object on a line for each event; steps as often as in plain lines, spans not at all
};

struct ProgressOptions {
  ProgressMode mode = ProgressMode::automatic;
  std::FILE* stream = nullptr;         // without one, standard output
  int width = 0;                       // of the terminal, in columns; 0 asks it whenever the line is drawn
  std::optional<BarStyle> bar = {};    // without one, lines where the environment's locale is of UTF-8
  double seconds_between_lines = 10;   // of plain lines that tell steps; those about something else come at once
  std::function<double()> clock = {};  // in seconds from anywhere; without one, the steady clock
};

class ProgressReport : public Observer {
 public:
  explicit ProgressReport(ProgressOptions options = {});
  // Where the run did not end, its last line stays, and what follows begins on a new one.
  ~ProgressReport() override;

  void on(const Event& event) override;

 private:
  class Teller;

  std::unique_ptr<Teller> teller_;
};

}  // namespace tutti
