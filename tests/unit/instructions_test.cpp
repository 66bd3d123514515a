#include <tutti/kernels/instructions.hpp>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(KernelInstructions, AreTheWidestUnlessSetOtherwise) {
  const std::vector<std::string_view> available = available_kernel_instructions();
  EXPECT_EQ(kernel_instructions(), available.front());
  EXPECT_EQ(available.back(), "baseline");
  for (std::string_view name : available) {
    use_kernel_instructions(name);
    EXPECT_EQ(kernel_instructions(), name);
  }
  use_kernel_instructions(available.front());
}

TEST(KernelInstructions, NamesTheAvailableOnesWhenRefusing) {
  const std::string_view before = kernel_instructions();
  for (std::string_view available : available_kernel_instructions())
    EXPECT_THAT([] { use_kernel_instructions("mmx"); }, ThrowsMessage<UsageError>(HasSubstr(std::string(available))));
  EXPECT_EQ(kernel_instructions(), before);
}

TEST(KernelInstructions, AreChosenOnceByAnyThread) {
  std::vector<std::string_view> chosen(4);
  {
    std::vector<std::jthread> threads;
    for (std::string_view& choice : chosen) threads.emplace_back([&choice] { choice = kernel_instructions(); });
  }
  for (std::string_view choice : chosen) EXPECT_EQ(choice, chosen.front());
}

}  // namespace
}  // namespace tutti
