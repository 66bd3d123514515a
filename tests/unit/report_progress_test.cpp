#include <tutti/report/progress_report.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A report into memory, with a clock that the test sets.
class Told {
 public:
  explicit Told(ProgressOptions options) : stream_(::open_memstream(&text_, &size_)) {
    options.stream = stream_;
    options.bar = BarStyle::ascii;
    options.clock = [this] { return now; };
    report_ = std::make_unique<ProgressReport>(std::move(options));
  }
  ~Told() {
    report_.reset();
    std::fclose(stream_);
    ::free(text_);
  }

  void tell(const Event& event) { report_->on(event); }
  void leave() { report_.reset(); }

  // What was written since this was asked before.
  std::string news() {
    std::string all(text_, size_);
    std::string fresh = all.substr(seen_);
    seen_ = all.size();
    return fresh;
  }

  std::vector<std::string> lines() {
    std::vector<std::string> lines;
    std::string text = news();
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
      lines.push_back(text.substr(0, end));
    EXPECT_THAT(text, IsEmpty());
    return lines;
  }

  double now = 100;

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::size_t seen_ = 0;
  std::FILE* stream_;
  std::unique_ptr<ProgressReport> report_;
};

const event::RunStarted kStart{.output = "runs/first",
                               .strategy = "DataParallel: 2 replicas",
                               .engine = "threads share parameters",
                               .steps = 100,
                               .steps_per_epoch = 40,
                               .rows_per_step = 128};

// A step takes half a second, a quarter of it communication.
event::StepEnded step(std::int64_t number, double loss = 1.5) {
  return {.step = number,
          .epoch = (number - 1) / 40 + 1,
          .seconds = 0.5 * static_cast<double>(number),
          .loss = loss,
          .lr = 0.1,
          .rows = 128,
          .times = {.compute = 0.3, .communication = 0.075, .waiting = 0.025},
          .metrics = {{"accuracy", 0.5}}};
}

const event::EvaluationEnded kEvaluation{
    .step = 40, .epoch = 1, .split = "test", .loss = 0.25, .metrics = {{"accuracy", 0.75}}, .is_best = true};

TEST(PlainProgress, TellsTheStartAtOnce) {
  Told told({.mode = ProgressMode::plain});
  told.tell(kStart);
  EXPECT_THAT(told.lines(), ElementsAre("strategy  DataParallel: 2 replicas", "engine    threads share parameters",
                                        "steps     100 of 128 rows", "output    runs/first"));
}

TEST(PlainProgress, SaysWhereItGoesOn) {
  Told told({.mode = ProgressMode::plain});
  told.tell(event::RunStarted{.first_step = 40, .steps = 100});
  EXPECT_THAT(told.lines(), ElementsAre("steps     100, of which 40 were taken before"));
}

TEST(PlainProgress, TellsStepsNotMoreThanEverySoOften) {
  Told told({.mode = ProgressMode::plain, .seconds_between_lines = 5});
  told.tell(kStart);
  told.news();
  int lines = 0;
  for (int i = 1; i <= 100; ++i) {
    told.now += 0.5;
    told.tell(step(i));
    lines += static_cast<int>(told.lines().size());
  }
  EXPECT_EQ(lines, 10);
}

TEST(PlainProgress, TellsRatesSharesAndTheTimeLeft) {
  Told told({.mode = ProgressMode::plain, .seconds_between_lines = 20});
  told.tell(kStart);
  told.news();
  for (int i = 1; i <= 40; ++i) {
    told.now += 0.5;
    told.tell(step(i));
  }
  EXPECT_THAT(told.lines(),
              ElementsAre("step 40/100  epoch 1/3  loss 1.5000  accuracy 0.5000  256 rows/s  comm 25%  0:30 left"));
}

TEST(PlainProgress, CountsTimeAndRowsFromWhereItGoesOn) {
  Told told({.mode = ProgressMode::plain, .seconds_between_lines = 0});
  told.tell(event::RunStarted{.first_step = 40, .first_seconds = 20, .steps = 100});
  told.news();
  told.now += 2;
  told.tell(step(41));
  EXPECT_THAT(told.news(), HasSubstr("256 rows/s"));
  told.now += 2;
  told.tell(step(42));
  EXPECT_THAT(told.news(), HasSubstr("1:56 left"));
}

TEST(PlainProgress, TellsAllElseAtOnce) {
  Told told({.mode = ProgressMode::plain});
  told.tell(kStart);
  told.tell(step(40));
  told.news();
  told.tell(kEvaluation);
  told.tell(event::CheckpointWritten{.step = 40, .path = "runs/first/checkpoints/40"});
  told.tell(event::Warned{"the loss\nis not finite"});
  told.tell(event::SpanEnded{.name = "forward"});
  told.tell(event::RunEnded{.step = 100, .seconds = 125});
  EXPECT_THAT(told.lines(),
              ElementsAre("step 40  epoch 1  test loss 0.2500  accuracy 0.7500  best so far",
                          "step 40  checkpoint runs/first/checkpoints/40", "warning: the loss is not finite",
                          "finished at step 100, in 2:05, loss 1.5000"));
}

TEST(PlainProgress, SaysHowItEnded) {
  Told told({.mode = ProgressMode::plain});
  told.tell(event::RunEnded{.reason = event::RunEnded::Reason::stopped_early, .step = 7, .seconds = 1});
  told.tell(event::RunEnded{.reason = event::RunEnded::Reason::interrupted, .step = 7, .seconds = 3600});
  EXPECT_THAT(told.lines(), ElementsAre("stopped early at step 7, in 0:01", "interrupted at step 7, in 1:00:00"));
}

TEST(PlainProgress, SmoothsTheLossAndShowsOneThatIsNotFinite) {
  Told told({.mode = ProgressMode::plain, .seconds_between_lines = 0});
  told.tell(kStart);
  told.news();
  told.tell(step(1, 1));
  EXPECT_THAT(told.news(), HasSubstr("loss 1.0000"));
  told.tell(step(2, 3));
  EXPECT_THAT(told.news(), HasSubstr("loss 2.0101"));
  told.tell(step(3, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_THAT(told.news(), HasSubstr("loss nan"));
  told.tell(step(4, 2));
  EXPECT_THAT(told.news(), HasSubstr("loss 2.0067"));
}

TEST(PlainProgress, ShowsTheLastRoundAsItIs) {
  Told told({.mode = ProgressMode::plain, .seconds_between_lines = 0});
  told.tell(event::RunStarted{.unit = "round", .steps = 2});
  told.news();
  told.tell(step(1, 3));
  event::StepEnded last = step(2, 1);
  last.metrics = {{"accuracy", 0.75}};
  told.tell(last);
  EXPECT_THAT(told.news(), HasSubstr("loss 1.0000  accuracy 0.7500"));
  told.tell(event::RunEnded{.step = 2, .seconds = 1});
  EXPECT_THAT(told.lines(), ElementsAre("finished at round 2, in 0:01, loss 1.0000"));
}

const event::RunStarted kPopulation{.unit = "generation", .steps = 4};

event::GenerationEnded generation(std::int64_t number) {
  return {.generation = number,
          .seconds = 10 * static_cast<double>(number),
          .score_name = "validation accuracy",
          .best_score = 0.8712,
          .best_member = 1,
          .median_score = 0.5,
          .took_over = number == 1 ? 0 : 2};
}

event::MemberEvaluated member(std::int64_t generation, std::int64_t number, double score, bool is_best = false) {
  return {.generation = generation,
          .member = number,
          .score = score,
          .failure = std::isfinite(score) ? "" : "no memory",
          .hyper_parameters = {{"optimizer.lr", "0.125"}},
          .is_best = is_best};
}

TEST(PlainProgress, TellsEachGenerationAndAtTheEndTheMembersOfTheLast) {
  Told told({.mode = ProgressMode::plain});
  told.tell(kPopulation);
  told.tell(member(1, 0, 0.5, /*is_best=*/true));
  told.tell(member(1, 1, 0.8912, /*is_best=*/true));
  told.tell(generation(1));
  event::GenerationEnded second = generation(2);
  second.failed = 1;
  told.tell(member(2, 0, std::numeric_limits<double>::quiet_NaN()));
  told.tell(member(2, 1, 0.8712));
  told.tell(member(3, 1, 0.9));  // ahead of the other
  told.tell(second);
  told.tell(event::RunEnded{.reason = event::RunEnded::Reason::interrupted, .step = 2, .seconds = 20});
  EXPECT_THAT(
      told.lines(),
      ElementsAre("generations  4", "generation 1  validation accuracy best 0.8712 (member 1)  median 0.5000",
                  "generation 2  validation accuracy best 0.8712 (member 1)  median 0.5000  2 took over  1 failed",
                  "member  score   from  optimizer.lr", "     1  0.8712     -  0.125", "     0  failed     -  0.125",
                  "interrupted at generation 2, in 0:20, best validation accuracy 0.8912"));
}

TEST(PlainProgress, TellsNoScoresOfAGenerationWithoutAny) {
  Told told({.mode = ProgressMode::plain});
  told.tell(event::GenerationEnded{
      .generation = 1, .score_name = "score", .best_score = std::numeric_limits<double>::quiet_NaN(), .failed = 2});
  EXPECT_THAT(told.lines(), ElementsAre("generation 1  2 failed"));
}

TEST(QuietProgress, TellsOfAPopulationTheEndAlone) {
  Told told({.mode = ProgressMode::quiet});
  told.tell(kPopulation);
  told.tell(member(1, 0, 0.5, /*is_best=*/true));
  told.tell(generation(1));
  EXPECT_THAT(told.lines(), IsEmpty());
  told.tell(event::RunEnded{.step = 1, .seconds = 10});
  EXPECT_THAT(told.lines(), ElementsAre("finished at generation 1, in 0:10, best validation accuracy 0.5000"));
}

// The best was reached before it went on.
TEST(PlainProgress, TellsNoBestThatItDoesNotKnow) {
  Told told({.mode = ProgressMode::plain});
  told.tell(event::RunStarted{.unit = "generation", .first_step = 1, .steps = 2});
  told.tell(member(2, 0, 0.5));
  told.tell(generation(2));
  told.tell(event::RunEnded{.step = 2, .seconds = 10});
  EXPECT_EQ(told.lines().back(), "finished at generation 2, in 0:10");
}

TEST(PlainProgress, TellsEveryTenSecondsHowManyMembersAreThrough) {
  Told told({.mode = ProgressMode::plain});
  told.tell(kPopulation);
  told.lines();
  for (std::int64_t through = 1; through < 8; ++through) {
    told.now += 4;
    told.tell(event::GenerationWentOn{.generation = 1, .through = through, .members = 8});
  }
  EXPECT_THAT(told.lines(), ElementsAre("generation 0/4  members 3/8", "generation 0/4  members 6/8"));
}

TEST(TerminalProgress, CountsMembersUntilTheirGenerationEnds) {
  Told told({.mode = ProgressMode::terminal, .width = 60});
  told.tell(kPopulation);
  told.tell(event::GenerationWentOn{.generation = 1, .through = 3, .members = 8});
  EXPECT_THAT(told.news(), HasSubstr("0/4  members 3/8"));
  told.tell(generation(1));
  EXPECT_THAT(told.news(), Not(HasSubstr("members")));
}

TEST(TerminalProgress, CountsGenerations) {
  Told told({.mode = ProgressMode::terminal, .width = 60});
  told.tell(kPopulation);
  told.news();
  told.now += 30;
  told.tell(member(1, 1, 0.8712, /*is_best=*/true));
  EXPECT_EQ(told.news(), "");
  told.tell(generation(1));
  EXPECT_EQ(told.news(),
            "generation 1  validation accuracy best 0.8712 (member 1)  median 0.5000\n"
            "\r[==>          ]  1/4  validation accuracy 0.8712  1:30 left\x1b[K");
  told.tell(event::RunEnded{.step = 1, .seconds = 30});
  EXPECT_EQ(told.news(),
            "\r\x1b[Kmember  score   from  optimizer.lr\n     1  0.8712     -  0.125\n"
            "finished at generation 1, in 0:30, best validation accuracy 0.8712\n");
}

TEST(JsonProgress, HasHyperParametersAsTheyAre) {
  Told told({.mode = ProgressMode::json});
  told.tell(event::MemberEvaluated{.generation = 2,
                                   .member = 3,
                                   .score = 0.5,
                                   .parent = 1,
                                   .hyper_parameters = {{"optimizer.lr", "0.125"}, {"optimizer.name", R"("adam")"}},
                                   .measured = {{"loss", 2}},
                                   .is_best = true});
  told.tell(member(2, 4, std::numeric_limits<double>::quiet_NaN()));
  told.tell(generation(2));
  EXPECT_THAT(
      told.lines(),
      ElementsAre(
          R"({"event":"member_evaluated","generation":2,"member":3,"score":0.5,"failure":"","parent":1,"hyper_parameters":{"optimizer.lr":0.125,"optimizer.name":"adam"},"measured":{"loss":2.0},"is_best":true})",
          R"({"event":"member_evaluated","generation":2,"member":4,"score":null,"failure":"no memory","parent":null,"hyper_parameters":{"optimizer.lr":0.125},"measured":{},"is_best":false})",
          R"({"event":"generation_ended","generation":2,"seconds":20.0,"score_name":"validation accuracy","higher_is_better":true,"best_score":0.8712,"best_member":1,"median_score":0.5,"took_over":2,"failed":0})"));
}

TEST(QuietProgress, TellsWarningsAndTheEnd) {
  Told told({.mode = ProgressMode::quiet, .seconds_between_lines = 0});
  told.tell(kStart);
  told.tell(step(40));
  told.tell(kEvaluation);
  told.tell(event::CheckpointWritten{.step = 40, .path = "there"});
  EXPECT_THAT(told.lines(), IsEmpty());
  told.tell(event::Warned{"careful"});
  told.tell(event::RunEnded{.step = 40, .seconds = 1});
  EXPECT_THAT(told.lines(), ElementsAre("warning: careful", "finished at step 40, in 0:01, loss 1.5000"));
}

TEST(JsonProgress, IsAnObjectForEachEvent) {
  Told told({.mode = ProgressMode::json, .seconds_between_lines = 5});
  told.tell(kStart);
  for (int i = 1; i <= 40; ++i) {
    told.now += 0.5;
    told.tell(step(i, i == 20 ? std::numeric_limits<double>::infinity() : 1.5));
  }
  told.tell(event::SpanEnded{.name = "forward"});
  told.tell(kEvaluation);
  told.tell(kEvaluation);
  told.tell(event::CheckpointWritten{.step = 40, .path = "there"});
  told.tell(event::Warned{"\xff \"quoted\""});
  told.tell(event::RunEnded{.reason = event::RunEnded::Reason::stopped_early, .step = 40, .seconds = 20});
  std::vector<nlohmann::json> events;
  std::vector<std::string> names;
  for (const std::string& line : told.lines()) {
    events.push_back(nlohmann::json::parse(line));
    names.push_back(events.back().at("event"));
  }
  ASSERT_THAT(names, ElementsAre("run_started", "step_ended", "step_ended", "step_ended", "step_ended",
                                 "evaluation_ended", "evaluation_ended", "checkpoint_written", "warned", "run_ended"));
  EXPECT_EQ(events[0]["strategy"], "DataParallel: 2 replicas");
  EXPECT_EQ(events[0]["steps"], 100);
  EXPECT_EQ(events[1]["step"], 10);
  EXPECT_EQ(events[1]["loss"], 1.5);
  EXPECT_EQ(events[1]["times"]["waiting"], 0.025);
  EXPECT_EQ(events[1]["metrics"]["accuracy"], 0.5);
  EXPECT_EQ(events[2]["loss"], nullptr);
  EXPECT_EQ(events[5]["split"], "test");
  EXPECT_EQ(events[5]["is_best"], true);
  EXPECT_EQ(events[7]["path"], "there");
  EXPECT_EQ(events[8]["sentence"], "\ufffd \"quoted\"");
  EXPECT_EQ(events[9]["reason"], "stopped_early");
}

TEST(TerminalProgress, RewritesOneLine) {
  Told told({.mode = ProgressMode::terminal, .width = 40});
  told.tell(kStart);
  told.news();
  told.tell(step(1));
  EXPECT_EQ(told.news(), "\r  1/100  loss 1.5000  0:00 left\x1b[K");
  told.now += 0.05;
  told.tell(step(2));
  EXPECT_EQ(told.news(), "");
  told.now += 0.06;
  told.tell(step(3));
  EXPECT_EQ(told.news(), "\r  3/100  loss 1.5000  0:03 left\x1b[K");
  told.tell(step(100));
  EXPECT_EQ(told.news(), "\r100/100  loss 1.5000  0:00 left\x1b[K") << "the last step is always shown";
}

TEST(TerminalProgress, ScrollsLinesAboveIt) {
  Told told({.mode = ProgressMode::terminal, .width = 20});
  told.tell(kStart);
  told.tell(event::Warned{"before"});
  EXPECT_THAT(told.news(), EndsWith("runs/first\nwarning: before\n"));
  told.tell(step(1));
  told.news();
  told.tell(event::Warned{"after"});
  EXPECT_EQ(told.news(), "\r\x1b[Kwarning: after\n\r  1/100\x1b[K");
  told.tell(event::RunEnded{.step = 1, .seconds = 1});
  EXPECT_EQ(told.news(), "\r\x1b[Kfinished at step 1, in 0:01, loss 1.5000\n");
  told.leave();
  EXPECT_EQ(told.news(), "");
}

TEST(TerminalProgress, LeavesItsLastLineWhereTheRunDidNotEnd) {
  Told told({.mode = ProgressMode::terminal, .width = 20});
  told.tell(kStart);
  told.tell(step(1));
  told.tell(step(2));
  told.news();
  told.leave();
  EXPECT_EQ(told.news(), "\r  2/100\x1b[K\n");
}

TEST(TerminalProgress, NeverFillsTheLastColumn) {
  for (int width = 1; width <= 200; ++width) {
    Told told({.mode = ProgressMode::terminal, .width = width});
    told.tell(kStart);
    told.news();
    told.tell(step(1));
    EXPECT_LT(told.news().size() - std::string_view("\r\x1b[K").size(), static_cast<std::size_t>(width));
  }
}

// A terminal that nobody looks at.
class PseudoTerminal {
 public:
  PseudoTerminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_GE(master_, 0);
    EXPECT_EQ(::grantpt(master_), 0);
    EXPECT_EQ(::unlockpt(master_), 0);
    stream_ = std::fopen(::ptsname(master_), "r+e");
    EXPECT_NE(stream_, nullptr);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  ~PseudoTerminal() {
    std::fclose(stream_);
    ::close(master_);
  }

  std::FILE* stream() const { return stream_; }

  void resize(int columns) {
    const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(master_, TIOCSWINSZ, &size), 0);
  }

  std::string read() {
    std::string text(4096, '\0');
    const ssize_t count = ::read(master_, text.data(), text.size());
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  }

 private:
  int master_;
  std::FILE* stream_ = nullptr;
};

TEST(TerminalProgress, AsksTheTerminalForItsWidthWheneverItDraws) {
  ::setenv("TERM", "xterm", 1);
  PseudoTerminal terminal;
  terminal.resize(60);
  double now = 0;
  ProgressReport report({.stream = terminal.stream(), .bar = BarStyle::ascii, .clock = [&] { return now; }});
  report.on(event::RunStarted{.steps = 100});
  terminal.read();
  report.on(step(1));
  EXPECT_THAT(terminal.read(), HasSubstr("\r[       ]    1/100"));
  terminal.resize(20);
  now += 1;
  report.on(step(2));
  EXPECT_EQ(terminal.read(), "\r  2/100\x1b[K");
}

TEST(AutomaticProgress, IsPlainWhereThereIsNoTerminal) {
  Told told({.seconds_between_lines = 0});
  told.tell(step(1));
  const std::string text = told.news();
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, EndsWith("\n"));
}

TEST(AutomaticProgress, IsPlainOnATerminalThatCannotMoveItsCursor) {
  ::setenv("TERM", "dumb", 1);
  PseudoTerminal terminal;
  ProgressReport report({.stream = terminal.stream(), .seconds_between_lines = 0});
  report.on(step(1));
  EXPECT_THAT(terminal.read(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace tutti
