// Why something failed, in one line: of a traceback its last one, otherwise the first, without libtorch's own trace.
#pragma once

#include <exception>
#include <string>

namespace tutti::detail {

std::string cause_of(const std::exception& error);

}  // namespace tutti::detail
