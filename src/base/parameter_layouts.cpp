#include <tutti/base/parameter_layouts.hpp>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace tutti {
namespace {

std::size_t words_for(std::size_t bytes) { return (bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t); }

}  // namespace

// Of each array the length of its name, its type, its dimensions, and the name in words of 8 bytes.
std::vector<std::int64_t> layout_words(const ParameterSet& set) {
  std::vector<std::int64_t> words;
  for (const NamedArray& array : set) {
    words.push_back(static_cast<std::int64_t>(array.name().size()));
    words.push_back(static_cast<std::int64_t>(array.type()));
    words.push_back(static_cast<std::int64_t>(array.shape().size()));
    words.insert(words.end(), array.shape().begin(), array.shape().end());
    const std::size_t first = words.size();
    words.resize(first + words_for(array.name().size()));
    std::memcpy(words.data() + first, array.name().data(), array.name().size());
  }
  return words;
}

ParameterSet set_with_layouts(std::span<const std::int64_t> words) {
  ParameterSet set;
  for (std::size_t at = 0; at < words.size();) {
    const auto length = static_cast<std::size_t>(words[at]);
    ParameterLayout layout{
        .name = std::string(length, '\0'), .shape = {}, .type = static_cast<DataType>(words[at + 1])};
    const auto dimensions = static_cast<std::size_t>(words[at + 2]);
    at += 3;
    layout.shape.assign(words.begin() + static_cast<std::ptrdiff_t>(at),
                        words.begin() + static_cast<std::ptrdiff_t>(at + dimensions));
    at += dimensions;
    std::memcpy(layout.name.data(), words.data() + at, length);
    at += words_for(length);
    set.add(std::move(layout));
  }
  return set;
}

}  // namespace tutti
