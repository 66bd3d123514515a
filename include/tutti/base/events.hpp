// What a run tells while it goes on, to whoever listens: the terminal, the metrics files, the checkpointer.
//
//   struct Losses : Observer {
//     void on(const Event& event) override {
//       if (const auto* step = std::get_if<event::StepEnded>(&event)) losses.push_back(step->loss);
//     }
//     std::vector<double> losses;
//   };
//   Events events;
//   events.add(std::make_shared<Losses>());
//   events.tell(event::StepEnded{.step = 1, .loss = 2.3});
//
// Threads: one at a time tells, on the rank that speaks for all. Nothing flows back: what an observer throws ends the
// run as any other error would.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tutti {

// A metric and its value: "accuracy", 0.87.
struct NamedNumber {
  std::string name;
  double value = 0;
  friend bool operator==(const NamedNumber&, const NamedNumber&) = default;
};

namespace event {

// Before the first step.
struct RunStarted {
  std::string output = {};              // the folder
  std::string strategy = {};            // in a line, for people
  std::string engine = {};              // the same: which path gradients take
  std::vector<std::string> notes = {};  // what else people should know, in lines
  std::string unit = "step";            // what people call a step: "round" where it is one
  std::int64_t first_step = 0;          // steps taken before, by the run that this one goes on from
  double first_seconds = 0;             // of training, that those took
  std::int64_t steps = 0;               // of the whole run
  std::int64_t steps_per_epoch = 0;
  std::int64_t rows_per_step = 0;
};

// Where a step's time went, in seconds.
struct StepTimes {
  double data = 0;
  double compute = 0;
  double communication = 0;
  double waiting = 0;
};

struct StepEnded {
  std::int64_t step = 0;   // counted from 1
  std::int64_t epoch = 0;  // the one it belongs to, counted from 1
  double seconds = 0;      // of training so far, what was before a resume included
  double loss = 0;
  double lr = 0;
  std::int64_t rows = 0;
  StepTimes times = {};
  std::vector<NamedNumber> metrics = {};  // of its rows, before the update
  std::vector<NamedNumber> counts = {};   // what else there was of it: those of several steps add up
};

struct EvaluationEnded {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  double seconds = 0;
  std::string split = {};  // "test"
  std::int64_t rows = 0;
  double loss = 0;
  std::vector<NamedNumber> metrics = {};
  bool is_best = false;  // so far
};

// Of a population: a member has trained for a generation, and was evaluated.
struct MemberEvaluated {
  std::int64_t generation = 0;              // counted from 1
  std::int64_t member = 0;                  // counted from 0
  double score = 0;                         // not a number where it has failed
  std::string failure = {};                 // then why
  std::optional<std::int64_t> parent = {};  // whom it took over from before it trained
  // By path, each with the text of its JSON.
  std::vector<std::pair<std::string, std::string>> hyper_parameters = {};
  std::vector<NamedNumber> measured = {};  // what else was measured
  bool is_best = false;                    // so far
};

// So many members are through with a generation that goes on.
struct GenerationWentOn {
  std::int64_t generation = 0;
  std::int64_t through = 0;
  std::int64_t members = 0;
};

// All members have.
struct GenerationEnded {
  std::int64_t generation = 0;
  double seconds = 0;           // of training so far, what was before a resume included
  std::string score_name = {};  // "validation accuracy"
  bool higher_is_better = true;
  double best_score = 0;  // of the generation, as the next
  std::int64_t best_member = 0;
  double median_score = 0;
  std::int64_t took_over = 0;  // how many began it with what others had left
  std::int64_t failed = 0;
};

struct CheckpointWritten {
  std::int64_t step = 0;
  std::string path = {};
};

struct Warned {
  std::string sentence = {};
};

// A stretch of time of one rank, where a trace is wanted.
struct SpanEnded {
  enum class Kind { compute, communication, waiting, data };
  int rank = 0;
  Kind kind = Kind::compute;
  std::string name = {};  // "forward", "all_reduce"
  double begin = 0;       // seconds since the run started
  double end = 0;
};

struct RunEnded {
  enum class Reason { finished, stopped_early, interrupted };
  Reason reason = Reason::finished;
  std::int64_t step = 0;
  double seconds = 0;
};

}  // namespace event

using Event = std::variant<event::RunStarted, event::StepEnded, event::EvaluationEnded, event::MemberEvaluated,
                           event::GenerationWentOn, event::GenerationEnded, event::CheckpointWritten, event::Warned,
                           event::SpanEnded, event::RunEnded>;

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on(const Event& event) = 0;
};

class Events {
 public:
  void add(std::shared_ptr<Observer> observer) { observers_.push_back(std::move(observer)); }
  void tell(const Event& event) const {
    for (const std::shared_ptr<Observer>& observer : observers_) observer->on(event);
  }

 private:
  std::vector<std::shared_ptr<Observer>> observers_;
};

}  // namespace tutti
