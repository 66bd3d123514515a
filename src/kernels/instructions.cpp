#include <tutti/kernels/instructions.hpp>

#include <atomic>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "chosen_instructions.hpp"

namespace tutti {
namespace {

using detail::Instructions;

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows it. Where AVX2 is usable, the CPU's word is enough.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool available(Instructions instructions) {
#if defined(__x86_64__)
  __builtin_cpu_init();  // needed before main
  switch (instructions) {
    case Instructions::baseline: return true;
    case Instructions::avx2: return __builtin_cpu_supports("avx2") && has_f16c();
    case Instructions::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return instructions == Instructions::baseline;
}

std::string_view to_string(Instructions instructions) {
  switch (instructions) {
    case Instructions::baseline: return "baseline";
    case Instructions::avx2: return "avx2";
    case Instructions::avx512: break;
  }
  return "avx512";
}

constexpr Instructions kWidestFirst[] = {Instructions::avx512, Instructions::avx2, Instructions::baseline};

constexpr int kNotChosen = -1;

// Threads that find it not chosen choose the same.
constinit std::atomic<int> chosen = kNotChosen;

}  // namespace

Instructions detail::chosen_instructions() {
  const int choice = chosen.load(std::memory_order_relaxed);
  if (choice != kNotChosen) return static_cast<Instructions>(choice);
  for (Instructions instructions : kWidestFirst) {
    if (!available(instructions)) continue;
    int expected = kNotChosen;  // somebody may have asked for others since
    chosen.compare_exchange_strong(expected, static_cast<int>(instructions), std::memory_order_relaxed);
    break;
  }
  return static_cast<Instructions>(chosen.load(std::memory_order_relaxed));
}

std::string_view kernel_instructions() { return to_string(detail::chosen_instructions()); }

std::vector<std::string_view> available_kernel_instructions() {
  std::vector<std::string_view> names;
  for (Instructions instructions : kWidestFirst)
    if (available(instructions)) names.push_back(to_string(instructions));
  return names;
}

void use_kernel_instructions(std::string_view name) {
  for (Instructions instructions : kWidestFirst) {
    if (name != to_string(instructions) || !available(instructions)) continue;
    chosen.store(static_cast<int>(instructions), std::memory_order_relaxed);
    return;
  }
  std::string names;
  for (std::string_view each : available_kernel_instructions())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", each);
  throw UsageError(fmt::format("this CPU has no kernel instructions '{}'; available are: {}", name, names));
}

}  // namespace tutti
