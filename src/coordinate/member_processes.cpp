#include <tutti/coordinate/member_processes.hpp>

#include <bit>
#include <chrono>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/transport/parameter_messages.hpp>

#include "member_places.hpp"

namespace tutti {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr Rank kController{0};
// Above those of collectives, which count their calls from kFirstInternalTag on.
constexpr std::uint64_t kFirstTag = kFirstInternalTag + (std::uint64_t{1} << 62);
// A place where a member trains asks so often whether that may go on.
constexpr Duration kAskEvery = 100ms;

// What a message begins with. To a place that has nothing to do: a task, to wait on, the end. From one that has: may it
// go on, or the reply; and the answer to the first.
enum class Word : std::uint8_t { task, wait, end, may_go_on, may_go_on_interrupted, reply, go_on, stop };

// One place's end of a conversation with its other end. Each waits for the deadline at the longest.
class MemberLine {
 public:
  MemberLine(Transport& world, Rank other, std::int64_t place, Duration deadline)
      : world_(world), other_(other), tag_{kFirstTag + static_cast<std::uint64_t>(place)}, deadline_(deadline) {}

  void say(Word word) const { send(world_, other_, tag_, std::as_bytes(std::span(&word, 1)), until()); }
  Word hear() const {
    Word word{};
    world_.receive(other_, tag_, until()).copy_to(std::as_writable_bytes(std::span(&word, 1)));
    return word;
  }

  void send_head(const Json& head) const {
    send_text(world_, other_, tag_, head.dump(-1, ' ', false, Json::error_handler_t::replace), until());
  }
  Json receive_head() const { return Json::parse(receive_text(world_, other_, tag_, until())); }

  void send_state(const MemberState& state) const {
    send_parameters(world_, other_, tag_, state.weights, until());
    send_parameters(world_, other_, tag_, state.optimizer, until());
  }
  MemberState receive_state() const {
    ParameterSet weights = receive_parameters(world_, other_, tag_, until());
    return {.weights = std::move(weights), .optimizer = receive_parameters(world_, other_, tag_, until())};
  }

 private:
  Deadline until() const { return Deadline::after(deadline_); }

  Transport& world_;
  Rank other_;
  Tag tag_;
  Duration deadline_;
};

// --- what is said: tasks and replies ---

// To the bit, and whatever they are: JSON has no infinity.
Json bits_of(std::span<const double> values) {
  Json bits = Json::array();
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

std::vector<double> doubles_in(const Json& bits) {
  std::vector<double> values;
  for (const Json& its : bits) values.push_back(std::bit_cast<double>(its.get<std::uint64_t>()));
  return values;
}

void send_task(const MemberLine& line, const MemberTask& task) {
  Json values = Json::array();
  for (const HyperParameter& value : task.hyper_parameters) values.push_back({value.path, value.json});
  line.send_head({{"member", task.member},
                  {"generation", task.generation},
                  {"seed", task.seed},
                  {"hyper_parameters", std::move(values)},
                  {"has_state", task.state != nullptr}});
  if (task.state) line.send_state(*task.state);
}

MemberTask receive_task(const MemberLine& line) {
  const Json head = line.receive_head();
  MemberTask task{.member = head.at("member"), .generation = head.at("generation"), .seed = head.at("seed")};
  for (const Json& value : head.at("hyper_parameters")) task.hyper_parameters.push_back({value.at(0), value.at(1)});
  if (head.at("has_state")) task.state = std::make_shared<const MemberState>(line.receive_state());
  return task;
}

void send_reply(const MemberLine& line, const MemberReply& reply) {
  std::vector<std::string> names;
  std::vector<double> measured;
  for (const NamedNumber& its : reply.score.measured) {
    names.push_back(its.name);
    measured.push_back(its.value);
  }
  line.send_head({{"member", reply.member},
                  {"generation", reply.generation},
                  {"failure", reply.failure},
                  {"score", bits_of({&reply.score.value, 1})},
                  {"samples", bits_of(reply.score.samples)},
                  {"names", names},
                  {"measured", bits_of(measured)}});
  if (reply.failure.empty()) line.send_state(reply.state);
}

MemberReply receive_reply(const MemberLine& line) {
  const Json head = line.receive_head();
  MemberReply reply{.member = head.at("member"), .generation = head.at("generation"), .failure = head.at("failure")};
  reply.score.value = doubles_in(head.at("score")).at(0);
  reply.score.samples = doubles_in(head.at("samples"));
  const std::vector<double> measured = doubles_in(head.at("measured"));
  for (std::size_t i = 0; i < measured.size(); ++i) reply.score.measured.push_back({head.at("names")[i], measured[i]});
  if (reply.failure.empty()) reply.state = line.receive_state();
  return reply;
}

// --- rank 0 ---

// By the process at the other end of the line. Where the run is to end, that one hears of it when it asks.
MemberReply carry_out_there(const MemberLine& line, const MemberTask& task, std::atomic<bool>& is_interrupted) {
  line.say(Word::task);
  send_task(line, task);
  while (true) {
    const Word word = line.hear();
    if (word == Word::reply) return receive_reply(line);
    if (word == Word::may_go_on_interrupted) is_interrupted = true;
    Word answer = Word::go_on;
    try {
      task.go_on();
    } catch (const Error&) {
      answer = Word::stop;
    }
    line.say(answer);
  }
}

// What goes wrong between two ranks ends the waits of all.
template <typename F>
auto or_break(Transport& world, F f) {
  try {
    return f();
  } catch (const PeerError& error) {
    if (!world.failure()) world.abort(error.failure());
    throw;
  }
}

detail::MemberPlace place_there(Transport& world, const MemberLine& line, std::atomic<bool>& is_interrupted) {
  return {.carry_out =
              [&world, line, &is_interrupted](const MemberTask& task) {
                return or_break(world, [&] { return carry_out_there(line, task, is_interrupted); });
              },
          .idle = [&world, line] { or_break(world, [&] { line.say(Word::wait); }); },
          .comes_back = true};
}

// --- the others ---

struct Service {
  const MemberThreadsOptions& here;
  const std::function<bool()>& is_interrupted;
  std::atomic<bool> has_failed = false;  // at another place of this process
};

// A member trains on a thread of its own, which may hang; this one only speaks, and so does not.
void serve_task(const MemberLine& line, MemberThreads& member, const Service& service) {
  MemberTask task = receive_task(line);
  const MemberReply stopped{.member = task.member, .generation = task.generation, .failure = "the run was to end"};
  member.begin(std::move(task));
  while (!service.has_failed) {
    std::optional<MemberReply> reply = member.next(kAskEvery);
    if (!reply) {
      line.say(service.is_interrupted && service.is_interrupted() ? Word::may_go_on_interrupted : Word::may_go_on);
      if (line.hear() != Word::stop) continue;
      member.cancel();
      reply = stopped;
    }
    line.say(Word::reply);
    return send_reply(line, *reply);
  }
}

// Until rank 0 says that it is over.
void serve_at(const MemberLine& line, const Service& service) {
  MemberThreadsOptions one = service.here;
  one.threads = 1;
  MemberThreads member(one);
  while (!service.has_failed) {
    const Word word = line.hear();
    if (word == Word::end) return;
    if (word == Word::task) serve_task(line, member, service);
  }
}

}  // namespace

MemberProcesses::MemberProcesses(Transport& world, const MemberThreadsOptions& here)
    : world_(world), deadline_(here.deadline) {
  validate(here);
  if (world.rank() != kController)
    throw UsageError(fmt::format("members are begun by rank 0, and this is {}", to_string(world.rank())));
  detail::MemberPlacesOptions options{
      .places = std::vector(static_cast<std::size_t>(here.threads), detail::own_place(here)),
      .deadline = deadline_,
      .idle_every = std::min<Duration>(deadline_ / 4, 1s)};
  for (const Rank rank : all_ranks_but(kController, world.size())) {
    const std::int64_t places = MemberLine(world, rank, 0, deadline_).receive_head();
    for (std::int64_t place = 0; place < places; ++place) {
      others_.emplace_back(rank, place);
      options.places.push_back(place_there(world, MemberLine(world, rank, place, deadline_), is_interrupted_));
    }
  }
  places_ = std::make_unique<detail::MemberPlaces>(std::move(options));
}

MemberProcesses::~MemberProcesses() = default;

std::int64_t MemberProcesses::places() const { return places_->places(); }

void MemberProcesses::begin(MemberTask task) { places_->begin(std::move(task)); }

std::optional<MemberReply> MemberProcesses::next(Duration wait) { return places_->next(wait); }

void MemberProcesses::cancel() { places_->cancel(); }

void MemberProcesses::end() {
  places_->end();
  for (const auto& [rank, place] : others_) MemberLine(world_, rank, place, deadline_).say(Word::end);
}

void serve_members(Transport& world, const MemberThreadsOptions& here, const std::function<bool()>& is_interrupted) {
  validate(here);
  if (world.rank() == kController) throw UsageError("rank 0 begins members, and serves nobody");
  MemberLine(world, kController, 0, here.deadline).send_head(here.threads);
  std::mutex mutex;
  std::exception_ptr failure;
  Service service{.here = here, .is_interrupted = is_interrupted};
  std::vector<std::thread> threads;
  for (int place = 0; place < here.threads; ++place) {
    threads.emplace_back([&, place] {
      try {
        serve_at(MemberLine(world, kController, place, here.deadline), service);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        service.has_failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tutti
