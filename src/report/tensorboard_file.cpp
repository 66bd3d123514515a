#include <tutti/report/tensorboard_file.hpp>

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/error.hpp>

#include "output_file.hpp"
#include "step_means.hpp"
#include "tf_record.hpp"

namespace tutti {
namespace {

// Fields of a protocol buffer: a key of the field's number and how it is written, then the value.
class Message {
 public:
  Message& add_integer(std::uint32_t field, std::uint64_t value) {
    add_key(field, 0);
    add_varint(value);
    return *this;
  }
  Message& add_double(std::uint32_t field, double value) {
    add_key(field, 1);
    detail::append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& add_float(std::uint32_t field, float value) {
    add_key(field, 5);
    detail::append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  Message& add_bytes(std::uint32_t field, std::string_view value) {
    add_key(field, 2);
    add_varint(value.size());
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void add_key(std::uint32_t field, std::uint32_t how) { add_varint((field << 3) | how); }
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80u);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// What the fields of TensorBoard's Event, Summary, Summary.Value and SessionLog are numbered.
namespace field {
constexpr std::uint32_t kWallTime = 1;
constexpr std::uint32_t kStep = 2;
constexpr std::uint32_t kFileVersion = 3;
constexpr std::uint32_t kSummary = 5;
constexpr std::uint32_t kSessionLog = 7;
constexpr std::uint32_t kSummaryValue = 1;
constexpr std::uint32_t kTag = 1;
constexpr std::uint32_t kSimpleValue = 2;
constexpr std::uint32_t kStatus = 1;
}  // namespace field

constexpr std::uint64_t kSessionStart = 1;

double system_wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

// TensorBoard reads the files of a folder in the order of their names.
detail::OutputFile new_file(const std::filesystem::path& folder, double wall_time) {
  const std::string name =
      fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<std::int64_t>(wall_time), host_name(), ::getpid());
  int number = 0;
  while (std::filesystem::exists(folder / fmt::format("{}.{}", name, number))) ++number;
  return {folder / fmt::format("{}.{}", name, number), detail::OutputFile::Mode::create_new};
}

}  // namespace

class TensorBoardFile::Writer {
 public:
  Writer(std::filesystem::path folder, TensorBoardFileOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {
    if (options_.every_steps < 1)
      throw UsageError(fmt::format("TensorBoardFile: every_steps must be at least 1, and is {}", options_.every_steps));
    if (!options_.wall_time) options_.wall_time = system_wall_time;
  }

  void on(const event::RunStarted& run) {
    file_.reset();
    detail::make_folder(folder_);
    file_.emplace(new_file(folder_, options_.wall_time()));
    write(event_at(0).add_bytes(field::kFileVersion, "brain.Event:2"));
    // What was told of steps from this one on is void.
    write(event_at(run.first_step + 1)
              .add_bytes(field::kSessionLog, Message().add_integer(field::kStatus, kSessionStart).bytes()));
    means_.start(run.first_seconds);
  }

  void on(const event::StepEnded& step) {
    means_.add(step);
    if (step.step % options_.every_steps == 0) write_steps();
  }

  void on(const event::EvaluationEnded& evaluation) {
    std::vector<NamedNumber> scalars{{"loss", evaluation.loss}};
    scalars.insert(scalars.end(), evaluation.metrics.begin(), evaluation.metrics.end());
    write_scalars(evaluation.step, evaluation.split, scalars);
  }

  void on(const event::MemberEvaluated&) {}
  void on(const event::GenerationWentOn&) {}

  void on(const event::GenerationEnded& generation) {
    write_scalars(generation.generation, "population",
                  {{"best_score", generation.best_score},
                   {"median_score", generation.median_score},
                   {"took_over", static_cast<double>(generation.took_over)},
                   {"failed", static_cast<double>(generation.failed)},
                   {"seconds", generation.seconds}});
  }

  void on(const event::CheckpointWritten&) { write_steps(); }
  void on(const event::RunEnded&) { write_steps(); }
  void on(const event::Warned&) {}
  void on(const event::SpanEnded&) {}

 private:
  Message event_at(std::int64_t step) const {
    Message event;
    event.add_double(field::kWallTime, options_.wall_time());
    if (step != 0) event.add_integer(field::kStep, static_cast<std::uint64_t>(step));
    return event;
  }

  void write_steps() {
    if (means_.empty()) return;
    const detail::StepMeans::Means means = means_.take();
    std::vector<NamedNumber> scalars{{"loss", means.loss}, {"lr", means.lr}};
    scalars.insert(scalars.end(), means.metrics.begin(), means.metrics.end());
    write_scalars(means.step, "train", scalars);
  }

  void write_scalars(std::int64_t step, std::string_view folder, const std::vector<NamedNumber>& scalars) {
    Message summary;
    for (const NamedNumber& scalar : scalars)
      summary.add_bytes(field::kSummaryValue, Message()
                                                  .add_bytes(field::kTag, fmt::format("{}/{}", folder, scalar.name))
                                                  .add_float(field::kSimpleValue, static_cast<float>(scalar.value))
                                                  .bytes());
    write(event_at(step).add_bytes(field::kSummary, summary.bytes()));
  }

  void write(const Message& event) {
    if (!file_)
      throw UsageError(fmt::format("{}: the run has to be told as started before its steps", folder_.string()));
    file_->write(detail::tf_record(event.bytes()));
    file_->flush();
  }

  std::filesystem::path folder_;
  TensorBoardFileOptions options_;
  std::optional<detail::OutputFile> file_;
  detail::StepMeans means_;
};

TensorBoardFile::TensorBoardFile(std::filesystem::path folder, TensorBoardFileOptions options)
    : writer_(std::make_unique<Writer>(std::move(folder), std::move(options))) {}

TensorBoardFile::~TensorBoardFile() = default;

void TensorBoardFile::on(const Event& event) {
  std::visit([this](const auto& its) { writer_->on(its); }, event);
}

}  // namespace tutti
