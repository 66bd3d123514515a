#include <tutti/base/parameter_store.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <support/scratch_folder.hpp>
#include <support/usage_error.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/safetensors.hpp>

namespace tutti {
namespace {

using testing::ScratchFolder;
using testing::usage_error;

ParameterSet set_of(std::int64_t number, std::int64_t length = 5) {
  ParameterSet set;
  const std::vector<float> floats(static_cast<std::size_t>(length), static_cast<float>(number) + 0.5F);
  set.add("count", {}, std::span(&number, 1));
  set.add({.name = "none", .shape = {0, 3}});
  set.add("w", {length}, floats);
  return set;
}

TEST(ParameterStore, GivesBackWhatWasPutInAndNamesNoFile) {
  const ScratchFolder folder;
  ParameterStore store(folder.path());
  EXPECT_TRUE(store.get(3).empty());
  for (std::int64_t number = 0; number < 50; ++number) store.put(number, set_of(number));
  store.put(7, set_of(70));      // in place
  store.put(8, set_of(80, 99));  // of another layout
  store.put(9, ParameterSet());
  EXPECT_EQ(store.size(), 50U);
  for (std::int64_t number = 0; number < 50; ++number) {
    const ParameterSet expected = number == 7   ? set_of(70)
                                  : number == 8 ? set_of(80, 99)
                                  : number == 9 ? ParameterSet()
                                                : set_of(number);
    EXPECT_TRUE(store.get(number) == expected) << number;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  store.clear();
  EXPECT_TRUE(store.get(7).empty());
  store.put(7, set_of(7));
  EXPECT_TRUE(store.get(7) == set_of(7));
}

TEST(ParameterStore, GivesArraysInTheOrderOfTheirNames) {
  ParameterStore store;
  ParameterSet set;
  for (const char* name : {"b", "c", "a"}) set.add({.name = name, .shape = {2}});
  store.put(0, set);
  for (const NamedArray& array : set) store.add(1, array.layout(), array.bytes());
  for (const std::int64_t number : {0, 1})
    EXPECT_EQ(store.get(number).names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_THROW(store.add(1, set[0].layout(), set[0].bytes()), UsageError);
}

TEST(ParameterStore, TakesAndGivesFromSeveralThreads) {
  ParameterStore store;
  std::vector<std::thread> threads;
  for (std::int64_t first = 0; first < 4; ++first) {
    threads.emplace_back([&store, first] {
      for (int round = 0; round < 20; ++round) {
        for (std::int64_t number = first; number < 40; number += 4) {
          store.put(number, set_of(number + round, 1 + number % 3));
          EXPECT_TRUE(store.get(number) == set_of(number + round, 1 + number % 3));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.size(), 40U);
}

TEST(ParameterStore, GoesThroughAFileArrayByArray) {
  const ScratchFolder folder;
  ParameterStore store;
  for (const std::int64_t number : {2, 0, 11}) store.put(number, set_of(number));
  const auto file = folder.path() / "all.safetensors";
  ParameterSet own;
  own.add({.name = "w", .shape = {2}});
  write_safetensors(file, own, {.checksum = true, .more = store.on_demand("client/")});

  const ParameterSet all = read_safetensors(file, {.require_checksum = true}).parameters;
  EXPECT_EQ(all.names(), (std::vector<std::string>{"w", "client/0/count", "client/0/none", "client/0/w",
                                                   "client/2/count", "client/2/none", "client/2/w", "client/11/count",
                                                   "client/11/none", "client/11/w"}));
  EXPECT_EQ(all.at("client/11/count").values<std::int64_t>()[0], 11);

  ParameterStore again;
  const SafetensorsFile read =
      read_safetensors(file, {.is_aside = [](const std::string& name) { return name.starts_with("client/2/"); },
                              .take_aside =
                                  [&](const ParameterLayout& layout, std::span<const std::byte> bytes) {
                                    again.add(2, {layout.name.substr(9), layout.shape, layout.type}, bytes);
                                  }});
  EXPECT_EQ(read.parameters.size(), 7U);
  EXPECT_TRUE(again.get(2) == set_of(2));  // in whatever order they came
  EXPECT_EQ(usage_error([&] { again.add(2, {.name = "w", .shape = {1}}, {}); }), "there is an array \"w\" already");

  EXPECT_EQ(usage_error([&] { write_safetensors(file, all, {.more = store.on_demand("client/")}); }),
            "cannot write " + file.string() + ": there is an array \"client/0/count\" already");
}

TEST(ParameterStore, SaysWhereItCannotWrite) {
  const ScratchFolder folder;
  const auto taken = folder.path() / "file";
  std::ofstream(taken) << "text";
  ParameterStore store(taken / "in");
  try {
    store.put(0, set_of(0));
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "cannot make a temporary file in " + (taken / "in").string() + ": Not a directory");
  }
}

}  // namespace
}  // namespace tutti
