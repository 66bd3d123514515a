#include "cli/interruption.hpp"

#include <array>
#include <csignal>

namespace tutti::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t received = 0;

void take(int number) {
  received = number;
  for (const int other : kSignals) std::signal(other, SIG_DFL);
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
