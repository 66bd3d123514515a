// What the programs of the data-parallel suite print, a line of JSON for each:
//
//   {"engine":"tutti","model":"mlp-256","batch":64,"seconds":0.0011,...}                          the time of a step
//   {"engine":"tutti","model":"mlp-50m","batch":8,"replicas":8,"resident_bytes":8.1e8,...}        memory after training
//   {"engine":"tutti","peer":"ddp","model":"mlp-256","batch":64,"steps":50,"largest_loss_difference":2e-7}
//   {"engine":"tutti","model":"cnn","batch":64,"compression":"TopK:0.01","epochs":5,"accuracy":0.88,...}
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cli/measure.hpp"

namespace tutti::bench {

// 784-h-h-10 with ReLU, and a small CNN; in the order in which they are told.
inline constexpr std::array<std::string_view, 4> kStepModels{"mlp-256", "mlp-1024", "mlp-2048", "cnn"};
// 784-h-h-10 with 50 million parameters, of which the memory is measured.
inline constexpr std::string_view kMemoryModel = "mlp-50m";
// Trained on Fashion-MNIST with each compression.
inline constexpr std::string_view kAccuracyModel = "cnn";
// Of a batch; beyond, a typing error is likelier than a wish.
inline constexpr int kMostRows = 1 << 20;

// Where steps can be compared.
struct StepPlace {
  std::string model;
  int batch = 0;  // rows of all replicas together

  friend bool operator==(const StepPlace&, const StepPlace&) = default;
  friend std::strong_ordering operator<=>(const StepPlace& a, const StepPlace& b);
};

// "mlp-256, batch 64".
std::string to_string(const StepPlace& place);

struct StepResult {
  std::string engine;  // "tutti", "tutti-processes", "ddp", "single", "never-talk"
  std::string model;
  int batch = 0;
  int threads = 1;  // for BLAS and OpenMP, of each replica
  cli::Timing timing;

  StepPlace place() const { return {model, batch}; }
  std::pair<std::string, std::string> column() const { return {engine, std::to_string(threads)}; }
};

struct MemoryResult {
  std::string engine;
  std::string model;
  int replicas = 0;
  int batch = 0;
  std::uint64_t resident_bytes = 0;   // without gradients and activations
  std::uint64_t parameter_bytes = 0;  // all parameters, once
};

struct AgreementResult {
  std::string engine;
  std::string peer;
  std::string model;
  int batch = 0;
  int steps = 0;
  double largest_loss_difference = 0;
};

// What a network learns in so many passes over Fashion-MNIST.
struct AccuracyResult {
  std::string engine;
  std::string model;
  int batch = 0;
  std::string compression;  // "NoCompression", "TopK:0.01"
  int epochs = 0;
  double accuracy = 0;               // the share of the 10,000 test images that it tells right
  std::uint64_t gradient_bytes = 0;  // what would have travelled
  std::uint64_t sent_bytes = 0;      // what did
};

// One line, without its end.
std::string to_json_line(const StepResult& result);
std::string to_json_line(const MemoryResult& result);
std::string to_json_line(const AgreementResult& result);
std::string to_json_line(const AccuracyResult& result);

// A UsageError for a line that tells something else.
StepResult parse_step_result(std::string_view line);
MemoryResult parse_memory_result(std::string_view line);
AgreementResult parse_agreement_result(std::string_view line);
AccuracyResult parse_accuracy_result(std::string_view line);

}  // namespace tutti::bench
