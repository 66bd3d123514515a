// The options of something in a run file, as what they are for reads them: an operator those of a node, a loss its own.
// Every key that is asked for is known; at the end others are refused, with the nearest known one. A string, where a
// name alone stands for an object with a name, has no options.
//
//   const std::int64_t units = options.integer("units", {.min = 1});
//   const bool bias = options.boolean("bias", true);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/base/json.hpp>
#include <tutti/base/shape.hpp>

namespace tutti {

// The largest size that an option may name.
inline constexpr std::int64_t kMostSize = 1'000'000'000;

class Options {
 public:
  explicit Options(JsonValue object)
      : object_(std::move(object)), asked_(std::make_shared<std::vector<std::string>>()) {}

  // Those without a default must be there.
  std::int64_t integer(std::string_view key, IntegerRange range) const;
  std::int64_t integer(std::string_view key, IntegerRange range, std::int64_t otherwise) const;
  double number(std::string_view key, NumberRange range, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string choice(std::string_view key, const std::vector<std::string>& names, std::string_view otherwise) const;
  // So many sizes: a list of them, or one number for all.
  std::vector<std::int64_t> sizes(std::string_view key, std::size_t count, IntegerRange range) const;
  std::vector<std::int64_t> sizes(std::string_view key, std::size_t count, IntegerRange range,
                                  std::int64_t otherwise) const;
  // Any other kind of value; nothing where the key is not there.
  std::optional<JsonValue> find(std::string_view key) const;
  JsonValue at(std::string_view key) const;

  // A UsageError at the object's place.
  UsageError error(std::string_view what) const { return object_.error(what); }
  const JsonValue& object() const { return object_; }

  void refuse_other_keys(std::vector<std::string> known) const;

 private:
  JsonValue object_;
  std::shared_ptr<std::vector<std::string>> asked_;  // by all copies
};

}  // namespace tutti
