#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/transport/folder.hpp>

#include "support/scratch_folder.hpp"
#include "support/usage_error.hpp"
#include "transport/folder_link.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ScratchFolder;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using testing::usage_error;

// What came of a rank that joined.
struct Outcome {
  std::unique_ptr<Transport> transport = nullptr;
  std::optional<Failure> failure = std::nullopt;  // of a PeerError
  std::string error = {};                         // of any
};

Outcome join(const JoinFolderOptions& options) {
  try {
    return {.transport = join_folder(options)};
  } catch (const PeerError& error) {
    return {.failure = error.failure(), .error = error.what()};
  } catch (const Error& error) {
    return {.error = error.what()};
  }
}

// All at once; the outcomes are in the order of the options.
std::vector<Outcome> join_all(const std::vector<JoinFolderOptions>& all) {
  std::vector<Outcome> outcomes(all.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < all.size(); ++i) threads.emplace_back([&, i] { outcomes[i] = join(all[i]); });
  }
  return outcomes;
}

JoinFolderOptions rank_of(const std::filesystem::path& folder, int rank, int size, Duration deadline = 30s) {
  return {.folder = folder, .rank = Rank{rank}, .size = size, .deadline = deadline};
}

// Each leaves in a thread of its own, as processes do.
void leave(std::vector<Outcome>& outcomes) {
  std::vector<std::jthread> threads;
  for (Outcome& outcome : outcomes) threads.emplace_back([&] { outcome.transport.reset(); });
}

void expect_they_talk(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) ASSERT_TRUE(outcome.transport) << outcome.error;
  const Deadline deadline = Deadline::after(30s);
  for (const Outcome& from : outcomes) {
    for (Rank to : all_ranks(from.transport->size())) send(*from.transport, to, Tag{1}, {}, deadline);
  }
  for (const Outcome& to : outcomes) {
    for (Rank from : all_ranks(to.transport->size())) to.transport->receive(from, Tag{1}, deadline);
  }
}

// --- the meeting ---

TEST(FolderTransport, LeavesAFolderAsItWas) {
  const ScratchFolder scratch;
  scratch.write("notes.txt", "of the user");
  std::filesystem::create_directories(scratch / "tutti.session-of-mine");
  for (int round = 0; round < 3; ++round) {
    std::vector<Outcome> job = join_all({rank_of(scratch.path(), 0, 2), rank_of(scratch.path(), 1, 2)});
    expect_they_talk(job);
    EXPECT_GT(scratch.entries().size(), 2u);
    leave(job);
    EXPECT_THAT(scratch.entries(), UnorderedElementsAre("notes.txt", "tutti.session-of-mine"));
  }
}

TEST(FolderTransport, RemovesAFolderThatItMade) {
  const ScratchFolder scratch;
  std::vector<Outcome> job = join_all({rank_of(scratch / "job", 0, 2), rank_of(scratch / "job", 1, 2)});
  expect_they_talk(job);
  EXPECT_THAT(scratch.entries(), ElementsAre("job"));
  // Whoever goes last.
  job[0].transport.reset();
  EXPECT_THAT(scratch.entries(), ElementsAre("job"));
  job[1].transport.reset();
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

TEST(FolderTransport, RanksMayComeInAnyOrderAndAgainAndAgain) {
  const ScratchFolder scratch;
  for (int round = 0; round < 6; ++round) {
    std::vector<Outcome> job(3);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 3; ++i) {
        const int rank = (i + round) % 3;
        threads.emplace_back(
            [&, rank] { job[static_cast<std::size_t>(rank)] = join(rank_of(scratch / "job", rank, 3)); });
        std::this_thread::sleep_for(5ms);
      }
    }
    expect_they_talk(job);
    leave(job);
  }
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

// The locks went with their processes; all else is still there.
TEST(FolderTransport, MeetsAmongTheFilesOfAKilledJobAndRemovesThem) {
  const ScratchFolder scratch;
  const std::string session = "tutti.session-0123456789abcdef";
  std::filesystem::create_directories(scratch / session);
  scratch.write("tutti.lock", "");
  scratch.write("tutti.call", "0123456789abcdef");
  scratch.write("tutti.call.new", "01");
  for (int rank : {0, 1}) scratch.write(session + "/here-" + std::to_string(rank) + "-0123456789abcdef", "2 elsewhere");
  for (const char* name : {"welcome", "0-1-0", "0-1-1", "1-0-7", "1-0-8.new"}) scratch.write(session + "/" + name, "1");

  // It hears the old call first.
  std::vector<Outcome> job(2);
  {
    const std::jthread early([&] { job[1] = join(rank_of(scratch.path(), 1, 2)); });
    const Deadline deadline = Deadline::after(10s);
    while (std::ranges::distance(std::filesystem::directory_iterator(scratch / session)) < 8 && !deadline.passed())
      std::this_thread::sleep_for(1ms);
    job[0] = join(rank_of(scratch.path(), 0, 2));
  }
  expect_they_talk(job);
  leave(job);
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

TEST(FolderTransport, ASecondJobIsRefusedAndTheFirstGoesOn) {
  const ScratchFolder scratch;
  std::vector<Outcome> first = join_all({rank_of(scratch.path(), 0, 2), rank_of(scratch.path(), 1, 2)});
  expect_they_talk(first);
  EXPECT_EQ(usage_error([&] { join_folder(rank_of(scratch.path(), 0, 2)); }),
            "the folder " + scratch.path().string() + " is in use: rank 0 of another job has tutti.lock locked");
  // The others of the second job cannot know; they wait for their own rank 0.
  EXPECT_EQ(join(rank_of(scratch.path(), 1, 2, 50ms)).error,
            "rank 0 did not come to the folder " + scratch.path().string() + " in time (another job is at work there)");
  expect_they_talk(first);
  leave(first);
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

// Rank 0 has left, so that a new job may begin; the others of the first one have not.
TEST(FolderTransport, ANewJobLeavesAloneWhoIsStillThere) {
  const ScratchFolder scratch;
  std::vector<Outcome> first =
      join_all({rank_of(scratch.path(), 0, 3), rank_of(scratch.path(), 1, 3), rank_of(scratch.path(), 2, 3)});
  expect_they_talk(first);
  first[0].transport.reset();
  std::vector<Outcome> second = join_all({rank_of(scratch.path(), 0, 2), rank_of(scratch.path(), 1, 2)});
  expect_they_talk(second);
  send(*first[1].transport, Rank{2}, Tag{2}, {}, Deadline::after(10s));
  EXPECT_NO_THROW(first[2].transport->receive(Rank{1}, Tag{2}, Deadline::after(10s)));
  leave(first);
  leave(second);
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

TEST(FolderTransport, RanksThatDisagreeOnTheirNumberAllHearWhoBroughtWhat) {
  const ScratchFolder scratch;
  const std::vector<Outcome> job =
      join_all({rank_of(scratch / "job", 0, 3), rank_of(scratch / "job", 1, 2), rank_of(scratch / "job", 2, 3)});
  for (const Outcome& outcome : job) {
    EXPECT_EQ(outcome.error, "the ranks disagree on how many they are: 2 on rank 1, 3 on ranks 0 and 2");
    EXPECT_FALSE(outcome.failure);  // it is misuse
  }
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

TEST(FolderTransport, TwoProcessesOfOneRankAreRefused) {
  const ScratchFolder scratch;
  for (const Outcome& outcome :
       join_all({rank_of(scratch / "job", 0, 3), rank_of(scratch / "job", 1, 3), rank_of(scratch / "job", 1, 3)})) {
    EXPECT_EQ(outcome.error, "two processes came as rank 1: two jobs may have been started in one folder");
  }
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

TEST(FolderTransport, NamesWhoDoesNotCome) {
  const ScratchFolder scratch;
  const std::string folder = (scratch / "job").string();
  const auto expect_late = [&](const Outcome& outcome, const std::vector<Rank>& missing) {
    EXPECT_EQ(outcome.error, to_string(missing) + " did not come to the folder " + folder + " in time");
    ASSERT_TRUE(outcome.failure);
    EXPECT_EQ(outcome.failure->kind, FailureKind::late);
    EXPECT_EQ(outcome.failure->ranks, missing);
  };
  const std::vector<Outcome> told = join_all({rank_of(folder, 0, 3, 700ms), rank_of(folder, 1, 3)});
  for (const Outcome& outcome : told) expect_late(outcome, {Rank{2}});
  EXPECT_THAT(scratch.entries(), IsEmpty());
  // One does not wait as long as rank 0 does, who then misses it, too.
  const std::vector<Outcome> impatient = join_all({rank_of(folder, 0, 3, 2s), rank_of(folder, 1, 3, 700ms)});
  expect_late(impatient[0], {Rank{1}, Rank{2}});
  expect_late(impatient[1], {Rank{2}});
  EXPECT_THAT(scratch.entries(), IsEmpty());
  expect_late(join(rank_of(folder, 1, 3, 50ms)), {Rank{0}});
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

TEST(FolderTransport, NamesAFolderThatCannotBeWritten) {
  const ScratchFolder scratch;
  const std::string file = scratch.write("file", "").string();
  EXPECT_EQ(join(rank_of(file + "/job", 0, 2)).error, "cannot make " + file + "/job: Not a directory");
  EXPECT_EQ(join(rank_of(file, 0, 2)).error, "cannot read " + file + ": Not a directory");
  EXPECT_EQ(join(rank_of(file, 1, 2)).error, "cannot read " + file + ": Not a directory");
  EXPECT_EQ(join(rank_of(scratch / "no" / "job", 0, 2)).error,
            "cannot make " + (scratch / "no" / "job").string() + ": No such file or directory");
  EXPECT_THAT(scratch.entries(), ElementsAre("file"));
}

TEST(FolderTransport, RefusesWhatCannotBe) {
  EXPECT_EQ(usage_error([] { join_folder({.size = 2}); }),
            "join_folder needs the folder that the ranks share; it was left empty");
  EXPECT_EQ(usage_error([] { join_folder(rank_of("x", 0, 0)); }), "a world needs at least 1 rank, found 0");
  EXPECT_EQ(usage_error([] { join_folder(rank_of("x", 2, 2)); }), "there is no rank 2: the world has 2 ranks");
  EXPECT_EQ(usage_error([] { join_folder({.folder = "x", .heartbeat = 0s}); }),
            "the heartbeat must be longer than nothing");
}

TEST(FolderTransport, ARankThatIsAloneTouchesNoFolder) {
  const ScratchFolder scratch;
  const Outcome alone = join(rank_of(scratch / "no" / "job", 0, 1));
  ASSERT_TRUE(alone.transport) << alone.error;
  EXPECT_THAT(scratch.entries(), IsEmpty());
}

TEST(FolderTransport, AFolderThatIsTakenAwayEndsAllWaitsNamingIt) {
  const ScratchFolder scratch;
  const std::vector<Outcome> job = join_all({rank_of(scratch / "job", 0, 2), rank_of(scratch / "job", 1, 2)});
  expect_they_talk(job);
  std::filesystem::rename(scratch / "job", scratch / "elsewhere");  // all of it at once
  for (const Outcome& outcome : job) {
    const Rank other{1 - outcome.transport->rank().value};
    const std::string error = error_of([&] { outcome.transport->receive(other, Tag{2}, Deadline::after(30s)); });
    EXPECT_THAT(error, StartsWith(to_string(other) + " cannot be reached: cannot "));
    EXPECT_THAT(error, HasSubstr((scratch / "job").string()));
  }
}

// --- the link ---

// Two ends of a link between ranks 0 and 1, which are both there.
class FolderLink : public ::testing::Test {
 protected:
  static std::vector<std::byte> head(std::uint64_t number) {
    std::vector<std::byte> bytes(Link::kHeadBytes);
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
  }
  static std::uint64_t number(const FrameBytes& frame) {
    std::uint64_t value = 0;
    std::memcpy(&value, frame.head.data(), sizeof value);
    return value;
  }
  static bool waits_for(const std::function<bool()>& ready) {
    const Deadline deadline = Deadline::after(20s);
    while (!ready()) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(100us);
    }
    return true;
  }
  static bool comes(Link& link) {
    return waits_for([&] { return link.stirred() && !link.front().empty(); });
  }
  static std::string end_of(Link& link) {
    std::optional<std::string> why;
    waits_for([&] { return (why = link.closed()).has_value(); });
    return why.value_or("(it did not end)");
  }

  // How many went in, none of which was used.
  std::uint64_t fill(std::span<const std::byte> body) {
    std::uint64_t written = 0;
    while (end_0_->write(head(written), body)) ++written;
    return written;
  }
  void expect_room_for_one_more_once_one_was_used(std::span<const std::byte> body) {
    // To have come is not to have been used.
    ASSERT_TRUE(comes(*end_1_));
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(end_0_->write(head(0), body));
    end_1_->pop();
    EXPECT_TRUE(waits_for([&] { return end_0_->write(head(0), body); }));
    EXPECT_FALSE(end_0_->write(head(0), body));
  }

  std::unique_ptr<Link> make_end(int rank) {
    const int peer = 1 - rank;
    auto link = std::make_unique<folder::FolderLink>(
        std::make_shared<folder::FolderPoller>(scratch_.path()),
        folder::FolderLinkOptions{.rank = Rank{rank}, .peer = Rank{peer}, .peer_file = here(peer), .is_near = true});
    link->start([] {});
    return link;
  }
  std::filesystem::path here(int rank) const { return scratch_ / ("here-" + std::to_string(rank)); }

  const ScratchFolder scratch_;
  std::optional<folder::LockedFile> here_0_ = folder::LockedFile::publish(here(0), "");
  std::optional<folder::LockedFile> here_1_ = folder::LockedFile::publish(here(1), "");
  std::unique_ptr<Link> end_0_ = make_end(0);
  std::unique_ptr<Link> end_1_ = make_end(1);
};

TEST_F(FolderLink, FramesArriveWholeAlignedAndInOrder) {
  constexpr std::uint64_t kFrames = 300;
  const std::size_t most = end_0_->most_body_bytes();
  EXPECT_EQ(most % Link::kBodyAlignment, 0u);
  const auto body_bytes = [&](std::uint64_t i) { return i % 50 == 0 ? most : i * 7 % 5000; };
  const std::jthread writer([&] {
    for (std::uint64_t i = 0; i < kFrames; ++i) {
      const std::vector<std::byte> body(body_bytes(i), static_cast<std::byte>(i));
      EXPECT_TRUE(waits_for([&] { return end_0_->write(head(i), body); }));
    }
  });
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(comes(*end_1_)) << i;
    const FrameBytes frame = end_1_->front();
    EXPECT_EQ(number(frame), i);
    EXPECT_EQ(frame.body.size(), body_bytes(i));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame.body.data()) % Link::kBodyAlignment, 0u);
    EXPECT_TRUE(std::ranges::all_of(frame.body, [&](std::byte byte) { return byte == static_cast<std::byte>(i); }));
    end_1_->pop();
  }
  EXPECT_TRUE(end_1_->front().empty());
  EXPECT_THAT(scratch_.entries(), UnorderedElementsAre("here-0", "here-1"));
}

TEST_F(FolderLink, HasRoomForSoManyFrames) {
  EXPECT_EQ(fill({}), folder::FolderLink::kMostFrames);
  expect_room_for_one_more_once_one_was_used({});
}

TEST_F(FolderLink, HasRoomForSoManyBytes) {
  const std::vector<std::byte> body(end_0_->most_body_bytes());
  const std::uint64_t written = fill(body);
  const std::size_t frame_bytes = body.size() + Link::kHeadBytes;
  EXPECT_LE(written * frame_bytes, folder::FolderLink::kMostBytes);
  EXPECT_GT((written + 1) * frame_bytes, folder::FolderLink::kMostBytes);
  EXPECT_GE(written, 4u);  // so that reader and writer work at the same time
  expect_room_for_one_more_once_one_was_used(body);
}

TEST_F(FolderLink, WhatWasWrittenBeforeTheEndStillArrives) {
  EXPECT_TRUE(end_0_->write(head(1), {}));
  EXPECT_TRUE(end_0_->write(head(2), {}));
  end_0_.reset();
  ASSERT_TRUE(comes(*end_1_));
  for (std::uint64_t i : {1u, 2u}) {
    ASSERT_TRUE(comes(*end_1_));
    EXPECT_FALSE(end_1_->closed());
    EXPECT_EQ(number(end_1_->front()), i);
    end_1_->pop();
  }
  EXPECT_EQ(end_of(*end_1_), "has closed its link: it has left, or gave this rank up");
  EXPECT_FALSE(end_1_->stirred());
  EXPECT_TRUE(end_1_->write(head(1), {})) << "who writes to one that is gone must not wait for room";
}

TEST_F(FolderLink, NoticesAPeerThatLeft) {
  EXPECT_TRUE(end_0_->write(head(1), {}));
  here_0_.reset();
  ASSERT_TRUE(comes(*end_1_));
  end_1_->pop();
  EXPECT_EQ(end_of(*end_1_), "has left");
}

// A file that nobody has locked is what the system makes of a killed process's.
TEST_F(FolderLink, NoticesAPeerWhoseProcessDied) {
  EXPECT_TRUE(end_0_->write(head(1), {}));
  std::filesystem::rename(scratch_.write("unlocked", ""), here(0));
  ASSERT_TRUE(comes(*end_1_));
  end_1_->pop();
  EXPECT_EQ(end_of(*end_1_), "has died: its process has ended");
}

TEST_F(FolderLink, AFrameThatIsNoneEndsTheLinkNamingTheFile) {
  scratch_.write("1-0-0.new", "too short");
  std::filesystem::rename(scratch_ / "1-0-0.new", scratch_ / "1-0-0");
  EXPECT_EQ(end_of(*end_0_), "cannot be heard: " + (scratch_ / "1-0-0").string() + " has 9 bytes, which no frame has");
}

}  // namespace
}  // namespace tutti
