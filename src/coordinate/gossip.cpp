#include <tutti/coordinate/gossip.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <sstream>
#include <thread>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/base/checksum.hpp>
#include <tutti/transport/parameter_messages.hpp>

#include "gossip_neighbours.hpp"
#include "gossip_seats.hpp"
#include "waiting.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;

// Above those of collectives, which count their calls from kFirstInternalTag on, and of others who talk in the same
// worlds of two.
constexpr std::uint64_t kFirstGossipTag = kFirstInternalTag + (std::uint64_t{3} << 61);
constexpr Tag kQuestionTag{kFirstGossipTag};
constexpr Tag kStateTag{kFirstGossipTag + 1};
constexpr Tag answer_tag(int replica) { return Tag{kFirstGossipTag + 2 + static_cast<std::uint64_t>(replica)}; }

// How many neighbours are drawn until one is found that can meet.
constexpr int kMostDraws = 3;
// Who meets one that is silent shall not itself be late for those who wait for it.
constexpr int kMeetingShare = 4;
// Rank 0 may not have read yet what this process told it last.
constexpr Duration kLastWords = 5s;

// What one process says to another. All but the last are small, so that nobody waits for the other to read them.
enum class GossipWord : std::int64_t {
  sum,      // asks for the sum of all replicas there, and how many these are
  state,    // asks for what each replica there has to itself
  lost,     // replica `one` is not counted any more
  cut_off,  // process `one` is not reached from there
  goodbye,  // nothing more will be asked
  meet,     // replica `one` asks replica `other`, and its parameters follow
};

}  // namespace

struct Gossip::Head {
  GossipWord word = GossipWord::goodbye;
  std::int64_t one = 0;
  std::int64_t other = 0;
};

struct Gossip::Line {
  int process = 0;
  std::shared_ptr<Transport> world;  // of two
  Rank other;                        // in it
  std::thread thread;                // answers
  std::atomic<bool> is_broken = false;
  bool is_over = false;  // its thread has ended

  void send(Tag tag, std::span<const std::byte> bytes, Duration deadline) {
    tutti::send(*world, other, tag, bytes, Deadline::after(deadline));
  }
};

namespace {

const GossipOptions& checked(const GossipOptions& its) {
  const auto refuse_below = [](const char* name, std::int64_t least, std::int64_t found) {
    if (found < least) throw UsageError(fmt::format("{}: expected at least {}, found {}", name, least, found));
  };
  refuse_below("replicas", 1, its.replicas);
  refuse_below("processes", 1, its.processes);
  refuse_below("process", 0, its.process);
  if (its.process >= its.processes)
    throw UsageError(
        fmt::format("process: expected less than the {} that there are, found {}", its.processes, its.process));
  if (its.replicas < its.processes)
    throw UsageError(
        fmt::format("replicas: expected one for each of {} processes, found {}", its.processes, its.replicas));
  if (its.deadline <= Duration::zero())
    throw UsageError(fmt::format("deadline: expected a time above 0, found {}", to_string(its.deadline)));
  return its;
}

}  // namespace

Gossip::Gossip(const ParameterSet& parameters, const GossipOptions& options)
    : options_(checked(options)),
      layout_(parameters),
      seats_(std::make_unique<detail::GossipSeats>(replicas_of(options.process), parameters, options.make_rule)),
      neighbours_(std::make_unique<detail::GossipNeighbours>(options.topology, options.replicas, options.seed)) {}

Gossip::~Gossip() {
  if (options_.process != 0) {
    // Rank 0 ends the line once it knows that this process has failed.
    std::unique_lock lock(mutex_);
    const Line* first = line_to(0);
    changed_.wait_for(lock, kLastWords,
                      [&] { return first == nullptr || !first->thread.joinable() || first->is_over; });
  }
  end("its replicas have ended");
  for (const std::unique_ptr<Line>& line : lines_) {
    if (line && line->thread.joinable()) line->thread.join();
  }
}

// --- replicas of this process ---

Slice Gossip::replicas_of(int process) const {
  return chunk(static_cast<std::size_t>(options_.replicas), options_.processes, process);
}

int Gossip::process_of(int replica) const {
  int process = 0;
  while (static_cast<std::size_t>(replica) >= replicas_of(process).end()) ++process;
  return process;
}

Slice Gossip::here() const { return seats_->replicas(); }
bool Gossip::is_here(int replica) const { return seats_->has(replica); }
std::shared_ptr<const ParameterSet> Gossip::parameters(int replica) const { return seats_->parameters(replica); }
int Gossip::living() const { return neighbours_->living(); }

void Gossip::learn(int replica, const ParameterSet& gradients, double rate_factor) {
  seats_->learn(replica, gradients, rate_factor);
}

double Gossip::meet(int replica) {
  rethrow_failure();
  double bytes = 0;
  for (int draw = 0; draw < kMostDraws; ++draw) {
    const std::optional<int> other = neighbours_->draw(replica, seats_->count_meeting(replica));
    if (!other) break;
    if (!seats_->has(*other)) {
      if (meet_there(replica, *other, bytes)) break;
    } else if (seats_->meet(replica, *other)) {
      bytes += 2 * static_cast<double>(layout_.bytes());
      break;
    }
  }
  return bytes;
}

// False where another one may be drawn: not after one that was waited for.
bool Gossip::meet_there(int replica, int other, double& bytes) {
  Line* line = line_to(process_of(other));
  if (line == nullptr || line->is_broken) return false;
  const Head head{GossipWord::meet, replica, other};
  std::vector<std::byte> message(sizeof head + seats_->bytes());
  std::memcpy(message.data(), &head, sizeof head);
  const std::span<std::byte> values = std::span(message).subspan(sizeof head);
  seats_->set_out(replica, values);
  const Deadline deadline = Deadline::after(options_.deadline / kMeetingShare);
  try {
    send(*line->world, line->other, kQuestionTag, message, deadline);
    bytes += static_cast<double>(layout_.bytes());
    const Delivery answer = line->world->receive(line->other, answer_tag(replica), deadline);
    if (answer.header().length == 0) {
      seats_->come_back(replica);
      return false;
    }
    answer.copy_to(values);
  } catch (const PeerError& error) {
    seats_->come_back(replica);
    give_up(*line, error.failure());
    return true;
  }
  seats_->come_back(replica, values);
  bytes += static_cast<double>(layout_.bytes());
  return true;
}

void Gossip::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

// --- at rank 0 ---

ParameterSet Gossip::mean() {
  rethrow_failure();
  // How many there are comes first.
  std::vector<double> sum(1 + seats_->elements());
  for (std::size_t r = here().first; r < here().end(); ++r) {
    if (!neighbours_->lives(static_cast<int>(r))) continue;
    ++sum[0];
    seats_->add_to(std::span(sum).subspan(1), static_cast<int>(r));
  }
  std::vector<double> theirs(sum.size());
  for (const std::unique_ptr<Line>& line : lines_) {
    if (!line || line->is_broken) continue;
    try {
      const Head head{GossipWord::sum};
      line->send(kQuestionTag, std::as_bytes(std::span(&head, 1)), options_.deadline);
      line->world->receive(line->other, kStateTag, Deadline::after(options_.deadline))
          .copy_to(std::as_writable_bytes(std::span(theirs)));
    } catch (const PeerError& error) {
      give_up(*line, error.failure());
      continue;
    }
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
  }
  if (sum[0] == 0) throw Error("no replica is left, so they have no mean");
  ParameterSet mean = layout_;
  std::size_t at = 1;
  for (NamedArray& array : mean) {
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        for (T& its : array.values<T>()) its = static_cast<T>(sum[at++] / sum[0]);
      }
    });
  }
  return mean;
}

void Gossip::save(ParameterSet& arrays) {
  for (const NamedArray& array : mean()) arrays.add(array.layout(), array.bytes());
  for (std::size_t r = here().first; r < here().end(); ++r) seats_->save(arrays, static_cast<int>(r));
  for (const std::unique_ptr<Line>& line : lines_) {
    if (!line || line->is_broken) continue;
    try {
      const Head head{GossipWord::state};
      line->send(kQuestionTag, std::as_bytes(std::span(&head, 1)), options_.deadline);
      const ParameterSet theirs =
          receive_parameters(*line->world, line->other, kStateTag, Deadline::after(options_.deadline));
      for (const NamedArray& array : theirs) arrays.add(array.layout(), array.bytes());
    } catch (const PeerError& error) {
      give_up(*line, error.failure());
    }
  }
}

void Gossip::lose(int replica) {
  if (replica < 0 || replica >= options_.replicas)
    throw UsageError(fmt::format("replica {}: there are {}", replica, options_.replicas));
  if (!neighbours_->lives(replica)) return;
  note_lost(replica);
  for (const std::unique_ptr<Line>& line : lines_) {
    if (line) tell(*line, {GossipWord::lost, replica});
  }
}

std::vector<std::string> Gossip::take_problems() {
  const std::lock_guard lock(mutex_);
  return std::exchange(problems_, {});
}

void Gossip::restore(const ParameterSet& arrays, Restored what) {
  for (std::size_t r = here().first; r < here().end(); ++r) seats_->restore(arrays, static_cast<int>(r), what);
}

// --- with others ---

Gossip::Line* Gossip::line_to(int process) const {
  return lines_.empty() ? nullptr : lines_[static_cast<std::size_t>(process)].get();
}

// What all processes have to agree on. So short that nobody waits for the other to read it.
std::vector<std::string> Gossip::terms() const {
  Checksum layouts;
  for (const NamedArray& array : layout_) layouts.add(fmt::format("{} {}\n", array.name(), to_string(array.layout())));
  return {fmt::format("replicas: {}", options_.replicas),
          fmt::format("topology: {}", strategy::topology_name(options_.topology)),
          fmt::format("seed: {}", options_.seed),
          fmt::format("parameters: {} arrays of {} bytes, of names, shapes and types {}", layout_.size(),
                      layout_.bytes(), to_hex(layouts.value()))};
}

// Everybody makes its pairs in the order of all pairs, so that no circle of processes waits for each other.
void Gossip::connect(Transport& world) {
  if (!lines_.empty()) throw UsageError("it is connected already");
  if (world.size() != options_.processes || world.rank().value != options_.process)
    throw UsageError(fmt::format("it is process {} of {}, and the world is that of rank {} of {}", options_.process,
                                 options_.processes, world.rank().value, world.size()));
  std::vector<std::unique_ptr<Line>> lines(static_cast<std::size_t>(options_.processes));
  for (int p = 0; p < options_.processes; ++p) {
    if (p == options_.process) continue;
    const std::array members{Rank{std::min(p, options_.process)}, Rank{std::max(p, options_.process)}};
    auto line = std::make_unique<Line>();
    line->process = p;
    line->world = world.regroup(members, Deadline::after(options_.deadline));
    line->other = Rank{1 - line->world->rank().value};
    lines[static_cast<std::size_t>(p)] = std::move(line);
  }
  agree(lines);
  lines_ = std::move(lines);
  for (const std::unique_ptr<Line>& line : lines_) {
    if (line) line->thread = std::thread([this, &its = *line] { answer_all(its); });
  }
}

// Who finds a difference goes, so that nobody compares before all have heard what all have.
void Gossip::agree(std::span<const std::unique_ptr<Line>> lines) const {
  const auto with_each = [&](const auto& f) {
    for (const std::unique_ptr<Line>& line : lines) {
      if (line) f(*line);
    }
  };
  const std::vector<std::string> mine = terms();
  const auto say = [&](Line& line, const std::string& text) {
    line.send(kStateTag, std::as_bytes(std::span(text)), options_.deadline);
  };
  const auto hear = [&](Line& line) {
    return receive_text(*line.world, line.other, kStateTag, Deadline::after(options_.deadline));
  };
  with_each([&](Line& line) { say(line, fmt::format("{}\n", fmt::join(mine, "\n"))); });
  std::string difference;
  with_each([&](Line& line) {
    std::istringstream theirs(hear(line));
    for (const std::string& its : mine) {
      std::string other;
      std::getline(theirs, other);
      if (other != its && difference.empty())
        difference =
            fmt::format("process {} has {}, and process {} has {}", options_.process, its, line.process, other);
    }
  });
  // Who does not answer has heard all and is gone, or has died: then its line says so soon enough.
  const auto try_each = [&](const auto& f) {
    with_each([&](Line& line) {
      try {
        f(line);
      } catch (const PeerError&) {
      }
    });
  };
  try_each([&](Line& line) { say(line, "heard"); });
  try_each([&](Line& line) { (void)hear(line); });
  if (!difference.empty()) throw Error("gossip needs the same on all processes: " + difference);
}

std::shared_ptr<Transport> Gossip::pair(int process) const {
  const Line* line = line_to(process);
  return line == nullptr ? nullptr : line->world;
}

// Who answers waits for the one who asked to take it, and for nobody else.
void Gossip::answer_all(Line& line) {
  try {
    std::vector<std::byte> message;
    while (answer(line, message)) {
    }
  } catch (const PeerError& error) {
    give_up(line, error.failure());
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    give_up(line, {FailureKind::cancelled, {line.world->rank()}, error.what()});
  }
  const std::lock_guard lock(mutex_);
  line.is_over = true;
  changed_.notify_all();
}

// False where the other has said goodbye.
bool Gossip::answer(Line& line, std::vector<std::byte>& message) {
  {
    // Silence is no failure: a line ends by a goodbye, or with the other process.
    const Delivery delivery = line.world->receive(line.other, kQuestionTag, Deadline::after(Duration::max()));
    message.resize(delivery.header().length);
    delivery.copy_to(message);
  }
  Head head;
  if (message.size() < sizeof head) throw Error("what came was no question of gossip");
  std::memcpy(&head, message.data(), sizeof head);
  if (head.word == GossipWord::meet && message.size() != sizeof head + seats_->bytes())
    throw Error("parameters came that are not of this model: the processes have different ones");
  const auto refuse_beyond = [&](const char* what, std::int64_t number, std::int64_t count) {
    if (number < 0 || number >= count)
      throw Error(fmt::format("process {} speaks of {} {}: there are {}", line.process, what, number, count));
  };
  if (head.word == GossipWord::meet || head.word == GossipWord::lost)
    refuse_beyond("replica", head.one, options_.replicas);
  if (head.word == GossipWord::meet) refuse_beyond("replica", head.other, options_.replicas);
  if (head.word == GossipWord::cut_off) refuse_beyond("process", head.one, options_.processes);
  const auto one = static_cast<int>(head.one);
  switch (head.word) {
    case GossipWord::meet: {
      const std::span<std::byte> values = std::span(message).subspan(sizeof head);
      const auto other = static_cast<int>(head.other);
      const bool has_met = seats_->answer(other, one, values);
      try {
        line.send(answer_tag(one), has_met ? values : std::span<std::byte>(), options_.deadline);
      } catch (const PeerError&) {
        if (has_met) seats_->take_back(other, values);
        throw;
      }
      return true;
    }
    case GossipWord::sum: {
      std::vector<double> sum(1 + seats_->elements());
      for (std::size_t r = here().first; r < here().end(); ++r) {
        if (!neighbours_->lives(static_cast<int>(r))) continue;
        ++sum[0];
        seats_->add_to(std::span(sum).subspan(1), static_cast<int>(r));
      }
      line.send(kStateTag, std::as_bytes(std::span(sum)), options_.deadline);
      return true;
    }
    case GossipWord::state: {
      ParameterSet arrays;
      for (std::size_t r = here().first; r < here().end(); ++r) {
        if (neighbours_->lives(static_cast<int>(r))) seats_->save(arrays, static_cast<int>(r));
      }
      send_parameters(*line.world, line.other, kStateTag, arrays, Deadline::after(options_.deadline));
      return true;
    }
    case GossipWord::lost: note_lost(one); return true;
    case GossipWord::cut_off: note_cut(line.process, one); return true;
    case GossipWord::goodbye: return false;
  }
  throw Error("what came was no question of gossip");
}

void Gossip::tell(Line& line, const Head& head) {
  if (line.is_broken) return;
  try {
    line.send(kQuestionTag, std::as_bytes(std::span(&head, 1)), options_.deadline);
  } catch (const PeerError& error) {
    give_up(line, error.failure());
  }
}

// Both ends hear of it, so that no answer of one is taken for that to a later question of the other.
void Gossip::give_up(Line& line, const Failure& why) {
  if (line.is_broken.exchange(true)) return;
  line.world->abort(
      why.kind == FailureKind::late
          ? Failure{FailureKind::lost, {line.other}, fmt::format("process {} did not answer in time", line.process)}
          : why);
  const Slice theirs = replicas_of(line.process);
  neighbours_->cut_off(theirs);
  {
    const std::lock_guard lock(mutex_);
    if (is_finishing_) return;
  }
  if (options_.process == 0) {
    for (std::size_t r = theirs.first; r < theirs.end(); ++r) lose(static_cast<int>(r));
  } else if (line.process != 0) {
    tell(*line_to(0), {GossipWord::cut_off, line.process});
  }
}

// A process that has no replica left is let alone: if it lives, it shall not come back.
void Gossip::note_lost(int replica) {
  neighbours_->lose(replica);
  const int process = process_of(replica);
  const Slice its = replicas_of(process);
  for (std::size_t r = its.first; r < its.end(); ++r) {
    if (neighbours_->lives(static_cast<int>(r))) return;
  }
  Line* line = line_to(process);
  if (line == nullptr || line->is_broken.exchange(true)) return;
  line->world->abort({FailureKind::lost, {line->other}, fmt::format("process {} counts as lost", process)});
}

// One of two that says so may be about to hear that the other has died.
void Gossip::note_cut(int one, int other) {
  const std::lock_guard lock(mutex_);
  cuts_.insert({one, other});
  if (cuts_.contains({other, one}))
    problems_.push_back(
        fmt::format("processes {} and {} do not reach each other any more, and their replicas do not meet",
                    std::min(one, other), std::max(one, other)));
}

void Gossip::finish() {
  rethrow_failure();
  for (const std::unique_ptr<Line>& line : lines_) {
    if (line) tell(*line, {GossipWord::goodbye});
  }
  {
    std::unique_lock lock(mutex_);
    is_finishing_ = true;
    detail::wait(changed_, lock, Deadline::after(options_.deadline),
                 [&] { return std::ranges::all_of(lines_, [](const auto& line) { return !line || line->is_over; }); });
  }
  end("its replicas have ended");
}

void Gossip::end(std::string_view why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_finishing_ = true;
  }
  for (const std::unique_ptr<Line>& line : lines_) {
    if (!line) continue;
    {
      const std::lock_guard lock(mutex_);
      if (line->is_over) continue;
    }
    line->is_broken = true;
    line->world->abort({FailureKind::cancelled, {line->world->rank()}, std::string(why)});
  }
}

}  // namespace tutti
