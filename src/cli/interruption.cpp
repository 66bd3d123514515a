#include "cli/interruption.hpp"

#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>

namespace tutti::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t received = 0;
volatile std::sig_atomic_t is_seen = 0;  // by somebody at a terminal

// A step may take a while. A second Ctrl-C ends the program. Launchers follow theirs up with a SIGTERM after a while,
// which is no second wish.
void take(int number) {
  received = number;
  for (const int other : kSignals) std::signal(other, other == number ? SIG_DFL : SIG_IGN);
  constexpr std::string_view kNotice = "\nending after what is under way; once more ends at once\n";
  if (is_seen != 0 && ::write(STDERR_FILENO, kNotice.data(), kNotice.size()) < 0) return;
}

}  // namespace

Interruption::Interruption() {
  received = 0;
  is_seen = ::isatty(STDERR_FILENO);
  for (const int number : kSignals) {
    if (std::signal(number, take) == SIG_IGN) std::signal(number, SIG_IGN);
  }
}

Interruption::~Interruption() {
  for (const int number : kSignals) {
    if (std::signal(number, SIG_DFL) == SIG_IGN) std::signal(number, SIG_IGN);
  }
}

int Interruption::signal() const { return received; }

}  // namespace tutti::cli
