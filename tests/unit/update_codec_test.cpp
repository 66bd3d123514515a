#include <tutti/coordinate/update_codec.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>
#include <support/usage_error.hpp>
#include <tutti/base/random.hpp>

namespace tutti {
namespace {

using testing::usage_error;

ParameterSet some_change(std::uint64_t seed) {
  RandomStream draws({seed});
  ParameterSet set;
  std::vector<float> weights(300);
  for (float& number : weights) number = static_cast<float>(draws.normal());
  std::vector<double> wide(40);
  for (double& number : wide) number = draws.normal();
  const std::vector<float> statistics = {1, 2, 3};
  const std::vector<std::int64_t> counter = {7};
  set.add("weight", {30, 10}, weights);
  set.add("wide", {40}, wide);
  set.add("running_mean", {3}, statistics);
  set.add("counter", {}, counter);
  return set;
}

const std::vector<bool> kTrained = {true, true, false, false};

TEST(UpdateCodec, GivesBackWhatItWasGivenWithoutCompression) {
  const ParameterSet change = some_change(1);
  EXPECT_EQ(decode_change(encode_change(change, NoCompression{}), change), change);
}

// What has arrived in all rounds is what was to be sent in all of them, but for what remains.
TEST(UpdateCodec, LosesNothingOverTheRounds) {
  for (const Compression& compression : std::vector<Compression>{TopK{.fraction = 0.1}, Float16{}, BFloat16{}}) {
    SCOPED_TRACE(to_string(compression));
    ParameterSet remains;
    std::vector<double> wanted(300);
    std::vector<double> arrived(300);
    for (std::uint64_t round = 0; round < 20; ++round) {
      const ParameterSet change = some_change(round);
      const auto message = encode_change(change, compression, {.remains = &remains, .is_trained = kTrained});
      const ParameterSet decoded = decode_change(message, change);
      EXPECT_LT(message.size(), change.bytes());
      EXPECT_EQ(decoded.at("running_mean").values<float>()[2], 3);
      EXPECT_EQ(decoded.at("counter").values<std::int64_t>()[0], 7);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        wanted[i] += change[0].values<float>()[i];
        arrived[i] += decoded[0].values<float>()[i];
      }
    }
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(arrived[i] + remains[0].values<float>()[i], wanted[i], 1e-4);
  }
}

TEST(UpdateCodec, SendsTheLargestNumbersAndTheirPlaces) {
  ParameterSet change;
  const std::vector<float> numbers = {0.5, -4, 0, 3, -1};
  change.add("a", {5}, numbers);
  ParameterSet remains;
  const auto message = encode_change(change, TopK{.fraction = 0.4}, {.remains = &remains});
  EXPECT_EQ(message.size(), 1 + 8 + 2 * (4 + 4));
  const ParameterSet decoded = decode_change(message, change);
  const auto sent = decoded[0].values<float>();
  EXPECT_EQ(std::vector<float>(sent.begin(), sent.end()), (std::vector<float>{0, -4, 0, 3, 0}));
  const auto left = remains[0].values<float>();
  EXPECT_EQ(std::vector<float>(left.begin(), left.end()), (std::vector<float>{0.5, 0, 0, 0, -1}));
}

// A message of a client's is what nobody trusts: whichever byte is wrong, it is refused or is a change.
TEST(UpdateCodec, RefusesMessagesThatAreNone) {
  const ParameterSet layout = some_change(1);
  for (const Compression& compression :
       std::vector<Compression>{NoCompression{}, TopK{.fraction = 0.1}, Float16{}, BFloat16{}}) {
    const auto message = encode_change(layout, compression, {.is_trained = kTrained});
    for (std::size_t length = 0; length < message.size(); ++length) {
      const std::vector<std::byte> cut(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_NE(usage_error([&] { (void)decode_change(cut, layout); }), "(no error)") << length;
    }
    auto longer = message;
    longer.push_back(std::byte{0});
    EXPECT_EQ(usage_error([&] { (void)decode_change(longer, layout); }), "a message of changes has 1 bytes too many");
    RandomStream draws({5});
    for (int i = 0; i < 500; ++i) {
      auto damaged = message;
      damaged[static_cast<std::size_t>(draws.below(damaged.size()))] = static_cast<std::byte>(draws.below(256));
      try {
        EXPECT_TRUE(decode_change(damaged, layout).same_layout(layout));
      } catch (const UsageError&) {
      }
    }
  }
}

TEST(UpdateCodec, RefusesWhatIsNotForOneClient) {
  const ParameterSet change = some_change(1);
  EXPECT_NE(usage_error([&] { (void)encode_change(change, PowerSgd{}); }).find("PowerSgd"), std::string::npos);
  ParameterSet other;
  other.add({.name = "x", .shape = {2}});
  EXPECT_NE(usage_error([&] { (void)encode_change(change, Float16{}, {.remains = &other}); }).find("does not fit"),
            std::string::npos);
}

TEST(UpdateCodec, TellsBeforehandHowManyBytesItTakes) {
  const ParameterSet change = some_change(2);
  for (const Compression& compression : {Compression(NoCompression{}), Compression(Float16{}), Compression(BFloat16{}),
                                         Compression(TopK{.fraction = 0.07}), Compression(TopK{.fraction = 1})}) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < change.size(); ++i)
      bytes += encoded_bytes(change[i].layout(), compression, kTrained[i]);
    EXPECT_EQ(bytes, encode_change(change, compression, {.is_trained = kTrained}).size());
  }
}

}  // namespace
}  // namespace tutti
