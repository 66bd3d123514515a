#include <tutti/nn/blas.hpp>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>
#include <tutti/transport/environment.hpp>

namespace tutti {
namespace {

template <typename Function>
Function* look_up(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

std::string text_of(const char* (*function)()) {
  const char* text = function == nullptr ? nullptr : function();
  return text == nullptr ? "" : text;
}

// "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the first two words.
std::string name_and_version(const std::string& configuration) {
  const std::size_t first = configuration.find(' ');
  return configuration.substr(0, first == std::string::npos ? first : configuration.find(' ', first + 1));
}

// The OpenBLAS kernels for the widest instructions that this CPU has; empty where there is nothing to prefer.
std::string best_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return {};
}

// Kernels that OpenBLAS falls back to where it does not know a CPU.
bool is_for_old_cpus(const std::string& kernels) {
  for (const char* old : {"Prescott", "Core2", "Katmai", "Coppermine", "Northwood", "Banias", "Generic", "Unknown"}) {
    if (kernels == old) return true;
  }
  return false;
}

void take_kernels(const std::string& kernels) {
  auto* quit = look_up<void()>("gotoblas_dynamic_quit");
  auto* init = look_up<void()>("gotoblas_dynamic_init");
  if (quit == nullptr || init == nullptr) return;
  setenv("OPENBLAS_CORETYPE", kernels.c_str(), 1);
  quit();
  init();
}

BlasSetup look_and_set_right() {
  BlasSetup setup;
  const std::string configuration = text_of(look_up<const char*()>("openblas_get_config"));
  if (configuration.empty()) return setup;
  setup.library = name_and_version(configuration);
  auto* kernels = look_up<const char*()>("openblas_get_corename");
  setup.found_kernels = text_of(kernels);
  const std::string best = best_kernels();
  if (!best.empty() && is_for_old_cpus(setup.found_kernels) && std::getenv("OPENBLAS_CORETYPE") == nullptr)
    take_kernels(best);
  setup.kernels = text_of(kernels);
  if (is_for_old_cpus(setup.kernels) && setup.kernels != best) setup.better_kernels = best;
  if (auto* set_threads = look_up<void(int)>("openblas_set_num_threads")) set_threads(1);
  if (auto* threads = look_up<int()>("openblas_get_num_threads")) setup.threads = threads();
  return setup;
}

}  // namespace

std::string BlasSetup::line() const {
  if (library.empty())
    return "BLAS: not OpenBLAS, so it is left as it is; where products of matrices are slow, install "
           "libopenblas0-pthread";
  std::string text = fmt::format("BLAS: {}", library);
  if (!kernels.empty()) text += fmt::format(", kernels {}", kernels);
  if (kernels != found_kernels) text += fmt::format(" instead of {}", found_kernels);
  if (!better_kernels.empty())
    text += fmt::format(" (OPENBLAS_CORETYPE={} in the environment would be several times as fast)", better_kernels);
  if (threads > 0) text += fmt::format(", {} thread{}", threads, threads == 1 ? "" : "s");
  return text;
}

const BlasSetup& set_up_blas() {
  static const BlasSetup setup = [] {
    const BlasSetup found = look_and_set_right();
    // Of several processes on a host one speaks for all.
    const std::optional<ProcessPlace> place = discover_place();
    const bool is_first = !place || place->local_rank == 0;
    if (is_first && std::getenv("TUTTI_QUIET") == nullptr) std::fprintf(stderr, "tutti: %s\n", found.line().c_str());
    return found;
  }();
  return setup;
}

}  // namespace tutti
