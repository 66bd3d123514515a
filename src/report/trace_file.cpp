#include <tutti/report/trace_file.hpp>

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <tutti/base/atomic_file.hpp>

#include "event_json.hpp"

namespace tutti {
namespace {

// In whole nanoseconds, so that of two spans which touch none reaches into the other after rounding.
std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Of these there are enough for centuries.
bool is_a_time(double seconds) { return std::abs(seconds) < 9e9; }

// The unit of the format is a microsecond.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", std::abs(nanoseconds) / 1000,
                     std::abs(nanoseconds) % 1000);
}

struct Span {
  std::string name;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  // As viewers want them: a span before those inside it, though these ended first.
  friend bool operator<(const Span& a, const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; }
};

// So many spans of a thread are held back, for one that they are inside of.
constexpr std::size_t kHeldBack = 64;

// So many bytes go to disk at once.
constexpr std::size_t kBuffered = std::size_t{1} << 15;

}  // namespace

// An array of events: viewers take it even where its end is missing.
class TraceFile::Writer {
 public:
  explicit Writer(std::filesystem::path file) : file_(std::move(file)) { buffer_ = "[\n"; }

  void add(const event::SpanEnded& span) {
    if (!is_a_time(span.begin) || !is_a_time(span.end)) return;
    const Thread thread{span.rank, span.kind};
    const auto [found, is_new] = threads_.try_emplace(thread);
    if (is_new) introduce(thread);
    std::multiset<Span>& held = found->second;
    const std::int64_t begin = nanoseconds(span.begin);
    held.insert({.name = span.name, .begin = begin, .end = std::max(nanoseconds(span.end), begin)});
    if (held.size() > kHeldBack) write(thread, held.extract(held.begin()).value());
  }

  void finish() {
    for (const auto& [thread, held] : threads_) {
      for (const Span& span : held) write(thread, span);
    }
    buffer_ += "\n]\n";
    file_.write(buffer_);
    file_.commit();
  }

 private:
  struct Thread {
    int rank;
    event::SpanEnded::Kind kind;
    friend auto operator<=>(const Thread&, const Thread&) = default;

    // Viewers sort threads by it.
    int id() const { return static_cast<int>(kind) + 1; }
  };

  void introduce(const Thread& thread) {
    const auto name = [&](std::string_view what, std::string_view its_name) {
      write(fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what, thread.rank,
                        thread.id(), its_name));
    };
    name("process_name", fmt::format("rank {}", thread.rank));
    name("thread_name", detail::name_of(thread.kind));
  }

  void write(const Thread& thread, const Span& span) {
    write(fmt::format(R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{}}})",
                      detail::json_line(span.name), detail::name_of(thread.kind), thread.rank, thread.id(),
                      microseconds(span.begin), microseconds(span.end - span.begin)));
  }

  void write(std::string_view event) {
    if (!is_empty_) buffer_ += ",\n";
    is_empty_ = false;
    buffer_ += event;
    if (buffer_.size() < kBuffered) return;
    file_.write(buffer_);
    buffer_.clear();
  }

  AtomicFile file_;
  std::string buffer_;
  bool is_empty_ = true;
  std::map<Thread, std::multiset<Span>> threads_;
};

TraceFile::TraceFile(std::filesystem::path file) : writer_(std::make_unique<Writer>(std::move(file))) {}

TraceFile::~TraceFile() {
  try {
    if (writer_) writer_->finish();
  } catch (const std::exception&) {
    // The run ended in an error already, which is the one to tell.
  }
}

void TraceFile::on(const Event& event) {
  if (!writer_) return;
  if (const auto* span = std::get_if<event::SpanEnded>(&event)) writer_->add(*span);
  if (std::holds_alternative<event::RunEnded>(event)) {
    const std::unique_ptr<Writer> writer = std::move(writer_);
    writer->finish();
  }
}

}  // namespace tutti
