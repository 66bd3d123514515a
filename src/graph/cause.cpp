#include "cause.hpp"

#include <c10/util/Exception.h>

namespace tutti::detail {

std::string cause_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
  text.erase(text.find_last_not_of(" \n") + 1);
  if (text.find("Traceback") != std::string::npos) return text.substr(text.rfind('\n') + 1);
  return text.substr(0, text.find('\n'));
}

}  // namespace tutti::detail
