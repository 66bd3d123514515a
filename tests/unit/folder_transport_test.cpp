#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/scratch_folder.hpp"
#include "transport/folder_link.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::ScratchFolder;
using ::testing::UnorderedElementsAre;

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
