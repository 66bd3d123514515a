#include "cli/interruption.hpp"

#include <array>
#include <csignal>

namespace tutti::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t received = 0;

// A second Ctrl-C ends the program. Launchers follow theirs up with a SIGTERM after a while, which is no second wish.
void take(int number) {
  received = number;
  for (const int other : kSignals) std::signal(other, other == number ? SIG_DFL : SIG_IGN);
}

}  // namespace

Interruption::Interruption() {
  received = 0;
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
