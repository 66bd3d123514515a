#include "cli/process.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <unistd.h>

namespace tutti::cli {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

Command shell(const std::string& script) { return {.words = {"sh", "-c", script}, .environment = {"GREETING=hello"}}; }

pid_t read_pid(const std::filesystem::path& file) {
  pid_t pid = -1;
  std::ifstream(file) >> pid;
  return pid;
}

bool exists(pid_t pid) { return ::kill(pid, 0) == 0; }

TEST(Process, GivesBackWhatAProgramPrinted) {
  Signals signals;
  const Output output = run(shell("echo $GREETING; echo trouble >&2"), 1min, signals);
  EXPECT_EQ(output.text, "hello\n");
  EXPECT_EQ(output.errors, "trouble\n");
}

TEST(Process, GivesBackMoreThanAPipeHolds) {
  Signals signals;
  EXPECT_EQ(run(shell("head -c 1000000 /dev/zero"), 1min, signals).text.size(), 1'000'000u);
}

TEST(Process, TellsTheMostMemoryThatAProgramHeld) {
  Signals signals;
  const Output small = run(shell("true"), 1min, signals);
  EXPECT_GT(small.peak_memory, Bytes{0});
  // dd holds a block of 64 MiB; the shell waits for it, and is the one that was started.
  const Output large = run(shell("dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null; true"), 1min, signals);
  EXPECT_GE(large.peak_memory, Bytes{64 << 20});
  EXPECT_LT(large.peak_memory.value, small.peak_memory.value + (80 << 20));
}

TEST(Process, TellsHowAProgramFailedAndWhatItSaid) {
  Signals signals;
  EXPECT_THAT([&] { run(shell("echo no luck >&2; exit 3"), 1min, signals); },
              ThrowsMessage<Error>(AllOf(HasSubstr("ended with exit code 3"), HasSubstr("no luck"))));
  EXPECT_THAT([&] { run(shell("kill -9 $$"), 1min, signals); }, ThrowsMessage<Error>(HasSubstr("ended by signal 9")));
  EXPECT_THAT([&] { run({.words = {"./no such program"}, .environment = {}}, 1min, signals); },
              ThrowsMessage<Error>(HasSubstr("cannot start ./no such program")));
}

TEST(Process, EndsAProgramThatIsLateWithAllItStarted) {
  adopt_orphans();
  Signals signals;
  const ScratchFolder scratch;
  const std::filesystem::path file = scratch.path() / "pid";
  // The inner one would stay: it does not listen when asked to end.
  const std::string inner = "trap '' TERM; echo $$ > '" + file.string() + "'; while :; do sleep 1; done";
  EXPECT_THAT([&] { run(shell("sh -c \"" + inner + "\" & wait"), 500ms, signals); },
              ThrowsMessage<Error>(HasSubstr("did not end within 500 ms")));
  end_orphans();
  const pid_t pid = read_pid(file);
  ASSERT_GT(pid, 0);
  EXPECT_FALSE(exists(pid));
}

TEST(Process, OneFailureAmongManyIsToldAtOnce) {
  Signals signals;
  std::vector<Child> children;
  children.emplace_back(shell("exec sleep 100"));
  children.emplace_back(shell("exit 4"));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT([&] { wait_for_all(children, signals); },
              ThrowsMessage<Error>(HasSubstr("process 1 ended with exit code 4")));
  children.clear();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST(Process, AnInterruptionEndsTheWait) {
  Signals signals;
  // Children do not get the interruption, which is sent to this process alone.
  EXPECT_THROW(run(shell("kill -TERM $PPID; exec sleep 100"), 1min, signals), Interrupted);
}

TEST(Process, GetsTheEnvironmentThatItIsGiven) {
  Signals signals;
  ::setenv("TUTTI_TEST_KEPT", "kept", 1);
  ::setenv("TUTTI_TEST_REMOVED", "there", 1);
  ::setenv("GREETING", "ours", 1);
  Command command = shell("echo $GREETING $TUTTI_TEST_KEPT ${TUTTI_TEST_REMOVED-gone}");
  command.without = {"TUTTI_TEST_REMOVED", "TUTTI_TEST_NEVER_SET"};
  EXPECT_EQ(run(command, 1min, signals).text, "hello kept gone\n");
}

TEST(Process, TellsItsExitCodeAsAShellDoes) {
  const Signals signals;
  const auto code = [](const std::string& script) {
    Child child(shell(script));
    const Deadline deadline = Deadline::after(1min);
    while (child.running() && !deadline.passed()) std::this_thread::yield();
    return child.exit_code();
  };
  EXPECT_EQ(code("exit 0"), 0);
  EXPECT_EQ(code("exit 200"), 200);
  EXPECT_EQ(code("kill -9 $$"), 137);
}

TEST(Process, IsEndedWithItsGroup) {
  adopt_orphans();
  Signals signals;
  const ScratchFolder scratch;
  const std::filesystem::path file = scratch.path() / "pid";
  {
    Child child(shell("sleep 1000 & echo $! > '" + file.string() + "'"), {}, {.own_group = true});
    const Deadline deadline = Deadline::after(1min);
    while (child.running() && !deadline.passed()) std::this_thread::yield();
    EXPECT_TRUE(child.problem().empty());
    EXPECT_TRUE(exists(read_pid(file)));
    // Its number stays its own, though it has ended.
    EXPECT_TRUE(exists(child.pid()));
  }
  const pid_t pid = read_pid(file);
  ASSERT_GT(pid, 0);
  // It was killed before we look for it, so this only lets go of it.
  end_orphans();
  EXPECT_FALSE(exists(pid));
}

TEST(Signals, AreTakenInsteadOfThrown) {
  Signals signals({SIGUSR1, SIGUSR2});
  EXPECT_TRUE(signals.taken().empty());
  ::kill(::getpid(), SIGUSR2);
  ::kill(::getpid(), SIGUSR1);
  EXPECT_THAT(signals.taken(), testing::UnorderedElementsAre(SIGUSR1, SIGUSR2));
  EXPECT_TRUE(signals.taken().empty());
}

TEST(ScratchFolder, GoesAwayWithWhatIsInIt) {
  std::filesystem::path path;
  {
    const ScratchFolder scratch;
    path = scratch.path();
    std::ofstream(path / "file") << "content";
    EXPECT_TRUE(std::filesystem::exists(path / "file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace tutti::cli
