#include "cli/job.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>
#include <tutti/base/error.hpp>
#include <tutti/base/rank.hpp>

#include "cli/guardian.hpp"
#include "cli/lines.hpp"
#include "cli/output_queue.hpp"

namespace tutti::cli {
namespace {

using namespace std::chrono_literals;

// What a child prints on one of its two streams.
class Stream {
 public:
  Stream(std::string prefix, OutputQueue& queue) : lines_(std::move(prefix)), queue_(queue) {}

  int child_end() const { return pipe_.input(); }
  // Once the child has its end.
  void listen() {
    pipe_.close_input();
    ::fcntl(pipe_.output(), F_SETFL, O_NONBLOCK);
  }

  // For poll: nothing where it ended, or where what came before has not been passed on.
  int descriptor() const { return queue_.full() ? -1 : pipe_.output(); }

  // False where there is nothing to read now.
  bool read_some() {
    std::array<char, 65536> buffer;
    const ssize_t count = ::read(pipe_.output(), buffer.data(), buffer.size());
    if (count > 0) {
      lines_.add({buffer.data(), static_cast<std::size_t>(count)}, queue_.text());
      return true;
    }
    if (count < 0 && errno == EINTR) return true;
    if (count < 0 && errno == EAGAIN) return false;
    finish();
    return false;
  }

  // All that is left, now that nobody writes any more.
  void drain() {
    while (pipe_.output() >= 0 && read_some()) continue;
    finish();
  }

 private:
  void finish() {
    lines_.finish(queue_.text());
    pipe_.close_output();
  }

  Pipe pipe_;
  Lines lines_;
  OutputQueue& queue_;
};

// Our standard input, for rank 0. It gets that itself, except for a terminal: only the group in front may read from
// one, and that is ours, so that Ctrl-C comes to us.
class Typing {
 public:
  Typing() {
    if (::isatty(STDIN_FILENO) == 1) pipe_.emplace();
  }

  int child_end() const { return pipe_ ? pipe_->output() : STDIN_FILENO; }
  void listen() {
    if (!pipe_) return;
    pipe_->close_output();
    ::fcntl(pipe_->input(), F_SETFL, O_NONBLOCK);
  }

  // What to wait for: that something is typed, or that what was typed can be passed on.
  pollfd event() const {
    if (!pipe_) return {-1, 0, 0};
    if (!text_.empty()) return {pipe_->input(), POLLOUT, 0};
    return {::tcgetpgrp(STDIN_FILENO) == ::getpgrp() ? STDIN_FILENO : -1, POLLIN, 0};
  }

  void pass_on() {
    if (text_.empty()) {
      std::array<char, 4096> buffer;
      const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
      if (count <= 0) return pipe_.reset();
      text_.assign(buffer.data(), static_cast<std::size_t>(count));
    }
    const ssize_t count = ::write(pipe_->input(), text_.data(), text_.size());
    if (count > 0) text_.erase(0, static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR && errno != EAGAIN) pipe_.reset();
  }

 private:
  std::optional<Pipe> pipe_;
  std::string text_;
};

struct Member {
  Child child;
  std::unique_ptr<Stream> output;
  std::unique_ptr<Stream> errors;
  bool ended = false;
  bool was_ended_by_us = false;
  bool was_stopped = false;  // by somebody else
};

// From asking nicely to not asking: others may end by themselves, then are asked to, then are killed.
enum class Step { none, grace, asked, killed };

class RunningJob {
 public:
  RunningJob(const Job& job, Signals& signals) : job_(job), signals_(signals) {
    for (const Command& command : job.ranks) start(command);
  }

  int run() {
    while (look_at_children()) {
      if (step_ != Step::none && step_ != Step::killed && next_step_.passed()) take_next_step();
      wait_for_events();
      for (const int signal : signals_.taken()) pass_on(signal);
    }
    end_leftovers();
    for (Member& member : members_) {
      member.output->drain();
      member.errors->drain();
    }
    flush();  // first, because that may be what goes wrong
    const std::string sentence = describe_end();
    if (!sentence.empty()) errors_.text() += fmt::format("tutti launch: {}\n", sentence);
    flush();
    return exit_code();
  }

 private:
  void start(const Command& command) {
    const auto rank = static_cast<int>(members_.size());
    const std::string prefix = job_.prefix ? fmt::format("[{}] ", rank) : "";
    auto output = std::make_unique<Stream>(prefix, output_);
    auto errors = std::make_unique<Stream>(prefix, errors_);
    const Descriptors descriptors{
        .input = rank == 0 ? typing_.child_end() : -1, .output = output->child_end(), .errors = errors->child_end()};
    try {
      members_.push_back({Child(command, descriptors, {.when_we_die = SIGKILL, .own_group = true}), std::move(output),
                          std::move(errors)});
    } catch (const Error& error) {
      if (rank == 0) throw UsageError(error.what());
      throw;
    }
    guardian_->guard(members_.back().child.pid());
    members_.back().output->listen();
    members_.back().errors->listen();
    if (rank == 0) typing_.listen();
  }

  // Whether any still runs; notes who failed first.
  bool look_at_children() {
    bool any_running = false;
    bool any_ended = false;
    std::optional<std::size_t> failed;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      Member& member = members_[i];
      if (member.ended) continue;
      if (member.child.running()) {
        any_running = true;
        member.was_stopped |= member.child.stopped();
        continue;
      }
      member.ended = any_ended = true;
      if (member.child.problem().empty() || goes_on_without(i)) continue;
      if (!failed || failed_before(member.child, members_[*failed].child)) failed = i;
    }
    if (failed && !first_failed_ && !interrupted_ && output_.problem().empty()) {
      first_failed_ = failed;
      when_failed_ = Deadline::Clock::now();
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i].child.stopped()) stopped_.push_back(Rank{static_cast<int>(i)});
      }
      begin_ending(Step::grace);
    }
    // The job is what rank 0 has made of it, and somebody may be stopped for ever.
    if (job_.keep_going && any_running && has_ended_well()) begin_ending(Step::grace);
    if (any_ended && bury_next_.passed()) {
      std::vector<pid_t> ours{guardian_->pid()};
      for (const Member& member : members_) ours.push_back(member.child.pid());
      bury_orphans(ours);
      bury_next_ = Deadline::after(1s);
    }
    return any_running;
  }

  // Of rank 0.
  bool has_ended_well() const { return members_[0].ended && members_[0].child.problem().empty(); }

  // Whether others go on without this one, which has failed: they are told now. One that somebody has stopped was
  // perhaps given up meanwhile, and can but fail when it wakes.
  bool goes_on_without(std::size_t i) {
    if (!job_.keep_going || i == 0 || first_failed_ || interrupted_) return false;
    if (!members_[i].child.ended_by_signal() && !members_[i].was_stopped && !has_ended_well()) return false;
    const Rank rank{static_cast<int>(i)};
    lost_.push_back(rank);
    errors_.text() +=
        fmt::format("tutti launch: {} {} after {:.1f} s{}\n", to_string(rank), members_[i].child.problem(),
                    seconds_until(Deadline::Clock::now()), has_ended_well() ? "" : "; the others go on");
    return true;
  }

  // Of two that are seen at once: as far as the system says; and one ended by a signal was hardly a consequence of the
  // other's exit code.
  bool failed_before(const Child& one, const Child& other) const {
    const std::optional<pid_t> first = signals_.first_ended();
    if (first == one.pid() || first == other.pid()) return first == one.pid();
    return one.ended_by_signal() && !other.ended_by_signal();
  }

  void begin_ending(Step step) {
    if (step_ >= step) return;
    step_ = step;
    next_step_ = Deadline::after(job_.grace);
    if (step == Step::grace) return;
    for (Member& member : members_) {
      if (!member.ended) member.was_ended_by_us = true;
      member.child.signal_group(step == Step::asked ? SIGTERM : SIGKILL);
      // One that is stopped would not see it.
      if (step == Step::asked) member.child.signal_group(SIGCONT);
    }
  }

  void take_next_step() { begin_ending(step_ == Step::grace ? Step::asked : Step::killed); }

  void wait_for_events() {
    std::vector<pollfd> events{{signals_.descriptor(), POLLIN, 0}};
    add_queues(events);
    events.push_back(typing_.event());
    for (const Member& member : members_) {
      events.push_back({member.output->descriptor(), POLLIN, 0});
      events.push_back({member.errors->descriptor(), POLLIN, 0});
    }
    const bool steps_follow = step_ != Step::none && step_ != Step::killed;
    const int patience = poll_milliseconds(steps_follow ? next_step_.remaining() : Duration(1min));
    if (::poll(events.data(), events.size(), patience) < 0) {
      if (errno == EINTR) return;
      throw std::system_error(errno, std::generic_category(), "poll");
    }
    write_queues(events);
    if (events[3].revents != 0) typing_.pass_on();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (events[2 * i + 4].revents != 0) members_[i].output->read_some();
      if (events[2 * i + 5].revents != 0) members_[i].errors->read_some();
    }
    // Nobody is left to read what the ranks print.
    if (!output_.problem().empty() && !first_failed_ && !interrupted_) begin_ending(Step::asked);
  }

  // Both may lead to the same place, so neither interrupts a line of the other.
  void add_queues(std::vector<pollfd>& events) {
    const auto descriptor = [](OutputQueue& queue, OutputQueue& other) {
      return queue.empty() || other.within_line() ? -1 : queue.descriptor();
    };
    events.push_back({descriptor(output_, errors_), POLLOUT, 0});
    events.push_back({descriptor(errors_, output_), POLLOUT, 0});
  }

  void write_queues(const std::vector<pollfd>& events) {
    if (events[1].revents != 0) output_.write_some();
    if (events[2].revents != 0 && !output_.within_line()) errors_.write_some();
  }

  void pass_on(int signal) {
    switch (signal) {
      case SIGUSR1:
      case SIGUSR2:
        // To the ranks alone, as if sent to each: what they started may not know these, and would end.
        for (Member& member : members_) member.child.signal(signal);
        return;
      case SIGTSTP:
        pass_on_to_groups(SIGTSTP);
        ::kill(::getpid(), SIGSTOP);
        return;
      case SIGCONT:
        pass_on_to_groups(SIGCONT);
        for (Member& member : members_) member.was_stopped = false;  // as this one was
        return;
      case SIGPIPE: return;
      default: break;
    }
    if (interrupted_ && (signal == SIGINT || signal == SIGTERM)) return begin_ending(Step::killed);
    pass_on_to_groups(signal);
    if (interrupted_) return;
    interrupted_ = signal;
    when_interrupted_ = Deadline::Clock::now();
    begin_ending(Step::grace);
  }

  void pass_on_to_groups(int signal) {
    for (Member& member : members_) member.child.signal_group(signal);
  }

  // What the ranks started and did not end: first in their groups, then wherever it went.
  void end_leftovers() {
    pass_on_to_groups(SIGKILL);
    // Before the groups' numbers can become somebody else's.
    guardian_.reset();
    for (Member& member : members_) member.child.end_group();
    end_orphans();
  }

  // Until all is written, or somebody is tired of waiting for whoever reads it.
  void flush() {
    while (!output_.empty() || !errors_.empty()) {
      std::vector<pollfd> events{{signals_.descriptor(), POLLIN, 0}};
      add_queues(events);
      if (::poll(events.data(), events.size(), poll_milliseconds(1min)) < 0 && errno != EINTR) return;
      write_queues(events);
      for (const int signal : signals_.taken()) {
        if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) return;
      }
    }
  }

  double seconds_until(Deadline::Clock::time_point when) const {
    return std::chrono::duration<double>(when - begin_).count();
  }

  bool was_lost(std::size_t i) const { return std::ranges::find(lost_, Rank{static_cast<int>(i)}) != lost_.end(); }

  // But for those that were lost.
  bool all_ended_well() const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!members_[i].child.problem().empty() && !was_lost(i)) return false;
    }
    return true;
  }

  // Empty where all went well.
  std::string describe_end() const {
    if (first_failed_) {
      // Likely the cause, though not the first to fail.
      const std::string stopped = stopped_.empty() ? ""
                                                   : fmt::format(", while {} {} stopped", to_string(stopped_),
                                                                 stopped_.size() == 1 ? "was" : "were");
      return fmt::format("{} {} after {:.1f} s{}{}", to_string(Rank{static_cast<int>(*first_failed_)}),
                         members_[*first_failed_].child.problem(), seconds_until(when_failed_), stopped,
                         describe_others());
    }
    if (!output_.problem().empty() && !interrupted_)
      return fmt::format("standard output could not be written ({}); the ranks were ended", output_.problem());
    if (!lost_.empty() && all_ended_well()) return fmt::format("the others ended well, without {}", to_string(lost_));
    if (!interrupted_ || all_ended_well()) return "";
    return fmt::format("interrupted by {} after {:.1f} s; all ranks have ended", describe_signal(*interrupted_),
                       seconds_until(when_interrupted_));
  }

  // What became of those that did not fail first: by number, for what they said themselves is above.
  std::string describe_others() const {
    std::vector<Rank> failed;
    std::vector<Rank> ended;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (i == *first_failed_ || was_lost(i)) continue;
      const Rank rank{static_cast<int>(i)};
      if (members_[i].was_ended_by_us) {
        ended.push_back(rank);
      } else if (!members_[i].child.problem().empty()) {
        failed.push_back(rank);
      }
    }
    const std::string before = lost_.empty() ? "" : fmt::format("; {} failed before", to_string(lost_));
    const std::size_t others = members_.size() - 1 - lost_.size();
    if (others == 0) return before;
    const auto name = [&](const std::vector<Rank>& ranks) {
      return others > 1 && ranks.size() == others ? "the others" : to_string(ranks);
    };
    std::string text;
    if (!failed.empty()) text += fmt::format("; {} failed after it", name(failed));
    if (!ended.empty()) text += fmt::format("; {} {} ended", name(ended), ended.size() == 1 ? "was" : "were");
    return (text.empty() ? fmt::format("; {} ended well", others == 1 ? "the other" : "the others") : text) + before;
  }

  int exit_code() const {
    if (first_failed_) return members_[*first_failed_].child.exit_code();
    if (!output_.problem().empty() && !interrupted_) return 1;
    return all_ended_well() ? 0 : 128 + interrupted_.value_or(0);
  }

  const Job& job_;
  Signals& signals_;
  OutputQueue output_{STDOUT_FILENO};
  OutputQueue errors_{STDERR_FILENO};
  Typing typing_;
  std::unique_ptr<Guardian> guardian_ = std::make_unique<Guardian>();
  std::vector<Member> members_;

  Deadline::Clock::time_point begin_ = Deadline::Clock::now();
  std::optional<std::size_t> first_failed_;
  Deadline::Clock::time_point when_failed_;
  std::vector<Rank> stopped_;  // at that time
  std::vector<Rank> lost_;     // without whom others go on
  std::optional<int> interrupted_;
  Deadline::Clock::time_point when_interrupted_;
  Step step_ = Step::none;
  Deadline next_step_ = Deadline::after(Duration::zero());
  Deadline bury_next_ = Deadline::after(Duration::zero());
};

}  // namespace

std::vector<int> job_signals() {
  return {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGPIPE};
}

int run_job(const Job& job, Signals& signals) {
  adopt_orphans();
  return RunningJob(job, signals).run();
}

}  // namespace tutti::cli
