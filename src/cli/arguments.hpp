// The values that options take, read so that every mistake is one plain sentence.
//
//   std::vector<int> counts = parse_ranks("--ranks", ranks);  // "2,4"
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/bytes.hpp>

namespace tutti::cli {

// "a,b,c" in parts; an empty part is a UsageError naming `option`.
std::vector<std::string> parse_list(std::string_view option, std::string_view text);

// Lists of numbers from 1 to `most`, of rank counts and of sizes ("1KiB,4MiB"); each UsageError names `option`.
std::vector<int> parse_counts(std::string_view option, std::string_view text, int most);
std::vector<int> parse_ranks(std::string_view option, std::string_view text);
std::vector<Bytes> parse_sizes(std::string_view option, std::string_view text);

// A size that a message or a command line can carry on: "1024,4194304".
std::string join_sizes(std::span<const Bytes> sizes);

// One of `names`; otherwise a UsageError naming `option`, all names, and the nearest.
std::size_t parse_choice(std::string_view option, std::string_view text, std::span<const std::string_view> names);

}  // namespace tutti::cli
