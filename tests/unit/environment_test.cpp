#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/transport/environment.hpp>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

using Variables = std::map<std::string, std::string>;

std::optional<ProcessPlace> discover(const Variables& variables) {
  return discover_place([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorchrun{{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"TUTTI_STORE", "node1:29500"}};
const Variables kMpich{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"TUTTI_STORE", "node1:29500"}};
const Variables kSlurm{
    {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"TUTTI_STORE", "node1:29500"}};

struct Launcher {
  std::string name;
  Variables variables;
  std::string rank, size, local_rank;
  std::vector<std::string> address;
};

const std::vector<Launcher> kLaunchers{
    {"torchrun", kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", {"MASTER_ADDR", "MASTER_PORT"}},
    {"mpirun", kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", {"TUTTI_STORE"}},
    {"mpirun", kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", {"TUTTI_STORE"}},
    {"srun", kSlurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", {"TUTTI_STORE"}},
};

TEST(DiscoverPlace, FindsNothingWhereNobodySaysSo) {
  EXPECT_FALSE(discover({}));
  EXPECT_FALSE(discover({{"TUTTI_STORE", "node1:1"}, {"TUTTI_HEARTBEAT", "3"}, {"LOCAL_RANK", "1"}}));
}

TEST(DiscoverPlace, ReadsEveryLaunchersVariables) {
  for (const Launcher& launcher : kLaunchers) {
    SCOPED_TRACE(launcher.rank);
    const std::optional<ProcessPlace> place = discover(launcher.variables);
    ASSERT_TRUE(place);
    EXPECT_EQ(place->rank, Rank{2});
    EXPECT_EQ(place->size, 4);
    EXPECT_EQ(place->local_rank, 2);
    EXPECT_EQ(place->store_host, "node1");
    EXPECT_EQ(place->store_port, 29500);
    EXPECT_FALSE(place->store_is_served);
    EXPECT_EQ(place->store_prefix, "");
    EXPECT_EQ(place->launcher, launcher.name);
    EXPECT_FALSE(place->interface);
    EXPECT_FALSE(place->shared_memory);
    EXPECT_FALSE(place->heartbeat);
    EXPECT_EQ(discover(with(launcher.variables, {{launcher.local_rank, "1"}}))->local_rank, 1);
  }
}

TEST(DiscoverPlace, NamesAllThatIsMissing) {
  for (const Launcher& launcher : kLaunchers) {
    std::vector<std::string> names{launcher.rank, launcher.size};
    names.insert(names.end(), launcher.address.begin(), launcher.address.end());
    // Every choice of variables that are left out, except that of none, and those which leave nothing of the
    // launcher's.
    for (unsigned left_out = 1; left_out < 1u << names.size(); ++left_out) {
      Variables variables = launcher.variables;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if ((left_out >> i & 1) != 0) variables.erase(names[i]);
      }
      SCOPED_TRACE(fmt::format("{}, left out {:b}", launcher.rank, left_out));
      const bool says_rank = variables.contains(launcher.rank) || variables.contains(launcher.size);
      const bool says_address = variables.contains("MASTER_ADDR") || variables.contains("MASTER_PORT");
      if (!says_rank && !says_address) {
        EXPECT_FALSE(discover(variables));
        continue;
      }
      // Who knows his rank may meet the others in a folder.
      const bool is_refused = !variables.contains(launcher.rank) || !variables.contains(launcher.size);
      std::string told;
      try {
        told = discover(variables)->why_no_store;
        EXPECT_FALSE(is_refused) << "nothing was thrown";
      } catch (const UsageError& error) {
        EXPECT_TRUE(is_refused) << error.what();
        told = error.what();
      }
      EXPECT_THAT(told, HasSubstr("the environment is " + launcher.name + "'s, but "));
      // RANK is in OMPI_COMM_WORLD_RANK too, so names are told apart by the blank before them.
      for (std::size_t i = 0; i < names.size(); ++i) {
        if ((left_out >> i & 1) != 0) {
          EXPECT_THAT(told, HasSubstr(" " + names[i]));
        } else {
          EXPECT_THAT(told, Not(HasSubstr(" " + names[i])));
        }
      }
    }
  }
  EXPECT_THAT(
      [] {
        discover({{"RANK", "0"}, {"MASTER_ADDR", "node1"}});
      },
      ThrowsMessage<UsageError>("the environment is torchrun's, but WORLD_SIZE and MASTER_PORT are missing"));
}

TEST(DiscoverPlace, OneProcessNeedsNoAddress) {
  for (const Launcher& launcher : kLaunchers) {
    SCOPED_TRACE(launcher.rank);
    Variables variables = with(launcher.variables, {{launcher.rank, "0"}, {launcher.size, "1"}});
    EXPECT_EQ(discover(variables)->store_port, 29500);
    for (const std::string& name : launcher.address) {
      variables.erase(name);
      const std::optional<ProcessPlace> place = discover(variables);
      ASSERT_TRUE(place);
      EXPECT_EQ(place->size, 1);
      EXPECT_EQ(place->store_host, "");
      EXPECT_EQ(place->store_port, 0);
    }
  }
}

TEST(DiscoverPlace, TorchrunsWinOverMpirunsAndTheseOverSruns) {
  const Variables torchrun = with(kTorchrun, {{"RANK", "1"}});
  const Variables slurm = with(kSlurm, {{"SLURM_PROCID", "3"}});
  EXPECT_EQ(discover(with(kOpenMpi, torchrun))->rank, Rank{1});
  EXPECT_EQ(discover(with(slurm, torchrun))->rank, Rank{1});
  EXPECT_EQ(discover(with(slurm, kOpenMpi))->rank, Rank{2});
  EXPECT_EQ(discover(with(slurm, kMpich))->rank, Rank{2});
  // An address alone is no rank: a script may have set it for all.
  for (const Variables& variables : {kOpenMpi, kMpich, kSlurm}) {
    const std::optional<ProcessPlace> place = discover(with(variables, {{"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}}));
    EXPECT_NE(place->launcher, "torchrun");
    EXPECT_EQ(place->store_host, "node1");
  }
  EXPECT_THAT(
      [] {
        discover(with(kOpenMpi, {{"RANK", "1"}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("torchrun's, but WORLD_SIZE, MASTER_ADDR and MASTER_PORT are")));
}

TEST(DiscoverPlace, NamesWhatIsEmptyAmongWhatIsMissing) {
  EXPECT_THAT(
      [] {
        discover({{"RANK", ""}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}});
      },
      ThrowsMessage<UsageError>(HasSubstr("torchrun's, but RANK (set, but empty) and WORLD_SIZE are missing")));
}

TEST(DiscoverPlace, ABatchScriptIsNoRank) {
  Variables variables = kSlurm;
  variables.erase("SLURM_STEP_ID");
  EXPECT_FALSE(discover(variables));
  EXPECT_FALSE(discover(with(kSlurm, {{"SLURM_STEP_ID", "4294967291"}})));  // sbatch
  EXPECT_FALSE(discover(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})));  // salloc
  EXPECT_FALSE(discover({{"SLURM_STEP_ID", "0"}}));
}

TEST(DiscoverPlace, KnowsAStoreThatTheLauncherServes) {
  std::optional<ProcessPlace> place = discover(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_TRUE(place->store_is_served);
  EXPECT_EQ(place->store_prefix, "/worker/attempt_0");
  EXPECT_EQ(place->launcher, "torchrun");
  place = discover(with(
      kTorchrun,
      {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "3"}, {"TUTTI_LAUNCHER", "launch"}}));
  EXPECT_EQ(place->store_prefix, "/worker/attempt_3");
  EXPECT_EQ(place->launcher, "tutti launch");
  for (const char* value : {"False", "true", "1", ""}) {
    place = discover(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", value}, {"TORCHELASTIC_RESTART_COUNT", "3"}}));
    EXPECT_FALSE(place->store_is_served) << value;
    EXPECT_EQ(place->store_prefix, "") << value;
  }
}

void expect_refused(const Variables& variables, const std::string& sentence) {
  EXPECT_THAT([&] { discover(variables); }, ThrowsMessage<UsageError>(HasSubstr(sentence)));
}

TEST(DiscoverPlace, RefusesNumbersThatCannotBe) {
  for (const Launcher& launcher : kLaunchers) {
    for (const std::string value : {"", " ", "x", "1x", " 1", "1 ", "+1", "1.0", "-1", "4", "99999999999", "0x1"}) {
      SCOPED_TRACE(launcher.rank + "=" + value);
      const std::string reason =
          fmt::format("expected a whole number from 0 to 3 ({} is 4), found '{}'", launcher.size, value);
      expect_refused(with(launcher.variables, {{launcher.rank, value}}), launcher.rank + ": " + reason);
      expect_refused(with(launcher.variables, {{launcher.local_rank, value}}), launcher.local_rank + ": " + reason);
    }
    for (const std::string value : {"", "x", "4x", " 4", "0", "-4", "99999999999"}) {
      SCOPED_TRACE(launcher.size + "=" + value);
      expect_refused(with(launcher.variables, {{launcher.size, value}}),
                     fmt::format("{}: expected a whole number from 1 on, found '{}'", launcher.size, value));
    }
  }
  for (const std::string value : {"", "x", "1x", "0", "-1", "65536"}) {
    expect_refused(with(kTorchrun, {{"MASTER_PORT", value}}),
                   fmt::format("MASTER_PORT: expected a whole number from 1 to 65535, found '{}'", value));
    expect_refused(with(kOpenMpi, {{"TUTTI_STORE", "node1:" + value}}), "TUTTI_STORE: expected a host and a port");
  }
  expect_refused(with(kTorchrun, {{"MASTER_ADDR", ""}}), "MASTER_ADDR: expected a host name or an address, found ''");
  expect_refused(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "one"}}), "TORCHELASTIC_RESTART_COUNT: expected");
}

TEST(DiscoverPlace, ReadsTheStoresAddress) {
  const auto store = [](const std::string& text) { return *discover(with(kSlurm, {{"TUTTI_STORE", text}})); };
  EXPECT_EQ(store("[::1]:29500").store_host, "::1");
  EXPECT_EQ(store("[::1]:29500").store_port, 29500);
  EXPECT_EQ(store("10.0.0.1:65535").store_host, "10.0.0.1");
  EXPECT_EQ(store("a.host:1").store_port, 1);
  for (const std::string text : {"", ":", "host", "host:", ":1", "::1:29500", "[::1]", "[]:1", "[::1:1", "host:1 "}) {
    SCOPED_TRACE(text);
    expect_refused(with(kSlurm, {{"TUTTI_STORE", text}}), "TUTTI_STORE: expected a host and a port from 1 to 65535");
  }
}

TEST(DiscoverPlace, ReadsWhatTuttiIsToldWithEveryLauncher) {
  for (const Launcher& launcher : kLaunchers) {
    SCOPED_TRACE(launcher.rank);
    const auto place = [&](const Variables& more) { return *discover(with(launcher.variables, more)); };
    EXPECT_EQ(place({{"TUTTI_INTERFACE", "eth0"}}).interface, "eth0");
    EXPECT_EQ(place({{"TUTTI_SHARED_MEMORY", "0"}}).shared_memory, false);
    EXPECT_EQ(place({{"TUTTI_SHARED_MEMORY", "1"}}).shared_memory, true);
    EXPECT_EQ(place({{"TUTTI_HEARTBEAT", "30"}}).heartbeat, Duration(30s));
    EXPECT_EQ(place({{"TUTTI_HEARTBEAT", "0.5"}}).heartbeat, Duration(500ms));
    expect_refused(with(launcher.variables, {{"TUTTI_INTERFACE", ""}}), "TUTTI_INTERFACE: expected");
    for (const std::string value : {"", "yes", "2", "01"})
      expect_refused(with(launcher.variables, {{"TUTTI_SHARED_MEMORY", value}}),
                     fmt::format("TUTTI_SHARED_MEMORY: expected 0 or 1, found '{}'", value));
    for (const std::string value : {"", "0", "-1", "x", "1s", "nan", "inf", "1e300", "0.0000001"})
      expect_refused(
          with(launcher.variables, {{"TUTTI_HEARTBEAT", value}}),
          fmt::format("TUTTI_HEARTBEAT: expected a number of seconds from 0.001 to 1000000, found '{}'", value));
  }
}

TEST(DiscoverPlace, LooksAtNoVariableThatItDoesNotName) {
  const std::vector<std::string> listed = variable_names();
  const std::set<std::string> names(listed.begin(), listed.end());
  EXPECT_EQ(names.size(), listed.size());
  for (const Launcher& launcher : kLaunchers) {
    discover_place([&](const char* name) -> std::optional<std::string> {
      EXPECT_TRUE(names.contains(name)) << name;
      const auto found = launcher.variables.find(name);
      return found == launcher.variables.end() ? std::nullopt : std::optional(found->second);
    });
  }
  for (const std::string& name : launcher_variables()) EXPECT_TRUE(names.contains(name)) << name;
}

}  // namespace
}  // namespace tutti
