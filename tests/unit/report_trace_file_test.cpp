#include <tutti/report/trace_file.hpp>

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <support/scratch_folder.hpp>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using testing::content_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::ScratchFolder;
using ::testing::SizeIs;
using Json = nlohmann::json;
using Kind = event::SpanEnded::Kind;

struct Trace {
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  std::vector<Json> spans;
};

Trace read(const std::filesystem::path& file) {
  Trace trace;
  for (const Json& event : Json::parse(content_of(file))) {
    const int rank = event.at("pid");
    const std::string name = event.at("name");
    if (event.at("ph") == "X") {
      trace.spans.push_back(event);
    } else if (name == "process_name") {
      trace.processes[rank] = event.at("args").at("name");
    } else {
      EXPECT_EQ(name, "thread_name");
      trace.threads[{rank, event.at("tid")}] = event.at("args").at("name");
    }
  }
  return trace;
}

std::string thread_of(const Trace& trace, const Json& span) {
  return trace.threads.at({span.at("pid"), span.at("tid")});
}

// In whole nanoseconds.
std::int64_t begin_of(const Json& span) { return std::llround(span.at("ts").get<double>() * 1000); }
std::int64_t end_of(const Json& span) { return begin_of(span) + std::llround(span.at("dur").get<double>() * 1000); }

TEST(TraceFile, HasAProcessForEachRankAndAThreadForEachKind) {
  const ScratchFolder folder;
  TraceFile file(folder.path() / "trace.json");
  file.on(event::RunStarted{});
  file.on(event::SpanEnded{.rank = 0, .kind = Kind::data, .name = "rows", .begin = 0, .end = 0.25});
  file.on(event::SpanEnded{.rank = 0, .kind = Kind::compute, .name = "forward", .begin = 0.25, .end = 0.5});
  file.on(event::SpanEnded{.rank = 12, .kind = Kind::communication, .name = "all_reduce", .begin = 0.5, .end = 0.75});
  file.on(event::SpanEnded{.rank = 12, .kind = Kind::waiting, .name = "for rank 0", .begin = 0.75, .end = 1});
  file.on(event::SpanEnded{.rank = 0, .kind = Kind::compute, .name = "\"backward\"\n\xff", .begin = 0.5, .end = 1});
  file.on(event::RunEnded{});
  const Trace trace = read(folder.path() / "trace.json");
  EXPECT_THAT(trace.processes, ElementsAre(std::pair(0, "rank 0"), std::pair(12, "rank 12")));
  ASSERT_THAT(trace.spans, SizeIs(5));
  std::vector<std::string> threads;
  for (const Json& span : trace.spans) {
    threads.push_back(thread_of(trace, span));
    EXPECT_EQ(span.at("cat"), threads.back());
  }
  EXPECT_THAT(threads, ElementsAre("compute", "compute", "data", "communication", "waiting"));
  EXPECT_EQ(trace.spans[0].at("name"), "forward");
  EXPECT_EQ(trace.spans[0].at("ts"), 250000);
  EXPECT_EQ(trace.spans[0].at("dur"), 250000);
  EXPECT_EQ(trace.spans[1].at("name"), "\"backward\"\n\ufffd");
}

TEST(TraceFile, KeepsNestingAndTouchingSpansApartAfterRounding) {
  const ScratchFolder folder;
  {
    TraceFile file(folder.path() / "trace.json");
    // Inner spans end first; times that no decimal number of nanoseconds holds.
    for (int i = 0; i < 1000; ++i) {
      const double begin = i / 7.0;
      const double middle = (i + 0.37) / 7.0;
      const double end = (i + 1) / 7.0;
      file.on(event::SpanEnded{.name = "forward", .begin = begin, .end = middle});
      file.on(event::SpanEnded{.name = "backward", .begin = middle, .end = end});
      file.on(event::SpanEnded{.name = "step", .begin = begin, .end = end});
    }
  }
  const Trace trace = read(folder.path() / "trace.json");
  ASSERT_THAT(trace.spans, SizeIs(3000));
  std::int64_t end = 0;
  for (std::size_t i = 0; i < trace.spans.size(); i += 3) {
    const Json& step = trace.spans[i];  // before those inside it
    const Json& forward = trace.spans[i + 1];
    const Json& backward = trace.spans[i + 2];
    EXPECT_EQ(step.at("name"), "step");
    EXPECT_EQ(forward.at("name"), "forward");
    EXPECT_EQ(begin_of(step), end);
    EXPECT_EQ(begin_of(forward), begin_of(step));
    EXPECT_EQ(begin_of(backward), end_of(forward));
    EXPECT_EQ(end_of(backward), end_of(step));
    end = end_of(step);
  }
}

TEST(TraceFile, IsWholeWhereTheRunEndsInAnError) {
  const ScratchFolder folder;
  try {
    TraceFile file(folder.path() / "trace.json");
    file.on(event::SpanEnded{.name = "forward", .begin = 1, .end = 2});
    throw std::runtime_error("the run failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(read(folder.path() / "trace.json").spans, SizeIs(1));
}

TEST(TraceFile, IsAnEmptyListWithoutSpans) {
  const ScratchFolder folder;
  { TraceFile file(folder.path() / "trace.json"); }
  EXPECT_THAT(Json::parse(content_of(folder.path() / "trace.json")), IsEmpty());
}

TEST(TraceFile, ReplacesAnOlderOneOnlyAtTheEnd) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "trace.json";
  { TraceFile older(path); }
  const std::string before = content_of(path);
  TraceFile file(path);
  file.on(event::SpanEnded{.name = "forward", .begin = 1, .end = 2});
  EXPECT_EQ(content_of(path), before);
  file.on(event::RunEnded{});
  file.on(event::SpanEnded{.name = "too late", .begin = 2, .end = 3});
  file.on(event::RunEnded{});
  EXPECT_THAT(read(path).spans, SizeIs(1));
  EXPECT_THAT(folder.entries(), SizeIs(1));
}

TEST(TraceFile, TakesTimesThatMakeNoSense) {
  const ScratchFolder folder;
  {
    TraceFile file(folder.path() / "trace.json");
    file.on(event::SpanEnded{.name = "endless", .begin = 1, .end = std::numeric_limits<double>::infinity()});
    file.on(event::SpanEnded{.name = "at no time", .begin = std::numeric_limits<double>::quiet_NaN(), .end = 1});
    file.on(event::SpanEnded{.name = "far away", .begin = -1e300, .end = 1e300});
    file.on(event::SpanEnded{.name = "backwards", .begin = 2, .end = 1});
    file.on(event::SpanEnded{.name = "before the start", .begin = -0.5, .end = 1});
  }
  const Trace trace = read(folder.path() / "trace.json");
  ASSERT_THAT(trace.spans, SizeIs(2));
  EXPECT_EQ(trace.spans[0].at("ts"), -500000);
  EXPECT_EQ(trace.spans[1].at("dur"), 0);
}

TEST(TraceFile, SaysAtOnceWhatCannotBeWritten) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "nowhere" / "trace.json";
  try {
    TraceFile file(path);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), "cannot write " + path.string() + ": No such file or directory");
  }
}

TEST(TraceFile, HoldsAlmostNothingInMemory) {
  const ScratchFolder folder;
  constexpr int kSpans = 100000;
  TraceFile file(folder.path() / "trace.json");
  std::optional<std::size_t> before;
  for (int i = 0; i < kSpans; ++i) {
    file.on(event::SpanEnded{
        .rank = i % 8, .kind = Kind{i % 4}, .name = "all_reduce", .begin = i * 1e-3, .end = i * 1e-3 + 5e-4});
    if (i == 1000) before = ::mallinfo2().uordblks;
  }
  EXPECT_LT(::mallinfo2().uordblks, *before + 100'000);
  ASSERT_THAT(folder.entries(), SizeIs(1));
  const auto on_disk = std::filesystem::file_size(folder / folder.entries().front());
  EXPECT_GT(on_disk, 8'000'000u);
  file.on(event::RunEnded{});
  EXPECT_LT(std::filesystem::file_size(folder.path() / "trace.json") - on_disk, 100'000u);
  // A line for each span, two for the names of each thread, and two brackets.
  const std::string content = content_of(folder.path() / "trace.json");
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), kSpans + 2 * 8 + 2);
}

}  // namespace
}  // namespace tutti
