#include <tutti/base/atomic_file.hpp>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <support/usage_error.hpp>

namespace tutti {
namespace {

using testing::content_of;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::ExitedWithCode;
using ::testing::IsEmpty;
using ::testing::KilledBySignal;
using testing::ScratchFolder;
using ::testing::UnorderedElementsAre;
using testing::usage_error;

// For processes of their own, which EXPECT_EXIT makes: prints what the call complains about, and ends.
template <typename Call>
[[noreturn]] void tell_error(Call&& call) {
  std::cerr << error_of(call);
  std::_Exit(0);
}

// What a full disk does, but with a signal, which is ignored, and another reason.
void limit_file_size(rlim_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(1);
}

// To root everything is permitted.
void be_nobody() {
  if (::geteuid() == 0 && ::seteuid(65534) != 0) std::_Exit(1);
}

TEST(AtomicFile, HoldsWhatWasWritten) {
  const ScratchFolder scratch;
  const std::vector<float> values(100'000, 0.5f);
  {
    AtomicFile file(scratch / "a");
    file.write("text ");
    file.write("");
    file.write(std::as_bytes(std::span(values)));
    EXPECT_EQ(file.path(), scratch / "a");
    file.commit();
  }
  const std::string content = content_of(scratch / "a");
  ASSERT_EQ(content.size(), 5 + 4 * values.size());
  EXPECT_EQ(content.substr(0, 5), "text ");
  EXPECT_EQ(std::memcmp(content.data() + 5, values.data(), 4 * values.size()), 0);
  EXPECT_THAT(scratch.entries(), ElementsAre("a"));
}

TEST(AtomicFile, IsTheOldOneUntilItIsCommitted) {
  const ScratchFolder scratch;
  write_file(scratch / "a", "old, and longer");
  AtomicFile file(scratch / "a");
  file.write("new");
  EXPECT_EQ(content_of(scratch / "a"), "old, and longer");
  file.commit();
  EXPECT_EQ(content_of(scratch / "a"), "new");
  EXPECT_THAT(scratch.entries(), ElementsAre("a"));
}

TEST(AtomicFile, LeavesNoTraceWithoutCommit) {
  const ScratchFolder scratch;
  write_file(scratch / "a", "old");
  for (const char* name : {"a", "b"}) {
    AtomicFile file(scratch / name);
    file.write("new");
    EXPECT_EQ(scratch.entries().size(), 2u);
  }
  EXPECT_THAT(scratch.entries(), ElementsAre("a"));
  EXPECT_EQ(content_of(scratch / "a"), "old");
}

TEST(AtomicFile, IsFoundWithoutAFolder) {
  const ScratchFolder scratch;
  EXPECT_EXIT(
      {
        if (::chdir(scratch.path().c_str()) != 0) std::_Exit(1);
        write_file("a", "here");
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
  EXPECT_EQ(content_of(scratch / "a"), "here");
}

TEST(AtomicFile, IsWrittenOnce) {
  const ScratchFolder scratch;
  AtomicFile file(scratch / "a");
  file.write("1");
  file.commit();
  const std::string committed = fmt::format("cannot write {}: it was committed already", (scratch / "a").string());
  EXPECT_EQ(usage_error([&] { file.write("2"); }), committed);
  EXPECT_EQ(usage_error([&] { file.commit(); }), committed);
  EXPECT_EQ(content_of(scratch / "a"), "1");
}

TEST(AtomicFile, LosesNothingWhereTheSpaceEnds) {
  const ScratchFolder scratch;
  write_file(scratch / "a", "old");
  EXPECT_EXIT(
      {
        limit_file_size(10'000);
        AtomicFile file(scratch / "a");
        const std::string text(7'000, 'x');
        file.write(text);
        const std::string first = error_of([&] { file.write(text); });
        // Nothing is left of it even before its end, and nothing more can be done with it.
        if (scratch.entries() != std::vector<std::string>{"a"}) std::_Exit(2);
        if (error_of([&] { file.write("x"); }) != first || error_of([&] { file.commit(); }) != first) std::_Exit(3);
        tell_error([&] { throw Error(first); });
      },
      ExitedWithCode(0), fmt::format("^cannot write {}: File too large$", (scratch / "a").string()));
  EXPECT_EQ(content_of(scratch / "a"), "old");
  EXPECT_THAT(scratch.entries(), ElementsAre("a"));
}

TEST(AtomicFile, NamesAFolderThatIsNotThere) {
  const ScratchFolder scratch;
  const std::filesystem::path path = scratch / "none/a";
  EXPECT_EQ(error_of([&] { write_file(path, "text"); }),
            fmt::format("cannot write {}: No such file or directory", path.string()));
  write_file(scratch / "file", "text");
  EXPECT_EQ(error_of([&] { write_file(scratch / "file/a", "text"); }),
            fmt::format("cannot write {}: Not a directory", (scratch / "file/a").string()));
  EXPECT_THAT(scratch.entries(), ElementsAre("file"));
}

TEST(AtomicFile, ReplacesNothingThatIsNoFile) {
  const ScratchFolder scratch;
  EXPECT_EQ(error_of([&] { write_file(scratch.path(), "text"); }),
            fmt::format("cannot write {}: Is a directory", scratch.path().string()));
  EXPECT_EQ(error_of([] { write_file("/dev/null", "text"); }), "cannot write /dev/null: it is not a regular file");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(AtomicFile, LosesNothingWhereItsNameIsTakenMeanwhile) {
  const ScratchFolder scratch;
  AtomicFile file(scratch / "a");
  file.write("text");
  std::filesystem::create_directory(scratch / "a");
  EXPECT_EQ(error_of([&] { file.commit(); }), fmt::format("cannot write {}: Is a directory", (scratch / "a").string()));
  EXPECT_THAT(scratch.entries(), ElementsAre("a"));
}

TEST(AtomicFile, AsksForPermission) {
  const ScratchFolder scratch;
  std::filesystem::permissions(scratch.path(), std::filesystem::perms(0777));
  write_file(scratch / "mine", "old");
  std::filesystem::permissions(scratch / "mine", std::filesystem::perms(0444));
  const std::string denied = fmt::format("^cannot write {}/(mine|more): Permission denied$", scratch.path().string());
  EXPECT_EXIT(
      {
        be_nobody();
        tell_error([&] { write_file(scratch / "mine", "new"); });
      },
      ExitedWithCode(0), denied);
  std::filesystem::permissions(scratch.path(), std::filesystem::perms(0555));
  EXPECT_EXIT(
      {
        be_nobody();
        tell_error([&] { write_file(scratch / "more", "new"); });
      },
      ExitedWithCode(0), denied);
  std::filesystem::permissions(scratch.path(), std::filesystem::perms(0777));
  EXPECT_THAT(scratch.entries(), ElementsAre("mine"));
  EXPECT_EQ(content_of(scratch / "mine"), "old");
}

TEST(AtomicFile, KeepsThePermissionsOfTheOldOne) {
  const ScratchFolder scratch;
  write_file(scratch / "a", "old");
  std::filesystem::permissions(scratch / "a", std::filesystem::perms(0640));
  write_file(scratch / "a", "new");
  EXPECT_EQ(std::filesystem::status(scratch / "a").permissions(), std::filesystem::perms(0640));
  EXPECT_EQ(content_of(scratch / "a"), "new");
}

TEST(AtomicFile, IsWrittenWhereALinkPoints) {
  const ScratchFolder scratch;
  std::filesystem::create_directory(scratch / "folder");
  write_file(scratch / "folder/a", "old");
  std::filesystem::create_symlink("folder/a", scratch / "latest");
  write_file(scratch / "latest", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(scratch / "latest"));
  EXPECT_EQ(content_of(scratch / "folder/a"), "new");
  std::filesystem::create_symlink("nowhere", scratch / "dangling");
  write_file(scratch / "dangling", "text");
  EXPECT_EQ(content_of(scratch / "dangling"), "text");
  EXPECT_THAT(scratch.entries(), UnorderedElementsAre("folder", "latest", "dangling"));
}

TEST(AtomicFile, OfAKilledProcessIsTheOldOneAndItsRestCanBeRemoved) {
  const ScratchFolder scratch;
  write_file(scratch / "a", "old");
  for (const char* name : {".tutti-7", "tutti-7-0.tmp", ".tutti-.tmpx", "b.tmp"}) write_file(scratch / name, "other");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EXIT(
        {
          AtomicFile file(scratch / "a");
          file.write("new");
          std::raise(SIGKILL);
        },
        KilledBySignal(SIGKILL), "");
  }
  EXPECT_EQ(content_of(scratch / "a"), "old");
  const std::vector<std::string> all = scratch.entries();
  EXPECT_EQ(all.size(), 8u);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), AtomicFile::is_temporary), 3);
  EXPECT_EQ(AtomicFile::remove_temporaries(scratch.path()), 3u);
  EXPECT_EQ(AtomicFile::remove_temporaries(scratch.path()), 0u);
  EXPECT_EQ(scratch.entries().size(), 5u);
  EXPECT_EQ(error_of([&] { AtomicFile::remove_temporaries(scratch / "none"); }),
            fmt::format("cannot clear {} of temporary files: No such file or directory", (scratch / "none").string()));
}

TEST(AtomicFile, LeavesTemporaryFilesOfOthersAlone) {
  const ScratchFolder scratch;
  const std::string taken = fmt::format(".tutti-{}-0.tmp", ::getpid());  // of a process of another host
  write_file(scratch / "x", "");
  std::filesystem::rename(scratch / "x", scratch / taken);
  write_file(scratch / "a", "text");
  EXPECT_THAT(scratch.entries(), UnorderedElementsAre(taken, "a"));
  EXPECT_EQ(content_of(scratch / taken), "");
}

TEST(AtomicFile, IsWholeWhileSeveralThreadsWriteIt) {
  const ScratchFolder scratch;
  write_file(scratch / "a", std::string(5'000, '0'));
  std::vector<std::thread> writers;
  for (const char letter : {'1', '2', '3'}) {
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 10; ++i) write_file(scratch / "a", std::string(5'000, letter));
    });
  }
  for (int i = 0; i < 200; ++i) {
    const std::string content = content_of(scratch / "a");
    EXPECT_EQ(content, std::string(5'000, content.empty() ? '?' : content[0]));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_THAT(scratch.entries(), ElementsAre("a"));
}

}  // namespace
}  // namespace tutti
