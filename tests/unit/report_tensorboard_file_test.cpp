#include <tutti/report/tensorboard_file.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using testing::content_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using testing::ScratchFolder;
using ::testing::SizeIs;
using testing::usage_error;

// Takes bytes from the beginning of a text.
class Bytes {
 public:
  explicit Bytes(std::string_view text) : text_(text) {}

  bool empty() const { return text_.empty(); }

  std::string_view take(std::size_t count) {
    EXPECT_LE(count, text_.size());
    const std::string_view taken = text_.substr(0, count);
    text_.remove_prefix(taken.size());
    return taken;
  }

  template <typename Number>
  Number take_number() {
    Number number{};
    const std::string_view bytes = take(sizeof(Number));
    if (bytes.size() == sizeof(Number)) std::memcpy(&number, bytes.data(), sizeof(Number));
    return number;
  }

  std::uint64_t take_varint() {
    std::uint64_t number = 0;
    for (int shift = 0; shift < 64 && !empty(); shift += 7) {
      const std::uint64_t byte = take_number<std::uint8_t>();
      number |= (byte & 0x7fu) << shift;
      if (byte < 0x80) break;
    }
    return number;
  }

 private:
  std::string_view text_;
};

// CRC-32C bit by bit, as its definition has it, then masked.
std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t rest = 0xffffffffu;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool carry = ((rest ^ (static_cast<std::uint8_t>(byte) >> bit)) & 1u) != 0;
      rest >>= 1;
      if (carry) rest ^= 0x82f63b78u;
    }
  }
  rest = ~rest;
  return ((rest >> 15) | (rest << 17)) + 0xa282ead8u;
}

struct Scalar {
  std::string tag;
  float value = 0;
  friend bool operator==(const Scalar&, const Scalar&) = default;
};

struct Read {
  double wall_time = 0;
  std::uint64_t step = 0;
  std::string file_version = {};
  std::uint64_t session_status = 0;
  std::vector<Scalar> scalars = {};
};

Scalar read_value(std::string_view text) {
  Scalar scalar;
  for (Bytes bytes(text); !bytes.empty();) {
    switch (const std::uint64_t key = bytes.take_varint()) {
      case (1 << 3) | 2: scalar.tag = bytes.take(bytes.take_varint()); break;
      case (2 << 3) | 5: scalar.value = bytes.take_number<float>(); break;
      default: ADD_FAILURE() << "a value with the key " << key; return scalar;
    }
  }
  return scalar;
}

Read read_event(std::string_view text) {
  Read event;
  for (Bytes bytes(text); !bytes.empty();) {
    switch (const std::uint64_t key = bytes.take_varint()) {
      case (1 << 3) | 1: event.wall_time = bytes.take_number<double>(); break;
      case (2 << 3) | 0: event.step = bytes.take_varint(); break;
      case (3 << 3) | 2: event.file_version = bytes.take(bytes.take_varint()); break;
      case (5 << 3) | 2:
        for (Bytes summary(bytes.take(bytes.take_varint())); !summary.empty();) {
          EXPECT_EQ(summary.take_varint(), (1u << 3) | 2u);
          event.scalars.push_back(read_value(summary.take(summary.take_varint())));
        }
        break;
      case (7 << 3) | 2: {
        Bytes session(bytes.take(bytes.take_varint()));
        EXPECT_EQ(session.take_varint(), 1u << 3);
        event.session_status = session.take_varint();
        EXPECT_TRUE(session.empty());
        break;
      }
      default: ADD_FAILURE() << "an event with the key " << key; return event;
    }
  }
  return event;
}

std::vector<Read> read_file(const std::filesystem::path& file) {
  std::vector<Read> events;
  const std::string content = content_of(file);
  for (Bytes bytes(content); !bytes.empty();) {
    const std::string_view header = bytes.take(8);
    EXPECT_EQ(bytes.take_number<std::uint32_t>(), checksum(header));
    const std::string_view event = bytes.take(Bytes(header).take_number<std::uint64_t>());
    EXPECT_EQ(bytes.take_number<std::uint32_t>(), checksum(event));
    events.push_back(read_event(event));
  }
  return events;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// Of the only file in the folder.
std::vector<Read> events_in(const std::filesystem::path& folder) {
  const std::vector<std::filesystem::path> files = files_in(folder);
  EXPECT_THAT(files, SizeIs(1));
  return read_file(files.front());
}

double at_some_time() { return 1700000000.25; }

event::StepEnded step(std::int64_t number, double loss) {
  return {.step = number, .loss = loss, .lr = 0.25, .rows = 8, .metrics = {{"accuracy", loss / 2}}};
}

TEST(TensorBoardFile, BeginsAsTensorBoardExpects) {
  const ScratchFolder folder;
  TensorBoardFile file(folder.path(), {.wall_time = at_some_time});
  file.on(event::RunStarted{});
  // As in the files of TensorBoard itself: 24 bytes follow, their length's checksum, a time.
  EXPECT_EQ(content_of(files_in(folder.path()).front()).substr(0, 13),
            std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09", 13));
  const std::vector<Read> events = events_in(folder.path());
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].wall_time, 1700000000.25);
  EXPECT_EQ(events[0].step, 0u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1u);
  EXPECT_EQ(events[1].step, 1u);
}

TEST(TensorBoardFile, HoldsStepsAndEvaluations) {
  const ScratchFolder folder;
  TensorBoardFile file(folder.path() / "new", {.every_steps = 2, .wall_time = at_some_time});
  file.on(event::RunStarted{});
  file.on(step(1, 1));
  file.on(step(2, 2));
  file.on(event::EvaluationEnded{.step = 2, .split = "test", .loss = 0.5, .metrics = {{"größe", 0.75}}});
  file.on(step(3, 4));
  file.on(event::CheckpointWritten{.step = 3});
  file.on(event::Warned{});
  file.on(event::SpanEnded{});
  file.on(event::RunEnded{.step = 3});
  const std::vector<Read> events = events_in(folder.path() / "new");
  ASSERT_THAT(events, SizeIs(5));
  EXPECT_EQ(events[2].step, 2u);
  EXPECT_EQ(events[2].wall_time, 1700000000.25);
  EXPECT_THAT(events[2].scalars,
              ElementsAre(Scalar{"train/loss", 1.5F}, Scalar{"train/lr", 0.25F}, Scalar{"train/accuracy", 0.75F}));
  EXPECT_EQ(events[3].step, 2u);
  EXPECT_THAT(events[3].scalars, ElementsAre(Scalar{"test/loss", 0.5F}, Scalar{"test/größe", 0.75F}));
  EXPECT_EQ(events[4].step, 3u);
  EXPECT_THAT(events[4].scalars,
              ElementsAre(Scalar{"train/loss", 4.0F}, Scalar{"train/lr", 0.25F}, Scalar{"train/accuracy", 2.0F}));
}

TEST(TensorBoardFile, HoldsGenerations) {
  const ScratchFolder folder;
  TensorBoardFile file(folder.path(), {.wall_time = at_some_time});
  file.on(event::RunStarted{.unit = "generation"});
  file.on(event::MemberEvaluated{.generation = 3});
  file.on(event::GenerationEnded{
      .generation = 3, .seconds = 2.5, .best_score = 0.75, .median_score = 0.5, .took_over = 2, .failed = 1});
  file.on(event::RunEnded{.step = 3});
  const std::vector<Read> events = events_in(folder.path());
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[2].step, 3u);
  EXPECT_THAT(events[2].scalars,
              ElementsAre(Scalar{"population/best_score", 0.75F}, Scalar{"population/median_score", 0.5F},
                          Scalar{"population/took_over", 2.0F}, Scalar{"population/failed", 1.0F},
                          Scalar{"population/seconds", 2.5F}));
}

TEST(TensorBoardFile, HoldsNumbersAsTheyAre) {
  const ScratchFolder folder;
  TensorBoardFile file(folder.path(), {.every_steps = 1});
  file.on(event::RunStarted{});
  const double infinity = std::numeric_limits<double>::infinity();
  file.on(event::StepEnded{
      .step = std::int64_t{1} << 40, .loss = std::numeric_limits<double>::quiet_NaN(), .lr = -infinity});
  file.on(event::StepEnded{.step = std::numeric_limits<std::int64_t>::max(), .loss = 0, .lr = -0.0});
  const std::vector<Read> events = events_in(folder.path());
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[2].step, std::uint64_t{1} << 40);
  EXPECT_TRUE(std::isnan(events[2].scalars[0].value));
  EXPECT_EQ(events[2].scalars[1].value, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(events[3].step, (std::uint64_t{1} << 63) - 1);
  EXPECT_EQ(events[3].scalars[0], (Scalar{"train/loss", 0.0F}));
  EXPECT_TRUE(std::signbit(events[3].scalars[1].value));
}

TEST(TensorBoardFile, IsANewOneForEachStart) {
  const ScratchFolder folder;
  for (int run = 0; run < 2; ++run) {
    TensorBoardFile file(folder.path(), {.wall_time = at_some_time});
    file.on(event::RunStarted{.first_step = 40 * run});
  }
  const std::vector<std::filesystem::path> files = files_in(folder.path());
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_THAT(files[0].filename().string(), MatchesRegex("events\\.out\\.tfevents\\.1700000000\\..+\\.[0-9]+\\.0"));
  EXPECT_THAT(files[1].filename().string(), EndsWith("." + std::to_string(::getpid()) + ".1"));
  EXPECT_EQ(read_file(files[1])[1].step, 41u) << "what earlier files tell of steps from there on is void";
}

TEST(TensorBoardFile, RefusesMisuse) {
  const ScratchFolder folder;
  EXPECT_EQ(usage_error([&] { TensorBoardFile(folder.path(), {.every_steps = -1}); }),
            "TensorBoardFile: every_steps must be at least 1, and is -1");
  TensorBoardFile file(folder.path(), {.every_steps = 1});
  EXPECT_THAT(usage_error([&] { file.on(step(1, 1)); }),
              EndsWith("the run has to be told as started before its steps"));
  EXPECT_THAT(files_in(folder.path()), IsEmpty());
}

}  // namespace
}  // namespace tutti
