#include <tutti/report/progress_report.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "columns.hpp"
#include "event_json.hpp"
#include "member_table.hpp"

namespace tutti {
namespace {

constexpr double kSecondsBetweenDrawings = 0.1;
constexpr int kUsualWidth = 80;
constexpr std::string_view kBackToTheLeft = "\r";
constexpr std::string_view kEraseTheRest = "\x1b[K";

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_terminal(std::FILE* stream) {
  const std::string_view kind = environment("TERM");
  return ::isatty(::fileno(stream)) == 1 && !kind.empty() && kind != "dumb";
}

BarStyle bar_of_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string locale(environment(name));
    if (locale.empty()) continue;
    std::ranges::transform(locale, locale.begin(),
                           [](char letter) { return letter >= 'A' && letter <= 'Z' ? letter + 32 : letter; });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos ? BarStyle::lines
                                                                                                 : BarStyle::ascii;
  }
  return BarStyle::ascii;
}

// A mean in which older numbers count less and less; numbers that are not finite are left out.
class RecentMean {
 public:
  void add(double number, double weight = 1) {
    if (!std::isfinite(number) || !(weight > 0)) return;
    value_ = kKept * value_ + weight * number;
    weight_ = kKept * weight_ + weight;
  }
  std::optional<double> value() const { return weight_ > 0 ? std::optional(value_ / weight_) : std::nullopt; }

 private:
  static constexpr double kKept = 0.98;
  double value_ = 0;
  double weight_ = 0;
};

// The mean, except that a number which is not finite is shown as it is.
std::optional<double> shown(const RecentMean& mean, double latest) {
  return std::isfinite(latest) ? mean.value() : latest;
}

// How far the run is, from what it told.
class Progress {
 public:
  void start(const event::RunStarted& run, double now) {
    *this = {};
    run_ = run;
    started_ = now;
    seconds_ = run.first_seconds;
    state_.step = run.first_step;
    state_.steps = run.steps;
    state_.unit = run.unit;
    if (run.steps_per_epoch > 0) state_.epochs = (run.steps + run.steps_per_epoch - 1) / run.steps_per_epoch;
  }

  void add(const event::StepEnded& step, double now) {
    state_.step = step.step;
    state_.epoch = step.epoch;
    loss_.add(step.loss);
    state_.loss = shown_of(loss_, step.loss);
    if (!step.metrics.empty()) {
      const NamedNumber& first = step.metrics.front();
      metric_.add(first.value);
      state_.metric = {first.name, shown_of(metric_, first.value).value_or(first.value)};
    }
    const double seconds = step.seconds - std::exchange(seconds_, step.seconds);
    rows_per_second_.add(static_cast<double>(step.rows) / seconds, seconds);
    state_.rows_per_second = rows_per_second_.value();
    const event::StepTimes& times = step.times;
    const double communication = times.communication + times.waiting;
    const double all = times.data + times.compute + communication;
    communication_.add(communication / all, all);
    state_.communication_share = communication_.value();
    forecast(now);
  }

  void add(const event::GenerationWentOn& generation) {
    state_.members_through = generation.through;
    state_.members = generation.members;
  }

  void add(const event::GenerationEnded& generation, double now) {
    state_.step = generation.generation;
    state_.members_through = 0;
    if (std::isfinite(generation.best_score)) state_.metric = {generation.score_name, generation.best_score};
    forecast(now);
  }

  const ProgressState& state() const { return state_; }
  bool is_last() const { return state_.step == state_.steps; }

 private:
  // A round's number is a mean over many clients already, and there are few of them: the last one is shown.
  std::optional<double> shown_of(const RecentMean& mean, double latest) const {
    return run_.unit == "round" ? latest : shown(mean, latest);
  }

  // As long a step as they were until now.
  void forecast(double now) {
    const std::int64_t done = state_.step - run_.first_step;
    if (run_.steps > 0 && done > 0)
      state_.seconds_left =
          (now - started_) / static_cast<double>(done) * static_cast<double>(run_.steps - state_.step);
  }

  event::RunStarted run_;
  double started_ = 0;
  double seconds_ = 0;  // of training, told last
  ProgressState state_;
  RecentMean loss_;
  RecentMean metric_;
  RecentMean rows_per_second_;
  RecentMean communication_;
};

std::string measures(double loss, const std::vector<NamedNumber>& metrics) {
  std::string text = "loss " + format_measure(loss);
  for (const NamedNumber& metric : metrics) text += fmt::format("  {} {}", metric.name, format_measure(metric.value));
  return text;
}

// What there is none of is left out.
std::string text_of(const event::GenerationEnded& generation) {
  std::string text = fmt::format("generation {}", generation.generation);
  if (std::isfinite(generation.best_score))
    text +=
        fmt::format("  {} best {} (member {})  median {}", generation.score_name, format_measure(generation.best_score),
                    generation.best_member, format_measure(generation.median_score));
  if (generation.took_over > 0) text += fmt::format("  {} took over", generation.took_over);
  if (generation.failed > 0) text += fmt::format("  {} failed", generation.failed);
  return text;
}

// The members of the generation that ended last.
class LastGeneration {
 public:
  void add(const event::MemberEvaluated& member) { members_.push_back(member); }

  // Members need not keep in step: some may have gone on to the next before this one ended.
  void end(const event::GenerationEnded& generation) {
    std::erase_if(members_, [&](const auto& member) { return member.generation < generation.generation; });
    ended_ = generation;
  }

  const std::optional<event::GenerationEnded>& ended() const { return ended_; }

  std::vector<std::string> table() const {
    if (!ended_) return {};
    std::vector<event::MemberEvaluated> members;
    std::ranges::copy_if(members_, std::back_inserter(members),
                         [&](const auto& member) { return member.generation == ended_->generation; });
    return detail::member_table(std::move(members), ended_->higher_is_better);
  }

 private:
  std::vector<event::MemberEvaluated> members_;
  std::optional<event::GenerationEnded> ended_;
};

}  // namespace

class ProgressReport::Teller {
 public:
  explicit Teller(ProgressOptions options) : options_(std::move(options)) {
    if (!options_.stream) options_.stream = stdout;
    if (!options_.clock) options_.clock = steady_seconds;
    if (!options_.bar) options_.bar = bar_of_locale();
    if (options_.mode == ProgressMode::automatic)
      options_.mode = is_terminal(options_.stream) ? ProgressMode::terminal : ProgressMode::plain;
  }

  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;
  ~Teller() {
    if (!is_drawn_) return;
    draw();
    write("\n");
  }

  void tell(const Event& event) {
    if (options_.mode == ProgressMode::json)
      tell_json(event);
    else
      std::visit([this](const auto& its) { on(its); }, event);
  }

 private:
  void on(const event::RunStarted& run) {
    progress_.start(run, options_.clock());
    last_generation_ = {};
    best_score_.reset();
    told_ = options_.clock();
    std::string steps = run.steps > 0 ? fmt::format("{}", run.steps) : "";
    if (run.steps > 0 && run.rows_per_step > 0) steps += fmt::format(" of {} rows", run.rows_per_step);
    if (run.steps > 0 && run.first_step > 0) steps += fmt::format(", of which {} were taken before", run.first_step);
    say_about("strategy", run.strategy);
    say_about("engine", run.engine);
    say_about(run.unit + "s", steps);
    say_about("output", run.output);
    for (const std::string& note : run.notes) say_unless_quiet(note);
  }

  void on(const event::StepEnded& step) {
    const double now = options_.clock();
    progress_.add(step, now);
    if (options_.mode == ProgressMode::terminal &&
        (!is_drawn_ || progress_.is_last() || is_time(now, kSecondsBetweenDrawings)))
      draw();
    if (options_.mode == ProgressMode::plain && is_time(now, options_.seconds_between_lines))
      say(progress_text(progress_.state()));
  }

  void on(const event::EvaluationEnded& evaluation) {
    const std::string& unit = progress_.state().unit;
    const std::string epoch = unit == "step" ? fmt::format("  epoch {}", evaluation.epoch) : "";
    say_unless_quiet(fmt::format("{} {}{}  {} {}{}", unit, evaluation.step, epoch, evaluation.split,
                                 measures(evaluation.loss, evaluation.metrics),
                                 evaluation.is_best ? "  best so far" : ""));
  }

  void on(const event::MemberEvaluated& member) {
    last_generation_.add(member);
    if (member.is_best) best_score_ = member.score;
  }

  void on(const event::GenerationWentOn& generation) {
    progress_.add(generation);
    if (options_.mode == ProgressMode::terminal) draw();
    if (options_.mode == ProgressMode::plain && is_time(options_.clock(), options_.seconds_between_lines))
      say(progress_text(progress_.state()));
  }

  void on(const event::GenerationEnded& generation) {
    last_generation_.end(generation);
    progress_.add(generation, options_.clock());
    say_unless_quiet(text_of(generation));
    if (options_.mode == ProgressMode::terminal && !is_drawn_) draw();
  }

  void on(const event::CheckpointWritten& checkpoint) {
    say_unless_quiet(fmt::format("{} {}  checkpoint {}", progress_.state().unit, checkpoint.step, checkpoint.path));
  }

  void on(const event::Warned& warning) { say("warning: " + warning.sentence); }
  void on(const event::SpanEnded&) {}

  void on(const event::RunEnded& run) {
    const std::string_view how = run.reason == event::RunEnded::Reason::finished        ? "finished"
                                 : run.reason == event::RunEnded::Reason::stopped_early ? "stopped early"
                                                                                        : "interrupted";
    std::string what;
    if (const std::optional<double>& loss = progress_.state().loss) what = ", loss " + format_measure(*loss);
    if (const auto& generation = last_generation_.ended(); generation && best_score_)
      what += fmt::format(", best {} {}", generation->score_name, format_measure(*best_score_));
    erase();
    for (const std::string& line : last_generation_.table()) say_unless_quiet(line);
    say(fmt::format("{} at {} {}, in {}{}", how, progress_.state().unit, run.step, format_duration(run.seconds), what));
  }

  void tell_json(const Event& event) {
    if (std::holds_alternative<event::SpanEnded>(event)) return;
    if (std::holds_alternative<event::RunStarted>(event)) told_ = options_.clock();
    if (std::holds_alternative<event::StepEnded>(event) && !is_time(options_.clock(), options_.seconds_between_lines))
      return;
    write(detail::json_line(detail::event_json(event)) + "\n");
  }

  // Whether so much time passed since this was true before.
  bool is_time(double now, double seconds) {
    if (now - told_ < seconds) return false;
    told_ = now;
    return true;
  }

  void say_unless_quiet(const std::string& line) {
    if (options_.mode != ProgressMode::quiet) say(line);
  }

  void say_about(std::string_view name, std::string_view value) {
    if (!value.empty()) say_unless_quiet(fmt::format("{:<8}  {}", name, value));
  }

  // A line of its own, above the one that is drawn.
  void say(const std::string& line) {
    const bool was_drawn = is_drawn_;
    erase();
    write(detail::without_controls(line) + "\n");
    if (was_drawn) draw();
  }

  void draw() {
    is_drawn_ = true;
    // The last column stays free: terminals do not agree on where the cursor is after it.
    write(fmt::format("{}{}{}", kBackToTheLeft, progress_line(progress_.state(), width() - 1, *options_.bar),
                      kEraseTheRest));
  }

  void erase() {
    if (std::exchange(is_drawn_, false)) write(fmt::format("{}{}", kBackToTheLeft, kEraseTheRest));
  }

  int width() const {
    if (options_.width > 0) return options_.width;
    winsize size{};
    const bool is_known = ::ioctl(::fileno(options_.stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? size.ws_col : kUsualWidth;
  }

  void write(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), options_.stream);
    std::fflush(options_.stream);
  }

  ProgressOptions options_;
  Progress progress_;
  LastGeneration last_generation_;
  std::optional<double> best_score_;  // of all members, where one has reached it since the run began
  double told_ = 0;                   // when steps were told last
  bool is_drawn_ = false;
};

ProgressReport::ProgressReport(ProgressOptions options) : teller_(std::make_unique<Teller>(std::move(options))) {}

ProgressReport::~ProgressReport() = default;

void ProgressReport::on(const Event& event) { teller_->tell(event); }

}  // namespace tutti
