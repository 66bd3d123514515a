// What somebody who wrote a name wrong may have meant.
//
//   nearest_name("batchsize", {"source", "batch_size"});   // "batch_size"
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// The one of `names` nearest to `name` in spelling, if any is near enough to be what was meant.
std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& names);

}  // namespace tutti
