#include "gradient_lines.hpp"

#include <array>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/chunk.hpp>
#include <tutti/base/error.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/transport/parameter_messages.hpp>

namespace tutti::detail {
namespace {

using Json = nlohmann::ordered_json;
using Reason = event::RunEnded::Reason;

// Above those of collectives, which count their calls from kFirstInternalTag on.
constexpr std::uint64_t kFirstTag = kFirstInternalTag + (std::uint64_t{1} << 62);

// In a world of two.
constexpr Rank kServer{0};
constexpr Rank kOther{1};

Tag tag_of(int worker) { return Tag{kFirstTag + static_cast<std::uint64_t>(worker)}; }

// To the bit, and whatever they are: JSON has no infinity.
std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }
double double_in(const Json& bits) { return std::bit_cast<double>(bits.get<std::uint64_t>()); }

// --- what is said: a worker tells what it made of its last task, and gets the next one ---

struct Ask {
  std::int64_t number = -1;  // of the last task; none, where below 0
  GradientReply reply = {};
  std::string failure = {};
  bool is_interrupted = false;
};

struct Answer {
  std::optional<GradientWork> work = {};
  RunEnd end = {};            // where there is none
  std::string given_up = {};  // a sentence: nobody listens to this worker any more
};

std::string given_up_after(int worker, Duration deadline) {
  return fmt::format("replica {} took longer than {} for a step, and the others go on without it", worker,
                     to_string(deadline));
}

using Clock = std::chrono::steady_clock;

Json spans_since(Clock::time_point began, const std::vector<StepSpan>& spans) {
  Json all = Json::array();
  for (const StepSpan& span : spans)
    all.push_back({static_cast<int>(span.kind), span.name, (span.begin - began).count(), (span.end - began).count()});
  return all;
}

std::vector<StepSpan> spans_of(int replica, Clock::time_point began, const Json& all) {
  std::vector<StepSpan> spans;
  for (const Json& its : all)
    spans.push_back({.replica = replica,
                     .kind = static_cast<event::SpanEnded::Kind>(its.at(0).get<int>()),
                     .name = its.at(1),
                     .begin = began + Clock::duration(its.at(2).get<Clock::rep>()),
                     .end = began + Clock::duration(its.at(3).get<Clock::rep>())});
  return spans;
}

void send_ask(Transport& world, int worker, const Ask& ask, Clock::time_point began, Deadline deadline) {
  Json metrics = Json::array();
  for (const MetricSum& its : ask.reply.metrics) metrics.push_back({bits_of(its.sum), bits_of(its.count)});
  const Json head{{"number", ask.number},
                  {"rows", ask.reply.rows},
                  {"batch_rows", ask.reply.batch_rows},
                  {"loss", bits_of(ask.reply.loss)},
                  {"weight", bits_of(ask.reply.weight)},
                  {"metrics", std::move(metrics)},
                  {"seconds", bits_of(ask.reply.seconds)},
                  {"bytes_exchanged", ask.reply.bytes_exchanged},
                  {"has_gradients", ask.reply.gradients != nullptr},
                  {"spans", spans_since(began, ask.reply.spans)},
                  {"failure", ask.failure},
                  {"is_interrupted", ask.is_interrupted}};
  send_text(world, kServer, tag_of(worker), head.dump(-1, ' ', false, Json::error_handler_t::replace), deadline);
  if (ask.reply.gradients) send_parameters(world, kServer, tag_of(worker), *ask.reply.gradients, deadline);
}

Ask receive_ask(Transport& world, int worker, Clock::time_point began, Deadline deadline) {
  const Json head = Json::parse(receive_text(world, kOther, tag_of(worker), deadline));
  Ask ask{.number = head.at("number"),
          .reply = {.rows = head.at("rows"),
                    .batch_rows = head.at("batch_rows"),
                    .loss = double_in(head.at("loss")),
                    .weight = double_in(head.at("weight")),
                    .seconds = double_in(head.at("seconds")),
                    .spans = spans_of(worker, began, head.at("spans")),
                    .bytes_exchanged = head.at("bytes_exchanged")},
          .failure = head.at("failure"),
          .is_interrupted = head.at("is_interrupted")};
  for (const Json& its : head.at("metrics")) ask.reply.metrics.push_back({double_in(its.at(0)), double_in(its.at(1))});
  if (head.at("has_gradients"))
    ask.reply.gradients =
        std::make_shared<const ParameterSet>(receive_parameters(world, kOther, tag_of(worker), deadline));
  return ask;
}

// The next task, or where there is none how the run has ended.
void send_answer(Transport& world, int worker, const GradientWork* work, const RunEnd& end, Deadline deadline) {
  const Json head{
      {"number", work != nullptr ? work->number : -1}, {"reason", static_cast<int>(end.reason)}, {"step", end.step}};
  send_text(world, kOther, tag_of(worker), head.dump(), deadline);
  if (work != nullptr) send_parameters(world, kOther, tag_of(worker), *work->parameters.parameters, deadline);
}

// In place of an answer. It is short, so that nobody waits for one that may be stopped.
void send_notice(Transport& world, int worker, Duration deadline) {
  const Json head{{"number", -1}, {"given_up", given_up_after(worker, deadline)}};
  try {
    send_text(world, kOther, tag_of(worker), head.dump(), Deadline::after(deadline));
  } catch (const PeerError&) {  // it is gone
  }
}

// The run may pause for an evaluation or a checkpoint, however long these take: rank 0 is there, or its loss is
// noticed; and whom it gives up it tells so.
Answer receive_answer(Transport& world, int worker, Duration deadline, SpansOfTasks& spans) {
  const Json head = Json::parse(receive_text(world, kServer, tag_of(worker), Deadline::after(Duration::max())));
  spans.note(SpansOfTasks::Kind::waiting, "wait");
  if (head.contains("given_up")) return {.given_up = head.at("given_up")};
  const std::int64_t number = head.at("number");
  if (number < 0)
    return {.end = {.reason = static_cast<Reason>(head.at("reason").get<int>()), .step = head.at("step")}};
  auto parameters = std::make_shared<const ParameterSet>(
      receive_parameters(world, kServer, tag_of(worker), Deadline::after(deadline)));
  spans.note(SpansOfTasks::Kind::communication, "receive");
  return {.work = GradientWork{.number = number, .parameters = {.parameters = std::move(parameters)}}};
}

// Whom rank 0 has given up before it was through sends in vain, and is to blame itself.
Answer tell_and_ask(Transport& world, int worker, const Ask& ask, const GradientWorkersOptions& options,
                    SpansOfTasks& spans) {
  constexpr std::chrono::seconds kNoticeIsThere{1};
  try {
    send_ask(world, worker, ask, options.began, Deadline::after(options.deadline));
  } catch (const PeerError& error) {
    if (error.kind() != FailureKind::late) throw;
    const std::exception_ptr late = std::current_exception();
    try {
      const Json head = Json::parse(receive_text(world, kServer, tag_of(worker), Deadline::after(kNoticeIsThere)));
      if (head.contains("given_up")) return {.given_up = head.at("given_up")};
    } catch (const PeerError&) {
    }
    std::rethrow_exception(late);
  }
  spans.note(SpansOfTasks::Kind::communication, "send");
  return receive_answer(world, worker, options.deadline, spans);
}

// A world of rank 0 and another; both call it.
std::shared_ptr<Transport> pair_with(Communicator& world, int process, Duration deadline) {
  const std::array members{kServer, Rank{process}};
  return world.transport().regroup(members, Deadline::after(deadline));
}

}  // namespace

// --- rank 0 ---

struct GradientLines::Shared {
  Shared(std::shared_ptr<AsynchronousServer> its_server, const GradientLinesOptions& options)
      : server(std::move(its_server)), began(options.began), deadline(options.deadline) {}

  // Until the run is over, or the worker lost.
  void serve(int worker, int process);
  bool talk(int worker, int process, const std::function<void(Transport&)>& f);
  RunEnd wait_for_end();

  std::vector<std::shared_ptr<Transport>> worlds;  // of two, by process; none with rank 0 itself
  std::shared_ptr<AsynchronousServer> server;
  Clock::time_point began;
  Duration deadline;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<RunEnd> end;
  bool is_dropped = false;
  std::vector<std::string> problems;
  std::atomic<bool> is_interrupted = false;
  std::size_t serving = 0;
};

RunEnd GradientLines::Shared::wait_for_end() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return end || is_dropped; });
  if (!end) throw Error("the run has failed");
  return *end;
}

void GradientLines::Shared::serve(int worker, int process) {
  std::optional<GradientWork> work;
  try {
    while (true) {
      Ask ask;
      const bool has_asked = talk(worker, process, [&](Transport& world) {
        try {
          ask = receive_ask(world, worker, began, Deadline::after(deadline));
        } catch (const PeerError& error) {
          if (error.kind() == FailureKind::late) send_notice(world, worker, deadline);
          throw;
        }
      });
      if (!has_asked) return;
      if (!ask.failure.empty()) {
        server->fail(std::make_exception_ptr(Error(ask.failure)));
        return;
      }
      if (ask.is_interrupted) is_interrupted = true;
      if (work && ask.number == work->number) server->done(worker, *work, ask.reply);
      work = server->next(worker);
      if (!work) server->leave(worker);
      const RunEnd its_end = work ? RunEnd() : wait_for_end();
      const bool has_heard = talk(worker, process, [&](Transport& world) {
        send_answer(world, worker, work ? &*work : nullptr, its_end, Deadline::after(deadline));
      });
      if (!has_heard || !work) return;
    }
  } catch (...) {
    server->fail(std::current_exception());
  }
}

// False where the worker is lost: what it was at is another's. What the server throws, whatever it is, is no such loss.
bool GradientLines::Shared::talk(int worker, int process, const std::function<void(Transport&)>& f) {
  try {
    f(*worlds[static_cast<std::size_t>(process)]);
    return true;
  } catch (const PeerError& error) {
    server->lose(worker);
    const std::lock_guard lock(mutex);
    if (!end && !is_dropped)
      problems.push_back(fmt::format(
          "replica {}, of process {}, {}; the others go on", worker, process,
          error.kind() == FailureKind::late ? fmt::format("was not heard of for {}", to_string(deadline)) : "is gone"));
    return false;
  }
}

GradientLines::GradientLines(Communicator& world, std::shared_ptr<AsynchronousServer> server,
                             const GradientLinesOptions& options)
    : shared_(std::make_shared<Shared>(std::move(server), options)) {
  shared_->worlds.resize(static_cast<std::size_t>(world.size()));
  for (int p = 1; p < world.size(); ++p)
    shared_->worlds[static_cast<std::size_t>(p)] =
        options.pair ? options.pair(p) : pair_with(world, p, options.deadline);
  for (int p = 1; p < world.size(); ++p) {
    const Slice its = chunk(static_cast<std::size_t>(options.replicas), world.size(), p);
    for (std::size_t worker = its.first; worker < its.end(); ++worker) {
      ++shared_->serving;
      std::thread([shared = shared_, worker = static_cast<int>(worker), p] {
        shared->serve(worker, p);
        const std::lock_guard lock(shared->mutex);
        --shared->serving;
        shared->changed.notify_all();
      }).detach();
    }
  }
}

GradientLines::~GradientLines() {
  std::unique_lock lock(shared_->mutex);
  if (!shared_->end) {
    for (const std::shared_ptr<Transport>& world : shared_->worlds) {
      if (world) world->abort({FailureKind::cancelled, {kServer}, "rank 0 has ended the run"});
    }
  }
  shared_->is_dropped = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, shared_->deadline, [&] { return shared_->serving == 0; });
}

bool GradientLines::is_interrupted() const { return shared_->is_interrupted; }

std::vector<std::string> GradientLines::take_problems() {
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->problems, {});
}

void GradientLines::finish(const RunEnd& end) {
  std::unique_lock lock(shared_->mutex);
  shared_->end = end;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, shared_->deadline, [&] { return shared_->serving == 0; });
}

// --- the others ---

RunEnd work_for(Communicator& world, const GradientWorkersOptions& options) {
  const std::shared_ptr<Transport> pair =
      options.pair ? options.pair : pair_with(world, world.rank().value, options.deadline);
  Transport& transport = *pair;
  std::mutex mutex;
  std::exception_ptr failure;
  RunEnd end;
  const auto work_at = [&](int worker) {
    const int replica = options.first + worker;
    SpansOfTasks spans(replica);
    Ask ask;
    while (true) {
      ask.is_interrupted = options.is_interrupted && options.is_interrupted();
      const Answer answer = tell_and_ask(transport, replica, ask, options, spans);
      const Deadline waited_for = Deadline::after(options.deadline);
      if (!answer.given_up.empty()) throw ToldElsewhere(answer.given_up);
      if (!answer.work) {
        const std::lock_guard lock(mutex);
        end = answer.end;
        return;
      }
      try {
        ask = {.number = answer.work->number,
               .reply = options.compute(worker, answer.work->number, *answer.work->parameters.parameters)};
        spans.give(ask.reply);
        if (!options.tells_spans) ask.reply.spans.clear();
      } catch (...) {
        Ask failed;
        failed.failure = text_of(std::current_exception());
        send_ask(transport, replica, failed, options.began, Deadline::after(options.deadline));
        throw ToldElsewhere(failed.failure);
      }
      // Nobody listens to it any more, and rank 0 says so.
      if (waited_for.passed()) throw ToldElsewhere(given_up_after(replica, options.deadline));
    }
  };
  std::vector<std::thread> threads;
  for (int worker = 0; worker < options.count; ++worker) {
    threads.emplace_back([&, worker] {
      try {
        if (options.prepare_thread) options.prepare_thread();
        work_at(worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  return end;
}

}  // namespace tutti::detail
