// Where data that was fetched lies: in a folder of its own for each source.
//
//   data_folder() / "mnist"
#pragma once

#include <filesystem>

namespace tutti {

// What TUTTI_DATA names in the environment; otherwise .cache/tutti in the home folder. A UsageError where there is
// neither.
std::filesystem::path data_folder();

}  // namespace tutti
